"""MemoryStore: a Backend as a LangGraph store.

Namespaces, items and operations are LangGraph's; a search with a query is hybrid (words and meaning). Prefixes match
whole labels. Timestamps are aware, and ``created_at`` is kept by updates. One store object serves sync and async
callers, any number of threads and event loops.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Self, cast
from uuid import UUID

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)
from langgraph.store.base.embed import get_text_at_path

from inference_core.clock import Clock, SystemClock
from inference_core.effects import arun, run
from inference_core.errors import InvalidFilter, InvalidMemory, StoreError
from inference_core.memory.namespaces import AUDIT, Namespace, holds_memories, is_internal
from inference_core.memory.text import canonical_json, copied, is_encodable
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import (
    MAX_KEY_LENGTH,
    MAX_KIND_LENGTH,
    MAX_VALUE_BYTES,
    Put,
    Remove,
    Row,
    Touch,
    Write,
    apart,
    unpack_value,
)
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing.search import COLD_SECONDS, Search
from inference_core.stores.rules.lifetimes import FRESH, MemoryTTLConfig, expiry_in
from inference_core.stores.rules.redacting import redacted

if TYPE_CHECKING:
    from inference_core.services.agent_memory_service import UserMemory
else:
    UserMemory = Any  # imported when a memory is asked for, as the services stand above the stores

_LOG = logging.getLogger(__name__)
MAX_PAGE: Final = 10_000
MAX_OFFSET: Final = 1_000_000_000
_INDEXED_CHARS: Final = 1024 * 1024
"""The most of an item's text that is indexed. Of a longer text, such as a tool's result, queries find the beginning."""


class MemoryStore(BaseStore):
    """The LangGraph store that `open_store` opens. Queries search the JSON paths ``fields`` of a value ("$": all).

    An item with a time to live (in minutes) is not found after that time, even before it is swept. A read with
    ``refresh_ttl`` extends the time once a tenth of it has passed, and does not fail if that cannot be written. ``ttl``
    holds the defaults, as LangGraph's TTLConfig.
    """

    supports_ttl = True

    def __init__(
        self,
        engine: StoreEngine,
        fields: Sequence[str] = ("$",),
        *,
        ttl: TTLConfig | MemoryTTLConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.ttl_config = cast("TTLConfig | None", ttl)
        self._fields = list(fields)
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.engine.backend).__name__})"

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs ``ops`` in order; consecutive puts are applied atomically.

        Raises InvalidNamespaceError, InvalidMemory, InvalidFilter, StoreError.
        """
        return run(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Like `batch`, without blocking the event loop."""
        return await arun(self._batch(list(ops)))

    def memory(self, user_id: str | UUID, agent_name: str | None = None) -> UserMemory:
        """A user's memory: ``add``, ``search``, ``all`` and ``delete``; ``aadd`` and so on for async code.

        As the agent ``agent_name`` sees it; None: the memories that all agents share. Raises InvalidId.
        """
        from inference_core.services.agent_memory_service import AgentMemoryStoreService, UserMemory  # noqa: PLC0415 - it imports this module

        return UserMemory(AgentMemoryStoreService(self, agent_name=agent_name, clock=self._clock), user_id)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Waits until the embedding model is loaded, at most ``timeout`` seconds (None: without limit).

        Returns whether recall uses meaning as well as words: False without a model, or if it is late or failed.
        """
        return self.engine.embedder is not None and self.engine.embedder.wait_ready(timeout)

    def close(self) -> None:
        """Finishes pending writes and closes the database."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)  # which waits for calls that may wait for this event loop

    async def _batch(self, ops: Sequence[Op]) -> list[Result]:
        ops = [_checked(op) for op in ops]
        results: list[Result] = []
        for is_put, group in groupby(ops, key=lambda op: isinstance(op, PutOp)):
            if is_put:
                writes = [self._write(op) for op in group if isinstance(op, PutOp)]
                for some in apart(self.engine.backend, writes):
                    await self.engine.write(some, ages=False, is_clean=True)  # `_write` has redacted memories
                results += [None] * len(writes)
            else:
                for op in group:
                    results.append(await self._read(op))
        return results

    async def _read(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            (row,) = await self.engine.get([(op.namespace, op.key)]) if op.namespace else (None,)
            await self._refresh([row], wanted=op.refresh_ttl)
            return row and Item(
                value=row.value,
                key=row.key,
                namespace=row.namespace,
                created_at=row.created_at,
                updated_at=row.updated_at,
            )
        if isinstance(op, SearchOp):
            return await self._search(op)
        op = cast("ListNamespacesOp", op)
        _check_page(op.limit, op.offset)
        paths = [one.path for one in op.match_conditions or () if one.match_type == "prefix"]
        is_asked = any(map(_names_a_place, paths))
        names = [
            name
            for name in await self.engine.namespaces()
            if name[1:] != (AUDIT,) and (is_asked or not is_internal(name))
        ]
        matching = [name for name in names if all(_matches(name, one) for one in op.match_conditions or ())]
        cut = sorted({name[: op.max_depth] for name in matching})
        return cut[op.offset : op.offset + op.limit]

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        """Ranked if there is a query, else the newest first."""
        _check_page(op.limit, op.offset)
        accepts = predicate(op.filter)
        namespaces = await self.engine.namespaces(op.namespace_prefix)
        if not _names_a_place(op.namespace_prefix):  # a search of a user's items does not mean what this package keeps
            namespaces = [name for name in namespaces if not is_internal(name)]
        end = op.offset + op.limit
        found: list[tuple[Row, float | None]]
        if op.query and op.query.strip():
            result = await self.engine.search(
                Search(
                    groups=[namespaces],
                    text=op.query,
                    limit=end,
                    reject=lambda row: None if accepts(row.value) else "filter",
                    cold_seconds=COLD_SECONDS,
                )
            )
            found = [(hit.row, hit.score) for hit in result.groups[0][op.offset :]]
        elif op.filter:
            rows = await self.engine.scan(namespaces, accepts=lambda row: accepts(row.value), limit=end)
            found = [(row, None) for row in rows[op.offset :]]
        else:
            rows = await self.engine.page(namespaces, limit=op.limit, offset=op.offset)
            found = [(row, None) for row in rows]
        await self._refresh([row for row, _ in found], wanted=op.refresh_ttl)
        return [
            SearchItem(row.namespace, row.key, copied(row.value), row.created_at, row.updated_at, score)
            for row, score in found
        ]

    async def _refresh(self, rows: Sequence[Row | None], *, wanted: bool) -> None:
        """Extends the time to live of ``rows`` if ``wanted``; logs it if that cannot be written."""
        now = self._clock.now()
        touches = [
            Touch(namespace=row.namespace, key=row.key, version=row.version, at=now + row.expiry.ttl)
            for row in rows
            if row and row.expiry and row.expiry.at - now < row.expiry.ttl * (1 - FRESH)
        ]
        if not wanted or not touches:
            return
        try:
            for some in apart(self.engine.backend, touches):
                await self.engine.write(some)
        except StoreError as error:
            _LOG.warning("The time to live of %d items could not be extended: %s", len(touches), error)

    def _write(self, op: PutOp) -> Write:
        if not op.namespace:
            raise InvalidNamespaceError("Namespace cannot be empty.")
        if op.value is None:
            return Remove(namespace=op.namespace, key=op.key)
        if not isinstance(op.value, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise InvalidMemory(f"A value must be a dict, not {type(op.value).__name__}")
        value = canonical_json(op.value, what="value", max_bytes=MAX_VALUE_BYTES)
        if holds_memories(op.namespace):  # any other item is the application's, and comes back as it was put
            self.engine.guard.refuse(self.engine.guard.told(op.value))
        now = self._clock.now()
        kind = op.value.get("memory_type")
        paths = () if op.index is False else self._fields if op.index is None else op.index
        stored = unpack_value(value) if paths else {}  # LangGraph cannot sort keys of which some are not text
        text = "\n".join(text for path in paths for text in get_text_at_path(stored, path))[:_INDEXED_CHARS]
        put = Put(
            namespace=op.namespace,
            key=op.key,
            value=value,
            document=Document.soon_of(text) if text.strip() else None,
            # Databases index it, and some indexes hold no long texts; no type of a memory is that long.
            kind=kind if isinstance(kind, str) and len(kind) <= MAX_KIND_LENGTH else "",
            updated_at=now,
            expiry=None if op.ttl is None else expiry_in(now, op.ttl),
        )
        return redacted(self.engine.guard, put) if holds_memories(op.namespace) else put


def _checked(op: Op) -> Op:
    """``op`` with its namespace as a tuple, as LangGraph's stores take lists too. Raises InvalidNamespaceError."""
    if isinstance(op, GetOp | PutOp):
        op = op._replace(namespace=tuple(op.namespace))
    elif isinstance(op, SearchOp):
        op = op._replace(namespace_prefix=tuple(op.namespace_prefix))
    validate_op_namespace(op)
    labels: Sequence[str] = ()
    if isinstance(op, GetOp | PutOp):
        if not isinstance(op.key, str) or not 0 < len(op.key) <= MAX_KEY_LENGTH or "\x00" in op.key:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise InvalidNamespaceError(f"A key must be text of 1 to {MAX_KEY_LENGTH} characters without NUL")
        labels = (*op.namespace, op.key)
    elif isinstance(op, SearchOp):
        labels = op.namespace_prefix
    if not all(is_encodable(label) for label in labels):
        raise InvalidNamespaceError("Keys and labels must be valid Unicode; one holds a lone surrogate")
    return op


def _check_page(limit: int, offset: int) -> None:
    if not 0 <= limit <= MAX_PAGE or not 0 <= offset <= MAX_OFFSET:
        raise InvalidFilter(f"limit must be from 0 to {MAX_PAGE}, offset to {MAX_OFFSET}; got {limit} and {offset}")


def _names_a_place(prefix: Sequence[str]) -> bool:
    """Whether ``prefix`` asks for more than all that a user has."""
    return "*" not in prefix[1:2] and (len(prefix) > 1 or is_internal(tuple(prefix)))


def _matches(name: Namespace, condition: MatchCondition) -> bool:
    path = condition.path
    part = name[: len(path)] if condition.match_type == "prefix" else name[len(name) - len(path) :]
    return len(name) >= len(path) and all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))


# Filters: what `search(filter=…)` means, the same for every store (docs/filters.md). A filter maps a top-level key of
# the value to what it must be: a JSON value (equal to it), or a mapping of operators, all of which must hold. $and, $or
# (lists of filters) and $not (a filter) stand where keys do. Numbers compare as numbers, text as text; a missing key
# meets only $ne, $nin and {"$exists": False}.

Predicate = Callable[[Mapping[str, Any]], bool]
Test = Callable[[Any], bool]
MAX_DEPTH: Final = 8
"""How deep ``$and``, ``$or`` and ``$not`` may be nested."""
MAX_CONDITIONS: Final = 1_000
"""How many operators, and members of ``$in`` and ``$nin``, a filter may have in all."""
_MISSING: Final = object()
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def predicate(conditions: Mapping[str, Any] | None) -> Predicate:
    """A test of whether a value meets all ``conditions``. Raises InvalidFilter if they are invalid or too large."""
    return _FilterReader().all_of(conditions, depth=0) if conditions else lambda _: True


class _FilterReader:
    """Reads one filter, counting its conditions."""

    def __init__(self) -> None:
        self._left = MAX_CONDITIONS

    def all_of(self, conditions: object, depth: int) -> Predicate:
        if not isinstance(conditions, Mapping):
            raise InvalidFilter(f"filter must be a mapping, not {type(conditions).__name__}")
        if depth > MAX_DEPTH:
            raise InvalidFilter(f"$and, $or and $not may be nested {MAX_DEPTH} deep")
        tests, of_fields = list[Predicate](), list[tuple[str, Test]]()
        for key, condition in cast("Mapping[object, Any]", conditions).items():
            if key in ("$and", "$or", "$not"):
                self._count(1)
                tests.append(self._combined(str(key), condition, depth + 1))
            elif isinstance(key, str) and not key.startswith("$"):
                operators: Mapping[object, Any] = {"$eq": condition}
                if isinstance(condition, Mapping) and any(str(name).startswith("$") for name in condition):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - names of any type
                    operators = cast("Mapping[object, Any]", condition)
                self._count(len(operators))
                of_fields += [(key, self._test(name, operand)) for name, operand in operators.items()]
            else:
                known = "the names of a value's fields, $and, $or, $not"
                raise InvalidFilter(f"Unknown filter key {_shown(key)}; keys are {known}")
        return lambda value: (
            all(test(value.get(key, _MISSING)) for key, test in of_fields) and all(test(value) for test in tests)
        )

    def _combined(self, name: str, operand: Any, depth: int) -> Predicate:
        if name == "$not":
            rejected = self.all_of(operand, depth)
            return lambda value: not rejected(value)
        if not isinstance(operand, list | tuple) or not operand:
            raise InvalidFilter(f"{name} takes a list of at least one filter")
        parts = [self.all_of(part, depth) for part in cast("Sequence[object]", operand)]
        is_met = all if name == "$and" else any
        return lambda value: is_met(part(value) for part in parts)

    def _test(self, name: object, operand: Any) -> Test:
        match name:
            case "$eq":
                return lambda found: _equal(found, operand)
            case "$ne":
                return lambda found: not _equal(found, operand)
            case "$in":
                return self._member("$in", operand)
            case "$nin":
                is_member = self._member("$nin", operand)
                return lambda found: not is_member(found)
            case "$exists" if isinstance(operand, bool):
                return lambda found: (found is not _MISSING) is operand
            case "$exists":
                raise InvalidFilter(f"$exists takes true or false, not {_shown(operand)}")
            case "$contains":
                return lambda found: (
                    any(_equal(one, operand) for one in cast("list[Any]", found))  # a list has it as a member
                    if isinstance(found, list)
                    else isinstance(found, str) and isinstance(operand, str) and operand in found  # a text as a part
                )
            case _:
                compare = _ORDER.get(str(name))
                if compare is None:
                    known = ", ".join(["$eq", "$ne", *_ORDER, "$in", "$nin", "$exists", "$contains"])
                    raise InvalidFilter(f"Unknown filter operator {_shown(name)}; known: {known}")
                if isinstance(operand, bool) or not isinstance(operand, int | float | str):
                    raise InvalidFilter(f"{name} compares numbers or text, not {type(operand).__name__}")
                return lambda found: (
                    isinstance(found, int | float | str)
                    and not isinstance(found, bool)
                    and isinstance(found, str) is isinstance(operand, str)
                    and compare(found, operand)
                )

    def _member(self, name: str, operand: Any) -> Test:
        if not isinstance(operand, list | tuple):
            raise InvalidFilter(f"{name} takes a list, not {type(operand).__name__}")
        wanted = cast("Sequence[Any]", operand)
        self._count(len(wanted))
        return lambda found: any(_equal(found, one) for one in wanted)

    def _count(self, conditions: int) -> None:
        self._left -= conditions
        if self._left < 0:
            raise InvalidFilter(f"A filter may have {MAX_CONDITIONS:,} conditions")


def _equal(found: Any, operand: Any) -> bool:
    """Equal as JSON: true is not 1, 1 is 1.0."""
    if isinstance(found, list) and isinstance(operand, list | tuple):
        pairs = zip(cast("list[Any]", found), cast("Sequence[Any]", operand), strict=False)
        return len(found) == len(operand) and all(_equal(one, other) for one, other in pairs)  # pyright: ignore[reportUnknownArgumentType] - elements of any type
    if isinstance(found, dict) and isinstance(operand, Mapping):
        held, wanted = cast("dict[Any, Any]", found), cast("Mapping[Any, Any]", operand)
        return held.keys() == wanted.keys() and all(_equal(held[name], wanted[name]) for name in held)
    return bool(found == operand) and isinstance(found, bool) is isinstance(operand, bool)


def _shown(name: object) -> str:
    return repr(str(name)[:80])
