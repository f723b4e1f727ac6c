"""Reading conversations in LoCoMo's format."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from inference_core.errors import InvalidInput
from inference_core.evaluation.formats import load_locomo
from inference_core.memory.trust import Origin

EXAMPLE = Path(__file__).parents[3] / "examples" / "demo" / "conversation.json"


def written(tmp_path: Path, samples: Any) -> Path:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(samples), encoding="utf-8")
    return path


def test_the_example_conversation_is_whole():
    (conversation,) = load_locomo(EXAMPLE)
    assert len(conversation.turns) == 200
    assert len(conversation.questions) == 10
    assert conversation.dropped_evidence == 0
    assert conversation.turns[0].at == datetime(2026, 2, 3, 18, 40, tzinfo=UTC)
    assert conversation.turns[0].content.startswith("Maren: ")


def test_malformed_evidence_is_read_leniently_and_counted(tmp_path: Path):
    turns = [{"speaker": "A", "dia_id": f"D2:{at}", "text": "hi", "blip_caption": "a boat"} for at in (1, 2)]
    conversation = {"session_2_date_time": "1:05 pm on 4 March, 2025", "session_2": turns, "speaker_a": "A"}
    questions = [
        {"question": "q", "answer": 7, "category": 2, "evidence": ["D2:1; D02:02", "D", "D9:9"]},
        {"question": "r", "category": 5},
    ]
    (loaded,) = load_locomo(written(tmp_path, [{"sample_id": "s", "conversation": conversation, "qa": questions}]))
    assert loaded.questions[0].evidence == ("D2:1", "D2:2")
    assert (loaded.questions[0].answer, loaded.questions[1].answer) == ("7", None)
    assert loaded.dropped_evidence == 2
    assert loaded.turns[1].text == "hi [shares a photo: a boat]"


def test_a_file_may_be_a_single_conversation(tmp_path: Path):
    samples = json.loads((DATA / "evaluation" / "own_in_locomo_format.json").read_text(encoding="utf-8"))
    assert load_locomo(written(tmp_path, samples[0])) == load_locomo(written(tmp_path, samples))[:1]


def test_an_agent_is_known_by_its_name():
    garden, _ = load_locomo(DATA / "evaluation" / "own_in_locomo_format.json")
    assert [turn.origin for turn in garden.turns[:3]] == [Origin.USER, Origin.AGENT, Origin.USER]
    assert [turn.session for turn in garden.turns] == ["session_1"] * 3 + ["session_2"] * 3


def test_the_headline_leaves_out_adversarial_questions_and_keeps_those_without_a_category():
    garden, _ = load_locomo(DATA / "evaluation" / "own_in_locomo_format.json")
    assert [question.category for question in garden.questions] == ["4", "1", "2", "5", "uncategorized", "4", "4"]
    assert [question.in_overall for question in garden.questions] == [True, True, True, False, True, True, True]
    assert [question.names_evidence for question in garden.questions] == [True] * 5 + [False, True]


@pytest.mark.parametrize(
    "samples", [{"a": 1}, [{"sample_id": "s"}], [1], "text", [{"sample_id": "s", "conversation": 5}]]
)
def test_another_format_is_refused(samples: Any, tmp_path: Path):
    with pytest.raises(InvalidInput, match="LoCoMo"):
        load_locomo(written(tmp_path, samples))


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(InvalidInput, match="Cannot read"):
        load_locomo(tmp_path / "none.json")
