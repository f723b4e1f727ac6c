"""Entities: the people, places and things that memories name, and how they belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from inference_core.context.items import ContextItem
from inference_core.drivers import Plan
from inference_core.memory.fields import text_field
from inference_core.memory.record import MemoryRecord
from inference_core.memory.trust import Trust
from inference_core.services.context.memories import search_in_all
from inference_core.services.context.source import ContextRequest
from inference_core.services.operations.scope import record_of
from inference_core.stores.search import Search

_RELATION_PARTS: Final = 3


@dataclass(slots=True)
class _Mentions:
    """What memories of one trust say of an entity."""

    name: str
    kind: str
    trust: Trust
    newest: MemoryRecord
    relevance: float = 0.0
    score: float = 0.0
    relations: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Entities:
    """The entities of the ``read`` memories that fit the question best, each with its relations in one line.

    An entity is as relevant as the most relevant memory that names it. What is said by memories of one trust stays by
    itself. Its fetch raises StoreUnavailable.
    """

    name: str = "entities"
    section: str = "entities"
    limit: int = 5
    read: int = 20

    def fetch(self, request: ContextRequest) -> Plan[list[ContextItem]]:
        """Plan: the entities, the most relevant first; none without a question."""
        mentions: dict[tuple[str, Trust], _Mentions] = {}
        search = self.question(request)
        best_memories = (yield from request.search(self.name, search)).groups[0] if search else []
        for found in best_memories:
            record = record_of(found.row)
            for name, kind in _entities(record):
                one = mentions.setdefault((name.casefold(), record.trust), _Mentions(name, kind, record.trust, record))
                one.newest = max(one.newest, record, key=lambda known: known.happened_at)
                one.relevance = max(one.relevance, found.relevance or 0.0)
                one.score = max(one.score, found.score)
                one.relations |= dict.fromkeys(_relations(record, name))
        best = sorted(mentions.values(), key=lambda one: (one.relevance, one.score), reverse=True)
        return [self._item(one) for one in best[: self.limit]]

    def question(self, request: ContextRequest) -> Search | None:
        """What it asks; None without a question."""
        return search_in_all(request, self.read)

    def _item(self, one: _Mentions) -> ContextItem:
        head = f"{one.name} ({one.kind})" if one.kind else one.name
        return ContextItem(
            id=f"{one.name.casefold()} {one.trust.value}",
            text=f"{head}: {'; '.join(one.relations)}" if one.relations else head,
            section=self.section,
            source=self.name,
            kind="entity",
            happened_at=one.newest.happened_at,
            trust=one.trust,
            relevance=one.relevance,
            score=one.score,
        )


def _entities(record: MemoryRecord) -> list[tuple[str, str]]:
    """Names and kinds; what is no entity in a memory's metadata is passed over."""
    noted: list[Mapping[str, Any]] = [
        one for one in _list(record.extra_metadata.get("entities")) if isinstance(one, dict)
    ]
    return [(name, text_field(one, "kind") or "") for one in noted if (name := text_field(one, "name"))]


def _relations(record: MemoryRecord, name: str) -> list[str]:
    """The relations of the entity ``name``, as words."""
    noted = [list(map(str, one)) for one in map(_list, _list(record.extra_metadata.get("relations")))]
    of_it = [one for one in noted if len(one) == _RELATION_PARTS and name.casefold() in map(str.casefold, one[::2])]
    return [" ".join(one).replace("_", " ") for one in of_it]


def _list(value: Any) -> Iterable[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else ()
