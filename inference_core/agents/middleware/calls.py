"""What middleware does with the requests that go to the model, and with its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
)
from langchain_core.messages import SystemMessage
from langgraph.runtime import Runtime
from langgraph.types import Command

from inference_core.drivers import Plan, arun, run
from inference_core.short_term.window import last_of_user

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
MAX_MARKERS: Final = 4
"""Anthropic takes so many cache markers in a request."""
_CACHE_CONTROL: Final = "cache_control"
Response = ModelResponse[Any] | ExtendedModelResponse[Any]
Update = dict[str, Any]
"""What becomes of the agent's state."""
S = TypeVar("S", bound=AgentState[Any])


class PlanMiddleware(AgentMiddleware[S, Any, Any], ABC):
    """Middleware whose hooks are plans, written once for sync and async agents.

    ``start_timeout`` and ``call_timeout`` (seconds, None: no limit) bound `at_start` and `before_call`.
    """

    start_timeout: float | None
    call_timeout: float | None

    @abstractmethod
    def at_start(self, state: Any, runtime: Runtime[Any]) -> Plan[Update | None]:
        """Plan: what a run does before its first step."""

    @abstractmethod
    def before_call(self, request: ModelRequest[Any]) -> Plan[tuple[ModelRequest[Any], Update | None]]:
        """Plan: the request that the model gets; the update goes into the state with the model's answer."""

    def before_agent(self, state: S, runtime: Runtime[Any]) -> Update | None:
        """Runs `at_start`. Raises ConfigurationError if there is no memory to use."""
        return run(self.at_start(state, runtime), self.start_timeout)

    async def abefore_agent(self, state: S, runtime: Runtime[Any]) -> Update | None:
        """Like `before_agent`."""
        return await arun(self.at_start(state, runtime), self.start_timeout)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Response:
        """Runs `before_call`, then the model. Raises ConfigurationError if there is no memory to use."""
        request, update = run(self.before_call(request), self.call_timeout)
        return _with_update(handler(request), update)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Response:
        """Like `wrap_model_call`."""
        request, update = await arun(self.before_call(request), self.call_timeout)
        return _with_update(await handler(request), update)


def _with_update(response: ModelResponse[Any], update: Update | None) -> Response:
    return ExtendedModelResponse(response, Command(update=update)) if update else response


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
    said = last_of_user(request.messages)
    if said is None:
        return None
    own: Any = said.content
    content = f"{own}\n{text}" if isinstance(own, str) else [*own, {"type": "text", "text": text}]
    told = said.model_copy(update={"content": content})
    return request.override(messages=[told if one is said else one for one in request.messages])


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
