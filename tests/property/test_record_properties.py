"""Records survive their value, and any value of a store gives a record."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.context.render import render_memories
from inference_core.errors import UnsupportedSchema
from inference_core.memory.namespaces import agent_in
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument, why_invalid
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.stores.indexing.search import Traits

MANY = examples(100)
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MOMENTS = st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
SOURCES = st.builds(
    MemorySource,
    origin=st.sampled_from(Origin),
    thread_id=st.none() | TEXTS,
    message_ids=st.lists(TEXTS, max_size=3).map(tuple),
    tool=st.none() | TEXTS,
)
RECORDS = st.sampled_from(MemoryCategory).flatmap(
    lambda category: st.builds(
        MemoryRecord,
        id=TEXTS,
        content=TEXTS,
        memory_type=st.sampled_from(MemoryType),
        category=st.just(category),
        namespace=st.sampled_from([("u", category.value), ("u", category.value, "agent"), ("u", "memories"), ("u",)]),
        created_at=MOMENTS,
        updated_at=MOMENTS,
        version=st.integers(min_value=0),
        topic=st.none() | TEXTS,
        session_id=st.none() | TEXTS,
        agent_name=st.none() | TEXTS,
        extra_metadata=st.dictionaries(TEXTS, JSON, max_size=3),
        source=SOURCES,
        trust=st.just(Trust.EXTERNAL),  # no source earns less; what it earns is the most that is read
        importance=st.floats(0, 1),
        pinned=st.booleans(),
        tags=st.lists(TEXTS, max_size=3).map(tuple),
        valid_from=st.none() | MOMENTS,
        valid_to=st.none() | MOMENTS,
        expires_at=st.none() | MOMENTS,
        supersedes=st.lists(TEXTS, max_size=3).map(tuple),
        superseded_by=st.none() | TEXTS,
    )
)
FIELDS = sorted(MemoryRecord.__dataclass_fields__.keys() | {"memory_category", "schema_version"})
FOREIGN = st.dictionaries(st.sampled_from(FIELDS) | TEXTS, JSON, max_size=6)


@MANY
@given(RECORDS)
def test_a_record_survives_its_value_as_json(record: MemoryRecord):
    value = json.loads(json.dumps(record.to_value()))
    again = MemoryRecord.from_value(
        value,
        memory_id=record.id,
        namespace=record.namespace,
        stored_at=NOON,
        updated_at=record.updated_at,
        version=record.version,
    )
    owned = replace(record, agent_name=record.agent_name or agent_in(record.namespace))
    assert again == owned
    assert again.to_value() == owned.to_value()
    for now in (NOON, *filter(None, (record.valid_to, record.expires_at))):
        assert Traits(value, NOON).why_invalid(now) == why_invalid(value, now)


@MANY
@given(FOREIGN)
def test_any_value_of_a_store_gives_a_record_that_can_be_shown_and_written(value: dict[str, Any]):
    """A scope may also hold an application's own values; one of them must not break the recall of the others."""
    try:
        record = MemoryRecord.from_value(
            value, memory_id="m", namespace=("u", "semantic"), stored_at=NOON, updated_at=NOON
        )
    except UnsupportedSchema:
        assert "schema_version" in value
        return
    document = MemoryStoreDocument.of(record)
    assert json.loads(json.dumps(document.value))["content"] == record.content
    assert isinstance(record.indexed_text, str)
    assert why_invalid(value, NOON) in (None, "empty", "superseded", "expired")
    assert Traits(value, NOON).why_invalid(NOON) == why_invalid(value, NOON)
    assert "  - [" in render_memories({MemoryCategory.SEMANTIC: [record]}, now=NOON, zone=UTC)
