"""AgentService keeps conversations within the limit that settings name, or as it is told."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from agent_support import FACES, ask, set_environment, the_block
from langchain_core.messages import AnyMessage, BaseMessage

from inference_core import (
    AgentService,
    AgentSettings,
    Delete,
    FlushToLongTerm,
    ShortTermMemoryMiddleware,
    Summarize,
    Trim,
    VectorMemory,
    open_store,
)
from inference_core.agents.from_settings import named
from inference_core.errors import ConfigurationError, ModelError
from inference_core.short_term.window import is_summary
from inference_core.testing import ScriptedChatModel

TALK = ["I keep falcons in the old barn.", "The barn needs a new roof.", "Roofers come on Friday.", "What else?"]
NO_TOOLS: dict[str, Any] = {"memory_tools": [], "memory_tool_instructions_enabled": False}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_environment(monkeypatch, tmp_path, AGENT_CHECKPOINT_URL="memory://")


def limited(monkeypatch: pytest.MonkeyPatch, chain: str, max_tokens: int = 60) -> None:
    monkeypatch.setenv("AGENT_SHORT_TERM", chain)
    monkeypatch.setenv("AGENT_SHORT_TERM_MAX_TOKENS", str(max_tokens))


def replied(messages: list[BaseMessage]) -> str:
    """Stands for the chat model: sums up when it is asked to, else says little."""
    return "Ada keeps falcons." if messages[0].text.startswith("Summarize the following") else "I see."


def made(model: ScriptedChatModel | None = None, **options: Any) -> AgentService:
    """A service with its agent."""
    service = AgentService(
        model=model or ScriptedChatModel(turns=[replied]), use_checkpoints=True, user_id="ada", **options
    )
    service.create_agent_sync()
    return service


async def talk(service: AgentService, face: str = "sync") -> list[AnyMessage]:
    """What is left of the conversation."""
    for text in TALK[:-1]:
        await ask(service.get_agent(), face, text, dict(service.config_for()))
    return (await ask(service.get_agent(), face, TALK[-1], dict(service.config_for())))["messages"]


def short_terms(service: AgentService) -> list[ShortTermMemoryMiddleware]:
    return [one for one in service._middleware if isinstance(one, ShortTermMemoryMiddleware)]


@pytest.mark.parametrize("face", FACES)
async def test_what_leaves_a_conversation_is_known_in_the_next(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "flush")
    model = ScriptedChatModel(turns=[replied])
    with made(model, use_memory=True, **NO_TOOLS) as service:
        messages = await talk(service, face)
        assert TALK[0] not in [message.text for message in messages]
        assert messages[-1].text == "I see."
        assert service.memory is not None
        assert TALK[0] in [one.content for one in service.memory.sync.list_memories("ada")[0]]
        service.run("Where are my falcons?", thread_id="tuesday")
        assert TALK[0] in the_block(model.requests[-1])


@pytest.mark.parametrize("face", FACES)
async def test_the_agents_own_model_summarizes(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "summarize", 50)
    with made() as service:
        first, *rest = await talk(service, face)
    assert is_summary(first)
    assert first.text == "CONVERSATION SUMMARY: Ada keeps falcons."
    assert [message.text for message in rest[-2:]] == [TALK[-1], "I see."]


async def test_strategies_are_chained_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "flush,summarize", 100)
    with made(use_memory=True, **NO_TOOLS) as service:
        (strategies,) = ([type(one) for one in short._policy.strategies] for short in short_terms(service))
        first, *_ = await talk(service)
        assert service.memory is not None
        kept = [one.content for one in service.memory.sync.list_memories("ada")[0]]
    assert strategies == [FlushToLongTerm, Summarize]
    assert is_summary(first)
    assert TALK[0] in kept


def test_each_strategy_has_its_name() -> None:
    settings = AgentSettings(short_term=("delete", "trim", "summarize", "flush"))
    *others, flush = named(settings, recalls=True)
    assert others == [Delete(), Trim(), Summarize()]
    assert isinstance(flush, FlushToLongTerm)
    assert flush.into_system_prompt


def test_nothing_is_the_default() -> None:
    with made(use_memory=True) as service:
        assert short_terms(service) == []


async def test_a_strategy_that_is_passed_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "summarize", 40)
    with made(short_term=Delete(count=2)) as service:
        messages = await talk(service)
    assert not any(map(is_summary, messages))
    assert len(messages) < 2 * len(TALK)


async def test_a_middleware_that_is_passed_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "summarize")
    own = ShortTermMemoryMiddleware(Trim(), max_tokens=100_000)
    either: list[dict[str, Any]] = [{"short_term": own}, {"middleware": [own]}]
    for options in either:
        with made(**options) as service:
            assert short_terms(service) == [own]
            assert len(await talk(service)) == 2 * len(TALK)
    with pytest.raises(ConfigurationError, match="not both"):
        made(short_term=Trim(), middleware=[own])


def test_it_stands_behind_all_others_but_the_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "trim")
    with made(ScriptedChatModel(turns=[TimeoutError("slow")]), use_memory=True) as service:
        assert service._middleware[-1:] == short_terms(service)
        with pytest.raises(ModelError, match="cannot be reached"):
            service.run("Hi")


def test_a_flush_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "summarize,flush")
    for given in (None, FlushToLongTerm(), [Trim(), FlushToLongTerm()]):
        with pytest.raises(ConfigurationError, match="use_memory=True"):
            made(short_term=given)


async def test_a_flush_needs_no_memory_of_the_agent_if_there_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "flush", 200)
    model = ScriptedChatModel(turns=[replied])
    with open_store("memory://", embeddings=None) as store:
        blocks = [VectorMemory(store)]
        for options in ({"store": store}, {"short_term": FlushToLongTerm(blocks, into_system_prompt=True)}):
            with made(model, **options) as service:
                await ask(service.get_agent(), "sync", "My falcons " + "need a barn " * 25, dict(service.config_for()))
                await talk(service)
                service.run("Where are my falcons?", thread_id="tuesday")
            assert "My falcons need a barn" in the_block(model.requests[-1])


def test_where_memory_is_switched_off_nothing_is_flushed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limited(monkeypatch, "flush")
    monkeypatch.setenv("AGENT_MEMORY_ENABLED", "false")
    with open_store("memory://", embeddings=None) as store, made(use_memory=True, store=store) as service:
        assert short_terms(service) == []
    (said,) = (record for record in caplog.records if "has no memory to flush into" in record.getMessage())
    assert said.levelno == logging.WARNING
