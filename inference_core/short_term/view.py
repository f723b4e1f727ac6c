"""What of a window the model is shown: valid, and no more than there is room for."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from langchain_core.messages import AnyMessage, ToolMessage

from inference_core.blocks.passages import text_in
from inference_core.short_term.tokens import TokenCounter
from inference_core.short_term.window import Window, is_valid, valid

_LEAST_CHARACTERS: Final = 200
CUT: Final = "\n… [{} characters cut] …\n"


def view(window: Window, room: int) -> list[AnyMessage]:
    """The newest messages of ``window`` that fit ``room`` tokens, as models accept them.

    The user's last message and what the model has to answer are always there; if those alone are too much, the results
    of tools are shown with their middle cut out, and with names for pictures. Nothing is taken from ``window``.
    """
    if window.tokens > room:
        return _shortened(valid(window.kept(window.start_for(room))), window.counter, room)
    return list(window.messages) if is_valid(window.messages) else valid(window.units)


def _shortened(messages: list[AnyMessage], counter: TokenCounter, room: int) -> list[AnyMessage]:
    """``messages`` with less of their tools' results, the longest first, as far as needed."""
    if counter(messages) <= room:
        return messages
    sizes = {at: len(text_in(one)) for at, one in enumerate(messages) if isinstance(one, ToolMessage)}

    def cut(limit: int) -> list[AnyMessage]:
        return [_cut(one, limit) if at in sizes else one for at, one in enumerate(messages)]

    limits = range(_LEAST_CHARACTERS, max(sizes.values(), default=0) + 1)
    fitting = bisect_left(limits, True, key=lambda limit: counter(cut(limit)) > room)
    return cut(limits[fitting - 1] if fitting else _LEAST_CHARACTERS)


def _cut(message: AnyMessage, limit: int) -> AnyMessage:
    """``message`` as at most ``limit`` characters: three quarters of them from the start, the rest from the end."""
    text = text_in(message)
    if len(text) > limit:
        size = limit - len(CUT.format(len(text)))
        tail = size // 4
        text = text[: size - tail] + CUT.format(len(text) - size) + text[len(text) - tail :]
    return message.model_copy(update={"content": text})
