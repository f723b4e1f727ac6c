"""What values mean in whatever form a model gives them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from extraction_support import NOW, OSLO, extraction, memories, only, said

from inference_core.ingestion.extraction.schema import TYPES, end_of, folded, plain_text, share_of, start_of
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import Entity, Relation

DOG = "The user has a dog called Rex"


@pytest.mark.parametrize(
    ("value", "share"),
    [
        *((0.8, 0.8), (1, 1.0), (0, 0.0), (8, 0.8), (80, 0.8), (500, 1.0), (-3, 0.0), (10**400, 1.0)),
        *(("0.8", 0.8), ("0,8", 0.8), ("80 %", 0.8), ("8", 0.8), ("High", 0.8)),
        *(("medium", 0.5), ("very low", 0.1), ("nan", None), ("", None), ("+", None), ("important!", None)),
        *((math.nan, None), (math.inf, None), (-math.inf, None), (True, None), (None, None), ([1], None)),
    ],
    ids=str,
)
def test_shares(value: Any, share: float | None):
    assert share_of(value) == share


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-01-10", date(2026, 1, 10), date(2026, 1, 11)),
        ("2026-12", date(2026, 12, 1), date(2027, 1, 1)),
        ("2026-02", date(2026, 2, 1), date(2026, 3, 1)),
        ("2025", date(2025, 1, 1), date(2026, 1, 1)),
        ("yesterday", date(2026, 1, 14), date(2026, 1, 15)),
        ("last week", date(2026, 1, 5), date(2026, 1, 12)),
        ("May 2025", date(2025, 5, 1), date(2025, 6, 1)),
    ],
)
def test_days_are_those_of_the_user(text: str, first: date, last: date):
    expected = [datetime(day.year, day.month, day.day, tzinfo=OSLO) for day in (first, last)]
    assert [start_of(text, NOW, OSLO), end_of(text, NOW, OSLO)] == expected
    assert getattr(start_of(text, NOW, OSLO), "tzinfo", None) is UTC


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-10T10:00", datetime(2026, 1, 10, 9, tzinfo=UTC)),
        ("2026-01-10T10:00:00Z", datetime(2026, 1, 10, 10, tzinfo=UTC)),
        (" 2026-01-10 10:00+05:00 ", datetime(2026, 1, 10, 5, tzinfo=UTC)),
        ("2024-13-45", None),
        ("9999", None),
        ("9999-12-31", None),
        ("0001-01-01", None),
        ("0001-01-01T00:00+14:00", None),
        ("0000", None),
        ("soon", None),
        ("x" * 100, None),
        (5, None),
        ({"day": 1}, None),
        (None, None),
    ],
)
def test_instants(text: Any, expected: datetime | None):
    assert start_of(text, NOW, OSLO) == expected
    assert end_of(text, NOW, OSLO) == expected


def test_words_for_a_time_are_those_of_the_message():
    messages = [said("Hi"), said("I ran yesterday", at=datetime(2024, 5, 3, 1, tzinfo=UTC))]
    entry = {"content": "The user ran", "happened_at": "yesterday", "sources": ["m2"]}
    found = only(memories(entry), messages=messages, zone=ZoneInfo("America/New_York"))
    assert found.valid_from == datetime(2024, 5, 1, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("end", "problem"),
    [("2026-01-01", "memory 1 ends before it begins"), ("sometime", "memory 1 has no readable time: 'sometime'")],
)
def test_an_end_that_makes_no_sense_is_left_out(end: str, problem: str):
    given = extraction(memories({"content": DOG, "happened_at": "2026-02", "valid_to": end}))
    assert given.candidates[0].valid_to is None
    assert given.problems == (problem,)


@pytest.mark.parametrize("word", ["null", "None", "unknown", ""])
def test_words_for_no_time_are_no_problem(word: str):
    assert extraction(memories({"content": DOG, "happened_at": word})).problems == ()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        *(("fact", "facts"), ("FACTS", "facts"), ("Preference", "preferences"), ("goal", "goals"), ("skills", "skill")),
        *(("Workflows", "workflow"), ("instruction", "instructions"), ("interactions", "interaction")),
        *(("session_summary", "context"), ("semantic", "facts"), ("idea", "goals"), ("MemoryType.FACTS", "general")),
        *(("no such", "general"), (None, "facts"), (7, "general"), (["goals"], "general")),
    ],
    ids=str,
)
def test_types(given: Any, kind: str):
    assert only(memories({"content": DOG, "type": given}), messages=(said(DOG),)).memory_type.value == kind


def test_a_category_is_a_type_and_all_types_have_names():
    assert only(memories({"content": DOG, "category": "episodic"})).memory_type is MemoryType.INTERACTION
    assert {TYPES[folded(kind.value)] for kind in MemoryType if kind is not MemoryType.SESSION_SUMMARY} <= {*MemoryType}
    assert TYPES["sessionsummary"] is MemoryType.CONTEXT


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ("open", "open"),
        ("In progress", "open"),
        ("COMPLETED", "done"),
        ("cancelled", "dropped"),
        ("?", None),
        ([], None),
    ],
)
def test_states(given: Any, state: str | None):
    assert only(memories({"content": DOG, "type": "goals", "state": given})).state == state


@pytest.mark.parametrize(
    ("given", "tags"),
    [
        (["a", "A", " b  c ", "", "x" * 200, "\x00", None, 5], ("A", "b c", "5")),
        ("a, b,,c", ("a", "b", "c")),
        ([{"name": "a"}, {"x": 1}, ["b"]], ("a",)),
        (list("abcdefghijk"), tuple("abcdefgh")),
        (None, ()),
        ({"a": 1}, ()),
        (10**400, ()),
    ],
    ids=["mixed", "text", "objects", "many", "none", "object", "huge"],
)
def test_tags(given: Any, tags: tuple[str, ...]):
    assert only(memories({"content": DOG, "tags": given})).tags == tags


def test_a_topic_is_a_short_text():
    entries = [
        {"content": str(n) * 3, "topic": topic} for n, topic in enumerate([" a\n b ", "x" * 101, "\x01", 5, None])
    ]
    assert [one.topic for one in extraction(memories(*entries)).candidates] == ["a b", None, None, None, None]


def test_entities_and_relations_in_many_forms():
    entry = {
        "content": DOG,
        "entities": [
            "Rex",
            {"Entity": "ACME", "Type": "Company"},
            {"kind": "person"},
            {"name": "Bo", "kind": "x"},
            5,
            [],
        ],
        "relations": [
            {"subject": "Ada", "predicate": "owns", "object": "rex"},
            ["Ada", "works_at", "ACME"],
            ["Ada", "works_at", "ACME"],
            {"source": "Ada", "name": "knows"},
            ["Ada", "knows"],
            "Ada knows Bo",
        ],
    }
    found = only(memories(entry))
    kinds = {"Rex": "thing", "ACME": "organization", "Bo": "thing", "Ada": "thing"}
    assert found.entities == tuple(Entity(name, kind) for name, kind in kinds.items())
    assert found.relations == (Relation("Ada", "owns", "rex"), Relation("Ada", "works_at", "ACME"))


def test_relations_have_no_ends_for_which_there_is_no_room():
    entry = {
        "content": DOG,
        "entities": [f"e{number}" for number in range(50)],
        "relations": [["e1", "r", "e2"], ["e1", "r", "elsewhere"]],
    }
    found = only(memories(entry))
    assert len(found.entities) == 12
    assert found.relations == (Relation("e1", "r", "e2"),)


@pytest.mark.parametrize("name", ["m2", "M2", "2", 2, "[m2]", "msg_2", "message 2", "<m2>"])
def test_messages_may_be_named_in_many_ways(name: Any):
    found = only(memories({"content": DOG, "sources": [name, name]}), messages=[said("a"), said("b")])
    assert found.message_ids == ("id-b",)


@pytest.mark.parametrize("name", ["m3", "k1", "id-a", "m0", "\u0662", "m1x", "-1"])
def test_messages_that_are_not_there_are_dropped_and_noted(name: str):
    given = extraction(memories({"content": DOG, "sources": ["m1", name]}), messages=[said("a"), said("b")])
    assert given.candidates[0].message_ids == ("id-a",)
    assert given.problems == (f"memory 1 names a message that is not there: {name!r}",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("x" * 2_001, "memory 1 has 2001 characters and was left out: " + "x" * 60 + "…"),
        (" none ", "memory 1 says nothing"),
        ("\x01\x02", "memory 1 content is empty"),
    ],
    ids=["long", "nothing", "controls"],
)
def test_contents_that_are_none(content: str, problem: str):
    given = extraction(memories(content, DOG))
    assert ([one.content for one in given.candidates], given.problems) == ([DOG], (problem,))


def test_an_unreadable_importance_is_the_usual_one_and_noted():
    given = extraction(memories({"content": DOG, "importance": "very"}))
    assert given.candidates[0].importance == DEFAULT_IMPORTANCE
    assert given.problems == ("memory 1 has no readable importance: 'very'",)


def test_plain_text_is_text_and_numbers():
    assert [plain_text(value) for value in ("a", 1, 2.5, 10**400, None, [], {})] == ["a", "1", "2.5", "", "", "", ""]
