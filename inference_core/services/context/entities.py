"""Entities: the people, places and things that memories name, and how they belong together."""

from __future__ import annotations

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
class _Entity:
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

    An entity is as relevant as the most relevant memory that names it. Memories of different trust make different
    entities. Its fetch raises StoreUnavailable.
    """

    name: str = "entities"
    section: str = "entities"
    limit: int = 5
    read: int = 20

    def fetch(self, request: ContextRequest) -> Plan[list[ContextItem]]:
        """Plan: the entities, the most relevant first; none without a question."""
        entities: dict[tuple[str, Trust], _Entity] = {}
        search = self.question(request)
        found = (yield from request.search(self.name, search)).groups[0] if search else []
        for one in found:
            record = record_of(one.row)
            for noted in _list(record.extra_metadata.get("entities")):
                fields = cast("dict[str, Any]", noted) if isinstance(noted, dict) else {}  # metadata may hold anything
                if not (name := text_field(fields, "name")):
                    continue
                unseen = _Entity(name, text_field(fields, "kind") or "", record.trust, record)
                entity = entities.setdefault((name.casefold(), record.trust), unseen)
                entity.newest = max(entity.newest, record, key=lambda known: known.happened_at)
                entity.relevance = max(entity.relevance, one.relevance or 0.0)
                entity.score = max(entity.score, one.score)
                entity.relations |= dict.fromkeys(_relations(record, name))
        best = sorted(entities.values(), key=lambda entity: (entity.relevance, entity.score), reverse=True)
        return [self._item(entity) for entity in best[: self.limit]]

    def question(self, request: ContextRequest) -> Search | None:
        """What it asks; None without a question."""
        return search_in_all(request, self.read)

    def _item(self, entity: _Entity) -> ContextItem:
        head = f"{entity.name} ({entity.kind})" if entity.kind else entity.name
        return ContextItem(
            id=f"{entity.name.casefold()} {entity.trust.value}",
            text=f"{head}: {'; '.join(entity.relations)}" if entity.relations else head,
            section=self.section,
            source=self.name,
            kind="entity",
            happened_at=entity.newest.happened_at,
            trust=entity.trust,
            relevance=entity.relevance,
            score=entity.score,
        )


def _relations(record: MemoryRecord, name: str) -> list[str]:
    """The relations of the entity ``name``, as words."""
    noted = [list(map(str, one)) for one in map(_list, _list(record.extra_metadata.get("relations")))]
    of_it = [one for one in noted if len(one) == _RELATION_PARTS and name.casefold() in map(str.casefold, one[::2])]
    return [" ".join(one).replace("_", " ") for one in of_it]


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
