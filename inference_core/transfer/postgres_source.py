"""Memories of the flat namespace in the table of LangGraph's PostgresStore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from inference_core.errors import MissingExtra, StoreUnavailable
from inference_core.stores.backend import MAX_VALUE_BYTES
from inference_core.transfer.sources import PAGE, LangGraphRows

_PREFIXES: Final = 10_000


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
        """How many rows the users' flat namespaces hold."""
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
