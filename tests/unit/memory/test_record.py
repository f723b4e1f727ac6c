"""MemoryRecord: to and from the value that stores hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from inference_core.errors import UnsupportedSchema
from inference_core.memory.record import (
    MAX_NAMES,
    SCHEMA_VERSION,
    WOULD_END,
    MemoryRecord,
    ended,
    entities_of,
    neighbours_of,
    tags_of,
    why_invalid,
)
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.memory.types import SINGULAR_TYPES, MemoryCategory, MemoryType

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLAIN = MemoryRecord(
    id="m1",
    content="Likes tea",
    memory_type=MemoryType.PREFERENCES,
    category=MemoryCategory.SEMANTIC,
    namespace=("u1", "semantic"),
    created_at=NOON,
    updated_at=NOON,
)
RULE = MemoryRecord(
    id="m2",
    content="Run the tests first",
    memory_type=MemoryType.INSTRUCTION,
    category=MemoryCategory.PROCEDURAL,
    namespace=("u1", "procedural", "planner"),
    created_at=NOON,
    updated_at=NOON + HOUR,
    version=3,
    topic="work",
    session_id="s1",
    agent_name="planner",
    extra_metadata={"k": [1, None]},
    source=MemorySource(origin=Origin.AGENT, thread_id="t", message_ids=("a", "b"), tool="save"),
    trust=Trust.INFERRED,
    importance=0.9,
    pinned=True,
    tags=("x", "y"),
    valid_from=NOON - HOUR,
    valid_to=NOON + HOUR,
    expires_at=NOON + 2 * HOUR,
    supersedes=("m0",),
    superseded_by="m3",
)


def _read(value: dict[str, Any], namespace: tuple[str, ...] = ("u1", "semantic")) -> MemoryRecord:
    return MemoryRecord.from_value(value, memory_id="m1", namespace=namespace, stored_at=NOON, updated_at=NOON)


@pytest.mark.parametrize("record", [PLAIN, RULE], ids=["plain", "everything set"])
def test_a_record_survives_a_round_trip(record: MemoryRecord):
    again = MemoryRecord.from_value(
        record.to_value(),
        memory_id=record.id,
        namespace=record.namespace,
        stored_at=datetime(2000, 1, 1, tzinfo=UTC),
        updated_at=record.updated_at,
        version=record.version,
    )
    assert again == record


def test_the_value_of_a_plain_record_holds_the_documented_fields():
    assert PLAIN.to_value() == {
        "content": "Likes tea",
        "memory_type": "preferences",
        "memory_category": "semantic",
        "session_id": None,
        "topic": None,
        "agent_name": None,
        "extra_metadata": {},
        "created_at": "2026-01-15T12:00:00+00:00",
        "source": {"origin": "application"},
        "trust": 2,
        "schema_version": SCHEMA_VERSION,
    }


def test_the_value_holds_what_is_unusual_only_if_it_is_set():
    unusual = RULE.to_value().keys() - PLAIN.to_value().keys()
    assert unusual == {
        "valid_from",
        "valid_to",
        "expires_at",
        "importance",
        "pinned",
        "tags",
        "supersedes",
        "superseded_by",
    }


def test_the_value_shares_no_metadata_with_the_record():
    record = replace(PLAIN, extra_metadata={"k": 1})
    record.to_value()["extra_metadata"]["k"] = 2
    assert record.extra_metadata == {"k": 1}


def test_a_memory_happened_when_it_became_valid_else_when_it_was_stored():
    assert RULE.happened_at == NOON - HOUR
    assert PLAIN.happened_at == NOON


def test_topic_and_content_are_searched():
    assert RULE.indexed_text == "work: Run the tests first"
    assert PLAIN.indexed_text == "Likes tea"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"superseded_by": "m9"}, "superseded"),
        ({"valid_to": NOON}, "expired"),
        ({"valid_to": NOON + HOUR}, None),
        ({"expires_at": NOON}, "expired"),
        ({"expires_at": NOON + HOUR}, None),
        ({"expires_at": NOON + HOUR, "valid_to": NOON - HOUR}, "expired"),
        ({"valid_from": NOON + HOUR}, None),
        ({"content": ""}, "empty"),
    ],
)
def test_a_memory_holds_until_it_ends_or_is_superseded(changes: dict[str, Any], reason: str | None):
    assert why_invalid(replace(PLAIN, **changes).to_value(), NOON) == reason


@pytest.mark.parametrize(("old", "new"), SINGULAR_TYPES.items())
def test_a_singular_type_of_old_data_is_read_as_the_plural_one(old: str, new: str):
    record = _read({"content": "x", "memory_type": old}, ("u1", "memories"))
    assert record.memory_type is MemoryType(new)


@pytest.mark.parametrize("name", [None, "", "mood", 7, ["facts"]])
def test_an_unknown_type_is_read_as_general(name: Any):
    assert _read({"content": "x", "memory_type": name}).memory_type is MemoryType.GENERAL


@pytest.mark.parametrize(
    ("namespace", "stored", "category"),
    [
        (("u1", "episodic"), "procedural", "episodic"),
        (("u1", "procedural", "planner"), None, "procedural"),
        (("u1", "memories"), "episodic", "episodic"),
        (("u1", "memories"), None, "procedural"),
        (("u1", "memories"), "nonsense", "procedural"),
        (("u1",), None, "procedural"),
        ((), "semantic", "semantic"),
    ],
)
def test_the_category_is_the_namespaces_else_the_stored_one_else_the_types(
    namespace: tuple[str, ...], stored: str | None, category: str
):
    value = {"content": "x", "memory_type": "skill"} | ({"memory_category": stored} if stored else {})
    assert _read(value, namespace).category is MemoryCategory(category)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-05-01T10:00:00", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ("2024-05-01T10:00:00Z", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ("2024-05-01T10:00:00+02:00", datetime(2024, 5, 1, 8, tzinfo=UTC)),
        ("2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
        ("yesterday", NOON),
        ("0001-01-01T00:00:00+14:00", NOON),
        ("9999-12-31T23:59:59-12:00", NOON),
        ("", NOON),
        (1714557600, NOON),
        (None, NOON),
    ],
)
def test_a_creation_time_is_read_in_utc_and_a_bad_one_replaced_by_the_rows(text: object, moment: datetime):
    record = _read({"content": "x", "created_at": text})
    assert record.created_at == moment
    assert record.created_at.tzinfo is UTC


@pytest.mark.parametrize("field", ["valid_from", "valid_to", "expires_at"])
def test_a_bad_bound_is_no_bound(field: str):
    assert getattr(_read({"content": "x", field: "soon"}), field) is None
    assert getattr(_read({"content": "x", field: "2024-05-01T10:00:00"}), field) == datetime(2024, 5, 1, 10, tzinfo=UTC)


def test_the_rows_times_are_read_in_utc():
    warsaw = timezone(HOUR)
    record = MemoryRecord.from_value(
        {},
        memory_id="m",
        namespace=(),
        stored_at=NOON.replace(tzinfo=None),
        updated_at=(NOON + HOUR).astimezone(warsaw),
    )
    assert (record.created_at, record.updated_at) == (NOON, NOON + HOUR)
    assert record.created_at.tzinfo is record.updated_at.tzinfo is UTC


def test_an_empty_value_of_old_data_is_read_with_defaults():
    record = _read({})
    assert record == replace(PLAIN, content="", memory_type=MemoryType.GENERAL)


def test_trust_is_never_above_the_source():
    """Guards trust: another program's row that names the web and claims the user's trust was told unmarked."""
    assert _read({"source": {"origin": "web"}}).trust is Trust.EXTERNAL
    assert _read({"source": {"origin": "web"}, "trust": 2}).trust is Trust.EXTERNAL
    assert _read({"source": {"origin": "user"}, "trust": 1}).trust is Trust.INFERRED


@pytest.mark.parametrize(
    "field", ["topic", "session_id", "agent_name", "superseded_by", "tags", "supersedes", "source"]
)
@pytest.mark.parametrize("garbage", [None, 7, True, {}, [5, None]], ids=str)
def test_garbage_in_a_field_is_taken_for_nothing(field: str, garbage: object):
    assert _read({"content": "x", field: garbage}) == _read({"content": "x"})


@pytest.mark.parametrize(
    ("field", "garbage"),
    [
        ("content", 7),
        ("extra_metadata", [["a", 1]]),
        ("trust", 9),
        ("trust", True),
        ("trust", [2]),
        ("importance", "high"),
        ("importance", 2),
        ("importance", True),
        ("pinned", "no"),
        ("memory_category", ["semantic"]),
        ("source", {"origin": "application", "message_ids": "abc", "tool": 5, "thread_id": []}),
    ],
)
def test_a_field_of_another_kind_is_taken_for_nothing(field: str, garbage: object):
    assert _read({field: garbage}) == _read({})


def test_the_texts_of_a_list_are_read():
    assert _read({"tags": ["a", 5, None, "b"], "supersedes": ("c",)}).tags == ("a", "b")


@pytest.mark.parametrize("version", [0, 1, SCHEMA_VERSION])
def test_values_up_to_this_schema_are_read(version: int):
    assert _read({"content": "x", "schema_version": version}).content == "x"


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 10**30, "1", 1.0, None])
def test_the_value_of_a_newer_schema_is_refused(version: object):
    found = version if isinstance(version, int) else "that is no number"
    with pytest.raises(UnsupportedSchema, match=f"schema version {found}; .* Update the package"):
        _read({"content": "x", "schema_version": version})


NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    """So many days from now."""
    return NOW + timedelta(days=number)


def value(**fields: Any) -> dict[str, Any]:
    """A stored memory of ten days ago."""
    given = {"content": "Lives in Lisbon", "created_at": day(-10), **fields}
    return {name: one.isoformat() if isinstance(one, datetime) else one for name, one in given.items()}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"content": ""}, "empty"),
        ({"content": 7}, "empty"),
        ({"superseded_by": "other"}, "superseded"),
        ({"superseded_by": ""}, None),
        ({"valid_to": NOW}, "expired"),
        ({"valid_to": day(1)}, None),
        ({"valid_to": "nonsense"}, None),
        ({"expires_at": day(-1)}, "expired"),
        ({"expires_at": day(1), "valid_to": day(-1)}, "expired"),
        ({"expires_at": day(1)}, None),
        ({"valid_from": day(1)}, None),
    ],
    ids=range(12),
)
def test_what_holds_now(fields: dict[str, Any], reason: str | None):
    assert why_invalid(value(**fields), NOW) == reason


@pytest.mark.parametrize(
    ("fields", "at", "reason"),
    [
        ({}, day(-5), None),
        ({}, day(-10), None),
        ({}, day(-11), "later"),
        ({"valid_from": day(-20)}, day(-11), None),
        ({"valid_from": day(-3)}, day(-5), "later"),
        ({"content": ""}, day(-5), "empty"),
        ({"valid_to": day(-3), "superseded_by": "other"}, day(-5), None),
        ({"valid_to": day(-3), "superseded_by": "other"}, day(-3), "over"),
        ({"valid_to": day(-3)}, day(-1), "over"),
        ({"valid_to": day(3)}, day(-1), None),
        ({"superseded_by": "other"}, day(-5), "superseded"),
        ({"expires_at": day(-1)}, day(-5), "expired"),
        ({"expires_at": day(1)}, day(-5), None),
        ({"created_at": None}, day(-99), None),
        ({"valid_to": day(-3)}, day(5), "over"),
    ],
    ids=range(15),
)
def test_what_held_then(fields: dict[str, Any], at: datetime, reason: str | None):
    assert why_invalid(value(**fields), NOW, at) == reason


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"entities": ["Ida", {"name": "Max", "kind": "person"}]}, ["Ida", "Max"]),
        ({"relations": [["Ida", "sister_of", "Max"]]}, ["Ida", "Max"]),
        ({"entities": ["", "x" * 65, 7, None, {"name": 7}, {}, ["Ida"]]}, []),
        ({"entities": "Ida", "relations": {"Ida": "Max"}}, []),
        ({"relations": [["Ida", "Max"], "Ida", ["a", 7, "b", "c"]]}, ["a", "c"]),
        ({"entities": [f"n{number}" for number in range(99)]}, [f"n{number}" for number in range(MAX_NAMES)]),
        ("nonsense", []),
    ],
    ids=["entities", "relations", "no_names", "other_kinds", "other_lengths", "many", "no_metadata"],
)
def test_entities_are_read_with_patience(metadata: Any, names: list[str]):
    assert entities_of({"extra_metadata": metadata}) == names


def test_tags_and_neighbours():
    assert tags_of({"tags": ["work", 7, ""]}) == ["work"]
    assert neighbours_of({"supersedes": ["a", 7], "superseded_by": "b"}) == ["b", "a"]
    assert neighbours_of({"superseded_by": ""}) == []


@pytest.mark.parametrize(
    ("said", "stored", "end"),
    [
        (NOON + HOUR, NOON + 2 * HOUR, NOON + HOUR),
        (NOON - HOUR, NOON + 2 * HOUR, NOON),  # never before it began
        (NOON + 9 * HOUR, NOON + 2 * HOUR, NOON + 2 * HOUR),  # what holds from tomorrow on replaces it today
    ],
    ids=["then", "earlier", "in_future"],
)
def test_a_superseded_memory_holds_until_the_newer_one_does(said: datetime, stored: datetime, end: datetime):
    new = replace(PLAIN, id="m9", valid_from=said, created_at=stored)
    old = ended(PLAIN, new)
    assert (old.valid_to, old.superseded_by, old.updated_at) == (end, "m9", stored)
    assert old == replace(PLAIN, valid_to=end, superseded_by="m9", updated_at=stored)


def test_a_superseded_memory_keeps_when_it_would_have_ended_and_may_name_another_successor():
    limited = replace(PLAIN, valid_to=NOON + 9 * HOUR, extra_metadata={"city": "Rome"})
    old = ended(limited, replace(PLAIN, id="m9", created_at=NOON + HOUR), "m5")
    assert (old.valid_to, old.superseded_by) == (NOON + HOUR, "m5")
    assert old.extra_metadata == {"city": "Rome", WOULD_END: (NOON + 9 * HOUR).isoformat()}
