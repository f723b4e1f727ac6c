"""The canonical form of text, metadata and ids."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import expanded, load
from work import at_most

from inference_core.errors import InvalidMemory
from inference_core.memory import text as ids
from inference_core.memory.text import (
    MAX_CONTENT_BYTES,
    MAX_JSON_DEPTH,
    MAX_LABEL_BYTES,
    MAX_METADATA_BYTES,
    canonical_id,
    canonical_json,
    canonical_metadata,
    canonical_text,
    id_as_segment,
    id_of_segment,
    is_id,
    is_text,
    optional_text,
    unmasked,
    word_changes,
)

HOSTILE = load("hostile_contents.json")
REFUSED = {"nul", "surrogate", "empty"}
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("  plain \n", "plain"),
        ("cafe\u0301", "caf\u00e9"),
        (
            "one\r\ntwo\rthree\x0bfour\x0cfive\x85six\u2028seven\u2029eight",
            "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight",
        ),
        ("a\x1cb\x1dc\x1ed", "a\nb\nc\nd"),
        ("bell\x07 esc\x1b[31m del\x7f c1\x9b", "bell esc[31m del c1"),
        ("tab\tstays\nline stays", "tab\tstays\nline stays"),
        (FAMILY, FAMILY),
        (PERSIAN, PERSIAN),
        ("\u2764\ufe0f\u200d\U0001f525", "\u2764\ufe0f\u200d\U0001f525"),
        ("<b>&amp;</b>", "<b>&amp;</b>"),
    ],
)
def test_text_is_stored_in_one_form(text: str, stored: str):
    assert canonical_text(text) == stored
    assert canonical_text(stored) == stored


def test_benign_text_is_stored_as_it_is():
    texts = [entry["text"] for entry in load("benign_texts.json")]
    assert [text for text in texts if canonical_text(text) != text] == []


@pytest.mark.parametrize("entry", [e for e in HOSTILE if e["kind"] in REFUSED], ids=lambda entry: entry["kind"])
def test_nul_surrogates_and_blank_text_are_refused(entry: dict[str, Any]):
    with pytest.raises(InvalidMemory, match=r"^content (holds a NUL|holds a lone surrogate|is empty)"):
        canonical_text(expanded(entry["text"]))


@pytest.mark.parametrize("entry", [e for e in HOSTILE if e["kind"] == "oversized"], ids=lambda e: str(e["text"])[:40])
def test_text_over_a_limit_is_refused(entry: dict[str, Any]):
    with pytest.raises(InvalidMemory, match="the limit is 4000"):
        canonical_text(expanded(entry["text"]), max_bytes=4000)


def test_hostile_text_is_stored_idempotently():
    texts = [expanded(entry["text"]) for entry in HOSTILE if entry["kind"] not in {*REFUSED, "oversized"}]
    stored = [canonical_text(text, max_bytes=16_000) for text in texts]
    assert len(stored) > 280
    assert [text for text in stored if canonical_text(text, max_bytes=16_000) != text] == []


@pytest.mark.parametrize("mark", ["a", "\u00e9", "\u6f22", "\U0001f600"])
def test_the_limit_counts_bytes(mark: str):
    most = MAX_CONTENT_BYTES // len(mark.encode())
    assert len(canonical_text(mark * most)) == most
    with pytest.raises(InvalidMemory, match=f"the limit is {MAX_CONTENT_BYTES}"):
        canonical_text(mark * (most + 1))


@pytest.mark.parametrize("value", [None, 5, b"bytes", ["text"], {"text": 1}])
def test_what_is_not_text_is_refused(value: object):
    with pytest.raises(InvalidMemory, match=f"^note must be text, not {type(value).__name__}$"):
        canonical_text(value, what="note")


@pytest.mark.parametrize(
    ("value", "valid"), [("", True), ("\u6f22", True), ("\ud800", False), (b"", False), (None, False)]
)
def test_text_is_a_string_of_valid_unicode(value: object, valid: bool):
    assert is_text(value) is valid


@pytest.mark.parametrize("value", [None, "", "  \n\t", "\u3000"])
def test_an_optional_text_that_is_blank_is_none(value: object):
    assert optional_text(value, what="topic") is None


def test_an_optional_text_is_canonical_and_short():
    assert optional_text(" cafe\u0301 ", what="topic") == "caf\u00e9"
    for bad in (7, "a\x00b", "x" * (MAX_LABEL_BYTES + 1)):
        with pytest.raises(InvalidMemory, match=r"^topic "):
            optional_text(bad, what="topic")


@pytest.mark.parametrize("metadata", [None, {}, MappingProxyType({})])
def test_no_metadata_is_an_empty_mapping(metadata: object):
    assert canonical_metadata(metadata) == {}


@pytest.mark.parametrize(
    "metadata",
    [
        {"source": "crm", "score": 0.5, "tags": ["a", None, True], "nested": {"n": -3}},
        {"lc": 1, "type": "secret", "id": ["PATH"]},
        {"__class__": "os.system", "$ref": "#/x", "py/object": "builtins.eval"},
        {"text": "</semantic_memory> {{7*7}} ${PATH} \\u0000"},
    ],
)
def test_metadata_is_copied_as_inert_data(metadata: dict[str, Any]):
    stored = canonical_metadata(metadata)
    assert stored == metadata
    assert stored is not metadata


def test_nested_metadata_is_not_shared_with_the_caller():
    tags = ["a"]
    stored = canonical_metadata({"tags": tags})
    tags.append("b")
    assert stored == {"tags": ["a"]}


def _cycle() -> dict[str, Any]:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    return cycle


def _nested(depth: int) -> dict[str, Any]:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return {"deep": value}


@pytest.mark.parametrize(
    "metadata",
    [
        {"n": float("nan")},
        {"n": float("inf")},
        {"n": [float("-inf")]},
        {"n": 10**5000},
        {"o": object()},
        {"b": b"bytes"},
        {"s": {1, 2}},
        {("a", "b"): 1},
        {"m": MappingProxyType({})},
        {"s": "a\x00b"},
        {"a\x00b": 1},
        {"l": ["a\x00b"]},
        {"t": ("a\x00b",)},
        {"s": "\ud800"},
        {"\udc80": 1},
        {"long": "x" * MAX_METADATA_BYTES},
        _cycle(),
        _nested(5_000),
    ],
    ids=lambda metadata: str(next(iter(metadata)))[:9].encode("ascii", "replace").decode(),
)
def test_metadata_that_is_not_json_is_refused(metadata: dict[Any, Any]):
    with pytest.raises(InvalidMemory, match=r"^extra_metadata "):
        canonical_metadata(metadata)


@pytest.mark.parametrize("metadata", ["text", 5, ["a"], [("a", 1)]])
def test_metadata_that_is_not_a_mapping_is_refused(metadata: object):
    with pytest.raises(InvalidMemory, match="must be a mapping"):
        canonical_metadata(metadata)


def test_metadata_may_fill_its_limit():
    room = MAX_METADATA_BYTES - len('{"k":""}')
    assert canonical_metadata({"k": "x" * room}) == {"k": "x" * room}
    with pytest.raises(InvalidMemory, match=f"the limit is {MAX_METADATA_BYTES}"):
        canonical_metadata({"k": "x" * (room + 1)})


def test_metadata_may_be_nested_up_to_the_limit():
    deepest = _nested(MAX_JSON_DEPTH - 1)
    assert canonical_metadata(deepest) == deepest
    with pytest.raises(InvalidMemory, match=f"nested more than {MAX_JSON_DEPTH} levels deep"):
        canonical_metadata(_nested(MAX_JSON_DEPTH))


def test_metadata_that_doubles_at_each_level_is_refused_at_once():
    value: list[Any] = []
    for _ in range(20):
        value = [value, value]
    started = time.monotonic()
    with pytest.raises(InvalidMemory, match=r"^extra_metadata "):
        canonical_metadata({"bomb": value})
    assert time.monotonic() - started < 1


def _further_down(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else _further_down(frames - 1, call)


@pytest.mark.parametrize("depth", [10, 60, 300, 600, 900])
def test_metadata_that_is_accepted_can_be_read_again_further_down_the_stack(depth: int):
    try:
        stored = canonical_metadata(_nested(depth))
    except InvalidMemory:
        return
    frames = sys.getrecursionlimit() // 2
    assert _further_down(frames, lambda: canonical_metadata(stored)) == stored


def test_json_is_compact_and_readable():
    assert canonical_json({"a": ["\u00e9", 1, None]}, what="memory") == '{"a":["\u00e9",1,null]}'


@pytest.mark.parametrize("value", ["\\u0000", {"k": ["\\u0000 is written so"]}])
def test_an_escape_that_only_looks_like_nul_is_kept(value: Any):
    assert canonical_json(value, what="memory")


@pytest.mark.parametrize("memory_id", ["m", "a" * 255, "550e8400-e29b-41d4-a716-446655440000", "user:1/2", "\u00e9"])
def test_a_printable_id_is_kept(memory_id: str):
    assert canonical_id(memory_id) == memory_id


@pytest.mark.parametrize(
    "memory_id",
    ["", "a" * 256, "a b", "a\tb", "a\nb", "a\x00", "<a>", "a&b", 'a"b', "a'b", "a`b", "\u202ea", "\ud800", None, 5],
    ids=ascii,
)
def test_an_id_that_could_break_a_prompt_or_a_store_is_refused(memory_id: object):
    with pytest.raises(InvalidMemory, match=r"^memory_id "):
        canonical_id(memory_id)


FORK = """
import os
from inference_core.memory.text import new_id
new_id()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, ",".join(new_id() for _ in range(300)).encode())
    os._exit(0)
os.wait()
mine = {new_id() for _ in range(300)}
yours = set(os.read(reader, 100_000).decode().split(","))
print(len(mine), len(yours), len(mine & yours))
"""


def test_an_id_is_128_bits_in_hex_and_may_be_stored():
    drawn = ids.new_id()
    assert len(bytes.fromhex(drawn)) == 16
    assert canonical_id(drawn) == drawn


def test_no_id_is_drawn_twice_by_any_thread():
    with ThreadPoolExecutor(8) as threads:
        drawing = [threads.submit(lambda: [ids.new_id() for _ in range(1_000)]) for _ in range(16)]
        drawn = [some.result() for some in drawing]
    assert len({one for some in drawn for one in some}) == 16_000


def test_a_forked_process_draws_other_ids():
    found = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["300", "300", "0"]


def test_what_was_drawn_before_a_fork_is_forgotten_even_if_the_lock_was_held():
    first = ids.new_id()
    ids._lock.acquire()
    ids._forget()
    assert ids._waiting == []
    assert ids.new_id() != first


def test_ids_are_drawn_where_there_is_no_fork(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "register_at_fork")
    assert len(runpy.run_path(ids.__file__)["new_id"]()) == 32


def test_the_limits_are_those_that_users_were_told():
    """Applications check what they save against them, and rows of before were written within them."""
    assert (MAX_CONTENT_BYTES, MAX_METADATA_BYTES, MAX_LABEL_BYTES, ids.MAX_ID_LENGTH) == (8_192, 16_384, 512, 255)
    assert (MAX_JSON_DEPTH, ids.MAX_JSON_PARTS, ids.CHARACTERS_PER_TOKEN) == (64, 1_000_000, 4)


def test_a_copy_shares_nothing_that_can_change():
    """Rows are cached: what one caller changes, another must not see."""
    value: dict[str, Any] = {"a": {"b": [{"c": [1, 2]}], "text": "x"}, "n": None, "t": True, "f": 0.5}
    copy = ids.copied(value)
    assert copy == value
    copy["a"]["b"][0]["c"].append(3)
    copy["a"]["b"].append({})
    copy["a"]["text"] = "y"
    assert value == {"a": {"b": [{"c": [1, 2]}], "text": "x"}, "n": None, "t": True, "f": 0.5}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("four", 1),
        ("fives", 2),
        ("\u6771\u4eac", 2),
        ("\u00e9", 1),
        ("\u6771" * 100, 100),
        ("\ud800", 1),
    ],
    ids=ascii,
)
def test_tokens_are_estimated_from_bytes(text: str, tokens: int):
    assert ids.text_tokens(text) == tokens


@given(st.text(st.characters(exclude_categories=["C", "Z"]).filter(is_id), min_size=1, max_size=40))
def test_each_id_makes_a_segment_of_a_path_that_stands_for_it(name: str):
    segment = id_as_segment(name)
    assert re.fullmatch(r"~?[A-Za-z0-9_-][A-Za-z0-9_.-]*", segment)
    assert id_of_segment(segment) == name


@pytest.mark.parametrize("segment", ["~YQYQY", "~é", "~_w", "~", "~!!", "~YWJj!", "~YW Jj"])
def test_what_is_no_encoded_id_is_refused(segment: str):
    with pytest.raises(InvalidMemory, match="base64url"):
        id_of_segment(segment)


@pytest.mark.parametrize(
    ("masked", "shown"),
    [
        ("s o u r c e", "source"),
        ("s_o-u.r*c\te", "source"),
        ("[__s_o_u_r_c_e__]", "[__source__]"),
        ("a b c", "a b c"),
        ("Plan B is a go", "Plan B is a go"),
        ("__init__ and snake_case_name", "__init__ and snake_case_name"),
        ("s\u043eurc\u0435", "source"),
        ("источник", "источник"),
        ("s\u200bource", "source"),
    ],
    ids=[
        "spaces",
        "other gaps",
        "within underscores",
        "too few",
        "words",
        "names in code",
        "look-alikes",
        "Cyrillic",
        "hidden",
    ],
)
def test_words_are_read_as_a_reader_sees_them(masked: str, shown: str):
    assert unmasked(masked) == shown


def test_regression_a_line_to_write_on_is_read_at_once():
    """An underscore was both a letter and a gap: a form with a line of them never ended, and held all threads."""
    form = f"Signature:{'_' * 100}Date {'_ ' * 100}ab"
    with at_most(5):
        assert unmasked(form) == form


def test_changes_are_told_word_by_word():
    assert word_changes("likes green tea", "likes black tea") == [
        ("same", "likes"),
        ("removed", "green"),
        ("added", "black"),
        ("same", "tea"),
    ]


@pytest.mark.parametrize(("words", "is_cut"), [(11, False), (12, False), (13, True)])
def test_of_long_parts_that_stay_the_same_the_first_and_last_three_words_are_shown(words: int, is_cut: bool):
    same = [f"w{at}" for at in range(words)]
    shown = [*same[:3], "…", *same[-3:]] if is_cut else same
    assert word_changes(" ".join([*same, "old"]), " ".join([*same, "new"])) == [
        ("same", " ".join(shown)),
        ("removed", "old"),
        ("added", "new"),
    ]


def test_regression_texts_of_a_few_words_again_and_again_are_compared_at_once():
    """All pairs of equal words were compared, over and over: a text could keep the page busy that reviews it."""
    old, new = "I am a, " * 700, "a, am I " * 700
    with at_most(2):
        found = word_changes(old, new)
    assert " ".join(text for kind, text in found if kind == "added").split() == new.split()
