"""Dispatcher: Procrastinate, on the database of the outbox, notifies workers at once that a user's messages wait.

It only notifies: the outbox stays the record, and its leases keep workers apart. A lost job matters for at most a
minute, until workers are notified again of all that waits; a duplicate does nothing. Needs the extra ``procrastinate``.

Procrastinate's worker ends when its server restarts or fails over, as it does when it is asked to: so it is started
again, on new connections, until it is asked to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Final

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.signals import on_stop

from inference_core.errors import StoreUnavailable
from inference_core.ingestion.worker import Worker
from inference_core.outbox.outbox import Partition
from inference_core.stores.backends.sql.postgres import parameters_of

QUEUE: Final = "inference_core"
"""Procrastinate's queue of these jobs; others may share the tables."""
_PROCESS: Final = "inference_core.process"
_EACH_MINUTE: Final = "* * * * *"
_PAUSE_S: Final = 1.0
_OUTAGES: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,  # the server of before a failover
    StoreUnavailable,
)
_LOG = logging.getLogger(__name__)


class Dispatcher:
    """Notifies workers over the PostgreSQL database at ``url``, whose tables `set_up` creates once.

    Agents call `dispatch`: ``CaptureMiddleware(..., works=False, dispatch=dispatcher.dispatch)``. It is safe to call
    from any thread and raises Procrastinate's ConnectorException. Worker processes call `work`.
    """

    def __init__(self, url: str) -> None:
        parameters = parameters_of(url)
        self._app = App(connector=PsycopgConnector(kwargs=parameters))
        self._caller = App(connector=SyncPsycopgConnector(kwargs=parameters)).open()

    def set_up(self) -> None:
        """Creates Procrastinate's tables if they are missing. Do not call it from several processes at once."""
        if not self._caller.check_connection():
            self._caller.schema_manager.apply_schema()

    def dispatch(self, partition: Partition) -> None:
        """Notifies workers that ``partition`` has messages, unless a notification is pending."""
        job = self._caller.configure_task(_PROCESS, queue=QUEUE, queueing_lock=partition.name)
        with suppress(AlreadyEnqueued):
            job.defer(**partition.to_value())

    async def work(self, worker: Worker, **options: Any) -> None:
        """Runs ``worker`` on the notified partitions, one at a time, until cancelled, or until SIGTERM or SIGINT.

        Run one process per core. While the server is away, it waits. ``options`` are those of Procrastinate's
        ``run_worker_async``. Raises ConnectorException if it cannot go on, since its tables are missing, for example.
        """

        def process(**value: Any) -> None:
            worker.work_on(Partition.from_value(value))

        def call(timestamp: int) -> None:
            del timestamp
            for partition in worker.waiting():
                self.dispatch(partition)

        self._app.task(name=_PROCESS, queue=QUEUE)(process)
        self._app.periodic(cron=_EACH_MINUTE)(self._app.task(name=f"{QUEUE}.call", queue=QUEUE)(call))
        given: dict[str, Any] = {"queues": [QUEUE], "concurrency": 1, "delete_jobs": "successful", **options}
        heeds_signals = given.pop("install_signal_handlers", True)
        working = asyncio.create_task(self._rounds(lambda: call(0), given))
        is_asked = False

        def stop() -> None:
            nonlocal is_asked
            is_asked = True
            working.cancel()  # Procrastinate then ends after the current batches

        with on_stop(stop) if heeds_signals else nullcontext():
            try:
                await working
            except asyncio.CancelledError:
                if not is_asked:
                    raise

    async def _rounds(self, call: Callable[[], None], options: dict[str, Any]) -> None:
        """Runs Procrastinate's worker again and again; ``call`` notifies it first of all that waits."""
        while True:
            try:
                async with self._app.open_async():
                    await asyncio.to_thread(call)
                    await self._app.run_worker_async(**options, install_signal_handlers=False)
                if not options.get("wait", True):
                    return
                why = "its connection was lost"  # which Procrastinate has logged
            except (ConnectorException, psycopg.Error, StoreUnavailable) as error:
                cause = (error.__cause__ if isinstance(error, ConnectorException) else None) or error
                if not isinstance(cause, _OUTAGES):
                    raise
                why = type(cause).__name__
            _LOG.warning("The worker has stopped (%s); it goes on in %g s", why, _PAUSE_S)
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Closes the connections of ``dispatch``."""
        self._caller.close()
