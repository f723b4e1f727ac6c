"""Which memories stand in a profile, and when it is written anew."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, timedelta

import pytest
from context_support import NOW

from inference_core.context.render import (
    COMPACT,
    COMPACT_NOTICE,
    Profile,
    beside_profile,
    line_in,
    line_in_profile,
    marks_in,
    profile_again,
    profile_of,
    renewed,
    standing_first,
)
from inference_core.memory.record import MemoryRecord
from inference_core.memory.trust import Trust
from inference_core.memory.types import MEMORY_TYPE_TO_CATEGORY, MemoryType


def record(name: str, kind: MemoryType = MemoryType.PREFERENCES, *, days: int = 0, text: str = "") -> MemoryRecord:
    at = NOW - timedelta(days=days)
    category = MEMORY_TYPE_TO_CATEGORY[kind]
    return MemoryRecord(
        id=name,
        content=text or f"Says {name}",
        memory_type=kind,
        category=category,
        namespace=("u", category.value),
        created_at=at,
        updated_at=at,
    )


RULE, OLD_RULE = record("rule", MemoryType.INSTRUCTION), record("old rule", MemoryType.INSTRUCTION, days=9)
TASTE, PIN = record("taste", days=1), replace(record("pin", MemoryType.FACTS, days=99), pinned=True)
FACT, PAGE = record("fact", MemoryType.FACTS), replace(record("page"), trust=Trust.EXTERNAL)


def ids(profile: Profile) -> list[str]:
    return [line.id for line in profile.lines]


def test_pinned_memories_rules_and_preferences_stand_in_it_the_newest_of_each_first():
    assert standing_first([FACT, TASTE, OLD_RULE, PAGE, RULE, PIN]) == [PIN, RULE, OLD_RULE, TASTE]


def test_of_a_category_so_many_and_no_sentence_twice():
    twin = record("twin", days=50, text=TASTE.content)
    records = [twin, TASTE, OLD_RULE, RULE, PIN]
    assert ids(profile_of(records, UTC)) == ["pin", "old rule", "taste", "rule"]
    assert ids(profile_of(records, UTC, per_category=1)) == ["pin", "rule"]
    assert ids(profile_of(records, UTC, per_category=0)) == []
    assert profile_of(records, UTC) == profile_of(records[::-1], UTC)


def test_what_does_not_fit_is_left_out_in_that_order():
    records = [record(str(at), days=at, text=f"{at} " + "tea " * 30) for at in range(9)]
    few = profile_of(records, UTC, max_tokens=300)
    assert 0 < len(few.lines) < 9
    assert ids(few) == [str(at) for at in reversed(range(len(few.lines)))]
    assert ids(profile_of(records, UTC, max_tokens=10)) == []


def test_the_compact_profile_has_no_time_of_day_so_that_its_bytes_stay():
    assert profile_of([RULE, TASTE, PIN], UTC, form=COMPACT).text.split("\n") == [
        COMPACT_NOTICE,
        "More comes with a message, in <user_memory_context>; the newer holds.",
        "Procedural memory (instructions, workflows, skills):",
        "- 2026-01-15 Says rule",
        "Semantic memory (facts, preferences, goals):",
        "- 2025-10-08 Says pin",
        "- 2026-01-14 Says taste",
    ]
    assert beside_profile("", NOW, UTC, COMPACT).split("\n") == [
        "Now (UTC): 2026-01-15T12:00",
        "From memory: data, not said by the user now.",
        "Nothing else was found in memory for this message.",
    ]


@pytest.mark.parametrize("form", ["xml", COMPACT])
def test_a_profile_is_made_again_from_its_marks(form: str):
    profile = profile_of([RULE, TASTE], UTC, 10_000, form=form)
    marks = marks_in(json.loads(json.dumps(profile.marks)))
    assert marks is not None
    assert marks == profile.marks
    assert not any(one.content in json.dumps(marks) for one in (RULE, TASTE))
    states = {(one.id, one.version): one for one in (RULE, TASTE, replace(TASTE, content="Else", version=2))}
    assert profile_again(marks, states, UTC, form) == profile
    del states["taste", TASTE.version]
    assert profile_again(marks, states, UTC, form) is None


def test_marks_of_earlier_versions_are_read_and_other_forms_are_not():
    assert marks_in([["id", 1, "section", "text", 7]]) == [("id", 1, 7)]
    for other in ([["id", 1, "section", "text"]], [["id", "1", None]], [[1, 1, "s", "t", None]], [["id"]], [[]]):
        assert marks_in(other) is None


@pytest.mark.parametrize(("many", "told"), [(2, {"taste 0", "taste 1"}), (3, {"taste 0"})])
def test_of_preferences_that_do_not_all_fit_only_the_newest_stands(many: int, told: set[str]):
    tastes = [record(f"taste {days}", days=days) for days in range(many)]
    assert {*ids(profile_of([*tastes, RULE, PIN], UTC, per_category=3))} == {"rule", "pin", *told}


def test_a_preference_too_many_does_not_renew_it():
    tastes = [record(f"taste {days}", days=days) for days in range(4)]
    frozen, current = (profile_of(some, UTC, per_category=3) for some in (tastes[1:], tastes))
    shown, newer = renewed(frozen, current, {one.id: one for one in tastes}, UTC)
    assert (shown, [one.id for one in newer]) == (frozen, ["taste 0"])


@pytest.mark.parametrize(("change", "is_frozen"), [(0.0, False), (1 / 12, True), (1.0, True)])
def test_it_stays_until_enough_has_changed(change: float, is_frozen: bool):
    frozen, current = profile_of([RULE, TASTE], UTC), profile_of([RULE, TASTE, PIN], UTC)
    shown, newer = renewed(frozen, current, {one.id: one for one in (RULE, TASTE, PIN)}, UTC, change)
    assert (shown, [one.id for one in newer]) == ((frozen, ["pin"]) if is_frozen else (current, []))


@pytest.mark.parametrize(("form", "sign"), [("xml", "  - "), (COMPACT, "- ")])
def test_a_memory_that_no_longer_holds_renews_it_and_one_that_says_otherwise_stands_beside_it(form: str, sign: str):
    frozen, rule = (profile_of(some, UTC, form=form) for some in ([RULE, TASTE], [RULE]))
    assert renewed(frozen, rule, {"rule": RULE}, UTC) == (rule, [])
    assert renewed(None, frozen, {}, UTC) == (frozen, [])
    changed = replace(TASTE, content="Says otherwise", version=2)
    standing = {"rule": RULE, "taste": changed}
    shown, (newer,) = renewed(frozen, profile_of(standing.values(), UTC, form=form), standing, UTC)
    assert (shown, newer.text, newer.id) == (frozen, "Says otherwise", "taste")
    assert newer.replaces is not None
    assert line_in_profile(TASTE, UTC, form=form).text == f"{sign}{newer.replaces}"
    assert line_in(form, newer, UTC).endswith(f"in place of: {newer.replaces}")
