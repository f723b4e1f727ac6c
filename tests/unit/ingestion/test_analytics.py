"""Figures about a user's memories and the work that made them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from outbox_support import Scripted, answering, pipeline_on, put, said, service_on, step

from inference_core import open_store
from inference_core.effects import run
from inference_core.ingestion.analytics import MemoryStatistics, NamedUsage, statistics
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import Action, Candidate, Extraction, Role
from inference_core.testing import FrozenClock

NOTHING = MemoryStatistics(0, {}, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_figures_of_memories_and_jobs(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None) as store:
        service = service_on(store, clock)
        extractor = Scripted()
        pipeline = pipeline_on(store, extractor, clock)
        assert run(statistics(service.scope, "ada")) == NOTHING
        for days in (300, 20, 5):
            clock.advance(timedelta(days=-days))
            service.sync.save_memory("ada", f"of {days} days ago", "goals", memory_id=f"m{days}")
            clock.advance(timedelta(days=days))
        service.sync.save_memory("bob", "not Ada's", "goals")
        supersede = Candidate(content="new", action=Action.SUPERSEDE, target="m5")
        rule = Candidate(content="a rule", memory_type=MemoryType.SKILL)
        turns = [
            ([supersede, Candidate(content="more")], Role.USER, ["left out"]),
            ([Candidate(content="more")], Role.USER, []),
            ([rule], Role.TOOL, []),
        ]
        for number, (given, role, problems) in enumerate(turns):
            extractor.script = answering(Extraction(given, problems, 1, 100, 10))
            put(pipeline.outbox, said(f"turn {number}", role=role))
            step(pipeline)
        service.sync.recall_memories("ada", "of 300 days ago", 1)
        found = run(statistics(service.scope, "ada"))
        newest = run(statistics(service.scope, "ada", newest=1))
        assert run(statistics(service.scope, "ada", newest=5)) == found
    counted = (newest.memories, newest.by_type, newest.jobs)
    assert counted == (5, {"goals": 3, "facts": 2}, 3)  # by the database
    assert (newest.used, newest.never_used) == (1, 4)  # too: it was said that none was, of the newest
    assert (newest.most_used, newest.oldest_unused) == (found.most_used, found.oldest_unused)
    assert (newest.over, newest.model_calls, newest.input_tokens) == (0, 1, 100)
    assert [one.content for one in found.oldest_unused[:2]] == ["of 20 days ago", "of 5 days ago"]
    assert replace(found, oldest_unused=[]) == MemoryStatistics(
        memories=5,
        by_type={"goals": 3, "facts": 2},
        by_age={"today": 2, "this week": 1, "this month": 1, "older": 1},
        by_month={"2025-03": 1, "2025-12": 1, "2026-01": 3},
        over=1,
        jobs=3,
        added=2,
        reinforced=1,
        superseded=1,
        problems=1,
        model_calls=3,
        input_tokens=300,
        output_tokens=30,
        by_week={"2025-W12": 1, "2025-W52": 1, "2026-W02": 1, "2026-W03": 2},
        used=1,
        never_used=4,
        most_used=[NamedUsage("m300", "of 300 days ago", 1, clock.now())],
        forgotten=0,
    )
