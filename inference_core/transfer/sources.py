"""Where memories of the flat namespace are: in our own stores, and in LangGraph's SqliteStore and PostgresStore.

All are only read, in pages by key, so that any number of rows takes the same memory.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from inference_core.errors import InvalidId, MissingExtra, StoreUnavailable, without_quotes
from inference_core.memory.namespaces import decode_label, encode_label
from inference_core.stores.backend import MAX_VALUE_BYTES, Backend
from inference_core.transfer.flat import LegacyItem, moment

PAGE: Final = 200
_PREFIXES: Final = 10_000
UNCLEAR_USER: Final = "its namespace has a dot, so whose it is is not clear: give the user's id by name"
NOT_UNICODE: Final = "its namespace or key is not valid Unicode"
TOO_LARGE: Final = "the value is larger than 1 MB"
NOT_JSON: Final = "the value is not JSON"
LANGGRAPH_COLUMNS: Final = frozenset({"prefix", "key", "value", "created_at", "updated_at"})


class LegacySource(ABC):
    """Where memories of the flat namespace are. ``user_ids`` None: of all users. Raises StoreUnavailable."""

    @abstractmethod
    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """The number of rows."""

    @abstractmethod
    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """The rows, those of one user together."""


class OwnScopes(LegacySource):
    """The scopes ``(user, name)`` of one of our own stores; a user's label may be encoded or the plain id."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """The number of rows in these scopes."""
        return sum(self._backend.count([(label, self._name)]) for _, label in self._owners(user_ids))

    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """The rows, with those that are written meanwhile."""
        for user_id, label in self._owners(user_ids):
            scope, since = (label, self._name), 0
            while page := list(islice(self._backend.changes(scope, since), PAGE)):
                since = page[-1].seq
                for row in self._backend.get([(scope, change.key) for change in page]):
                    if row:
                        created, updated = row.created_at, row.updated_at
                        yield LegacyItem(
                            user_id=user_id, key=row.key, value=row.value, created_at=created, updated_at=updated
                        )

    def _owners(self, user_ids: Sequence[str] | None) -> list[tuple[str, str]]:
        """Users and their labels."""
        if user_ids is None:
            scopes = [name for name in self._backend.namespaces() if len(name) == 2 and name[1] == self._name]  # noqa: PLR2004 - user and name
            return sorted((_owner(label), label) for label, _ in scopes)
        labels = dict.fromkeys(label for user_id in user_ids for label in (encode_label(user_id), user_id))
        wanted = set(user_ids)
        return [(_owner(label), label) for label in labels if _owner(label) in wanted]


class LangGraphRows(LegacySource):
    """The table ``store`` of one of LangGraph's stores; a subclass knows the database.

    LangGraph joins the labels of a namespace by dots. So ``a.b.memories`` may be the flat namespace of a user ``a.b``
    or something else of ``a``; its rows are taken for memories of ``a.b`` only if that user is named.
    """

    def __init__(self, name: str, columns: Iterable[str]) -> None:
        there = set(columns)
        self.suffix = f".{name}"
        self.has_rows = there >= LANGGRAPH_COLUMNS
        self.expiry = "expires_at" if "expires_at" in there else "NULL"

    @abstractmethod
    def prefixes(self) -> Iterator[str | bytes]:
        """All prefixes that end with the flat namespace's name and name a user before it, in their order."""

    @abstractmethod
    def rows(self, prefix: str | bytes) -> Iterator[tuple[Any, ...]]:
        """Key, value (None: too large), created_at, updated_at and expires_at of the rows of ``prefix``, by key."""

    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """The rows, by user and key."""
        if not self.has_rows:
            return
        named = None if user_ids is None else [user_id + self.suffix for user_id in user_ids]
        for prefix in self.prefixes() if named is None else named:
            user_id, fault = _decoded(prefix)
            user_id = user_id.removesuffix(self.suffix)
            fault = UNCLEAR_USER if named is None and "." in user_id else fault
            for key, stored, *times in self.rows(prefix):
                name, key_fault = _decoded(key)
                value, value_fault = None, TOO_LARGE if stored is None else None
                if stored is not None:
                    try:
                        value = json.loads(stored)
                    except (ValueError, TypeError, RecursionError):
                        value_fault = NOT_JSON
                created, updated, expires = (
                    moment(time.decode(errors="replace") if isinstance(time, bytes) else time) for time in times
                )
                yield LegacyItem(
                    user_id=user_id,
                    key=name,
                    value=value,
                    created_at=created,
                    updated_at=updated,
                    expires_at=expires,
                    fault=fault or key_fault or value_fault,
                )


class LangGraphTable(LangGraphRows):
    """The table of LangGraph's SqliteStore, if a `read_only` connection finds one."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        super().__init__(name, (column.decode() for _, column, *_ in _ask(connection, "PRAGMA table_info(store)")))

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """The number of rows in the users' flat namespaces."""
        if not self.has_rows:
            return 0
        if user_ids is None:
            query = "SELECT count(*) FROM store WHERE substr(prefix, ?) = ?"
            return next(_ask(self._connection, query, -len(self.suffix), self.suffix))[0]
        query = "SELECT count(*) FROM store WHERE prefix = ?"
        return sum(next(_ask(self._connection, query, user_id + self.suffix))[0] for user_id in user_ids)

    def prefixes(self) -> Iterator[bytes]:
        """Each found by a jump over the rows of the one before."""
        suffix = self.suffix.encode()
        query = "SELECT min(prefix) FROM store WHERE prefix >= CAST(? AS TEXT) AND typeof(prefix) = 'text'"
        found: bytes | None = b""
        while (found := next(_ask(self._connection, query, found))[0]) is not None:
            if found.endswith(suffix) and found != suffix:
                yield found
            found += b"\0"

    def rows(self, prefix: str | bytes) -> Iterator[tuple[Any, ...]]:
        """Their texts as bytes, which may be no Unicode."""
        query = (
            f"SELECT key, CASE WHEN length(value) <= {MAX_VALUE_BYTES} THEN value END, created_at, updated_at, "
            f"{self.expiry} FROM store WHERE prefix = CAST(? AS TEXT) AND key >= CAST(? AS TEXT) "
            "AND typeof(key) = 'text' ORDER BY key LIMIT ?"
        )
        owned = prefix.encode() if isinstance(prefix, str) else prefix
        start = b""
        while True:
            page = list(_ask(self._connection, query, owned, start, PAGE))
            yield from page
            if len(page) < PAGE:
                return
            start = page[-1][0] + b"\0"


class PostgresTable(LangGraphRows):
    """The table ``store`` that the database at ``url`` has, on a connection of its own that cannot write.

    Raises StoreUnavailable, MissingExtra.
    """

    def __init__(self, url: str, name: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an extra

            from inference_core.stores.backends.postgres_connections import (  # noqa: PLC0415 - needs the same extra
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
        self._ask("SET default_transaction_read_only = on")
        query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0"
        super().__init__(name, (column for (column,) in self._ask(query)))

    def close(self) -> None:
        """Frees the connection."""
        self._connection.close()

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """The number of rows in the users' flat namespaces."""
        if not self.has_rows:
            return 0
        if user_ids is None:
            query = "SELECT count(*) FROM store WHERE right(prefix, %s) = %s"
            return self._ask(query, len(self.suffix), self.suffix)[0][0]
        names = [user_id + self.suffix for user_id in user_ids if "\x00" not in user_id]
        return self._ask("SELECT count(*) FROM store WHERE prefix = ANY(%s)", names)[0][0]

    def prefixes(self) -> Iterator[str]:
        """In the order of their code points, whatever the database's own is."""
        query = (
            'SELECT DISTINCT prefix COLLATE "C" FROM store WHERE right(prefix, %s) = %s AND prefix <> %s '
            'AND prefix COLLATE "C" > %s ORDER BY 1 LIMIT %s'
        )
        last = ""
        while page := self._ask(query, len(self.suffix), self.suffix, self.suffix, last, _PREFIXES):
            for (last,) in page:
                yield last

    def rows(self, prefix: str | bytes) -> Iterator[tuple[Any, ...]]:
        """By pages; none for a name with a NUL, which PostgreSQL's texts cannot hold."""
        query = (
            f"SELECT key, CASE WHEN octet_length(value::text) <= {MAX_VALUE_BYTES} THEN value::text END, created_at, "
            f'updated_at, {self.expiry} FROM store WHERE prefix = %s AND key COLLATE "C" > %s '
            f'ORDER BY key COLLATE "C" LIMIT {PAGE}'
        )
        last = ""
        while "\x00" not in str(prefix) and (page := self._ask(query, prefix, last)):
            yield from page
            last = page[-1][0]

    def _ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._translated(self._connection):
            cursor = self._connection.execute(query, parameters)  # pyright: ignore[reportArgumentType, reportCallIssue] - built of constants
            return cursor.fetchall() if cursor.description else []


def read_only(path: Path) -> sqlite3.Connection:
    """A connection to the file that cannot write to it and gives texts as bytes, since they may be no Unicode.

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


def _owner(label: str) -> str:
    try:
        return decode_label(label)
    except InvalidId:
        return label


def _decoded(text: str | bytes) -> tuple[str, str | None]:
    """``text``, and what is wrong with it."""
    if isinstance(text, str):
        return text, None
    try:
        return text.decode(), None
    except UnicodeDecodeError:
        return text.decode(errors="replace"), NOT_UNICODE
