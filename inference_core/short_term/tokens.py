"""How many tokens messages and tools take, about: the count is meant to be a little too high rather than too low."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from inference_core.blocks.passages import is_call
from inference_core.memory.text import text_tokens

TokenCounter = Callable[[Sequence[BaseMessage]], int]
"""Counts the tokens of messages, such as `count_tokens` or ``model.get_num_tokens_from_messages``."""
MESSAGE_TOKENS: Final = 4
"""What a message takes besides its content."""
MEDIA_TOKENS: Final = 1_000
"""What an image, a recording or a file is counted as."""
_MAX_TOOLS: Final = 512
_json: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode
_tool_tokens: dict[int, tuple[object, int]] = {}


def count_tokens(messages: Sequence[BaseMessage]) -> int:
    """The tokens of ``messages``: a quarter of the bytes of English, about one for each letter of Chinese."""
    count = 0
    for message in messages:
        content: Any = message.content
        count += MESSAGE_TOKENS
        count += text_tokens(content) if isinstance(content, str) else sum(map(_block_tokens, content))
        if isinstance(message, AIMessage) and message.tool_calls:
            count += sum(text_tokens(call["name"] + _json(call["args"])) for call in message.tool_calls)
    return count


def model_window(model: object) -> int | None:
    """How many tokens ``model`` takes in, as far as its profile says."""
    profile: Any = getattr(model, "profile", None) or {}
    window = profile.get("max_input_tokens")
    return window if isinstance(window, int) and window > 0 else None


def tool_tokens(tools: Sequence[BaseTool | dict[str, Any] | Callable[..., Any]]) -> int:
    """The tokens of the schemas of ``tools``; each tool is looked at once."""
    count = 0
    for tool in tools:
        known = _tool_tokens.get(id(tool))
        if known is None or known[0] is not tool:  # an id that another tool had before
            if len(_tool_tokens) >= _MAX_TOOLS:
                _tool_tokens.clear()
            known = _tool_tokens[id(tool)] = (tool, text_tokens(_json(_schema(tool))))
        count += known[1]
    return count


def _block_tokens(block: str | Mapping[str, Any]) -> int:
    if isinstance(block, str):
        return text_tokens(block)
    text = block.get("text")
    if isinstance(text, str):
        return text_tokens(text)
    if is_call(block):
        return 0  # counted with the message's tool calls
    return text_tokens(_json(block)) if block.get("type") in ("reasoning", "thinking") else MEDIA_TOKENS


def _schema(tool: BaseTool | dict[str, Any] | Callable[..., Any]) -> dict[str, Any]:
    """What the model is told of ``tool``; a provider's own tool stands for itself."""
    return tool if isinstance(tool, dict) else convert_to_openai_tool(tool)  # pyright: ignore[reportUnknownVariableType] - a bare dict by narrowing
