"""Reads what language models write for JSON, in time that grows with the length of the text alone.

Own code, since json-repair takes quadratic time for a string without an end, which is how an answer looks that was cut
off, and does not say which of its values are whole.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

MAX_CHARACTERS: Final = 2 * 1024 * 1024
"""Text beyond this many characters is not looked at."""
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 1_000
"""Further objects and arrays of a text are not looked at."""
_STRICT: Final = json.JSONDecoder(strict=False)
_START: Final = re.compile(r"[{\[]")
_SPACE: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_QUOTES: Final = {'"': '"', "'": "'", "`": "`", "\u201c": '\u201d"', "\u201e": '\u201c"'}
_IN_STRING: Final = {closing: re.compile(rf"[\\{closing}]") for closing in _QUOTES.values()}
_AFTER_STRING: Final = re.compile(
    r"\s*(?:[:}\]]|\Z|//|/\*|[,;]\s*(?:[\"'`\u201c\u201e{}\[\]]|\.{3}|\Z|//|/\*|[\w-]+\s*[:=])"
    r"|\n\s*[\"'{]|(?<=\s)[\"'\u201c]\w{1,40}[\"'\u201d]\s*:)"
)
_AFTER_KEY: Final = re.compile(r"\s*(?:[:=,}\]]|\Z)|\s+[\"\u201c]")
_BARE: Final = re.compile(r"[^,;:={}\[\]\n]+")
_BARE_VALUE: Final = re.compile(r"(?:(?!\s//|/\*)[^,{}\[\]\n])+")
_NEXT_KEY: Final = re.compile(r",\s*(?:[\"'\u201c{}\[\]]|\Z|//|/\*|[\w-]+\s*:)")
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")
_WORDS: Final = {"true": True, "false": False, "null": None, "none": None, "undefined": None, "nan": math.nan}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_FENCE: Final = "```"
_ESCAPED_START: Final = re.compile(r"[{\[](?:[{\[\s]|\\[nt])*\\\"")
_ESCAPED: Final = re.compile(r"\\([\"\\nt])")


class Bare(str):
    """A word that stands without quotes."""

    __slots__ = ()


class Cut(dict[str, Any]):
    """An object whose end is missing: what was read of it, of which the last value may be half."""


@dataclass(slots=True)
class Found:
    """The objects and arrays of a text in their order; ``is_cut``: it ends within one, ``is_deep``: one was skipped."""

    values: list[Any] = field(default_factory=list[Any])
    is_cut: bool = False
    is_deep: bool = False


class _TooDeepError(Exception):
    """The text is nested deeper than anybody means it."""


def find_json(text: str) -> Found:
    """The JSON objects and arrays in ``text``, with whatever stands around them left out. Never raises.

    Read are also: fences, comments, single and typographic quotes, quotes and line ends within strings, bare words,
    Python's literals, missing and superfluous commas, missing ends. Beyond MAX_DEPTH levels nothing more is read.
    """
    text = text[:MAX_CHARACTERS]
    found = Found()
    at = 0
    if (start := _START.search(text)) and _ESCAPED_START.match(text, start.start()):
        text = _ESCAPED.sub(_unescaped_once, text)
    while len(found.values) < MAX_VALUES and (start := _START.search(text, at)):
        try:
            value, at, is_cut = _value_at(text, start.start())
        except _TooDeepError:
            found.is_deep = True
            break
        found.values.append(value)
        found.is_cut |= is_cut
    return found


def _value_at(text: str, start: int) -> tuple[Any, int, bool]:
    """The object or array at ``start``, where it ends, and whether its end is missing."""
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        reader = _Reader(text, start)
        return reader.container(0), reader.at, reader.is_cut
    return value, end, False


class _Reader:
    """Reads one value from ``at`` on; each character is looked at a bounded number of times."""

    def __init__(self, text: str, at: int) -> None:
        self.at = at
        self.is_cut = False
        self._text = text

    def container(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _TooDeepError
        opening = self._text[self.at]
        self.at += 1
        return self._object(depth) if opening == "{" else self._array(depth)

    def _object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while (mark := self._next()) not in ("", "}", "]"):
            if mark in _QUOTES or _BARE.match(self._text, self.at):
                key = self._string(_AFTER_KEY) if mark in _QUOTES else self._match(_BARE).strip()
                fields[key] = self._field(depth)
            elif mark == "{":
                fields |= self.container(depth + 1)
            else:
                self.at += 1
        self._close(mark, "}")
        return Cut(fields) if self.is_cut else fields

    def _field(self, depth: int) -> Any:
        """The value behind a key; None if there is none."""
        mark = self._next()
        if mark and mark in ":=":
            self.at += 1
            mark = self._next()
        elif mark not in _QUOTES:
            return None
        if mark in ("", ",", "}", "]"):
            return None
        value = self._value(depth)
        if not isinstance(value, Bare) or self._text[self.at : self.at + 1] != ",":
            return value
        return Bare(value + self._more_words())

    def _more_words(self) -> str:
        """What follows words without quotes up to the next key: their commas belong to them."""
        start = self.at
        while self._text[self.at : self.at + 1] == "," and not _NEXT_KEY.match(self._text, self.at):
            self.at += 1
            if more := _BARE_VALUE.match(self._text, self.at):
                self.at = more.end()
        return self._text[start : self.at].rstrip()

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while (mark := self._next()) not in ("", "]", "}"):
            if mark == ":" and items and isinstance(items[-1], str):
                items[-1] = {items[-1]: self._field(depth)}
            elif mark in ",:":
                self.at += 1
            else:
                items.append(self._value(depth))
        if self.is_cut and items and isinstance(items[-1], str):
            items.pop()
        self._close(mark, "]")
        return items

    def _value(self, depth: int) -> Any:
        mark = self._text[self.at]
        if mark in "{[":
            return self.container(depth + 1)
        if mark in _QUOTES:
            return self._string(_AFTER_STRING)
        return _plain(self._match(_BARE_VALUE).strip())

    def _string(self, after: re.Pattern[str]) -> str:
        """The string at a quote, up to the quote behind which the text goes on as it does ``after`` a string."""
        closing = _QUOTES[self._text[self.at]]
        parts: list[str] = []
        at = self.at + 1
        while stop := _IN_STRING[closing].search(self._text, at):
            parts.append(self._text[at : stop.start()])
            at = stop.end()
            if stop[0] == "\\":
                part, at = _unescaped(self._text, at)
                parts.append(part)
            elif after.match(self._text, at):
                self.at = at
                return "".join(parts)
            else:
                parts.append(stop[0])
        self.is_cut = True
        parts.append(self._text[at:])
        self.at = len(self._text)
        return "".join(parts)

    def _next(self) -> str:
        """The next character that means something, which is not taken; "" and ``is_cut`` if there is none."""
        self._match(_SPACE)
        mark = self._text[self.at : self.at + 1]
        if mark == "`" and self._text.startswith(_FENCE, self.at):
            mark = ""
        self.is_cut |= not mark
        return mark

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.at)
        self.at = found.end() if found else self.at + 1
        return found[0] if found else ""

    def _close(self, mark: str, closing: str) -> None:
        """Takes the end of a container; that of another one is left to whom it belongs."""
        self.at += mark == closing


def _unescaped_once(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[1], found[1])


def _unescaped(text: str, at: int) -> tuple[str, int]:
    """The character that the escape behind a backslash stands for, and where the text goes on."""
    mark = text[at : at + 1]
    if mark == "u" and (code := _HEX.match(text, at + 1)):
        return chr(int(code[0], 16)), code.end()
    return _ESCAPES.get(mark, mark), at + 1


def _plain(word: str) -> Any:
    """What a word without quotes means: a constant, a number, or itself."""
    if word.casefold() in _WORDS:
        return _WORDS[word.casefold()]
    try:
        return int(word) if _INTEGER.fullmatch(word) else float(word)
    except ValueError:
        return Bare(word)
