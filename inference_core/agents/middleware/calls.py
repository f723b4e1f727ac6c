"""What middleware does with the requests that go to the model, and with its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage
from langgraph.types import Command

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
Response = ModelResponse[Any] | ExtendedModelResponse[Any]


def with_system_text(request: ModelRequest[Any], texts: Sequence[str]) -> ModelRequest[Any]:
    """``request`` with ``texts`` behind its own system text, which stays as it is for the sake of prompt caches."""
    if not texts:
        return request
    own = request.system_message.content_blocks if request.system_message else []
    blocks: list[Any] = [*own, *({"type": "text", "text": f"\n\n{text}" if own else text} for text in texts)]
    return request.override(system_message=SystemMessage(content_blocks=blocks))


def with_update(response: ModelResponse[Any], update: Mapping[str, Any] | None) -> Response:
    """``response``, together with what becomes of the agent's state if anything does."""
    return ExtendedModelResponse(response, Command(update=update)) if update else response
