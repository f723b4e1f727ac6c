"""``inference-core worker``: makes memories of the messages that wait, until it is told to stop."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from inference_core.cli.opening import Opened, opened
from inference_core.cli.options import AsJson, Embeddings, Url
from inference_core.cli.output import note, print_json
from inference_core.cli.rendering import print_figures

if TYPE_CHECKING:
    from inference_core.ingestion.worker import Worker
    from inference_core.lifecycle.rounds import ForgettingRounds

_THREADS = 4


def worker(
    once: Annotated[bool, typer.Option("--once", help="Work on what waits now, then leave.")] = False,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="Users that are worked on at once.")
    ] = _THREADS,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Make memories of the messages that wait: with the models of AGENT_MEMORY_MODEL, or by rules.

    Also sums up sessions, looks after higher-level memories and forgets (AGENT_MEMORY_FORGET_HOURS), where the settings
    say so.

    Stops on Ctrl-C and SIGTERM after the batches in hand. Any number of workers may share a store.
    """
    with opened(url, None, embeddings, embeds=True, creates=True) as memory:
        made = _worker(memory, threads)
        if once:
            made.drain()
            _rounds(memory).run_if_due()
        else:
            _work(made)
        figures = asdict(made.progress)
    if json:
        print_json(figures)
    else:
        print_figures(figures)


def _worker(memory: Opened, threads: int) -> Worker:
    from inference_core.agents.capture import limits_of, make_extractor, make_periodic  # noqa: PLC0415 - slow to import
    from inference_core.ingestion.pipeline import Pipeline  # noqa: PLC0415
    from inference_core.ingestion.worker import Worker  # noqa: PLC0415

    settings = memory.settings
    pipeline = Pipeline(
        memory.service.scope,
        make_extractor(settings),
        limits=limits_of(settings),
        periodic=make_periodic(settings),
    )
    return Worker(pipeline, interval_s=settings.worker_interval, threads=threads, chore=_rounds(memory).run_if_due)


def _rounds(memory: Opened) -> ForgettingRounds:
    """Forgets as the settings say, each time that it is due; never unless they name an interval."""
    from inference_core.lifecycle.policy import ForgettingPolicy  # noqa: PLC0415 - slow to import
    from inference_core.lifecycle.rounds import ForgettingRounds  # noqa: PLC0415

    return ForgettingRounds(
        memory.service.scope, ForgettingPolicy.from_settings(memory.settings), memory.settings.forget_hours
    )


def _work(made: Worker) -> None:
    """Works until a signal comes."""
    told = threading.Event()

    def tell(*_: object) -> None:
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    made.start()
    note("Working; Ctrl-C stops after the batches in hand")
    told.wait()
    made.close()
