"""What middleware does with the requests that go to the model, and with its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage
from langgraph.types import Command

from inference_core.short_term.window import is_said_by_user

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
MAX_MARKERS: Final = 4
"""Anthropic takes so many cache markers in a request."""
_CACHE_CONTROL: Final = "cache_control"
Response = ModelResponse[Any] | ExtendedModelResponse[Any]


def with_system_text(request: ModelRequest[Any], texts: Sequence[str]) -> ModelRequest[Any]:
    """``request`` with ``texts`` behind its own system text, which stays as it is for the sake of prompt caches."""
    return with_system_blocks(request, [{"type": "text", "text": text} for text in texts])


def with_system_blocks(request: ModelRequest[Any], blocks: Sequence[Mapping[str, Any]]) -> ModelRequest[Any]:
    """Like `with_system_text`, with blocks of text that may carry more than that."""
    if not blocks:
        return request
    own = request.system_message.content_blocks if request.system_message else []
    behind: list[Any] = [{**block, "text": f"\n\n{block['text']}" if own else block["text"]} for block in blocks]
    return request.override(system_message=SystemMessage(content_blocks=[*own, *behind]))


def with_text_behind_user(request: ModelRequest[Any], text: str) -> ModelRequest[Any] | None:
    """``request`` with ``text`` behind the user's last message, in the request alone; None if the user said nothing."""
    asked = next((at for at in reversed(range(len(request.messages))) if is_said_by_user(request.messages[at])), None)
    if asked is None:
        return None
    said = request.messages[asked]
    own: Any = said.content
    content = f"{own}\n{text}" if isinstance(own, str) else [*own, {"type": "text", "text": text}]
    told = said.model_copy(update={"content": content})
    return request.override(messages=[*request.messages[:asked], told, *request.messages[asked + 1 :]])


def marked_for_cache(request: ModelRequest[Any], block: Mapping[str, Any]) -> Mapping[str, Any]:
    """``block`` with a cache marker, if the caller's system message has one and there is room for one more."""
    system = request.system_message.content if request.system_message else ""
    own = _marked(system)
    others = sum(map(_marked, (message.content for message in request.messages)))
    others += _marked([tool for tool in request.tools if isinstance(tool, dict)])
    others += _CACHE_CONTROL in (request.model_settings or {})
    return {**block, _CACHE_CONTROL: {"type": "ephemeral"}} if own and own + others < MAX_MARKERS else block


def _marked(content: Any) -> int:
    """How many of the blocks of a message, or of the tools, carry a cache marker."""
    return (
        0 if isinstance(content, str) else sum(isinstance(block, dict) and _CACHE_CONTROL in block for block in content)
    )


def with_update(response: ModelResponse[Any], update: Mapping[str, Any] | None) -> Response:
    """``response``, together with what becomes of the agent's state if anything does."""
    return ExtendedModelResponse(response, Command(update=update)) if update else response
