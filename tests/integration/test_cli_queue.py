"""queue, undo, stats and history from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_support import Capture, answer, text
from outbox_support import Scripted, is_listed, pipeline_on, put, said, step, word_for_word

from inference_core import open_store
from inference_core.cli import main
from inference_core.effects import run
from inference_core.errors import ModelError
from inference_core.ingestion.undo import jobs
from inference_core.outbox.messages import Action, Candidate, ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Outbox
from inference_core.testing import FrozenClock

HOSTILE = "bad \x1b[31mred\u202e"


def told(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
    """Ends Lisbon by Porto, fails at what is bad."""
    if any("bad" in message.text for message in messages):
        raise ModelError(f"refused {messages[0].text}")
    if messages[0].text != "Lives in Porto":
        return word_for_word(messages, offered)
    return Extraction([Candidate(content="Lives in Porto", action=Action.SUPERSEDE, target=offered[0].memory_id)])


@pytest.fixture(autouse=True)
def made(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two jobs, two dead messages and one that waits; the ids of the jobs, the newest first."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(sqlite_url, embeddings=None) as store:
        pipeline = pipeline_on(store, Scripted(told), max_tries=1)
        for text in ("Lives in Lisbon", "Lives in Porto", HOSTILE, "bad two"):
            put(pipeline.outbox, said(text))
            step(pipeline)
        put(pipeline.outbox, said("waits"))
        assert is_listed(pipeline.outbox)
        return [row.key for row in run(jobs(pipeline.scope, "ada"))]


def contents(capsys: Capture) -> list[str]:
    return sorted(one["content"] for one in answer(capsys, "list", "--user", "ada")["memories"])


def test_status_counts(capsys: Capture) -> None:
    found = answer(capsys, "queue")
    assert 0 <= found.pop("oldest_s") < 60
    assert found == {"partitions": 1, "waiting": 1, "dead": 2}
    assert answer(capsys, "queue", "status").keys() == {"partitions", "waiting", "oldest_s", "dead"}
    assert [line.split() for line in text(capsys, "queue", "status").splitlines()][::3] == [
        ["users", "and", "agents", "1"],
        ["failed", "2"],
    ]


def test_the_dead_are_listed_with_the_reason(capsys: Capture) -> None:
    dead = answer(capsys, "queue", "list")["dead"]
    assert sorted(letter["text"] for letter in dead) == sorted([HOSTILE, "bad two"])
    assert {letter["partition"]["user_id"] for letter in dead} == {"ada"}
    assert all(letter["reason"].startswith("ModelError: refused bad") and letter["tries"] == 1 for letter in dead)
    shown = text(capsys, "queue", "list")
    assert all(letter["key"] in shown for letter in dead)
    assert "bad two" in shown
    assert "ada" in shown


def test_the_dead_are_put_back_or_dropped(capsys: Capture) -> None:
    first, second = (letter["key"] for letter in answer(capsys, "queue", "list")["dead"])
    assert answer(capsys, "queue", "retry", first) == {"retried": 1}
    assert answer(capsys, "queue", "retry", first, "unknown") == {"retried": 0}
    assert text(capsys, "queue", "drop", second).split() == ["dropped", "1"]
    assert "No failed messages" in text(capsys, "queue", "list")
    assert answer(capsys, "queue", "list") == {"dead": []}
    found = answer(capsys, "queue")
    assert (found["waiting"], found["dead"]) == (2, 0)
    assert answer(capsys, "queue", "drop") == {"dropped": 0}


def test_wrong_usage_is_refused(capsys: Capture) -> None:
    assert "takes no keys" in text(capsys, "queue", "status", "key", code=2)
    assert "not one of" in text(capsys, "queue", "explode", code=2)
    assert "Pass --job or --session" in text(capsys, "undo", "--user", "ada", code=2)
    assert "Pass --job or --session" in text(capsys, "undo", "--user", "ada", "--job", "x", "--session", "y", code=2)


def test_a_job_and_a_session_are_undone(capsys: Capture, made: list[str]) -> None:
    assert contents(capsys) == ["Lives in Lisbon", "Lives in Porto"]
    assert answer(capsys, "undo", "--user", "bob", "--session", "s") == {"removed": 0}
    foreseen = answer(capsys, "undo", "--user", "ada", "--job", made[0], "--dry-run")["ids"]
    shown = text(capsys, "undo", "--user", "ada", "--job", made[0], "--dry-run").splitlines()
    assert [line.split() for line in shown[:2]] == [
        ["removed", *foreseen["removed"]],
        ["restored", *foreseen["restored"]],
    ]
    assert answer(capsys, "undo", "--user", "ada", "--job", made[0]) == {"removed": 1, "restored": 1}
    assert contents(capsys) == ["Lives in Lisbon"]
    assert text(capsys, "undo", "--user", "ada", "--session", "s").split() == ["removed", "1"]
    assert contents(capsys) == []


def test_regression_a_session_is_undone_in_an_outbox_elsewhere(capsys: Capture, tmp_path: Path) -> None:
    """`undo` knew no other database, though `erase` did, and its messages became memories afterwards."""
    elsewhere = f"sqlite:///{tmp_path / 'outbox.db'}"
    with open_store(elsewhere, embeddings=None) as store:
        put(Outbox(store.engine, FrozenClock()), said("waits elsewhere"), said("another", session="t"))
    undone = answer(capsys, "undo", "--user", "ada", "--session", "s", "--outbox", elsewhere)
    assert undone["removed"] == 2
    assert answer(capsys, "queue", "--url", elsewhere)["waiting"] == 1
    assert answer(capsys, "queue")["waiting"] == 0
    missing = f"sqlite:///{tmp_path / 'mistyped.db'}"
    assert "no store at" in text(capsys, "undo", "--user", "ada", "--session", "s", "--outbox", missing, code=1)
    assert "--session" in text(capsys, "undo", "--user", "ada", "--job", "x", "--outbox", elsewhere, code=2)


def test_figures_are_shown(capsys: Capture) -> None:
    found = answer(capsys, "stats", "--user", "ada")
    assert (found["memories"], found["over"], found["jobs"], found["superseded"]) == (2, 1, 2, 1)
    assert found["by_type"] == {"facts": 2}
    shown = text(capsys, "stats", "--user", "ada")
    assert "facts 2" in shown
    assert "input tokens" in shown
    assert "none" in text(capsys, "stats", "--user", "nobody")


def test_the_history_of_a_memory_is_shown(capsys: Capture) -> None:
    (newest, *_) = answer(capsys, "list", "--user", "ada")["memories"]
    found = answer(capsys, "history", newest["id"], "--user", "ada")["memories"]
    assert [one["content"] for one in found] == ["Lives in Lisbon", "Lives in Porto"]
    assert (found[0]["superseded_by"], found[1]["supersedes"]) == (found[1]["id"], [found[0]["id"]])
    shown = text(capsys, "history", newest["id"], "--user", "ada")
    assert shown.index("Lisbon") < shown.index("Porto")
    assert main(["history", "unknown", "--user", "ada"]) == 3
