"""Conversations in PostgreSQL, in the tables of LangGraph's PostgresSaver."""

from __future__ import annotations

import math
import weakref
from typing import Any, ClassVar, Final, cast

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg import IsolationLevel
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from inference_core.agents.fenced_checkpoints import OnWorkers, Seen
from inference_core.effects import HANG_S, WorkerPool
from inference_core.errors import ConfigurationError
from inference_core.stores.backends.sql.postgres import Connection, parameters_of
from inference_core.stores.urls import shown_url

_CONNECT_TIMEOUT_S: Final = 10.0
_RECONNECT_S: Final = 5.0
"""The pool doubles its pause after each try; without this limit, the pause would outlast the outage."""
_CHECK_S: Final = 2.0
"""A connection that takes longer to answer is replaced before a turn uses it."""
_SETUP_LOCK: Final = 0x696E666572656E63
"""An advisory lock: processes that start together set up the tables one after the other."""


class _Setup(PostgresSaver):
    """LangGraph's set-up in one transaction, which lets a lock of the transaction guard it.

    A lock of the session would be left behind in a session that a pooler lends to others, and CREATE INDEX CONCURRENTLY
    waits for the others who wait for this lock.
    """

    MIGRATIONS: ClassVar = [step.replace(" CONCURRENTLY", "") for step in PostgresSaver.MIGRATIONS]


class PostgresCheckpointer(OnWorkers, PostgresSaver):
    """LangGraph's PostgresSaver for sync and async runs, on any number of event loops.

    It waits at most ``silence_s`` seconds for an answer of the server. Raises ConfigurationError if the database cannot
    be opened.
    """

    writes_table = "checkpoint_writes"

    def __init__(self, url: str, *, silence_s: float = HANG_S) -> None:
        def configure(connection: Connection) -> None:
            connection.silence_s = silence_s
            connection.isolation_level = IsolationLevel.READ_COMMITTED

        connections = ConnectionPool(
            connection_class=Connection,
            kwargs={**parameters_of(url), "autocommit": True, "row_factory": dict_row},
            min_size=0,
            max_size=self.workers,
            open=False,
            timeout=_CONNECT_TIMEOUT_S,
            reconnect_timeout=_RECONNECT_S,
            configure=configure,
            check=_check,
        )
        pool = cast("ConnectionPool[psycopg.Connection[DictRow]]", connections)
        super().__init__(pool, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        self.pool, self._seen = WorkerPool(self.workers, "checkpoints"), Seen()
        self._disconnect = weakref.finalize(self.pool, connections.close)
        try:
            connections.open()
            with connections.connection() as connection, connection.waiting(math.inf), connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
                _Setup(connection).setup()
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


def _check(connection: Connection) -> None:
    """Raises psycopg.Error if the connection is broken, so that the pool makes another one."""
    with connection.waiting(_CHECK_S):
        connection.execute("SELECT 1")
