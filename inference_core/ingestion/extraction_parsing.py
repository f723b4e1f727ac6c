"""Finds memories in what a language model answered, in whatever form it put them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from langchain_core.messages import AIMessage

from inference_core.ingestion.extraction_values import TYPES, folded, plain_text
from inference_core.ingestion.lenient_json import Bare, Cut, find_json

Entry = dict[str, Any]
"""What a model says of one memory, by the folded names of the fields."""
CONTENT: Final = (
    *("content", "memory", "fact", "text", "statement", "sentence", "memorycontent", "memorytext", "summary", "value"),
    *("description", "observation", "note"),
)
"""Names that models give to the text of a memory, the right one first."""
MAX_ENTRIES: Final = 1_000
"""Further memories of an answer are not looked at."""
_LISTS: Final = frozenset(
    [
        "memories",
        "extractedmemories",
        "memorylist",
        "newmemories",
        "facts",
        "extractedfacts",
        "items",
        "results",
        "entries",
        "data",
        "records",
    ]
)
_SCHEMA_TYPES: Final = ("object", "array", "string")
_MAX_DEPTH: Final = 8
_NOTHING: Final = frozenset({"", "none", "null", "n/a", "na", "nothing", "no memories", "[]", "{}"})
_THOUGHTS: Final = re.compile(r"\s*<(think(?:ing)?)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_WRAPPING: Final = "` \t\r\n"


@dataclass(slots=True)
class Answer:
    """The memories of an answer as they were given; ``is_empty``: it says that there are none."""

    entries: list[Entry] = field(default_factory=list[Entry])
    is_empty: bool = False
    problems: list[str] = field(default_factory=list[str])


def answer_of(message: Any) -> Answer:
    """What ``message`` says: its tool calls, also broken ones, or else its text. Never raises."""
    if not isinstance(message, AIMessage):
        return Answer(problems=["it is no message of a chat model"])
    called: list[Any] = [call["args"] for call in message.tool_calls]
    finder = _Finder()
    finder.read(called, is_whole=True)
    for call in message.invalid_tool_calls:
        finder.read_text(call["args"] or "")
    if not finder.answer.entries and not finder.answer.is_empty:
        finder.read_text(message.text)
    return finder.answer


class _Finder:
    """Walks through values and keeps what looks like a memory."""

    def __init__(self) -> None:
        self.answer = Answer()

    def read_text(self, text: str) -> None:
        said = _THOUGHTS.sub("", text, count=1) if text.lstrip()[:6].casefold() == "<think" else text
        found = find_json(said)
        is_whole = said.strip(_WRAPPING).removeprefix("json").strip(_WRAPPING) in ("[]", "{}")
        self.read(found.values, is_whole=is_whole)
        if not self.answer.entries and len(found.values) == 1 and isinstance(found.values[0], list):
            self._list(cast("list[Any]", found.values[0]), 0, takes_text=True)
        if found.is_cut:
            self._note("it was cut off")
        if found.is_deep:
            self._note("it is nested too deeply")

    def read(self, values: Sequence[Any], *, is_whole: bool) -> None:
        """``is_whole``: an empty value is all that was said, and says that there is nothing."""
        for value in values:
            self.answer.is_empty |= is_whole and not value
            self._walk(value, 0)

    def _walk(self, value: Any, depth: int) -> None:
        if depth > _MAX_DEPTH:
            self._note("it is nested too deeply")
        elif isinstance(value, Mapping):
            self._mapping(cast("Mapping[Any, Any]", value), depth)
        elif isinstance(value, list | tuple):
            self._list(cast("Sequence[Any]", value), depth, takes_text=False)
        elif isinstance(value, str):
            self._list(_inner(value), depth, takes_text=False)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        entry = {folded(name): part for name, part in value.items()}
        if _is_memory(entry):
            self._keep(entry, is_cut=isinstance(value, Cut))
            return
        for name, part in entry.items():
            if name in _LISTS or name in TYPES:
                self._named(name, part, depth, is_cut=isinstance(value, Cut))
            else:
                self._walk(part, depth + 1)

    def _named(self, name: str, value: Any, depth: int, *, is_cut: bool) -> None:
        """What stands under a name for memories, or under that of a type of them."""
        self.answer.is_empty |= name in _LISTS and not value
        before = len(self.answer.entries)
        if isinstance(value, str):
            self._text(value, depth, is_cut=is_cut)
        elif isinstance(value, list | tuple):
            self._list(cast("Sequence[Any]", value), depth, takes_text=True)
        else:
            self._walk(value, depth + 1)
        if name in TYPES:
            for entry in self.answer.entries[before:]:
                entry.setdefault("type", name)

    def _text(self, value: str, depth: int, *, is_cut: bool = False) -> None:
        """A text instead of a list: JSON within JSON, or one memory."""
        if inner := _inner(value):
            self._list(inner, depth + 1, takes_text=False)
        elif value.strip().casefold() in _NOTHING:
            self.answer.is_empty = True
        else:
            self._keep({CONTENT[0]: value}, is_cut=is_cut)

    def _list(self, items: Sequence[Any], depth: int, *, takes_text: bool) -> None:
        for item in items:
            if not isinstance(item, str):
                self._walk(_first_text(item) if takes_text else item, depth + 1)
            elif takes_text and not isinstance(item, Bare):
                self._text(item, depth)

    def _keep(self, entry: Entry, *, is_cut: bool) -> None:
        if is_cut:
            self._note("a memory was cut off")
        elif len(self.answer.entries) < MAX_ENTRIES:
            self.answer.entries.append(entry)
        else:
            self._note(f"it has more than {MAX_ENTRIES} memories")

    def _note(self, problem: str) -> None:
        if problem not in self.answer.problems:
            self.answer.problems.append(problem)


def _inner(value: str) -> list[Any]:
    """The values of a text that is JSON itself."""
    return find_json(value).values if value.lstrip().startswith(("[", "{")) else []


def first_of(entry: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first value that is there under one of ``names``; None if there is none."""
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _is_memory(entry: Entry) -> bool:
    """Whether it has a text, which a list of one is made, and is no message of a conversation, nor of a JSON schema."""
    content = first_of(entry, CONTENT)
    if isinstance(content, list) and len(cast("list[Any]", content)) == 1:
        entry[CONTENT[0]] = content = cast("list[Any]", content)[0]
    return isinstance(content, str) and "role" not in entry and entry.get("type") not in _SCHEMA_TYPES


def _first_text(item: Any) -> Any:
    """A list of texts for a memory is taken for its text and what else is known of it."""
    texts = cast("list[Any]", item) if isinstance(item, list) else []
    is_row = bool(texts) and all(isinstance(text, str) for text in texts)
    if not is_row:
        return cast("Any", item)
    return {CONTENT[0]: texts[-1] if folded(texts[0]) in CONTENT else texts[0]}


def texts_of(value: Any) -> Iterator[str]:
    """The texts of a list, of a text with commas, or of objects with a name."""
    given: Any = value.split(",") if isinstance(value, str) else value
    parts = cast("list[Any]", given) if isinstance(given, list) else [given]
    for part in parts:
        text: Any = part
        if isinstance(part, Mapping):
            given = {folded(name): one for name, one in cast("Mapping[Any, Any]", part).items()}
            text = first_of(given, ("name", "id", "text", "value"))
        if plain := plain_text(text).strip():
            yield plain
