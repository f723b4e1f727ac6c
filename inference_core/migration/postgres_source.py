"""Memories of the flat namespace in the table of LangGraph's PostgresStore."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from inference_core.errors import StoreUnavailable
from inference_core.migration.flat import LegacyItem
from inference_core.migration.sources import LANGGRAPH_COLUMNS, NOT_JSON, PAGE, TOO_LARGE, UNCLEAR_USER
from inference_core.stores.backend import MAX_VALUE_BYTES
from inference_core.stores.backends.postgres_connections import parameters_of, translated

_PREFIXES: Final = 10_000


class PostgresTable:
    """The table ``store`` that the database at ``url`` has, on a connection of its own that cannot write.

    As with SQLite, ``a.b.memories`` counts only for a user ``a.b`` who is named. Raises StoreUnavailable.
    """

    def __init__(self, url: str, name: str) -> None:
        self._suffix = f".{name}"
        try:
            self._connection = psycopg.connect(**parameters_of(url), autocommit=True)
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {type(error).__name__}") from error
        self._ask("SET default_transaction_read_only = on")
        query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0"
        columns = {name for (name,) in self._ask(query)}
        self._has_rows = columns >= LANGGRAPH_COLUMNS
        self._expiry = sql.SQL("expires_at" if "expires_at" in columns else "NULL")

    def close(self) -> None:
        """Frees the connection."""
        self._connection.close()

    def count(self, user_ids: Sequence[str] | None = None) -> int:
        """How many rows the users' flat namespaces hold."""
        if not self._has_rows:
            return 0
        if user_ids is None:
            return self._ask(
                "SELECT count(*) FROM store WHERE right(prefix, %s) = %s", len(self._suffix), self._suffix
            )[0][0]
        names = [user_id + self._suffix for user_id in _storable(user_ids)]
        return self._ask("SELECT count(*) FROM store WHERE prefix = ANY(%s)", names)[0][0]

    def items(self, user_ids: Sequence[str] | None = None) -> Iterator[LegacyItem]:
        """The rows, by user and key."""
        if not self._has_rows:
            return
        if user_ids is not None:
            for user_id in _storable(user_ids):
                yield from self._items(user_id, None)
            return
        for prefix in self._prefixes():
            user_id = prefix.removesuffix(self._suffix)
            yield from self._items(user_id, UNCLEAR_USER if "." in user_id else None)

    def _prefixes(self) -> Iterator[str]:
        query = (
            'SELECT DISTINCT prefix COLLATE "C" FROM store WHERE right(prefix, %s) = %s AND prefix <> %s '
            'AND prefix COLLATE "C" > %s ORDER BY 1 LIMIT %s'
        )
        last = ""
        while page := self._ask(query, len(self._suffix), self._suffix, self._suffix, last, _PREFIXES):
            for (last,) in page:
                yield last

    def _items(self, user_id: str, fault: str | None) -> Iterator[LegacyItem]:
        query = sql.SQL(
            "SELECT key, CASE WHEN octet_length(value::text) <= {limit} THEN value::text END, created_at, updated_at, "
            '{expiry} FROM store WHERE prefix = %s AND key COLLATE "C" > %s ORDER BY key COLLATE "C" LIMIT {page}'
        ).format(limit=sql.Literal(MAX_VALUE_BYTES), expiry=self._expiry, page=sql.Literal(PAGE))
        last = ""
        while page := self._ask(query, user_id + self._suffix, last):
            for row in page:
                last = row[0]
                yield _item(user_id, row, fault)

    def _ask(self, query: str | sql.Composed, *parameters: object) -> list[tuple[Any, ...]]:
        with translated(self._connection):
            cursor = self._connection.execute(query, parameters)  # pyright: ignore[reportArgumentType, reportCallIssue]
            return cursor.fetchall() if cursor.description else []


def _storable(user_ids: Sequence[str]) -> list[str]:
    """Those that the table can hold; PostgreSQL's text has no NUL."""
    return [user_id for user_id in user_ids if "\x00" not in user_id]


def _item(user_id: str, row: tuple[Any, ...], fault: str | None) -> LegacyItem:
    key, stored, created, updated, expires = row
    value, value_fault = _parsed(stored)
    return LegacyItem(
        user_id=user_id,
        key=key,
        value=value,
        created_at=_moment(created),
        updated_at=_moment(updated),
        expires_at=_moment(expires),
        fault=fault or value_fault,
    )


def _moment(found: Any) -> datetime | None:
    return found if isinstance(found, datetime) else None


def _parsed(stored: str | None) -> tuple[Any, str | None]:
    if stored is None:
        return None, TOO_LARGE
    try:
        return json.loads(stored), None
    except (ValueError, RecursionError):
        return None, NOT_JSON
