"""What of a window the model is shown: valid, and no more than there is room for."""

from __future__ import annotations

from typing import Final

from langchain_core.messages import AnyMessage, ToolMessage

from inference_core.short_term.tokens import TokenCounter
from inference_core.short_term.window import Window, is_valid, valid

_LEAST_CHARACTERS: Final = 200
_ATTEMPTS: Final = 40
_SHRINKING: Final = 0.9
CUT: Final = "\n… [{} characters cut] …\n"


def view(window: Window, room: int) -> list[AnyMessage]:
    """The newest messages of ``window`` that fit ``room`` tokens, as models accept them.

    The user's last message and what the model has to answer are always there; if those alone are too much, the results
    of tools are shown with their middle cut out. Nothing is taken from ``window``.
    """
    if window.tokens > room:
        return _shortened(valid(window.kept(window.start_for(room))), window.counter, room)
    return list(window.messages) if is_valid(window.messages) else valid(window.units)


def _shortened(messages: list[AnyMessage], counter: TokenCounter, room: int) -> list[AnyMessage]:
    """``messages`` with less of their tools' results, the longest first, as far as needed."""
    for _ in range(_ATTEMPTS):
        over = counter(messages) - room
        sizes = {at: counter([one]) for at, one in enumerate(messages) if _can_be_cut(one)}
        if over <= 0 or not sizes:
            break
        at = max(sizes, key=sizes.__getitem__)
        kept = max(0.0, (sizes[at] - over) / sizes[at]) * _SHRINKING
        messages = [*messages[:at], _cut(messages[at], kept), *messages[at + 1 :]]
    return messages


def _can_be_cut(message: AnyMessage) -> bool:
    return isinstance(message, ToolMessage) and len(message.text) > _LEAST_CHARACTERS


def _cut(message: AnyMessage, share: float) -> AnyMessage:
    """``message`` with ``share`` of its text: three quarters of that from the start, the rest from the end."""
    text = message.text
    size = max(_LEAST_CHARACTERS // 2, int(len(text) * share))
    head, tail = size - size // 4, size // 4
    content = text[:head] + CUT.format(len(text) - size) + text[len(text) - tail :]
    return message.model_copy(update={"content": content})
