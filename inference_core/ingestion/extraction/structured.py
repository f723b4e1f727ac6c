"""Asks chat models for structured output, and reads memories from whatever they answer.

A model that supports tools is given one, and the arguments of its call are the answer. Otherwise the answer is the JSON
in its text, even if that is malformed. Reading takes time linear in the length of the answer. (json-repair is quadratic
for an unterminated string, which is what a truncated answer contains.)
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel

from inference_core.asking import ask, check_model
from inference_core.context.render import neutral_line
from inference_core.effects import Operation
from inference_core.errors import ModelError
from inference_core.ingestion.extraction.schema import CONTENT, LISTS, TYPES, Entry, first_of, folded, folded_keys
from inference_core.memory.text import text_tokens
from inference_core.outbox.candidates import Candidate, Extraction

T = TypeVar("T")
PROMPTS: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(
    (files(str(__package__)) / "prompts.toml").read_text("utf-8")
)
"""The prompt, the rules of the answer and the repair request of each task."""
Read = Callable[[Any], tuple[T, str]]
"""Reads an answer: gives its result, and the problem if it cannot be used, else an empty string."""
CUT_OFF: Final = "it was cut off"
MAX_CHARACTERS: Final = 2 * 1024 * 1024
"""Text beyond this many characters is ignored."""
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 1_000
"""Objects and arrays of one text; more are ignored."""
MAX_ENTRIES: Final = 1_000
"""Memories of one answer; more are ignored."""
_MAX_WRAPPERS: Final = 8
_MAX_PROBLEMS: Final = 50
_MAX_PROBLEM: Final = 300
_MAX_SHOWN_ANSWER: Final = 4_000
_SCHEMA_TYPES: Final = ("object", "array", "string")
_NONE: Final = frozenset({"", "none", "null", "n/a", "na", "nothing", "no memories", "[]", "{}"})
_THOUGHTS: Final = re.compile(r"\A\s*<(think(?:ing)?)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_EMPTY: Final = re.compile(r"[`\s]*(?:json[`\s]*)?(?:\[\s*\]|\{\s*\})[`\s]*")
_STRICT: Final = json.JSONDecoder(strict=False)
_START: Final = re.compile(r"[{\[]")
_ESCAPED_START: Final = re.compile(r"[{\[](?:[{\[\s]|\\[nt])*\\\"")
_AFTER_STRING: Final = (
    r"\s*(?:[:=}\])]|\Z|//|/\*|[,;]\s*(?:[\"'`{}\[\]]|\.{3}|\Z|//|/\*|[\w-]+\s*[:=])"
    r"|[\"']\w{1,40}[\"']\s*:|\n\s*[\"'{])"
)
"""What may follow a string. A quote followed by anything else belongs to the text."""
_TOKEN: Final = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<open>[{\[(])|(?P<close>[}\])])|(?P<comma>[,;])"
    rf"|(?P<quote>[\"'`])(?P<text>(?:[^\\\"'`]+|\\.|(?!(?P=quote){_AFTER_STRING})[\"'`])*)(?P<end>(?P=quote)?)"
    r"|(?P<word>[^\s,;:={}\[\]()\"'`](?:(?!\s/[/*])[^,;:={}\[\]()\"\n])*)",
    re.DOTALL,
)
"""Matches a string to its end or to the end of the text, so that it never backtracks into one."""
_ESCAPE: Final = re.compile(r"\\([\"\\/bfnrt]|u[0-9a-fA-F]{4})|[\"\\]")


@dataclass(slots=True)
class Asking:
    """Asks ``models`` in turn, each call for at most ``timeout`` seconds, and counts calls and tokens.

    The first answer that cannot be used is sent back once, with ``repair`` and the problem in place of {problem}.
    """

    models: Sequence[Runnable[Any, Any]]
    timeout: float | None
    repair: str
    problems: list[str] = field(default_factory=list[str])
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def answered(self, request: Sequence[BaseMessage], read: Read[T], what: str) -> Operation[T]:
        """The result of the first usable answer. Raises ModelError, which names ``what``, if there is none."""
        may_repair = True
        for model in self.models:
            messages = request
            while True:
                self.model_calls += 1
                try:
                    given: Any = yield from ask(model, messages, self.timeout)
                except ModelError as error:
                    self.problems.append(str(error))
                    break
                answer: Any = cast("dict[str, Any]", given).get("raw") if isinstance(given, dict) else given
                usage: Any = getattr(answer, "usage_metadata", None) or {}
                self.input_tokens += usage.get("input_tokens") or sum(text_tokens(one.text) for one in messages)
                self.output_tokens += usage.get("output_tokens") or text_tokens(_text_of(answer))
                result, problem = read(answer)
                if not problem:
                    return result
                self.problems.append(f"The answer could not be used: {problem}")
                if not may_repair:
                    break
                may_repair = False
                shown_answer = neutral_line(_text_of(answer), _MAX_SHOWN_ANSWER) or "(nothing)"
                messages = [*request, AIMessage(shown_answer), HumanMessage(self.repair.format(problem=problem))]
        raise ModelError(f"No chat model gave {what}: {'; '.join(shown(self.problems))}")

    def extraction(
        self, candidates: Sequence[Candidate], problems: Sequence[str] = (), notes: Mapping[str, Any] | None = None
    ) -> Extraction:
        """``candidates`` with the calls and tokens they took, and ``problems`` before those of the answers."""
        return Extraction(
            tuple(candidates),
            tuple(shown([*problems, *self.problems])),
            self.model_calls,
            self.input_tokens,
            self.output_tokens,
            dict(notes or {}),
        )


def structured(model: BaseChatModel, form: type[BaseModel]) -> Runnable[Any, Any]:
    """``model`` bound to ``form`` as its only tool, returning the raw message; ``model`` itself if it has no tools.

    Raises ConfigurationError if it is no chat model.
    """
    check_model(model)
    try:
        return model.with_structured_output(form, method="function_calling", include_raw=True)
    except (AttributeError, NotImplementedError):
        return model


def shown(problems: Sequence[str]) -> list[str]:
    """``problems`` as short, escaped lines; at most 50 and a count of the others."""
    lines = [neutral_line(problem, _MAX_PROBLEM) for problem in problems[:_MAX_PROBLEMS]]
    more = len(problems) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def _text_of(answer: Any) -> str:
    """The text of an answer and the arguments of its tool calls."""
    if not isinstance(answer, AIMessage):
        return ""
    try:
        calls = [json.dumps(call["args"], ensure_ascii=False, default=str) for call in answer.tool_calls]
    except (TypeError, ValueError, RecursionError):
        calls = []
    return "\n".join([answer.text, *calls, *(call["args"] or "" for call in answer.invalid_tool_calls)]).strip()


@dataclass(slots=True)
class Answer:
    """The memories of an answer, not yet validated. ``is_empty``: the answer says that there are none."""

    entries: list[Entry] = field(default_factory=list[Entry])
    is_empty: bool = False
    problems: list[str] = field(default_factory=list[str])

    @property
    def is_cut(self) -> bool:
        """Whether it ends within a memory or a list of them."""
        return CUT_OFF in self.problems

    def read_text(self, text: str) -> None:
        """Collects the memories from the JSON in ``text``."""
        said = _THOUGHTS.sub("", text)
        values, is_cut = find_json(said)
        self.is_empty |= _EMPTY.fullmatch(said) is not None
        for value in values:
            self.collect(value)
        if not self.entries and len(values) == 1 and isinstance(values[0], list):
            self.collect(cast("list[Any]", values[0]), is_named=True)
        if is_cut:
            self._note(CUT_OFF)

    def collect(self, value: Any, *, is_named: bool = False, depth: int = 0) -> None:
        """Collects the memories from ``value``. ``is_named``: its key names memories, so a string in it is one."""
        if depth > _MAX_WRAPPERS:
            self._note("it is nested too deeply")
        elif isinstance(value, dict):
            self._collect_mapping(folded_keys(value), depth)
        elif isinstance(value, list | tuple):
            for part in cast("Sequence[Any]", value):
                self.collect(part, is_named=is_named and isinstance(part, str), depth=depth + 1)
        elif isinstance(value, str) and value.lstrip().startswith(("[", "{")):
            for part in find_json(value)[0]:
                self.collect(part, depth=depth + 1)
        elif isinstance(value, str) and is_named:
            if value.strip().casefold() in _NONE:
                self.is_empty = True
            elif folded(value) not in CONTENT:  # a field name, read as an element of a malformed array
                self._keep({"content": value})

    def _collect_mapping(self, entry: Entry, depth: int) -> None:
        content = first_of(entry, CONTENT)
        if isinstance(content, list) and len(cast("list[Any]", content)) == 1:
            entry["content"] = content = cast("list[Any]", content)[0]
        # Messages of a conversation and parts of a JSON schema also have such a key.
        if isinstance(content, str) and "role" not in entry and entry.get("type") not in _SCHEMA_TYPES:
            self._keep(entry)
            return
        for name, part in entry.items():
            before = len(self.entries)
            self.is_empty |= name in LISTS and not part
            self.collect(part, is_named=name in LISTS or name in TYPES, depth=depth + 1)
            if name in TYPES:
                for found in self.entries[before:]:
                    found.setdefault("type", name)

    def _keep(self, entry: Entry) -> None:
        if len(self.entries) < MAX_ENTRIES:
            self.entries.append(entry)
        else:
            self._note(f"it has more than {MAX_ENTRIES} memories")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def answer_of(message: Any) -> Answer:
    """The memories in the tool calls of ``message``, malformed ones included, or else in its text. Never raises."""
    if not isinstance(message, AIMessage):
        return Answer(problems=["it is no message of a chat model"])
    answer = Answer()
    for call in message.tool_calls:
        answer.is_empty |= not call["args"]
        answer.collect(call["args"])
    for call in message.invalid_tool_calls:
        answer.read_text(call["args"] or "")
    if not answer.entries and not answer.is_empty:
        answer.read_text(message.text)
    return answer


def find_json(text: str) -> tuple[list[Any], bool]:
    """The JSON objects and arrays in ``text`` in order, and whether it ends within one. Never raises.

    Tolerates comments, other quotes, quotes and line ends within strings, unquoted keys and single words, missing and
    superfluous commas, and missing closing brackets. Of a truncated value only the complete parts are returned.
    """
    text = text[:MAX_CHARACTERS]
    if (start := _START.search(text)) and _ESCAPED_START.match(text, start.start()):
        text = _unescaped(text[start.start() :])
    values: list[Any] = []
    at = 0
    is_cut = False
    while len(values) < MAX_VALUES and not is_cut and (start := _START.search(text, at)):
        try:
            value, at = _STRICT.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            value, at, is_cut = _read_loosely(text, start.start())
        values.append(value)
    return values, is_cut


class _Open:
    """An object or array that is still being read. In an object, keys and values alternate."""

    def __init__(self, mark: str) -> None:
        self.parts: dict[str, Any] | list[Any] = [] if mark == "[" else {}
        self.key: str | None = None

    def add(self, part: Any) -> None:
        if isinstance(self.parts, list):
            self.parts.append(part)
        elif self.key is not None:
            self.parts[self.key], self.key = part, None
        elif isinstance(part, str):
            self.key = part
        elif isinstance(part, dict):
            self.parts |= part

    def whole_parts(self) -> dict[str, Any] | list[Any]:
        """The parts if it is truncated: of an object only objects and arrays, as a missing field may matter most."""
        if isinstance(self.parts, list):
            return self.parts
        return {name: part for name, part in self.parts.items() if isinstance(part, dict | list)}

    def add_word(self, word: str) -> None:
        """Adds an unquoted word: a key, a value if it is a single word, or a number in an array."""
        if isinstance(self.parts, dict) and self.key is not None:
            self.add(None if " " in word or word.casefold() in ("null", "none", "undefined") else word)
        elif isinstance(self.parts, dict) or word.isdecimal():
            self.add(word)


def _read_loosely(text: str, at: int) -> tuple[Any, int, bool]:
    """The object or array at ``at``, where it ends, and whether it is truncated. Any bracket closes the innermost."""
    stack: list[_Open] = []
    for token in _TOKEN.finditer(text, at):
        kind = token.lastgroup
        if kind == "open":
            if len(stack) == MAX_DEPTH:
                break
            stack.append(_Open(token[0]))
        elif kind == "close":
            parts = stack.pop().parts
            if not stack:
                return parts, token.end(), False
            stack[-1].add(parts)
        elif kind == "comma":
            stack[-1].key = None
        elif kind == "word":
            stack[-1].add_word(token[0].strip())
        elif token["end"]:
            stack[-1].add(_unescaped(token["text"]))
    for inner, outer in pairwise(reversed(stack)):
        outer.add(inner.whole_parts())
    return stack[0].whole_parts(), len(text), True


def _unescaped(body: str) -> str:
    r"""``body`` of a string with its escapes resolved; a stray backslash is dropped."""
    safe = _ESCAPE.sub(lambda one: one[0] if one[1] else '\\"' if one[0] == '"' else "", body)
    return json.loads(f'"{safe}"', strict=False)
