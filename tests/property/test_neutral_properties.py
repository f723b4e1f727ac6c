"""neutral_line, whatever the text holds."""

from __future__ import annotations

import html
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.context.render import MAX_LINE_CHARACTERS, neutral_line

MANY = examples(100)
STEERING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x2070)), *map(chr, range(0xFFF9, 0xFFFC))}
INVISIBLE = "\u115f\u1160\u3164\uffa0"
PRONE = st.text(
    alphabet="<>&;/#lgt\uff1c\uff1e\uff06\ufe64\ufe65\ufe60\u226e\n\r\t\u2028\x85\x1b\u202e\u2066\u200b\ufe0f\u0338\u0301"
    "\U0001f3f4\U000e0067\U000e007f\ud800 "
)
VISIBLE = st.characters(categories=["L", "N", "P", "S"], exclude_characters=INVISIBLE)


@MANY
@given(PRONE | st.text(alphabet=st.characters()))
def test_any_text_becomes_one_line_without_markup_or_steering_characters(text: str):
    line = unicodedata.normalize("NFKC", neutral_line(text))
    assert len(line.splitlines()) <= 1
    assert not {"<", ">", *STEERING} & set(line)
    assert not [mark for mark in line if unicodedata.category(mark) in ("Cc", "Cs")]


@MANY
@given(PRONE | st.text(alphabet=st.characters()), st.integers(1, 50))
def test_a_line_is_about_as_long_as_it_may_be(text: str, most: int):
    assert len(html.unescape(neutral_line(text, most))) <= most + len(" \u2026 [cut]")


@MANY
@given(st.lists(st.text(alphabet=VISIBLE, min_size=1), max_size=8).map(" ".join))
def test_what_is_visible_is_read_back_exactly(text: str):
    assert html.unescape(neutral_line(text[:MAX_LINE_CHARACTERS])) == text
