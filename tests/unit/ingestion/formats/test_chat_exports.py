"""Exports in shapes that nobody promised: what is no conversation is told with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from inference_core.ingestion.formats import chat_exports
from inference_core.ingestion.formats.chat_exports import chatgpt_entries, claude_entries
from inference_core.ingestion.formats.entries import Entry, Odd

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
        (chatgpt_entries, 5, "value 1: it is not a conversation of ChatGPT with a 'mapping'"),
        (chatgpt_entries, {"mapping": []}, "value 1: it is not a conversation of ChatGPT with a 'mapping'"),
        (chatgpt_entries, {"mapping": {"a": 5}}, "value 1, node a: it is not a node"),
        (chatgpt_entries, {"mapping": {"a": {"parent": "a"}}}, "value 1: node 'a' is its own ancestor"),
        (chatgpt_entries, {"mapping": {"a": {"message": 5}}}, "value 1, node a: it is not a message"),
        (chatgpt_entries, {"mapping": {"a": {"message": {}}}}, "value 1, node a: its author has no 'role'"),
        (chatgpt_entries, {"mapping": {"a": {"message": message("x", metadata=[5])}}}, "node a: its metadata are no"),
        (
            chatgpt_entries,
            {"mapping": {"a": {"message": message("x", content=5)}}},
            "node a: its content has no 'parts'",
        ),
        (chatgpt_entries, {"mapping": {"a": {"message": {"author": {}, "content": {"parts": 5}}}}}, "has no parts"),
        (chatgpt_entries, {"mapping": {"a": {"message": message("x", content={"content_type": []})}}}, "unhashable"),
        (claude_entries, 5, "value 1: it is not a conversation of Claude"),
        (claude_entries, {"chat_messages": {}}, "value 1: it is not a conversation of Claude with a list"),
        (claude_entries, {"chat_messages": [5]}, "value 1, message 1: it is not a message"),
        (openai_entries, 5, "value 1: it is not a message, or messages in a list"),
        (openai_entries, {"messages": 5}, "value 1: its 'messages' are no list of messages"),
        (openai_entries, [5], "value 1, message 1: it is not an object with 'role'"),
    ],
)
def test_what_is_no_conversation_is_told_with_its_place(reader: Reader, value: Any, error: str):
    ((where, odd),) = [(where, given) for where, given in reader([("value 1", value)]) if isinstance(given, Odd)]
    assert error in f"{where}: {odd}"


def test_a_message_that_is_no_message_leaves_the_others():
    """It ended the whole file. Here, it also stands between the others, as their parent or child."""
    nodes: dict[str, Any] = {
        name: {"parent": parent, "message": message(name)} for name, parent in [("a", None), ("b", "a"), ("d", "c")]
    }
    for order in ("abcd", "abdc"):
        mapping = {name: nodes.get(name, 5) for name in order}
        found = read(chatgpt_entries, {"mapping": mapping, "current_node": "d"})
        assert [one["id"] for one in found if not isinstance(one, Odd)] == ["a", "b", "d"]


@pytest.mark.parametrize(
    "change",
    [
        {"author": "user"},
        {"content": "x"},
        {"content": {"content_type": "text", "parts": "x"}},
        {"content": {"content_type": "text", "text": "x"}},
        {"content": {"content_type": "text", "parts": [None, "x"]}},
        {"metadata": None},
    ],
)
def test_chatgpts_messages_are_read_in_simpler_shapes(change: dict[str, Any]):
    (one,) = read(chatgpt_entries, {"mapping": {"a": {"message": message("x") | change}}})
    assert (one["role"], one["content"], "outside" in one) == ("user", ["x"], False)


def said(name: str, parent: Any, text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"uuid": name, "parent_message_uuid": parent, "sender": "human", "text": text, **fields}


ROOT = "00000000-0000-4000-8000-000000000000"
EDITED = [said("a", ROOT), said("b", "a"), said("c", ROOT), said("d", "c")]


@pytest.mark.parametrize(
    ("messages", "leaf", "shown"),
    [
        (EDITED, None, ["c", "d"]),
        (EDITED, "b", ["a", "b"]),
        (EDITED, "lost", ["c", "d"]),
        ([said("a", ROOT), said("b", "a"), said("c", "a"), said("d", "a")], "c", ["a", "c"]),
        ([said("a", ROOT), said("b", "lost"), said("c", "b")], "c", ["a", "b", "c"]),
        ([said("a", ROOT, created_at="2025-01-02"), said("b", ROOT, created_at="2025-01-01")], None, ["a"]),
        ([said("a", None), said("b", 5), said("c", "b")], 5, ["a", "b", "c"]),
        ([{"uuid": "a", "sender": "human", "text": "x"}, {"sender": "human", "text": "y"}], "a", ["a", None]),
        ([said("a", "b"), said("b", "a")], "b", ["a", "b"]),
        ([said("a", ROOT), 5, said("b", "lost"), {"x": 1}, said("c", "b")], None, ["a", "b", None, "c"]),
    ],
)
def test_of_claudes_branches_the_one_in_use_is_read(messages: list[Any], leaf: Any, shown: list[str | None]):
    found = read(claude_entries, {"chat_messages": messages, "current_leaf_message_uuid": leaf})
    assert [one["id"] for one in found if not isinstance(one, Odd)] == shown


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"content": [{"type": "voice_note", "title": "Bikes", "text": "I ride"}], "text": ""}, ["I ride"]),
        ({"content": [{"type": "image"}], "text": "I ride"}, ["I ride"]),
        ({"content": [{"type": "text", "text": " "}], "text": "I ride"}, [" ", "I ride"]),
        ({"content": None, "text": "I ride"}, ["I ride"]),
        (
            {
                "content": [{"type": "image"}],
                "text": "```\nThis block is not supported on your current device yet.\n```\nI ride",
            },
            ["I ride"],
        ),
        ({"content": {"type": "text", "text": "I ride"}, "text": "other"}, ["I ride"]),
        ({"content": [{"type": "text", "text": "I ride"}], "text": "other"}, ["I ride"]),
    ],
)
def test_what_claude_gives_no_text_for_has_that_of_the_message(fields: dict[str, Any], texts: list[str]):
    (one,) = read(claude_entries, {"chat_messages": [{"sender": "human", **fields}]})
    parts = [part if isinstance(part, str) else part.get("text") for part in one["content"]]
    assert [part for part in parts if part] == texts
    assert all(part.keys() <= {"type", "text"} for part in one["content"] if isinstance(part, dict))


@pytest.mark.parametrize(
    ("attachments", "expected"),
    [
        ([{"file_name": "a.txt", "extracted_content": "of a"}, {"extracted_content": "of b"}],
         [("a.txt", "of a"), ("attachment", "of b")]),
        ([{"file_name": "a.png"}], []),
        ({"file_name": "a.txt", "extracted_content": "of a"}, [("a.txt", "of a")]),
        ([5, None, {"id": "f", "extracted_content": "of f"}], [("f", "of f")]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["attachments", "files"])
def test_texts_of_attachments_are_those_of_the_file(attachments: Any, expected: list[tuple[str, str]], name: str):
    first, *rest = read(
        claude_entries, {"chat_messages": [{"uuid": "m", "sender": "human", "text": "x", name: attachments}]}
    )
    assert (first["content"][0], first["outside"]) == ("x", "yes")
    assert [(one["name"], one["content"]) for one in rest] == expected
    assert all(one["outside"] == "yes" for one in rest)
    assert [one["id"] for one in rest] == [f"m#{at}" for at in range(1, len(rest) + 1)]


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
