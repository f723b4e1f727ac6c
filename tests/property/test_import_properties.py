"""Any one entry of a file may be anything: all others are imported, and it is counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from inference_core.errors import InvalidInput
from inference_core.ingestion.formats.chat_exports import json_values
from inference_core.ingestion.formats.transcripts import read_conversations
from inference_core.outbox.messages import NO_DATE
from inference_core.transfer.sources import mem0_items

NAMES = (
    *("role", "content", "id", "type", "name", "session_id", "timestamp", "data", "kwargs", "from", "value", "parts"),
    *("mapping", "current_node", "message", "author", "metadata", "parent", "create_time", "content_type", "text"),
    *("uuid", "sender", "chat_messages", "attachments", "files", "parent_message_uuid", "current_leaf_message_uuid"),
    *("messages", "values", "contents", "conversations", "memory", "payload", "user_id", "extracted_content"),
)
WORDS = ("user", "assistant", "human", "ai", "text", "constructor", "system", "voice_note", "reasoning", "t", "x", "")
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS)
JUNK = st.recursive(
    LEAVES,
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.sampled_from(NAMES), held, max_size=5),
    max_leaves=12,
)
"""JSON of any shape, with the names that the formats look for."""
COUNT = 4


def text(at: int) -> str:
    return f"I keep {at} goats"


def in_chatgpt(at: int) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text(at)]}
    message = {"id": f"n{at}", "author": {"role": "user"}, "create_time": 1736937000.0 + at, "content": content}
    return {"id": f"n{at}", "parent": f"n{at - 1}" if at else None, "children": [], "message": message}


def in_claude(at: int) -> dict[str, Any]:
    parent = f"m{at - 1}" if at else "00000000-0000-4000-8000-000000000000"
    content = [{"type": "text", "text": text(at)}]
    return {"uuid": f"m{at}", "parent_message_uuid": parent, "sender": "human", "content": content}


def with_junk(make: Callable[[int], Any], place: int, junk: Any) -> list[Any]:
    return [junk if at == place else make(at) for at in range(COUNT)]


def chat(nodes: list[Any]) -> dict[str, Any]:
    return {"mapping": {f"n{at}": node for at, node in enumerate(nodes)}, "current_node": f"n{COUNT - 1}"}


FILES: dict[str, tuple[str, Callable[[int, Any], Any]]] = {
    "chatgpt nodes": ("chatgpt", lambda place, junk: [chat(with_junk(in_chatgpt, place, junk))]),
    "chatgpt conversations": (
        "chatgpt",
        lambda place, junk: with_junk(lambda at: {"mapping": {"a": {**in_chatgpt(at), "parent": None}}}, place, junk),
    ),
    "claude messages": (
        "claude",
        lambda place, junk: [{"uuid": "c", "chat_messages": with_junk(in_claude, place, junk)}],
    ),
    "claude conversations": (
        "claude",
        lambda place, junk: with_junk(lambda at: {"uuid": f"c{at}", "chat_messages": [in_claude(at)]}, place, junk),
    ),
    "openai": ("openai", lambda place, junk: with_junk(lambda at: {"role": "user", "content": text(at)}, place, junk)),
    "openai conversations": (
        "openai",
        lambda place, junk: with_junk(lambda at: {"messages": [{"role": "user", "content": text(at)}]}, place, junk),
    ),
    "langgraph api": (
        "openai",
        lambda place, junk: {"messages": with_junk(lambda at: {"type": "human", "content": text(at)}, place, junk)},
    ),
    "sharegpt": (
        "openai",
        lambda place, junk: [
            {"conversations": with_junk(lambda at: {"from": "human", "value": text(at)}, place, junk)}
        ],
    ),
    "gemini": (
        "openai",
        lambda place, junk: with_junk(lambda at: {"role": "user", "parts": [{"text": text(at)}]}, place, junk),
    ),
}


def others(place: int) -> set[str]:
    return {text(at) for at in range(COUNT) if at != place}


def check(form: str, path: Path, place: int) -> None:
    transcript = read_conversations(form, path, user_id="ada")
    found = {one.text for one in transcript.messages}
    assert others(place) <= found
    assert len(transcript.faults) <= transcript.skipped.total()
    strictly = read_conversations(form, path, user_id="ada", strict=True).messages
    if transcript.faults or transcript.skipped[NO_DATE]:
        with pytest.raises(InvalidInput, match=re.escape(str(path))):
            list(strictly)
    else:
        assert {one.text for one in strictly} == found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports")


@pytest.mark.parametrize(("form", "made"), FILES.values(), ids=FILES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, COUNT - 1), junk=JUNK)
@example(place=0, junk=None)
@example(place=2, junk={"uuid": ["x"], "sender": "human", "attachments": 5})
@example(place=1, junk={"message": {"author": {"role": ["user"]}, "content": {"content_type": {}}}, "parent": []})
def test_one_entry_of_anything_leaves_all_others(
    form: str, made: Callable[[int, Any], Any], folder: Path, place: int, junk: Any
):
    # Without a parent, a node of ChatGPT begins another branch, which those before it are not on.
    assume(not (isinstance(junk, dict) and "parent" in junk and junk["parent"] is None))
    path = folder / "chat.json"
    path.write_text(json.dumps(made(place, junk)), encoding="utf-8")
    check(form, path, place)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, COUNT - 1), junk=st.binary(max_size=30) | JUNK.map(lambda one: json.dumps(one).encode()))
@example(place=0, junk=b'{"role": "us')
def test_one_line_of_anything_leaves_all_others(folder: Path, place: int, junk: bytes):
    path = folder / "chat.jsonl"
    lines = [json.dumps({"role": "user", "content": text(at)}).encode() for at in range(COUNT)]
    lines[place] = junk.replace(b"\n", b" ").replace(b"\r", b" ")
    path.write_bytes(b"\n".join(lines))
    check("messages", path, place)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(1, COUNT - 1), junk=st.binary(max_size=40))
@example(place=1, junk=b"31/01/25, 09:30 - Ada: \xff")
@example(place=1, junk=b"99/99/99, 99:99 - Ada: Hi")
def test_one_line_of_a_chat_leaves_all_others(folder: Path, place: int, junk: bytes):
    path = folder / "chat.txt"
    lines = [f"31/01/25, 09:3{at} - Ada: {text(at)}".encode() for at in range(COUNT)]
    lines[place] = b"31/01/25, 09:30 - " + junk.replace(b"\n", b" ").replace(b"\r", b" ")
    path.write_bytes(b"\n".join(lines))
    check("whatsapp", path, place)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, COUNT - 1), junk=JUNK)
@example(place=1, junk={"id": True, "memory": "x", "user_id": ["ada"]})
def test_one_row_of_anything_leaves_all_other_memories(folder: Path, place: int, junk: Any):
    path = folder / "mem0.json"
    rows = with_junk(lambda at: {"id": str(at), "memory": text(at), "user_id": "ada"}, place, junk)
    path.write_text(json.dumps({"results": rows}), encoding="utf-8")
    found = list(mem0_items(json_values(path), ["ada"]))
    assert others(place) <= {one.value["content"] for one in found if one.fault is None}
