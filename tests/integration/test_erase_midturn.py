"""A user is erased while the model of an agent thinks: what that turn still writes does not come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from databases import database
from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from inference_core import MemoryMiddleware, open_store
from inference_core.agents.checkpoints import CheckpointThreads, open_checkpointer
from inference_core.agents.identity import thread_label
from inference_core.errors import UserErased
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.testing import ScriptedChatModel, call_tool

ADA, CANARY = "ada@example.com", "zqcanary7 of Ada"


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with database(request.param, tmp_path) as url:
        _empty(url)  # LangGraph's tables are shared: a test finds what those before it have left
        yield url
        _empty(url)


def _empty(url: str) -> None:
    with closing(CheckpointThreads(url)) as threads:
        threads.erase([*threads.there()])


class Thinking(ScriptedChatModel):
    """A model that does something else before it answers for the last time."""

    meanwhile: Callable[[], object]
    left: int = 1

    def _generate(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if not self.left:
            self.meanwhile()
        return super()._generate(*args, **options)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("before", [0, 1])
def test_regression_a_turn_under_way_does_not_bring_its_conversation_back(
    kept: str, tmp_path: Path, durability: Literal["sync", "async", "exit"], before: int
) -> None:
    """Checkpoints had no fence: the receipt said that nothing is left, and the end of the turn stored all of it."""
    if durability == "exit" and not before:
        pytest.skip("the first turn builds on nothing that could be missed, as docs/erase.md says")
    thread: RunnableConfig = {"configurable": {"thread_id": thread_label(ADA, "trip")}}
    place = f"sqlite:///{tmp_path / 'm.db'}"
    with (
        closing(open_checkpointer(kept)) as saver,  # pyright: ignore[reportArgumentType]
        open_store(place, embeddings=None) as store,
        closing(CheckpointThreads(kept)) as threads,
    ):

        def erased() -> None:
            time.sleep(0.3)  # LangGraph saves the beginning of the turn in the background
            receipt = erase([store.engine.backend], ADA, Ledger(tmp_path / "ledger"), threads=[threads])
            assert (receipt.left, receipt.places[threads.name]["threads"].found) == (0, 1)

        def turn(said: str, meanwhile: Callable[[], object]) -> Any:
            turns = [call_tool("recall_memories_store", query="x"), "yes"]
            model = Thinking(turns=turns, meanwhile=meanwhile, left=2)
            agent: Any = create_agent(
                model, checkpointer=saver, store=store, middleware=[MemoryMiddleware(user_id=ADA, receipts=False)]
            )
            return agent.invoke({"messages": [("user", said)]}, thread, durability=durability)

        for _ in range(before):
            turn(CANARY, lambda: None)
        with pytest.raises(UserErased, match="conversation was deleted"):
            turn(CANARY, erased)
        assert threads.there() == {}
        if kept.startswith("postgres"):
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                assert saver.ask(f"SELECT 1 FROM {table}") == []  # pyright: ignore[reportAttributeAccessIssue]
        assert sum(path.read_bytes().count(CANARY.encode()) for path in threads.files()) == 0
        assert len(turn("hello again", lambda: None)["messages"]) == 4, "who comes back is kept"
        assert [*threads.there()] == [thread_label(ADA, "trip")]


def test_regression_a_write_that_crosses_an_erasure_leaves_nothing(kept: str) -> None:
    """The thread is deleted between the look and the write, and what is written before its checkpoint goes as well."""
    saver: Any = open_checkpointer(kept)
    thread: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with closing(saver), closing(CheckpointThreads(kept)) as threads:
        first = saver.put(thread, made("1"), {}, {"said": "1"})
        langgraphs = type(saver).__mro__[2]
        insert = langgraphs.put

        def crossed(self: Any, *arguments: Any) -> Any:
            threads.erase(["t"])
            return insert(self, *arguments)

        second = made("2")
        pending = {"configurable": {**first["configurable"], "checkpoint_id": second["id"]}}
        saver.put_writes(pending, [("said", CANARY)], "task")  # the background saves it before its checkpoint
        assert [*threads.there()] == ["t"]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(langgraphs, "put", crossed)
            with pytest.raises(UserErased):
                saver.put(first, second, {}, {"said": "2"})
        assert threads.there() == {}
        with pytest.raises(UserErased):
            saver.put_writes(pending, [("said", CANARY)], "task")
        with pytest.raises(UserErased):
            saver.put(pending, made("3"), {}, {})
        assert threads.there() == {}


def made(said: str) -> Any:
    """A checkpoint."""
    return {**empty_checkpoint(), "channel_values": {"said": said}, "channel_versions": {"said": said}}
