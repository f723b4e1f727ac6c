"""neutral_line: nothing steers, letters stay."""

from __future__ import annotations

import html
import unicodedata

import pytest
from support import each, expanded, load

from inference_core.context.render import MAX_LINE_CHARACTERS, neutral_line

HOSTILE = load("hostile_contents.json")
BENIGN = [entry["text"] for entry in load("benign_texts.json")]
STEERING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x2070)), "\ufff9", "\ufffa", "\ufffb"}
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
HEART_ON_FIRE = "\u2764\ufe0f\u200d\U0001f525"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


def test_benign_text_is_read_back_exactly():
    assert len(BENIGN) == 200
    assert [text for text in BENIGN if html.unescape(neutral_line(text)) != text] == []


@each(HOSTILE)
def test_hostile_text_becomes_one_inert_line(entry: dict[str, str]):
    _check_inert(expanded(entry["text"]))


def _check_inert(text: str) -> None:
    line = neutral_line(text)
    shown = unicodedata.normalize("NFKC", line)
    assert shown.splitlines() in ([shown], [])
    assert not {"<", ">", *STEERING} & set(shown)
    assert not [mark for mark in shown if unicodedata.category(mark) in ("Cc", "Cs")]
    assert len(html.unescape(line)) <= MAX_LINE_CHARACTERS + 10


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("\uff1cb\uff1e\uff06\ufe64\ufe65\ufe60", "&#xff1c;b&#xff1e;&#xff06;&#xfe64;&#xfe65;&#xfe60;"),
        ("say \"yes\" and 'no'", "say \"yes\" and 'no'"),
        ("one\n  - two\r\n\r\n   three\u2028four\tfive", "one - two three four five"),
        ("\n\n edges \t", "edges"),
        ("be\x07ll \x1b[31mred\x7f\x9b", "bell [31mred"),
        ("\u202ereversed\u202c \u2067isolated\u2069", "reversed isolated"),
        ("surro\ud800gate", "surrogate"),
        ("a\U000e0041\U000e0042b", "ab"),
        ("\U0001f3f4\U000e0041\U000e0042\U000e007f", "\U0001f3f4"),
        (SCOTLAND, SCOTLAND),
        (FAMILY, FAMILY),
        (HEART_ON_FIRE, HEART_ON_FIRE),
        (PERSIAN, PERSIAN),
        ("a" + "\u200b" * 50 + "b", "a\u200bb"),
        ("a" + "\ufe01" * 50 + "b", "a\ufe01b"),
        ("a" + "\U000e0101\U000e0102" * 50 + "b", "a\U000e0101b"),
        ("e" + "\u0301" * 50 + "f", "e" + "\u0301" * 8 + "f"),
        ("", ""),
        ("\u202e", ""),
    ],
    ids=ascii,
)
def test_text_becomes_a_harmless_line(text: str, line: str):
    assert neutral_line(text) == line


@pytest.mark.parametrize(
    "invisible",
    [
        "\u200b\ufe0f",
        "\u200b\u200c\u200d\ufe00\ufe01",
        "\u200e\u200f",
        "\u00ad",
        "\u034f\u200b",
        "\u3164",
        "\U000e0101\u2060",
    ],
    ids=ascii,
)
def test_a_run_of_invisible_characters_carries_no_message(invisible: str):
    line = neutral_line("visible" + invisible * 100 + "text")
    assert line.startswith("visible")
    assert line.endswith("text")
    assert len(line) <= len("visibletext") + 8


def test_a_long_line_is_cut_and_says_so():
    assert neutral_line("x" * MAX_LINE_CHARACTERS) == "x" * MAX_LINE_CHARACTERS
    assert neutral_line("x" * (MAX_LINE_CHARACTERS + 1)) == "x" * MAX_LINE_CHARACTERS + " \u2026 [cut]"
    assert neutral_line("abc def ghi", 8) == "abc def \u2026 [cut]"


def test_the_cut_never_falls_into_a_reference():
    line = neutral_line("<" * 10_000, 100)
    assert line == "&lt;" * 100 + " \u2026 [cut]"
