"""Further routes of a user: batches, prompts, receipts, messages, forgetting, review, jobs; and those for admins."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Path, Query, Request, Response
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from starlette.responses import StreamingResponse

from inference_core.effects import arun
from inference_core.errors import InvalidMemory, MemoryNotFound
from inference_core.ingestion.analytics import statistics
from inference_core.lifecycle.archive import forgotten, restore
from inference_core.lifecycle.forgetting import forget
from inference_core.lifecycle.policy import ForgettingPolicy
from inference_core.outbox import partitions
from inference_core.server import problems
from inference_core.server.api import user_wire, wire
from inference_core.server.api.job_rows import Kind, StoredJob
from inference_core.server.api.jobs import BEAT_S, TELL_S, Jobs, save_each
from inference_core.server.api.routes import ROUTES, Call, Caller, IdempotencyKey, MemoryId, route
from inference_core.server.identity.auth import Permission
from inference_core.server.identity.gate import Access, bearer_in
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations import list as memories
from inference_core.services.operations import review
from inference_core.services.operations.delete import delete_all
from inference_core.services.operations.messages import TIMESTAMP, add_messages, add_messages_once
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.receipts import list_receipts, why
from inference_core.services.user_memories import list_users

BATCH_PATH: Final = "/v1/memories/batch"
MANY_PATH: Final = "/v1/jobs/save"
STREAM_S: Final = 300.0
_PAGE: Final = 200
NDJSON: Final = "application/x-ndjson"
_MESSAGES: Final = {"user": HumanMessage, "assistant": AIMessage, "tool": ToolMessage}
Cursor = Annotated[str | None, Query(description="The next_cursor of the page before.")]
JobId = Annotated[str, Path(min_length=1, max_length=64, description="The job's id.")]
Limit = Annotated[int, Query(ge=1, le=wire.MAX_PAGE)]


class _Submission:
    """The dependency of routes that begin a job."""

    def __init__(self, request: Request, response: Response, idempotency_key: IdempotencyKey = None) -> None:
        self._jobs: Jobs = request.app.state.jobs
        self._response, self._key = response, idempotency_key

    async def submit(
        self, call: Call, kind: Kind, arguments: dict[str, Any], given: Sequence[object] = ()
    ) -> user_wire.Job:
        """Begins a job, and puts its address into the response's header Location. Raises what `Jobs.submit` raises."""
        job = await self._jobs.submit(call.scope, call.user, kind, arguments, given=given, request_key=self._key)
        self._response.headers["Location"] = f"{call.prefix}/v1/jobs/{job.id}"
        return user_wire.Job.model_validate(job)


Submission = Annotated[_Submission, Depends()]


@route("POST", BATCH_PATH, Permission.WRITE)
async def save_memories(call: Caller, body: user_wire.NewMemories) -> user_wire.SavedMemories:
    """Saves up to 500 memories together; each succeeds or fails alone."""
    results = await save_each(call.scope, call.user, body.memories, call.timeout)
    return user_wire.SavedMemories(results=results)


@route("DELETE", "/v1/memories", Permission.WRITE)
async def delete_memories(
    call: Caller,
    *,
    everything: Annotated[bool, Query(description="true: confirms that all are to be deleted permanently.")],
    memory_type: Annotated[wire.MemoryType | None, Query()] = None,
    category: Annotated[wire.MemoryCategory | None, Query()] = None,
) -> user_wire.Count:
    """Deletes all memories, or those of a type or category, permanently."""
    if not everything:
        raise problems.Refusal(422, "invalid-input", "Confirm with everything=true")
    return user_wire.Count(count=await call.run(delete_all, memory_type, category))


@route("GET", "/v1/memories/{memory_id}/history", Permission.READ)
async def get_history(call: Caller, memory_id: MemoryId) -> user_wire.History:
    """The memory with its earlier texts, all that it superseded and all that superseded it, the oldest first."""
    found = await call.run(memories.history, memory_id)
    if not found:
        raise MemoryNotFound(memory_id)
    return user_wire.History(memories=wire.memories_of(found))


@route("GET", "/v1/memories/{memory_id}/why", Permission.READ)
async def get_why(call: Caller, memory_id: MemoryId, cursor: Cursor = None, limit: Limit = 50) -> user_wire.Reasons:
    """Where a memory comes from, and the newest model calls that were given it."""
    found = await call.run(why, memory_id, limit=limit, after=cursor)
    if found.memory is None and found.removed is None and not found.receipts:
        raise MemoryNotFound(memory_id)
    return user_wire.Reasons(
        memory=found.memory and wire.Memory.of(found.memory),
        removed=found.removed and user_wire.Forgotten.of(found.removed),
        earlier=wire.memories_of(found.earlier),
        receipts=[one.to_value() | {"id": one.id} for one in found.receipts],
        next_cursor=found.receipts.next_cursor,
    )


@route("GET", "/v1/receipts", Permission.READ)
async def get_receipts(
    call: Caller, thread_id: str | None = None, cursor: Cursor = None, limit: Limit = 50
) -> user_wire.Receipts:
    """What model calls were given, the newest first: ids, ranks and scores, not the texts."""
    page = await call.run(list_receipts, thread_id=thread_id, limit=limit, after=cursor)
    return user_wire.Receipts(receipts=[one.to_value() | {"id": one.id} for one in page], next_cursor=page.next_cursor)


@route("POST", "/v1/context", Permission.READ)
async def build_context(call: Caller, body: user_wire.ContextQuery) -> user_wire.Context:
    """A block for a prompt, with the memories relevant to a query; "" if there are none."""
    return user_wire.Context(context=await call.run(format_context, **body.model_dump()))


@route("POST", "/v1/messages", Permission.WRITE, status_code=202)
async def add_conversation(
    call: Caller, body: user_wire.Messages, idempotency_key: IdempotencyKey = None
) -> user_wire.Count:
    """Puts messages into the outbox, durably; a worker makes memories of them. Returns how many were new.

    A message with an id is added once. With Idempotency-Key, so is one without.
    """
    given = list(map(_message, body.messages))
    if idempotency_key is None:
        count = await call.run(add_messages, given, session_id=body.session_id)
    else:
        count = await call.run(add_messages_once, idempotency_key, given, session_id=body.session_id)
    return user_wire.Count(count=count)


def _message(one: user_wire.Message) -> BaseMessage:
    said = {TIMESTAMP: one.timestamp.isoformat()} if one.timestamp else {}
    outside = {"outside": "yes"} if one.outside else {}  # a key that no harmless message has
    extra: dict[str, Any] = {"tool_call_id": ""} if one.role == "tool" else {}
    return _MESSAGES[one.role](
        content=one.content, id=one.id, name=one.name, additional_kwargs={**said, **outside}, **extra
    )


@route("GET", "/v1/stats", Permission.READ)
async def get_statistics(call: Caller) -> user_wire.Statistics:
    """Figures about the user's memories, and about the work that made them of messages."""
    return user_wire.Statistics.model_validate(asdict(await call.run(statistics)))


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

    return StreamingResponse(lines(), media_type=NDJSON)


@route("POST", "/v1/forget", Permission.WRITE)
async def forget_memories(call: Caller, body: user_wire.ForgettingRequest) -> user_wire.Forgetting:
    """Forgets what has expired, has faded or exceeds a limit. It can be restored for some time."""
    policy = ForgettingPolicy(**body.model_dump(exclude={"dry_run"}))
    report = await call.run(forget, policy, dry_run=body.dry_run)
    return user_wire.Forgetting.of(report)


@route("GET", "/v1/forgotten", Permission.READ)
async def list_forgotten(call: Caller) -> user_wire.ForgottenList:
    """The forgotten and deleted memories that can be restored, the last one first."""
    return user_wire.ForgottenList(memories=list(map(user_wire.Forgotten.of, await call.run(forgotten))))


@route("POST", "/v1/forgotten/{memory_id}/restore", Permission.WRITE)
async def restore_memory(call: Caller, memory_id: MemoryId) -> wire.Memory:
    """Restores a forgotten or deleted memory, with its id and history; 409 if another one has the id by now."""
    report = await call.run(restore, [memory_id])
    if report.taken:
        raise problems.Refusal(409, "id-taken", "Another memory was saved with this id")
    document = await call.run(memories.get_of_any_agent, memory_id)
    if document is None or report.missing:
        raise MemoryNotFound(memory_id)
    return wire.Memory.of(document)


@route("GET", "/v1/pending", Permission.READ)
async def list_pending(call: Caller, session_id: str | None = None) -> user_wire.PendingList:
    """What agents want to remember, and only the user may approve."""
    return user_wire.PendingList(
        pending=[user_wire.Pending.of(one) for one in await call.run(review.list_pending, session_id=session_id)]
    )


@route("POST", "/v1/pending/{memory_id}/approve", Permission.REVIEW)
async def approve_pending(call: Caller, memory_id: MemoryId, body: user_wire.Approval) -> wire.Memory:
    """Makes a pending memory one that the user has stated. Give the permission to an application, never to an agent."""
    approved = await call.run(review.approve_pending, memory_id, body.edit, by=call.scope.actor.id)
    document = await call.run(memories.get_of_any_agent, memory_id) if approved else None
    if document is None:
        raise MemoryNotFound(memory_id)
    return wire.Memory.of(document)


@route("POST", "/v1/pending/{memory_id}/reject", Permission.REVIEW, status_code=204)
async def reject_pending(call: Caller, memory_id: MemoryId, body: user_wire.Rejection) -> None:
    """Removes a pending memory; agents that offer the same words again are refused."""
    if not await call.run(review.reject_pending, memory_id, body.why, by=call.scope.actor.id):
        raise MemoryNotFound(memory_id)


@route("POST", "/v1/jobs/export", Permission.READ, status_code=202)
async def begin_export(call: Caller, to: Submission) -> user_wire.Job:
    """Begins to copy all memories; GET /v1/jobs/{job_id}/result has them for a day."""
    return await to.submit(call, "export", {})


@route("POST", "/v1/jobs/forget", Permission.WRITE, status_code=202)
async def begin_forgetting(call: Caller, to: Submission, body: user_wire.ForgettingRequest) -> user_wire.Job:
    """Begins what POST /v1/forget does at once."""
    policy = body.model_dump(exclude={"dry_run"})
    ForgettingPolicy(**policy)
    return await to.submit(call, "forget", {"policy": policy, "dry_run": body.dry_run})


@route("POST", MANY_PATH, Permission.WRITE, status_code=202)
async def begin_saving(call: Caller, to: Submission, body: user_wire.ManyMemories) -> user_wire.Job:
    """Begins to save up to 10,000 memories; GET /v1/jobs/{job_id}/result says what became of each, in their order."""
    try:
        given = [one.model_dump(mode="json", exclude_unset=True) for one in body.memories]
    except ValueError as error:  # depth is the one limit that pydantic checks here; the job checks all others
        raise InvalidMemory("extra_metadata is nested too deeply") from error
    await asyncio.to_thread(call.scope.engine.guard.refuse, given)
    return await to.submit(call, "save", {}, given)


@route("POST", "/v1/jobs/erase", Permission.ADMIN, status_code=202)
async def begin_erasure(call: Caller, to: Submission, body: user_wire.Erasure) -> user_wire.Job:
    """Begins a permanent erasure of the user, as ``inference-core erase`` does. Its result is the receipt."""
    return await to.submit(call, "erase", body.model_dump())


@route("GET", "/v1/jobs", Permission.READ)
async def list_jobs(call: Caller, request: Request) -> user_wire.JobList:
    """The user's jobs of the last day, the newest first."""
    jobs: Jobs = request.app.state.jobs
    return user_wire.JobList(jobs=list(map(user_wire.Job.model_validate, await jobs.all_of(call.user))))


@route("GET", "/v1/jobs/{job_id}", Permission.READ)
async def get_job(call: Caller, request: Request, job_id: JobId) -> user_wire.Job:
    """How far a job is, and its result when it is done."""
    return user_wire.Job.model_validate(await _job(call, request, job_id))


@route(
    "GET",
    "/v1/jobs/{job_id}/events",
    Permission.READ,
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "Over."}},
)
async def follow_job(
    call: Caller,
    request: Request,
    job_id: JobId,
    last_event_id: Annotated[str | None, Header(description="The id of the last event that you have.")] = None,
) -> Response:
    """The job each time it has changed, as server-sent events, until it is over; after five minutes, connect again."""
    jobs: Jobs = request.app.state.jobs
    access: Access = request.app.state.access
    token, principal = bearer_in(request.headers), request.state.principal
    job = await _job(call, request, job_id)
    if job.is_over and last_event_id == str(job.version):
        return Response(status_code=204)  # tells an EventSource not to connect again

    async def events() -> AsyncIterator[str]:
        now, known, quiet_since = job, last_event_id, time.monotonic()
        until = time.monotonic() + STREAM_S
        while True:
            if str(now.version) != known:
                known, quiet_since = str(now.version), time.monotonic()
                data = user_wire.Job.model_validate(now).model_dump_json()
                yield f"id: {known}\nevent: {now.state}\ndata: {data}\n\n"
            if now.is_over or jobs.is_closing or time.monotonic() > until:
                return
            if time.monotonic() - quiet_since > BEAT_S:
                quiet_since = time.monotonic()
                yield ": \n\n"
            await asyncio.sleep(TELL_S)
            if token and not access.is_platform and await access.principal_of(token) != principal:
                return  # the key was revoked meanwhile, or the token has expired
            found = await jobs.get(call.user, job_id)
            if found is None:
                return
            now = found

    return StreamingResponse(events(), media_type="text/event-stream")


@route("GET", "/v1/jobs/{job_id}/result", Permission.READ, response_class=StreamingResponse)
async def get_job_result(call: Caller, request: Request, job_id: JobId) -> StreamingResponse:
    """What an export or a bulk save has given, as JSON Lines; 409 until it is done."""
    jobs: Jobs = request.app.state.jobs
    job = await _job(call, request, job_id)
    if job.state != "done":
        raise problems.Refusal(409, "job-not-done", f"The job is {job.state}")
    if not await jobs.has_lines(call.user, job):
        raise problems.Refusal(404, "result-gone", "The result of this job is no longer kept")
    return StreamingResponse(jobs.lines(call.user, job), media_type=NDJSON)


async def _job(call: Call, request: Request, job_id: str) -> StoredJob:
    jobs: Jobs = request.app.state.jobs
    job = await jobs.get(call.user, job_id)
    if job is None:
        raise problems.Refusal(404, "no-such-job", "There is no such job; they are kept for a day")
    return job


@route("GET", "/v1/admin/users", Permission.ADMIN)
async def get_users(request: Request, cursor: str | None = None, limit: Limit = 50) -> user_wire.Users:
    """Users by id, with their numbers of memories."""
    service: AgentMemoryStoreService = request.app.state.service
    page = await asyncio.to_thread(list_users, service.store, limit=limit, after=cursor)
    return user_wire.Users(users=[user_wire.User.model_validate(one) for one in page], next_cursor=page.next_cursor)


@route("GET", "/v1/admin/queue", Permission.ADMIN)
async def get_queue(request: Request) -> user_wire.Queue:
    """How many messages of all users wait, for how long the oldest (seconds), and how many have failed."""
    service: AgentMemoryStoreService = request.app.state.service
    found = await arun(partitions.status(service.scope.engine, service.scope.clock), service.timeout)
    return user_wire.Queue.model_validate(found)


@route("GET", "/v1/admin/dead-letters", Permission.ADMIN)
async def get_dead_letters(request: Request) -> user_wire.DeadLetters:
    """The messages that no memories could be made of, and why."""
    service: AgentMemoryStoreService = request.app.state.service
    found = await arun(partitions.dead_letters(service.scope.engine), service.timeout)
    return user_wire.DeadLetters(dead=[user_wire.DeadLetter.of(one) for one in found])


@route("POST", "/v1/admin/dead-letters/retry", Permission.ADMIN)
async def retry_dead_letters(request: Request, body: user_wire.Letters) -> user_wire.Count:
    """Puts failed messages back into the outbox; without keys, all."""
    service: AgentMemoryStoreService = request.app.state.service
    engine, clock = service.scope.engine, service.scope.clock
    return user_wire.Count(count=await arun(partitions.retry(engine, clock, body.keys), service.timeout))


@route("POST", "/v1/admin/dead-letters/drop", Permission.ADMIN)
async def drop_dead_letters(request: Request, body: user_wire.Letters) -> user_wire.Count:
    """Permanently removes failed messages; without keys, all."""
    service: AgentMemoryStoreService = request.app.state.service
    return user_wire.Count(count=await arun(partitions.drop(service.scope.engine, body.keys), service.timeout))


ALL_ROUTES: Final = ROUTES
"""`ROUTES` with those of this module: importing it adds them."""
