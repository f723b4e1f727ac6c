"""Reading the data sets: by name and split, and each format with its oddities."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import DATA

from inference_core.errors import InvalidInput
from inference_core.evaluation import DATASETS
from inference_core.evaluation.formats import load_atomic, load_beam, load_dataset, load_locomo, load_transcript
from inference_core.memory.trust import Origin
from inference_core.outbox.messages import Role

FOLDER = DATA / "evaluation"
PATHS = {
    "locomo": FOLDER / "own_in_locomo_format.json",
    "beam": FOLDER / "own_in_beam_format",
    "atomic": FOLDER / "atomic.json",
}
NAMES = {"locomo": ["garden", "choir"], "beam": ["100K-2", "100K-10"], "atomic": ["noor", "emil"]}


def ids(name: str, split: str, limit: int | None = None, path: Path | None = None) -> list[str]:
    return [one.id for one in load_dataset(name, path or PATHS[name], split, limit)]


EXAMPLE = Path(__file__).parents[3] / "examples" / "demo" / "conversation.json"
MEMORY = {"id": "m1", "content": "x", "memory_type": "facts"}


def written(tmp_path: Path, samples: Any) -> Path:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(samples), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", DATASETS)
def test_halves_are_by_order_and_complete(name: str):
    assert ids(name, "all") == NAMES[name]
    assert ids(name, "first-half") == NAMES[name][:1]
    assert ids(name, "second-half") == NAMES[name][1:]
    assert ids(name, "all", limit=1) == NAMES[name][:1]


def test_the_first_half_has_the_odd_one(tmp_path: Path):
    users = json.loads(PATHS["atomic"].read_text(encoding="utf-8"))["users"]
    path = written(tmp_path, {"users": [*users, {**users[1], "user_id": "third"}]})
    assert ids("atomic", "first-half", path=path) == ["noor", "emil"]
    assert ids("atomic", "second-half", path=path) == ["third"]


def test_another_split_is_a_folder_of_beam_alone():
    assert ids("beam", "100K") == NAMES["beam"]
    with pytest.raises(InvalidInput, match="contains no BEAM chats"):
        ids("beam", "1M")
    with pytest.raises(InvalidInput, match="Unknown split '100K' of locomo"):
        ids("locomo", "100K")


def test_unknown_and_empty_data_sets_are_refused(tmp_path: Path):
    with pytest.raises(InvalidInput, match="Unknown data set 'squad'; known: locomo"):
        load_dataset("squad", tmp_path)
    with pytest.raises(InvalidInput, match="contains no questions"):
        load_dataset("locomo", written(tmp_path, []))
    with pytest.raises(InvalidInput, match="Cannot read"):
        load_dataset("locomo", tmp_path / "none.json")


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
    samples = json.loads((PATHS["locomo"]).read_text(encoding="utf-8"))
    assert load_locomo(written(tmp_path, samples[0])) == load_locomo(written(tmp_path, samples))[:1]


def test_an_agent_is_known_by_its_name():
    garden, _ = load_locomo(PATHS["locomo"])
    assert [turn.origin for turn in garden.turns[:3]] == [Origin.USER, Origin.AGENT, Origin.USER]
    assert [turn.session for turn in garden.turns] == ["session_1"] * 3 + ["session_2"] * 3


def test_the_headline_leaves_out_adversarial_questions_and_keeps_those_without_a_category():
    garden, _ = load_locomo(PATHS["locomo"])
    assert [question.category for question in garden.questions] == ["4", "1", "2", "5", "uncategorized", "4", "4"]
    assert [question.in_overall for question in garden.questions] == [True, True, True, False, True, True, True]
    assert [question.names_evidence for question in garden.questions] == [True] * 5 + [False, True]


@pytest.mark.parametrize(
    "samples", [{"a": 1}, [{"sample_id": "s"}], [1], "text", [{"sample_id": "s", "conversation": 5}]]
)
def test_a_file_that_is_not_locomo_is_refused(samples: Any, tmp_path: Path):
    with pytest.raises(InvalidInput, match="LoCoMo"):
        load_locomo(written(tmp_path, samples))


@pytest.mark.parametrize(
    ("path", "split"),
    [(PATHS["beam"], None), (PATHS["beam"] / "100K", None), (PATHS["beam"], "100K"), (PATHS["beam"] / "100K", "100K")],
)
def test_chats_are_found_in_the_folder_and_in_the_one_above_in_the_order_of_their_numbers(path: Path, split: str):
    assert [chat.id for chat in load_beam(path, split)] == ["100K-2", "100K-10"]


def test_regression_an_abstention_question_is_unanswerable_though_it_states_an_ideal_answer():
    """Only its missing evidence told so."""
    chat = load_beam(PATHS["beam"])[0]
    assert [question.unanswerable for question in chat.questions] == [True, False, False, False, False]


def test_messages_lose_their_marker_and_keep_role_batch_and_day():
    chat = load_beam(PATHS["beam"])[0]
    first, reply, second, changed, tests = chat.turns
    assert [turn.id for turn in chat.turns] == ["0", "1", "2", "4", "5"]
    assert first.content == "I am writing a parser for train timetables."
    assert second.content == "The deadline of the parser is in April.\n\nIs that ->-> realistic?"
    assert reply.content == "Start with a grammar -> then a lexer."
    assert (first.origin, reply.origin) == (Origin.USER, Origin.AGENT)
    assert (second.session, changed.session) == ("batch-1", "batch-2")
    assert first.at == second.at == changed.at == datetime(2024, 3, 15, tzinfo=UTC)
    assert tests.at == datetime(2024, 6, 1, tzinfo=UTC)
    assert load_beam(PATHS["beam"])[1].turns[0].at is None


def test_evidence_is_read_at_any_depth_and_what_has_no_message_is_counted():
    chat = load_beam(PATHS["beam"])[0]
    assert [(question.category, question.evidence, question.names_evidence) for question in chat.questions] == [
        ("abstention", (), False),
        ("event_ordering", ("0", "2", "4"), True),
        ("information_extraction", ("0",), True),
        ("information_extraction", (), True),
        ("knowledge_update", ("2", "4"), True),
    ]
    assert chat.dropped_evidence == 2
    answers = ["That is not in the chat.", None, "train timetables", None, "in June"]
    assert [question.answer for question in chat.questions] == answers
    assert (load_beam(PATHS["beam"])[1].questions[0].evidence, load_beam(PATHS["beam"])[1].questions[0].answer) == (
        ("0",),
        "forty",
    )


def test_the_folder_of_one_chat_is_enough_and_questions_are_not_needed_for_its_messages(tmp_path: Path):
    folder = tmp_path / "100K" / "2"
    folder.mkdir(parents=True)
    shutil.copy(PATHS["beam"] / "100K" / "2" / "chat.json", folder)
    (chat,) = load_beam(folder, with_questions=False)
    assert (chat.id, chat.turns, chat.questions) == ("100K-2", load_beam(PATHS["beam"])[0].turns, ())
    with pytest.raises(InvalidInput, match="Cannot read"):
        load_beam(folder)


@pytest.mark.parametrize("split", [None, "1M"])
def test_a_folder_without_chats_is_refused(tmp_path: Path, split: str):
    with pytest.raises(InvalidInput, match="contains no BEAM chats"):
        load_beam(tmp_path, split)
    with pytest.raises(InvalidInput, match="contains no BEAM chats"):
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
def test_a_chat_that_is_not_beam_is_refused(tmp_path: Path, name: str, data: Any):
    chat = tmp_path / "1"
    shutil.copytree(PATHS["beam"] / "100K" / "2", chat)
    (chat / name).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"{name} is not a .*BEAM"):
        load_beam(tmp_path)


def test_memories_keep_their_type_and_time():
    noor, emil = load_atomic(PATHS["atomic"])
    assert [turn.memory_type for turn in noor.turns] == ["facts", "preferences", "instructions"]
    assert [turn.at for turn in noor.turns] == [
        datetime(2025, 1, 6, 14, 47, 58, tzinfo=UTC),
        datetime(2025, 1, 7, 8, tzinfo=UTC),
        None,
    ]
    assert {turn.session for turn in noor.turns} == {None}
    assert emil.turns[0].content == "Emil is training for the Berlin marathon."


def test_requests_have_the_known_ids_once_and_a_kind():
    noor, _ = load_atomic(PATHS["atomic"])
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
        {"users": [{"user_id": "u", "memories": [{**MEMORY, "created_at": "9999-12-31T23:59-05:00"}], "queries": []}]},
        {"users": [{"user_id": "u", "memories": [MEMORY], "queries": [{"query": "x"}]}]},
    ],
)
def test_memories_that_are_not_atomic_are_refused(tmp_path: Path, data: Any):
    with pytest.raises(InvalidInput, match="is not a file of saved memories"):
        load_atomic(written(tmp_path, data))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '"\ud800'])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "data.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidInput, match=r"data\.json"):
        load_atomic(path)
