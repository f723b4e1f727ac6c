"""How many tokens messages and tools are counted as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from short_term_support import calls

from inference_core.short_term import window as tokens
from inference_core.short_term.window import MEDIA_TOKENS, MESSAGE_TOKENS, count_tokens, model_window, tool_tokens

HAN = "\u8bb0\u5fc6"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", 0),
        ("four", 1),
        ("fours", 2),
        (HAN * 50, 100),
        ("\ud800", 1),
        (["four", {"type": "text", "text": "four"}], 2),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], MEDIA_TOKENS),
        ([{"type": "tool_use", "id": "a", "name": "find", "input": {}}], 0),
        ([{"type": "thinking", "thinking": "x" * 400}], 110),
    ],
    ids=["empty", "a word", "two", "Chinese", "surrogate", "parts", "picture", "call", "thoughts"],
)
def test_a_message_is_counted_by_what_it_holds(content: Any, expected: int):
    assert count_tokens([AIMessage(content)]) == pytest.approx(MESSAGE_TOKENS + expected, abs=2 if expected > 99 else 0)


def test_calls_are_counted_with_their_arguments():
    assert count_tokens([calls("a")]) == MESSAGE_TOKENS + 2
    assert count_tokens([HumanMessage("four"), calls("a", "b")]) == MESSAGE_TOKENS * 2 + 5


def test_a_tool_is_looked_at_once(monkeypatch: pytest.MonkeyPatch):
    @tool
    def find(word: str) -> str:
        """Finds a word."""
        return word

    looked_at: list[object] = []
    convert = tokens.convert_to_openai_tool

    def noted(given: Any) -> dict[str, Any]:
        looked_at.append(given)
        return convert(given)

    monkeypatch.setattr(tokens, "_tool_tokens", {})
    monkeypatch.setattr(tokens, "_MAX_TOOLS", 1)
    monkeypatch.setattr(tokens, "convert_to_openai_tool", noted)
    size = tool_tokens([find])
    assert tool_tokens([find, find]) == 2 * size > 20
    assert len(looked_at) == 1
    assert tool_tokens([{"type": "a_providers_own"}, find]) > size
    assert len(looked_at) == 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SimpleNamespace(profile={"max_input_tokens": 8_000}), 8_000),
        (SimpleNamespace(profile={"max_input_tokens": 0}), None),
        (SimpleNamespace(profile={"max_input_tokens": "many"}), None),
        (SimpleNamespace(profile=None), None),
        (None, None),
    ],
    ids=["known", "none", "odd", "no profile", "no model"],
)
def test_the_window_of_a_model_is_what_its_profile_says(model: object, expected: int | None):
    assert model_window(model) == expected
