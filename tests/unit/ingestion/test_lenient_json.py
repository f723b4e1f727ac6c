"""JSON as models write it, in time that grows with its length."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from inference_core.ingestion.lenient_json import MAX_CHARACTERS, MAX_VALUES, Bare, Cut, find_json


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("no brackets", []),
        ('x {"a": 1} y [2] z', [{"a": 1}, [2]]),
        ("{'a': 'it''s'}", [{"a": "it''s"}]),
        ("{'a': True, b: none, c: undefined}", [{"a": True, "b": None, "c": None}]),
        ("[1, -2.5, 1e3, word, two words,]", [[1, -2.5, 1000, "word", "two words"]]),
        ('{:, "a": 1, "b":, "c", "d": 3}', [{"a": 1, "b": None, "c": None, "d": 3}]),
        ('{"a": 1]', [{"a": 1}]),
        ("[[1}, 2]", [[[1]]]),
        ("[1: 2,, 3]", [["1: 2", 3]]),
        ('{{"a": 1}, b: 2}', [{"a": 1, "b": 2}]),
        ('{[1], "a": 1', [{"1": None}]),
        ('{"a": /* x */ 1, // y\n "b": 2 /* z */, c: 3 // z\n}', [{"a": 1, "b": 2, "c": 3}]),
        ("{a: http://x/y, b: 1}", [{"a": "http://x/y", "b": 1}]),
        ("{'a': '\\b\\f\\n\\r\\t\\'\\\\\\/\\u0041\\uZZ'}", [{"a": "\b\f\n\r\t'\\/AuZZ"}]),
        ("\u201ex\u201c {\u201ea\u201c: \u201eb\u201c}", [{"a": "b"}]),
        ("{a: b, c, d: e,, f}", [{"a": "b, c", "d": "e,, f"}]),
        ("{a: b, ,c: d}", [{"a": "b,", "c": "d"}]),
        ('{\\"a\\": \\"b\\\\nc\\"}', [{"a": "b\nc"}]),
        ('{\\n  \\"a\\": 1}', [{"a": 1}]),
        ('{"a": "b" "c": 1}', [{"a": "b", "c": 1}]),
        ('{"a": "say "b c" d", "e": 1}', [{"a": 'say "b c" d', "e": 1}]),
    ],
)
def test_forms(text: str, values: list[Any]):
    found = find_json(text)
    assert found.values == values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1', {"a": 1}),
        ('{"a": "b', {"a": "b"}),
        ('{"a": "b\\', {"a": "b"}),
        ('{"a": [1, "b", "c', {"a": [1, "b"]}),
        ('{"a":', {"a": None}),
        ('{"a', {"a": None}),
        ("[", []),
        ('{"a": 1 /* x', {"a": 1}),
        ('{"a": 1\n```\nmore', {"a": 1}),
    ],
)
def test_what_is_cut_off_says_so(text: str, value: Any):
    found = find_json(text)
    assert found.is_cut
    assert found.values == [value]
    assert isinstance(found.values[0], Cut | list)


def test_complete_parts_of_what_is_cut_are_no_cut_parts():
    (outer,) = find_json('{"a": [{"b": 1}, {"b": 2').values
    assert [isinstance(part, Cut) for part in (outer, *outer["a"])] == [True, False, True]


def test_words_without_quotes_are_told_from_texts():
    (words,) = find_json("[a b, 'a b']").values
    assert [isinstance(word, Bare) for word in words] == [True, False]


def test_not_a_number():
    (value,) = find_json("[NaN, 'x'").values
    assert math.isnan(value[0])


@pytest.mark.parametrize("text", ["[" * 70 + "1" + "]" * 70 + "x'", "{'a':" * 100])
def test_what_is_nested_too_deeply_is_left_out(text: str):
    found = find_json("[1] " + text + " [2]" if text.startswith("{") else "[1] " + text.replace("]", "}"))
    assert found.is_deep
    assert found.values == [[1]]


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
}


@pytest.mark.parametrize("name", list(HARD))
def test_long_texts_take_little_time(name: str):
    started = time.perf_counter()
    found = find_json(HARD[name])
    assert time.perf_counter() - started < 5
    assert len(found.values) <= MAX_VALUES


def test_beyond_the_limit_nothing_is_read():
    found = find_json('{"a": "' + "x" * MAX_CHARACTERS + '"} {"b": 1}')
    assert found.is_cut
    assert len(found.values) == 1
