"""Conversations in PostgreSQL, in the tables of LangGraph's PostgresSaver."""

from __future__ import annotations

import weakref
from typing import Any, Final

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from inference_core.agents.checkpoints import OnWorkers, Seen
from inference_core.effects import WorkerPool
from inference_core.errors import ConfigurationError
from inference_core.stores.backends.sql.postgres_connections import parameters_of
from inference_core.stores.urls import shown_url

_CONNECT_TIMEOUT_S: Final = 10.0
_SETUP_LOCK: Final = 0x696E666572656E63
"""An advisory lock: processes that start together set up the tables one after the other."""


class PostgresCheckpointer(OnWorkers, PostgresSaver):
    """LangGraph's PostgresSaver for sync and async runs, on any number of event loops.

    Raises ConfigurationError if the database cannot be opened.
    """

    writes_table = "checkpoint_writes"

    def __init__(self, url: str) -> None:
        settings = {"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0}
        connections = ConnectionPool(
            connection_class=psycopg.Connection[DictRow],
            kwargs={**parameters_of(url), **settings},
            min_size=0,
            max_size=self.workers,
            open=False,
            timeout=_CONNECT_TIMEOUT_S,
            check=_check,
        )
        super().__init__(connections, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        self.pool, self._seen = WorkerPool(self.workers, "checkpoints"), Seen()
        self._disconnect = weakref.finalize(self.pool, connections.close)
        try:
            connections.open()
            with connections.connection() as connection:
                connection.execute("SELECT pg_advisory_lock(%s)", (_SETUP_LOCK,))
                try:
                    self.setup()
                finally:
                    connection.execute("SELECT pg_advisory_unlock(%s)", (_SETUP_LOCK,))
        except (psycopg.Error, PoolTimeout) as error:
            self._disconnect()
            raise ConfigurationError(
                f"Cannot open the checkpoints at {shown_url(url)}: {type(error).__name__}. Is the server running?"
            ) from error

    def _drop(self, thread: str, checkpoint_id: str) -> None:
        super()._drop(thread, checkpoint_id)
        kept = "EXISTS (SELECT 1 FROM checkpoints c WHERE c.thread_id = b.thread_id)"
        self.ask(f"DELETE FROM checkpoint_blobs b WHERE thread_id = ? AND NOT {kept} RETURNING 1", thread)

    def ask(self, query: str, *given: str) -> list[tuple[Any, ...]]:
        """The rows that ``query`` returns; ``given`` are the values of its ``?`` placeholders."""
        with self._cursor() as cursor:
            return [tuple(row.values()) for row in cursor.execute(query.replace("?", "%s").encode(), given)]


def _check(connection: psycopg.Connection[DictRow]) -> None:
    """Raises psycopg.Error if the connection is broken, so that the pool makes another one."""
    connection.execute("SELECT 1")
