"""open_checkpointer(url): where conversations are kept between runs."""

from __future__ import annotations

import math
import sqlite3
import weakref
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from inference_core.agents.fenced_checkpoints import OnWorkers, Seen
from inference_core.effects import WorkerPool
from inference_core.errors import ConfigurationError, MissingExtra
from inference_core.stores.backends.sql.sqlite import translated
from inference_core.stores.locks import FileLock, make_private
from inference_core.stores.urls import parse_url, shown_url

_BUSY_TIMEOUT_S: Final = 30.0
_IDS: Final = "thread_id, checkpoint_id"
_FROM_1582_S: Final = 12_219_292_800
"""From the start of the Gregorian calendar, where the time in UUIDs begins, to 1970."""


def open_checkpointer(url: str) -> BaseCheckpointSaver[str]:
    """The checkpointer at ``url``: ``sqlite:///path.db``, ``postgresql://user:password@host/db`` or ``memory://``.

    It serves sync and async runs alike. Raises ConfigurationError for any other URL and for a database that cannot be
    opened, MissingExtra if a package is missing.
    """
    return _opened(url)


def _opened(url: str, **options: float) -> BaseCheckpointSaver[str]:
    """Like `open_checkpointer`; ``options`` are those of a `PostgresCheckpointer`."""
    parsed = parse_url(url)
    if parsed.scheme == "sqlite" and parsed.path:
        return SqliteCheckpointer(parsed.path)
    if parsed.scheme == "memory":
        return InMemorySaver()
    if parsed.scheme in ("postgresql", "postgres"):
        try:
            from inference_core.agents.postgres_checkpoints import PostgresCheckpointer  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtra("Checkpoints in PostgreSQL", "postgres") from error
        return PostgresCheckpointer(url, **options)
    raise ConfigurationError(
        "The URL of checkpoints looks like 'sqlite:///checkpoints.db', 'postgresql://user:password@host/db' or 'memory://'"
    )


def _made_at(checkpoint_id: str) -> float:
    """When a checkpoint was made, in seconds since 1970; 0 for an id that is not a UUID."""
    try:
        digits = UUID(checkpoint_id).hex
    except ValueError:
        return 0.0
    # A UUID of version 6: 48 and 12 bits of the time since 1582, in units of 100 ns.
    return int(digits[:12] + digits[13:16], 16) / 1e7 - _FROM_1582_S


class SqliteCheckpointer(OnWorkers, SqliteSaver):
    """LangGraph's SqliteSaver for sync and async runs, on any number of event loops.

    LangGraph's AsyncSqliteSaver ties an agent to the event loop that created it. Only plain data and the types of
    LangChain and LangGraph are restored as objects; other types stay plain data, so a file cannot run code. Raises
    ConfigurationError if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(FileLock(path.with_name(path.name + ".lock"))) as turns, turns:
                make_private(path)
                connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
                super().__init__(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
                self.pool, self._seen = WorkerPool(self.workers, "checkpoints"), Seen()
                # LangGraph copies the checkpointer; the copies share the pool.
                self._disconnect = weakref.finalize(self.pool, connection.close)
                self.setup()
        except (OSError, ValueError, sqlite3.Error) as error:
            raise ConfigurationError(f"Cannot open the checkpoints at {path}: {error}") from error

    def ask(self, query: str, *given: str) -> list[tuple[Any, ...]]:
        """The rows that ``query`` returns; ``given`` are the values of its ``?`` placeholders."""
        with self.cursor() as cursor:
            return cursor.execute(query, given).fetchall()


class CheckpointThreads:
    """The threads of the checkpointer at ``url``, for `erase`. Raises what `open_checkpointer` raises."""

    def __init__(self, url: str) -> None:
        self.name = f"checkpoints at {shown_url(url)}"
        self._saver = _opened(url, silence_s=math.inf)  # it reads and removes much at once
        self._path = parse_url(url).path

    def there(self) -> dict[str, float]:
        """All threads, with the time each began, taken from the id of its first checkpoint, in seconds since 1970."""
        if isinstance(self._saver, OnWorkers):
            both = f"SELECT * FROM checkpoints UNION ALL SELECT * FROM {self._saver.writes_table}".replace("*", _IDS)
            rows = self._saver.ask(f"SELECT thread_id, min(checkpoint_id) FROM ({both}) AS a GROUP BY thread_id")
        else:
            named = (one.config.get("configurable", {}) for one in self._saver.list(None))  # the newest first
            rows = [(one["thread_id"], one["checkpoint_id"]) for one in named]
        return {thread: _made_at(checkpoint) for thread, checkpoint in rows}

    def erase(self, threads: Sequence[str]) -> list[str]:
        """Removes ``threads``, from a file also all traces of earlier removals; returns what may still hold data."""
        for thread in threads:
            self._saver.delete_thread(thread)
        if not isinstance(self._saver, SqliteSaver):
            return [f"freed pages and write-ahead log of the {self.name}, until they are used again"]
        with translated(), self._saver.cursor(transaction=False) as cursor:
            cursor.execute("VACUUM")  # other writers of the file may not overwrite what they delete
            is_busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return [f"the journal of the {self.name}: a program still reads an old state; repeat this"] if is_busy else []

    def files(self) -> list[Path]:
        """The file and its journal, if there is one."""
        paths = [self._path, self._path.with_name(self._path.name + "-wal")] if self._path else []
        return [path for path in paths if path.exists()]

    def close(self) -> None:
        """Closes the database."""
        if isinstance(self._saver, OnWorkers):
            self._saver.close()
