"""Which short notes contradict each other, by words only; what is not recognised is told with the newest first."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from context_support import item

from benchmarks.context.conflicts import pairs, scored
from inference_core.context.comparing import alike_newest_first
from inference_core.errors import InvalidInput
from inference_core.slots.conflicts import MAX_NOTE, contradict, note_of

NOW = datetime(2026, 6, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("User is allergic to peanuts", "User has no allergies"),
        ("The meeting is on Monday", "The meeting is on Tuesday"),
        ("User has two children", "User has three children"),
        ("User is vegetarian", "User eats steak every Friday"),
        ("Use tabs for indentation", "Use spaces for indentation"),
        ("User does not smoke", "User smokes ten cigarettes a day"),
        ("User drives a Golf", "User sold the Golf"),
        ("User is left-handed", "User is right-handed"),
        ("Our plan costs 20 dollars a month", "Our plan costs 25 dollars a month since January"),
        ("Das Treffen ist am Montag", "Das Treffen ist am Donnerstag"),
    ],
)
def test_values_of_which_only_one_can_hold_contradict_each_other(old: str, new: str):
    """These were told side by side, unmarked."""
    assert contradict(note_of(old), note_of(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("User has two children", "User has two cats"),
        ("User is vegetarian", "User's wife eats meat"),
        ("User goes running on Mondays", "User goes running on Thursdays"),
        ("User has a meeting at 3", "User has a meeting at 5"),
        ("User paid 40 euros for lunch", "User paid 50 euros for lunch"),
        ("Room 3 is booked", "Room 4 is not booked"),
        ("Chapter 2 is long", "Chapter 2 is long"),
        ("Likes walk number 1", "Likes walk number 2"),
        ("The first sprint has 3 tasks", "The second sprint has 5 tasks"),
        ("The sprint has 3 tasks of 8 points", "The sprint has 4 tasks of 9 points"),
        ("The meeting is on Monday", "Is the meeting on Tuesday?"),
        ("User is allergic to peanuts", "User is allergic to " + MAX_NOTE * "x"),
        ("User is vegetarian", "Anna eats steak every Friday"),
        ("3", "4"),
        ("...", "!"),
    ],
)
def test_what_may_hold_as_well_does_not(old: str, new: str):
    assert not contradict(note_of(old), note_of(new))


def test_most_conflicts_are_found_and_hardly_anything_else():
    """The halves of the benchmark `conflicts`; the one called test was never looked at."""
    found: dict[str, tuple[int, int]] = {}
    for half in ("tune", "test"):
        score = scored([pair for pair in pairs() if pair.half == half])
        assert score["recall"] >= 0.8
        assert score["precision"] >= 0.95
        found[half] = score["found"], score["right"]
    assert found == {"tune": (56, 56), "test": (45, 43)}  # as published


def test_the_pairs_are_two_hundred_of_each_kind():
    kinds = [pair.kind for pair in pairs()]
    assert len(kinds) == 200
    assert min(map(kinds.count, ("contradiction", "change over time", "near miss", "different subject"))) >= 30
    assert scored([]) == {"pairs": 0, "conflicts": 0, "found": 0, "right": 0, "recall": None, "precision": None}


def test_pairs_of_another_format_are_named(tmp_path: Path):
    (tmp_path / "pairs.json").write_text(json.dumps({"old": "a"}))
    with pytest.raises(InvalidInput, match="labelled pairs"):
        pairs(tmp_path / "pairs.json")


def test_of_notes_about_the_same_the_newest_comes_first():
    """Which of them holds is not known, so the model sees which was said later."""
    old = item("The red car needs oil", days=9)
    other = item("Plays chess", days=5)
    new = item("The red car needs water", days=1)
    assert alike_newest_first([old, other, new]) == [new, other, old]
    undated = item("The red car needs air", happened_at=None)
    assert alike_newest_first([undated, old, new]) == [new, old, undated]
    assert new.happened_at is not None
    assert old.happened_at == new.happened_at - timedelta(days=8)
