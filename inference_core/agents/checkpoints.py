"""open_checkpointer(url): where conversations are kept between runs."""

from __future__ import annotations

import math
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from inference_core.effects import WorkerPool, arun
from inference_core.errors import ConfigurationError, MissingExtra, UserErased
from inference_core.stores.backends.sql.sqlite import translated
from inference_core.stores.locks import FileLock, make_private
from inference_core.stores.urls import parse_url, shown_url

_BUSY_TIMEOUT_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 5.0
_MOST_SEEN: Final = 10_000
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


def _asynchronous(name: str) -> Any:
    """An async method that calls ``name`` on a worker."""

    async def on_worker(self: OnWorkers, *args: Any, **kwargs: Any) -> Any:
        return await arun(self.pool.call(getattr(self, name), *args, **kwargs))

    return on_worker


class Seen:
    """Ids of checkpoints that this process has read or written: the last `_MOST_SEEN`. Safe for threads."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}
        self._lock = threading.Lock()

    def add(self, checkpoint_id: str) -> None:
        """Notes an id."""
        with self._lock:
            self._ids[checkpoint_id] = self._ids.pop(checkpoint_id, None)
            if len(self._ids) > _MOST_SEEN:
                del self._ids[next(iter(self._ids))]

    def __contains__(self, checkpoint_id: object) -> bool:
        return checkpoint_id in self._ids


class OnWorkers(BaseCheckpointSaver[str], ABC):
    """Gives a sync checkpointer async methods, which run on the workers of ``pool``, and fences off deleted threads.

    Each write builds on a checkpoint. If this process has seen that checkpoint and it is gone, the thread was deleted
    while the turn ran, as an erasure does: the write raises UserErased, and nothing of the turn is kept. A turn that
    begins later finds no checkpoint, builds on none, and is kept.
    """

    workers: ClassVar[int] = 4
    writes_table: ClassVar[str] = "writes"
    pool: WorkerPool
    _seen: Seen
    _disconnect: Callable[[], Any]

    aget_tuple = _asynchronous("get_tuple")
    aput = _asynchronous("put")
    aput_writes = _asynchronous("put_writes")
    adelete_thread = _asynchronous("delete_thread")

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Like LangGraph's, and notes the checkpoint as seen."""
        found = super().get_tuple(config)
        if found:
            self._seen.add(found.config.get("configurable", {})["checkpoint_id"])
        return found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Like LangGraph's. Raises UserErased if the thread was deleted meanwhile."""
        with self._fenced(config, checkpoint["id"]):
            stored = super().put(config, checkpoint, metadata, new_versions)
        self._seen.add(checkpoint["id"])
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Like LangGraph's. Raises UserErased if the thread was deleted meanwhile."""
        # The writes may arrive before their checkpoint: LangGraph saves both in the background.
        with self._fenced(config, config.get("configurable", {})["checkpoint_id"]):
            super().put_writes(config, writes, task_id, task_path)

    @contextmanager
    def _fenced(self, config: RunnableConfig, checkpoint_id: str) -> Generator[None]:
        """Refuses a write of ``checkpoint_id`` if what it builds on was deleted, before the write or during it."""
        try:
            self._check(config)
            yield
            self._check(config)
        except UserErased:
            self._seen.add(checkpoint_id)  # so that later writes that build on it are refused as well
            self._drop(str(config.get("configurable", {})["thread_id"]), checkpoint_id)
            raise

    def _check(self, config: RunnableConfig) -> None:
        """Raises UserErased if a checkpoint that a write builds on was there and is gone."""
        given = config.get("configurable", {})
        ground: dict[str, str] = {given.get("checkpoint_ns", ""): given.get("checkpoint_id", "")}
        ground |= given.get("checkpoint_map", {})
        for place, checkpoint_id in ground.items():
            where = "thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
            if checkpoint_id in self._seen and not self.ask(
                f"SELECT 1 FROM checkpoints WHERE {where}", str(given["thread_id"]), place, checkpoint_id
            ):
                raise UserErased("The conversation was deleted")

    def _drop(self, thread: str, checkpoint_id: str) -> None:
        """Removes what was written of a checkpoint that was refused."""
        for table in ("checkpoints", self.writes_table):
            query = f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_id = ? RETURNING 1"
            self.ask(query, thread, checkpoint_id)

    async def alist(self: Any, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """Like `list`."""
        found = await arun(self.pool.call(lambda: [*self.list(config, **options)]))
        for one in found:
            yield one

    @abstractmethod
    def ask(self, query: str, *given: str) -> list[tuple[Any, ...]]:
        """The rows that ``query`` returns; ``given`` are the values of its ``?`` placeholders."""

    def close(self) -> None:
        """Closes the database; a second call does nothing."""
        self.pool.close(_CLOSE_TIMEOUT_S)
        self._disconnect()


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
