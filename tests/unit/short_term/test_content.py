"""What messages hold in providers' forms: their words however deep they lie, media by name, calls that content has."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from short_term_support import FORMS, calls, exchange, result

from inference_core.short_term.content import calls_in, is_call, results_in, text_in, told_calls
from inference_core.short_term.window import MEDIA_TOKENS, count_tokens

WORDS = "The warranty of the Zephyr-9 ends after 41 months. " * 100


def test_text_is_no_call():
    assert not is_call("tool_use")
    assert is_call({"type": "function_call"})


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            {
                "type": "search_result",
                "source": "https://e.org/z",
                "title": "Warranty",
                "content": [{"type": "text", "text": WORDS}],
            },
            f"https://e.org/z\nWarranty\n{WORDS}",
        ),
        (
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": WORDS}},
            f"T\n{WORDS}",
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": WORDS}, "more"]}},
            f"{WORDS}\nmore",
        ),
        ({"type": "resource", "resource": {"uri": "file:///w.md", "text": WORDS}}, WORDS),
        ({"type": "json", "json": {"warranty": WORDS}}, f'{{"warranty": "{WORDS}"}}'),
        ({"type": "json", "json": [WORDS, 41]}, f'["{WORDS}", 41]'),
        ({"type": "refusal", "refusal": WORDS}, WORDS),
        ({"type": "text-plain", "text": WORDS, "mime_type": "text/plain"}, WORDS),
        ({"type": "resource_link", "uri": "file:///w.md", "name": WORDS}, f"file:///w.md\n{WORDS}"),
        (
            {
                "type": "code_execution_tool_result",
                "tool_use_id": "a",
                "content": {"type": "code_execution_result", "stdout": WORDS, "return_code": 0},
            },
            WORDS,
        ),
        ({"type": "web_search_call", "id": "ws", "action": {"type": "search", "query": WORDS}}, WORDS),
        ({"type": "function_call_output", "call_id": "a", "output": WORDS}, WORDS),
        ({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": WORDS}]}, WORDS),
        (
            {"toolResult": {"toolUseId": "a", "content": [{"json": {"ends": WORDS}}], "status": "success"}},
            f'{{"ends": "{WORDS}"}}',
        ),
        (
            {"functionResponse": {"id": "a", "name": "look", "response": {"ends": WORDS}}},
            f'look\n{{"ends": "{WORDS}"}}',
        ),
        ({"type": "table", "rows": [["ends", 41, WORDS]]}, f'[["ends", 41, "{WORDS}"]]'),
    ],
)
def test_words_within_blocks_are_kept_and_counted(block: Any, expected: str):
    message = ToolMessage([block], tool_call_id="1")
    assert text_in(message) == expected
    assert count_tokens([message]) == pytest.approx(len(expected) / 4, abs=12)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            "[image image/png]",
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://a.example/c.png"}},
            "[image https://a.example/c.png]",
        ),
        ({"type": "image", "data": "AA==", "mimeType": "image/png"}, "[image image/png]"),
        (
            {
                "type": "document",
                "title": "Report",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
            },
            "Report\n[document application/pdf]",
        ),
        ({"type": "document", "source": {"type": "file", "file_id": "f-1"}}, "[document f-1]"),
        ({"type": "resource", "resource": {"uri": "file:///c.png", "blob": "AA=="}}, "[resource file:///c.png]"),
        ({"type": "input_image", "image_url": "https://a.example/c.png"}, "[input_image https://a.example/c.png]"),
        ({"type": "input_image", "image_url": "data:image/png;base64,AA=="}, "[input_image]"),
        ({"type": "input_file", "filename": "c.pdf", "file_data": "AA=="}, "[input_file]"),
        (
            {"type": "tool_result", "content": [{"type": "image", "base64": "AA", "mime_type": "image/png"}]},
            "[image image/png]",
        ),
        ({"type": "chart", "picture": "data:image/png;base64,AA=="}, "[picture image/png]"),
        ({"type": "recording", "data": "AA==", "mime_type": "audio/wav"}, "[recording audio/wav]"),
        ({"type": "search_result", "content": []}, "[search_result]"),
    ],
)
def test_media_are_named_by_place_or_type_however_deep(block: Any, expected: str):
    message = HumanMessage(["Look", block])
    assert text_in(message) == f"Look\n{expected}"
    assert MEDIA_TOKENS < count_tokens([message]) < MEDIA_TOKENS + 20


def test_thoughts_and_calls_are_no_words():
    block = {"type": "redacted_thinking", "data": "x" * 400}
    message = AIMessage([block, {"type": "tool_use", "id": "a", "name": "find", "input": {}}, "so"])
    assert text_in(message) == "so"
    assert 100 < count_tokens([message]) < MEDIA_TOKENS


@pytest.mark.parametrize("form", FORMS)
def test_calls_and_results_are_read_in_any_form(form: str):
    call, answer = exchange(form, "a")
    (asked,), (told,) = calls_in(call), results_in(answer)
    assert asked.id == told.id == (None if form == "function" else "a")
    assert (calls_in(answer), results_in(call)) == ([], [])


def test_a_call_is_told_once_whatever_forms_hold_it():
    click = {"type": "computer_call", "id": "cu", "call_id": "c", "action": {"type": "click"}}
    use = {"type": "tool_use", "id": "a", "name": "find", "input": {}}
    broken: Any = {"name": "find", "args": "{", "id": "z", "error": "no JSON"}
    asked: Any = {"name": "find", "args": {}, "id": "a"}
    message = AIMessage([use, click], tool_calls=[asked], invalid_tool_calls=[broken])
    assert [call.id for call in calls_in(message)] == ["a", "z", "c"]
    (find, again, other) = told_calls(message)
    assert (find, again, other[0]) == (("find", "{}"), ("find", "{"), "computer_call")
    assert told_calls(HumanMessage("a")) == []


def test_a_call_that_the_provider_has_answered_itself_waits_for_nothing():
    shell = {"type": "shell_call", "id": "sh", "call_id": "s", "action": {}}
    message = AIMessage([shell, {"type": "shell_call_output", "call_id": "s", "output": "done"}])
    (call,) = calls_in(message)
    assert call.lacking == "kept"
    assert calls_in(calls("a"))[0].lacking == "answered"
    assert results_in(result("a"))[0].at is None
