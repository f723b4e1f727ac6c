"""The window of a conversation: its messages in units, their tokens, which stay, and which the model gets.

A unit is a message, or an assistant's tool calls with their results. The user's last message always stays, and so does
the last unit that may be shown, which the model has to answer.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from inference_core.memory.text import text_tokens
from inference_core.short_term.blocks.memory import is_call, text_in

TokenCounter = Callable[[Sequence[BaseMessage]], int]
"""Counts the tokens of messages, such as `count_tokens` or ``model.get_num_tokens_from_messages``."""
MESSAGE_TOKENS: Final = 4
"""Tokens of a message besides its content."""
MEDIA_TOKENS: Final = 1_000
"""The estimate for an image, a recording or a file."""
SUMMARY_MARK: Final = "summarization"
"""``additional_kwargs["lc_source"]`` of a summary, as in LangChain's own summaries."""
_FRAMEWORKS: Final = ("lc_source", "read_file_media_result")
"""Keys of ``additional_kwargs`` by which LangChain and deepagents mark their own messages in the user's role."""
NO_RESULT: Final = "No result: the run ended before this tool did."
CUT: Final = "\n… [{} characters cut] …\n"
_LEAST_CHARACTERS: Final = 200
_MAX_TOOLS: Final = 512
_json: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode
_tool_tokens: dict[int, tuple[object, int]] = {}


def count_tokens(messages: Sequence[BaseMessage]) -> int:
    """Estimates the tokens of ``messages`` conservatively: four bytes of English or one Chinese character each."""
    count = 0
    for message in messages:
        content: Any = message.content
        count += MESSAGE_TOKENS
        for one in cast("list[Any]", [content] if isinstance(content, str) else content):
            block: dict[str, Any] = {"text": one} if isinstance(one, str) else one
            text = block.get("text")
            if isinstance(text, str):
                count += text_tokens(text)
            elif not is_call(block):  # else counted with the message's tool calls
                is_thought = block.get("type") in ("reasoning", "thinking")
                count += text_tokens(_json(block)) if is_thought else MEDIA_TOKENS
        if isinstance(message, AIMessage) and message.tool_calls:
            count += sum(text_tokens(call["name"] + _json(call["args"])) for call in message.tool_calls)
    return count


def model_window(model: object) -> int | None:
    """The size of ``model``'s context window in tokens, if its profile names it."""
    profile: Any = getattr(model, "profile", None) or {}
    window = profile.get("max_input_tokens")
    return window if isinstance(window, int) and window > 0 else None


def tool_tokens(tools: Sequence[BaseTool | dict[str, Any] | Callable[..., Any]]) -> int:
    """Estimates the tokens of the schemas of ``tools``, once for each tool."""
    count = 0
    for tool in tools:
        known = _tool_tokens.get(id(tool))
        if known is None or known[0] is not tool:  # an id that another tool had before
            if len(_tool_tokens) >= _MAX_TOOLS:
                _tool_tokens.clear()
            given: Any = tool  # a provider's own tool is its own schema
            schema = cast("dict[str, Any]", given) if isinstance(given, dict) else convert_to_openai_tool(given)
            known = _tool_tokens[id(tool)] = (tool, text_tokens(_json(schema)))
        count += known[1]
    return count


def is_summary(message: BaseMessage) -> bool:
    """Whether ``message`` is a summary of messages that left the window."""
    return message.additional_kwargs.get("lc_source") == SUMMARY_MARK


def is_said_by_user(message: BaseMessage) -> bool:
    """Whether a person said it. A framework's messages in the user's role, such as summaries, do not count."""
    return isinstance(message, HumanMessage) and not any(map(message.additional_kwargs.get, _FRAMEWORKS))


def last_of_user(messages: Sequence[AnyMessage]) -> AnyMessage | None:
    """The user's last message."""
    return next((message for message in reversed(messages) if is_said_by_user(message)), None)


@dataclass(frozen=True, slots=True)
class Unit:
    """Messages that stay or leave together. ``is_orphan``: a tool's result without its call."""

    messages: tuple[AnyMessage, ...]
    is_orphan: bool = False

    @property
    def first(self) -> AnyMessage:
        """Its first message."""
        return self.messages[0]

    @property
    def is_pinned(self) -> bool:
        """Whether it always stays: system messages and summaries do."""
        return isinstance(self.first, SystemMessage) or is_summary(self.first)


class Window:
    """The messages of a conversation, the oldest first, with their sizes."""

    def __init__(self, messages: Sequence[AnyMessage], counter: TokenCounter) -> None:
        self.messages = list(messages)
        self.counter = counter

    @cached_property
    def valid(self) -> list[AnyMessage]:
        """All messages as models accept them."""
        return valid(self.units)

    @cached_property
    def tokens(self) -> int:
        """The tokens of all messages as models accept them."""
        return self.counter(self.valid) if self.valid else 0

    @cached_property
    def units(self) -> list[Unit]:
        """The messages as units, in order."""
        groups: list[list[AnyMessage]] = []
        waiting: set[str | None] = set()
        for message in self.messages:
            if isinstance(message, ToolMessage) and message.tool_call_id in waiting:
                waiting.discard(message.tool_call_id)
                groups[-1].append(message)
            else:
                waiting = {call["id"] for call in message.tool_calls} if isinstance(message, AIMessage) else set()
                groups.append([message])
        return [Unit(tuple(group), is_orphan=isinstance(group[0], ToolMessage)) for group in groups]

    @cached_property
    def sizes(self) -> list[int]:
        """The tokens of each unit as models accept it."""
        return [self.counter(shown) if (shown := valid([unit])) else 0 for unit in self.units]

    @cached_property
    def last(self) -> int:
        """The position of the unit that the model has to answer: the last that is no orphan; 0 without one."""
        return next((at for at in reversed(range(len(self.units))) if not self.units[at].is_orphan), 0)

    @cached_property
    def asked(self) -> int:
        """The position of the unit with the user's last message; -1 if the user said nothing."""
        return next((at for at in reversed(range(len(self.units))) if is_said_by_user(self.units[at].first)), -1)

    def summary(self) -> AnyMessage | None:
        """The summary of what left the window earlier."""
        return next((unit.first for unit in self.units if is_summary(unit.first)), None)

    def stays(self, at: int, start: int) -> bool:
        """Whether the unit at ``at`` stays if the window starts at ``start``; pinned and `asked` units always do."""
        return at >= start or at == self.asked or self.units[at].is_pinned

    def kept(self, start: int) -> list[Unit]:
        """The units that stay if the window starts at ``start``."""
        return [unit for at, unit in enumerate(self.units) if self.stays(at, start)]

    def leaving(self, start: int) -> list[AnyMessage]:
        """The messages that leave if the window starts at ``start``."""
        return [message for at, unit in enumerate(self.units) if not self.stays(at, start) for message in unit.messages]

    def start_for(self, room: int) -> int:
        """Where to start so that as many of the newest units as possible fit ``room`` tokens; `last` if none fits."""
        used = sum(size for at, size in enumerate(self.sizes) if self.stays(at, self.last))
        start = self.last
        for at in reversed(range(self.last)):
            used += 0 if self.stays(at, self.last) else self.sizes[at]
            if used > room:
                break
            start = at
        return self.turn_at(start)

    def start_after(self, count: int) -> int:
        """Where to start so that at least ``count`` messages leave, or all that may leave if those are fewer."""
        left = 0
        for at in range(self.last):
            if left >= count:
                return self.turn_at(at)
            left += 0 if self.stays(at, self.last) else len(self.units[at].messages)
        return self.last

    def start_of_last(self, count: int) -> int:
        """Where the last ``count`` messages start; a unit that is partly among them stays whole."""
        left = count
        for at in reversed(range(len(self.units))):
            left -= len(self.units[at].messages)
            if left <= 0:
                return min(at, self.last)
        return 0

    def turn_at(self, start: int) -> int:
        """``start`` or, since models expect a turn of the user first, the next unit at which such a turn begins."""
        if not 0 < start <= self.asked:
            return start
        return next(at for at in range(start, self.asked + 1) if is_said_by_user(self.units[at].first))


def valid(units: Iterable[Unit]) -> list[AnyMessage]:
    """The messages of ``units`` as models accept them: no result without its call, no call without a result."""
    messages: list[AnyMessage] = []
    for unit in units:
        first = unit.first
        if unit.is_orphan:
            continue
        if not isinstance(first, AIMessage):
            messages += unit.messages
            continue
        calls = {call["id"]: call for call in first.tool_calls if call["id"]}
        if len(calls) < len(first.tool_calls) or first.invalid_tool_calls:
            # No other tool calls may be left, in any of the forms in which providers store them.
            content: Any = first.content
            if not isinstance(content, str):
                left, kept = set(calls), list[Any]()
                for block in content:
                    name = (block.get("call_id") or block.get("id")) if is_call(block) else None
                    if not is_call(block) or name in left:
                        kept.append(block)
                        left.discard(name)
                content = kept
            other = {name: value for name, value in first.additional_kwargs.items() if name != "tool_calls"}
            calls_now = {"tool_calls": list(calls.values()), "invalid_tool_calls": []}
            first = first.model_copy(update={"content": content, "additional_kwargs": other, **calls_now})
        there = {message.tool_call_id for message in unit.messages if isinstance(message, ToolMessage)}
        messages += [first, *unit.messages[1:]]
        messages += [
            ToolMessage(NO_RESULT, tool_call_id=name, name=call["name"] or "unknown", status="error")
            for name, call in calls.items()
            if name not in there
        ]
    return messages


def view(window: Window, room: int) -> list[AnyMessage]:
    """The newest messages of ``window`` that fit ``room`` tokens, as models accept them.

    The user's last message and what the model has to answer are always among them. If these alone are too large, the
    middle of long tool results is cut out, and pictures become names. ``window`` does not change.
    """
    if window.tokens <= room:
        return list(window.valid)
    messages = valid(window.kept(window.start_for(room)))
    if window.counter(messages) <= room:
        return messages
    results = {at: text_in(message) for at, message in enumerate(messages) if isinstance(message, ToolMessage)}

    def cut(limit: int) -> list[AnyMessage]:
        shown = list(messages)
        for at, text in results.items():
            shorter = text
            if len(text) > limit:  # three quarters from its start, the rest from its end
                size = limit - len(CUT.format(len(text)))
                tail = size // 4
                shorter = text[: size - tail] + CUT.format(len(text) - size) + text[len(text) - tail :]
            shown[at] = shown[at].model_copy(update={"content": shorter})
        return shown

    limits = range(_LEAST_CHARACTERS, max(map(len, results.values()), default=0) + 1)
    fitting = bisect_left(limits, True, key=lambda limit: window.counter(cut(limit)) > room)
    return cut(limits[fitting - 1] if fitting else _LEAST_CHARACTERS)


def omissions(window: Window, shown: Sequence[AnyMessage], room: int) -> list[str]:
    """Which messages of ``window`` are not among ``shown`` or not as they were, by type and id, and why."""
    there = {message.id: message for message in shown}
    orphans = {message.id for unit in window.units if unit.is_orphan for message in unit.messages}
    hidden = [message for message in window.messages if message.id not in there and message.id not in orphans]
    too_many = f"as the messages have {window.tokens} tokens and there is room for {room}"
    reasons = {
        f"Hidden, {too_many}": hidden,
        "Hidden, as their tool calls are not in the session": [
            message for message in window.messages if message.id in orphans
        ],
        f"Shortened, {too_many}": [
            message
            for message in window.messages
            if isinstance(message, ToolMessage) and there.get(message.id, message).content != message.content
        ],
    }
    return [
        f"{reason}: {', '.join(f'{message.type} {message.id}' for message in named)}"
        for reason, named in reasons.items()
        if named
    ]
