"""summarize, insights and the periodic part of worker, from the command line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cli_support import Capture, answer
from outbox_support import put, said, service_on
from periodic_support import insight, summary

from inference_core import open_store
from inference_core.agents import from_settings as capture
from inference_core.cli import main
from inference_core.outbox.outbox import Outbox
from inference_core.testing import FrozenClock, ScriptedChatModel


@pytest.fixture(autouse=True)
def made(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Memories of two sessions, long quiet, and three of one topic."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(sqlite_url, embeddings=None) as store:
        service = service_on(store, FrozenClock()).sync
        service.save_memory("ada", "We plan the trip to Rome.", "interaction", session_id="one")
        service.save_memory("ada", "A bill came.", "interaction", session_id="two\x1b"[:3])
        for at in range(3):
            service.save_memory("ada", f"Climbs {at}", "facts", topic="climbing", memory_id=f"c{at}")
    return sqlite_url


def scripted(monkeypatch: pytest.MonkeyPatch, *turns: Any) -> None:
    monkeypatch.setenv("AGENT_MEMORY_MODEL", "scripted:model")
    monkeypatch.setattr(capture, "make_chat_models", lambda names: [ScriptedChatModel(turns=turns)])  # pyright: ignore[reportUnknownLambdaType]


def contents(capsys: Capture, *arguments: str) -> list[str]:
    return sorted(one["content"] for one in answer(capsys, "list", "--user", "ada", *arguments)["memories"])


def test_sessions_are_summed_up_without_a_model(capsys: Capture) -> None:
    planned = answer(capsys, "summarize", "--user", "ada", "--dry-run")["sessions"]
    assert [(one["session_id"], one["sources"]) for one in planned] == [("one", 1), ("two", 1)]
    assert contents(capsys, "--type", "session_summary") == []
    assert answer(capsys, "summarize", "--user", "ada", "--session", "one") == {"summaries": 1, "failed": 0}
    assert contents(capsys, "--session", "one") == ["We plan the trip to Rome.", "We plan the trip to Rome."]
    assert answer(capsys, "summarize", "--user", "ada") == {"summaries": 1, "failed": 0}
    assert answer(capsys, "summarize", "--user", "ada") == {"summaries": 0, "failed": 0}
    assert answer(capsys, "undo", "--user", "ada", "--session", "one") == {"removed": 1}
    assert main(["summarize", "--user", "ada", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "sessions  1" in shown.out
    assert "one: 1 new" in shown.err


def test_insights_are_drawn_and_end(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(capsys, "insights", "--user", "ada") == {"runs": 1, "failed": 0}
    assert contents(capsys, "--type", "general") == []
    scripted(monkeypatch, insight("Ada loves climbing"))
    assert answer(capsys, "insights", "--user", "ada", "--dry-run") == {
        "groups": ["climbing"], "insights": 0, "ending": []
    }  # fmt: skip
    assert answer(capsys, "insights", "--user", "ada") == {"runs": 1, "failed": 0}
    assert contents(capsys, "--type", "general") == ["Ada loves climbing"]
    assert main(["delete", "c0", "--user", "ada", "--yes"]) == 0
    capsys.readouterr()
    assert main(["insights", "--user", "ada", "--dry-run"]) == 0
    assert "Ada loves climbing" in capsys.readouterr().err
    assert answer(capsys, "insights", "--user", "ada")["failed"] == 0
    assert answer(capsys, "recall", "climbing", "--user", "ada")["memories"][0]["content"].startswith("Climbs")


def test_what_fails_is_told_and_left_to_the_worker(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "prose", "prose", summary("Fine"))
    assert answer(capsys, "summarize", "--user", "ada", code=1) == {"summaries": 1, "failed": 1}


def test_the_worker_does_it_where_the_settings_say_so(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setenv("AGENT_MEMORY_SUMMARIES", "true")
    monkeypatch.setenv("AGENT_MEMORY_INSIGHTS", "true")
    monkeypatch.setenv("AGENT_MEMORY_SESSION_QUIET", "0.000001")
    with open_store(made, embeddings=None) as store:
        scope = service_on(store).scope
        put(Outbox(store.engine, scope.clock), said("I live in Porto.", session="three"))
    assert answer(capsys, "worker", "--once")["messages"] == 1
    assert answer(capsys, "worker", "--once")["periodic"] in (0, 1)
    assert contents(capsys, "--type", "session_summary") == ["I live in Porto."]
    assert timedelta(hours=24).total_seconds() == 86_400
