"""Brings to light what a text hides from readers that compare words: look-alikes, codes, letters apart."""

from __future__ import annotations

import base64
import codecs
import html
import re
import unicodedata
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from inference_core.memory.text import unmasked

_DECODED: Final = 200_000
"""Letters of a text from outside that are also decoded."""
_ENCODED: Final = re.compile(r"[\w+/-]{16,}={0,2}", re.ASCII)
_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_LETTERS_APART: Final = re.compile(r"(?<=(?<!\S)\S) (?=\S(?!\S))")


def decoded(text: str) -> Iterator[str]:
    """What ``text`` says, decoded in the usual ways of hiding a sentence from readers that a model can undo."""
    text = text[:_DECODED]
    yield text[::-1]
    yield codecs.encode(text, "rot13")
    if "&" in text or "%" in text:
        yield html.unescape(urllib.parse.unquote(text, errors="ignore"))
    yield _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    yield _LETTERS_APART.sub("", text)
    for run in _ENCODED.findall(text):
        with suppress(ValueError):
            yield base64.b64decode(
                f"{run}{'=' * (-len(run) % 4)}", altchars="-_" if {*"-_"} & {*run} else None
            ).decode()
        with suppress(ValueError):
            yield bytes.fromhex(run.removeprefix("0x")).decode()


def plain(text: str) -> str:
    """``text`` in small letters, without look-alikes and invisible characters."""
    return unicodedata.normalize("NFKC", unmasked(text)).casefold()


def in_a_row(text: str) -> str:
    """The words of a `plain` text, each between spaces: a text that repeats them in a row contains this string.

    Unlike a pattern, the search for a substring takes no longer if words repeat.
    """
    return " ".join(["", *re.findall(r"\w+", text), ""])
