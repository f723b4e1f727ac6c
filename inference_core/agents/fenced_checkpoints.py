"""Checkpointers of LangGraph for sync and async runs, which keep nothing that an erasure has removed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from inference_core.effects import WorkerPool, arun
from inference_core.errors import UserErased

_CLOSE_TIMEOUT_S: Final = 5.0
_MOST_SEEN: Final = 10_000


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
        checkpoint = super().get_tuple(config)
        if checkpoint:
            self._seen.add(checkpoint.config.get("configurable", {})["checkpoint_id"])
        return checkpoint

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
