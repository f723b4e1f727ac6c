"""Reading chats in BEAM's format."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from inference_core.errors import InvalidInput
from inference_core.evaluation.formats import load_beam
from inference_core.memory.trust import Origin

BEAM = DATA / "evaluation" / "own_in_beam_format"


@pytest.mark.parametrize(
    ("path", "split"),
    [(BEAM, None), (BEAM / "100K", None), (BEAM, "100K"), (BEAM / "100K", "100K")],
)
def test_chats_are_found_in_the_folder_and_in_the_one_above_in_the_order_of_their_numbers(path: Path, split: str):
    assert [chat.id for chat in load_beam(path, split)] == ["100K-2", "100K-10"]


def test_messages_lose_their_marker_and_keep_role_batch_and_day():
    chat = load_beam(BEAM)[0]
    first, reply, second, changed, tests = chat.turns
    assert [turn.id for turn in chat.turns] == ["0", "1", "2", "4", "5"]
    assert first.content == "I am writing a parser for train timetables."
    assert second.content == "The deadline of the parser is in April.\n\nIs that ->-> realistic?"
    assert reply.content == "Start with a grammar -> then a lexer."
    assert (first.origin, reply.origin) == (Origin.USER, Origin.AGENT)
    assert (second.session, changed.session) == ("batch-1", "batch-2")
    assert first.at == second.at == changed.at == datetime(2024, 3, 15, tzinfo=UTC)
    assert tests.at == datetime(2024, 6, 1, tzinfo=UTC)
    assert load_beam(BEAM)[1].turns[0].at is None


def test_evidence_is_read_at_any_depth_and_what_has_no_message_is_counted():
    chat = load_beam(BEAM)[0]
    assert [(question.category, question.evidence, question.names_evidence) for question in chat.questions] == [
        ("abstention", (), False),
        ("event_ordering", ("0", "2", "4"), True),
        ("information_extraction", ("0",), True),
        ("information_extraction", (), True),
        ("knowledge_update", ("2", "4"), True),
    ]
    assert chat.dropped_evidence == 2
    assert [question.answer for question in chat.questions] == [None, None, "train timetables", None, "in June"]
    assert (load_beam(BEAM)[1].questions[0].evidence, load_beam(BEAM)[1].questions[0].answer) == (("0",), "forty")


def test_the_folder_of_one_chat_is_enough_and_questions_are_not_needed_for_its_messages(tmp_path: Path):
    folder = tmp_path / "100K" / "2"
    folder.mkdir(parents=True)
    shutil.copy(BEAM / "100K" / "2" / "chat.json", folder)
    (chat,) = load_beam(folder, with_questions=False)
    assert (chat.id, chat.turns, chat.questions) == ("100K-2", load_beam(BEAM)[0].turns, ())
    with pytest.raises(InvalidInput, match="Cannot read"):
        load_beam(folder)


@pytest.mark.parametrize("split", [None, "1M"])
def test_a_folder_without_chats_is_refused(tmp_path: Path, split: str):
    with pytest.raises(InvalidInput, match="holds no BEAM chats"):
        load_beam(tmp_path, split)
    with pytest.raises(InvalidInput, match="holds no BEAM chats"):
        load_beam(tmp_path / "none", split)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("chat.json", {"a": 1}),
        ("chat.json", [{"batch_number": 1}]),
        ("chat.json", [{"turns": [[{"role": "user", "id": 0}]]}]),
        ("chat.json", [{"turns": [[{"role": "user", "id": 0, "content": 5}]]}]),
        ("probing_questions.json", []),
        ("probing_questions.json", {"abstention": [{"answer": "x"}]}),
        ("probing_questions.json", {"abstention": [{"question": "x", "source_chat_ids": 0.5}]}),
    ],
)
def test_another_format_is_refused(tmp_path: Path, name: str, data: Any):
    chat = tmp_path / "1"
    shutil.copytree(BEAM / "100K" / "2", chat)
    (chat / name).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"{name} is not a .*BEAM"):
        load_beam(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path):
    (tmp_path / "1").mkdir()
    with pytest.raises(InvalidInput, match="Cannot read"):
        load_beam(tmp_path)
