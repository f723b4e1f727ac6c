"""Checkpointers by URL: what is refused, and that one file serves sync and async runs of several services."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from databases import database
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from psycopg_pool import PoolClosed

from inference_core.agents.checkpoints import SqliteCheckpointer, open_checkpointer
from inference_core.errors import ConfigurationError, StoreUnavailable

THREAD: RunnableConfig = {"configurable": {"thread_id": "ada:one", "checkpoint_ns": ""}}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database(request.param, tmp_path) as url:
        yield url


def opened_at(url: str) -> Any:
    return open_checkpointer(url)


def checkpoint(value: Any) -> Checkpoint:
    return {**empty_checkpoint(), "channel_values": {"said": value}, "channel_versions": {"said": "1"}}


def said(found: Any) -> Any:
    return found and found.checkpoint["channel_values"]["said"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///:memory:"])
def test_checkpoints_can_stay_in_the_process(url: str) -> None:
    assert isinstance(open_checkpointer(url), InMemorySaver)


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_a_file_is_made_with_its_folder(scheme: str, tmp_path: Path) -> None:
    opened = open_checkpointer(f"{scheme}:///{tmp_path}/a%20new/folder/checkpoints.db?mode=rwc")
    assert isinstance(opened, SqliteCheckpointer)
    opened.close()
    assert (tmp_path / "a new" / "folder" / "checkpoints.db").is_file()


@pytest.mark.parametrize(
    "url", ["", "checkpoints.db", "sqlite:///", "sqlite://host/x.db", "mysql://ada:secret@host/db"]
)
def test_other_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL") as caught:
        open_checkpointer(url)
    assert "secret" not in str(caught.value)


def test_what_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, " * 100)
    for path in (tmp_path, tmp_path / "text.db", Path("/dev/null/x.db")):
        with pytest.raises(ConfigurationError, match="Cannot open the checkpoints at"):
            SqliteCheckpointer(path)


def test_what_is_put_async_is_there_for_sync_and_for_other_loops(url: str) -> None:
    opened = opened_at(url)

    async def put() -> RunnableConfig:
        kept = await opened.aput(THREAD, checkpoint("hello"), {}, {"said": "1"})
        await opened.aput_writes(kept, [("said", "pending")], "task")
        return kept

    async def look() -> tuple[Any, list[Any]]:
        return await opened.aget_tuple(THREAD), [one async for one in opened.alist(THREAD, limit=5)]

    kept = asyncio.run(put())
    found, listed = asyncio.run(look())
    assert said(found) == said(opened.get_tuple(kept)) == "hello"
    assert [said(one) for one in listed] == ["hello"]
    assert [write[1:] for write in found.pending_writes] == [("said", "pending")]
    asyncio.run(opened.adelete_thread("ada:one"))
    assert opened.get_tuple(THREAD) is None
    opened.close()


def test_many_may_set_up_the_same_tables_at_once(url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(opened_at, [url] * 8))
    for number, one in enumerate(opened):
        one.put(THREAD, checkpoint(number), {}, {"said": "1"})
    assert [said(one.get_tuple(THREAD)) for one in opened] == [7] * 8
    for one in opened:
        one.close()


@dataclass
class Foreign:
    command: str


def test_types_of_others_come_back_as_data(url: str) -> None:
    opened = opened_at(url)
    opened.put(THREAD, checkpoint(Foreign("rm")), {}, {"said": "1"})
    assert said(opened.get_tuple(THREAD)) == {"command": "rm"}
    opened.close()


async def test_closing_twice_closes_once(url: str) -> None:
    opened = opened_at(url)
    await opened.aget_tuple(THREAD)
    opened.close()
    opened.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await opened.aget_tuple(THREAD)
    with pytest.raises((sqlite3.ProgrammingError, PoolClosed)):
        opened.get_tuple(THREAD)


def test_a_server_that_is_away_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.agents.postgres_checkpoints._CONNECT_TIMEOUT_S", 1.0)
    with pytest.raises(ConfigurationError, match="Is the server running") as caught:
        opened_at("postgresql://ada:secret@127.0.0.1:1/db?connect_timeout=1")
    assert "secret" not in str(caught.value)
