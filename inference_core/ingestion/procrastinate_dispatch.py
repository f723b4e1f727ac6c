"""Dispatcher: Procrastinate, on the database of the outbox, notifies workers at once that a user's messages wait.

It only notifies: the outbox stays the record, and its leases keep workers apart. A lost job matters for at most a
minute, until workers are notified again of all that waits; a duplicate does nothing. Needs the extra ``procrastinate``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued

from inference_core.ingestion.worker import Worker
from inference_core.outbox.partitions import Partition
from inference_core.stores.backends.sql.postgres_connections import parameters_of

QUEUE: Final = "inference_core"
"""Procrastinate's queue of these jobs; others may share the tables."""
_PROCESS: Final = "inference_core.process"
_EACH_MINUTE: Final = "* * * * *"


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
        name = partition.place[1]
        job = self._caller.configure_task(_PROCESS, queue=QUEUE, queueing_lock=name)
        with suppress(AlreadyEnqueued):
            job.defer(**partition.to_value())

    async def work(self, worker: Worker, **options: Any) -> None:
        """Runs ``worker`` on the notified partitions, one at a time, until cancelled; run one process per core.

        ``options`` are those of Procrastinate's ``run_worker_async``.
        """

        def process(**value: Any) -> None:
            worker.work_on(Partition.from_value(value))

        def call(timestamp: int) -> None:
            del timestamp
            for partition in worker.waiting():
                self.dispatch(partition)

        self._app.task(name=_PROCESS, queue=QUEUE)(process)
        self._app.periodic(cron=_EACH_MINUTE)(self._app.task(name=f"{QUEUE}.call", queue=QUEUE)(call))
        async with self._app.open_async():
            await asyncio.to_thread(call, 0)
            given: dict[str, Any] = {"queues": [QUEUE], "concurrency": 1, "delete_jobs": "successful", **options}
            await self._app.run_worker_async(**given)

    def close(self) -> None:
        """Closes the connections of ``dispatch``."""
        self._caller.close()
