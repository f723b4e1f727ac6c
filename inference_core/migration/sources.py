"""Where memories of the flat namespace lie: in our own tables, and in those of LangGraph's SqliteStore.

Both are only read, by pages that follow the keys, so that any number of rows goes through in the same memory.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from inference_core.errors import InvalidId, StoreUnavailable, without_quotes
from inference_core.memory.namespaces import Namespace, decode_label, encode_label
from inference_core.migration.flat import LegacyItem, moment
from inference_core.stores.backend import MAX_VALUE_BYTES, Backend

PAGE: Final = 200
UNCLEAR_USER: Final = "its namespace has a dot, so whose it is is not clear: give the user's id by name"
NOT_UNICODE: Final = "its namespace or key is not valid Unicode"
TOO_LARGE: Final = "the value is larger than 1 MB"
NOT_JSON: Final = "the value is not JSON"
LANGGRAPH_COLUMNS: Final = frozenset({"prefix", "key", "value", "created_at", "updated_at"})


class LegacySource(Protocol):
    """Where memories of the flat namespace lie; ``user_ids`` None means: of all users. Raises StoreUnavailable."""

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """How many rows there are."""
        ...

    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """The rows, those of one user together."""
        ...


class OwnScopes:
    """The scopes ``(user, name)`` of one of our own stores. Labels are ids, encoded or as they are."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """How many rows these scopes hold."""
        return sum(self._backend.count([(label, self._name)]) for _, label in self._owners(user_ids))

    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """Their rows; what is written meanwhile comes too."""
        for user_id, label in self._owners(user_ids):
            yield from self._items(user_id, (label, self._name))

    def _owners(self, user_ids: Sequence[str] | None) -> list[tuple[str, str]]:
        """Users and their labels."""
        if user_ids is None:
            scopes = [name for name in self._backend.namespaces() if len(name) == 2 and name[1] == self._name]  # noqa: PLR2004 - user and name
            return sorted((_owner(label), label) for label, _ in scopes)
        labels = dict.fromkeys(label for user_id in user_ids for label in (encode_label(user_id), user_id))
        wanted = set(user_ids)
        return [(_owner(label), label) for label in labels if _owner(label) in wanted]

    def _items(self, user_id: str, scope: Namespace) -> Iterator[LegacyItem]:
        since = 0
        while page := list(islice(self._backend.changes(scope, since), PAGE)):
            since = page[-1].seq
            for row in self._backend.get([(scope, change.key) for change in page]):
                if row:
                    yield LegacyItem(
                        user_id=user_id,
                        key=row.key,
                        value=row.value,
                        created_at=row.created_at,
                        updated_at=row.updated_at,
                    )


class LangGraphTable:
    """The table of LangGraph's SqliteStore, if a `read_only` connection finds one.

    LangGraph joins the labels of a namespace by dots. So ``a.b.memories`` may be the flat namespace of a user ``a.b``
    or something else of ``a``; its rows are taken for memories of ``a.b`` only if that user is named.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._suffix = f".{name}"
        self._connection = connection
        columns = {name.decode() for _, name, *_ in _ask(self._connection, "PRAGMA table_info(store)")}
        self._has_rows = columns >= LANGGRAPH_COLUMNS
        self._expiry = "expires_at" if "expires_at" in columns else "NULL"

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """How many rows the users' flat namespaces hold."""
        if not self._has_rows:
            return 0
        if user_ids is None:
            query = "SELECT count(*) FROM store WHERE substr(prefix, ?) = ?"
            return next(_ask(self._connection, query, -len(self._suffix), self._suffix))[0]
        query = "SELECT count(*) FROM store WHERE prefix = ?"
        return sum(next(_ask(self._connection, query, user_id + self._suffix))[0] for user_id in user_ids)

    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """The rows, by user and key."""
        if self._has_rows:
            suffix = self._suffix.encode()
            named = None if user_ids is None else [user_id.encode() + suffix for user_id in user_ids]
            for prefix in self._prefixes(suffix) if named is None else named:
                user_id, fault = _decoded(prefix.removesuffix(suffix))
                fault = UNCLEAR_USER if named is None and "." in user_id else fault
                yield from self._items(prefix, user_id, fault)

    def _prefixes(self, suffix: bytes) -> Iterator[bytes]:
        """All that end with ``suffix``, each found by a jump over the rows of the one before."""
        query = "SELECT min(prefix) FROM store WHERE prefix >= CAST(? AS TEXT) AND typeof(prefix) = 'text'"
        found: bytes | None = b""
        while (found := next(_ask(self._connection, query, found))[0]) is not None:
            if found.endswith(suffix) and found != suffix:
                yield found
            found += b"\0"

    def _items(self, prefix: bytes, user_id: str, fault: str | None) -> Iterator[LegacyItem]:
        query = (
            f"SELECT key, CASE WHEN length(value) <= {MAX_VALUE_BYTES} THEN value END, created_at, updated_at, "
            f"{self._expiry} FROM store WHERE prefix = CAST(? AS TEXT) AND key >= CAST(? AS TEXT) "
            "AND typeof(key) = 'text' ORDER BY key LIMIT ?"
        )
        start = b""
        while True:
            seen = 0
            for seen, row in enumerate(_ask(self._connection, query, prefix, start, PAGE), 1):  # noqa: B007 - counts the page
                start = row[0] + b"\0"
                yield _item(user_id, row, fault)
            if seen < PAGE:
                return


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


def _decoded(text: bytes) -> tuple[str, str | None]:
    """``text``, and what is wrong with it."""
    try:
        return text.decode(), None
    except UnicodeDecodeError:
        return text.decode(errors="replace"), NOT_UNICODE


def _item(user_id: str, row: tuple[Any, ...], fault: str | None) -> LegacyItem:
    key, key_fault = _decoded(row[0])
    value, value_fault = _parsed(row[1])
    created, updated, expires = (moment(_plain(found)) for found in row[2:])
    return LegacyItem(
        user_id=user_id,
        key=key,
        value=value,
        created_at=created,
        updated_at=updated,
        expires_at=expires,
        fault=fault or key_fault or value_fault,
    )


def _parsed(stored: Any) -> tuple[Any, str | None]:
    if stored is None:
        return None, TOO_LARGE
    try:
        return json.loads(stored), None
    except (ValueError, TypeError, RecursionError):
        return None, NOT_JSON


def _plain(found: Any) -> Any:
    return found.decode(errors="replace") if isinstance(found, bytes) else found
