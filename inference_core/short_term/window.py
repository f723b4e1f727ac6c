"""The window of a conversation: its messages in units, their tokens, which stay, and which the model gets.

A unit is a message, or an assistant's tool calls with their results. The user's last message always stays, and so does
the last unit that may be shown, which the model has to answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from inference_core.memory.text import text_tokens
from inference_core.short_term.content import (
    Pairs,
    accepted,
    blocks_of,
    calls_in,
    encoded,
    has_only_results,
    paired,
    parts_in,
    results_in,
    text_in,
    thoughts_in,
    told_calls,
    with_results_cut,
)

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

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
_LEAST_CHARACTERS: Final = 200
_MAX_TOOLS: Final = 512
_tool_tokens: dict[int, tuple[object, int]] = {}


def count_tokens(messages: Sequence[BaseMessage]) -> int:
    """Estimates the tokens of ``messages`` conservatively: four bytes of English or one Chinese character each."""
    count = 0
    for message in messages:
        count += MESSAGE_TOKENS
        if isinstance(message.content, str):  # nearly all messages
            count += text_tokens(message.content)
        else:
            parts = parts_in(message.content)
            count += sum(MEDIA_TOKENS if part.is_media else text_tokens(part.text) for part in parts)
            count += sum(map(text_tokens, thoughts_in(message)))
        count += sum(text_tokens(name + arguments) for name, arguments in told_calls(message))
    return count


def model_window(model: object) -> int | None:
    """The size of ``model``'s context window in tokens, if its profile names it."""
    profile: Any = getattr(model, "profile", None) or {}
    window = profile.get("max_input_tokens")
    return window if isinstance(window, int) and window > 0 else None


def tool_tokens(tools: Sequence[BaseTool | dict[str, Any] | Callable[..., Any]]) -> int:
    """Estimates the tokens of the schemas of ``tools``, once for each tool."""
    from langchain_core.utils.function_calling import convert_to_openai_tool  # noqa: PLC0415 - as tools do

    count = 0
    for tool in tools:
        known = _tool_tokens.get(id(tool))
        if known is None or known[0] is not tool:  # an id that another tool had before
            if len(_tool_tokens) >= _MAX_TOOLS:
                _tool_tokens.clear()
            given: Any = tool  # a provider's own tool is its own schema
            schema = cast("dict[str, Any]", given) if isinstance(given, dict) else convert_to_openai_tool(given)
            known = _tool_tokens[id(tool)] = (tool, text_tokens(encoded(schema)))
        count += known[1]
    return count


def is_summary(message: BaseMessage) -> bool:
    """Whether ``message`` is a summary of messages that left the window."""
    return message.additional_kwargs.get("lc_source") == SUMMARY_MARK


def is_said_by_user(message: BaseMessage) -> bool:
    """Whether a person said it. A framework's messages in the user's role, such as summaries, do not count."""
    return isinstance(message, HumanMessage) and not any(map(message.additional_kwargs.get, _FRAMEWORKS))


def is_question(message: BaseMessage) -> bool:
    """Whether a person said it, and it holds more than results of tools, which some providers want in that role."""
    return is_said_by_user(message) and not has_only_results(message)


def last_of_user(messages: Sequence[AnyMessage]) -> AnyMessage | None:
    """The user's last message; one that holds nothing but tools' results does not count."""
    return next((message for message in reversed(messages) if is_question(message)), None)


@dataclass(frozen=True, slots=True)
class Unit:
    """Messages that stay or leave together, and these as models accept them."""

    messages: tuple[AnyMessage, ...]
    shown: tuple[AnyMessage, ...]

    @property
    def is_orphan(self) -> bool:
        """Whether it is a tool's result without its call, of which nothing can be shown."""
        return not self.shown

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
        """The messages as units, in order: a message and, if it has calls, what follows with their results."""
        units: list[Unit] = []
        at = 0
        while at < len(self.messages):
            calls = calls_in(self.messages[at])
            answers = list(takewhile(results_in, islice(self.messages, at + 1, None))) if calls else []
            pairs: Pairs = paired(calls, answers) if answers else {}
            end = at + 1 + max((place[0] + 1 for place in pairs), default=0)
            messages = tuple(self.messages[at:end])
            units.append(Unit(messages, accepted(messages, calls, pairs)))
            at = end
        return units

    @cached_property
    def sizes(self) -> list[int]:
        """The tokens of each unit as models accept it."""
        return [self.counter(unit.shown) if unit.shown else 0 for unit in self.units]

    @cached_property
    def last(self) -> int:
        """The position of the unit that the model has to answer: the last that is no orphan; 0 without one."""
        return next((at for at in reversed(range(len(self.units))) if not self.units[at].is_orphan), 0)

    @cached_property
    def asked(self) -> int:
        """The position of the unit with the user's last message; -1 if the user said nothing."""
        places = reversed(range(len(self.units)))
        return next((at for at in places if any(map(is_question, self.units[at].messages))), -1)

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
        return next((at for at in range(start, self.asked) if is_question(self.units[at].first)), self.asked)


def valid(units: Iterable[Unit]) -> list[AnyMessage]:
    """The messages of ``units`` as models accept them: no result without its call, no call without a result."""
    return [message for unit in units for message in unit.shown]


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

    def cut(limit: int) -> list[AnyMessage]:
        return [with_results_cut(message, limit) for message in messages]

    longest = max((len(text_in(message)) for message in messages if results_in(message)), default=0)
    limits = range(_LEAST_CHARACTERS, longest + 1)
    fitting = bisect_left(limits, True, key=lambda limit: window.counter(cut(limit)) > room)
    return cut(limits[fitting - 1] if fitting else _LEAST_CHARACTERS)


def in_turn(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """``messages`` with each summary in the user's role put into the user's message beside it, if there is one.

    Some models refuse two messages of the user in a row.
    """
    shown: list[AnyMessage] = []
    for message in messages:
        before = shown[-1] if shown else None
        is_double = isinstance(before, HumanMessage) and isinstance(message, HumanMessage)
        if not (before and is_double and (is_summary(before) or is_summary(message))):
            shown.append(message)
            continue
        both = [*blocks_of(before), *blocks_of(message)]
        is_text = isinstance(before.content, str) and isinstance(message.content, str)
        blocks = ({"type": "text", "text": block} if isinstance(block, str) else block for block in both)
        content = "\n\n".join(both) if is_text else list(blocks)
        shown[-1] = (before if is_summary(message) else message).model_copy(update={"content": content})
    return shown


def omissions(window: Window, shown: Sequence[AnyMessage], room: int) -> list[str]:
    """Which messages of ``window`` are not among ``shown`` or not as they were, by type and id, and why."""
    there = {message.id: message for message in shown}
    orphans = {message.id for message in window.messages} - {message.id for message in window.valid}
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
