"""MemoryStoreDocument and the flat data classes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from inference_core.memory.record import MemoryData, MemoryMetadata, MemoryRecord, MemoryStoreDocument
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryCategory, MemoryType, get_category_for_type

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
EVENING = datetime(2026, 1, 15, 20, 30, tzinfo=UTC)


def _document(value: dict[str, Any]) -> MemoryStoreDocument:
    return MemoryStoreDocument(id="m1", value=value, metadata={})


def test_the_document_of_a_record_shows_its_fields():
    record = MemoryRecord(
        id="m1",
        content="Run the tests",
        memory_type=MemoryType.INSTRUCTION,
        category=MemoryCategory.PROCEDURAL,
        namespace=("u1", "procedural"),
        created_at=NOON,
        updated_at=EVENING,
        topic="work",
        tags=("ci",),
        importance=0.8,
        pinned=True,
        source=MemorySource(origin=Origin.USER, thread_id="monday"),
        extra_metadata={"k": 1},
    )
    document = MemoryStoreDocument.of(record, 0.75)
    assert (document.id, document.score) == ("m1", 0.75)
    assert document.value == record.to_value()
    assert document.metadata == {"k": 1}
    assert (document.content, document.topic) == ("Run the tests", "work")
    assert (document.memory_type, document.memory_category) == ("instructions", "procedural")
    assert (document.tags, document.importance, document.pinned) == (["ci"], 0.8, True)
    assert document.source == MemorySource(origin=Origin.USER, thread_id="monday")
    assert (document.created_at, document.updated_at) == (NOON, EVENING)
    assert document.created_at_iso == "2026-01-15T12:00:00+00:00"
    assert document.updated_at_iso == "2026-01-15T20:30:00+00:00"
    assert MemoryStoreDocument.of(record).score is None
    document.metadata["k"] = 2
    assert record.extra_metadata == {"k": 1}


def test_a_document_without_fields_shows_none():
    document = _document({})
    assert document.content == ""
    shown = (document.topic, document.memory_type, document.memory_category)
    assert (*shown, document.created_at_iso, document.updated_at_iso, document.score) == (None,) * 6
    assert (document.tags, document.importance, document.pinned, document.source) == ([], 0.5, False, MemorySource())


@pytest.mark.parametrize("kind", list(MemoryType))
def test_the_category_of_old_data_follows_from_its_type(kind: MemoryType):
    assert _document({"memory_type": kind.value}).memory_category == get_category_for_type(kind.value).value
    assert _document({"memory_type": kind.value, "memory_category": "episodic"}).memory_category == "episodic"


def test_memory_data_takes_its_category_from_its_type():
    assert MemoryData(content="x", memory_type="skill").memory_category == "procedural"
    assert MemoryData(content="x", memory_type="skill", memory_category="episodic").memory_category == "episodic"


@pytest.mark.parametrize("make", [lambda: MemoryData("x", "facts"), lambda: MemoryMetadata("u1")])
def test_the_flat_classes_are_dated_now_in_utc(make: Any):
    before = datetime.now(UTC)
    created = datetime.fromisoformat(make().created_at)
    assert before <= created <= datetime.now(UTC)
    assert created.tzinfo is UTC


def test_metadata_is_flattened_without_empty_fields():
    flat = MemoryMetadata(user_id="u1", created_at="2026-01-15", topic="", session_id="s1", extra={"k": 1}).to_dict()
    assert flat == {
        "user_id": "u1",
        "memory_type": "general",
        "memory_category": "semantic",
        "created_at": "2026-01-15",
        "session_id": "s1",
        "k": 1,
    }


def test_extra_metadata_never_replaces_a_field():
    flat = MemoryMetadata(user_id="u1", extra={"user_id": "u2", "memory_type": "skill", "topic": "x"}).to_dict()
    assert (flat["user_id"], flat["memory_type"], flat["topic"]) == ("u1", "general", "x")
