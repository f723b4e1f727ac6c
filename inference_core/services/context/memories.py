"""Sources of memories: those that fit the question, by category or type, and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.clock import in_zone
from inference_core.context.items import ContextItem, section_of
from inference_core.drivers import Plan
from inference_core.memory.fields import text_field
from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory, MemoryType, validate_memory_category, validate_memory_type
from inference_core.memory.validity import why_invalid
from inference_core.services.context.source import ContextRequest
from inference_core.services.operations.recall import asks, newest
from inference_core.services.operations.scope import record_of
from inference_core.stores.backend import Row
from inference_core.stores.search import Found, Search

Accepts = Callable[[MemoryRecord], bool]
"""Whether a source gives this memory."""
IDEA: Final = "idea"
"""The tag of short-term ideas, whatever their type."""
_LOOKED_AT: Final = 100
_PATIENCE_S: Final = 2.0
_OVER: Final = ("done", "dropped")
_QUERY_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """The memories that fit the question best, ``limit`` in all, shared out between the ``categories``.

    ``types`` narrow them down before that, ``accepts`` after a hundred of each category were found. ``section`` "":
    each in that of its category. With ``judged`` off, or without a question, they are the newest ones, which are shown
    whatever the question. Its fetch raises InvalidInput, StoreUnavailable.
    """

    name: str = "memories"
    section: str = ""
    limit: int = 30
    categories: Sequence[str | MemoryCategory] = tuple(MemoryCategory)
    types: Sequence[str | MemoryType] | None = None
    accepts: Accepts | None = None
    judged: bool = True

    def fetch(self, request: ContextRequest) -> Plan[list[ContextItem]]:
        """Plan: the memories, category by category."""
        items: list[ContextItem] = []
        search = self.question(request)
        if search is None:
            for scopes in self._groups(request):
                rows = yield from newest(request.scope, scopes, self._kinds(), self._looked_at, request.now)
                known = [record for record in map(record_of, rows) if self.accepts is None or self.accepts(record)]
                of_category = known[: self._each]
                items += [ContextItem.of(one, source=self.name, section=self.section or None) for one in of_category]
            return items
        result = yield from request.search(self.name, search)
        for found in result.groups:
            accepted = [one for one in found if self.accepts is None or self.accepts(record_of(one.row))]
            items += [item_of(one, self.name, self.section) for one in accepted[: self._each]]
        return items

    def question(self, request: ContextRequest) -> Search | None:
        """What it asks; None if it gives the newest. Raises InvalidInput."""
        if not self.judged or request.question is None:
            return None
        return search_for(request, request.question, self._groups(request), self._looked_at, self._kinds())

    @property
    def _each(self) -> int:
        return -(-self.limit // len(self.categories))

    @property
    def _looked_at(self) -> int:
        return self._each if self.accepts is None else max(self._each, _LOOKED_AT)

    def _groups(self, request: ContextRequest) -> list[list[Namespace]]:
        names = map(validate_memory_category, self.categories)
        return [request.scope.namespaces.read_scopes(request.user_id, name) for name in names]

    def _kinds(self) -> frozenset[str] | None:
        return None if self.types is None else frozenset(map(validate_memory_type, self.types))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociatedMemories:
    """What is about the same as the ``seeds`` memories that fit the question best, and does not fit it by itself.

    An associated memory is as relevant as the best of those is, times how relevant it is to them. What is among the
    ``known`` best is found without this source. Its fetch raises StoreUnavailable.
    """

    name: str = "associated"
    section: str = "associated_memory"
    limit: int = 10
    seeds: int = 3
    known: int = 30

    def fetch(self, request: ContextRequest) -> Plan[list[ContextItem]]:
        """Plan: the memories, the best first; none without a question."""
        search = self.question(request)
        best = (yield from request.search(self.name, search)).groups[0] if search else []
        text = " ".join(record_of(one.row).content for one in best[: self.seeds])[:_QUERY_CHARACTERS]
        if not asks(text):
            return []
        known = {(one.row.namespace, one.row.key) for one in best}
        share = max(one.relevance or 0.0 for one in best)

        def rejects(row: Row) -> str | None:
            return "fits by itself" if (row.namespace, row.key) in known else None

        scopes = request.scope.namespaces.read_scopes(request.user_id)
        search = search_for(request, text, [scopes], self.limit, None, rejects)
        found = yield from request.scope.engine.search(search)
        return [item_of(one, self.name, self.section, share) for one in found.groups[0]]

    def question(self, request: ContextRequest) -> Search | None:
        """What it asks first; None without a question."""
        return search_in_all(request, max(self.known, self.seeds))


def goals(limit: int = 10, *, judged: bool = True) -> Memories:
    """The user's goals that are still open, those that fit the question; with ``judged`` off the newest, always."""
    return Memories(
        name="goals",
        section="goals",
        limit=limit,
        categories=(MemoryCategory.SEMANTIC,),
        types=(MemoryType.GOALS,),
        accepts=lambda record: text_field(record.extra_metadata, "state") not in _OVER,
        judged=judged,
    )


def ideas(limit: int = 10, *, judged: bool = True) -> Memories:
    """What will pass: the user's circumstances (type "context"), and goals and general memories tagged "idea"."""
    return Memories(
        name="ideas",
        section="ideas",
        limit=limit,
        categories=(MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC),
        types=(MemoryType.CONTEXT, MemoryType.GOALS, MemoryType.GENERAL),
        accepts=lambda record: record.memory_type is MemoryType.CONTEXT or IDEA in record.tags,
        judged=judged,
    )


def consolidated_memories(limit: int = 10, *, judged: bool = True) -> Memories:
    """Summaries of sessions, and memories that were made of others."""
    return Memories(
        name="consolidated",
        section="consolidated_memory",
        limit=limit,
        categories=(MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC),
        types=(MemoryType.SESSION_SUMMARY, MemoryType.GENERAL),
        accepts=lambda record: record.memory_type is MemoryType.SESSION_SUMMARY or bool(record.cites),
        judged=judged,
    )


def search_in_all(request: ContextRequest, limit: int) -> Search | None:
    """For the memories that fit the request's question best, of all categories; None without a question."""
    scopes = request.scope.namespaces.read_scopes(request.user_id)
    return None if request.question is None else search_for(request, request.question, [scopes], limit)


def search_for(
    request: ContextRequest,
    text: str,
    groups: Sequence[Sequence[Namespace]],
    limit: int,
    kinds: frozenset[str] | None = None,
    rejects: Callable[[Row], str | None] | None = None,
) -> Search:
    """For the ``limit`` memories of each group that fit ``text`` best and hold now."""
    return Search(
        groups=groups,
        text=text,
        limit=limit,
        kinds=kinds,
        reject=lambda row: why_invalid(row.value, request.now) or (rejects(row) if rejects else None),
        explains=True,
        patience=_PATIENCE_S,
        now=in_zone(request.now, request.zone),
    )


def item_of(found: Found, source: str, section: str, share: float = 1.0) -> ContextItem:
    """The item of a hit, ``share`` as relevant as that; ``section`` "": that of its category."""
    record = record_of(found.row)
    return ContextItem.of(
        record,
        source=source,
        section=section or section_of(record.category),
        relevance=None if found.relevance is None else round(share * found.relevance, 3),
        score=found.score,
        signals=found.shares,
    )
