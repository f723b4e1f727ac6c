"""When a conversation is too long, what is done then, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, SystemMessage
from short_term_support import USER, dialogue, lost_words, marker, markers, model_of, texts

from inference_core import Delete, FlushToLongTerm, MemoryStore, StaticMemory, Summarize, Trim, VectorMemory, open_store
from inference_core.effects import run
from inference_core.errors import ConfigurationError
from inference_core.short_term import strategies as policies
from inference_core.short_term.blocks.memory import UserSession, scope_of
from inference_core.short_term.strategies import Eviction, OverflowPolicy, OverflowResult
from inference_core.short_term.window import MESSAGE_TOKENS, Window, count_tokens

SMALL = SimpleNamespace(profile={"max_input_tokens": 1_000})


def result_of(
    policy: OverflowPolicy, messages: Sequence[AnyMessage], store: MemoryStore | None = None
) -> OverflowResult:
    scope = scope_of(store) if store else None
    eviction = Eviction(room=policy.room(), conversation=UserSession(USER, "s1"), scope=scope)
    return run(policy.handle(Window(messages, count_tokens), eviction))


@pytest.mark.parametrize(
    ("options", "model", "expected"),
    [
        ({}, None, 100_000),
        ({}, SMALL, 1_000),
        ({"max_tokens": 500}, SMALL, 500),
        ({"max_ratio": 0.8}, SMALL, 800),
        ({"max_ratio": 0.0001}, SMALL, 1),
        ({"max_ratio": 0.8, "max_tokens": 500}, None, 500),
    ],
    ids=["default", "small model", "tokens", "ratio", "at least one", "unknown model"],
)
def test_the_limit_is_that_of_the_model_or_a_share_of_it(options: dict[str, Any], model: Any, expected: int):
    assert OverflowPolicy(Trim(), **options).limit(model) == expected


def test_room_is_what_the_system_prompt_and_the_tools_leave():
    policy = OverflowPolicy(Trim(), 100)
    tool = {"type": "function", "function": {"name": "find", "description": "x" * 100, "parameters": {}}}
    assert policy.room(SystemMessage("x" * 40)) == 100 - 14
    assert 1 < policy.room(None, [tool]) < 75
    assert policy.room(SystemMessage("x" * 4_000)) == 1


@pytest.mark.parametrize(
    ("limit", "size", "warned"),
    [(100, 95, True), (1_000, 1_500, True), (1_000, 904, True), (1_000, 896, False), (50, 0, False)],
    ids=["little", "nothing", "just too much", "just enough", "no system prompt"],
)
def test_a_limit_that_the_fixed_part_fills_is_told_once_with_its_numbers(
    limit: int, size: int, warned: bool, caplog: pytest.LogCaptureFixture
):
    policy = OverflowPolicy(Trim(), limit)
    system = SystemMessage("x" * 4 * (size - MESSAGE_TOKENS)) if size else None
    policy.room(system)
    assert caplog.messages == []
    for _ in range(3):
        policy.room(system, warns=True)
    assert [f"take {size} of the {limit} tokens" in message for message in caplog.messages] == [True] * warned


@pytest.mark.parametrize(
    "given",
    [{"overflow": []}, {"overflow": [Trim(), "trim"]}, {"max_tokens": 0}, {"max_ratio": 0}, {"max_ratio": 1.5}],
    ids=["none", "text", "no tokens", "no ratio", "too much"],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        OverflowPolicy(**given)


def test_blocks_of_one_name_would_take_each_others_messages():
    with pytest.raises(ConfigurationError, match="'static_memory'"):
        OverflowPolicy(FlushToLongTerm([StaticMemory(["a"]), StaticMemory(["b"]), VectorMemory()]))
    OverflowPolicy(FlushToLongTerm([StaticMemory(["a"]), StaticMemory(["b"], name="rules"), VectorMemory()]))


def test_it_knows_its_blocks_and_where_they_go():
    policy = OverflowPolicy([FlushToLongTerm([StaticMemory(["a"]), VectorMemory()], into_system_prompt=True), Trim()])
    assert [block.name for block in policy.blocks] == ["static_memory", "vector_memory"]
    assert policy.into_system_prompt
    assert [block.name for block in OverflowPolicy().blocks] == ["vector_memory"]
    assert not OverflowPolicy().into_system_prompt


def test_what_is_not_too_long_is_left_alone():
    messages = dialogue(2)
    assert result_of(OverflowPolicy(Delete(), count_tokens(messages)), messages).messages == messages
    assert result_of(OverflowPolicy(Delete(), count_tokens(messages) - 1), messages).messages == messages[2:]
    only = messages[:1]
    assert result_of(OverflowPolicy(Trim(1), 1), only).messages == only


def test_what_left_is_in_long_term_memory():
    messages = dialogue(8)
    with open_store("memory://", embeddings=None) as store:
        result = result_of(OverflowPolicy(None, 200), messages, store)
        assert result.evicted == messages[:14]
        assert lost_words(markers(result.evicted), VectorMemory(store, user_id=USER)) == set()


@pytest.mark.parametrize("order", ["summary first", "flush first"])
def test_beside_its_summary_a_window_is_not_full_again(order: str):
    """Or every later message would cost a summary."""
    summarize = Summarize(model_of("word " * 400))
    strategies = [summarize, FlushToLongTerm()] if order == "summary first" else [FlushToLongTerm(), summarize]
    with open_store("memory://", embeddings=None) as store:
        policy = OverflowPolicy(strategies, 800)
        result = result_of(policy, dialogue(20), store)
        assert result.summary is not None
        assert result_of(policy, result.messages, store).evicted == []


def test_a_summarizer_that_fails_does_not_undo_a_flush():
    messages = dialogue(8)
    with open_store("memory://", embeddings=None) as store:
        result = result_of(
            OverflowPolicy([FlushToLongTerm(), Summarize(model_of(ConnectionError()))], 200), messages, store
        )
        assert result.summary is None
        assert lost_words(markers(result.evicted), VectorMemory(store, user_id=USER)) == set()
        assert marker(0) in markers(result.evicted)


def test_after_a_failure_the_model_has_a_rest(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(policies, "time", SimpleNamespace(monotonic=lambda: now[0]))
    model = model_of(ConnectionError("away"), "They talked.")
    policy = OverflowPolicy(Summarize(model), 100)
    messages = dialogue(4)
    assert result_of(policy, messages).notice is not None
    now[0] += 29
    kept = result_of(policy, messages)
    assert (kept.messages, kept.evicted) == (messages, [])
    assert kept.notice is not None, "regression: it said nothing, as if the overflow were handled"
    assert kept.notice.endswith("asked again in 1 s")
    assert result_of(policy, messages[:1]) == OverflowResult(messages[:1]), "nothing has to leave"
    assert len(model.requests) == 1
    now[0] += 2
    assert texts(result_of(policy, messages).messages)[0] == "CONVERSATION SUMMARY: They talked."


def test_another_summarizer_steps_in():
    strategies = [Summarize(model_of(ConnectionError("away"))), Summarize(model_of("They talked."))]
    result = result_of(OverflowPolicy(strategies, 100), dialogue(4))
    assert texts(result.messages)[0] == "CONVERSATION SUMMARY: They talked."
    assert result.model_failed
