"""Data sets by name, and their splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import DATA

from inference_core.errors import InvalidInput
from inference_core.evaluation import DATASETS
from inference_core.evaluation.formats import load_dataset, load_transcript
from inference_core.ingestion.messages import Role

FOLDER = DATA / "evaluation"
PATHS = {
    "locomo": FOLDER / "own_in_locomo_format.json",
    "beam": FOLDER / "own_in_beam_format",
    "atomic": FOLDER / "atomic.json",
}
NAMES = {"locomo": ["garden", "choir"], "beam": ["100K-2", "100K-10"], "atomic": ["noor", "emil"]}


def ids(name: str, split: str, limit: int | None = None, path: Path | None = None) -> list[str]:
    return [one.id for one in load_dataset(name, path or PATHS[name], split, limit)]


@pytest.mark.parametrize("name", DATASETS)
def test_halves_are_by_order_and_complete(name: str):
    assert ids(name, "all") == NAMES[name]
    assert ids(name, "first-half") == NAMES[name][:1]
    assert ids(name, "second-half") == NAMES[name][1:]
    assert ids(name, "all", limit=1) == NAMES[name][:1]


def test_the_first_half_has_the_odd_one(tmp_path: Path):
    users = json.loads(PATHS["atomic"].read_text(encoding="utf-8"))["users"]
    path = tmp_path / "three.json"
    path.write_text(json.dumps({"users": [*users, {**users[1], "user_id": "third"}]}), encoding="utf-8")
    assert ids("atomic", "first-half", path=path) == ["noor", "emil"]
    assert ids("atomic", "second-half", path=path) == ["third"]


def test_another_split_is_a_folder_of_beam_alone():
    assert ids("beam", "100K") == NAMES["beam"]
    with pytest.raises(InvalidInput, match="holds no BEAM chats"):
        ids("beam", "1M")
    with pytest.raises(InvalidInput, match="Unknown split '100K' of locomo"):
        ids("locomo", "100K")


def test_unknown_and_empty_data_sets_are_refused(tmp_path: Path):
    with pytest.raises(InvalidInput, match="Unknown data set 'squad'; known: locomo"):
        load_dataset("squad", tmp_path)
    path = tmp_path / "empty.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(InvalidInput, match="holds no questions"):
        load_dataset("locomo", path)


def test_conversations_are_also_messages_to_ingest_with_sessions_of_their_own():
    transcript = load_transcript("locomo", PATHS["locomo"])
    messages = list(transcript.messages)
    assert (transcript.total, len(messages), transcript.skipped) == (8, 8, {})
    assert (messages[0].id, messages[0].session_id, messages[0].author) == ("D1:1", "garden/session_1", "Ines")
    assert [one.role for one in messages[:2]] == [Role.USER, Role.ASSISTANT]
    assert {one.session_id for one in load_transcript("beam", PATHS["beam"]).messages} == {
        "100K-2/batch-1",
        "100K-2/batch-2",
        "100K-10/batch-1",
    }


def test_messages_of_an_unknown_format_are_refused():
    with pytest.raises(InvalidInput, match="Unknown format 'atomic'; known: locomo, beam, messages"):
        load_transcript("atomic", PATHS["atomic"])
