"""Routes for what lies around a user's memories: prompts, receipts, messages, forgetting, review; and for admins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Query, Request
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from starlette.responses import StreamingResponse

from inference_core.effects import arun
from inference_core.errors import InferenceCoreError, MemoryNotFound
from inference_core.ingestion.analytics import statistics
from inference_core.lifecycle.archive import forgotten, restore
from inference_core.lifecycle.forgetting import forget
from inference_core.lifecycle.policy import ForgettingPolicy
from inference_core.outbox import partitions
from inference_core.server import problems, wire
from inference_core.server.auth import Permission
from inference_core.server.routes import ROUTES, Caller, IdempotencyKey, MemoryId, route
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations import list as memories
from inference_core.services.operations import review
from inference_core.services.operations.delete import delete_all
from inference_core.services.operations.messages import TIMESTAMP, add_messages
from inference_core.services.operations.receipts import list_receipts, why
from inference_core.services.operations.save import save
from inference_core.services.operations.turn import format_context
from inference_core.services.user_memories import list_users

BATCH_PATH: Final = "/v1/memories/batch"
_PAGE: Final = 200
_NDJSON: Final = "application/x-ndjson"
_MESSAGES: Final = {"user": HumanMessage, "assistant": AIMessage, "tool": ToolMessage}
Cursor = Annotated[str | None, Query(description="The next_cursor of the page before.")]
Limit = Annotated[int, Query(ge=1, le=wire.MAX_PAGE)]


@route("POST", BATCH_PATH, Permission.WRITE)
async def save_memories(call: Caller, body: wire.NewMemories) -> wire.SavedMemories:
    """Saves up to 500 memories together; each succeeds or fails alone."""

    async def one(new: wire.NewMemory) -> wire.Saved:
        try:
            saved = await call.run(save, **new.arguments())
        except InferenceCoreError as error:
            return wire.Saved(status=problems.status_of(type(error)), problem=problems.told(error))
        return wire.Saved(status=200 if saved.was_stored else 201, id=str(saved), redacted=list(saved.redacted))

    return wire.SavedMemories(results=await asyncio.gather(*map(one, body.memories)))


@route("DELETE", "/v1/memories", Permission.WRITE)
async def delete_memories(
    call: Caller,
    *,
    everything: Annotated[bool, Query(description="true: confirms that all are to go, for good.")],
    memory_type: Annotated[wire.MemoryType | None, Query()] = None,
    category: Annotated[wire.MemoryCategory | None, Query()] = None,
) -> wire.Count:
    """Deletes all memories, or those of a type or category, permanently."""
    if not everything:
        raise problems.Refused(422, "invalid-input", "Confirm with everything=true")
    return wire.Count(count=await call.run(delete_all, memory_type, category))


@route("GET", "/v1/memories/{memory_id}/history", Permission.READ)
async def get_history(call: Caller, memory_id: MemoryId) -> wire.History:
    """The memory with its earlier texts, all that it superseded and all that superseded it, the oldest first."""
    found = await call.run(memories.history, memory_id)
    if not found:
        raise MemoryNotFound(memory_id)
    return wire.History(memories=wire.memories_of(found))


@route("GET", "/v1/memories/{memory_id}/why", Permission.READ)
async def get_why(call: Caller, memory_id: MemoryId, cursor: Cursor = None, limit: Limit = 50) -> wire.Reasons:
    """Where a memory comes from, and the newest model calls that were given it."""
    found = await call.run(why, memory_id, limit=limit, after=cursor)
    if found.memory is None and found.removed is None and not found.receipts:
        raise MemoryNotFound(memory_id)
    return wire.Reasons(
        memory=found.memory and wire.Memory.of(found.memory),
        removed=found.removed and wire.Forgotten.of(found.removed),
        earlier=wire.memories_of(found.earlier),
        receipts=[one.to_value() | {"id": one.id} for one in found.receipts],
        next_cursor=found.receipts.next_cursor,
    )


@route("GET", "/v1/receipts", Permission.READ)
async def get_receipts(
    call: Caller, thread_id: str | None = None, cursor: Cursor = None, limit: Limit = 50
) -> wire.Receipts:
    """What model calls were given, the newest first: ids, ranks and scores, not the texts."""
    page = await call.run(list_receipts, thread_id=thread_id, limit=limit, after=cursor)
    return wire.Receipts(receipts=[one.to_value() | {"id": one.id} for one in page], next_cursor=page.next_cursor)


@route("POST", "/v1/context", Permission.READ)
async def build_context(call: Caller, body: wire.ContextRequest) -> wire.Context:
    """A block for a prompt, with the memories relevant to a query; "" if there are none."""
    return wire.Context(context=await call.run(format_context, **body.model_dump()))


@route("POST", "/v1/messages", Permission.WRITE, status_code=202)
async def add_conversation(call: Caller, body: wire.Messages, idempotency_key: IdempotencyKey = None) -> wire.Count:
    """Puts messages into the outbox, durably; a worker makes memories of them. Returns how many were new.

    A message with an id is added once. With Idempotency-Key, so is one without.
    """
    given = [_message(one, idempotency_key and f"{idempotency_key}-{at}") for at, one in enumerate(body.messages)]
    return wire.Count(count=await call.run(add_messages, given, session_id=body.session_id))


def _message(one: wire.Message, fallback: str | None) -> BaseMessage:
    said = {TIMESTAMP: one.timestamp.isoformat()} if one.timestamp else {}
    extra: dict[str, Any] = {"tool_call_id": ""} if one.role == "tool" else {}
    return _MESSAGES[one.role](content=one.content, id=one.id or fallback, additional_kwargs=said, **extra)


@route("GET", "/v1/stats", Permission.READ)
async def get_statistics(call: Caller) -> wire.Statistics:
    """Figures about the user's memories, and about the work that made them of messages."""
    return wire.Statistics.model_validate(asdict(await call.run(statistics)))


@route("GET", "/v1/export", Permission.READ, response_class=StreamingResponse)
async def export_memories(call: Caller) -> StreamingResponse:
    """All memories as JSON Lines, the newest first. The last line is {"exported": N}; without it, something failed."""
    page, _ = await call.run(memories.list_memories, limit=_PAGE)

    async def lines() -> AsyncIterator[str]:
        found, written = page, 0
        while True:
            for one in found:
                yield wire.Memory.of(one).model_dump_json() + "\n"
            written += len(found)
            if found.next_cursor is None:
                break
            found, _ = await call.run(memories.list_memories, limit=_PAGE, after=found.next_cursor)
        yield json.dumps({"exported": written}) + "\n"

    return StreamingResponse(lines(), media_type=_NDJSON)


@route("POST", "/v1/forget", Permission.WRITE)
async def forget_memories(call: Caller, body: wire.ForgettingRequest) -> wire.Forgetting:
    """Forgets what has expired, has faded or exceeds a limit. It can be restored for some time."""
    policy = ForgettingPolicy(**body.model_dump(exclude={"dry_run"}))
    report = await call.run(forget, policy, dry_run=body.dry_run)
    return wire.Forgetting(
        forgotten=[wire.Leaving(id=one.record.id, reason=one.reason.value) for one in report.forgotten],
        kept=report.kept,
        erased=report.erased,
        remaining=report.remaining,
    )


@route("GET", "/v1/forgotten", Permission.READ)
async def list_forgotten(call: Caller) -> wire.ForgottenList:
    """The forgotten and deleted memories that can be restored, the last one first."""
    return wire.ForgottenList(memories=list(map(wire.Forgotten.of, await call.run(forgotten))))


@route("POST", "/v1/forgotten/{memory_id}/restore", Permission.WRITE)
async def restore_memory(call: Caller, memory_id: MemoryId) -> wire.Memory:
    """Restores a forgotten or deleted memory, with its id and history; 409 if another one has the id by now."""
    report = await call.run(restore, [memory_id])
    if report.taken:
        raise problems.Refused(409, "id-taken", "Another memory was saved with this id")
    document = await call.run(memories.get, memory_id)
    if document is None or report.missing:
        raise MemoryNotFound(memory_id)
    return wire.Memory.of(document)


@route("GET", "/v1/pending", Permission.READ)
async def list_pending(call: Caller, session_id: str | None = None) -> wire.PendingList:
    """What agents want to remember, and only the user may approve."""
    return wire.PendingList(
        pending=[wire.Pending.of(one) for one in await call.run(review.list_pending, session_id=session_id)]
    )


@route("POST", "/v1/pending/{memory_id}/approve", Permission.REVIEW)
async def approve_pending(call: Caller, memory_id: MemoryId, body: wire.Approval) -> wire.Memory:
    """Makes a pending memory one that the user has stated. Give the permission to an application, never to an agent."""
    approved = await call.run(review.approve_pending, memory_id, body.edit)
    document = await call.run(memories.get, memory_id) if approved else None
    if document is None:
        raise MemoryNotFound(memory_id)
    return wire.Memory.of(document)


@route("POST", "/v1/pending/{memory_id}/reject", Permission.REVIEW, status_code=204)
async def reject_pending(call: Caller, memory_id: MemoryId, body: wire.Rejection) -> None:
    """Removes a pending memory; agents that offer the same words again are refused."""
    if not await call.run(review.reject_pending, memory_id, body.why):
        raise MemoryNotFound(memory_id)


@route("GET", "/v1/admin/users", Permission.ADMIN)
async def get_users(request: Request, cursor: str | None = None, limit: Limit = 50) -> wire.Users:
    """Users by id, with their numbers of memories."""
    service: AgentMemoryStoreService = request.app.state.service
    page = await asyncio.to_thread(list_users, service.store, limit=limit, after=cursor)
    return wire.Users(users=[wire.User.model_validate(one) for one in page], next_cursor=page.next_cursor)


@route("GET", "/v1/admin/queue", Permission.ADMIN)
async def get_queue(request: Request) -> wire.Queue:
    """How many messages of all users wait, for how long the oldest (seconds), and how many have failed."""
    service: AgentMemoryStoreService = request.app.state.service
    found = await arun(partitions.status(service.scope.engine, service.scope.clock), service.timeout)
    return wire.Queue.model_validate(asdict(found))


@route("GET", "/v1/admin/dead-letters", Permission.ADMIN)
async def get_dead_letters(request: Request) -> wire.DeadLetters:
    """The messages that no memories could be made of, and why."""
    service: AgentMemoryStoreService = request.app.state.service
    found = await arun(partitions.dead_letters(service.scope.engine), service.timeout)
    letters = [
        wire.DeadLetter(key=one.key, user_id=one.partition.user_id, text=one.text, reason=one.reason, tries=one.tries)
        for one in found
    ]
    return wire.DeadLetters(dead=letters)


@route("POST", "/v1/admin/dead-letters/retry", Permission.ADMIN)
async def retry_dead_letters(request: Request, body: wire.Letters) -> wire.Count:
    """Puts failed messages back into the outbox; without keys, all."""
    service: AgentMemoryStoreService = request.app.state.service
    engine, clock = service.scope.engine, service.scope.clock
    return wire.Count(count=await arun(partitions.retry(engine, clock, body.keys), service.timeout))


@route("POST", "/v1/admin/dead-letters/drop", Permission.ADMIN)
async def drop_dead_letters(request: Request, body: wire.Letters) -> wire.Count:
    """Removes failed messages for good; without keys, all."""
    service: AgentMemoryStoreService = request.app.state.service
    return wire.Count(count=await arun(partitions.drop(service.scope.engine, body.keys), service.timeout))


ALL_ROUTES: Final = ROUTES
"""The routes of this module and those that it builds on."""
