"""Kill -9 at every step of agents and workers: no message is lost, none has two effects."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from databases import database
from outbox_process import MARKER
from outbox_support import contents, service_on
from processes import Forked
from step_process import everything_said, step_through

from inference_core import open_store
from inference_core.clock import SystemClock
from inference_core.effects import run
from inference_core.ingestion.undo import jobs
from inference_core.outbox import outbox as queue


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_after_kill_9_at_every_step_each_message_has_one_effect(kind: str, tmp_path: Path, full: bool) -> None:
    checkpoints = f"sqlite:///{tmp_path / 'checkpoints.db'}"
    with database(kind, tmp_path) as url:
        with open_store(url, embeddings=None):
            pass
        code, lines = Forked(step_through, url, checkpoints, 1_000 if full else 2).end()
        print(*lines, sep="\n")
        assert code == 0
        _, said, _, agents, workers = lines[-1].split()
        expected = everything_said(checkpoints)
        with open_store(url, embeddings=None) as store:
            effects = Counter(MARKER.findall(content)[0] for content in contents(store))
            done = run(jobs(service_on(store).scope, "ada"))
            left = run(queue.status(store.engine, SystemClock()))
    assert len(expected) == int(said) >= (1_000 if full else 2)
    assert effects == Counter(expected)
    assert sum(len(job.value["added"]) for job in done) == len(expected)
    assert (left.partitions, left.waiting, left.dead) == (0, 0, 0)
    assert int(agents) >= len(expected)
    assert int(workers) >= 12 * len(expected)
