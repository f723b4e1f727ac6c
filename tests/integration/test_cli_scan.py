"""scan from the command line: what is stored already is found by kind, and redacted in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, answer, text
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main

CANARY = "AKIA" + "CANARY7CANARY7CA"


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"{request.param}:///{tmp_path / 'memories'}"
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(url, embeddings=HashingEmbeddings(), secrets="off") as store:
        store.wait_ready(10)
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", f"Deploys with {CANARY}", memory_id="m1", tags=[CANARY], topic="deployment")
        service.save_memory("ada", f"Deployed with {CANARY}", memory_id="m2")
        service.update_memory("ada", "m2", "Deploys by hand")
        service.save_memory("eve", f"Has {CANARY} and eve@example.org", memory_id="m3")
        service.add_messages("ada", [f"I use {CANARY}"], session_id="s")
        store.put(("ada", "tokens"), "aws", {"key": CANARY})
    return url


def keys(document: Any) -> list[str]:
    return sorted(one["key"] for one in document["found"] if one["place"].startswith(("semantic", "tokens")))


def test_regression_stored_secrets_are_found_and_redacted_in_place(capsys: Capture, url: str) -> None:
    """What was stored before could neither be found nor mended without printing it."""
    dry = answer(capsys, "scan")
    assert keys(dry) == ["aws", "m1", "m3"]
    assert dry["redacted"] == 0
    assert {kind for one in dry["found"] for kind in one["kinds"]} == {"aws_access_key"}
    assert {one["place"].partition("/")[0] for one in dry["found"]} == {
        *("semantic", "tokens", "outbox", "messages", "~versions")
    }
    shown = text(capsys, "scan")
    assert "ada, semantic, m1: aws_access_key\n" in shown
    assert "ada, tokens, aws: aws_access_key (an item of your application)" in shown
    assert "5 of 6 would be redacted: run it again with --fix." in shown
    assert CANARY not in shown
    assert "Redacted 1 of 1." in text(capsys, "scan", "--fix", "--user", "eve")
    assert "Redacted 4 of 5." in text(capsys, "scan", "--fix")
    assert keys(answer(capsys, "scan")) == ["aws"], "an application's items are its own"
    assert "email_address" in text(capsys, "scan", "--pii", "--user", "eve")
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        store.wait_ready(10)
        service = AgentMemoryStoreService(store).sync
        found = service.get_memory("ada", "m1")
        assert found is not None
        assert found.content == "Deploys with [redacted: aws_access_key]"
        assert (found.value["tags"], found.value["topic"]) == (["[redacted: aws_access_key]"], "deployment")
        assert "m1" in [one.id for one in service.recall_memories("ada", "deployment")]
        assert CANARY not in repr([service.get_memory_history("ada", "m2"), service.why("ada", "m2")])


def test_a_clean_store_and_a_long_list(capsys: Capture, url: str) -> None:
    with open_store(url, embeddings=None, secrets="off") as store:
        service = AgentMemoryStoreService(store).sync
        for number in range(51):
            service.save_memory("bob", f"{number}: {CANARY}")
    assert "… and 1 more; --json shows all" in text(capsys, "scan", "--user", "bob")
    main(["scan", "--fix", "--user", "bob"])
    capsys.readouterr()
    assert "No secrets found." in text(capsys, "scan", "--user", "bob")
