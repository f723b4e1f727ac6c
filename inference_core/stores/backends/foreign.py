"""ForeignBackend: any other LangGraph store as a Backend.

A scope is read page by page, filtered to the exact namespace and ranked in this process. Such a store has no change
feed, so a `Mirror` of each scope finds out what has changed. Batches are not atomic, and versions are compared in this
process alone.

Rows as values of another LangGraph store: fields that it does not know are in the value, under the key ``EXTRA``.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.base.batch import AsyncBatchedBaseStore
from langgraph.store.memory import InMemoryStore

from inference_core.clock import aware
from inference_core.errors import (
    ConfigurationError,
    ScopeTooLarge,
    StoreError,
    StoreUnavailable,
    VersionConflict,
    raised_as,
    without_quotes,
)
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, Term
from inference_core.stores.backend import (
    EXTRA,
    Batch,
    Capabilities,
    Check,
    Head,
    Key,
    Outcome,
    PageRequest,
    Put,
    Remove,
    Row,
    RowState,
    SetVector,
    Tally,
    UnembeddedRow,
    Unreadable,
    Write,
    WriteRule,
    keys_of,
    place_of,
)
from inference_core.stores.backends.rows import holding_most, tally


def extra_of(value: dict[str, Any]) -> dict[str, Any]:
    """What this package keeps in a stored ``value`` beside the caller's fields."""
    found = value.get(EXTRA)
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON


def text_of(row: Row) -> str | None:
    """The text that queries find a row by: the one indexed with it, or else its content; None if it is blank."""
    text = extra_of(row.value).get("text") or row.value.get("content")
    return text if isinstance(text, str) and text.strip() else None


def operation_of(write: Write, row: Row | None) -> tuple[PutOp | None, int]:
    """The store's operation for ``write`` over ``row``, if any, and the version after it. Raises VersionConflict."""
    version = row.version if row else 0
    if isinstance(write, Put | Remove | Check) and write.expected not in (None, version):
        raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
    if isinstance(write, Remove):
        return PutOp(write.namespace, write.key, None) if row else None, 0
    if isinstance(write, Put):
        first = write.created_at or (row.created_at if row else write.updated_at)
        version = max(version, write.above) + 1
        extra: dict[str, Any] = {"version": version, "created_at": aware(first).isoformat()}
        if document := write.document:
            extra |= {"text": document.text, "situation": list(document.situation)}
            if document.vector:
                extra |= _vector_fields(document.model, document.vector)
        return PutOp(write.namespace, write.key, json.loads(write.value) | {EXTRA: extra}, index=False), version
    if isinstance(write, SetVector) and row and version == write.version:
        extra = row.value.get(EXTRA, {}) | _vector_fields(write.model, write.vector)
        return PutOp(write.namespace, write.key, row.value | {EXTRA: extra}, index=False), version
    return None, version


def _vector_fields(model: str, vector: bytes) -> dict[str, str]:
    return {"model": model, "vector": base64.b85encode(vector).decode()}


def row_after(op: PutOp) -> Row | None:
    """The row that ``op`` leaves."""
    if op.value is None:
        return None
    now = datetime.now(UTC)
    return row_of(Item(namespace=op.namespace, key=op.key, value=dict(op.value), created_at=now, updated_at=now))


def row_of(item: Item) -> Row:
    """The row of a stored ``item``."""
    extra = extra_of(item.value)
    created = aware(item.created_at)
    # Stores disagree about when an item was first stored, so the value says it.
    with suppress(ValueError, OverflowError):
        if isinstance(text := extra.get("created_at") or item.value.get("created_at"), str):
            created = aware(datetime.fromisoformat(text))
    return Row(
        namespace=tuple(item.namespace),
        key=item.key,
        value=copy.deepcopy(item.value),
        version=int(extra.get("version", 1)),
        seq=0,
        created_at=created,
        updated_at=aware(item.updated_at),
    )


def state_of(row: Row) -> RowState:
    """What a rule sees of ``row``."""
    return RowState(
        seq=0,
        version=row.version,
        kind=kind_of(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
        value=json.dumps(row.value),
    )


def kind_of(row: Row) -> str:
    """The type of the memory; "" for any other value."""
    kind = row.value.get("memory_type")
    return kind if isinstance(kind, str) else ""


def document_of(row: Row) -> Document | None:
    """What an index reads of the row; None without a text."""
    text = text_of(row)
    if text is None:
        return None
    extra = extra_of(row.value)
    match extra.get("situation"):
        case [str(session), bool(by_assistant), None | int() | float() as happened, int() | float() as importance]:
            situation = DocumentMetadata(session, by_assistant, happened, importance)
        case _:
            situation = DocumentMetadata()
    document = Document.of(text, situation)
    vector = extra.get("vector")
    return document._replace(model=extra.get("model", ""), vector=base64.b85decode(vector)) if vector else document


MAX_SCOPE_ROWS: Final = 10_000
_PAGE: Final = 500
_RESTARTS: Final = 5
"""How often a listing starts over because rows were removed meanwhile; after that it goes on all the same."""
_LOOP_S: Final = 2.0
_TURNS: Final = 16
"""Users take turns to write with rules in so many groups."""
_in_memory_lock = threading.Lock()
"""LangGraph's InMemoryStore fails if one thread reads while another writes."""


class Mark(NamedTuple):
    """What a mirror keeps of a row: the number of its last change, its version, its vector's model, and a hash.

    ``model`` is "" without a vector and None without a text. ``digest`` is None once the row is gone.
    """

    seq: int
    version: int
    model: str | None
    digest: int | None


class Mirror:
    """What this process has read of a scope, to find out what has changed since.

    ``fresh`` holds the rows that have changed after ``fresh_since``, until an index has read them.
    """

    def __init__(self) -> None:
        self.head = self.fresh_since = 0
        self.marks: dict[str, Mark] = {}
        self.fresh: dict[str, Row | None] = {}

    def note(self, rows: dict[str, Row]) -> None:
        """Compares ``rows`` with the last reading and numbers what has changed."""
        for key in [key for key, mark in self.marks.items() if mark.digest is not None and key not in rows]:
            self.head += 1
            self.marks[key] = Mark(self.head, 0, None, None)
            self.fresh[key] = None
        for key, row in reversed(rows.items()):
            digest = hash((row.updated_at, row.version, json.dumps(row.value, sort_keys=True, default=str)))
            if key not in self.marks or self.marks[key].digest != digest:
                self.head += 1
                extra = extra_of(row.value)
                model = sys.intern(str(extra.get("model", ""))) if extra.get("vector") else ""
                self.marks[key] = Mark(self.head, row.version, None if text_of(row) is None else model, digest)
                self.fresh[key] = row

    def drop_fresh(self, until: int) -> None:
        """Drops the rows of changes up to number ``until``."""
        self.fresh = {key: row for key, row in self.fresh.items() if self.marks[key].seq > until}
        self.fresh_since = max(self.fresh_since, until)


class ForeignBackend:
    """Serves ``store``, whose errors become StoreUnavailable.

    Ranking a scope of more than ``max_rows`` rows raises ScopeTooLarge; listing, counting and erasing it do not.

    ``weakly``: holds only a weak reference to the store.
    """

    capabilities = Capabilities(
        durable=False, atomic=False, compare_and_set=False, change_feed=False, single_writer=False
    )

    def __init__(self, store: BaseStore, max_rows: int = MAX_SCOPE_ROWS, *, weakly: bool = False) -> None:
        self.name = type(store).__name__
        self._store: Callable[[], BaseStore | None] = weakref.ref(store) if weakly else lambda: store
        self._max_rows = max_rows
        self._meta: dict[str, str] = {}
        self._mirrors: dict[Namespace, Mirror] = {}
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies the batches one after the other.

        In this process no other batch of the same users comes between what a rule reads and what is written.
        """
        outcomes: list[Outcome] = []
        for batch in batches:
            has_rules = any(isinstance(one, WriteRule) for one in batch)
            roots = {namespace[0] for namespace, _ in keys_of([batch])} if has_rules else ()
            with ExitStack() as turns:
                for at in sorted({hash(root) % _TURNS for root in roots}):
                    turns.enter_context(self._turns[at])
                try:
                    outcomes.append(self._applied(batch))
                except (StoreError, OverflowError) as error:
                    is_ours = isinstance(error, StoreError)
                    outcomes.append(
                        error if is_ours else StoreError(f"An instant lies outside of the calendar: {error}")
                    )
                    continue
            with self._lock:  # a row with a vector is no longer pending, although its scope was not read again
                for write in batch:
                    mirror = self._mirrors.get(write.namespace) if isinstance(write, SetVector) else None
                    if isinstance(write, SetVector) and mirror and write.key in mirror.marks:
                        mirror.marks[write.key] = mirror.marks[write.key]._replace(model=write.model)
        return outcomes

    def _applied(self, batch: Batch) -> list[int]:
        keys = list(keys_of([batch]))
        rows = dict(zip(keys, self.get(keys), strict=True))
        before = {key: state_of(row) for key, row in rows.items() if row}
        after: dict[Key, RowState] = {}
        ops: list[PutOp] = []
        versions: list[int] = []
        for one in batch:
            now, version = datetime.now(UTC), 0
            writes: Sequence[Write] = one.check(before, after, now) if isinstance(one, WriteRule) else [one]
            for write in writes:
                key = (write.namespace, write.key)
                op, version = operation_of(write, rows.get(key))
                if op:  # the writes of a batch see each other
                    ops.append(op)
                    row = rows[key] = row_after(op)
                    after[key] = state_of(row) if row else (after.get(key) or before[key]).deleted(0)
            versions.append(0 if isinstance(one, WriteRule) else version)
        self._ask(ops)
        return versions

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key, or None; also for a key with a NUL in a store that refuses one, as PostgreSQL's does."""
        try:
            found = self._ask([GetOp(namespace, key, refresh_ttl=False) for namespace, key in keys])
        except StoreUnavailable:
            possible = [key for key in keys if "\x00" not in key[1]]
            if len(possible) == len(keys):
                raise
            rows = dict(zip(possible, self.get(possible), strict=True))
            return [rows.get(key) for key in keys]
        return [row_of(item) if item else None for item in found]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """None for every key: token vectors would multiply the size of the values."""
        return [None] * len(keys)

    def page(self, request: PageRequest) -> list[Row]:
        rows = sorted(self._rows(request.scopes, request.kinds), key=place_of)
        start = request.offset + (bisect_right(rows, request.after.place, key=place_of) if request.after else 0)
        return rows[start : start + request.limit]

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        return sum(1 for _ in self._rows(namespaces, kinds))

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        rows = self._rows(namespaces, None)
        return tally((row.namespace, kind_of(row), row.created_at) for row in rows)

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        conditions = (MatchCondition("prefix", prefix),) if prefix else None
        names: set[Namespace] = set()
        while True:
            (page,) = self._ask([ListNamespacesOp(conditions, limit=_PAGE, offset=len(names))])
            fresh = {tuple(name) for name in page} - names
            names |= fresh
            if len(page) < _PAGE or not fresh:
                return sorted(name for name in names if name[: len(prefix)] == prefix)

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        """Reads the scopes and numbers what has changed since the last reading."""
        with self._lock:
            for namespace in set(namespaces):
                rows = {row.key: row for row in islice(self._scan(namespace), self._max_rows + 1)}
                if len(rows) > self._max_rows:  # they would all be kept in memory
                    what = f"{namespace[1:]} of {self.name} holds more than {self._max_rows} rows"
                    raise ScopeTooLarge(f"{what}, too many to search; use open_store")
                self._mirrors.setdefault(namespace, Mirror()).note(rows)
            return [Head(self._mirrors[namespace].head) for namespace in namespaces]

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        """The changes after ``since`` that the last call of `heads` has found."""
        with self._lock:
            mirror = self._mirrors.get(namespace)
            changed = [(key, mark) for key, mark in mirror.marks.items() if mark.seq > since] if mirror else []
            rows = dict(mirror.fresh) if mirror and since >= mirror.fresh_since else None
        if rows is None:  # another index has read the changes that this one still needs
            rows = {row.key: row for row in self._scan(namespace)} if changed else {}
        changed.sort(key=lambda one: one[1].seq)
        for key, mark in changed:
            row = rows.get(key)
            if row:
                yield Change(mark.seq, key, kind_of(row), row.created_at.timestamp(), document_of(row))
            else:
                yield Change(mark.seq, key, "", 0.0, None, is_there=False)
        if mirror and changed:
            with self._lock:
                mirror.drop_fresh(changed[-1][1].seq)

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        """The rows that the last call of `heads` has found whose terms hold the most of ``words``."""
        return holding_most(self.changes(namespace, since), words, limit)

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        """Texts without a vector of ``model``, of the scopes that this process has read."""
        with self._lock:
            waiting = [
                (namespace, key)
                for namespace, mirror in self._mirrors.items()
                for key, mark in mirror.marks.items()
                if mark.model not in (None, model)
            ]
        keys = waiting if keys is None else [key for key in keys if key in set(waiting)]
        texts: list[UnembeddedRow] = []
        for at in range(0, len(keys), limit):  # past rows that are gone: their scope may never be read again
            rows = [row for row in self.get(keys[at : at + limit]) if row]
            texts += [
                UnembeddedRow(row.namespace, row.key, row.version, text) for row in rows if (text := text_of(row))
            ]
            if len(texts) >= limit:
                break
        return texts[:limit]

    def expired(self, limit: int) -> list[Key]:
        """Nothing: the store removes expired items itself."""
        del limit
        return []

    def get_meta(self, name: str) -> str | None:
        """A setting of this object. It is not stored: each vector names its model."""
        return self._meta.get(name)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        """Keeps a setting for the life of this object."""
        if is_first:
            self._meta.setdefault(name, value)
        else:
            self._meta[name] = value

    def inspect(self, root: str | None = None) -> Iterator[Row]:
        """Every row of one user or of all. A row that the store cannot read makes it fail."""
        return chain.from_iterable(map(self._scan, self.namespaces(() if root is None else (root,))))

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        """Removes nothing: repairing the store is up to its own tools."""
        del unreadable
        return 0

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        keys = [(row.namespace, row.key) for row in self.inspect(root)]  # keeps keys only, as there may be many rows
        self._ask([PutOp(namespace, key, None) for namespace, key in [*keys, *also]])
        self.forget(root)

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """Does nothing: how the store keeps its data is its own affair."""
        del fully
        return [f"what {self.name} keeps of removed items: see its documentation"]

    def files(self) -> list[Path]:
        """None that are known."""
        return []

    def forget(self, user: str) -> None:
        """Drops what was read of the scopes whose first label is ``user``."""
        with self._lock:
            for namespace in [namespace for namespace in self._mirrors if namespace[0] == user]:
                del self._mirrors[namespace]

    def check_may_block(self) -> None:
        """Raises ConfigurationError in the thread whose event loop serves the store, where a call would deadlock."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # this thread has none
            return
        if running is _loop_of(self._store()):
            raise ConfigurationError(
                f"{self.name} is served by the event loop of this thread, so a synchronous call would block forever. "
                "Await the asynchronous method (agent.ainvoke, service.save_memory), or call from another thread"
            )

    def close(self) -> None:
        """Does nothing: the store belongs to the caller and stays open."""

    def _rows(self, namespaces: Sequence[Namespace], kinds: frozenset[str] | None) -> Iterator[Row]:
        rows = (row for namespace in dict.fromkeys(namespaces) for row in self._scan(namespace))
        return (row for row in rows if kinds is None or kind_of(row) in kinds)

    def _scan(self, scope: Namespace) -> Iterator[Row]:
        """The rows of exactly ``scope``; a search in LangGraph's stores also finds those of the scopes below it."""
        seen: set[str] = set()
        offset, last, restarts = 0, None, 0
        while True:
            # Begin with the last row of the page before: if another row is in its place, one was removed, and this page
            # would miss a row.
            start = max(offset - 1, 0)
            (page,) = self._ask([SearchOp(scope, limit=_PAGE, offset=start, refresh_ttl=False)])
            places = [(tuple(item.namespace), item.key) for item in page]
            if last is not None and places[:1] != [last] and restarts < _RESTARTS:
                offset, last, restarts = 0, None, restarts + 1
                continue
            for item, (namespace, key) in zip(page, places, strict=True):
                if namespace == scope and key not in seen:
                    seen.add(key)
                    yield row_of(item)
            if len(page) < _PAGE:
                return
            offset, last = start + len(page), places[-1]

    def _ask(self, ops: Sequence[Op]) -> list[Any]:
        if not ops:
            return []
        store = self._store()
        if store is None:
            raise StoreUnavailable(f"The {self.name} is gone: keep a reference to it while it is in use")
        if loop := _loop_of(store):  # before anything is sent, see that it runs
            ran = threading.Event()
            try:
                loop.call_soon_threadsafe(ran.set)
            except RuntimeError as error:
                problem = "its event loop is closed; open the store on a running one"
                raise StoreUnavailable(f"{self.name}: {problem}") from error
            if not ran.wait(_LOOP_S):
                raise StoreUnavailable(
                    f"{self.name}: its event loop has been blocked for {_LOOP_S:g} s. If a synchronous call such as "
                    "agent.invoke blocks it, await agent.ainvoke"
                )
        with (
            raised_as(lambda error: StoreUnavailable(f"{self.name}: {without_quotes(error)}")),
            _in_memory_lock if isinstance(store, InMemoryStore) else nullcontext(),
        ):
            return store.batch(ops)


def _loop_of(store: BaseStore | None) -> asyncio.AbstractEventLoop | None:
    """The event loop that serves a store of LangGraph's async kind."""
    return getattr(store, "_loop", None) if isinstance(store, AsyncBatchedBaseStore) else None
