"""The table of routes, and those under ``/v1`` for a user's memories. Each calls one operation of the service."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar, get_type_hints

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from inference_core import __version__
from inference_core.effects import Operation, arun
from inference_core.errors import MemoryNotFound, StoreUnavailable
from inference_core.memory.text import id_as_segment, id_of_segment
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.server.api import wire
from inference_core.server.identity.auth import KEYS, Permission, Principal
from inference_core.server.problems import Refusal
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations import list as memories
from inference_core.services.operations.delete import delete
from inference_core.services.operations.recall import recall
from inference_core.services.operations.requests import MAX_REQUEST_KEY_BYTES
from inference_core.services.operations.save import save, save_once
from inference_core.services.operations.scope import MemoryScope, UserId
from inference_core.services.operations.spaces import in_space
from inference_core.services.operations.update import update

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
READY_S: Final = 1.0
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


@dataclass(frozen=True, slots=True)
class Route:
    """One route: its method and path, who may use it, and what answers. ``options`` are FastAPI's."""

    method: str
    path: str
    permission: Permission | None
    endpoint: Callable[..., Awaitable[Any]]
    options: dict[str, Any]


ROUTES: Final = list[Route]()


def route(
    method: str, path: str, permission: Permission | None, *, table: list[Route] = ROUTES, **options: Any
) -> Callable[[F], F]:
    """Adds a function to a ``table`` of routes. ``permission`` None makes it public; the gate's `PUBLIC` lists it."""

    def add(endpoint: F) -> F:
        table.append(Route(method, path, permission, endpoint, options))
        return endpoint

    return add


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
        operation: Callable[Concatenate[MemoryScope, UserId, P], Operation[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Runs an operation on the user's memories."""
        return await arun(in_space(self.scope, operation, self.user, *args, **kwargs), self.timeout)


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


class QuickRoute(APIRoute):
    """A route with a fast path, for endpoints that take a `Call`, or a `Call` and a body, and return a model.

    It bypasses FastAPI if the request is valid and allowed, as resolving dependencies takes about as long as a recall.
    FastAPI describes the route, and answers all other requests.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        asked = [one.call for one in self.dependant.dependencies]
        needs = next((one for one in asked if isinstance(one, Needs)), None)
        self._permission = needs and needs.permission
        hints = get_type_hints(endpoint)
        body: Any = hints.pop("body", None)
        result: Any = hints.pop("return", None)
        is_model = isinstance(result, type) and issubclass(result, BaseModel)
        self._is_quick = is_model and hints == {"call": Call} and bool(self._permission) and asked == [needs, call_of]
        self._body: type[BaseModel] | None = body

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, on the fast path if it can."""
        state, body = scope.get("state", {}), None
        is_quick = self._is_quick and "body" in state and self._permission in state["principal"].permissions
        if is_quick and self._body:
            is_quick = (b"content-type", b"application/json") in scope["headers"]
            with suppress(ValidationError):
                body = self._body.model_validate_json(state["body"]) if is_quick else None
        if not is_quick or scope["method"] not in (self.methods or ()) or (self._body and body is None):
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive)
        call = await call_of(request)
        found: BaseModel = await (self.endpoint(call) if body is None else self.endpoint(call, body))
        content = type(found).__pydantic_serializer__.to_json(found)
        await Response(content, self.status_code or 200, media_type="application/json")(scope, receive, send)


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
async def get_readiness(request: Request) -> wire.Status:
    """Says that the store answers within a second, and takes writes as far as the last one tells."""
    service: AgentMemoryStoreService = request.app.state.service
    engine = service.scope.engine

    def look() -> Operation[None]:
        yield from engine.get([(KEYS, "ready")])
        yield from engine.check_writer()

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
    memory_type: MemoryType | None = None,
    category: MemoryCategory | None = None,
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
    return wire.MemoryList(memories=wire.memories_of(page), next_cursor=page.next_cursor, total=total)


@route("POST", "/v1/memories/search", Permission.READ)
async def search_memories(call: Caller, body: wire.Question) -> wire.Found:
    """Finds the memories that answer a query best. The query is in the body, so that no access log has it."""
    return wire.Found.of(await call.run(recall, **body.model_dump()))


@route("GET", "/v1/memories/{memory_id}", Permission.READ, responses={304: {"description": "It has not changed."}})
async def get_memory(
    call: Caller, memory_id: MemoryId, response: Response, if_none_match: Annotated[str | None, Header()] = None
) -> wire.Memory:
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
) -> wire.Memory:
    """Changes the given fields of a memory."""
    expected = await _expected(call, memory_id, if_match)
    if not await call.run(update, memory_id, expected_version=expected, **body.arguments()):
        raise MemoryNotFound(memory_id)
    return await _get(call, memory_id, response)


@route("DELETE", "/v1/memories/{memory_id}", Permission.WRITE, status_code=204)
async def delete_memory(
    call: Caller,
    memory_id: MemoryId,
    if_match: IfMatch = None,
    erase: Annotated[bool, Query(description="Permanently; otherwise it can be restored for some days.")] = False,
) -> None:
    """Deletes a memory."""
    expected = await _expected(call, memory_id, if_match)
    if not await call.run(delete, memory_id, expected_version=expected, erase=erase):
        raise MemoryNotFound(memory_id)


async def _get(call: Call, memory_id: str, response: Response) -> wire.Memory:
    """The memory, whose version becomes the ETag of ``response``. Raises MemoryNotFound."""
    document = await call.run(memories.get, memory_id)
    if document is None:
        raise MemoryNotFound(memory_id)
    response.headers["ETag"] = f'"{document.version}"'
    return wire.Memory.of(document)


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
