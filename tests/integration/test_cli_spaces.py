"""``inference-core spaces``: roles in a space, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference_core import AgentMemoryStoreService, Space, Spaces, open_store
from inference_core.cli.app import run


def test_roles_are_granted_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"

    def answer(*words: str) -> Any:
        assert run(["spaces", *words, "--url", url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert answer("grant", "eng", "--user", "ada", "--role", "write") == {
        "space": "eng",
        "roles": {"user:ada": "write"},
    }
    assert answer("grant", "eng", "--group", "staff")["roles"] == {"group:staff": "read", "user:ada": "write"}
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, spaces=Spaces()).sync
        service.save_memory(Space("eng", member="ada"), "Deploys on Friday")
    assert run(["spaces", "list", "--url", url]) == run(["spaces", "--url", url]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["eng", "2", "roles"]
    assert answer("grant", "a space.b", "--user", "ada")["space"] == "a space.b"
    assert answer() == {"spaces": ["a space.b", "eng"]}
    assert run(["spaces", "grant", "--url", url]) == 2
    capsys.readouterr()
    assert answer("revoke", "eng", "--user", "ada")["roles"] == {"group:staff": "read"}
    assert run(["spaces", "list", "eng", "--url", url]) == 0
    assert "group:staff" in capsys.readouterr().out
    assert run(["spaces", "revoke", "eng", "--user", "bob", "--url", url]) == 0
    assert "no such role" in capsys.readouterr().err
    assert run(["spaces", "list", "ops", "--url", url]) == 0
    assert "No roles have been granted" in capsys.readouterr().err
    assert run(["spaces", "grant", "eng", "--url", url]) == 2
    assert "Name a user or a group" in capsys.readouterr().err


def test_a_member_proposes_and_another_approves_and_recalls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line says which space it is from, in text and as JSON."""
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    store = ["--url", f"sqlite:///{tmp_path}/memory.db"]

    def answer(*words: str) -> Any:
        assert run([*words, *store, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    for user, role in (("ada", "propose"), ("bob", "admin")):
        answer("spaces", "grant", "eng", "--user", user, "--role", role)
    assert run(["save", "The office is in Rome", "--user", "ada", "--space", "eng", *store]) == 0
    pending = capsys.readouterr().out.strip()
    (waits,) = answer("review", "--user", "bob", "--space", "eng")["pending"]
    assert (waits["id"], waits["content"], waits["space"]) == (pending, "The office is in Rome", "eng")
    assert answer("review", "--user", "bob", "--space", "eng", "--approve", pending)["approved"] == [pending]
    (found,) = answer("recall", "Where is the office?", "--user", "ada")["memories"]
    assert (found["content"], found["space"]) == ("The office is in Rome", "eng")
    assert answer("recall", "Where is the office?", "--user", "eve")["memories"] == []
    assert run(["recall", "office", "--user", "ada", *store]) == 0
    assert "· space eng\n" in capsys.readouterr().out
    assert run(["recall", "office", "--user", "ada", "--space", "grants", *store]) == 2
    assert "reserved" in capsys.readouterr().err
