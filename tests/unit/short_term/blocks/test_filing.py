"""Messages as what is kept of them word for word."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, FunctionMessage, HumanMessage, SystemMessage
from short_term_support import result

from inference_core.outbox.messages import Role
from inference_core.short_term.blocks.filing import is_call, passage, passages


def test_calls_are_kept_with_their_arguments():
    call = {"name": "find", "args": {"word": "K\u00e4se"}, "id": "a"}
    message = AIMessage([{"type": "text", "text": "Looking"}, {"type": "tool_use", "id": "a"}], tool_calls=[call])
    assert passage(message, "s1").text == 'Looking\nfind({"word": "K\u00e4se"})'


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("plain", "plain"),
        ({"type": "text", "text": "plain"}, "plain"),
        (
            {"type": "image_url", "image_url": {"url": "https://a.example/cat.png"}},
            "[image_url https://a.example/cat.png]",
        ),
        ({"type": "image_url", "image_url": "https://a.example/cat.png"}, "[image_url https://a.example/cat.png]"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "[image_url]"),
        ({"type": "image", "base64": "AAAA", "mime_type": "image/png"}, "[image image/png]"),
        ({"type": "file", "url": "https://a.example/" + "x" * 400}, f"[file https://a.example/{'x' * 281}]"),
        ({"type": "reasoning", "reasoning": "secret"}, ""),
        ({"value": 1}, "[data]"),
    ],
    ids=["text", "block", "url", "bare url", "data url", "base64", "long url", "thoughts", "unknown"],
)
def test_what_is_shown_besides_text_is_named(block: Any, expected: str):
    assert passage(HumanMessage([block]), "s1").text == expected


@pytest.mark.parametrize(
    ("message", "role", "author"),
    [
        (HumanMessage("hi", name="Ada"), Role.USER, "Ada"),
        (SystemMessage("be brief"), Role.USER, None),
        (AIMessage("hi", name="planner"), Role.ASSISTANT, None),
        (result("a"), Role.TOOL, "find"),
        (FunctionMessage(content="found", name="find"), Role.TOOL, "find"),
    ],
    ids=["user", "system", "assistant", "tool", "function"],
)
def test_who_said_it_is_kept(message: AnyMessage, role: Role, author: str | None):
    kept = passage(message, "s1")
    assert (kept.role, kept.author, kept.session_id) == (role, author, "s1")


def test_passages_keep_order_and_ids():
    kept = passages([HumanMessage("a", id="m1"), HumanMessage("b")], "s1")
    assert [(one.id, one.position) for one in kept] == [("m1", 0), (None, 1)]


def test_text_is_no_call():
    assert not is_call("tool_use")
    assert is_call({"type": "function_call"})
