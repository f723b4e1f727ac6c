"""chat from the command line, with a scripted model and a real store; and what a person sees on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_server import Refusal, chat_server
from commands import on_terminal
from langchain_core.messages import AIMessage

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main
from inference_core.errors import ModelError
from inference_core.testing import ScriptedChatModel, call_tool

Capture = pytest.CaptureFixture[str]
PATIENCE_S = 60
LOOKS = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")
"""Variables that tell a program how to look on a terminal."""
SAVES = call_tool("save_memory_store", content="Plays the cello", memory_type="facts")


@pytest.fixture(autouse=True)
def store(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configured store, by words only, with time to spare, so that a busy machine changes nothing."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    monkeypatch.setenv("AGENT_MEMORY_RECALL_TIMEOUT", "60")
    monkeypatch.setenv("AGENT_CHECKPOINT_URL", f"sqlite:///{tmp_path}/checkpoints.db")
    return sqlite_url


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The turns of the chat model."""
    turns: list[Any] = []

    def scripted(*_: object) -> ScriptedChatModel:
        return ScriptedChatModel(turns=turns)

    monkeypatch.setattr("inference_core.agents.service.make_chat_model", scripted)
    return turns


def remember(store: str, content: str, user: str = "ada") -> None:
    with open_store(store, embeddings=None) as opened:
        AgentMemoryStoreService(opened).sync.save_memory(user, content, "facts")


def chat(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, *said: str, code: int = 0, options: Sequence[str] = ()
) -> Any:
    """What a chat in which ada says this writes to standard output and to standard error."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in said)))
    assert main(["chat", "--user", "ada", *options]) == code
    return capsys.readouterr()


def test_a_chat_shows_what_was_recalled_and_saved(
    store: str, script: list[Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    remember(store, "Lives in Lisbon")
    remember(store, "Lives on Mars", user="eve")
    script += [SAVES, "Noted.", "In Lisbon."]
    printed = chat(capsys, monkeypatch, "I play the cello", "", "Where do I live?", "/memory", "/quit", "not said")
    assert printed.out == "Noted.\nIn Lisbon.\n"
    recalled, tool, again, *memories = printed.err.splitlines()
    assert recalled.startswith("lexical: 1 memory in ")
    assert tool.startswith("memory: save_memory_store “Plays the cello”: ✓ Memory saved (id: ")
    assert again.startswith("lexical: 2 memories in ")
    assert {"Lives in Lisbon" in memories[0], "Plays the cello" in memories[0]} == {True, False}
    assert len(memories) == 2
    assert "Mars" not in printed.err


def test_a_failed_turn_is_one_line_and_the_chat_goes_on(
    script: list[Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    script += [ModelError("The chat model is busy"), KeyError(), "Back again."]
    printed = chat(capsys, monkeypatch, "Hello?", "Hello??", "Hello???", code=1)
    assert printed.out == "Back again.\n"
    assert "The chat model is busy\n" in printed.err
    assert "Traceback" not in printed.err


def test_commands_that_are_none_and_memory_without_any(
    script: list[Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    script.append("Hi.")
    printed = chat(capsys, monkeypatch, "/memory", "/bogus x", "/help", "Hello", "/memory")
    assert printed.err.splitlines()[0] == "Nothing was recalled"
    assert printed.err.splitlines()[1].startswith("/bogus is not a command: /memory shows")
    assert printed.err.splitlines()[2].startswith("/memory shows")
    assert printed.err.splitlines()[-1] == "Nothing was recalled"


def test_a_chat_as_data(store: str, script: list[Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    remember(store, "Lives in Lisbon")
    script += [AIMessage("One moment.", tool_calls=SAVES.tool_calls), "Done."]
    printed = chat(capsys, monkeypatch, "I play the cello in Lisbon", options=["--json"])
    (turn,) = json.loads(printed.out)["turns"]
    assert turn["reply"] == "One moment.\nDone."
    assert (turn["memory_status"], turn["memories_recalled"], turn["error"]) == ("lexical", 1, None)
    assert "Lives in Lisbon" in turn["memories"][0]
    assert "Plays the cello" in turn["tools"][0]


def test_hostile_replies_steer_no_terminal(script: list[Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    script.append("\x1b[31mred\x1b[0m [bold]loud[/bold]")
    assert chat(capsys, monkeypatch, "Hello").out == "\\u001b[31mred\\u001b[0m [bold]loud[/bold]\n"


def test_a_named_thread_goes_on_and_another_user_cannot_read_it(
    script: list[Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    def hears(messages: Sequence[Any]) -> str:
        seen.append(" ".join(message.text for message in messages if message.type == "human"))
        return "Yes."

    script.append(hears)
    for options in (["--thread", "t"], ["--thread", "t"], ["--thread", "t", "--user", "eve"], []):
        chat(capsys, monkeypatch, "One", options=options)
    assert seen == ["One", "One One", "One", "One"]


def test_without_a_model_it_says_what_to_set(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AGENT_MODEL", raising=False)
    printed = chat(capsys, monkeypatch, "Hello", code=1)
    assert printed.out == ""
    assert "set AGENT_MODEL" in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_real_protocol_and_a_loaded_model(store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    remember(store, "Adores cats")
    with chat_server(SAVES, "You adore cats.", Refusal(429)) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        options = ["--model", "openai:any", "--system", "Be kind.", "--embeddings", "local"]
        printed = chat(capsys, monkeypatch, "Which felines do I like?", "And now?", code=1, options=options)
    assert printed.out.strip() == "You adore cats."
    assert printed.err.startswith("recalled: 1 memory")
    assert "AGENT_MODEL_FALLBACKS" in printed.err.splitlines()[-1]
    system, *messages = requests[0]["messages"]
    assert "Be kind." in json.dumps(system)
    assert "Adores cats" in json.dumps(messages)


class Terminal:
    """A command as a process of its own on a pseudo-terminal."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        given = {name: value for name, value in os.environ.items() if name not in LOOKS}
        given |= {"TERM": "xterm-256color", "AGENT_MEMORY_EMBEDDINGS": "none"} | environment
        self._process = on_terminal(theirs, arguments, given)
        os.close(theirs)
        self.shown = ""
        self._heard = 0

    def until(self, text: str) -> None:
        """Reads until the screen has shown ``text`` after what was waited for before."""
        while (found := self.shown.find(text, self._heard)) < 0:
            assert self._read(), f"{text!r} never came: {self.shown!r}"
        self._heard = found + len(text)

    def types(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupted(self) -> None:
        time.sleep(0.3)  # a signal between the prompt and readline's waiting for keys would be heard with the next key
        os.killpg(self._process.pid, signal.SIGINT)

    def code(self) -> int | None:
        """Waits for the end of the program; its exit code."""
        while self._read():
            pass
        os.close(self._ours)
        self._process.join()
        return self._process.exitcode

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], PATIENCE_S)
        assert ready, f"nothing more came: {self.shown!r}"
        try:
            found = os.read(self._ours, 4096)
        except OSError:  # Linux says that nobody is at the other end
            return False
        self.shown += found.decode(errors="replace")
        return bool(found)


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> str:
    """What a command in this process writes to a pseudo-terminal."""
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patched, os.fdopen(theirs, "w", encoding="utf-8") as screen:
        for name in LOOKS:
            patched.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", **environment}.items():
            patched.setenv(name, value)
        patched.setattr(sys, "stdout", screen)
        assert main(arguments) == 0
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    return shown


def test_colours_are_on_a_terminal_only(store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    remember(store, "Lives in Lisbon")
    arguments = ("list", "--user", "ada")
    assert "\x1b[1;36m1." in shown_on_a_terminal(monkeypatch, *arguments)
    plain = shown_on_a_terminal(monkeypatch, *arguments, NO_COLOR="1")
    assert "1. Lives in Lisbon" in plain
    assert "\x1b" not in plain
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("1. Lives in Lisbon\n")
    assert "\x1b" not in printed.out + printed.err


@pytest.mark.parametrize(("leaving", "code"), [("\x04", 0), ("\x03", 130)], ids=["ctrl-d", "ctrl-c"])
def test_a_person_chats_and_leaves(leaving: str, code: int, monkeypatch: pytest.MonkeyPatch):
    with chat_server("Hello!") as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        terminal = Terminal("chat", "--user", "ada", AGENT_MODEL="openai:any", OPENAI_API_KEY="key")
        terminal.until("you: ")
        terminal.types("Hi\n")
        terminal.until("Hello!")
        terminal.until("you: ")
        if leaving == "\x03":
            terminal.interrupted()
        else:
            terminal.types(leaving)
        assert terminal.code() == code
    assert "/quit leaves" in terminal.shown
    assert "Hello!" in terminal.shown
    assert "Traceback" not in terminal.shown
