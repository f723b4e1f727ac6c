"""Find memories by what they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from inference_core.clock import in_zone
from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import MemoryStoreDocument, RecalledMemories, why_invalid
from inference_core.memory.secrets import quoted
from inference_core.memory.spaces import SpaceRole
from inference_core.memory.types import MemoryCategory, validate_memory_type
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import (
    MemoryScope,
    UserId,
    checked_moment,
    is_known,
    is_share,
    record_of,
    records_of,
    row_filter,
)
from inference_core.services.operations.spaces import readable
from inference_core.stores.backend import Row
from inference_core.stores.indexing.search import (
    FILTERED,
    FoundRow,
    LeftOutRow,
    RecallMode,
    RowFilter,
    Search,
    SearchResult,
)

MAX_RESULTS: Final = 1_000
MAX_DIVERSITY: Final = 10
DEFAULT_CONTEXT_TYPES: Final = ("preferences", "facts", "instructions")
_DAWN: Final = datetime.min.replace(tzinfo=UTC)


@operation("search_memory", needs=SpaceRole.READ)
async def recall(  # noqa: D417 - callers of the service pass no scope
    scope: MemoryScope,
    user_id: UserId,
    query: str,
    k: int | None = None,
    memory_type: str | None = None,
    include_scores: bool = True,
    sort_by_time: bool = False,
    category: str | None = None,
    *,
    explain: bool = False,
    max_characters: int | None = None,
    diversity: float = 0.0,
    backfill: bool = False,
    as_of: datetime | None = None,
    ignore_session: bool = False,
    links: bool | None = None,
    tags: Sequence[str] | None = None,
    session_id: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    min_relevance: float | None = None,
) -> RecalledMemories:
    """Finds the memories that answer ``query`` best, the best first.

    Filters are applied before the best memories are chosen, ``min_relevance`` afterwards, so fewer than ``k`` may come
    back. A blank query returns the newest memories that pass the filters, unranked: without scores, and without regard
    to ``max_characters``, ``min_relevance`` and the other options of ranking.

    Args:
        user_id: The user.
        query: A question or keywords, in any language.
        k: The maximum number of memories, from 1 to 1,000. None or 0: the service's ``max_results``.
        memory_type: Only memories of this `MemoryType`.
        include_scores: Whether documents have ``score`` and ``relevance``.
        sort_by_time: Sorts the results by age, the newest first.
        category: Only memories of this `MemoryCategory`.
        explain: Adds the parts of each score, and the memories that were ``left_out`` with the reasons.
        max_characters: The maximum length of all contents together.
        diversity: From 0 to 10; 1 is mild. Lowers memories that repeat a better one.
        backfill: Adds the newest other memories if fewer than ``k`` match.
        as_of: Returns what was true at this time, even if it has changed since.
        ignore_session: Ranks by the text only, not by who said it or the messages around it, and does not count the
            recall.
        links: None ranks memories higher that are about somebody whom the query names (with ``ignore_session``, None
            means False). True also ranks higher, and adds, memories that share a name, a tag or rare words with the
            best hits. False does neither. A document's ``links`` name what raised its score.
        tags: Only memories that have all of these.
        session_id: Only memories of this session.
        created_after: Only memories stored at this time or later.
        created_before: Only memories stored before it.
        min_relevance: From 0 to 1. Leaves out memories of lower relevance, which are less likely to answer the query.
            None: the service's.

    Returns:
        The memories as a list. ``by_meaning`` says whether meaning was compared, not only words; ``reason`` says why it
        was not. With ``explain`` its ``left_out`` holds pairs of a memory that matched but was dropped, and the reason,
        such as "below min_relevance"; without, and for a blank query, ``left_out`` is empty.

    Raises:
        InvalidInput: An argument is invalid.
        StoreUnavailable: The database did not answer in time.
    """
    limit = checked_limit(k or scope.max_results)
    if max_characters is not None and max_characters < 1:
        raise InvalidInput(f"max_characters must be at least 1, not {max_characters}")
    if not 0 <= diversity <= MAX_DIVERSITY:
        raise InvalidInput(f"diversity must be from 0 to {MAX_DIVERSITY}, not {diversity}")
    least = scope.min_relevance if min_relevance is None else min_relevance
    if not is_share(least):
        raise InvalidInput(f"min_relevance must be a number from 0 to 1, not {quoted(least)}")
    matches = row_filter(tags, session_id, created_after, created_before)
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    namespaces = await readable(scope, user_id, category)
    now = scope.clock.now()
    then = checked_moment(as_of, "as_of")
    if not asks(query):
        rows = await newest(scope, namespaces, kinds, limit, now, then, matches)
        scope.note_recalled(records_of(() if ignore_session else rows), now)
        return RecalledMemories([MemoryStoreDocument.of(record_of(row)) for row in rows])
    search = Search(
        groups=[namespaces],
        together=True,
        text=query,
        limit=limit,
        kinds=kinds,
        reject=RowFilter(now=now, as_of=then, matches=matches),
        deduplicate=True,
        max_characters=max_characters,
        diversity=diversity,
        backfill=backfill,
        ignore_session=ignore_session,
        prefers_newer=as_of is None and not ignore_session,
        links=links if links or not ignore_session else False,
        explains=explain,
        cold_seconds=scope.cold_seconds,
        now=in_zone(now, scope.zone),
    )
    result = at_least(least, await scope.engine.search(search))
    hits = result.groups[0]
    if not ignore_session:
        scope.note_recalled(records_of([found.row for found in hits]), now)
    recalled = RecalledMemories(
        [_document(found, include_scores=include_scores, explain=explain) for found in hits],
        by_meaning=result.mode is RecallMode.HYBRID,
        reason=result.reason,
    )
    if sort_by_time:
        recalled.sort(key=lambda memory: memory.created_at or _DAWN, reverse=True)
    if explain:
        left_out = [row for row in result.left_out if is_known(row.found.row) and row.reason != FILTERED]
        recalled.left_out = [
            (_document(row.found, include_scores=include_scores, explain=True), row.reason) for row in left_out
        ]
    return recalled


def at_least(least: float, result: SearchResult) -> SearchResult:
    """``result`` with its hits below the relevance ``least`` among what was left out."""
    if not least:
        return result
    below = [hit for group in result.groups for hit in group if (hit.relevance or 0.0) < least]
    groups = [[hit for hit in group if (hit.relevance or 0.0) >= least] for group in result.groups]
    left_out = [*result.left_out, *(LeftOutRow(hit, "below min_relevance") for hit in below)]
    return replace(result, groups=groups, left_out=left_out)


def _document(hit: FoundRow, *, include_scores: bool, explain: bool) -> MemoryStoreDocument:
    document = MemoryStoreDocument.of(record_of(hit.row), hit.score if include_scores else None)
    document.relevance = hit.relevance if include_scores else None
    document.explanation = dict(hit.shares) if explain else None
    document.links = hit.links
    return document


@operation("search_memory", needs=SpaceRole.READ)
async def recall_by_category(
    scope: MemoryScope,
    user_id: UserId,
    category: MemoryCategory | str,
    query: str,
    k: int | None = None,
    memory_type: str | None = None,
) -> RecalledMemories:
    """Like `recall_memories`, within one category."""
    return await recall(scope, user_id, query, k, memory_type, category=category)


@operation("search_memory", needs=SpaceRole.READ)
async def user_context(
    scope: MemoryScope, user_id: UserId, memory_types: Sequence[str] | None = None, max_per_type: int = 3
) -> dict[str, list[str]]:
    """The contents of the user's newest memories by type, at most ``max_per_type`` each; empty types are left out.

    The default ``memory_types`` are preferences, facts and instructions. Raises InvalidInput, StoreUnavailable.
    """
    documents = await user_context_with_timestamps(scope, user_id, memory_types, max_per_type)
    return {kind: [document.content for document in memories] for kind, memories in documents.items()}


@operation("search_memory", needs=SpaceRole.READ)
async def user_context_with_timestamps(
    scope: MemoryScope, user_id: UserId, memory_types: Sequence[str] | None = None, max_per_type: int = 10
) -> dict[str, list[MemoryStoreDocument]]:
    """Like `get_user_context`, as documents, with their times; at most ``max_per_type`` of each type.

    Raises InvalidInput for an unknown type or a ``max_per_type`` that is not from 1 to 1,000, and StoreUnavailable.
    """
    limit = checked_limit(max_per_type)
    now = scope.clock.now()
    context: dict[str, list[MemoryStoreDocument]] = {}
    for kind in memory_types or DEFAULT_CONTEXT_TYPES:
        name = validate_memory_type(kind)
        namespaces = await readable(scope, user_id)
        rows = await newest(scope, namespaces, frozenset({name}), limit, now)
        scope.note_recalled(records_of(rows), now)
        if rows:
            context[name] = [MemoryStoreDocument.of(record_of(row)) for row in rows]
    return context


async def newest(
    scope: MemoryScope,
    namespaces: Sequence[Namespace],
    kinds: frozenset[str] | None,
    limit: int,
    now: datetime,
    as_of: datetime | None = None,
    matches: Callable[[Row], bool] | None = None,
) -> list[Row]:
    """The newest rows of exactly ``namespaces`` that hold memories which are current at ``now``, or were at ``as_of``.

    ``matches`` narrows them down.
    """

    def holds(row: Row) -> bool:
        return (matches is None or matches(row)) and why_invalid(row.value, now, as_of) is None

    return await scope.engine.scan(namespaces, kinds=kinds, accepts=holds, limit=limit)


def asks(query: object) -> bool:
    """Whether ``query`` asks for something; blank text does not. Raises InvalidInput if it is not text."""
    if not isinstance(query, str):
        raise InvalidInput(f"query must be text, not {type(query).__name__}")
    return bool(query.strip())


def checked_limit(k: int) -> int:
    """``k``. Raises InvalidInput unless it is a whole number from 1 to `MAX_RESULTS`."""
    if isinstance(k, bool) or not isinstance(k, int) or not 0 < k <= MAX_RESULTS:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidInput(f"The number of results must be from 1 to {MAX_RESULTS}, not {quoted(k)}")
    return k
