"""OverflowPolicy: how much a conversation may take, and what is done when it takes more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from inference_core.blocks.conversation import Conversation
from inference_core.blocks.memory import Block
from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError
from inference_core.short_term.overflow import Relief, relieved, threshold
from inference_core.short_term.strategies import DEFAULT_MAX_TOKENS, Eviction, FlushToLongTerm, OverflowStrategy
from inference_core.short_term.tokens import TokenCounter, count_tokens, model_window, tool_tokens
from inference_core.short_term.window import Window

Overflow = OverflowStrategy | Sequence[OverflowStrategy] | None
_PAUSE_S: Final = 30.0


class OverflowPolicy:
    """``overflow`` is one strategy or several, None is FlushToLongTerm() into verbatim passages.

    The limit is ``max_ratio`` of the model's window if that is known and a ratio is given, else ``max_tokens``, and
    never more than the model's window. After a model has failed, none is asked for half a minute for the same
    conversation. Raises ConfigurationError for arguments that make no sense.
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
            # Blocks tell by their names which messages they have taken in, and which facts are theirs.
            raise ConfigurationError(f"Two blocks are named {twice!r}: give each its own name")
        self.counter = counter
        self._max_tokens = max_tokens
        self._max_ratio = max_ratio
        self._paused_until: dict[Conversation | None, float] = {}

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all flushes."""
        return [block for one in self.strategies if isinstance(one, FlushToLongTerm) for block in one.memory]

    @property
    def into_system_prompt(self) -> bool:
        """Whether what the blocks recall goes behind the system prompt."""
        return any(isinstance(one, FlushToLongTerm) and one.into_system_prompt for one in self.strategies)

    def limit(self, model: Any = None) -> int:
        """The tokens that a request to ``model`` may have."""
        window = model_window(model)
        if window is None:
            return self._max_tokens
        return min(window, self._max_tokens) if self._max_ratio is None else max(1, int(window * self._max_ratio))

    def room(self, system: BaseMessage | None = None, tools: Sequence[Any] = (), model: Any = None) -> int:
        """The tokens that are left for messages beside the system prompt and the tools' schemas; at least 1."""
        fixed = (self.counter([system]) if system else 0) + tool_tokens(tools)
        return max(1, self.limit(model) - fixed)

    def is_full(self, window: Window, room: int) -> bool:
        """Whether the messages of ``window`` are more than the first strategy to act lets pass."""
        return window.tokens > threshold(self.strategies, room)

    def relieved(self, window: Window, eviction: Eviction) -> Plan[Relief]:
        """Plan: what becomes of ``window``; nothing if it is not too full. Raises ConfigurationError."""
        now = time.monotonic()
        is_paused = now < self._paused_until.get(eviction.conversation, 0.0)
        if is_paused or not self.is_full(window, eviction.room):
            return Relief(window.messages)
        relief = yield from relieved(window, self.strategies, eviction)
        if relief.model_failed:
            now = time.monotonic()
            running = {one: until for one, until in list(self._paused_until.items()) if until > now}
            self._paused_until = {**running, eviction.conversation: now + _PAUSE_S}
        return relief
