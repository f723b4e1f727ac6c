"""profile: printed, edited in an editor, and from a file."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from cli_support import Capture, answer

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main

ADA = ("--user", "ada")


@pytest.fixture(autouse=True)
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configured store, with two rules and a preference."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    with open_store(sqlite_url, embeddings=None) as opened:
        memory = AgentMemoryStoreService(opened).sync
        memory.save_memory("ada", "Never book flights before nine", "instructions", memory_id="nine")
        memory.save_memory("ada", "Short answers\u202e first", "preferences", memory_id="short")
    return sqlite_url


def printed(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["profile", *arguments, *ADA]) == code
    told = capsys.readouterr()
    return told.out, told.err


def editor(folder: Path, program: str) -> str:
    """The command of an editor that changes ``text``, what is in the file, as ``program`` says."""
    script = folder / "an editor.py"
    lines = ["import pathlib, sys", "path = pathlib.Path(sys.argv[1])", "text = path.read_text('utf-8')"]
    script.write_text("\n".join([*lines, program, "path.write_text(text, 'utf-8')"]), "utf-8")
    return f"{sys.executable} '{script}'"


def test_a_file_that_was_printed_comes_back_with_changes(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = printed(capsys)
    path = tmp_path / "profile.md"
    path.write_text(out.replace("before nine", "before ten") + "- Lives in Lisbon\n", "utf-8")
    _, told = printed(capsys, "--file", str(path))
    assert told.splitlines() == [
        "Changed “Never book flights before nine” to “Never book flights before ten”",
        "Saved “Lives in Lisbon”",
        "2 changes",
    ]
    _, refused = printed(capsys, "--file", str(path), code=1)  # the profile is another one by now
    assert "has changed since this text was made" in refused
    found = answer(capsys, "profile", *ADA)
    assert (found["more"], "before ten" in found["text"]) == (0, True)
    out, _ = printed(capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(line for line in out.split("\n") if "answers" not in line)))
    assert main(["profile", "--file", "-", "--json", *ADA]) == 0
    (gone,) = json.loads(capsys.readouterr().out)["changes"]
    assert (gone["memory_id"], gone["after"]) == ("short", None)
    bad = tmp_path / "bad"
    bad.write_bytes(b"\xff\xfe")
    assert "not text in UTF-8" in printed(capsys, "--file", str(bad), code=1)[1]


def test_in_an_editor_what_stays_is_not_written_and_what_is_refused_is_kept(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("EDITOR", editor(tmp_path, "assert 'answers\\u202e first' in text"))
    assert printed(capsys, "--edit")[1] == "Nothing was changed\n"
    monkeypatch.setenv("VISUAL", editor(tmp_path, "text = text.replace('- Short answers\\u202e first', '')"))
    _, told = printed(capsys, "--edit")
    assert "Deleted “Short answers\\u202e first”" in told
    assert "inference-core restore short" in told
    assert not list(tmp_path.glob("profile-*"))
    monkeypatch.setenv("VISUAL", editor(tmp_path, "text = text.replace('## Rules', '## Regeln')"))
    _, refused = printed(capsys, "--edit", code=1)
    (kept,) = tmp_path.glob("profile-*/profile.md")
    assert str(kept) in refused
    assert "## Regeln" in kept.read_text("utf-8")
    assert kept.parent.stat().st_mode & 0o077 == 0
    kept.unlink()
    monkeypatch.setenv("VISUAL", "false")
    assert "ended with the exit code 1" in printed(capsys, "--edit", code=1)[1]
    monkeypatch.delenv("VISUAL")
    monkeypatch.delenv("EDITOR")
    assert "set VISUAL or EDITOR" in printed(capsys, "--edit", code=1)[1]
    assert "pass one of them" in printed(capsys, "--edit", "--file", "-", code=2)[1]
