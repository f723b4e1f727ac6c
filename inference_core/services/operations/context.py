"""What the agent is told about the user before it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from typing import Final

from inference_core.clock import in_zone
from inference_core.context.items import ContextItem
from inference_core.context.render import render_memories
from inference_core.drivers import Plan
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory, validate_memory_category, validate_memory_type
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.recall import asks, checked_limit, newest
from inference_core.services.operations.scope import MemoryScope, UserId, record_of
from inference_core.stores.backend import Row
from inference_core.stores.search import Found, RecallMode, Search

DEFAULT_MAX_MEMORIES: Final = 30
_PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class RecalledContext:
    """The memories of each category, how they were ranked, and, if not by all evidence, why.

    ``hits`` are those that a search found, by id; ``left_out`` would have been among them, but for a reason.
    """

    memories: dict[MemoryCategory, list[MemoryRecord]]
    mode: RecallMode
    reason: str | None
    now: datetime
    hits: Mapping[str, Found] = field(default_factory=dict[str, Found])
    left_out: Sequence[tuple[MemoryRecord, str]] = ()

    def records(self) -> list[MemoryRecord]:
        """All memories, category by category."""
        return [record for records in self.memories.values() for record in records]

    def items(self, source: str) -> list[ContextItem]:
        """All memories with what the search said of them, as given by ``source``."""
        return [_item(record, self.hits.get(record.id), source) for record in self.records()]

    def render(self, zone: tzinfo, *, preamble: bool = True) -> str:
        """The prompt block, by default with the time and what it is; "" if there is nothing to tell."""
        return render_memories(self.memories, now=self.now, zone=zone, preamble=preamble)


def recall_context(
    scope: MemoryScope,
    user_id: UserId,
    query: str | None,
    *,
    types: Sequence[str] | None = None,
    categories: Sequence[str | MemoryCategory] | None = None,
    per_category: int,
    patience: float = _PATIENCE_S,
    explains: bool = False,
) -> Plan[RecalledContext]:
    """For each category its ``per_category`` memories that fit ``query`` best, filled up with the newest ones.

    ``types`` None means all of them. Types are applied before the cut; equal contents are told once. ``explains``: hits
    come with the shares of their scores, and with what was left out. Raises InvalidInput, StoreUnavailable.
    """
    kinds = None if types is None else frozenset(validate_memory_type(kind) for kind in types)
    wanted = [MemoryCategory(validate_memory_category(category)) for category in categories or MemoryCategory]
    groups = {category: scope.namespaces.read_scopes(user_id, category) for category in wanted}
    now = scope.clock.now()
    found: list[list[Row]] = []
    mode, reason = RecallMode.HYBRID, None
    hits: dict[str, Found] = {}
    left_out: list[tuple[MemoryRecord, str]] = []
    if query is None or not asks(query):
        for scopes in groups.values():
            rows = yield from newest(scope, scopes, kinds, per_category, now)
            found.append(rows)
    else:
        search = Search(
            groups=list(groups.values()),
            text=query,
            limit=per_category,
            fills=True,
            kinds=kinds,
            reject=lambda row: why_invalid(row.value, now),
            collapses=True,
            patience=patience,
            explains=explains,
            now=in_zone(now, scope.zone),
        )
        result = yield from scope.engine.search(search)
        found = [[one.row for one in group] for group in result.groups]
        mode, reason = result.mode, result.reason
        hits = {one.row.key: one for group in result.groups for one in group}
        left_out = [(record_of(one.found.row), one.reason) for one in result.left_out]
    scope.note_recalled([row for rows in found for row in rows], now)
    memories = {category: _told_once(rows) for category, rows in zip(groups, found, strict=True) if rows}
    return RecalledContext(memories, mode, reason, now, hits, left_out)


def format_context(
    scope: MemoryScope,
    user_id: UserId,
    query: str | None = None,
    include_types: Sequence[str] | None = None,
    max_memories: int = DEFAULT_MAX_MEMORIES,
    include_categories: Sequence[str | MemoryCategory] | None = None,
) -> Plan[str]:
    """The prompt block of what fits ``query`` best (without one: the newest), at most ``max_memories``; "" if nothing.

    The memories are shared out evenly between the categories. Raises InvalidInput, StoreUnavailable.
    """
    limit = checked_limit(max_memories)
    count = len(include_categories) if include_categories else len(MemoryCategory)
    context = yield from recall_context(
        scope,
        user_id,
        query,
        types=include_types,
        categories=include_categories,
        per_category=-(-limit // count),
    )
    return replace(context, memories=_at_most(limit, context.memories)).render(scope.zone)


def _at_most(
    limit: int, memories: dict[MemoryCategory, list[MemoryRecord]]
) -> dict[MemoryCategory, list[MemoryRecord]]:
    """``memories`` without the last of the largest categories, so that there are at most ``limit``."""
    kept = {category: list(records) for category, records in memories.items()}
    while sum(map(len, kept.values())) > limit:
        max(reversed(kept.values()), key=len).pop()
    return kept


def _item(record: MemoryRecord, hit: Found | None, source: str) -> ContextItem:
    """The item of ``record``; what no search has judged is told whatever the question."""
    if hit is None:
        return ContextItem.of(record, source=source)
    return ContextItem.of(record, source=source, relevance=hit.relevance, score=hit.score, signals=hit.shares)


def _told_once(rows: Sequence[Row]) -> list[MemoryRecord]:
    """The memories of ``rows``; of those with the same content the first."""
    by_content = {record.content: record for record in map(record_of, reversed(rows))}
    return list(reversed(by_content.values()))
