"""ModelExtractor: a chat model extracts memories from messages, and each one is validated.

Asks chat models for structured output, and reads memories from whatever they answer.

A model that supports tools is given one, and the arguments of its call are the answer. Otherwise the answer is the JSON
in its text, even if that is malformed. Reading takes time linear in the length of the answer. (json-repair is quadratic
for an unterminated string, which is what a truncated answer contains.)
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import Any, Final, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel, ValidationError

from inference_core.asking import MODEL_TIMEOUT_S, ask, chat_models
from inference_core.clock import in_zone
from inference_core.context.render import neutral_line
from inference_core.errors import ConfigurationError, ModelError, in_one_line
from inference_core.ingestion.consolidation import judged
from inference_core.ingestion.extraction.schema import (
    CONTENT,
    EXTRACTED_TYPES,
    LISTS,
    MAX_CONTENT,
    MAX_LABEL,
    MAX_MEMORIES,
    TYPES,
    Entry,
    ExtractedMemories,
    ExtractedMemory,
    first_of,
    folded,
    folded_keys,
    quoted,
)
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Origin
from inference_core.memory.types import GUIDING_TYPES, IDEA, MemoryTypeDescription
from inference_core.outbox.messages import (
    Action,
    Candidate,
    ConversationMessage,
    Extraction,
    KnownMemory,
    Role,
    any_outside,
    traced,
)
from inference_core.outbox.said import Said, holds

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

    async def answered(self, request: Sequence[BaseMessage], read: Read[T], what: str) -> T:
        """The result of the first usable answer. Raises ModelError, which names ``what``, if there is none."""
        may_repair = True
        for model in self.models:
            messages = request
            while True:
                self.model_calls += 1
                try:
                    given: Any = await ask(model, messages, self.timeout)
                except ModelError as error:
                    self.problems.append(str(error))
                    break
                answer: Any = cast("dict[str, Any]", given).get("raw") if isinstance(given, dict) else given
                usage: Any = getattr(answer, "usage_metadata", None) or {}
                self.input_tokens += usage.get("input_tokens") or sum(text_tokens(message.text) for message in messages)
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

    Raises ConfigurationError if its provider's package cannot express the form.
    """
    try:
        return model.with_structured_output(form, method="function_calling", include_raw=True)
    except (AttributeError, NotImplementedError):
        return model
    except Exception as error:  # each provider's package has errors of its own
        raise ConfigurationError(
            f"The chat model {type(model).__name__} cannot fill the form {form.__name__}: {in_one_line(error)}"
        ) from error


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
    safe = _ESCAPE.sub(lambda match: match[0] if match[1] else '\\"' if match[0] == '"' else "", body)
    return json.loads(f'"{safe}"', strict=False)


DEFAULT_MAX_MEMORIES: Final = 30
_MESSAGE_NAME: Final = re.compile(r"[\[<]?(?:(?:m|msg|message)[ _#-]*)?([0-9]{1,6})[\]>]?", re.IGNORECASE | re.ASCII)
EXTRACTION_PROMPT: Final = PROMPTS["extraction"]["prompt"]
"""What is worth remembering, and how to word it. Rules and the form of the answer are appended."""
_IDEAS: Final = (
    "What the user plays with and has not decided on; it is open until it is taken up or given up.\n"
    "Examples: a podcast about bees; painting the hall green."
)
_DESCRIPTIONS: Final = {kind.value: MemoryTypeDescription[kind.name].value for kind in EXTRACTED_TYPES} | {IDEA: _IDEAS}
_TYPES: Final = "\n".join(f"- {name}: {description}" for name, description in _DESCRIPTIONS.items())
MAX_MESSAGE: Final = 60_000
"""Characters of a message that the model is shown."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages and known memories by the names that the model sees, and the user's time and time zone.

    ``earlier`` messages of the session have no names, so that nothing is extracted from them.
    """

    messages: Mapping[str, ConversationMessage]
    offered: Mapping[str, KnownMemory]
    now: datetime
    zone: tzinfo
    earlier: Sequence[ConversationMessage] = ()

    @classmethod
    def of(
        cls,
        messages: Sequence[ConversationMessage],
        offered: Sequence[KnownMemory],
        now: datetime,
        zone: tzinfo,
        earlier: Sequence[ConversationMessage] = (),
    ) -> Batch:
        """A batch of these messages, without those that have no text."""
        told = list(traced([*earlier, *messages]))
        before, said = (
            [message for message in part if message.text.strip()]
            for part in (told[: len(earlier)], told[len(earlier) :])
        )
        return cls(
            {f"m{number}": message for number, message in enumerate(said, 1)},
            {memory.name.casefold(): memory for memory in offered},
            now,
            zone,
            before,
        )

    def named(self, names: Sequence[str], problems: list[str]) -> list[ConversationMessage]:
        """The messages that ``names`` such as m2, 2 or "message 2" refer to; adds unknown names to ``problems``."""
        messages: dict[str, ConversationMessage] = {}
        for given in names:
            number = _MESSAGE_NAME.fullmatch(given)
            name = f"m{int(number[1])}" if number else given
            if name in self.messages:
                messages[name] = self.messages[name]
            else:
                problems.append(f"names a message that is not there: {quoted(given)}")
        return list(messages.values())

    @property
    def has_outside(self) -> bool:
        """Whether the model is shown text from outside, or what was said after it."""
        is_offered = any(memory.is_external for memory in self.offered.values())
        return is_offered or any_outside(self.earlier) or any_outside(self.messages.values())

    def said(self, sources: Sequence[ConversationMessage]) -> Said:
        """What the user said in ``sources``, which are messages of the batch."""
        messages = [*self.earlier, *self.messages.values()]
        return Said(messages, has_outside=self.has_outside, sources=sources)

    @property
    def problems(self) -> list[str]:
        """Names the messages that are cut, because they are too long to be shown in full."""
        return [f"{name} was cut" for name, message in self.messages.items() if len(message.text) > MAX_MESSAGE]


def request_for(batch: Batch, prompt: str, most: int) -> list[BaseMessage]:
    """The request for at most ``most`` memories; ``prompt`` says what is worth remembering."""
    rules = Template(PROMPTS["extraction"]["rules"]).substitute(types=_TYPES, most=most)
    if batch.has_outside:
        rules = f"{PROMPTS['extraction']['outside']}\n\n{rules}"
    known = [
        f'  <memory name="{short(memory.name)}">{neutral_line(memory.content, MAX_CONTENT)}</memory>'
        for memory in batch.offered.values()
    ]
    lines = [
        f"<now>{stamp(batch.now, batch.zone)}</now>",
        *(["<known_memories>", *known, "</known_memories>"] if known else []),
    ]

    def line(message: ConversationMessage, name: str = "") -> str:
        at = f' at="{stamp(message.at, batch.zone)}"' if message.at else ""
        text = neutral_line(message.text, MAX_MESSAGE)
        return f"  <message{name} {speaker(message.role, message.author)}{at}>{text}</message>"

    if batch.earlier:
        lines += ["<earlier>", *map(line, batch.earlier), "</earlier>"]
    lines += ["<conversation>", *(line(message, f' id="{name}"') for name, message in batch.messages.items())]
    return [SystemMessage(f"{prompt}\n\n{rules}"), HumanMessage("\n".join([*lines, "</conversation>"]))]


def speaker(role: Role, author: str | None) -> str:
    """The attributes that tell a model who speaks: the user, another person by name, the assistant or a tool."""
    who = "other" if role is Role.USER and author else role.value
    return f'from="{who}" name="{short(author)}"' if author else f'from="{who}"'


def short(text: str) -> str:
    """``text`` escaped for an attribute."""
    return neutral_line(text, MAX_LABEL).replace('"', "&quot;")


def stamp(moment: datetime, zone: tzinfo) -> str:
    """``moment`` in ``zone``, to the minute, with the day of the week."""
    local = in_zone(moment, zone)
    return f"{local:%A} {local.isoformat(timespec='minutes')}"


class ModelExtractor:
    """Extracts memories with the first of ``models``, chat models or their names, that gives a usable answer.

    Models answer with structured output: `ExtractedMemories` is their only tool. ``prompt`` says what is worth
    remembering. ``timeout`` limits each call, in seconds, and ``max_memories`` (at most MAX_MEMORIES) the memories
    taken from one batch. Raises ConfigurationError for invalid arguments.
    """

    def __init__(
        self,
        models: BaseChatModel | str | Sequence[BaseChatModel | str],
        *,
        prompt: str = EXTRACTION_PROMPT,
        timeout: float | None = MODEL_TIMEOUT_S,
        max_memories: int = DEFAULT_MAX_MEMORIES,
    ) -> None:
        if not (given := chat_models(models)):
            raise ConfigurationError("ModelExtractor needs at least one chat model")
        if not 1 <= max_memories <= MAX_MEMORIES:
            raise ConfigurationError(f"max_memories must be from 1 to {MAX_MEMORIES}, not {max_memories}")
        self._models = [structured(model, ExtractedMemories) for model in given]
        self.prompt = prompt
        self.timeout = timeout
        self.max_memories = max_memories

    async def extract(
        self,
        messages: Sequence[ConversationMessage],
        offered: Sequence[KnownMemory],
        now: datetime,
        zone: tzinfo = UTC,
        *,
        earlier: Sequence[ConversationMessage] = (),
    ) -> Extraction:
        """The memories that ``messages`` suggest. ``offered`` are those that may be reinforced or superseded.

        All messages go in one call. The first answer that is unusable or was cut off is sent back once for repair;
        after that, and when a model fails, the next model is asked. If there is a single message and no answer about it
        is complete, the complete memories of the fullest one are used. ``now`` and ``zone`` are the user's time.
        ``earlier`` messages of the session tell what these are about, and give no memories. Raises ModelError if no
        model gave a usable answer; an empty list is usable.
        """
        batch = Batch.of(messages, offered, now, zone, earlier)
        if not batch.messages:
            return Extraction(())
        asking = Asking(self._models, self.timeout, PROMPTS["extraction"]["repair"])
        request = request_for(batch, self.prompt, self.max_memories)
        refused: list[ParsedAnswer] = []

        def read(answer: Any) -> tuple[ParsedAnswer, str]:
            reading, problem = read_answer(batch, self.max_memories, answer)
            if problem:
                refused.append(reading)
            return reading, problem

        try:
            reading = await asking.answered(request, read, "memories")
        except ModelError:
            reading = max(refused, key=lambda answer: answer.understood, default=ParsedAnswer())
            # Several messages are then tried one by one, for which a shorter answer will do. Nor is an incomplete
            # answer used if the model failed at the repair: it may give a complete one later.
            if not reading.understood or len(refused) < 2 or len(batch.messages) > 1:  # noqa: PLR2004 - answer, repair
                raise
        asking.problems += reading.problems
        return asking.extraction(reading.candidates, batch.problems)


@dataclass(slots=True)
class ParsedAnswer:
    """The candidates of an answer. ``understood`` counts the memories that have a text, refused ones included."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    problems: list[str] = field(default_factory=list[str])
    understood: int = 0


def read_answer(batch: Batch, most: int, answer: Any) -> tuple[ParsedAnswer, str]:
    """The candidates of an answer, and the problem if it is unusable or was cut off, else ""."""
    said = answer_of(answer)
    reading = read_candidates(said.entries, batch, most)
    reading.problems[:0] = said.problems
    if reading.understood and said.is_cut:
        return reading, CUT_OFF
    if reading.understood or (said.is_empty and not said.entries and not said.problems):
        return reading, ""
    return reading, "; ".join(shown(reading.problems[:3])) or "it holds no list of memories"


def read_candidates(entries: Iterable[Entry], batch: Batch, most: int) -> ParsedAnswer:
    """The first ``most`` distinct candidates in ``entries``. Skips invalid entries and notes why. Never raises."""
    reading = ParsedAnswer()
    seen: set[str] = set()
    left_out = 0
    for number, entry in enumerate(entries, 1):
        if len(reading.candidates) >= most:
            left_out += 1
            continue
        problems: list[str] = []
        try:
            memory = ExtractedMemory.model_validate(entry, context=problems)
        except ValidationError as error:
            problems.append(str(error.errors()[0].get("ctx", {}).get("error", "has no content")))
        else:
            reading.understood += 1
            candidate = _candidate(memory, batch, problems)
            if candidate is not None and (key := candidate.content.casefold()) not in seen:
                reading.candidates.append(candidate)
                seen.add(key)
        reading.problems += [f"memory {number} {problem}" for problem in problems]
    if left_out:
        reading.problems.append(f"{left_out} memories beyond the first {most} were left out")
    return reading


def _candidate(memory: ExtractedMemory, batch: Batch, problems: list[str]) -> Candidate | None:
    """``memory`` as a candidate, or None if it is refused; adds to ``problems`` what cannot be used of it.

    The model may have obeyed an injected text, so the candidate is `judged`. Only what the user said may guide the
    agent or change known memories.
    """
    sources = batch.named(memory.sources, problems)
    told = sources or list(batch.messages.values())
    by_user = [message.role is Role.USER and message.author is None for message in told]
    is_named = any(by_user) if sources else all(by_user)
    if memory.type.value in GUIDING_TYPES and not is_named:
        problems.append(f"was left out: {memory.type.value} without a word of the user")
        return None
    message_ids = tuple(dict.fromkeys(message.id for message in sources if message.id is not None))
    candidate = Candidate(content=memory.content, memory_type=memory.type, message_ids=message_ids)
    candidate = judged(candidate, batch.said(told))
    is_external = candidate.origin is not Origin.AGENT
    action, target = _effect(memory, batch, problems, is_stated=is_named and not is_external)
    if action is None:
        return None
    keeps_all = is_external or not batch.has_outside

    def is_kept(label: str) -> bool:
        """Whether ``label`` may stay: what others say must not describe what the user said."""
        return keeps_all or holds(candidate.content, label)

    entities, relations = memory.graph(is_kept)
    said_at = next((message.at for message in told if message.at), batch.now)
    start, end = memory.validity(said_at, batch.zone, problems)
    return replace(
        candidate,
        topic=memory.topic if memory.topic and is_kept(memory.topic) else None,
        tags=tuple(tag for tag in memory.tags if tag == IDEA or is_kept(tag)),
        importance=memory.importance,
        valid_from=start,
        valid_to=end,
        state=memory.state,
        entities=entities,
        relations=relations,
        action=action,
        target=target,
    )


def _effect(
    memory: ExtractedMemory, batch: Batch, problems: list[str], *, is_stated: bool
) -> tuple[Action | None, str | None]:
    """The action and the id of its target; no action if the memory is refused."""
    action = Action(memory.action) if memory.action else None
    if action is None:
        problems.append("asks for what is not done, such as to delete")
    if action is None or action is Action.ADD:
        return action, None
    given = (memory.target or "").strip("[]<>\"' ")
    offered = batch.offered.get(given.casefold())
    if offered is None:
        problems.append(f"is added, since it would {action.value} {quoted(given)}, which was not offered")
        return Action.ADD, None
    if is_stated:
        return action, offered.memory_id
    if action is Action.REINFORCE:
        problems.append(f"would reinforce {given} without a word of the user")
        return None, None
    problems.append(f"is added, since it would supersede {given} without a word of the user")
    return Action.ADD, None
