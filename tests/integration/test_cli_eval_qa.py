"""The command ``eval qa``: a model answers from what systems recall, another judges; it can be resumed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from chat_server import Refusal, Request, chat_server
from support import DATA

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main

FOLDER = DATA / "evaluation"
LOCOMO = ["eval", "qa", "locomo", "--data", str(FOLDER / "own_in_locomo_format.json")]
TEXT = ["--embeddings", "none"]
KNOWN = "a watering can"


def reply(request: Request) -> str:
    """What a model says that reads: it finds the watering can in its notes, and judges by the text."""
    text = request["messages"][-1]["content"]
    if "one thing that the answer should do" in text:
        return "VERDICT: " + ("1" if "<expected>says Oskar" in text else "0.5")
    if "You grade an answer" in text:
        answer = text.rpartition("<answer>")[2]
        knows = KNOWN in answer if "<expected>a watering can" in text else "do not know" in answer
        return f"It says so.\nVERDICT: {'right' if knows else 'wrong'}"
    return f"It is {KNOWN}." if "lends me his watering can" in text else "I do not know."


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[list[Request]]:
    """What two models behind the OpenAI protocol were asked; the folder is the current one."""
    monkeypatch.chdir(tmp_path)
    with chat_server(reply) as (url, asked):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield asked


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, *TEXT, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_systems_answer_side_by_side_and_nothing_is_asked_twice(
    requests: list[Request], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """Retrieval alone could be measured."""
    two = [*LOCOMO, "--model", "openai:answers", "--judge", "openai:judges", "--price", "openai:answers=1000000/0"]
    systems = ["--system", "none", "--system", "full", "--system", "ours", "--k", "2"]
    found = measured(capsys, *two, *systems)
    assert [run["system"] for run in found["runs"]] == ["none", "full", "ours"]
    assert found["judge"]["name"] == "mem0"
    nothing, whole, ours = found["runs"]
    answers = {one["question"]: one for one in whole["answers"]}
    assert answers["What does Oskar lend?"]["score"] == 1
    assert answers["What does Oskar lend?"]["f1"] == pytest.approx(2 * 2 / (2 + 4))
    assert [one["notes"] for one in nothing["answers"]] == [0] * len(answers)
    assert max(one["notes"] for one in ours["answers"]) == 2
    assert nothing["notes_tokens_mean"] < ours["notes_tokens_mean"] < whole["notes_tokens_mean"]
    # What LoCoMo asks to mislead has no answer: it is right to say so, and apart from the headline.
    assert nothing["by_category"]["5"]["mean"] == 1
    assert whole["accuracy"]["count"] == 5
    low, high = whole["accuracy"]["interval"]
    assert 0 <= low < whole["accuracy"]["mean"] < high <= 1
    first = len(requests)
    assert whole["answering"]["dollars"] == whole["answering"]["tokens_in"] == len(answers)
    assert whole["judging"]["dollars"] is None
    replies = tmp_path / "eval-replies.jsonl"
    assert len(replies.read_text().splitlines()) == first
    # A run that was killed in the middle of a line asks for that reply alone.
    replies.write_text(replies.read_text()[:-9])
    again = measured(capsys, *two, *systems)
    assert len(requests) == first + 1
    assert sum(run[what]["new"]["calls"] for run in again["runs"] for what in ("answering", "judging")) == 1
    assert [run["accuracy"] for run in again["runs"]] == [run["accuracy"] for run in found["runs"]]
    assert main([*two, *systems, *TEXT]) == 0
    printed = capsys.readouterr().out
    assert "judge mem0 (Chhikara et al., Mem0, arXiv 2504.19413" in printed
    assert re.search(r"^\| full \| 5 \| \d\d\.0 \(\d+-\d+\) \| [+-]\d", printed, re.MULTILINE), printed
    assert "- full: 3 questions have no expected answer and are not counted" in printed
    assert len(requests) == first + 1


def test_beam_is_judged_point_by_point(requests: list[Request], capsys: pytest.CaptureFixture[str], tmp_path: Path):
    asked = {"question": "Who?", "answer": "Oskar", "rubric": ["says Oskar", "says when"], "source_chat_ids": [0]}
    chat = tmp_path / "beam" / "1"
    chat.mkdir(parents=True)
    message = {"id": 0, "role": "user", "content": "Oskar lends me his watering can"}
    (chat / "chat.json").write_text(json.dumps([{"batch_number": 1, "turns": [[message]]}]))
    (chat / "probing_questions.json").write_text(json.dumps({"information_extraction": [asked]}))
    found = measured(capsys, "eval", "qa", "beam", "--data", str(tmp_path / "beam"), "--model", "openai:m")
    assert found["judge"]["name"] == "beam"
    assert found["runs"][0]["judging"]["calls"] == 2
    assert found["runs"][0]["accuracy"]["mean"] == 0.75
    by_words = measured(
        capsys, *("eval", "qa", "beam", "--data", str(tmp_path / "beam"), "--model", "openai:m", "--judge", "none")
    )
    assert by_words["runs"][0]["accuracy"]["mean"] is None
    assert by_words["runs"][0]["answering"]["new"]["calls"] == 0


def test_own_conversations_and_the_own_store(
    requests: list[Request], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """Questions about what is not a published data set."""
    said = [
        {
            "role": "user",
            "content": "Oskar lends me his watering can",
            "session_id": "s",
            "timestamp": "2025-03-03T10:00:00Z",
        },
        {"role": "assistant", "content": "How kind of him.", "session_id": "s", "timestamp": "2025-03-03T10:01:00Z"},
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, said)))
    (tmp_path / "q.jsonl").write_text(
        '{"query": "What does Oskar lend?", "answer": "a watering can", "kind": "tools"}\n'
        '{"query": "Who is his boss?", "relevant": []}\n'
    )
    options = ["--questions", "q.jsonl", "--model", "openai:m"]
    found = measured(capsys, "eval", "qa", "conversations", "--data", "said.jsonl", *options)
    assert found["judge"]["name"] == "longmemeval"
    assert found["runs"][0]["by_category"]["tools"]["mean"] == 1
    assert "The last conversation was on Monday, 03 March 2025;" in requests[0]["messages"][-1]["content"]
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Oskar lends me his watering can")
    store_of = ["eval", "qa", "store", "--user", "ada", "--url", f"sqlite:///{tmp_path}/memory.db"]
    mine = measured(capsys, *store_of, *options)
    assert mine["runs"][0]["system"] == "store"
    assert mine["runs"][0]["by_category"]["tools"]["mean"] == 1


def test_a_model_that_fails_is_asked_again_next_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = [*LOCOMO, "--model", "openai:m", "--judge", "none", "--sample", "1", "--calls", "1"]
    with chat_server(Refusal(500), "A tractor") as (url, asked):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        failed = measured(capsys, *command)["runs"][0]
        assert (failed["failures"], failed["answers"][0]["answer"]) == (1, None)
        assert "500" in failed["answers"][0]["failure"] or "refused" in failed["answers"][0]["failure"]
        assert measured(capsys, *command)["runs"][0]["answers"][0]["answer"] == "A tractor"
        assert len(asked) == 2


def test_a_package_that_is_missing_shows_before_anything_is_asked(
    requests: list[Request], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "langmem", None)
    assert main([*LOCOMO, *TEXT, "--system", "full", "--system", "langmem", "--model", "openai:m"]) == 1
    assert "pip install langmem" in capsys.readouterr().err
    assert requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["locomo"], "locomo needs --data PATH"),
        (["store", "--data", "x"], "store needs --questions FILE and --user ID"),
        (["conversations", "--data", "x"], "conversations needs --data PATH and --questions FILE"),
        (["locomo", "--data", "x", "--price", "m=cheap"], "--price must be MODEL=IN/OUT"),
        (["locomo", "--data", "x", "--system", "faiss"], "is not one of none, full, ours"),
    ],
)
def test_wrong_usage_of_qa_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", "qa", *arguments, "--model", "openai:m"]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_conversations_without_text_cannot_be_asked_about(
    requests: list[Request], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "said.jsonl").write_text('{"role": "tool", "content": "42", "session_id": "s"}')
    (tmp_path / "q.jsonl").write_text('{"query": "What?", "answer": "42"}')
    asked = ["conversations", "--data", "said.jsonl", "--questions", "q.jsonl", "--model", "openai:m"]
    assert main(["eval", "qa", *asked]) == 1
    assert "contains no messages with text" in capsys.readouterr().err
    assert requests == []
