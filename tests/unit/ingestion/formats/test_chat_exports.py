"""Exports in shapes that nobody promised: what is no conversation is told with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from inference_core.errors import InvalidInput
from inference_core.ingestion.formats import chat_exports
from inference_core.ingestion.formats.chat_exports import Entry, chatgpt_entries, claude_entries

Reader = Callable[[Iterable[tuple[str, Any]]], Iterator[Entry]]
openai_entries: Reader = partial(chat_exports.openai_entries, name="chat")


def read(reader: Reader, *values: Any) -> list[Any]:
    return [fields for _, fields in reader((f"value {at}", value) for at, value in enumerate(values, 1))]


def message(text: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}} | fields


def test_without_a_current_node_the_newest_leaf_counts():
    mapping = {
        "a": {"parent": None, "message": message("one")},
        "b": {"parent": "a", "message": message({"content_type": "audio_transcription", "text": "two"})},
    }
    found = read(chatgpt_entries, {"id": "c", "mapping": mapping, "current_node": None})
    assert [one["id"] for one in found] == ["a", "b"]
    assert found[1]["content"] == [{"type": "text", "text": "two"}]
    assert read(chatgpt_entries, {"mapping": {}}) == []


@pytest.mark.parametrize(
    ("reader", "value", "error"),
    [
        (chatgpt_entries, 5, "value 1 is not a conversation of ChatGPT"),
        (chatgpt_entries, {"mapping": []}, "with a 'mapping'"),
        (chatgpt_entries, {"mapping": {"a": 5}}, "value 1 is not a node"),
        (chatgpt_entries, {"mapping": {"a": {"parent": "a"}}}, "its own ancestor"),
        (chatgpt_entries, {"mapping": {"a": {"message": 5}}}, "value 1, node a is not a message"),
        (chatgpt_entries, {"mapping": {"a": {"message": {}}}}, "an author"),
        (chatgpt_entries, {"mapping": {"a": {"message": {"author": {}, "content": {"parts": 5}}}}}, "no parts"),
        (claude_entries, 5, "value 1 is not a conversation of Claude"),
        (claude_entries, {"chat_messages": {}}, "no 'chat_messages', or not as a list"),
        (claude_entries, {"chat_messages": [5]}, "value 1, message 1 is not a message"),
        (openai_entries, 5, "value 1 has no a list of messages"),
        (openai_entries, {"messages": 5}, "a list of messages"),
        (openai_entries, [5], "value 1, message 1 is not a message with 'role'"),
    ],
)
def test_what_is_no_conversation_is_told_with_its_place(reader: Reader, value: Any, error: str):
    with pytest.raises(InvalidInput, match=error):
        read(reader, value)


def test_conversations_of_a_list_are_told_apart():
    one = {"role": "user", "content": "x"}
    found = read(openai_entries, [one], {"id": "t", "messages": [one]}, one | {"session_id": "own"}, one)
    assert [entry.get("session_id") for entry in found] == ["chat 1", "t", "own", None]


def test_regression_old_chats_without_ids_are_told_apart():
    """Each was in the session of its title, and most are called "New chat"."""
    chats = ({"title": "New chat", "mapping": {root: {"message": message("Hi")}}} for root in "ab")
    assert [one["session_id"] for one in read(chatgpt_entries, *chats)] == ["a", "b"]


@pytest.mark.parametrize(("is_hidden", "role"), [(True, "system"), (False, "user")])
def test_regression_only_what_is_hidden_was_not_said(is_hidden: bool, role: str):
    """A message that the export calls not hidden was left out."""
    hidden = {"is_visually_hidden_from_conversation": is_hidden}
    (one,) = read(chatgpt_entries, {"mapping": {"a": {"message": message("I sail", metadata=hidden)}}})
    assert one["role"] == role


def test_what_claude_says_after_a_tool_follows_a_tools_message():
    parts = [{"type": "tool_result"}, {"type": "text", "text": "x"}]
    found = read(claude_entries, {"uuid": "c", "chat_messages": [{"sender": "assistant", "content": parts}]})
    assert [one["role"] for one in found] == ["tool", "assistant"]


def test_roles_that_nobody_knows_yet_do_not_stop_an_import():
    mapping = {"a": {"message": message("x", role="critic")}, "b": {"parent": "a", "message": message("y")}}
    assert [one["role"] for one in read(chatgpt_entries, {"mapping": mapping})] == ["system", "user"]
    chat = {"chat_messages": [{"sender": "critic", "text": "x"}]}
    assert [one["role"] for one in read(claude_entries, chat)] == ["system"]
