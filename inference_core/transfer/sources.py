"""Where a migration reads from: this package's own stores, any LangGraph store object, and two LangGraph tables.

All are only read, in pages, so that memory use does not grow with the number of rows.

mem0's memories in JSON: from `Memory.get_all`, pages of its platform, and points of its Qdrant collection.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from langgraph.store.base import BaseStore

from inference_core.clock import moment_of
from inference_core.errors import InvalidInput, MissingExtra, StoreUnavailable, without_quotes
from inference_core.memory.namespaces import QUEUE_ROOT, Namespace, holds_memories
from inference_core.stores.backend import EXTRA, MAX_VALUE_BYTES, Backend, pack_namespace
from inference_core.transfer.legacy import COALA, FLAT, Layouts, LegacyItem, decoded
from inference_core.transfer.migration_report import MigrationReport

NO_USER: Final = "it names no user"
NO_MEMORY: Final = "it is no memory of mem0"
_LISTS: Final = ("results", "points", "memories")
_PLACED: Final = (
    "id",
    "memory",
    "data",
    "user_id",
    "run_id",
    "metadata",
    "created_at",
    "updated_at",
    "expiration_date",
)
_FORM: Final = "a memory of mem0, with 'id', 'memory' and 'user_id', or a point with 'id' and 'payload'"
_TRIED: Final = 20
"""So many memories are looked at for the format: the first ones may be odd."""


def is_mem0(value: Any) -> bool:
    """Whether ``value``, one of the first in a file, holds memories in mem0's format."""
    rows = (row for _, row in islice(_rows([("", value)]), _TRIED))
    return any(isinstance(row, dict) and ("memory" in row or "payload" in row) for row in rows)


def mem0_items(
    values: Iterable[tuple[str, Any]], user_ids: Iterable[str] = (), *, strict: bool = False
) -> Iterator[LegacyItem]:
    """The memories in ``values``, each with its place in the file; those of ``user_ids`` only, if any are named.

    Ids, times and expiry are kept, ``run_id`` becomes the session, ``metadata`` is kept, and so are all other fields. A
    memory that names no user gets that as its fault, and so does what is not a memory, under its place in the file. If
    ``strict``, the latter raises InvalidInput.
    """
    wanted = frozenset(user_ids)
    for where, row in _rows(values):
        fields = _memory_fields(row)
        if fields is None:
            if strict:
                raise InvalidInput(f"{where} is not {_FORM}")
            yield LegacyItem(key=where, fault=NO_MEMORY, layout="mem0", origin="mem0")
            continue
        given = fields.get("user_id")
        user = str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""
        if wanted and user not in wanted:
            continue
        rest = {name: found for name, found in fields.items() if name not in _PLACED}
        yield LegacyItem(
            user_id=user,
            key=str(fields["id"]),
            value=rest
            | {
                "content": fields["memory"],
                "created_at": fields.get("created_at"),
                "session_id": fields.get("run_id"),
                "extra_metadata": fields.get("metadata"),
            },
            updated_at=moment_of(fields.get("updated_at")),
            expires_at=moment_of(fields.get("expiration_date")),
            fault=None if user else NO_USER,
            layout="mem0",
            origin="mem0",
        )


def _memory_fields(row: Any) -> dict[str, Any] | None:
    """The fields of a memory, or of the payload of a point; None if it is neither."""
    if not isinstance(row, dict):
        return None
    fields = dict(cast("dict[str, Any]", row))
    if "payload" in fields:
        if not isinstance(fields["payload"], dict):
            return None
        payload = cast("dict[str, Any]", fields["payload"])
        known = (*_PLACED, "hash", "agent_id", "actor_id", "role")
        extra = {name: found for name, found in payload.items() if name not in known}
        fields = {"id": fields.get("id"), "metadata": extra, **{n: payload[n] for n in known if n in payload}}
    content, id_ = fields.get("memory", fields.get("data")), fields.get("id")
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not isinstance(content, str):
        return None
    return {**fields, "memory": content}


def _rows(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The memories or points, with their places: each value is one, or an object with a list of them."""
    for where, value in values:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if isinstance(fields.get("result"), dict):
            fields = fields["result"]  # the answer of Qdrant's server
        rows: Any = next((fields[name] for name in _LISTS if isinstance(fields.get(name), list)), None)
        if rows is None:
            yield where, value
        for at, row in enumerate(cast("list[Any]", rows or []), 1):
            yield f"{where}, memory {at}", row


PAGE: Final = 200
_PREFIXES: Final = 10_000
NOT_UNICODE: Final = "its namespace or key is not valid Unicode"
TOO_LARGE: Final = f"the value is larger than {MAX_VALUE_BYTES // 1024**2} MB"
NOT_JSON: Final = "the value is not JSON"
LANGGRAPH_COLUMNS: Final = frozenset({"prefix", "key", "value", "created_at", "updated_at"})
_OWN_ROOMS: Final = frozenset(
    {"usage", "forgotten", "~versions", "~pending", "~audit", "outbox", "outbox_dead", "ingested", "messages"}
)
"""Second labels of namespaces in which this package keeps a user's other data: never an application's items."""


class SourceNamespace(NamedTuple):
    """A namespace of a source: its labels, how many rows it has, and how the source names it.

    ``fault`` says why its items cannot be migrated, if that is known.
    """

    labels: Namespace
    rows: int
    name: Any
    fault: str | None = None


class MigrationSource(Protocol):
    """A store that a migration reads. Its methods raise StoreUnavailable.

    ``were_joined``: it joins labels by dots. ``is_foreign``: it is another library's, not one of ours.
    """

    were_joined: bool
    is_foreign: bool

    def spaces(self) -> Iterable[SourceNamespace]:
        """Its namespaces, sorted."""
        ...

    def items(self, space: SourceNamespace) -> Iterable[LegacyItem]:
        """The items of one namespace, from tables in the order of their keys; their ``user_id`` is not set yet."""
        ...


class OwnScopes:
    """The namespaces of one of our own stores that hold items of applications, not memories of this package.

    A user's label may be encoded or the plain id.
    """

    were_joined = False
    is_foreign = False

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def spaces(self) -> Iterator[SourceNamespace]:
        """The namespaces that this package did not make, with decoded labels and sorted by these."""
        names = [
            name
            for name in self._backend.namespaces()
            if not holds_memories(name) and name[0] != QUEUE_ROOT and not {*name[1:2]} & _OWN_ROOMS
        ]
        for labels, name in sorted((tuple(map(decoded, name)), name) for name in names):
            yield SourceNamespace(labels, self._backend.count([name]), name)

    def items(self, space: SourceNamespace) -> Iterator[LegacyItem]:
        """The items of one namespace, in the order of their writes, including those written meanwhile."""
        since = 0
        while page := list(islice(self._backend.changes(space.name, since), PAGE)):
            since = page[-1].seq
            for row in self._backend.get([(space.name, change.key) for change in page]):
                if row:
                    expires = row.expiry and row.expiry.at
                    yield LegacyItem(
                        key=row.key,
                        value=row.value,
                        created_at=row.created_at,
                        updated_at=row.updated_at,
                        expires_at=expires,
                    )


class GraphStore:
    """A LangGraph store object, such as an InMemoryStore. Its own errors are raised as they are."""

    were_joined = False
    is_foreign = True

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def spaces(self) -> Iterator[SourceNamespace]:
        """Its namespaces, sorted; each is read to count its rows."""
        names: set[Namespace] = set()
        while page := [tuple(name) for name in self._store.list_namespaces(limit=PAGE, offset=len(names))]:
            if names >= set(page):
                break
            names.update(page)
        for name in sorted(names):
            yield SourceNamespace(name, sum(1 for _ in self.items(SourceNamespace(name, 0, name))), name)

    def items(self, space: SourceNamespace) -> Iterator[LegacyItem]:
        """The items of exactly this namespace; the store's search also gives those below it."""
        offset = 0
        while page := self._store.search(space.labels, limit=PAGE, offset=offset, refresh_ttl=False):
            offset += len(page)
            for item in page:
                if tuple(item.namespace) == space.labels:
                    created, updated = moment_of(item.created_at), moment_of(item.updated_at)
                    yield LegacyItem(key=item.key, value=item.value, created_at=created, updated_at=updated)


class LangGraphTable:
    """The table of LangGraph's SqliteStore, read through a `read_only` connection; without one, it is empty."""

    were_joined = True
    is_foreign = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._expiry = _expiry_column(column.decode() for _, column, *_ in _ask(connection, "PRAGMA table_info(store)"))

    def spaces(self) -> Iterator[SourceNamespace]:
        """Its namespaces, in the order of their bytes."""
        if self._expiry is None:
            return
        query = "SELECT prefix, count(*) FROM store WHERE typeof(prefix) = 'text' GROUP BY prefix ORDER BY prefix"
        for prefix, rows in _ask(self._connection, query):
            text, fault = _decoded(prefix)
            yield SourceNamespace(tuple(text.split(".")), rows, prefix, fault)

    def items(self, space: SourceNamespace) -> Iterator[LegacyItem]:
        """The items of one namespace. Texts are read as bytes, since they may not be valid Unicode."""
        query = (
            f"SELECT key, CASE WHEN length(value) <= {MAX_VALUE_BYTES} THEN value END, created_at, updated_at, "
            f"{self._expiry} FROM store WHERE prefix = CAST(? AS TEXT) AND key >= CAST(? AS TEXT) "
            "AND typeof(key) = 'text' ORDER BY key LIMIT ?"
        )
        start = b""
        while page := list(_ask(self._connection, query, space.name, start, PAGE)):
            start = page[-1][0] + b"\0"
            for row in page:
                yield _item_of(row, space.fault)


class PostgresTable:
    """The table of LangGraph's PostgresStore in the database at ``url``, on a read-only connection of its own.

    Without such a table, it is empty. Raises StoreUnavailable, MissingExtra.
    """

    were_joined = True
    is_foreign = True

    def __init__(self, url: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an extra

            from inference_core.stores.backends.sql.postgres import (  # noqa: PLC0415 - needs the same extra
                parameters_of,
                translated,
            )
        except ImportError as error:
            raise MissingExtra("A PostgreSQL store", "postgres") from error
        self._translated = translated
        try:
            self._connection = psycopg.connect(**parameters_of(url), autocommit=True)
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {type(error).__name__}") from error
        self._connection.read_only = True
        query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0"
        self._expiry = _expiry_column(column for (column,) in self._ask(query))

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def spaces(self) -> Iterator[SourceNamespace]:
        """Its namespaces, in the order of their code points, whatever the database's collation."""
        name = 'prefix COLLATE "C"'
        query = f"SELECT {name}, count(*) FROM store WHERE {name} > %s GROUP BY 1 ORDER BY 1 LIMIT %s"
        last = ""
        while self._expiry and (page := self._ask(query, last, _PREFIXES)):
            for last, rows in page:
                yield SourceNamespace(tuple(last.split(".")), rows, last)

    def items(self, space: SourceNamespace) -> Iterator[LegacyItem]:
        """The items of one namespace, in the order of their keys' code points."""
        query = (
            f"SELECT key, CASE WHEN octet_length(value::text) <= {MAX_VALUE_BYTES} THEN value::text END, created_at, "
            f'updated_at, {self._expiry} FROM store WHERE prefix = %s AND (key COLLATE "C" > %s OR %s) '
            f'ORDER BY key COLLATE "C" LIMIT {PAGE}'
        )
        last, is_first = "", True
        while page := self._ask(query, space.name, last, is_first):
            last, is_first = page[-1][0], False
            for row in page:
                yield _item_of(row, space.fault)

    def _ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._translated(self._connection), self._connection.transaction():
            cursor = self._connection.execute(query, parameters)  # pyright: ignore[reportArgumentType, reportCallIssue] - built of constants
            return cursor.fetchall() if cursor.description else []


def read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection to the file, which gives texts as bytes, since they may not be valid Unicode.

    Raises StoreUnavailable.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"Cannot open {path}: {error}") from error
    connection.text_factory = bytes
    return connection


def _ask(connection: sqlite3.Connection, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
    try:
        yield from connection.execute(query, parameters)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite: {without_quotes(error)}") from error


def _expiry_column(columns: Iterable[str]) -> str | None:
    """What to select for the expiry in a table with these columns; None if it is not LangGraph's."""
    there = set(columns)
    if not there >= LANGGRAPH_COLUMNS:
        return None
    return "expires_at" if "expires_at" in there else "NULL"


def _item_of(row: tuple[Any, ...], fault: str | None) -> LegacyItem:
    """The item in a row of key, value (None: too large), created_at, updated_at and expires_at."""
    key, stored, *times = row
    name, key_fault = _decoded(key)
    value, value_fault = None, TOO_LARGE if stored is None else None
    if stored is not None:
        try:
            value = json.loads(stored)
        except (ValueError, TypeError, RecursionError):
            value_fault = NOT_JSON
    created, updated, expires = (
        moment_of(time.decode(errors="replace") if isinstance(time, bytes) else time) for time in times
    )
    return LegacyItem(
        key=name,
        value=value,
        created_at=created,
        updated_at=updated,
        expires_at=expires,
        fault=fault or key_fault or value_fault,
    )


def _decoded(text: str | bytes) -> tuple[str, str | None]:
    """``text`` as str, and why it cannot be used, or None."""
    if isinstance(text, str):
        return text, None
    try:
        return text.decode(), None
    except UnicodeDecodeError:
        return text.decode(errors="replace"), NOT_UNICODE


def located(sources: Sequence[MigrationSource], layouts: Layouts, report: MigrationReport) -> Generator[LegacyItem]:
    """The items of ``sources`` in these layouts, those in categories first, each with the fields that its place gives.

    An application that has moved flat memories to categories has both under the same ids; the categories are current.
    """
    for source in sources:
        for by_category, space in ((flag, space) for flag in (True, False) for space in source.spaces()):
            place = layouts.place_of(space.labels, source)
            if place is None and by_category and source.is_foreign and layouts.are_of_all_users:
                report.count_other(space.labels, space.rows)
            if place is None or by_category is (place.layout != COALA):
                continue
            for item in source.items(space):
                user, agent = place.user_id, place.agent_name
                if isinstance(item.value, dict) and EXTRA in item.value:  # ours, with encoded labels
                    if place.category is None or place.fault:
                        continue  # what this package keeps beside its memories
                    user, agent = decoded(user), agent and decoded(agent)
                if layouts.holds(user):
                    yield replace(
                        item,
                        user_id=user,
                        layout=place.layout,
                        category=place.category,
                        agent_name=agent,
                        fault=place.fault or item.fault,
                        origin="" if place.layout == FLAT else digest(pack_namespace(space.labels)),
                    )


def digest(text: str) -> str:
    """A short name for ``text`` that does not show it."""
    return blake2b(text.encode(), digest_size=16).hexdigest()
