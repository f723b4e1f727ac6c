"""A profile edited as one text: each change is a version, and nothing is written or lost besides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from inference_core import AgentMemoryStoreService, MemorySource, Origin, open_store
from inference_core.effects import run
from inference_core.errors import InvalidInput, QuotaExceeded, SecretFound, VersionConflict
from inference_core.lifecycle.forgetting import restore
from inference_core.memory.quota import Quota
from inference_core.services.operations import profile
from inference_core.services.operations.profile import Line, Section, changes, edit_profile, lines_in, read_profile
from inference_core.testing import FrozenClock

BEFORE = """## Rules

- Never book flights before nine

## Preferences

- Short answers first
- Metric units,
  and euros

## Pinned

- Lives in Lisbon
- Wants to learn Portuguese
"""


def filled(store: Any, clock: FrozenClock) -> AgentMemoryStoreService:
    service = AgentMemoryStoreService(store, clock=clock)
    memory = service.sync
    memory.save_memory("ada", "Never book flights before nine", "instructions", memory_id="nine", tags=["travel"])
    memory.save_memory("ada", "Short answers first", "preferences", memory_id="short")
    memory.save_memory("ada", "Metric units,\nand euros", "preferences", memory_id="units")
    memory.save_memory("ada", "Lives in Lisbon", "facts", memory_id="home", pinned=True)
    memory.save_memory("ada", "Wants to learn Portuguese", "goals", memory_id="goal", pinned=True)
    memory.save_memory("ada", "Cycles to work", "facts")
    by_web = MemorySource(origin=Origin.WEB)
    memory.save_memory("ada", "Offers on Fridays", "facts", pinned=True, source=by_web)
    memory.save_memory("bob", "Long answers", "preferences")
    return service


def test_an_edit_makes_versions_of_what_it_changes_and_of_nothing_else(database_url: str, clock: FrozenClock) -> None:
    with open_store(database_url, embeddings=None, clock=clock) as store:
        service = filled(store, clock)
        scope, memory = service.scope, service.sync
        text = run(read_profile(scope, "ada")).text
        assert sorted(text.split("\n")) == sorted(BEFORE.split("\n"))  # saved at the same instant
        assert run(edit_profile(scope, "ada", text, text)) == []
        edited = text.replace("before nine", "or trains before nine")
        edited = edited.replace("- Short answers first\n", "").replace("- Lives in Lisbon\n", "- Has a cat\n")
        edited = edited.replace("- Wants to learn Portuguese\n", "").replace(
            "## Rules\n", "## Rules\n\nUse SI units\n- Wants to learn Portuguese\n"
        )
        made = run(edit_profile(scope, "ada", edited, text, source=MemorySource(origin=Origin.USER)))
        by_id = {one.memory_id: one for one in made}
        assert {str(one).split()[0] for one in made} == {"Changed", "Deleted", "Moved", "Saved"}
        assert str(by_id["short"]) == "Deleted “Short answers first”"
        there = {one.id: one for one in memory.list_memories("ada")[0]}
        assert there["nine"].content == "Never book flights or trains before nine"
        assert (there["nine"].value["tags"], there["nine"].source.origin) == (["travel"], Origin.USER)
        assert [one.content for one in memory.get_memory_history("ada", "nine")] == [
            "Never book flights before nine",
            "Never book flights or trains before nine",
        ]
        assert (there["goal"].memory_type, there["goal"].pinned) == ("instructions", False)
        assert there["home"].content == "Has a cat"  # replaced in its place, so its memory says this now
        assert there["units"].version == 1
        (new,) = [one for one in there.values() if one.content == "Use SI units"]
        assert (new.memory_type, new.source.origin) == ("instructions", Origin.USER)
        assert run(restore(scope, "ada", ["short"])).restored
        assert run(edit_profile(scope, "ada", edited, text)) == [by_id["short"]]  # all else is so already
        assert run(edit_profile(scope, "ada", edited, text)) == []
        later = run(read_profile(scope, "ada")).text
        back = later.replace("- Wants to learn Portuguese\n", "") + "- Wants to learn Portuguese\n- Plays chess\n"
        assert len(run(edit_profile(scope, "ada", back, later))) == 2
        chess = [one for one in memory.list_memories("ada")[0] if one.content == "Plays chess"]
        assert [(one.memory_type, one.pinned) for one in chess] == [("facts", True)]
        assert memory.list_memories("bob")[1] == 1


def test_what_others_change_meanwhile_is_not_overwritten(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = filled(store, clock)
        scope, memory = service.scope, service.sync
        text = run(read_profile(scope, "ada")).text
        memory.save_memory("ada", "Window seats", "preferences")
        memory.update_memory("ada", "units", "Imperial units")
        edited = text.replace("Short answers first", "Long answers first") + "- Has a dog\n"
        assert len(run(edit_profile(scope, "ada", edited, text))) == 2  # what others wrote on other lines stays
        assert "Window seats" in run(read_profile(scope, "ada")).text
        before = memory.list_memories("ada", limit=None)[0]
        wrong = text.replace("before nine", "before ten").replace("Metric units", "Metric units always")
        with pytest.raises(VersionConflict, match=r"the memory of line \d+ meanwhile"):
            run(edit_profile(scope, "ada", wrong, text))
        assert memory.list_memories("ada", limit=None)[0] == before
        now = run(read_profile(scope, "ada")).text
        real = profile.update

        async def late(*args: Any, **options: Any) -> bool:
            memory.delete_memory("ada", "nine")
            return await real(*args, **options)

        monkeypatch.setattr(profile, "update", late)
        with pytest.raises(VersionConflict, match="has deleted a memory"):
            run(edit_profile(scope, "ada", now.replace("before nine", "before ten"), now))


def test_what_cannot_be_stored_is_refused_before_anything_is_changed(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None, clock=clock, secrets="reject") as store:
        service = filled(store, clock)
        text = run(read_profile(service.scope, "ada")).text
        before = service.sync.list_memories("ada")[0]
        for line, error in (("x" * 9_000, InvalidInput), (f"Token ghp_{'a1B2' * 9}", SecretFound)):
            with pytest.raises(error):
                run(edit_profile(service.scope, "ada", text.replace("Short answers first\n", f"\n- {line}\n"), text))
        assert service.sync.list_memories("ada")[0] == before


def test_an_edit_that_fails_in_the_middle_can_be_repeated(clock: FrozenClock) -> None:
    quota = Quota(writes_per_minute=10)
    with open_store("memory://", embeddings=None, clock=clock, quota=quota) as store:
        service = filled(store, clock)
        text = run(read_profile(service.scope, "ada")).text
        edited = text.replace("- Short answers first\n", "") + "".join(f"- Fact {number}\n" for number in range(5))
        with pytest.raises(QuotaExceeded):
            run(edit_profile(service.scope, "ada", edited, text))
        assert service.sync.get_memory("ada", "short")  # nothing is deleted before all is saved
        clock.advance(timedelta(minutes=1))
        assert len(run(edit_profile(service.scope, "ada", edited, text))) == 3
        assert service.sync.get_memory("ada", "short") is None


def test_of_many_the_oldest_preferences_are_left_out_and_spared(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        for number in range(6):
            clock.advance(timedelta(minutes=1))
            service.sync.save_memory("ada", f"Preference number {number}", "preferences")
        service.sync.save_memory("ada", "A rule", "instructions")
        found = run(read_profile(service.scope, "ada", max_characters=60))
        assert found.more == 4
        assert [one in found.text for one in ("A rule", "number 5", "number 4", "number 0")] == [
            True,
            True,
            True,
            False,
        ]
        emptied = "\n".join(line for line in found.text.split("\n") if line.startswith("#"))
        assert len(run(edit_profile(service.scope, "ada", emptied, found.text))) == 3
        assert service.sync.count_memories("ada")["total"] == 4


def test_the_most_alike_are_paired_but_not_among_thousands() -> None:
    said = [Line(Section.RULES, "Answer in short words"), Line(Section.RULES, "Answer in short words, always")]
    made = changes(said, [Line(Section.PINNED, "Answer in short words, nearly always")])
    assert [(one.before, one.after and one.after.section) for one in made] == [
        (said[1], Section.PINNED),
        (said[0], None),
    ]
    before = [Line(Section.RULES, f"Rule number {number}") for number in range(250)]
    after = [Line(Section.RULES, f"Rule no. {number}") for number in range(249)]
    made = changes(before, after)
    assert len([one for one in made if one.before and one.after]) == 0
    assert len(changes(before[:20], after[:19])) == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The heading ## Rules is missing"),
        ("Rule\n## Rules\n## Preferences\n## Pinned", "Line 1 stands above the headings"),
        ("## Rules\n## Wishes\n## Pinned", "Line 2 is no heading of a profile"),
        ("## Rules\n<!-- ## Preferences\n## Pinned", "The heading ## Preferences is missing"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        lines_in(text)


def test_people_write_lines_as_they_like() -> None:
    text = "<!-- a\ncomment --> \n## rules\n-\n* A\nB\n\tmore\n   of it\n-  C\n## PREFERENCES\n## Pinned\n  D\n"
    found = [(line.section, line.text, line.number) for line in lines_in(text)]
    assert found == [
        (Section.RULES, "A", 5),
        (Section.RULES, "B\nmore\n of it", 6),
        (Section.RULES, " C", 9),
        (Section.PINNED, "D", 12),
    ]
