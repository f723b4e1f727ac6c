"""The routes under ``/v1``: their table, those of a user and of admins. Each calls one operation of the service."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from inference_core import __version__
from inference_core.effects import arun
from inference_core.errors import InvalidMemory, MemoryNotFound, StoreUnavailable
from inference_core.ingestion.analytics import statistics
from inference_core.lifecycle.forgetting import ForgettingPolicy, forget, forgotten, restore
from inference_core.memory.text import id_as_segment, id_of_segment
from inference_core.memory.trust import MemorySource
from inference_core.memory.wire import Memory, memories_of
from inference_core.outbox import outbox as queue
from inference_core.server import problems
from inference_core.server.api import wire
from inference_core.server.api.jobs import BEAT_S, TELL_S, Jobs, Kind, StoredJob, save_each
from inference_core.server.identity.auth import KEYS, Permission, Principal
from inference_core.server.identity.gate import Access, bearer_in
from inference_core.server.problems import Refusal
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations import list as memories
from inference_core.services.operations import review
from inference_core.services.operations.delete import Erased, delete, delete_all
from inference_core.services.operations.messages import add_messages, add_messages_once, judged
from inference_core.services.operations.operation import MemoryOperation
from inference_core.services.operations.profile import edit_profile as change_profile
from inference_core.services.operations.profile import read_profile
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.recall import recall
from inference_core.services.operations.receipts import list_receipts, why
from inference_core.services.operations.save import save, save_once, update
from inference_core.services.operations.scope import MAX_REQUEST_KEY_BYTES, MemoryScope, UserId
from inference_core.services.user_memories import list_users

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
READY_S: Final = 1.0
_PROBLEM: Final = {
    "description": "An error.",
    "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_VERSION: Final = re.compile(r'"([0-9]{1,18})"\Z')


@dataclass(frozen=True, slots=True)
class Needs:
    """The dependency of a route that lets in only principals with ``permission``; None: everybody."""

    permission: Permission | None

    async def __call__(self, request: Request) -> None:
        """Raises Refusal for anybody else."""
        if self.permission is None:
            return
        principal: Principal | None = getattr(request.state, "principal", None)
        if principal is None:  # the gate is missing: a platform has taken the routes without the middleware
            raise Refusal(401, "unauthenticated")
        if self.permission not in principal.permissions:
            raise Refusal(403, "missing-permission", f"This key lacks the permission {self.permission.value!r}")


class Route(APIRoute):
    """A route for which a parameter without a value in the query counts as left out, unless it deletes.

    One that answers GET also answers HEAD, without the body.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it answers a request."""
        match, child = super().matches(scope)
        is_head = match is Match.PARTIAL and scope["method"] == "HEAD" and "GET" in (self.methods or ())
        return (Match.FULL, child) if is_head else (match, child)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["method"] == "HEAD" and "GET" in (self.methods or ()):
            scope, send = {**scope, "method": "GET"}, _Headless(send)
        if scope["method"] != "DELETE":  # a filter whose value got lost must not widen what is deleted
            pairs = scope["query_string"].split(b"&")
            scope["query_string"] = b"&".join(pair for pair in pairs if pair.partition(b"=")[2])
        await super().handle(scope, receive, send)


class _Headless:
    """Sends an answer without its body."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        is_body = message["type"] == "http.response.body"
        await self._send({**message, "body": b""} if is_body else message)


ROUTES: Final = list[Route]()


def route(
    method: str,
    path: str,
    permission: Permission | None,
    *,
    table: list[Route] = ROUTES,
    kind: type[Route] = Route,
    responses: Mapping[int | str, Any] = MappingProxyType({}),
    **options: Any,
) -> Callable[[F], F]:
    """Adds a function to a ``table`` of routes, which any number of applications share.

    ``permission`` None makes it public; the gate's `PUBLIC` lists it. ``responses`` and ``options`` are FastAPI's.
    """

    def add(endpoint: F) -> F:
        table.append(
            kind(
                path,
                endpoint,
                methods=[method],
                operation_id=endpoint.__name__,
                dependencies=[Depends(Needs(permission))],
                openapi_extra={"security": [{"key": [permission.value]}] if permission else []},
                responses={"default": _PROBLEM, **responses},
                **options,
            )
        )
        return endpoint

    return add


def needed(one: BaseRoute) -> Permission | None:
    """The permission that a route needs; None: it is public, or does not say."""
    asked = one.dependant.dependencies if isinstance(one, APIRoute) else ()
    found = [*(each.call for each in asked), getattr(getattr(one, "endpoint", None), "needs", None)]
    return next((each.permission for each in found if isinstance(each, Needs)), None)


@dataclass(frozen=True, slots=True)
class Call:
    """The service's ``scope`` in the name of the request's key, and the user whose memories the request is about.

    ``prefix`` is what a proxy puts before the paths of this server.
    """

    scope: MemoryScope
    user: str
    timeout: float | None
    prefix: str = ""

    async def run(
        self,
        operation: MemoryOperation[Concatenate[UserId, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Runs an operation on the user's memories."""
        return await arun(operation.checked(self.scope, self.user, *args, **kwargs), self.timeout)


async def call_of(
    request: Request,
    _: Annotated[
        str | None,
        Header(
            alias="Act-As-User",
            min_length=1,
            description="Whose memories these are, in percent-encoding, for keys with the permission act-as.",
        ),
    ] = None,
) -> Call:
    """The `Call` of a request; `Gate` has checked who may name which user. Raises Refusal if there is no user."""
    if request.state.user is None:
        raise Refusal(422, "no-user", "This key belongs to no user; name one with the header Act-As-User")
    service: AgentMemoryStoreService = request.app.state.service
    principal: Principal = request.state.principal
    return Call(
        replace(service.scope, actor=principal.actor),
        request.state.user,
        service.timeout,
        request.scope.get("root_path", ""),
    )


async def service_of(request: Request) -> AgentMemoryStoreService:
    """The service that the application serves."""
    return request.app.state.service


Service = Annotated[AgentMemoryStoreService, Depends(service_of)]
Caller = Annotated[Call, Depends(call_of)]
MemoryId = Annotated[
    str,
    Path(
        min_length=1, description="The memory's id. ~ and its UTF-8 in base64url stands for any, as for one with a /."
    ),
    AfterValidator(id_of_segment),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=MAX_REQUEST_KEY_BYTES,
        description="Your own name for this request: for a day, repetitions store nothing more and are answered alike.",
    ),
]
IfMatch = Annotated[
    str | None, Header(description='The version that must be there, as its ETag: "3". Without it, any version.')
]


@route("GET", "/healthz", None)
async def get_health() -> wire.Status:
    """Says that the process answers."""
    return wire.Status()


@route("GET", "/readyz", None)
async def get_readiness(service: Service) -> wire.Status:
    """Says that the store answers within a second, and takes writes as far as the last one tells."""
    engine = service.scope.engine

    async def look() -> None:
        await engine.get([(KEYS, "ready")])
        await engine.check_writer()

    try:
        await arun(look(), READY_S)
    except StoreUnavailable as error:
        raise Refusal(503, "not-ready", "The store does not answer", {"Retry-After": "1"}) from error
    return wire.Status()


@route("GET", "/version", None)
async def get_version() -> wire.Version:
    """The version of the package that runs here."""
    return wire.Version(version=__version__)


@route("POST", "/v1/memories", Permission.WRITE, status_code=201, responses={200: {"model": wire.SavedMemory}})
async def save_memory(
    call: Caller,
    body: wire.NewMemory,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> wire.SavedMemory:
    """Saves a memory; 201 if it is new, 200 if it had been saved before in the same words or with the same key."""
    if idempotency_key is None:
        saved = await call.run(save, **body.arguments())
    else:
        saved = await call.run(save_once, idempotency_key, **body.arguments())
    if saved.was_stored:
        response.status_code = 200
    memory = await _get(call, saved, response)
    response.headers["Location"] = f"{call.prefix}/v1/memories/{id_as_segment(memory.id)}"
    return wire.SavedMemory(**dict(memory), was_stored=saved.was_stored, redacted=list(saved.redacted))


@route("GET", "/v1/memories", Permission.READ)
async def list_memories(
    call: Caller,
    cursor: Annotated[str | None, Query(description="The next_cursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=wire.MAX_PAGE)] = 50,
    memory_type: wire.Kind | None = None,
    category: wire.Category | None = None,
    search: Annotated[str | None, Query(max_length=1_000, description="Text in content or topic.")] = None,
    session_id: str | None = None,
    tag: Annotated[list[str], Query(max_length=32, description="Only memories that have all of these.")] = [],  # noqa: B006 - FastAPI copies it
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> wire.MemoryList:
    """A page of memories, the newest first. Every page costs the same, and writes meanwhile move nothing."""
    page, total = await call.run(
        memories.list_memories,
        category=category,
        memory_type=memory_type,
        search=search,
        limit=limit,
        session_id=session_id,
        after=cursor,
        tags=tag,
        created_after=created_after,
        created_before=created_before,
    )
    return wire.MemoryList(memories=memories_of(page), next_cursor=page.next_cursor, total=total)


@route("POST", "/v1/memories/search", Permission.READ)
async def search_memories(call: Caller, body: wire.Question) -> wire.Found:
    """Finds the memories that answer a query best. The query is in the body, so that no access log has it."""
    return wire.Found.of(await call.run(recall, **body.model_dump()))


@route("GET", "/v1/memories/{memory_id}", Permission.READ, responses={304: {"description": "It has not changed."}})
async def get_memory(
    call: Caller, memory_id: MemoryId, response: Response, if_none_match: Annotated[str | None, Header()] = None
) -> Memory:
    """One memory, with its version as ETag."""
    memory = await _get(call, memory_id, response)
    if if_none_match is not None and if_none_match.strip() in ("*", response.headers["ETag"]):
        raise Refusal(304, "not-modified", headers={"ETag": response.headers["ETag"]})
    return memory


@route("PUT", "/v1/memories/{memory_id}", Permission.WRITE, responses={201: {"model": wire.SavedMemory}})
async def put_memory(
    call: Caller,
    memory_id: MemoryId,
    body: wire.NewMemory,
    response: Response,
    if_match: IfMatch = None,
    if_none_match: Annotated[str | None, Header(description="*: only if there is no such memory.")] = None,
) -> wire.SavedMemory:
    """Creates a memory under your own id (If-None-Match: *), or replaces it at a version (If-Match)."""
    is_new = if_none_match is not None and if_none_match.strip() == "*"
    if is_new == (if_match is not None):
        raise Refusal(428, "precondition-required", 'Send If-None-Match: * to create it, or If-Match: "3" to replace 3')
    expected = 0 if is_new else await _expected(call, memory_id, if_match)
    saved = await call.run(save, memory_id=memory_id, expected_version=expected, **body.arguments())
    response.status_code = 201 if is_new else 200
    return wire.SavedMemory(**dict(await _get(call, saved, response)), redacted=list(saved.redacted))


@route("PATCH", "/v1/memories/{memory_id}", Permission.WRITE)
async def update_memory(
    call: Caller, memory_id: MemoryId, body: wire.MemoryChange, response: Response, if_match: IfMatch = None
) -> Memory:
    """Changes the given fields of a memory."""
    expected = await _expected(call, memory_id, if_match)
    if not await call.run(update, memory_id, expected_version=expected, **body.arguments()):
        raise MemoryNotFound(memory_id)
    return await _get(call, memory_id, response)


@route("DELETE", "/v1/memories/{memory_id}", Permission.WRITE, status_code=204, responses={200: {"model": wire.Erased}})
async def delete_memory(
    call: Caller,
    memory_id: MemoryId,
    if_match: IfMatch = None,
    erase: Annotated[bool, Query(description="Permanently; otherwise it can be restored for some days.")] = False,
) -> Response:
    """Deletes a memory. With ``erase``, what was made from it or its messages goes too and is named."""
    expected = await _expected(call, memory_id, if_match)
    done = await call.run(delete, memory_id, expected_version=expected, erase=erase)
    if not done:
        raise MemoryNotFound(memory_id)
    return JSONResponse({"derived": done.derived}) if isinstance(done, Erased) else Response(status_code=204)


async def _get(call: Call, memory_id: str, response: Response) -> Memory:
    """The memory, whose version becomes the ETag of ``response``. Raises MemoryNotFound."""
    document = await call.run(memories.get, memory_id)
    if document is None:
        raise MemoryNotFound(memory_id)
    response.headers["ETag"] = f'"{document.version}"'
    return Memory.of(document)


async def _expected(call: Call, memory_id: str, if_match: str | None) -> int | None:
    """The version that If-Match names; None: any. Raises Refusal for no ETag of a memory, or "*" without the memory."""
    if if_match is None:
        return None
    if if_match.strip() == "*":
        if await call.run(memories.get, memory_id) is None:
            raise Refusal(412, "version-conflict", "There is no such memory")
        return None
    version = _VERSION.match(if_match.strip())
    if version is None or not int(version[1]):
        raise Refusal(412, "version-conflict", 'If-Match must be the ETag of a memory, such as "3"')
    return int(version[1])


BATCH_PATH: Final = "/v1/memories/batch"
MANY_PATH: Final = "/v1/jobs/save"
STREAM_S: Final = 300.0
_PAGE: Final = 200
NDJSON: Final = "application/x-ndjson"
Cursor = Annotated[str | None, Query(description="The next_cursor of the page before.")]
JobId = Annotated[str, Path(min_length=1, max_length=64, description="The job's id.")]
Limit = Annotated[int, Query(ge=1, le=wire.MAX_PAGE)]


class _Submission:
    """The dependency of routes that begin a job."""

    def __init__(self, request: Request, response: Response, idempotency_key: IdempotencyKey = None) -> None:
        self._jobs: Jobs = request.app.state.jobs
        self._response, self._key = response, idempotency_key

    async def submit(self, call: Call, kind: Kind, arguments: dict[str, Any], given: Sequence[object] = ()) -> wire.Job:
        """Begins a job, and puts its address into the response's header Location. Raises what `Jobs.submit` raises."""
        job = await self._jobs.submit(call.scope, call.user, kind, arguments, given=given, request_key=self._key)
        self._response.headers["Location"] = f"{call.prefix}/v1/jobs/{job.id}"
        return wire.Job.model_validate(job)


Submission = Annotated[_Submission, Depends()]


@route("POST", BATCH_PATH, Permission.WRITE)
async def save_memories(call: Caller, body: wire.NewMemories) -> wire.SavedMemories:
    """Saves up to 500 memories together; each succeeds or fails alone."""
    results = await save_each(call.scope, call.user, body.memories, call.timeout)
    return wire.SavedMemories(results=results)


@route("DELETE", "/v1/memories", Permission.WRITE)
async def delete_memories(
    call: Caller,
    *,
    everything: Annotated[bool, Query(description="true: confirms that all are to be deleted permanently.")],
    memory_type: Annotated[wire.Kind | None, Query()] = None,
    category: Annotated[wire.Category | None, Query()] = None,
) -> wire.Count:
    """Deletes all memories, or those of a type or category, permanently."""
    if not everything:
        raise problems.Refusal(422, "invalid-input", "Confirm with everything=true")
    return wire.Count(count=await call.run(delete_all, memory_type, category))


@route("GET", "/v1/memories/{memory_id}/history", Permission.READ)
async def get_history(call: Caller, memory_id: MemoryId) -> wire.History:
    """The memory with its earlier texts, all that it superseded and all that superseded it, the oldest first."""
    documents = await call.run(memories.history, memory_id)
    if not documents:
        raise MemoryNotFound(memory_id)
    return wire.History(memories=memories_of(documents))


@route("GET", "/v1/memories/{memory_id}/why", Permission.READ)
async def get_why(call: Caller, memory_id: MemoryId, cursor: Cursor = None, limit: Limit = 50) -> wire.Reasons:
    """Where a memory comes from, and the newest model calls that were given it."""
    reasons = await call.run(why, memory_id, limit=limit, after=cursor)
    if reasons.memory is None and reasons.removed is None and not reasons.receipts:
        raise MemoryNotFound(memory_id)
    return wire.Reasons(
        memory=reasons.memory and Memory.of(reasons.memory),
        removed=reasons.removed and wire.Forgotten.of(reasons.removed),
        earlier=memories_of(reasons.earlier),
        receipts=[receipt.to_value() | {"id": receipt.id} for receipt in reasons.receipts],
        next_cursor=reasons.receipts.next_cursor,
    )


@route("GET", "/v1/profile", Permission.READ)
async def get_profile(call: Caller) -> wire.Profile:
    """The user's rules, preferences and pinned memories, as one text to edit."""
    return wire.Profile.model_validate(await call.run(read_profile))


@route("PUT", "/v1/profile", Permission.WRITE)
async def edit_profile(call: Caller, body: wire.ProfileEdit) -> wire.ProfileChanges:
    """Makes the changes of an edited profile: changed lines are updated, removed ones deleted, new ones saved.

    If somebody else has changed one of these memories since, nothing is changed: 409.
    """
    source = MemorySource(origin=body.origin)
    made = await call.run(change_profile, body.text, body.before, source=source)
    return wire.ProfileChanges(changes=list(map(wire.ProfileChange.model_validate, made)))


@route("GET", "/v1/receipts", Permission.READ)
async def get_receipts(
    call: Caller, thread_id: str | None = None, cursor: Cursor = None, limit: Limit = 50
) -> wire.Receipts:
    """What model calls were given, the newest first: ids, ranks and scores, not the texts."""
    page = await call.run(list_receipts, thread_id=thread_id, limit=limit, after=cursor)
    return wire.Receipts(
        receipts=[receipt.to_value() | {"id": receipt.id} for receipt in page], next_cursor=page.next_cursor
    )


@route("POST", "/v1/context", Permission.READ)
async def build_context(call: Caller, body: wire.ContextQuery) -> wire.Context:
    """A block for a prompt, with the memories relevant to a query; "" if there are none."""
    return wire.Context(context=await call.run(format_context, **body.model_dump()))


@route("POST", "/v1/messages", Permission.WRITE, status_code=202)
async def add_conversation(call: Caller, body: wire.Messages, idempotency_key: IdempotencyKey = None) -> wire.Added:
    """Puts messages into the outbox, durably; a worker makes memories of them. Returns how many were new.

    A message with an id is added once. With Idempotency-Key, so is one without.
    """
    given = [message for message, _, _ in judged([one.told() for one in body.messages])]
    if idempotency_key is None:
        count = await call.run(add_messages, given, session_id=body.session_id)
    else:
        count = await call.run(add_messages_once, idempotency_key, given, session_id=body.session_id)
    return wire.Added(count=count, skipped=dict(count.skipped))


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
            for memory in found:
                yield Memory.of(memory).model_dump_json() + "\n"
            written += len(found)
            if found.next_cursor is None:
                break
            found, _ = await call.run(memories.list_memories, limit=_PAGE, after=found.next_cursor)
        yield json.dumps({"exported": written}) + "\n"

    return StreamingResponse(lines(), media_type=NDJSON)


@route("POST", "/v1/forget", Permission.WRITE)
async def forget_memories(call: Caller, body: wire.ForgettingRequest) -> wire.Forgetting:
    """Forgets what has expired, has faded or exceeds a limit. It can be restored for some time."""
    policy = ForgettingPolicy(**body.model_dump(exclude={"dry_run"}))
    report = await call.run(forget, policy, dry_run=body.dry_run)
    return wire.Forgetting.of(report)


@route("GET", "/v1/forgotten", Permission.READ)
async def list_forgotten(call: Caller) -> wire.ForgottenList:
    """The forgotten and deleted memories that can be restored, the last one first."""
    return wire.ForgottenList(memories=list(map(wire.Forgotten.of, await call.run(forgotten))))


@route("POST", "/v1/forgotten/{memory_id}/restore", Permission.WRITE)
async def restore_memory(call: Caller, memory_id: MemoryId) -> Memory:
    """Restores a forgotten or deleted memory, with its id and history; 409 if another one has the id by now."""
    report = await call.run(restore, [memory_id])
    if report.taken:
        raise problems.Refusal(409, "id-taken", "Another memory was saved with this id")
    document = await call.run(memories.get_of_any_agent, memory_id)
    if document is None or report.missing:
        raise MemoryNotFound(memory_id)
    return Memory.of(document)


@route("GET", "/v1/pending", Permission.READ)
async def list_pending(call: Caller, session_id: str | None = None) -> wire.PendingList:
    """What agents want to remember, and only the user may approve."""
    return wire.PendingList(
        pending=[wire.Pending.of(pending) for pending in await call.run(review.list_pending, session_id=session_id)]
    )


@route("POST", "/v1/pending/{memory_id}/approve", Permission.REVIEW)
async def approve_pending(call: Caller, memory_id: MemoryId, body: wire.Approval) -> Memory:
    """Makes a pending memory one that the user has stated. Give the permission to an application, never to an agent."""
    approved = await call.run(review.approve_pending, memory_id, body.edit, by=call.scope.actor.id)
    document = await call.run(memories.get_of_any_agent, memory_id) if approved else None
    if document is None:
        raise MemoryNotFound(memory_id)
    return Memory.of(document)


@route("POST", "/v1/pending/{memory_id}/reject", Permission.REVIEW, status_code=204)
async def reject_pending(call: Caller, memory_id: MemoryId, body: wire.Rejection) -> None:
    """Removes a pending memory; agents that offer the same words again are refused."""
    if not await call.run(review.reject_pending, memory_id, body.why, by=call.scope.actor.id):
        raise MemoryNotFound(memory_id)


@route("POST", "/v1/jobs/export", Permission.READ, status_code=202)
async def begin_export(call: Caller, to: Submission) -> wire.Job:
    """Begins to copy all memories; GET /v1/jobs/{job_id}/result has them for a day."""
    return await to.submit(call, "export", {})


@route("POST", "/v1/jobs/forget", Permission.WRITE, status_code=202)
async def begin_forgetting(call: Caller, to: Submission, body: wire.ForgettingRequest) -> wire.Job:
    """Begins what POST /v1/forget does at once."""
    policy = body.model_dump(exclude={"dry_run"})
    ForgettingPolicy(**policy)
    return await to.submit(call, "forget", {"policy": policy, "dry_run": body.dry_run})


@route("POST", MANY_PATH, Permission.WRITE, status_code=202)
async def begin_saving(call: Caller, to: Submission, body: wire.ManyMemories) -> wire.Job:
    """Begins to save up to 10,000 memories; GET /v1/jobs/{job_id}/result says what became of each, in their order."""
    try:
        given = [memory.model_dump(mode="json", exclude_unset=True) for memory in body.memories]
    except ValueError as error:  # depth is the one limit that pydantic checks here; the job checks all others
        raise InvalidMemory("extra_metadata is nested too deeply") from error
    await asyncio.to_thread(call.scope.engine.guard.refuse, given)
    return await to.submit(call, "save", {}, given)


@route("POST", "/v1/jobs/erase", Permission.ADMIN, status_code=202)
async def begin_erasure(call: Caller, to: Submission, body: wire.Erasure) -> wire.Job:
    """Begins a permanent erasure of the user, as ``inference-core erase`` does. Its result is the receipt."""
    return await to.submit(call, "erase", body.model_dump())


@route("GET", "/v1/jobs", Permission.READ)
async def list_jobs(call: Caller, request: Request) -> wire.JobList:
    """The user's jobs of the last day, the newest first."""
    jobs: Jobs = request.app.state.jobs
    return wire.JobList(jobs=list(map(wire.Job.model_validate, await jobs.all_of(call.user))))


@route("GET", "/v1/jobs/{job_id}", Permission.READ)
async def get_job(call: Caller, request: Request, job_id: JobId) -> wire.Job:
    """How far a job is, and its result when it is done."""
    return wire.Job.model_validate(await _job(call, request, job_id))


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
                data = wire.Job.model_validate(now).model_dump_json()
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
async def get_users(service: Service, cursor: str | None = None, limit: Limit = 50) -> wire.Users:
    """Users by id, with their numbers of memories."""
    page = await asyncio.to_thread(list_users, service.store, limit=limit, after=cursor)
    return wire.Users(users=[wire.User.model_validate(one) for one in page], next_cursor=page.next_cursor)


@route("GET", "/v1/admin/queue", Permission.ADMIN)
async def get_queue(service: Service) -> wire.Queue:
    """How many messages of all users wait, for how long the oldest (seconds), and how many have failed."""
    status = await arun(queue.status(service.scope.engine, service.scope.clock), service.timeout)
    return wire.Queue.model_validate(status)


@route("GET", "/v1/admin/dead-letters", Permission.ADMIN)
async def get_dead_letters(service: Service) -> wire.DeadLetters:
    """The messages that no memories could be made of, and why."""
    dead = await arun(queue.dead_letters(service.scope.engine), service.timeout)
    return wire.DeadLetters(dead=[wire.DeadLetter.of(message) for message in dead])


@route("POST", "/v1/admin/dead-letters/retry", Permission.ADMIN)
async def retry_dead_letters(service: Service, body: wire.Letters) -> wire.Count:
    """Puts failed messages back into the outbox; without keys, all."""
    engine, clock = service.scope.engine, service.scope.clock
    return wire.Count(count=await arun(queue.retry(engine, clock, body.keys), service.timeout))


@route("POST", "/v1/admin/dead-letters/drop", Permission.ADMIN)
async def drop_dead_letters(service: Service, body: wire.Letters) -> wire.Count:
    """Permanently removes failed messages; without keys, all."""
    return wire.Count(count=await arun(queue.drop(service.scope.engine, body.keys), service.timeout))
