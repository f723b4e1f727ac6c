"""Outside unless proven harmless: which messages and texts hold nothing but the words of a user or a model.

Providers and frameworks invent new kinds of blocks, metadata and messages all the time. So the tables below name what
is harmless; whatever they do not name counts as text from outside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from inference_core.retrieval.analysis import UNSPACED, UNSPACED_LETTER

OWN_ARTIFACT: Final = {"inference_core": "memory"}
"""The artifact of a memory tool's answer. A foreign tool may have the same name, and a server behind it no artifact."""
FENCE: Final = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
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

_END: Final = re.compile(
    r"(?<=[.!?\u061f\u037e\u06d4\u0964])[\"'\u201d\u2019\u00bb)\]]*\s+|(?<=[\u3002\uff01\uff1f])\s*"
)
_QUESTION: Final = re.compile(r"[?\uff1f\u061f\u037e;][\"'\u201d\u2019\u00bb)\]\s]*\Z")
"""A semicolon ends Greek questions."""
_MAIL_QUOTE: Final = re.compile(r"\s*[>|\u203a\u2502]")
_PAIRS: Final = ('""', "\u201c\u201d", "\u201e\u201c", "\u201e\u201d", "\u00ab\u00bb", "\u00bb\u00ab",
    "\u300c\u300d", "\u300e\u300f", "\uff62\uff63")  # fmt: skip
_QUOTATION: Final = re.compile(
    "|".join(
        [
            *(f"{start}[^{start}{end}]{{24,}}{end}" for start, end in _PAIRS),
            *(f"{start}[^{start}{end}]*[{UNSPACED}][^{start}{end}]{{7,}}{end}" for start, end in _PAIRS),
            "(?<!\\w)['\u2018\u201a][^'\u2018\u2019]{24,}['\u2018\u2019](?!\\w)",
        ]
    )
)
"""A sentence in quotation marks; titles are shorter."""
_COLON: Final = re.compile(r":\s+|\uff1a\s*")
_LABEL_WORDS: Final = 2
_LABEL_LETTERS: Final = 4
"""So many words, or letters of a script without spaces, before a colon are a label, such as "Bad news:"."""
_SHORT, _LONG = 24, 100
"""Letters after a colon that are no sentence, or more than the user's own; a third in scripts without spaces."""
_UNTYPED: Final = re.compile("[\ufffc\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]|</?[a-z][^<>]*>", re.IGNORECASE)
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
