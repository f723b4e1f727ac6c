"""Messages as what is kept of them word for word."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, FunctionMessage, HumanMessage, SystemMessage
from short_term_support import result

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.outbox.messages import Role
from inference_core.short_term.blocks.memory import UserSession, passage, passages

ADA = UserSession("ada", "s1")


def test_calls_are_kept_with_their_arguments():
    call = {"name": "find", "args": {"word": "K\u00e4se"}, "id": "a"}
    message = AIMessage([{"type": "text", "text": "Looking"}, {"type": "tool_use", "id": "a"}], tool_calls=[call])
    assert passage(message, ADA).text == 'Looking\nfind({"word": "K\u00e4se"})'


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
    assert passage(HumanMessage([block]), ADA).text == expected


@pytest.mark.parametrize(
    ("message", "role", "author"),
    [
        (HumanMessage("hi", name="Ada"), Role.USER, None),
        (HumanMessage("hi", name="Bob"), Role.USER, "Bob"),
        (SystemMessage("be brief"), Role.USER, None),
        (AIMessage("hi", name="planner"), Role.ASSISTANT, None),
        (result("a"), Role.TOOL, "find"),
        (FunctionMessage(content="found", name="find"), Role.TOOL, "find"),
    ],
    ids=["user", "other", "system", "assistant", "tool", "function"],
)
def test_who_said_it_is_kept(message: AnyMessage, role: Role, author: str | None):
    kept = passage(message, ADA)
    assert (kept.role, kept.author, kept.session_id) == (role, author, "s1")


def test_passages_keep_order_and_ids_and_once_marked_stay_marked():
    with open_store("memory://", embeddings=None) as store:
        scope = AgentMemoryStoreService(store).scope

        def kept(*messages: AnyMessage, session: str = "s1") -> list[tuple[str | None, int, bool]]:
            found = run(passages(scope, UserSession("ada", session), messages))
            return [(one.id, one.position, one.is_marked) for one in found]

        assert kept(HumanMessage("a", id="m1"), HumanMessage("b")) == [("m1", 0, False), (None, 1, False)]
        picture = HumanMessage([{"type": "image_url", "image_url": "https://a.example/cat.png"}])
        assert kept(HumanMessage("a"), picture, AIMessage("A cat")) == [
            (None, 0, False),
            (None, 1, True),
            (None, 2, True),
        ]
        assert kept(HumanMessage("c")) == [(None, 0, True)]
        assert kept(HumanMessage("c"), session="s2") == [(None, 0, False)]


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("I live in Skilltown.", additional_kwargs={"lc_source": "pinned_skill"}),
        HumanMessage([{"type": "text", "text": "I live in Rome."}, {"type": "image", "base64": "AAAA"}]),
        SystemMessage("I live in Rome."),
    ],
    ids=["framework", "picture", "system"],
)
def test_what_is_not_plain_is_nobodys_words(message: AnyMessage):
    assert not passage(message, ADA).is_own
    assert passage(HumanMessage("I live in Rome."), ADA).is_own
