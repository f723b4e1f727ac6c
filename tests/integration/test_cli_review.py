"""review from the command line: asks in a terminal, lists elsewhere, and decides by flags."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, answer, text

from inference_core import AgentMemoryStoreService, MemorySource, Origin, open_store
from inference_core.cli import main
from inference_core.errors import ConfirmationNeeded

WEB = MemorySource(origin=Origin.WEB, thread_id="t-1", tool="save_memory_store")
REVIEW = ("review", "--user", "ada")


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/m.db"
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name="planner").sync
        service.save_memory("ada", "answer in prose", "instructions", memory_id="old")
        for number, session in enumerate(["a", "a", "b"]):
            ends = "old" if number == 2 else None
            with pytest.raises(ConfirmationNeeded):
                service.save_memory("ada", f"rule {number}", "instructions", session, memory_id=ends, source=WEB)
    return url


def pending(capsys: Capture, *options: str) -> dict[str, Any]:
    return {one["content"]: one for one in answer(capsys, *REVIEW, *options)["pending"]}


def stored(url: str) -> dict[str, str | None]:
    with open_store(url, embeddings=None) as store:
        found = AgentMemoryStoreService(store, agent_name="planner").sync.list_memories("ada")[0]
    return {one.content: one.value["source"].get("approved_by") for one in found}


def test_lists_and_decides_by_flags(capsys: Capture, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    found = pending(capsys)
    assert [one["content"] for one in found["rule 2"]["ends"]] == ["answer in prose"]
    assert found["rule 0"]["source"] == WEB.to_value()
    shown = text(capsys, *REVIEW)
    assert "replaces: answer in prose" in shown
    assert "instructions · from web · tool save_memory_store · thread t-1 · waits until" in shown
    assert "3 memories wait for confirmation" in shown
    ids = {content: one["id"] for content, one in found.items()}
    decided = ("--approve", ids["rule 0"], "--text", "rule zero", "--reject", ids["rule 1"], "--why", "no")
    done = answer(capsys, *REVIEW, *decided)
    assert (done["approved"], done["rejected"]) == ([ids["rule 0"]], [ids["rule 1"]])
    assert list(pending(capsys)) == ["rule 2"]
    assert "it was decided differently" in text(capsys, *REVIEW, "--approve", ids["rule 1"], code=3)
    assert "1 approved, 0 rejected" in text(capsys, *REVIEW, "--session", "b", "--approve", "all")
    assert stored(url) == {"rule zero": "admin:root", "rule 2": "admin:root", "answer in prose": None}
    assert "0 memories wait" in text(capsys, *REVIEW)


def test_a_session_is_rejected(capsys: Capture, url: str) -> None:
    assert pending(capsys, "--session", "a").keys() == {"rule 0", "rule 1"}
    assert len(answer(capsys, *REVIEW, "--session", "a", "--reject", "all")["rejected"]) == 2
    assert list(pending(capsys)) == ["rule 2"]
    assert list(stored(url)) == ["answer in prose"]


@pytest.mark.parametrize(
    ("typed", "approved", "left"),
    [
        ("a\nq\n", ["rule 2"], ["rule 1", "rule 0"]),
        ("what?\ns\nR\n\nE\n\n\ne\nrule 0, edited\n", ["rule 0, edited"], ["rule 2"]),
        ("r\nphishing\n", [], ["rule 1", "rule 0"]),
        ("", [], ["rule 2", "rule 1", "rule 0"]),
    ],
)
@pytest.mark.usefixtures("url")
def test_a_terminal_is_asked(
    capsys: Capture, url: str, monkeypatch: pytest.MonkeyPatch, typed: str, approved: list[str], left: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(list(REVIEW)) == 0
    assert [name for name, by in stored(url).items() if by] == approved
    capsys.readouterr()
    assert sorted(pending(capsys)) == sorted(left)


@pytest.mark.parametrize(
    "options",
    [
        ["--text", "x"],
        ["--approve", "a", "--approve", "b", "--text", "x"],
        ["--approve", "all"],
        ["--session", "a", "--approve", "all", "--text", "x"],
        ["--session", "a", "--approve", "all", "--reject", "all"],
        ["--session", "a", "--approve", "all", "--reject", "b"],
        ["--approve", "a", "--reject", "a"],
    ],
)
@pytest.mark.usefixtures("url")
def test_contradictions_are_refused(capsys: Capture, options: list[str]) -> None:
    text(capsys, *REVIEW, *options, code=2)
    assert len(pending(capsys)) == 3
