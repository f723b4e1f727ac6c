"""OverflowPolicy: how many tokens a conversation may take, and what happens when it takes more.

Nothing leaves a window before it is safe, and a failure leaves everything where it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from langchain_core.messages import AnyMessage, BaseMessage

from inference_core.effects import Operation
from inference_core.errors import ConfigurationError, InferenceCoreError, ModelError
from inference_core.short_term.blocks.memory import Block, UserSession
from inference_core.short_term.strategies import DEFAULT_MAX_TOKENS, Eviction, FlushToLongTerm, OverflowStrategy
from inference_core.short_term.window import TokenCounter, Window, count_tokens, model_window, tool_tokens

Overflow = OverflowStrategy | Sequence[OverflowStrategy] | None
_PAUSE_S: Final = 30.0
Failures = list[tuple[OverflowStrategy, InferenceCoreError]]


@dataclass(frozen=True, slots=True)
class OverflowResult:
    """A window after overflow: its messages now, the evicted ones, and the summary that replaces them.

    ``notice`` says what failed; if messages had to stay because of that, ``evicted`` is empty. ``model_failed``: a
    model was among what failed.
    """

    messages: list[AnyMessage]
    evicted: list[AnyMessage] = field(default_factory=list[AnyMessage])
    summary: AnyMessage | None = None
    notice: str | None = None
    model_failed: bool = False


def threshold(strategies: Sequence[OverflowStrategy], room: int) -> int:
    """The tokens of ``room`` above which the first of ``strategies`` acts."""
    return min(strategy.threshold(room) for strategy in strategies)


def handle_overflow(
    window: Window, strategies: Sequence[OverflowStrategy], eviction: Eviction
) -> Operation[OverflowResult]:
    """Applies ``strategies`` to a full ``window``; ``eviction`` describes the conversation, its messages are ignored.

    Raises ConfigurationError, a developer's mistake; all other errors of the package become the result's ``notice``.
    """
    room = threshold(strategies, eviction.room)
    previous = window.summary()
    known = window.counter([previous]) if previous else 0
    added = max(0, *(strategy.reserve(room) - known for strategy in strategies))
    # The last strategy decides what stays, but a new summary must fit, too.
    start = max(strategies[-1].start(window, eviction.room), window.start_for(room - added))
    leaving = window.leaving(start)
    if not leaving:
        return OverflowResult(window.messages)
    evicted = replace(eviction, room=room, messages=leaving, previous=previous)
    summary: AnyMessage | None = None
    failed: Failures = []
    # Flushes come first: if one fails, the others' work would be in vain.
    for strategy in sorted(strategies, key=lambda one: not isinstance(one, FlushToLongTerm)):
        try:
            summary = (yield from strategy.secured(evicted)) or summary
        except ConfigurationError:
            raise
        except InferenceCoreError as error:
            failed.append((strategy, error))
            if isinstance(strategy, FlushToLongTerm):
                break
    notice = "; ".join(f"{strategy.name}: {error}" for strategy, error in failed) or None
    model_failed = any(isinstance(error, ModelError) for _, error in failed)
    flush_failed = any(isinstance(strategy, FlushToLongTerm) for strategy, _ in failed)
    # Messages leave only if all flushes are durable and another strategy handled them, or was meant to drop them.
    is_dealt_with = len(failed) < len(strategies) or any(strategy.drops for strategy in strategies)
    if flush_failed or not is_dealt_with:
        return OverflowResult(window.messages, notice=notice, model_failed=model_failed)
    anchor = previous or leaving[0]
    messages: list[AnyMessage] = []
    for at, unit in enumerate(window.units):
        if summary is not None and unit.first is anchor:
            messages.append(summary)
        elif window.stays(at, start):
            messages += unit.messages
    return OverflowResult(messages, leaving, summary, notice, model_failed)


class OverflowPolicy:
    """``overflow`` is one strategy or several; None is ``FlushToLongTerm()``.

    The limit is ``max_ratio`` of the model's window if both are known, else ``max_tokens``, and never more than the
    model's window. After a model failed, none is asked for the same conversation for half a minute. Raises
    ConfigurationError for arguments that make no sense.
    """

    def __init__(
        self,
        overflow: Overflow = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        max_ratio: float | None = None,
        counter: TokenCounter = count_tokens,
    ) -> None:
        given = [FlushToLongTerm()] if overflow is None else overflow
        self.strategies = [given] if isinstance(given, OverflowStrategy) else list(given)
        if not self.strategies or not all(isinstance(one, OverflowStrategy) for one in self.strategies):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise ConfigurationError("overflow must be a strategy such as FlushToLongTerm(), or several")
        if max_tokens < 1 or (max_ratio is not None and not 0 < max_ratio <= 1):
            raise ConfigurationError("max_tokens must be at least 1, and max_ratio above 0 and at most 1")
        names = [block.name for block in self.blocks]
        if twice := next((name for name in names if names.count(name) > 1), None):
            # A block recognizes the messages that it has taken in, and its own facts, by its name.
            raise ConfigurationError(f"Two blocks are named {twice!r}: give each its own name")
        self.counter = counter
        self._max_tokens = max_tokens
        self._max_ratio = max_ratio
        self._paused_until: dict[UserSession | str | None, float] = {}

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all flushes."""
        return [block for one in self.strategies if isinstance(one, FlushToLongTerm) for block in one.memory]

    @property
    def into_system_prompt(self) -> bool:
        """Whether to append what the blocks recall to the system prompt."""
        return any(isinstance(one, FlushToLongTerm) and one.into_system_prompt for one in self.strategies)

    def limit(self, model: Any = None) -> int:
        """The tokens that a request to ``model`` may have."""
        window = model_window(model)
        if window is None:
            return self._max_tokens
        return min(window, self._max_tokens) if self._max_ratio is None else max(1, int(window * self._max_ratio))

    def room(self, system: BaseMessage | None = None, tools: Sequence[Any] = (), model: Any = None) -> int:
        """The tokens left for messages besides the system prompt and the tools' schemas; at least 1."""
        fixed = (self.counter([system]) if system else 0) + tool_tokens(tools)
        return max(1, self.limit(model) - fixed)

    def is_full(self, window: Window, room: int) -> bool:
        """Whether ``window`` has more tokens than the first strategy to act allows."""
        return window.tokens > threshold(self.strategies, room)

    def handle(self, window: Window, eviction: Eviction) -> Operation[OverflowResult]:
        """Handles the overflow of ``window``, if it is full. Raises ConfigurationError."""
        now = time.monotonic()
        # Without a user, conversations differ by their threads.
        whose = eviction.conversation or eviction.thread
        is_paused = now < self._paused_until.get(whose, 0.0)
        if is_paused or not self.is_full(window, eviction.room):
            return OverflowResult(window.messages)
        result = yield from handle_overflow(window, self.strategies, eviction)
        if result.model_failed:
            now = time.monotonic()
            running = {one: until for one, until in list(self._paused_until.items()) if until > now}
            self._paused_until = {**running, whose: now + _PAUSE_S}
        return result
