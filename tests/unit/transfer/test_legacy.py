"""One flat memory as a record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from migration_support import ROW_TIME, TIMES, TYPES, UNUSABLE, item

from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.memory.record import MemoryRecord
from inference_core.transfer.legacy import (
    NO_CONTENT,
    NOT_AN_OBJECT,
    NOT_STORABLE,
    LegacyItem,
    Unusable,
    is_undated,
    records_of,
)

BUILDER = MemoryNamespaceBuilder()


def record(value: Any, key: str = "m1", builder: MemoryNamespaceBuilder = BUILDER, **fields: Any) -> MemoryRecord:
    (made,) = records_of(item(value, key, **fields), builder, 8_192)
    return made


def test_all_that_a_flat_memory_knows_is_kept():
    value = {
        "content": "Lives in Warsaw",
        "memory_type": "facts",
        "session_id": "s1",
        "topic": "home",
        "extra_metadata": {"a": [1]},
        "created_at": "2025-01-15T10:30:00",
    }
    made = record(value)
    assert (made.id, made.content, made.memory_type.value, made.namespace) == (
        "m1",
        "Lives in Warsaw",
        "facts",
        ("ada", "semantic"),
    )
    assert (made.session_id, made.topic, made.extra_metadata) == ("s1", "home", {"a": [1]})
    assert (made.created_at, made.updated_at) == (TIMES[0][1], ROW_TIME)
    assert (made.agent_name, made.expires_at) == (None, None)


@pytest.mark.parametrize(("kind", "category"), TYPES)
def test_each_type_goes_to_its_category(kind: str | None, category: str):
    assert record({"content": "x", "memory_type": kind}).namespace == ("ada", category)


def test_an_explicit_category_wins_over_the_type():
    made = record({"content": "x", "memory_type": "facts", "memory_category": "episodic"})
    assert (made.namespace, made.memory_type.value) == (("ada", "episodic"), "facts")


def test_an_agent_gets_what_is_not_shared():
    agent = MemoryNamespaceBuilder(agent_name="v1.5")
    skill = record({"content": "x", "memory_type": "skill"}, builder=agent)
    assert (skill.namespace, skill.agent_name) == (("ada", "procedural", "~v1~2e5"), "v1.5")
    assert record({"content": "x"}, builder=agent).namespace == ("ada", "semantic")


@pytest.mark.parametrize(("found", "expected"), TIMES)
def test_times_of_all_forms_are_read(found: Any, expected: object):
    assert record({"content": "x", "created_at": found}).created_at == expected


@pytest.mark.parametrize("time", [None, "Jan 15, 2025", "", {"t": 1}, 1e30, True])
def test_without_a_time_that_can_be_read_it_is_of_now(time: Any):
    """It was of 1970, so that a memory of last week was the oldest of all."""
    before = datetime.now(UTC)
    item = LegacyItem(user_id="ada", key="m1", value={"content": "x", "created_at": time})
    (made,) = records_of(item, BUILDER, 9)
    assert before <= made.created_at <= datetime.now(UTC)
    assert (is_undated(item), made.updated_at) == (True, made.created_at)


@pytest.mark.parametrize("time", ["2025-01-15", 1736937000, "1736937000", "1736937000.5", 1736937000000])
def test_times_are_read_as_text_and_as_numbers(time: Any):
    item = LegacyItem(user_id="ada", key="m1", value={"content": "x", "created_at": time})
    (made,) = records_of(item, BUILDER, 9)
    assert (is_undated(item), f"{made.created_at:%Y-%m-%d}") == (False, "2025-01-15")


def test_what_has_no_place_is_kept_under_legacy():
    value = {
        "content": "x",
        "memory_type": "mood",
        "memory_category": ["odd"],
        "topic": "t" * 600,
        "session_id": 7,
        "extra_metadata": "a note",
        "created_at": "soon",
        "agent_name": "old",
        "colour": "red",
        "blank": "",
        "nothing": None,
    }
    made = record(value)
    kept = {name: found for name, found in value.items() if name not in {"content", "blank", "nothing"}}
    assert made.extra_metadata == {"legacy": kept}
    assert (made.memory_type.value, made.topic, made.session_id) == ("general", None, None)


def test_metadata_called_legacy_is_not_replaced():
    made = record({"content": "x", "colour": "red", "extra_metadata": {"legacy": 1, "b": 2}})
    assert made.extra_metadata == {"legacy": {"colour": "red", "legacy": 1}, "b": 2}


def test_an_id_that_no_tool_could_name_is_hashed_and_kept():
    made = record({"content": "x"}, key="my <memory>")
    assert (len(made.id), made.extra_metadata) == (32, {"legacy": {"id": "my <memory>"}})
    assert record({"content": "y"}, key="my <memory>").id == made.id
    assert record({"content": "x"}, key="my  <memory>").id != made.id


@pytest.mark.parametrize("value", UNUSABLE)
def test_what_cannot_be_stored_says_why(value: Any):
    with pytest.raises(Unusable) as refused:
        record(value)
    assert refused.value.reason in {NO_CONTENT, NOT_AN_OBJECT, NOT_STORABLE}
    assert str(refused.value)


def test_a_fault_of_the_source_and_an_impossible_user_are_refused():
    with pytest.raises(Unusable, match="too odd"):
        record({"content": "x"}, fault="too odd")
    with pytest.raises(Unusable, match="user_id must have"):
        record({"content": "x"}, user_id="x" * 600)
    with pytest.raises(Unusable, match="surrogate"):
        record({"content": "x"}, key="half \ud800")
