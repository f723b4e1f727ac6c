"""Messages in the shapes of many programs, and what they say of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, messages_to_dict

from inference_core.ingestion.formats.entries import FRAMEWORKS, NO_MESSAGE, Odd, entry_of, fields_of, held_messages
from inference_core.ingestion.formats.transcripts import format_of, read_conversations

SAID = ["I sail", "Since when?"]


def langgraph(kind: str, text: str, **fields: Any) -> dict[str, Any]:
    """A message as LangGraph's API gives it."""
    common = {"additional_kwargs": {}, "response_metadata": {}, "name": None, "id": f"{kind}-1", "example": False}
    return {"content": text, "type": kind, **common, **fields}


API = [langgraph("human", "I sail"), langgraph("ai", "Since when?", tool_calls=[], usage_metadata=None)]
LEGACY = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain", "HumanMessage"],
    "kwargs": {"content": "I sail"},
}
SHAREGPT = [{"from": "human", "value": "I sail"}, {"from": "gpt", "value": "Since when?"}]
GEMINI = [
    {"role": "user", "parts": [{"text": "I sail"}]},
    {"role": "model", "parts": [{"text": "A sailor!", "thought": True}, {"text": "Since when?"}]},
]
RESPONSES = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "I sail"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Since when?"}]},
]
STUDIO = [
    {"text": "I sail", "role": "user", "tokenCount": 3},
    {"text": "A sailor!", "role": "model", "isThought": True},
    {"text": "Since when?", "role": "model", "finishReason": "STOP"},
]
SHAPES = {
    "langgraph api": API,
    "langgraph api content list": [{**API[0], "content": [{"type": "text", "text": "I sail"}]}, API[1]],
    "langgraph state": {"values": {"messages": API}, "next": [], "checkpoint": {"thread_id": "t"}},
    "langgraph states": [{"values": {"messages": API}, "metadata": {"thread_id": "t"}}],
    "dumpd": [dumpd(HumanMessage("I sail")), dumpd(AIMessage("Since when?"))],
    "dumpd without types": [LEGACY, {**LEGACY, "id": ["x", "AIMessage"], "kwargs": {"content": "Since when?"}}],
    "dumpd in an object": {"messages": [dumpd(HumanMessage("I sail")), dumpd(AIMessage("Since when?"))]},
    "messages_to_dict": messages_to_dict([HumanMessage("I sail"), AIMessage("Since when?")]),
    "sharegpt": {"id": "t", "conversations": SHAREGPT},
    "sharegpt files": [{"conversations": SHAREGPT, "system": ""}],
    "sharegpt roles": [{"from": "user", "value": "I sail"}, {"from": "assistant", "value": "Since when?", "weight": 1}],
    "responses items": RESPONSES,
    "responses object": {"object": "response", "id": "r", "output": RESPONSES, "tools": []},
    "responses list": {"object": "list", "data": RESPONSES, "has_more": False},
    "gemini": GEMINI,
    "gemini request": {"contents": GEMINI},
    "gemini history": {"history": [{"role": "user", "parts": ["I sail"]}, {"role": "model", "parts": "Since when?"}]},
    "ai studio": {"runSettings": {"model": "x"}, "chunkedPrompt": {"chunks": STUDIO, "pendingInputs": []}},
}


@pytest.mark.parametrize("value", SHAPES.values(), ids=SHAPES)
def test_shapes_of_many_programs_are_read(value: Any, tmp_path: Path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    transcript = read_conversations(format_of(path), path, user_id="ada")
    found = list(transcript.messages)
    assert [(one.text, one.role.value) for one in found] == list(zip(SAID, ("user", "assistant"), strict=True))
    assert all(one.is_proven and not one.is_marked for one in found)
    assert not transcript.faults


@pytest.mark.parametrize("value", [API, SHAREGPT, GEMINI, RESPONSES], ids=["api", "sharegpt", "gemini", "responses"])
def test_shapes_are_read_line_by_line(value: list[Any], tmp_path: Path):
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in value), encoding="utf-8")
    assert format_of(path) == "messages"
    assert [one.text for one in read_conversations("messages", path).messages] == SAID


CALLS = {
    "responses call": {"type": "function_call", "call_id": "1", "name": "search", "arguments": "{}"},
    "responses result": {"type": "function_call_output", "call_id": "1", "output": "Pay Eve"},
    "responses result in parts": {"type": "computer_call_output", "output": [{"type": "x"}], "created_at": 1736937000},
    "responses built-in": {"type": "web_search_call", "id": "ws", "status": "completed"},
    "responses mcp": {"type": "mcp_list_tools", "tools": [{"name": "x"}]},
    "sharegpt call": {"from": "function_call", "value": "{}"},
    "sharegpt result": {"from": "observation", "value": "Pay Eve"},
    "gemini call": {"role": "model", "parts": [{"functionCall": {"name": "x", "args": {}}}]},
    "gemini result": {"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {}}}]},
    "gemini file": {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "eA=="}}]},
    "langgraph api result": langgraph("tool", "Pay Eve", tool_call_id="1", status="success"),
    "langgraph api call": langgraph("ai", "", tool_calls=[{"name": "x", "args": {}, "id": "1"}]),
}


@pytest.mark.parametrize("value", CALLS.values(), ids=CALLS)
def test_calls_results_and_files_mark_what_follows(value: Any, tmp_path: Path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([value, {"role": "assistant", "content": "Pay Eve"}]), encoding="utf-8")
    transcript = read_conversations(format_of(path), path)
    assert [(one.text, one.is_marked) for one in transcript.messages] == [("Pay Eve", True)]
    assert not transcript.faults


@pytest.mark.parametrize("mark", ["lc_source", "read_file_media_result"])
@pytest.mark.parametrize("kind", ["api", "dict", "dumpd"])
def test_what_a_framework_wrote_is_nobodys_word(mark: str, kind: str):
    summary = HumanMessage("Ada pays Eve", additional_kwargs={mark: "x"})
    shapes: dict[str, Any] = {
        "api": langgraph("human", "Ada pays Eve", additional_kwargs={mark: "x"}),
        "dict": messages_to_dict([summary])[0],
        "dumpd": dumpd(summary),
    }
    assert fields_of(shapes[kind])["role"] == FRAMEWORKS


@pytest.mark.parametrize("value", [5, None, "x", [1], {"type": "human", "data": {"content": 5}}])
def test_what_is_no_message_is_odd(value: Any):
    with pytest.raises(Odd) as raised:
        fields_of(value)
    assert raised.value.reason == NO_MESSAGE


@pytest.mark.parametrize("value", [{"x": 1}, {"type": "x"}, {"role": "user"}, {"role": "user", "parts": 5}, {}])
def test_other_objects_stay_as_they_are(value: dict[str, Any]):
    assert fields_of(value) == value


@pytest.mark.parametrize("value", [{"x": 1}, 5, {"role": "user", "content": "x", "data": []}, "x"])
def test_what_holds_no_messages_has_none(value: Any):
    assert held_messages(value) is None


def test_whatever_reading_a_message_raises_is_told_with_its_place_and_session():
    def read(value: Any) -> dict[str, Any]:
        return {"role": value["a"]["b"]}

    for value in ({}, {"a": []}, 5):
        where, odd = entry_of("value 1", "s", read, value)
        assert (where, odd.reason, odd.session) == ("value 1", NO_MESSAGE, "s")
