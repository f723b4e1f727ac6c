"""``ingest`` as its user meets it: formats, interruption, bad files, results."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from processes import Forked
from support import DATA

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import background
from inference_core.cli.background import ingest
from inference_core.cli.options import held_back
from inference_core.effects import Operation
from inference_core.effects import run as run_plan
from inference_core.errors import InferenceCoreError
from inference_core.ingestion import verbatim
from inference_core.memory.record import MemoryStoreDocument

FOLDER = DATA / "evaluation"
CHAT = [
    {"role": "system", "content": "Be kind"},
    {"role": "user", "content": "I live in Riga", "name": "Ada", "timestamp": "2025-03-04T12:00:00Z"},
    {"role": "assistant", "content": [{"type": "text", "text": "Noted"}, {"type": "image_url", "image_url": {}}]},
]


def run(*arguments: str) -> int:
    """The exit code of the command; its errors are raised."""
    app = typer.Typer()
    app.command()(ingest)
    return app(list(arguments), standalone_mode=False) or 0


@pytest.fixture
def options(sqlite_url: str) -> list[str]:
    return ["--user", "ada", "--url", sqlite_url, "--embeddings", "none"]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in CHAT), encoding="utf-8")
    return path


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The one JSON document that the command prints."""
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def stored(url: str, agent: str | None = None) -> list[MemoryStoreDocument]:
    with open_store(url, embeddings=None) as store:
        return AgentMemoryStoreService(store, agent_name=agent).sync.list_memories("ada", limit=None)[0][::-1]


def test_conversations_of_locomo_become_one_users_sessions(
    options: list[str], sqlite_url: str, capsys: pytest.CaptureFixture[str]
):
    found = result(capsys, str(FOLDER / "own_in_locomo_format.json"), *options)
    assert (found["format"], found["messages"], found["memories"], found["sessions"]) == ("locomo", 8, 8, 3)
    memories = stored(sqlite_url)
    assert memories[0].content == "Ines: I planted three tomato seedlings on the balcony."
    assert memories[0].value["session_id"] == "garden/session_1"
    assert memories[0].value["valid_from"] == "2025-03-03T09:15:00+00:00"
    assert [memory.value["source"]["origin"] for memory in memories[:2]] == ["document", "tool"], "Ines is not ada"
    again = result(capsys, str(FOLDER / "own_in_locomo_format.json"), *options)
    assert (again["memories"], again["already_there"]) == (0, 8)


def test_a_single_conversation_of_locomo_needs_no_list(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sample = json.loads((FOLDER / "own_in_locomo_format.json").read_text("utf-8"))[0]
    path = tmp_path / "one.json"
    path.write_text(json.dumps(sample, indent=1), encoding="utf-8")
    assert result(capsys, str(path), *options)["memories"] == 6
    assert result(capsys, str(FOLDER / "own_in_locomo_format.json"), *options)["memories"] == 2


def test_a_chat_of_beam_is_the_same_alone_and_in_its_folder(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(FOLDER / "own_in_beam_format" / "100K" / "2")
    found = result(capsys, ".", *options)
    assert (found["format"], found["memories"], found["sessions"]) == ("beam", 5, 2)
    again = result(capsys, str(FOLDER / "own_in_beam_format"), *options)
    assert (again["memories"], again["already_there"]) == (2, 5)


def test_messages_are_read_with_what_is_left_out_counted(
    chat: Path, options: list[str], sqlite_url: str, capsys: pytest.CaptureFixture[str]
):
    found = result(capsys, str(chat), *options, "--agent", "planner")
    assert found["seconds"] >= 0
    del found["seconds"]
    assert found == {
        "format": "messages",
        "messages": 2,
        "memories": 2,
        "already_there": 0,
        "skipped": {"system": 1, "parts without text": 1},
        "sessions": 1,
        "without_vector": 0,
    }
    assert [memory.content for memory in stored(sqlite_url, "planner")] == ["I live in Riga", "Noted"]
    assert stored(sqlite_url) == []


def test_the_result_is_a_table_and_progress_goes_to_a_terminals_standard_error(
    chat: Path, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert run(str(chat), *options) == 0
    printed = capsys.readouterr()
    rows = dict(line.rstrip().split("  ", 1) for line in printed.out.splitlines())
    assert (rows["memories"].strip(), rows["skipped"].strip()) == ("2", "1 system, 1 parts without text")
    assert printed.err == "", "no bar in a pipe, or in the mail of a cron job"
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert run(str(chat), *options) == 0
    assert "3/3" in capsys.readouterr().err


def test_a_bad_line_is_skipped_counted_and_listed(
    chat: Path, options: list[str], sqlite_url: str, capsys: pytest.CaptureFixture[str]
):
    whole = chat.read_text("utf-8")
    chat.write_text(f'5\n{whole}{{"role": "user", "con', encoding="utf-8")
    found = result(capsys, str(chat), *options)
    assert (found["memories"], found["skipped"]["not a message"], found["skipped"]["damaged"]) == (2, 1, 1)
    first, last = found["left_out"]
    assert first.startswith("line 1: it is not an object")
    assert last == "line 5: the file ends in the midst of it, so it was cut off"
    assert run(str(chat), *options) == 0
    printed = capsys.readouterr()
    assert "Skipped line 5: the file ends in the midst of it" in printed.err
    assert "1 not a message" in printed.out
    chat.write_text(f'5\n{whole}{{"role": "user", "content": "And you?"}}\n', encoding="utf-8")
    assert result(capsys, str(chat), *options)["memories"] == 1
    assert len(stored(sqlite_url)) == 3


def test_if_strict_a_bad_line_ends_it_and_keeps_what_came_before(
    chat: Path, options: list[str], sqlite_url: str, capsys: pytest.CaptureFixture[str]
):
    whole = chat.read_text("utf-8")
    chat.write_text(whole + '{"role": "user", "con', encoding="utf-8")
    with pytest.raises(InferenceCoreError, match=r"chat\.jsonl, line 4: the file ends in the midst of it"):
        run(str(chat), *options, "--strict", "--json")
    assert json.loads(capsys.readouterr().out)["memories"] == 2
    assert len(stored(sqlite_url)) == 2
    chat.write_text(whole + '{"role": "user", "content": "And you?"}\n', encoding="utf-8")
    assert result(capsys, str(chat), *options, "--strict")["memories"] == 1


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("auto", "no known form", "known: locomo"),
        ("locomo", "[5]", "LoCoMo's format"),
        ("messages", "[5]\n", "line 1: it is not an object"),
        ("beam", "", "contains no BEAM chats"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line(
    form: str, content: str, message: str, chat: Path, options: list[str], capsys: pytest.CaptureFixture[str]
):
    chat.write_text(content, encoding="utf-8")
    with pytest.raises(InferenceCoreError, match=message) as raised:
        run(str(chat), *options, "--format", form)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


def test_the_message_limit_is_the_services_setting(
    chat: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("AGENT_MEMORY_MAX_CONTENT_BYTES", "12")
    assert result(capsys, str(chat), *options)["memories"] == 3


def test_a_failing_model_is_said(
    chat: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("inference_core.ingestion.verbatim.embed_texts_now", refuse_to_embed)
    assert run(str(chat), "--user", "ada", "--url", sqlite_url, "--embeddings", "local") == 0
    assert "2 memories wait for their vectors" in capsys.readouterr().err


def refuse_to_embed(*_: object, **__: object) -> None:
    from inference_core.errors import EmbeddingError

    raise EmbeddingError("no answer")


@pytest.mark.parametrize(("presses", "counted"), [(1, 64), (2, 32)], ids=["once", "twice"])
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    presses: int,
    counted: int,
    options: list[str],
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    """It is pressed when the second batch is written and not yet counted; once more ends it there and then."""
    path = tmp_path / "long.jsonl"
    path.write_text("".join(f'{{"role": "user", "content": "message {at}"}}\n' for at in range(100)), "utf-8")
    plans: list[Operation[Any]] = []

    def run_and_press(plan: Operation[Any]) -> Any:
        result = run_plan(plan)
        plans.append(plan)
        if len(plans) == 3:  # the first one reads who was erased
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(verbatim, "run", run_and_press)
    assert run(str(path), *options, "--json") == 130
    printed = capfd.readouterr()
    assert json.loads(printed.out)["memories"] == counted
    assert "Ending after this batch. Ctrl-C again ends at once" in printed.err
    assert "run the same command again" in printed.err
    assert len(stored(sqlite_url)) == 64
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    rest = result(capfd, str(path), *options)
    assert (rest["memories"], rest["already_there"]) == (36, 64)


def test_where_ctrl_c_is_ignored_it_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back() as check:
            signal.raise_signal(signal.SIGINT)
            check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def told_progress(_: str) -> Generator[Callable[[int, int], None]]:
    yield lambda done, total: print(done, total, file=sys.stderr, flush=True)


def ingest_and_tell(*arguments: str) -> None:
    """As a process of its own, in which a signal ends the command."""
    background.progress_bar = told_progress
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115 - never closed
    sys.argv = ["ingest", *arguments]
    typer.run(ingest)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_from_the_shell_ends_it_with_130(tmp_path: Path, options: list[str], sqlite_url: str):
    path = tmp_path / "long.jsonl"
    path.write_text("".join(f'{{"role": "user", "content": "message {at}"}}\n' for at in range(3_000)), "utf-8")
    process = Forked(ingest_and_tell, str(path), *options, "--json")
    with process:
        assert process.said.readline() == b"32 3000\n"
        process.send_signal(signal.SIGINT)
        code, lines = process.end()
    assert (code, any("run the same command again" in line for line in lines)) == (130, True)
    (report,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert 0 < report["memories"] == len(stored(sqlite_url)) < 3_000
