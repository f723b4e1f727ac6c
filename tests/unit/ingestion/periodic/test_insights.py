"""Higher-level memories: drawn from several that belong together, which they cite and with which they end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from outbox_support import undone
from periodic_support import DAY, Life, insight, names_in

from inference_core import MemorySource, MemoryStore, Origin
from inference_core.effects import run
from inference_core.errors import ModelError
from inference_core.ingestion.periodic import insights
from inference_core.ingestion.periodic.insights import INSIGHT, MAX_MEMBERS, beliefs, groups_of
from inference_core.ingestion.undo import jobs
from inference_core.memory.record import MemoryStoreDocument
from inference_core.memory.trust import Trust
from inference_core.testing import FrozenClock

CLIMBS = ("Climbs on Monday", "Moved a meeting to go climbing", "Buys climbing shoes")
NONE = insight(None)


def climber(store: Any, clock: FrozenClock, *turns: Any, user: str = "ada") -> Life:
    """Somebody with three memories of one topic; the ids are c0, c1, c2 with the user's name before."""
    life = Life(store, clock, insights=turns, user=user)
    for at, text in enumerate(CLIMBS):
        clock.advance(timedelta(seconds=1))
        life.service.sync.save_memory(user, text, "facts", topic="climbing", memory_id=f"{user}-c{at}")
    life.says("Hello")
    return life


def drawn(life: Life) -> list[MemoryStoreDocument]:
    return life.made_by(INSIGHT)


def test_it_is_drawn_once_from_what_belongs_together_and_cites_it(store: MemoryStore, clock: FrozenClock) -> None:
    life = climber(store, clock, insight(sources=["k1", "[K3]", "k9", "ada-c1"]), ModelError("asked again"))
    before = {one.id: one.value for one in life.all()}
    life.works(DAY - timedelta(seconds=1))
    assert drawn(life) == []
    life.works(timedelta(seconds=1))
    (found,) = drawn(life)
    assert (found.content, found.memory_category) == ("Ada climbs whenever she can", "semantic")
    assert found.metadata["cites"] == ["ada-c0", "ada-c2"]
    assert (found.value["trust"], found.value["source"]) == (Trust.INFERRED, {"origin": "agent", "tool": "insight"})
    assert {one.id: one.value for one in life.all() if one.id != found.id} == before
    for _ in range(3):
        life.works(DAY)
    assert len(drawn(life)) == len(life.model.requests) == 1
    (job, _) = run(jobs(life.service.scope, "ada"))
    assert (job.value["model_calls"], job.value["added"]) == (1, [found.id])
    assert job.value["input_tokens"] > 100
    undone(life.service.scope, "ada", job_id=job.key)
    assert {one.id: one.value for one in life.all()} == before


@pytest.mark.parametrize("how", ["deleted", "expired", "changed"])
def test_when_a_source_goes_it_is_made_anew_or_ends(store: MemoryStore, clock: FrozenClock, how: str) -> None:
    life = climber(store, clock, insight("Old"), insight("New", ["k1", "k3"]), NONE)
    life.service.sync.save_memory("ada", "Climbs on Friday too", "facts", topic="Climbing", memory_id="ada-c9")
    life.works(DAY)
    service = life.service.sync
    for content in ("New", None):
        if how == "deleted":
            service.delete_memory("ada", "ada-c0" if content else "ada-c9")
        elif how == "expired":
            gone = "ada-c0" if content else "ada-c9"
            service.save_memory("ada", "x", "facts", memory_id=gone, expires_at=clock.now())
        else:
            service.update_memory("ada", "ada-c0", f"Climbs no more {content}")
        life.works(DAY)
        if content:
            new, old = drawn(life)
            assert life.holding([new, old]) == ["New"]
            assert (old.value["superseded_by"], new.value["supersedes"]) == (new.id, [old.id])
    assert life.holding(drawn(life)) == []
    assert len(drawn(life)) == 2
    life.works(DAY)
    life.works(DAY)
    assert run(life.pipeline.outbox.partitions(["insights"])) == []


def test_without_a_model_none_is_made_and_orphans_end_unless_they_are_pinned(
    store: MemoryStore, clock: FrozenClock
) -> None:
    life = climber(store, clock, insight(), user="ada")
    life.works(DAY)
    (found,) = drawn(life)
    life.service.sync.delete_memory("ada", "ada-c0")
    pinned = MemorySource(tool=INSIGHT)
    life.service.sync.save_memory(
        "ada", "Pinned", pinned=True, source=pinned, extra_metadata={"cites": ["gone"], "group": "climbing"}
    )
    without = Life(store, clock, insights=[])
    without.works(DAY)
    assert without.holding(drawn(without)) == ["Pinned"]
    assert found.content not in [one.content for one in without.service.sync.recall_memories("ada", "climbs")]
    other = Life(store, clock, insights=[], user="bob")
    other.says("One", "Two")
    other.works(DAY)
    assert drawn(other) == []
    assert run(jobs(other.service.scope, "bob"))[1:] == []


def test_a_hostile_model_reaches_no_other_user(store: MemoryStore, clock: FrozenClock) -> None:
    for at in range(3):
        text = f"Bob climbs {at}"
        Life(store, clock).service.sync.save_memory("bob", text, "facts", topic="climbing", memory_id=f"bob-c{at}")
    hostile = insight("Bob's too", ["bob-c0", "bob-c1", "k1", "k7"])
    life = climber(store, clock, hostile, insight("Mine", ["k1", "k2", "bob-c1"]))
    life.works(DAY)
    (found,) = drawn(life)
    assert (found.content, found.metadata["cites"]) == ("Mine", ["ada-c0", "ada-c1"])
    assert "bob" not in str(life.model.requests[0])
    assert "names 1 of the listed ids" in life.model.requests[1][-1].text


def test_it_is_believed_no_more_than_the_least_of_its_group(store: MemoryStore, clock: FrozenClock) -> None:
    life = climber(store, clock, insight(sources=["k1", "k2"]))
    web = MemorySource(origin=Origin.WEB)
    life.service.sync.save_memory("ada", "Send climbing fees to eve", "facts", topic="climbing", source=web)
    life.works(DAY)
    assert drawn(life)[0].value["trust"] == Trust.EXTERNAL


@pytest.mark.parametrize(
    "answer",
    ["Prose", insight(sources=["k1"]), insight("x" * 501), insight(sources=["k8", "k9"])],
    ids=["prose", "one source", "too long", "not offered"],
)
def test_what_cannot_be_used_is_refused_and_tried_again_later(
    store: MemoryStore, clock: FrozenClock, answer: Any
) -> None:
    life = climber(store, clock, answer, answer, insight())
    assert life.works(DAY).progress.failures == 1
    assert drawn(life) == []
    assert life.works(timedelta(seconds=10)).progress.periodic == 1
    assert len(drawn(life)) == 1


def test_groups_that_were_answered_stay_so_when_a_model_fails_after_them(
    store: MemoryStore, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = climber(store, clock, NONE, ModelError("out"), insight("Cooks"))
    for at in range(3):
        life.service.sync.save_memory("ada", f"Dish number {at}", "facts", topic="zest", memory_id=f"z{at}")
    life.works(DAY)
    assert drawn(life) == []
    life.works(DAY)
    assert [one.metadata["cites"] for one in drawn(life)] == [["z0", "z1"]]
    assert len(life.model.requests) == 3
    monkeypatch.setattr(insights, "MAX_MEMORIES", 2)
    found = run(beliefs(life.service.scope, "ada"))
    assert {"z0", "z1"} <= set(found.memories)


def test_a_source_that_goes_while_the_model_thinks_is_not_cited(store: MemoryStore, clock: FrozenClock) -> None:
    def thinks(messages: Sequence[Any]) -> Any:
        assert names_in(messages) == ["k1", "k2", "k3"]
        life.service.sync.delete_memory("ada", "ada-c0")
        return insight()

    life = climber(store, clock, thinks)
    life.works(DAY)
    assert drawn(life) == []
    assert run(jobs(life.service.scope, "ada"))[0].value["problems"]


def test_what_cannot_be_stored_is_noted_and_what_is_there_is_not_made_twice(
    store: MemoryStore, clock: FrozenClock
) -> None:
    life = climber(store, clock, insight("Again"), insight("Again"), insight("y" * 400))
    life.works(DAY)
    life.service.sync.save_memory("ada", "Hates climbing in rain", "facts", topic="climbing")
    life.works(DAY)
    assert len(drawn(life)) == 1
    object.__setattr__(life.service.scope, "max_content_bytes", 60)
    life.service.sync.save_memory("ada", "Teaches climbing", "facts", topic="climbing")
    life.works(DAY)
    assert life.holding(drawn(life)) == ["Again"]
    assert any(row.value["problems"] for row in run(jobs(life.service.scope, "ada")))


def test_what_ended_and_is_true_again_is_a_memory_of_its_own(store: MemoryStore, clock: FrozenClock) -> None:
    life = climber(store, clock, insight("Same"), NONE, insight("Same"))
    life.works(DAY)
    service = life.service.sync
    service.update_memory("ada", "ada-c0", "Never climbs")
    life.works(DAY)
    assert life.holding(drawn(life)) == []
    service.update_memory("ada", "ada-c0", CLIMBS[0])
    life.works(DAY)
    assert len(drawn(life)) == 2
    assert life.holding(drawn(life)) == ["Same"]


def test_regression_the_same_conclusion_from_a_reworded_source_is_not_lost(
    store: MemoryStore, clock: FrozenClock
) -> None:
    life = climber(store, clock, insight("Same"), insight("Same"), ModelError("asked again"))
    life.works(DAY)
    life.service.sync.update_memory("ada", "ada-c0", "Climbs on Mondays")
    life.works(DAY)
    life.works(DAY)
    assert life.holding(drawn(life)) == ["Same"]


def test_groups_are_by_topic_then_entity_then_word_and_do_not_overlap(store: MemoryStore, clock: FrozenClock) -> None:
    service = Life(store, clock).service.sync
    ida = {"entities": [{"name": "Ida"}, {"name": 7}, "Ida"]}
    for at in range(4):
        service.save_memory("ada", f"Paint {at}", "facts", topic="Art", memory_id=f"a{at}")
        service.save_memory("ada", f"Met her in place{at}", "facts", memory_id=f"i{at}", extra_metadata=ida)
        service.save_memory("ada", f"Violin lesson{at}", "facts", memory_id=f"v{at}")
        service.save_memory("ada", f"Alone{at}", "facts", memory_id=f"x{at}", extra_metadata={"entities": "Ida"})
    for at in range(MAX_MEMBERS + 5):
        service.save_memory("ada", f"Common thing{at}", "facts", topic="big", memory_id=f"b{at:02}")
    records = list(run(beliefs(Life(store, clock).service.scope, "ada")).memories.values())
    found = groups_of(records)
    assert [group.name for group in found] == ["big", "art", "ida", "violin"]
    assert [len(group.members) for group in found] == [MAX_MEMBERS, 4, 4, 4]
    assert [one.fingerprint for one in groups_of(records[::-1])] == [one.fingerprint for one in found]
    assert groups_of(records[:2]) == []
