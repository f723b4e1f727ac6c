"""``worker``: extracts memories from the messages that wait, until it is stopped."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from typing import Annotated

import typer

from inference_core.cli.opening import opened
from inference_core.cli.options import AsJson, Embeddings, Url
from inference_core.cli.output import note, print_json
from inference_core.cli.rendering import print_figures


def worker(
    once: Annotated[bool, typer.Option("--once", help="Process the messages that wait now, then exit.")] = False,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="How many users are processed at once.")
    ] = 4,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Extract memories from the messages that wait, with the models of AGENT_MEMORY_MODEL or by rules.

    Also summarizes sessions, maintains higher-level memories and forgets (AGENT_MEMORY_FORGET_HOURS), where the
    settings say so. Ctrl-C and SIGTERM stop it after the current batches. Any number of workers may share a store.
    """
    from inference_core.agents.capture import limits_of, make_extractor, make_periodic
    from inference_core.ingestion.pipeline import Pipeline
    from inference_core.ingestion.worker import Worker
    from inference_core.lifecycle.policy import ForgettingPolicy
    from inference_core.lifecycle.rounds import ForgettingRounds

    with opened(url, None, embeddings, embeds=True, creates=True) as memory:
        settings, scope = memory.settings, memory.service.scope
        forgetting = ForgettingRounds(scope, ForgettingPolicy.from_settings(settings), settings.forget_hours)
        pipeline = Pipeline(
            scope, make_extractor(settings), limits=limits_of(settings), periodic=make_periodic(settings)
        )
        made = Worker(pipeline, interval_s=settings.worker_interval, threads=threads, chore=forgetting.run_if_due)
        if once:
            made.drain()
            forgetting.run_if_due()
        else:
            stopped = threading.Event()

            def stop(*_: object) -> None:
                stopped.set()

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)
            made.start()
            note("Working; Ctrl-C stops after the current batches")
            stopped.wait()
            made.close()
        figures = asdict(made.progress)
    if json:
        print_json(figures)
    else:
        print_figures(figures)
