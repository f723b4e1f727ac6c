"""Reading saved memories with requests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from inference_core.errors import InvalidInput
from inference_core.evaluation.formats import load_atomic

MEMORY = {"id": "m1", "content": "x", "memory_type": "facts"}


def test_memories_keep_their_type_and_time():
    noor, emil = load_atomic(DATA / "evaluation" / "atomic.json")
    assert [turn.memory_type for turn in noor.turns] == ["facts", "preferences", "instructions"]
    assert [turn.at for turn in noor.turns] == [
        datetime(2025, 1, 6, 14, 47, 58, tzinfo=UTC),
        datetime(2025, 1, 7, 8, tzinfo=UTC),
        None,
    ]
    assert {turn.session for turn in noor.turns} == {None}
    assert emil.turns[0].content == "Emil is training for the Berlin marathon."


def test_requests_have_the_known_ids_once_and_a_kind():
    noor, _ = load_atomic(DATA / "evaluation" / "atomic.json")
    assert [(question.category, question.evidence, question.names_evidence) for question in noor.questions] == [
        ("direct", ("m2",), True),
        ("direct", ("m1",), True),
        ("unclassified", ("m3",), True),
        ("unanswerable", (), False),
    ]
    assert noor.dropped_evidence == 1


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"users": [{"user_id": "u", "memories": []}]},
        {"users": [{"user_id": "u", "memories": [{**MEMORY, "memory_type": "dreams"}], "queries": []}]},
        {"users": [{"user_id": "u", "memories": [{**MEMORY, "created_at": "yesterday"}], "queries": []}]},
        {"users": [{"user_id": "u", "memories": [MEMORY], "queries": [{"query": "x"}]}]},
    ],
)
def test_another_format_is_refused(tmp_path: Path, data: Any):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InvalidInput, match="is not a file of saved memories"):
        load_atomic(path)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '"\ud800'])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "data.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidInput, match=r"data\.json"):
        load_atomic(path)
