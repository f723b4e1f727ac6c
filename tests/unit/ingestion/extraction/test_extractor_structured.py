"""The JSON in what models write, in time that grows with its length."""

from __future__ import annotations

import time
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel
from work import at_most

from inference_core.ingestion.extraction.extractor import MAX_CHARACTERS, MAX_VALUES, PROMPTS, answer_of, find_json
from inference_core.ingestion.extraction.schema import ExtractedMemories
from inference_core.ingestion.periodic.insights import HigherLevelMemories
from inference_core.ingestion.periodic.summaries import SessionSummary


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("no brackets", []),
        ('x {"a": 1} y [2] z', [{"a": 1}, [2]]),
        ("{'a': 'it''s'}", [{"a": "it''s"}]),
        ("{'a': True, b: none, c: undefined}", [{"a": "True", "b": None, "c": None}]),
        ("[1, word, 'a word',]", [["1", "a word"]]),
        ('{:, "a": 1, "b":, "c", "d": 3}', [{"a": "1", "d": "3"}]),
        ('[{"a": 1]}', [[{"a": "1"}]]),
        ("{[1]: 2, b: 3}", [{"b": "3"}]),
        ("[1, (x=2, y)]", [["1", {"x": "2"}]]),
        ('{{"a": 1}, b: 2}', [{"a": "1", "b": "2"}]),
        ('{"a": /* x */ 1, // y\n "b": 2 /* z */, c: 3 // z\n}', [{"a": "1", "b": "2", "c": "3"}]),
        ("{'a': '\\b\\f\\n\\r\\t\\'\\\\\\/\\u0041\\uZZ'}", [{"a": "\b\f\n\r\t'\\/AuZZ"}]),
        ('{\\"a\\": \\"b\\\\nc\\"}', [{"a": "b\nc"}]),
        ('{\\n  \\"a\\": 1}', [{"a": 1}]),
        ('{"a": "b" "c": 1}', [{"a": "b", "c": "1"}]),
        ('{"a": "say "b c" d", "e": 1}', [{"a": 'say "b c" d', "e": "1"}]),
    ],
)
def test_forms(text: str, values: list[Any]):
    assert find_json(text) == (values, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "b', {}),
        ('{"a": "b\\', {}),
        ('{"a": [1, "b", "c', {"a": ["1", "b"]}),
        ('{"a": 1 /* x', {}),
        ('{"a": "b"\n```\nmore [1]', {}),
        ('{"a": [{"b": 1}, {"b": 2', {"a": [{"b": "1"}, {}]}),
        ("[", []),
        ('[{"a": 1]', [{"a": "1"}]),
        ("{'a':" * 100, None),
        ("[" * 100_000, None),
    ],
)
def test_of_what_is_cut_off_or_too_deep_the_whole_parts_are_given(text: str, value: Any):
    (given,), is_cut = find_json(text)
    assert is_cut
    if value is not None:
        assert given == value


HARD = {
    "quote-without-end": '{"memories":[{"content":"' + "x" * 1_000_000,
    "quotes": '{"a":"' + '"x' * 300_000,
    "quotes-and-commas": '{"a":"' + 'he said, then "other" thing, ' * 30_000,
    "openings": "[" * 1_000_000,
    "values": "[1}" * 300_000,
    "objects": "{x]" * 300_000,
    "comments": '{"a":' + "/*" * 400_000,
    "mixed": "{'a\"[{,:}]`'" * 80_000,
    "space": ('"' + " " * 50) * 10_000 + '{"a":"' + ('" ,' + " " * 50) * 10_000,
    "commas": "{a: b" + ", c" * 300_000,
    "escapes": "['" + "\\" * 400_001,
    "think": "<think>" * 150_000,
    "words": "{a b" * 300_000,
}


@pytest.mark.parametrize("name", list(HARD))
def test_long_texts_take_little_time(name: str):
    started = time.process_time()
    values, _ = find_json(HARD[name])
    assert time.process_time() - started < 5
    assert len(values) <= MAX_VALUES


def test_beyond_the_limit_nothing_is_read():
    assert find_json('{"a": "' + "x" * MAX_CHARACTERS + '"} {"b": 1}') == ([{}], True)


@pytest.mark.parametrize(
    ("task", "form"),
    [("extraction", ExtractedMemories), ("summary", SessionSummary), ("insight", HigherLevelMemories)],
    ids=["extraction", "summary", "insight"],
)
def test_prompts_name_the_tool_and_the_fields_of_their_form(task: str, form: type[BaseModel]):
    prompts = PROMPTS[task]
    assert f"one call of {form.__name__} " in prompts["rules"]
    assert f"{{problem}}. Answer again with one call of {form.__name__}, " in prompts["repair"]
    assert all(f'"{name}": ' in prompts["rules"] for name in form.model_fields)


@pytest.mark.parametrize("text", [" " * 100_000, "`\n" * 50_000 + "none"], ids=["spaces", "quotes"])
def test_regression_an_answer_of_spaces_is_read_at_once(text: str):
    """What stood before "json" could also stand after it, so each way to share it was tried."""
    with at_most(2):
        assert not answer_of(AIMessage(text)).entries


@pytest.mark.parametrize("text", ["[]", "```json\n[ ]\n```", "json {}", " `json` {\n}`"])
def test_an_answer_without_memories_says_so(text: str):
    assert answer_of(AIMessage(text)).is_empty
