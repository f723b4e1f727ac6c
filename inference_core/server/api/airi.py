"""The routes of AIRI's memory service, for its clients: the same paths, fields and errors, on this service.

AIRI knows no users: the memories are those of the key's user. ``modelName`` becomes the session of messages, and a
context shows the conversation of that session alone; memories belong to the user, whichever model talks.
``/api/answers`` is what AIRI plans as its optimized flow: context and answer in one request. The routes are off by
default. Settings show no API keys; a change that clients may not make is refused with where to make it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from operator import itemgetter
from typing import Annotated, Any, Final
from uuid import uuid4

from fastapi import FastAPI, Query, Request
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse
from starlette.types import Scope

from inference_core.asking import ask
from inference_core.clock import aware
from inference_core.context.engineer import EVERYTHING
from inference_core.context.items import AssembledContext, ContextItem
from inference_core.effects import arun
from inference_core.embeddings.embedder import Passage
from inference_core.errors import DeadlineExceeded, EmbeddingError, ModelError
from inference_core.memory.text import MAX_LABEL_BYTES
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory
from inference_core.outbox.messages import NO_THREAD, marks_of
from inference_core.outbox.outbox import Partition, Waiting
from inference_core.server.api import wire
from inference_core.server.api.routes import Call, Caller, Route, route
from inference_core.server.identity.auth import Permission, path_of
from inference_core.server.problems import Problem, Refusal
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.context_builder import (
    AssociatedMemories,
    ContextBuilder,
    Entities,
    Memories,
    RecentMessages,
    consolidated_memories,
    goals,
    ideas,
)
from inference_core.services.operations.messages import MAX_KEPT, TIMESTAMP, add_messages, kept_messages
from inference_core.services.operations.tuning import tune, tuned
from inference_core.settings import AgentSettings, MemorySettings, read_settings
from inference_core.stores.indexing.embedding import DIMENSIONS_META

AIRI_ROUTES: Final = list[Route]()
# Their errors are AIRI's, not those that openapi.json promises.
_route: Final = partial(route, table=AIRI_ROUTES, include_in_schema=False)
_LOG = logging.getLogger(__name__)
PREFIX: Final = "/api/"
_UNAUTHENTICATED, _FORBIDDEN = 401, 403
_MOST_TOKENS: Final = 1_000_000
_SET_BY: Final = {
    **dict.fromkeys(("llmProvider", "llmModel"), "AGENT_MEMORY_MODEL"),
    **dict.fromkeys(("embeddingProvider", "embeddingModel", "embeddingDimensions"), "AGENT_MEMORY_EMBEDDINGS"),
    **dict.fromkeys(("llmApiKey", "embeddingApiKey"), "your provider's variable, such as OPENAI_API_KEY"),
}
_FROM_OUTSIDE: Final = {"context": "external"}
"""Added to an answer's metadata: as nothing that is unknown there is proven harmless, it marks the session."""
_TUNED: Final = {
    "llmTemperature": "model_temperature",
    "llmMaxTokens": "model_tokens",
    "batchSize": "batch_messages",
    "batchTokens": "batch_tokens",
    "workerInterval": "worker_interval",
    "contextTokens": "max_tokens",
}
"""The settings that an admin may change: AIRI's names, and those of `MemorySettings`."""


@dataclass(slots=True)
class Airi:
    """The state of the routes. ``settings`` are those of the start; `tuned` adds what admins have changed since."""

    builder: ContextBuilder
    everything: ContextBuilder
    settings: MemorySettings
    models: Callable[[], list[BaseChatModel]]
    """Those that answer, each asked if the one before it fails; made when they are first needed."""


def answering_models() -> list[BaseChatModel]:
    """The models of AGENT_MODEL and AGENT_MODEL_FALLBACKS. Raises ConfigurationError, MissingExtra."""
    from inference_core.agents.from_settings import make_chat_model, make_chat_models  # noqa: PLC0415 - imports all agents

    settings = read_settings(AgentSettings)
    return [make_chat_model(settings), *make_chat_models(settings.model_fallbacks)]


def add_airi(
    app: FastAPI,
    service: AgentMemoryStoreService,
    settings: MemorySettings,
    models: Callable[[], list[BaseChatModel]] = answering_models,
) -> None:
    """Gives ``app``, which has the `AIRI_ROUTES`, the state that they need, and their errors AIRI's form."""
    sources = (
        RecentMessages(name="messages", speakers=("user",)),
        RecentMessages(name="completions", speakers=("assistant",)),
        Memories(limit=10),
        AssociatedMemories(),
        Entities(),
        consolidated_memories(5),
        goals(5),
        ideas(),
    )
    everything = ContextBuilder(service, sources, engineer=EVERYTHING)
    app.state.airi = Airi(ContextBuilder(service), everything, settings, cache(models))
    app.state.form_of_errors = _error


class _Said(BaseModel):
    """What AIRI's clients send; unknown fields are ignored. A ``max_length`` also refuses invalid Unicode."""

    model_config = ConfigDict(extra="ignore")

    platform: str = Field("", max_length=MAX_LABEL_BYTES)
    modelName: str | None = Field(None, max_length=MAX_LABEL_BYTES)  # noqa: N815 - AIRI's


class _Message(_Said):
    content: str = Field(min_length=1, max_length=200_000)


class _Completion(_Said):
    prompt: str = Field(max_length=200_000)
    response: str = Field(min_length=1, max_length=200_000)
    task: str | None = None


class _Question(_Said):
    message: str | None = Field(None, max_length=wire.MAX_QUERY)


class _Chat(_Question):
    systemPrompt: str = Field("", max_length=200_000)  # noqa: N815 - as AIRI's


@_route("POST", "/api/messages", Permission.WRITE)
async def ingest_message(call: Caller, body: _Message) -> dict[str, Any]:
    """Takes in a message of the user."""
    return await _said(call, body, HumanMessage(body.content, id=str(uuid4())), {"content": body.content})


@_route("POST", "/api/completions", Permission.WRITE)
async def ingest_completion(call: Caller, body: _Completion) -> dict[str, Any]:
    """Takes in an answer of the model."""
    told = {"prompt": body.prompt, "response": body.response}
    return await _said(call, body, AIMessage(body.response, id=str(uuid4())), told)


async def _said(call: Call, body: _Said, message: HumanMessage | AIMessage, told: dict[str, str]) -> dict[str, Any]:
    now = _dated(call, message)
    await call.run(add_messages, [message], session_id=body.modelName)
    rest = {"platform": body.platform, "created_at": _milliseconds(now), "modelName": body.modelName}
    return {"id": message.id, **told, **rest}


def _dated(call: Call, *messages: BaseMessage) -> datetime:
    """The time, at which ``messages`` are said."""
    now = call.scope.clock.now()
    for message in messages:
        message.additional_kwargs[TIMESTAMP] = now.isoformat()
    return now


@_route("GET", "/api/context", Permission.READ)
async def get_airi_context(
    call: Caller,
    request: Request,
    message: Annotated[str | None, Query(max_length=wire.MAX_QUERY)] = None,
    modelName: Annotated[str | None, Query(max_length=MAX_LABEL_BYTES)] = None,  # noqa: N803 - AIRI's
) -> str | None:
    """A context for a message, as text."""
    asked = _Question(message=message, modelName=modelName, platform="")
    return (await _context(call, request, asked)).text or None


@_route("POST", "/api/context", Permission.WRITE)
async def post_airi_context(call: Caller, request: Request, body: _Question) -> str | None:
    """Takes in a message, and returns a context for it, as text."""
    await _take_in(call, body)
    return (await _context(call, request, body)).text or None


async def _take_in(call: Call, body: _Question) -> None:
    said = HumanMessage(_asked(body), id=str(uuid4()))
    await call.run(add_messages, [said], session_id=body.modelName)


async def _context(call: Call, request: Request, body: _Question) -> AssembledContext:
    settings = await _settings(request)
    return await _built(call, request.app.state.airi.builder, body, settings.max_tokens)


async def _built(call: Call, builder: ContextBuilder, body: _Question, max_tokens: int) -> AssembledContext:
    """The context for a message, which may be the last one of its conversation."""
    asked, said = _asked(body), list[BaseMessage]()
    if body.modelName is not None:
        kept = kept_messages(call.scope, call.user, MAX_KEPT, body.modelName)
        said = await arun(kept, call.timeout) or [HumanMessage(asked)]
    return await builder.build(call.user, asked, messages=said, max_tokens=max_tokens)


@_route("POST", "/api/answers", Permission.WRITE)
async def answer_message(call: Caller, request: Request, body: _Chat) -> dict[str, Any]:
    """Answers a message by its context, and takes both in, in one commit; if no model answers, neither."""
    context = await _context(call, request, body)
    asked = HumanMessage(_asked(body), id=str(uuid4()))
    system = "\n\n".join(part for part in (body.systemPrompt, context.text) if part)
    answer = await _answer(request, [*([SystemMessage(system)] if system else []), asked])
    if any(item.trust is Trust.EXTERNAL for item in context.items):  # which the model may have repeated
        answer.additional_kwargs |= _FROM_OUTSIDE
    now = _dated(call, asked, answer)
    await call.run(add_messages, [asked, answer], session_id=body.modelName)
    return {
        "id": answer.id,
        "prompt": asked.text,
        "response": answer.text,
        "platform": body.platform,
        "created_at": _milliseconds(now),
        "modelName": body.modelName,
    }


async def _answer(request: Request, messages: list[BaseMessage]) -> AIMessage:
    """The answer of the first model that gives one. Raises ConfigurationError if no model is set, Refusal."""
    for model in await asyncio.to_thread(request.app.state.airi.models):
        try:
            answer = await arun(ask(model, messages))
        except ModelError as error:
            _LOG.warning("%s", error)
        else:
            return answer.model_copy(update={"id": str(uuid4()), "additional_kwargs": {**answer.additional_kwargs}})
    raise Refusal(503, "model-error", "No chat model answered, and nothing was taken in; try again")


@_route("POST", "/api/context/structured", Permission.WRITE)
async def build_structured_context(call: Caller, request: Request, body: _Question) -> dict[str, Any]:
    """Takes in a message, and returns what a context for it is made of."""
    await _take_in(call, body)
    items = (await _built(call, request.app.state.airi.everything, body, _MOST_TOKENS)).items

    def of(source: str) -> list[ContextItem]:
        return [item for item in items if item.source == source]

    def is_short(item: ContextItem) -> bool:
        return item.record is not None and item.record.category is MemoryCategory.EPISODIC

    return {
        "workingMemory": {
            "recentMessages": [{"content": item.text, "created_at": _at(item)} for item in of("messages")],
            "recentCompletions": [
                {"response": item.text, "task": "chat", "created_at": _at(item)} for item in of("completions")
            ],
        },
        "semanticMemory": {
            "shortTerm": [_fragment(item) for item in of("memories") if is_short(item)],
            "longTerm": [_fragment(item) for item in of("memories") if not is_short(item)],
            "consolidatedMemories": [
                {"content": item.text, "summary_type": item.kind, "created_at": _at(item)}
                for item in of("consolidated")
            ],
            "associatedMemories": [
                {"content": item.text, "association_type": "shared", "strength": item.score, "created_at": _at(item)}
                for item in of("associated")
            ],
        },
        "structuredKnowledge": {
            "entities": [
                {"name": item.id, "entity_type": item.kind or "", "description": item.text, "metadata": {}}
                for item in of("entities")
            ]
        },
        "goalContext": {
            "longTermGoals": [
                {
                    "title": item.text,
                    "description": item.text,
                    "priority": _tenths(item),
                    "progress": 0,
                    "status": "active",
                }
                for item in of("goals")
            ],
            "shortTermIdeas": [
                {"content": item.text, "excitement": _tenths(item), "status": "new"} for item in of("ideas")
            ],
        },
    }


@_route("GET", "/api/conversations", Permission.READ)
async def get_conversations(
    call: Caller,
    limit: Annotated[int, Query(ge=1, le=MAX_KEPT)] = 10,
    before: Annotated[int | None, Query(ge=0, le=10**14, description="Milliseconds since 1970.")] = None,
    modelName: str | None = None,  # noqa: N803 - AIRI's
) -> dict[str, Any]:
    """The newest messages that are kept, the oldest first, and where the page before begins."""
    kept = Partition.of(call.user, call.scope.namespaces).kept
    rows = await arun(call.scope.engine.page([kept], limit=MAX_KEPT), call.timeout)
    messages = [
        message for message in (Waiting.of(row).message for row in rows) if modelName in (None, message.session_id)
    ]
    dated = [(_milliseconds(message.at), message) for message in messages if message.at is not None]
    matching = sorted((one for one in dated if before is None or one[0] < before), key=itemgetter(0), reverse=True)
    # The next page ends before the first millisecond of this one, so all messages of that millisecond are on this one.
    first = matching[:limit][-1][0] if matching else None
    told = [
        {
            "id": message.id,
            "content": message.text,
            "platform": "",
            "created_at": at,
            "type": message.role.value,
            "model_name": None if message.session_id == NO_THREAD else message.session_id,
        }
        for at, message in reversed(matching)
        if first is not None and at >= first
    ]
    return {"messages": told, "hasMore": len(matching) > len(told), "nextCursor": first, "modelName": modelName}


@_route("GET", "/api/queue/status", Permission.READ)
async def get_queue_status(call: Caller) -> dict[str, int]:
    """How many of the user's messages wait, and how many have become memories or failed."""
    place, engine = Partition.of(call.user, call.scope.namespaces), call.scope.engine
    waiting = await arun(engine.count([place.messages]), call.timeout)
    failed = await arun(engine.count([place.dead]), call.timeout)
    taken_in = await arun(engine.count([marks_of(call.user)]), call.timeout)
    return {"waiting": waiting, "active": 0, "completed": max(0, taken_in - waiting - failed), "failed": failed}


@_route("GET", "/api/settings", Permission.READ)
async def get_settings(request: Request) -> dict[str, Any]:
    """The settings. Keys are never told."""
    return await _told(request)


@_route("POST", "/api/settings", Permission.ADMIN)
async def change_settings(request: Request, body: dict[str, Any]) -> dict[str, str]:
    """Changes what is harmless, for all servers and workers of the store; null takes a change back.

    Anything else that differs is refused, with where to set it; then nothing is changed.
    """
    now = await _told(request)
    for name, given in body.items():
        if name not in _TUNED and given not in (now.get(name), "", None):
            where = _SET_BY.get(name)
            raise Refusal(409, "set-elsewhere", f"{name:.40} is set by {where or 'nothing here'}, before the start")
    changes = {_TUNED[name]: given for name, given in body.items() if name in _TUNED and given != now[name]}
    service: AgentMemoryStoreService = request.app.state.service
    await arun(tune(service.scope.engine, changes), service.timeout)
    return {"status": "success", "message": "Settings updated"}


@_route("GET", "/api/settings/regeneration-status", Permission.READ)
async def get_regeneration_status() -> dict[str, Any]:
    """Embeddings are made again only by ``inference-core reembed``, never by a server."""
    numbers = ("totalItems", "processedItems", "avgBatchTimeMs", "lastBatchTimeMs", "currentBatchSize")
    return {"isRegenerating": False, "progress": 100, **dict.fromkeys(numbers, 0), "estimatedTimeRemaining": None}


@_route("GET", "/api/test-conn", Permission.READ)
async def test_connection() -> dict[str, str]:
    """Says that the key is valid."""
    return {"status": "authenticated", "timestamp": _now(), "message": "API key is valid"}


@_route("GET", "/api/health", None)
async def get_airi_health() -> dict[str, str]:
    """Says that the process answers."""
    return {"status": "ok", "timestamp": _now()}


async def _settings(request: Request) -> MemorySettings:
    service: AgentMemoryStoreService = request.app.state.service
    return await arun(tuned(service.scope.engine, request.app.state.airi.settings), service.timeout)


async def _told(request: Request) -> dict[str, Any]:
    settings = await _settings(request)
    provider, _, model = (settings.model[0] if settings.model else "").partition(":")
    embedder, _, embedding = (settings.embeddings_spec or "none").partition(":")
    return {
        "llmProvider": provider,
        "llmModel": model,
        "llmApiKey": "",
        "embeddingProvider": embedder,
        "embeddingModel": embedding,
        "embeddingApiKey": "",
        "embeddingDimensions": await _dimensions(request.app.state.service),
        **{name: getattr(settings, ours) for name, ours in _TUNED.items()},
    }


async def _dimensions(service: AgentMemoryStoreService) -> int | None:
    """How many numbers a vector has: as the store has recorded, else as its model says; None if nothing tells."""
    engine = service.scope.engine
    recorded = await arun(engine.ask(lambda backend: backend.get_meta(DIMENSIONS_META)), service.timeout)
    if recorded:
        return int(recorded)
    if engine.embedder is None:
        return None
    if engine.embedder.dimensions is None:
        with suppress(EmbeddingError, DeadlineExceeded):
            await arun(engine.embedder.documents([Passage("size")], service.timeout))
    return engine.embedder.dimensions


def _asked(body: _Question) -> str:
    if body.message is None or not body.message.strip():
        raise Refusal(400, "message-required", "message is required")
    return body.message


def _fragment(item: ContextItem) -> dict[str, Any]:
    return {
        "id": item.id,
        "content": item.text,
        "memory_type": item.kind,
        "category": item.record.category.value if item.record else "",
        "importance": _tenths(item),
        "emotional_impact": 0,
        "created_at": _at(item),
    }


def _tenths(item: ContextItem) -> int:
    return round(10 * item.record.importance) if item.record else 5


def _at(item: ContextItem) -> int | None:
    return item.happened_at and _milliseconds(item.happened_at)


def _milliseconds(moment: datetime) -> int:
    return int(aware(moment).timestamp() * 1000)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _error(scope: Scope, told: Problem) -> JSONResponse | None:
    """AIRI's form of a problem under ``/api``: its client expects 401 for no key, and 403 for a wrong one."""
    if not path_of(scope).startswith(PREFIX):
        return None
    has_key = any(name == b"authorization" for name, _ in scope["headers"])
    if told.status == _UNAUTHENTICATED:
        error = "Invalid API key" if has_key else "API key required"
        return JSONResponse({"error": error}, _FORBIDDEN if has_key else _UNAUTHENTICATED)
    faults = "; ".join(f"{error.location}: {error.message}" for error in told.errors or ())
    details, error = faults or told.detail, told.detail or told.title
    return JSONResponse({"error": error, **({"details": details} if details != error else {})}, told.status)
