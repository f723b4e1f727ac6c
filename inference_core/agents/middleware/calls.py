"""What middleware does with the requests that go to the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]


def with_system_text(request: ModelRequest[Any], texts: Sequence[str]) -> ModelRequest[Any]:
    """``request`` with ``texts`` behind its own system text, which stays as it is for the sake of prompt caches."""
    if not texts:
        return request
    own = request.system_message.content_blocks if request.system_message else []
    blocks: list[Any] = [*own, *({"type": "text", "text": f"\n\n{text}" if own else text} for text in texts)]
    return request.override(system_message=SystemMessage(content_blocks=blocks))
