"""Stored text made harmless for a prompt: one line, escaped, nothing invisible that steers; letters stay."""

from __future__ import annotations

import re
import unicodedata
from html import escape
from typing import Final

MAX_LINE_CHARACTERS: Final = 2_000
CUT_MARK: Final = " … [cut]"
_MAX_MARKS: Final = 8
_LINE_ENDS: Final = re.compile("[\t\n\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029]+ *")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")
_LOOK_ALIKES: Final = re.compile("[\uff1c\uff1e\uff06\ufe60\ufe64\ufe65]")
_TAGS: Final = re.compile(
    "(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f)|[\U000e0000-\U000e007f]"
)
_SELECTORS: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_INVISIBLE: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2064\u3164\ufeff\uffa0" + _SELECTORS
)
_INVISIBLE_RUN: Final = re.compile(f"[{_INVISIBLE}]{{2,}}")
_SELECTOR: Final = re.compile(f"[{_SELECTORS}]")


def neutral_line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """``text`` as one escaped line of at most about ``max_characters``.

    ``<``, ``>``, ``&`` and their compatibility forms become character references, line ends become spaces; control
    and bidirectional formatting characters, invisible tag characters (but not the emoji flags made of them), runs of
    invisible characters and floods of combining marks are removed. Letters, joiners, digits and emoji are kept.
    """
    line = _LINE_ENDS.sub(" ", text).strip()
    if len(line) > max_characters:
        line = line[:max_characters].rstrip() + CUT_MARK
    line = _CONTROLS.sub("", line)
    if not line.isascii():
        line = _INVISIBLE_RUN.sub(_shortened, _TAGS.sub(_keep_flags, line))
        line = _without_mark_floods(line)
    return _LOOK_ALIKES.sub(_reference, escape(line, quote=False))


def _keep_flags(found: re.Match[str]) -> str:
    return found[1] or ""


def _shortened(found: re.Match[str]) -> str:
    """The first of a run of invisible characters, and the first of the other kind: emoji need selector and joiner."""
    run = found[0]
    is_selector = [bool(_SELECTOR.match(mark)) for mark in run]
    other = next((mark for mark, kind in zip(run, is_selector, strict=True) if kind != is_selector[0]), "")
    return run[0] + other


def _reference(found: re.Match[str]) -> str:
    return f"&#x{ord(found[0]):x};"


def _without_mark_floods(line: str) -> str:
    kept: list[str] = []
    marks = 0
    for character in line:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)
