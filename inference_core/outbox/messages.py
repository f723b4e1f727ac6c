"""Messages of conversations, whatever their source, and what an extractor makes of them.

Outside unless proven harmless: providers and frameworks invent new kinds of blocks, metadata and messages all the time.
So the tables below name which messages and texts hold nothing but the words of a user or a model; whatever they do not
name counts as text from outside. The module says from which message on a session holds such text, and splits texts
into memories. An `Extraction` is the memories that messages suggest, and how each affects existing ones.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import TypeAdapter

from inference_core.clock import Clock
from inference_core.errors import InvalidMemory, VersionConflict
from inference_core.lazy import lazy_pattern
from inference_core.memory.namespaces import Namespace, Owner, encode_label
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.text import MAX_LABEL_BYTES, digest_of, optional_text
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType
from inference_core.retrieval.analysis import UNSPACED, UNSPACED_LETTER
from inference_core.stores.backend import Put
from inference_core.stores.engine import StoreEngine

OWN_ARTIFACT: Final = {"inference_core": "memory"}
"""The artifact of a memory tool's answer. A foreign tool may have the same name, and a server behind it no artifact."""
FENCE: Final = lazy_pattern(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
MAX_OWN: Final = 600
"""Letters of the longest message that counts as typed; what is longer may hold a text of somebody else."""

_FRAME: Final = frozenset({"type", "id", "index", "cache_control", "status", "signature", "extras"})
_CALL: Final = frozenset({"name", "args", "arguments", "input", "call_id", "partial_json", "caller", "error"})
_THOUGHT: Final = frozenset(
    {"reasoning", "thinking", "summary", "encrypted_content", "reasoning_content", "data", "text"}
)
_CALLS: Final = ("tool_use", "tool_call", "tool_call_chunk", "function_call", "invalid_tool_call")
_SAID: Final = {"text": frozenset({"text"}), "input_text": frozenset({"text"})}
_TOLD: Final = {
    **_SAID,
    "output_text": frozenset({"text"}),
    "refusal": frozenset({"refusal"}),
    **dict.fromkeys(("reasoning", "thinking", "redacted_thinking", "reasoning_content"), _THOUGHT),
    **dict.fromkeys(_CALLS, _CALL),
}
"""The harmless types of blocks of a model, each with its fields besides those of `_FRAME`."""
_EXTRAS: Final = frozenset({"signature", "phase", "item_id", "status"})
_TIME: Final = frozenset({"timestamp"})
_ANSWERED: Final = _TIME | {
    "tool_calls", "function_call", "refusal", "parsed", "reasoning", "reasoning_content", "reasoning_details",
    "__openai_function_call_ids__", "__gemini_function_call_thought_signatures__",
}  # fmt: skip
"""The harmless keys of a model's ``additional_kwargs``."""
_REPORTED: Final = frozenset({
    "token_usage", "usage", "usage_metadata", "model", "model_name", "model_id", "model_provider", "model_version",
    "output_version", "system_fingerprint", "finish_reason", "finish_message", "stop_reason", "stop_sequence",
    "stopReason", "done_reason", "native_finish_reason", "id", "request_id", "service_tier", "logprobs", "object",
    "status", "incomplete_details", "headers", "ResponseMetadata", "metrics", "safety_ratings", "prompt_feedback",
    "block_reason", "created_at", "x_groq",
})  # fmt: skip
"""The harmless keys of a model's ``response_metadata``."""

_END: Final = lazy_pattern(
    r"(?<=[.!?\u061f\u037e\u06d4\u0964])[\"'\u201d\u2019\u00bb)\]]*\s+|(?<=[\u3002\uff01\uff1f])\s*"
)
_QUESTION: Final = lazy_pattern(r"[?\uff1f\u061f\u037e;][\"'\u201d\u2019\u00bb)\]\s]*\Z")
"""A semicolon ends Greek questions."""
_MAIL_QUOTE: Final = lazy_pattern(r"\s*[>|\u203a\u2502]")
_PAIRS: Final = ('""', "\u201c\u201d", "\u201e\u201c", "\u201e\u201d", "\u00ab\u00bb", "\u00bb\u00ab",
    "\u300c\u300d", "\u300e\u300f", "\uff62\uff63")  # fmt: skip
_QUOTATION: Final = lazy_pattern(
    "|".join(
        [
            *(f"{start}[^{start}{end}]{{24,}}{end}" for start, end in _PAIRS),
            *(f"{start}[^{start}{end}]*[{UNSPACED}][^{start}{end}]{{7,}}{end}" for start, end in _PAIRS),
            "(?<!\\w)['\u2018\u201a][^'\u2018\u2019]{24,}['\u2018\u2019](?!\\w)",
        ]
    )
)
"""A sentence in quotation marks; titles are shorter."""
_COLON: Final = lazy_pattern(r":\s+|\uff1a\s*")
_LABEL_WORDS: Final = 2
_LABEL_LETTERS: Final = 4
"""So many words, or letters of a script without spaces, before a colon are a label, such as "Bad news:"."""
_SHORT, _LONG = 24, 100
"""Letters after a colon that are no sentence, or more than the user's own; a third in scripts without spaces."""
_UNTYPED: Final = lazy_pattern("[\ufffc\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]|</?[a-z][^<>]*>", re.IGNORECASE)
"""What people do not type: tags, changes of direction, the place of an object, markup."""


def is_plain(message: BaseMessage) -> bool:
    """Whether ``message`` is a user's or a model's, and holds only text, thoughts and calls, without other metadata."""
    if isinstance(message, HumanMessage):
        blocks, kwargs, reported = _SAID, _TIME, frozenset[str]()
    elif isinstance(message, AIMessage):
        blocks, kwargs, reported = _TOLD, _ANSWERED, _REPORTED
    else:
        return False
    if getattr(message, "example", False):  # the application's
        return False
    content: Any = message.content
    parts = cast("list[Any]", [content] if isinstance(content, str) else content)
    return (
        all(is_plain_block(part, blocks) for part in parts)
        and has_only({**message.additional_kwargs, **(message.model_extra or {})}, kwargs)
        and has_only(message.response_metadata, reported)
    )


def is_of_another(message: BaseMessage, agent: str | None) -> bool:
    """Whether the answer of another agent than ``agent`` stands in ``message``: such a message bears its name."""
    return isinstance(message, AIMessage) and bool(message.name) and message.name != agent


def has_calls(message: BaseMessage) -> bool:
    """Whether a model calls tools in ``message``: in a record of a conversation, their results may be missing."""
    content: Any = message.content
    kinds = [cast("Mapping[str, Any]", part).get("type") for part in content if isinstance(part, Mapping)]
    given = [getattr(message, "tool_calls", None), *map(message.additional_kwargs.get, ("tool_calls", "function_call"))]
    return any(given) or not set(map(str, kinds)).isdisjoint(_CALLS)


def is_plain_block(block: Any, allowed: Mapping[str, frozenset[str]] = _TOLD) -> bool:
    """Whether a content block is text, or one of the ``allowed`` types, without citations or anything else in it."""
    if isinstance(block, str):
        return True
    if not isinstance(block, Mapping):
        return False
    fields = cast("Mapping[str, Any]", block)
    named = allowed.get(str(fields.get("type")))
    if named is None or not has_only(fields, _FRAME | named):
        return False
    extras: Any = fields.get("extras")
    return not extras or (isinstance(extras, Mapping) and has_only(cast("Mapping[str, Any]", extras), _EXTRAS))


def has_only(fields: Mapping[str, Any], allowed: frozenset[str]) -> bool:
    """Whether all other fields are empty or only numbers."""
    return all(name in allowed or not value or isinstance(value, int | float) for name, value in fields.items())


def quotes(text: str) -> bool:
    """Whether a message of a user may repeat a text of somebody else, in any language.

    It does if it has several lines or more than `MAX_OWN` letters, a line that begins like a quotation in a mail, a
    sentence after a colon or between quotation marks, code, or characters that nobody types.
    """
    return _own_part(text)[1]


def own_sentences(text: str) -> list[str]:
    """The sentences that a message's user wrote, in order, up to the first that may repeat somebody; no questions."""
    return [one for one in _own_part(text)[0] if not _QUESTION.search(one)]


def _own_part(text: str) -> tuple[list[str], bool]:
    """The sentences that are the user's own, and whether the text `quotes`."""
    before, *code = FENCE.split(text)
    lines = [line for line in before.splitlines() if line.strip()]
    if not lines:
        return [], bool(code)
    line = lines[0].strip()
    if len(lines) > 1 or len(line) > MAX_OWN or _MAIL_QUOTE.match(line) or _UNTYPED.search(line):
        return [], True
    start = _start_of_report(line)
    if start is not None:
        return sentences_of(line[:start])[:-1], True  # the last one introduces, or belongs to, the report
    return sentences_of(line), bool(code)


def _start_of_report(line: str) -> int | None:
    """Where the words of somebody else may start: in quotation marks, or after a colon; None if nowhere.

    After a label, one sentence that is not long is the user's own: "Bad news: the exam was moved".
    """
    quotation = _QUOTATION.search(line)
    for colon in _COLON.finditer(line, 0, quotation.start() if quotation else len(line)):
        told = line[colon.end() :]
        size = len(told) + 2 * len(UNSPACED_LETTER.findall(told))
        head = (sentences_of(line[: colon.start()]) or [""])[-1]
        is_label = len(head) <= _LABEL_LETTERS if UNSPACED_LETTER.search(head) else len(head.split()) <= _LABEL_WORDS
        if size >= _SHORT and (not is_label or size >= _LONG or len(sentences_of(told)) > 1):
            return colon.start()
    return quotation.start() if quotation else None


def sentences_of(line: str) -> list[str]:
    """The sentences of a line. What goes on in small letters, as after an ellipsis, belongs to the sentence before."""
    found: list[str] = []
    start = 0
    for end in _END.finditer(line):
        if end.end() > start and not line[end.end() : end.end() + 1].islower():
            found.append(line[start : end.end()].strip())
            start = end.end()
    return [*found, *filter(None, [line[start:].strip()])]


NO_THREAD: Final = "threadless"
"""The session of runs without a thread, whose callers pass the whole history each time."""
EMPTY: Final = "empty"
"""Why a message without text is skipped."""
MARKS: Final = "ingested"
"""Second label of the namespace, below the user, that holds the marks of messages that were taken in."""
OTHER_PARTS: Final = "parts without text"
"""Why a part of a message is skipped, such as an image. Counts parts, not messages."""
FRAMEWORKS: Final = "of the system or a framework"
"""Why a message is skipped that neither a user nor an assistant nor a tool has written."""
NO_DATE: Final = "times that cannot be read"
"""Why a message has no date although its source has one. Counts times, not messages."""
_ENDS: Final = (
    lazy_pattern(r"\n{2,}"),
    lazy_pattern(r"\n+|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])"),
    lazy_pattern(r"\s+"),
)
_MAX_UTF8: Final = 4


class Role(str, Enum):
    """Who said it: the user and other people, the assistant, or a tool that the assistant called."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ORIGINS: Final = {Role.USER: Origin.USER, Role.ASSISTANT: Origin.AGENT, Role.TOOL: Origin.TOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMessage:
    """One message. ``at`` is when it was said, aware; None where the source does not say.

    ``id`` is the source's own; without one, ``position``, counted from 0 in the session, tells equal messages apart. It
    also tells whether something that is not here was said between two messages.
    ``author`` is the name of another person who said it; None for the user, whatever the user's name.
    ``is_proven``: nothing in it is from outside, such as a file or a citation (see `outside`).
    ``is_marked``: text from outside was in the conversation by then, which an assistant may repeat.
    ``media`` are its pictures and recordings, until a model has put them into words: its ``captions``, each with a
    reference to what it tells of. A message with either is not proven to be without text from outside.
    """

    session_id: str | None
    role: Role
    text: str
    id: str | None = None
    position: int = 0
    author: str | None = None
    at: datetime | None = None
    is_proven: bool = True
    is_marked: bool = False
    media: tuple[dict[str, Any], ...] = ()
    captions: tuple[str, ...] = ()

    @property
    def in_words(self) -> ConversationMessage:
        """The same message with its captions in its text."""
        if not self.captions:
            return self
        return replace(self, text="\n".join(part for part in (self.text, *self.captions) if part), captions=())

    @property
    def is_own(self) -> bool:
        """Whether the user said it. Its `own_sentences` are then the user's words."""
        return self.role is Role.USER and self.author is None and self.is_proven

    @property
    def origin(self) -> Origin:
        """Whose words they are; what may be from outside counts as a tool's or a document's."""
        if self.role is Role.USER:
            return Origin.DOCUMENT if brings_outside(self) else Origin.USER
        return Origin.TOOL if self.is_marked or not self.is_proven else _ORIGINS[self.role]


@dataclass(frozen=True, slots=True)
class Transcript:
    """Messages in their order and how many there are at most; ``skipped`` counts by reason while they are read.

    ``faults`` says of the first entries that could not be read where they are and why. Reading may raise InvalidInput;
    the messages read before that are complete.
    """

    messages: Iterable[ConversationMessage]
    total: int
    skipped: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])


def traced(messages: Iterable[ConversationMessage]) -> Iterator[ConversationMessage]:
    """``messages``, marked from the first on that `brings_outside` text into their session."""
    with_outside: set[str | None] = set()
    for message in messages:
        if any_outside([message]):
            with_outside.add(message.session_id)
        yield replace(message, is_marked=True) if message.session_id in with_outside else message


def brings_outside(message: ConversationMessage) -> bool:
    """Whether ``message`` holds text from outside, which the assistant may repeat from then on."""
    is_others = message.role is Role.TOOL or message.author is not None or not message.is_proven
    return is_others or (message.role is Role.USER and quotes(message.text))


def any_outside(messages: Iterable[ConversationMessage]) -> bool:
    """Whether text from outside is in ``messages``, or was in their conversation before."""
    return any(message.is_marked or brings_outside(message) for message in messages)


def author_of(name: str | None, *own: Owner) -> str | None:
    """``name`` as the author of a message in the user's role; None if it is one of the user's ``own`` names.

    The case of letters makes no difference.
    """
    return None if not name or name.casefold() in (str(owner).casefold() for owner in own) else name


def label(text: str | None, limit: int = MAX_LABEL_BYTES) -> str | None:
    """``text`` as a short field of a memory, cut after ``limit`` characters; None if nothing is left of it."""
    clean = mended(text or "")[:limit].encode()[:MAX_LABEL_BYTES].decode(errors="ignore")
    try:
        return optional_text(clean, what="label")
    except InvalidMemory:
        return None


def mended(text: str) -> str:
    """``text`` as valid Unicode without NUL; a lone surrogate becomes U+FFFD."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def session_name(session_id: str | None) -> str | None:
    """``session_id`` as it is stored: mended, or its digest if it is too long."""
    name = session_id and mended(session_id)
    if name and len(raw := name.encode()) > MAX_LABEL_BYTES:
        return hashlib.sha256(raw).hexdigest()
    return name


def session_label(session_id: str | None) -> str | None:
    """``session_id`` as a field of a memory: a `label`, but ids that are too long stay distinct."""
    return label(session_name(session_id))


def split_text(text: str, max_bytes: int) -> list[str]:
    """``text`` in parts of at most ``max_bytes`` of UTF-8, or of one character.

    A part ends at the last paragraph end in its second half, else at a sentence or word end, else where it is full.
    Only white space between the parts is dropped.
    """
    parts: list[str] = []
    start = 0
    while start < len(text):
        limit = max(max_bytes, _MAX_UTF8)
        window = text[start : start + limit].encode()[:limit].decode(errors="ignore")
        is_last = start + len(window) == len(text)
        cuts = ([end.end() for end in ends.finditer(window, len(window) // 2)] for ends in _ENDS)
        end = len(window) if is_last else next((found[-1] for found in cuts if found), len(window))
        parts.append(window[:end].strip())
        start += end
    return [part for part in parts if part]


def message_to_json(message: ConversationMessage) -> dict[str, Any]:
    """``message`` as JSON data that every store can hold, without its media."""
    return {
        "session": session_name(message.session_id),
        "role": message.role.value,
        "text": mended(message.text),
        "id": message.id and mended(message.id),
        "position": message.position,
        "author": message.author and mended(message.author),
        "at": message.at and message.at.isoformat(),
        **({"after_tool": True} if message.is_marked else {}),
        **({} if message.is_proven else {"unproven": True}),
        **({"captions": list(message.captions)} if message.captions else {}),
    }


def message_of(value: Mapping[str, Any]) -> ConversationMessage:
    """The message that `message_to_json` wrote."""
    return ConversationMessage(
        session_id=value["session"],
        role=Role(value["role"]),
        text=value["text"],
        id=value["id"],
        position=value["position"],
        author=value["author"],
        at=datetime.fromisoformat(value["at"]) if value["at"] else None,
        is_proven=not value.get("unproven", False),
        is_marked=value.get("after_tool", False),
        captions=tuple(value.get("captions", ())),
    )


def marks_of(user_id: Owner) -> Namespace:
    """The namespace of the marks of this user's messages."""
    return (encode_label(user_id), MARKS)


def mark(namespace: Namespace, key: str, clock: Clock) -> Put:
    """The write that marks a message as taken in; it fails if the message is marked already."""
    return Put(namespace=namespace, key=key, value="{}", updated_at=clock.now(), expected=0)


async def unmarked(engine: StoreEngine, marks: Namespace, keys: Iterable[str]) -> list[str]:
    """Those of ``keys`` without a mark among ``marks``. Raises StoreError."""
    asked = list(keys)
    rows = await engine.get([(marks, key) for key in asked])
    return [key for key, row in zip(asked, rows, strict=True) if row is None]


async def noted_outside(
    engine: StoreEngine, clock: Clock, user_id: Owner, session_id: str | None, is_outside: bool
) -> bool:
    """Whether text from outside was in the user's session before; if it ``is_outside`` now, a mark remembers it.

    The mark stays until the user is erased. Raises StoreError.
    """
    marks, key = marks_of(user_id), digest_of(["tool", session_name(session_id)])
    is_first = bool(await unmarked(engine, marks, [key]))
    if is_first and is_outside:
        with suppress(VersionConflict):  # another process was faster
            await engine.write([mark(marks, key, clock)])
    return not is_first


STATES: Final = ("open", "done", "dropped")


class Action(str, Enum):
    """A candidate is new, repeats a known memory, or takes its place."""

    ADD = "add"
    REINFORCE = "reinforce"
    SUPERSEDE = "supersede"


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """An existing memory that a candidate may reinforce or supersede; ``name`` is its name in the request.

    ``is_external``: its text comes from a tool or a document. ``said_at``: when it was last said, if that is known.
    """

    name: str
    memory_id: str
    content: str
    is_external: bool = False
    said_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """Someone or something that a memory is about. ``kind``: person, place, organization, thing or concept."""

    name: str
    kind: str = "thing"


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation ``name`` from ``source`` to ``target``, which are names of entities."""

    source: str
    name: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A memory that messages suggest. Instants are aware, in UTC.

    ``valid_from`` and ``valid_to`` bound when it holds, as far as that was said. ``state`` (of a goal or an idea) is
    open, done or dropped. ``target`` is the id of the offered memory that ``action`` is about. ``message_ids`` are its
    sources. ``origin`` is a tool if none of these is a user's and one is, or may be, a tool's, so that it never becomes
    a rule, and a document if it is a caption; otherwise the agent, who wrote it down. ``cites`` are the memories that a
    summary or an insight draws on.
    """

    content: str
    memory_type: MemoryType = MemoryType.FACTS
    topic: str | None = None
    tags: tuple[str, ...] = ()
    importance: float = DEFAULT_IMPORTANCE
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    state: str | None = None
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    message_ids: tuple[str, ...] = ()
    origin: Origin = Origin.AGENT
    action: Action = Action.ADD
    target: str | None = None
    cites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The candidates of a batch of messages. ``problems``: the parts of the model's answer that are unusable, and why.

    ``notes`` are for the periodic work that applies the result.
    """

    candidates: Sequence[Candidate]
    problems: Sequence[str] = field(default_factory=list[str])
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


@cache
def _adapter() -> TypeAdapter[Extraction]:
    """Made on first use, which takes longer than the import of this module."""
    return TypeAdapter(Extraction)


def extraction_to_json(extraction: Extraction) -> dict[str, Any]:
    """``extraction`` as JSON data that every store can hold; numbers that are not finite become 0."""
    return _storable(_adapter().dump_python(extraction))


def extraction_from_json(stored: object) -> Extraction:
    """The extraction that `extraction_to_json` wrote."""
    return _adapter().validate_python(stored)


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _storable(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType] - values of any type
    if isinstance(value, list | tuple):
        return [_storable(part) for part in value]  # pyright: ignore[reportUnknownVariableType] - values of any type
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return 0.0
    return mended(value) if isinstance(value, str) else value
