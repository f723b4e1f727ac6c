"""ForeignBackend: any other LangGraph store as a Backend, as well as that can be done.

A scope is read by pages, filtered to the exact namespace, and ranked in this process. What such a store lacks is kept
in the value, under one key: a version and the vector. No compare-and-set across processes, no atomic batches.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from itertools import chain, islice
from typing import Any, Final
from weakref import WeakKeyDictionary

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
    without_quotes,
)
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, Situation, Term
from inference_core.stores.backend import (
    Capabilities,
    Check,
    Delete,
    Expire,
    Key,
    Outcome,
    Pending,
    Put,
    Row,
    SetVector,
    Tally,
    Touch,
    Unreadable,
    Write,
)
from inference_core.stores.backends.mirror import EXTRA, Mirror, extra_of
from inference_core.stores.cursor import PageRequest, cut
from inference_core.stores.scan import holding_most
from inference_core.stores.table import tally

MAX_SCOPE_ROWS: Final = 10_000
_PAGE: Final = 500
_LOOP_S: Final = 2.0
_turns: WeakKeyDictionary[BaseStore, threading.Lock] = WeakKeyDictionary()
_turns_lock = threading.Lock()


class ForeignBackend:
    """Rows in ``store``. Scopes beyond ``max_rows`` raise ScopeTooLarge; the store's own errors StoreUnavailable.

    ``weakly``: this object does not keep the store alive.
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

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies the batches one after the other."""
        outcomes: list[Outcome] = []
        for batch in batches:
            try:
                outcomes.append(self._apply_batch(batch))
            except StoreError as error:
                outcomes.append(error)
        return outcomes

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key; None also for a key with a NUL that the store refuses, as PostgreSQL does."""
        try:
            found = self._ask([GetOp(namespace, key, refresh_ttl=False) for namespace, key in keys])
        except StoreUnavailable:
            possible = [key for key in keys if "\x00" not in key[1]]
            if len(possible) == len(keys):
                raise
            rows = dict(zip(possible, self.get(possible), strict=True))
            return [rows.get(key) for key in keys]
        return [_row(item) if item else None for item in found]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """None: a foreign store keeps no token vectors, which would multiply the size of its values."""
        return [None] * len(keys)

    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first."""
        return cut(self._rows(request.scopes, request.kinds), request)

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold."""
        return sum(1 for _ in self._rows(scopes, kinds))

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        rows = self._rows(scopes, None)
        return tally((row.namespace, _kind(row), row.created_at) for row in rows)

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that start with ``prefix``."""
        conditions = (MatchCondition("prefix", prefix),) if prefix else None
        names: set[Namespace] = set()
        while True:
            (page,) = self._ask([ListNamespacesOp(conditions, limit=_PAGE, offset=len(names))])
            fresh = {tuple(name) for name in page} - names
            names |= fresh
            if len(page) < _PAGE or not fresh:
                return sorted(name for name in names if name[: len(prefix)] == prefix)

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """Reads the scopes and numbers what has changed since they were read last."""
        with self._lock:
            return [self._read(scope).head for scope in scopes]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """What the last reading of the scope found changed after ``since``."""
        with self._lock:
            mirror = self._mirrors.get(scope)
            changed = [(key, mark) for key, mark in mirror.marks.items() if mark.seq > since] if mirror else []
            rows = dict(mirror.fresh) if mirror and since >= mirror.fresh_since else None
        if rows is None:  # whoever asks has not seen what another one has heard of already
            rows = {row.key: row for row in self._scan(scope)} if changed else {}
        changed.sort(key=lambda one: one[1].seq)
        for key, mark in changed:
            row = rows.get(key)
            yield Change(
                seq=mark.seq,
                key=key,
                kind=_kind(row) if row else "",
                created_at=row.created_at.timestamp() if row else 0.0,
                document=_document(row) if row else None,
                is_there=row is not None,
            )
        if mirror and changed:
            with self._lock:
                mirror.drop_fresh(changed[-1][1].seq)

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """Of what the last reading of the scope found, the keys whose terms hold the most of ``words``."""
        return holding_most(self.changes(scope, 0), words, limit)

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Of the scopes that were read in this process, the texts without a vector of ``model``."""
        with self._lock:
            waiting = (
                (scope, key)
                for scope, mirror in self._mirrors.items()
                for key, mark in mirror.marks.items()
                if mark.model not in (None, model)
            )
            keys = list(islice(waiting, limit))
        found = zip(keys, self.get(keys), strict=True)
        texts = [(scope, key, row, _document(row)) for (scope, key), row in found if row]
        return [Pending(scope, key, row.version, document.text) for scope, key, row, document in texts if document]

    def expired(self, limit: int) -> list[Key]:
        """None: a foreign store expires its items by itself."""
        del limit
        return []

    def get_meta(self, name: str) -> str | None:
        """A setting that lives as long as this object; the vectors themselves name their model."""
        return self._meta.get(name)

    def set_meta(self, name: str, value: str) -> None:
        """Sets a setting for the life of this object."""
        self._meta[name] = value

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        """Every row of one user, or all. A foreign store reads its rows by itself, or fails."""
        return chain.from_iterable(map(self._scan, self.namespaces(() if root is None else (root,))))

    def discard(self, found: Sequence[Unreadable]) -> int:
        """None: what a foreign store cannot read is for its own tools."""
        del found
        return 0

    def forget(self, user: str) -> None:
        """Forgets what was seen of the scopes whose first label is ``user``."""
        with self._lock:
            for scope in [scope for scope in self._mirrors if scope[0] == user]:
                del self._mirrors[scope]

    def check_may_block(self) -> None:
        """Raises ConfigurationError in the thread whose event loop serves the store: it would wait for itself."""
        store = self._store()
        if (loop := _loop_of(store)) and loop is _running_loop():
            raise ConfigurationError(
                f"{self.name} is served by the event loop of this thread, which a synchronous call would block for "
                "ever: await the asynchronous method (agent.ainvoke, service.save_memory), or call from another thread"
            )

    def close(self) -> None:
        """The store belongs to whoever made it and stays open."""

    def _apply_batch(self, batch: Sequence[Write]) -> list[int]:
        current = self.get([(write.namespace, write.key) for write in batch])
        ops: list[Op] = []
        versions: list[int] = []
        for write, row in zip(batch, current, strict=True):
            op, version = _operation(write, row)
            ops += [op] if op else []
            versions.append(version)
        self._ask(ops)
        self._note_vectors(batch)
        return versions

    def _note_vectors(self, batch: Sequence[Write]) -> None:
        """Takes texts that were given a vector off the list of pending ones; the next reading sees how they are."""
        with self._lock:
            for write in batch:
                mirror = self._mirrors.get(write.namespace)
                if isinstance(write, SetVector) and mirror and write.key in mirror.marks:
                    mirror.marks[write.key] = mirror.marks[write.key]._replace(model=write.model)

    def _rows(self, scopes: Sequence[Namespace], kinds: frozenset[str] | None) -> Iterator[Row]:
        found = (row for scope in dict.fromkeys(scopes) for row in self._scan(scope))
        return found if kinds is None else (row for row in found if _kind(row) in kinds)

    def _scan(self, scope: Namespace) -> Iterator[Row]:
        """The rows of exactly ``scope``; LangGraph's prefixes also give those of the scopes below it."""
        seen: set[str] = set()
        offset = 0
        while True:
            (page,) = self._ask([SearchOp(scope, limit=_PAGE, offset=offset, refresh_ttl=False)])
            for item in page:
                if tuple(item.namespace) == scope and item.key not in seen:
                    seen.add(item.key)
                    yield _row(item)
            offset += len(page)
            if len(page) < _PAGE:
                return
            if offset >= self._max_rows:
                raise ScopeTooLarge(f"{scope[1:]} of {self.name} holds more than {self._max_rows} rows; use open_store")

    def _read(self, scope: Namespace) -> Mirror:
        mirror = self._mirrors.setdefault(scope, Mirror())
        mirror.note({row.key: row for row in self._scan(scope)})
        return mirror

    def _check_runs(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises StoreUnavailable, before anything is sent, if ``loop`` would not get round to it."""
        turn = threading.Event()
        try:
            loop.call_soon_threadsafe(turn.set)
        except RuntimeError as error:
            text = f"{self.name}: its event loop has ended; open the store on one that runs"
            raise StoreUnavailable(text) from error
        if not turn.wait(_LOOP_S):
            raise StoreUnavailable(
                f"{self.name}: its event loop does nothing else for {_LOOP_S:g} s; if a synchronous call such as "
                "agent.invoke blocks it, await agent.ainvoke"
            )

    def _ask(self, ops: Sequence[Op]) -> list[Any]:
        if not ops:
            return []
        store = self._store()
        if store is None:
            raise StoreUnavailable(f"The {self.name} is gone")
        if loop := _loop_of(store):
            self._check_runs(loop)
        try:
            with _turn(store):
                return store.batch(ops)
        except Exception as error:
            raise StoreUnavailable(f"{self.name}: {without_quotes(error)}") from error


def _loop_of(store: BaseStore | None) -> asyncio.AbstractEventLoop | None:
    """The event loop that serves a store of LangGraph's async kind."""
    return getattr(store, "_loop", None) if isinstance(store, AsyncBatchedBaseStore) else None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _turn(store: BaseStore) -> AbstractContextManager[Any]:
    """LangGraph's InMemoryStore fails if one thread reads while another writes, so its callers take turns."""
    if not isinstance(store, InMemoryStore):
        return nullcontext()
    with _turns_lock:
        return _turns.setdefault(store, threading.Lock())


def _operation(write: Write, row: Row | None) -> tuple[Op | None, int]:
    version = row.version if row else 0
    if isinstance(write, Touch | Expire):
        return None, version
    if isinstance(write, SetVector):
        if row is None or version != write.version:
            return None, version
        extra = row.value.get(EXTRA, {}) | _vector_fields(write.model, write.vector)
        return PutOp(write.namespace, write.key, row.value | {EXTRA: extra}, index=False), version
    if write.expected is not None and write.expected != version:
        raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
    if isinstance(write, Check):
        return None, version
    if isinstance(write, Delete):
        return PutOp(write.namespace, write.key, None) if row else None, 0
    value = _value(write, row)
    return PutOp(write.namespace, write.key, value, index=False), value[EXTRA]["version"]


def _value(write: Put, row: Row | None) -> dict[str, Any]:
    first = write.created_at or (row.created_at if row else write.updated_at)
    extra: dict[str, Any] = {
        "version": max(row.version if row else 0, write.above) + 1,
        "created_at": aware(first).isoformat(),
    }
    if write.document:
        extra["text"] = write.document.text
        extra["situation"] = list(write.document.situation)
        if write.document.vector:
            extra |= _vector_fields(write.document.model, write.document.vector)
    return json.loads(write.value) | {EXTRA: extra}


def _vector_fields(model: str, vector: bytes) -> dict[str, str]:
    return {"model": model, "vector": base64.b85encode(vector).decode()}


def _row(item: Item) -> Row:
    extra = extra_of(item.value)
    return Row(
        namespace=tuple(item.namespace),
        key=item.key,
        value=copy.deepcopy(item.value),
        version=int(extra.get("version", 1)),
        seq=0,
        created_at=_created(item),
        updated_at=aware(item.updated_at),
    )


def _created(item: Item) -> datetime:
    """When it was first stored, as stores disagree about theirs."""
    text = extra_of(item.value).get("created_at") or item.value.get("created_at")
    try:
        return aware(datetime.fromisoformat(text) if isinstance(text, str) else item.created_at)
    except ValueError:
        return aware(item.created_at)


def _kind(row: Row) -> str:
    kind = row.value.get("memory_type")
    return kind if isinstance(kind, str) else ""


def _document(row: Row) -> Document | None:
    extra = extra_of(row.value)
    text = extra.get("text") or row.value.get("content")
    if not isinstance(text, str) or not text.strip():
        return None
    vector = extra.get("vector")
    document = Document.of(text, _situation(extra.get("situation")))
    return document._replace(model=extra.get("model", ""), vector=base64.b85decode(vector)) if vector else document


def _situation(stored: Any) -> Situation:
    match stored:
        case [str(session), bool(by_assistant), None | int() | float() as happened, int() | float() as importance]:
            return Situation(session, by_assistant, happened, importance)
        case _:
            return Situation()
