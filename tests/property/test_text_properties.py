"""Canonical text and metadata, whatever they hold."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.errors import InvalidMemory
from inference_core.memory.text import canonical_id, canonical_metadata, canonical_text

MANY = examples(100)
ANY_TEXT = st.text(alphabet=st.characters(), max_size=60)
PRONE = st.text(alphabet="\r\n\x0b\x1c\x1f\x85\u2028 e\u0301\u200d\u200c\ufeff\u1100\u1161\u0958", max_size=12)
NAMES = st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@MANY
@given(ANY_TEXT | PRONE)
@example("\u0344")
@example("a\u2028\x1f ")
def test_canonical_text_is_a_fixed_point(text: str):
    try:
        stored = canonical_text(text)
    except InvalidMemory:
        assert "\x00" in text or not text.encode(errors="ignore").strip() or not text.isprintable()
        return
    assert canonical_text(stored) == stored
    assert unicodedata.is_normalized("NFC", stored)
    assert stored == stored.strip() != ""
    assert not [mark for mark in stored if unicodedata.category(mark) in ("Cc", "Cs") and mark not in "\n\t"]


@MANY
@given(st.text(alphabet=st.characters(categories=["L", "N", "S"]), min_size=1, max_size=60))
def test_letters_numbers_and_symbols_are_kept(text: str):
    assert canonical_text(text) == unicodedata.normalize("NFC", text)


@MANY
@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_json_metadata_is_kept(metadata: dict[str, Any]):
    stored = canonical_metadata(metadata)
    assert stored == metadata
    assert canonical_metadata(stored) == stored


@MANY
@given(st.dictionaries(st.text(max_size=5), st.floats() | st.binary(max_size=3) | ANY_TEXT, max_size=5))
def test_other_metadata_is_kept_or_refused(metadata: dict[str, Any]):
    bad = [
        value
        for value in (*metadata, *metadata.values())
        if isinstance(value, bytes)
        or (isinstance(value, float) and not math.isfinite(value))
        or (isinstance(value, str) and ("\x00" in value or any("\ud800" <= mark <= "\udfff" for mark in value)))
    ]
    try:
        stored = canonical_metadata(metadata)
    except InvalidMemory:
        assert bad
    else:
        assert not bad
        assert stored == metadata


@MANY
@given(ANY_TEXT)
def test_an_id_is_kept_or_refused(text: str):
    try:
        assert canonical_id(text) == text
    except InvalidMemory:
        assert not text or any(not mark.isprintable() or mark in " <>&\"'`" for mark in text)
    else:
        assert text.encode()
