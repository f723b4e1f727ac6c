"""export, import and copy from the command line."""

from __future__ import annotations

import gzip
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from cli_support import Capture, answer

from inference_core.cli import main


@pytest.fixture(autouse=True)
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configured store, with a memory of each of two users."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    for user in ("ada", "bob@example.com"):
        with redirect_stdout(io.StringIO()):
            assert main(["save", "Likes tea", "--user", user]) == 0
    return sqlite_url


def said(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().err


def test_memories_go_out_and_come_back(tmp_path: Path, capsys: Capture):
    file, other = str(tmp_path / "all.jsonl.gz"), f"sqlite:///{tmp_path / 'other.db'}"
    assert f"Wrote 2 rows to {file}" in said(capsys, "export", file)
    assert answer(capsys, "import", file, "--url", other)["written"] == 2
    assert "wrote 0 to" in (again := said(capsys, "import", file, "--url", other))
    assert "2 were already there" in again
    assert answer(capsys, "list", "--user", "ada", "--url", other)["memories"][0]["content"] == "Likes tea"


def piped(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))


def test_a_dash_is_the_standard_streams(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
):
    """`export -` wrote a file called "-", with all memories, and `import -` looked for one."""
    monkeypatch.chdir(tmp_path)
    assert main(["export", "-"]) == 0
    exported, told = capfdbinary.readouterr()
    assert told == b"Wrote 2 rows to standard output.\n"
    assert len(exported.splitlines()) == 4
    assert not Path("-").exists()
    chat = b'{"role": "user", "content": "Likes mate", "id": "m1"}\n'
    for number, (given, wrote, options) in enumerate(
        [
            (exported, b"Read 2 rows of standard input, wrote 2", []),
            (gzip.compress(exported), b"Read 2 rows of standard input.gz, wrote 2", []),
            (chat, b"memories 1", ["--user", "eve"]),
        ]
    ):
        piped(monkeypatch, given)
        assert main(["import", "-", "--url", f"sqlite:///{number}.db", *options]) == 0
        out, err = capfdbinary.readouterr()
        assert wrote in b" ".join((out + err).split())
    piped(monkeypatch, chat)
    assert main(["ingest", "-", "--user", "eve", "--url", "sqlite:///3.db"]) == 0
    piped(monkeypatch, b"nothing that is known")
    capfdbinary.readouterr()
    assert main(["import", "-", "--user", "eve"]) == 1
    assert capfdbinary.readouterr().err.startswith(b"Error: standard input is in no known format")
    assert main(["export", "-", "--json"]) == 2


def test_an_erasure_names_only_what_may_hold_the_user(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    """It named the file of an export that had failed, and said that others "still contain" the user."""
    monkeypatch.chdir(tmp_path)
    assert main(["export", "nowhere/x.jsonl"]) == 1
    assert main(["export", "bob.jsonl", "--user", "bob@example.com"]) == main(["export", "all.jsonl"]) == 0
    assert main(["export", "-"]) == 0
    capsys.readouterr()
    assert main(["erase", "--user", "ada", "--yes"]) == 0
    printed = capsys.readouterr()
    named = [line.rpartition(" ")[2] for line in printed.err.splitlines() if line.startswith("May still contain")]
    assert named == [str(tmp_path / "all.jsonl"), "/dev/stdout"]
    assert re.fullmatch(r"[0-9a-f]{32}\n", printed.out), "the ID of the receipt, for scripts"
    assert "1 memory, " in printed.err


def test_an_export_replaces_no_file_unless_it_is_told_to(tmp_path: Path, capsys: Capture):
    """Guards a file that took the time to make, or is none of ours, against a mistyped name."""
    file = tmp_path / "all.jsonl"
    file.write_text("a diary")
    assert f"{file} already exists; name another file, or replace it with --force" in said(
        capsys, "export", str(file), code=1
    )
    assert file.read_text() == "a diary"
    assert f"Wrote 1 row to {file}" in said(capsys, "export", str(file), "--force", "--user", "ada")


def test_a_store_is_copied(tmp_path: Path, store: str, capsys: Capture):
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert answer(capsys, "copy", "--from", store, "--to", other, "--user", "bob@example.com")["written"] == 1
    assert "wrote 1 to" in said(capsys, "copy", "--from", store, "--to", other)
    assert "the same store" in said(capsys, "copy", "--from", store, "--to", store, code=1)
    assert "There is no store" in said(
        capsys, "copy", "--from", f"sqlite:///{tmp_path / 'x.db'}", "--to", other, code=1
    )


def test_a_target_with_a_key_of_its_own_is_told(tmp_path: Path, store: str, capsys: Capture):
    """What was rejected in the source can be offered in it again."""
    used = f"sqlite:///{tmp_path / 'used.db'}"
    assert main(["save", "Likes mate", "--user", "eve", "--url", used]) == 0
    assert "its own secret key, so the source's rejections" in said(capsys, "copy", "--from", store, "--to", used)
    new = f"sqlite:///{tmp_path / 'new.db'}"
    assert not answer(capsys, "copy", "--from", store, "--to", new)["has_other_key"]


def test_conflicts_are_told(tmp_path: Path, store: str, capsys: Capture):
    file = str(tmp_path / "all.jsonl")
    said(capsys, "export", file, "--user", "ada")
    memory_id = answer(capsys, "list", "--user", "ada")["memories"][0]["id"]
    said(capsys, "update", memory_id, "--content", "Likes coffee", "--user", "ada")
    assert "skipped 1 (id already in use)" in said(capsys, "import", file)
    assert "--conflicts" in said(capsys, "import", file, "--conflicts", "fail", code=1)
    assert "wrote 1" in said(capsys, "import", file, "--conflicts", "replace")
    assert answer(capsys, "list", "--user", "ada")["memories"][0]["content"] == "Likes tea"
    assert main(["import", file, "--conflicts", "maybe"]) == 2


def test_a_file_that_is_no_export_is_told(tmp_path: Path, capsys: Capture):
    file = tmp_path / "x.jsonl"
    file.write_text("hello\n")
    assert "line 1: it is not JSON" in said(capsys, "import", str(file), "--format", "export", code=1)
    assert "is in no known format" in said(capsys, "import", str(file), code=1)
    file.write_bytes(b"\xff\xfe")
    assert "not an export of this package: line 1 is not text" in said(
        capsys, "import", str(file), "--format", "export", code=1
    )
    assert "No such file" in said(capsys, "import", str(tmp_path / "y.jsonl"), code=1)
    assert f"There is no folder {tmp_path}/no\n" in said(capsys, "export", str(tmp_path / "no" / "y.jsonl"), code=1)


def test_an_encrypted_folder_is_read_and_written_with_the_configured_key(
    tmp_path: Path, store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    folder, other, file = f"file:///{tmp_path / 'one'}", f"file:///{tmp_path / 'two'}", str(tmp_path / "all.jsonl")
    monkeypatch.setenv("AGENT_MEMORY_ENCRYPTION_KEY", "11" * 32)
    assert answer(capsys, "copy", "--from", store, "--to", folder)["written"] == 2
    assert b"tea" not in b"".join(path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert answer(capsys, "export", file, "--url", folder)["written"] == 2
    monkeypatch.setenv("AGENT_MEMORY_ENCRYPTION_KEY", "22" * 32)
    assert answer(capsys, "import", file, "--url", other)["written"] == 2
    assert "key" in said(capsys, "export", file, "--url", folder, "--force", code=1)


def test_regression_of_an_export_only_the_users_own_memories_are_imported(tmp_path: Path, capsys: Capture):
    """--user was ignored: the memories of all users in the file were written."""
    file, other = str(tmp_path / "all.jsonl"), f"sqlite:///{tmp_path / 'other.db'}"
    said(capsys, "export", file)
    found = answer(capsys, "import", file, "--user", "bob@example.com", "--url", other)
    assert (found["read"], found["written"]) == (1, 1)
    assert answer(capsys, "list", "--user", "ada", "--url", other)["memories"] == []
    assert answer(capsys, "import", file, "--url", other)["written"] == 1
