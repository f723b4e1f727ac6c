"""MemoryClient: the memory of ``inference-core serve``, with the verbs, results and errors of the service.

A verb has the parameters of the service's operation, and is an `Operation` itself; its requests run on threads of the
client. So each verb is written once for sync and async code, and threads and event loops can share a client.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx

from inference_core import errors
from inference_core.effects import Faces, Operation, WorkerPool, faces
from inference_core.errors import (
    ConfigurationError,
    DeadlineExceeded,
    InvalidId,
    InvalidInput,
    MemoryNotFound,
    StoreUnavailable,
    WriteUnknown,
)
from inference_core.memory.namespaces import Space, encode_label
from inference_core.memory.receipt import Receipt
from inference_core.memory.record import MemoryLink, MemoryPage, MemoryStoreDocument, PendingMemory, RecalledMemories
from inference_core.memory.text import id_as_segment
from inference_core.memory.types import MemoryCategory
from inference_core.outbox.media import media_in
from inference_core.outbox.messages import EMPTY, OTHER_PARTS, Role, label
from inference_core.services.operations.delete import Erased, ForgottenMemory, delete, delete_all
from inference_core.services.operations.list import count, get, history, list_memories
from inference_core.services.operations.messages import Added, add_messages, judged, said_at
from inference_core.services.operations.operation import MemoryOperation
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.recall import recall
from inference_core.services.operations.receipts import Why, list_receipts, why
from inference_core.services.operations.review import approve_pending, list_pending, reject_pending
from inference_core.services.operations.save import SavedId, save, update
from inference_core.services.operations.scope import retried

P = ParamSpec("P")
T = TypeVar("T")
_WORKERS: Final = 16
Given = Mapping[str, Any]
_PAGE: Final = 200
_TRIES: Final = 3
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_MAX_MEDIA: Final = 700_000
"""Characters of media that are sent with messages; a server takes no body above 1 MB by default."""
_TOO_MANY: Final = 429
_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
_REFUSED: Final = frozenset({401, 403})
_FAILED: Final = 500
_UNKNOWN: Final = "The server was sent the change, and did not answer it; repeat the call"
_AMBIGUOUS: Final = "The change may have been made, by this call or by another; read the memory"
_VALUE: Final = (
    *("content", "memory_type", "topic", "session_id", "agent_name", "tags", "importance", "pinned", "source", "trust"),
    *("valid_from", "valid_to", "expires_at", "supersedes", "superseded_by"),
)
_ERRORS: Final[Mapping[str, type[errors.InferenceCoreError]]] = {
    "".join(f"-{one.lower()}" if one.isupper() else one for one in name).strip("-"): kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.InferenceCoreError)
}
"""This package's errors, by the names that the types of the server's problems end with."""


@dataclass(frozen=True, slots=True)
class RequestSender:
    """Sends requests about the memories of ``user_id``."""

    http: httpx.Client
    pool: WorkerPool
    user_id: str

    async def send(
        self,
        method: str,
        path: str,
        body: Given | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        repeats: bool = False,
        reads: bool = False,
    ) -> Any:
        """The JSON of the answer; None for an answer without a body.

        If the server does not answer or is not available, these requests are sent again: GET, requests that change
        nothing (``reads``), and requests that are safe to send twice (``repeats``). Raises the server's error,
        StoreUnavailable, and WriteUnknown if a change was sent and not answered.
        """
        if self.http.is_closed:
            raise StoreUnavailable("The client is closed")
        is_read = reads or method == "GET"
        sent: dict[str, Any] = {"headers": {**(headers or {}), "Act-As-User": quote(self.user_id, safe="")}}
        if method == "GET":
            asked = {name: value for name, value in (body or {}).items() if value is not None}
            # httpx would send the name of a MemoryType, not its value.
            sent["params"] = {
                name: member.value if isinstance(member, Enum) else member for name, member in asked.items()
            }
        elif body is not None:
            sent["content"] = json.dumps(body, default=_as_json).encode()
            sent["headers"]["Content-Type"] = "application/json"
        try:
            tries = _TRIES if repeats or is_read else 1
            return await self.pool.call(self._answered, method, path, sent, tries, is_read)
        except DeadlineExceeded as error:
            if is_read:
                raise
            raise WriteUnknown(_UNKNOWN) from error

    def _answered(self, method: str, path: str, sent: dict[str, Any], tries: int, is_read: bool) -> Any:
        pause, may_be_done = _FIRST_PAUSE_S, False
        while True:
            tries -= 1
            try:
                answer = self.http.request(method, path, **sent)
            except httpx.TransportError as error:
                problem: errors.InferenceCoreError = StoreUnavailable(f"No answer from the server: {error}")
                never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if not is_read and not never_sent:
                    problem, may_be_done = WriteUnknown(_UNKNOWN), True
            else:
                if answer.is_success:
                    return answer.json() if answer.content else None
                problem = _error(answer)
                if may_be_done and method == "DELETE" and isinstance(problem, MemoryNotFound):
                    return None
                if may_be_done and isinstance(problem, errors.VersionConflict):
                    raise WriteUnknown(_AMBIGUOUS) from problem
                if answer.status_code not in _AGAIN:
                    raise problem
                may_be_done |= answer.status_code != _TOO_MANY  # the server refused that one before it began
                with suppress(ValueError):
                    pause = max(pause, float(answer.headers.get("Retry-After", "0")))
            if not tries:
                raise problem
            time.sleep(min(pause, _LONGEST_PAUSE_S))
            pause *= 2


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    raise InvalidInput(f"{type(value).__name__} cannot be sent as JSON")


def _error(answer: httpx.Response) -> errors.InferenceCoreError:
    """The error that the server's problem stands for."""
    told: dict[str, Any] = {}
    with suppress(ValueError):
        told = answer.json()
    status = answer.status_code
    kind = _ERRORS.get(str(told.get("type", "")).rpartition(":")[2])
    if kind is None:
        kind = errors.IdentityError if status in _REFUSED else StoreUnavailable if status in _AGAIN else None
        kind = kind or (errors.StoreError if status >= _FAILED else InvalidInput)
    faults = "; ".join(f"{error['location']}: {error['message']}" for error in told.get("errors") or ())
    error = kind.__new__(kind)  # some constructors make the message of arguments that the server does not send
    Exception.__init__(error, told.get("detail") or faults or told.get("title") or f"HTTP {status}")
    if isinstance(error, errors.ConfirmationNeeded):
        error.pending_id, error.is_external = told["pending_id"], True
    return error


# The verbs. Each takes the arguments of the service's operation by name, and returns its result.


async def _save(caller: RequestSender, given: Given) -> SavedId:
    body = {name: value for name, value in given.items() if name not in ("memory_id", "expected_version", "source")}
    body |= {"origin": given["source"].origin.value} if given["source"] else {}
    memory_id, version = given["memory_id"], given["expected_version"]
    if memory_id is None:
        if version is not None:
            raise InvalidInput("expected_version is that of the memory with a memory_id; give that too")
        saved = await caller.send("POST", "/v1/memories", body, repeats=True)
    else:

        async def put() -> dict[str, Any]:
            now = version
            if now is None:
                there = await _get(caller, {"memory_id": memory_id})
                now = there.version if there else 0
            guard = {"If-Match": f'"{now}"'} if now else {"If-None-Match": "*"}
            try:
                return await caller.send("PUT", _path(memory_id), body, guard, repeats=True)
            except WriteUnknown as error:
                if version is None and isinstance(error.__cause__, errors.VersionConflict):
                    raise error.__cause__ from None  # the caller named no version: `retried` writes over what is there
                raise

        saved = await (put() if version is not None else retried(put))
    return SavedId(saved["id"], was_stored=saved["was_stored"], redacted=saved["redacted"])


async def _get(caller: RequestSender, given: Given) -> MemoryStoreDocument | None:
    try:
        return _document(await caller.send("GET", _path(given["memory_id"])))
    except MemoryNotFound:
        return None


async def _recall(caller: RequestSender, given: Given) -> RecalledMemories:
    body = {name: value for name, value in given.items() if name != "include_scores"}
    found = await caller.send("POST", "/v1/memories/search", body, reads=True)
    by_meaning = found.get("by_meaning", False)  # older servers do not say
    recalled = RecalledMemories(map(_document, found["memories"]), by_meaning=by_meaning)
    if not given["include_scores"]:
        for memory in recalled:
            memory.score = memory.relevance = None
    recalled.left_out = [(_document(memory["memory"]), memory["reason"]) for memory in found["left_out"]]
    return recalled


async def _update(caller: RequestSender, given: Given) -> bool:
    left_out = ("memory_id", "expected_version", "source")
    body = {name: value for name, value in given.items() if name not in left_out and value is not None}
    body |= {"origin": given["source"].origin.value} if given["source"] else {}
    version = given["expected_version"]
    return await _changed(caller, "PATCH", _path(given["memory_id"]), body, version, repeats=True)


async def _delete(caller: RequestSender, given: Given) -> bool | Erased:
    if given["category"] is not None:
        raise InvalidInput("Over HTTP, an id is enough: leave category out")
    path = _path(given["memory_id"]) + ("?erase=true" if given["erase"] else "")
    try:
        answer = await caller.send("DELETE", path, None, _guard(given["expected_version"]), repeats=True)
    except MemoryNotFound:
        return False
    return Erased(answer["derived"]) if answer else True


def _guard(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


async def _changed(
    caller: RequestSender, method: str, path: str, body: Any, version: int | None = None, *, repeats: bool = False
) -> bool:
    try:
        await caller.send(method, path, body, _guard(version), repeats=repeats)
    except MemoryNotFound:
        return False
    return True


async def _delete_all(caller: RequestSender, given: Given) -> int:
    chosen = "".join(f"&{name}={quote(value)}" for name, value in given.items() if value is not None)
    return (await caller.send("DELETE", f"/v1/memories?everything=true{chosen}"))["count"]


async def _list(caller: RequestSender, given: Given) -> tuple[MemoryPage[MemoryStoreDocument], int]:
    if given["offset"]:
        raise InvalidInput("Over HTTP, pages go on behind a cursor: pass next_cursor as after")
    asked = {name: value for name, value in given.items() if name not in ("offset", "limit", "after", "tags")}
    page, total = await _paged(caller, "/v1/memories", "memories", given, asked | {"tag": list(given["tags"] or ())})
    return MemoryPage(map(_document, page), page.next_cursor), total["total"]


async def _paged(
    caller: RequestSender, path: str, name: str, given: Given, asked: Given
) -> tuple[MemoryPage[dict[str, Any]], dict[str, Any]]:
    """The items under ``name`` up to the limit given, from as many pages as that takes, and the last page's answer."""
    limit, cursor, found, last = given["limit"], given["after"], list[dict[str, Any]](), dict[str, Any]()
    while limit is None or len(found) < limit or not last:
        size = _PAGE if limit is None else max(1, min(_PAGE, limit - len(found)))
        last = await caller.send("GET", path, {**asked, "limit": size, "cursor": cursor})
        found += last[name]
        cursor = last["next_cursor"]
        if cursor is None:
            break
    return MemoryPage(found[:limit], cursor if limit != 0 else None), last


async def _count(caller: RequestSender, given: Given) -> dict[str, int]:
    del given
    counts: dict[str, int] = {}
    for category in MemoryCategory:
        answer = await caller.send("GET", "/v1/memories", {"category": category.value, "limit": 1})
        counts[category.value] = answer["total"]
    return counts | {"total": sum(counts.values())}


async def _history(caller: RequestSender, given: Given) -> list[MemoryStoreDocument]:
    try:
        found = await caller.send("GET", f"{_path(given['memory_id'])}/history")
    except MemoryNotFound:
        return []
    return list(map(_document, found["memories"]))


async def _why(caller: RequestSender, given: Given) -> Why:
    try:
        page, last = await _paged(caller, f"{_path(given['memory_id'])}/why", "receipts", given, {})
    except MemoryNotFound:
        return Why(None, MemoryPage())
    removed = None
    if gone := last["removed"]:
        until = gone["until"] and _moment(gone["until"])
        removed = ForgottenMemory(_document(gone["memory"]), _moment(gone["forgotten_at"]), gone["reason"], until)
    memory = last["memory"] and _document(last["memory"])
    return Why(memory, _receipts(page), removed, list(map(_document, last["earlier"])))


async def _list_receipts(caller: RequestSender, given: Given) -> MemoryPage[Receipt]:
    page, _ = await _paged(caller, "/v1/receipts", "receipts", given, {"thread_id": given["thread_id"]})
    return _receipts(page)


async def _format_context(caller: RequestSender, given: Given) -> str:
    return (await caller.send("POST", "/v1/context", given, reads=True))["context"]


async def _add_messages(caller: RequestSender, given: Given) -> Added:
    sent: list[dict[str, Any]] = []
    skipped, room = Counter[str](), _MAX_MEDIA
    for message, role, is_proven in judged(given["messages"]):
        found = media_in(message) if role else ()
        size = len(json.dumps(found, default=str))
        media, room = (found, room - size) if size <= room else ((), room)
        skipped[OTHER_PARTS] += len(found) - len(media)
        if role and (message.text.strip() or media):
            fields = {
                "role": role.value,
                "content": [*([message.text] if message.text else []), *media] if media else message.text,
                "id": message.id or uuid4().hex,
                "timestamp": said_at(message),
            }
            name = {"name": label(message.name)} if role is Role.USER and message.name else {}
            outside = {} if is_proven or role is Role.TOOL else {"outside": True}
            sent.append({**fields, **name, **outside})
        elif not is_proven:
            sent.append({"role": Role.TOOL.value, "content": ""})  # it only marks the session
        else:
            skipped[EMPTY] += 1
    if not sent:
        return Added(0, +skipped)
    body = {"messages": sent, "session_id": given["session_id"]}
    answer = await caller.send("POST", "/v1/messages", body, repeats=True)
    there: dict[str, int] = answer.get("skipped", {})
    return Added(answer["count"], +(skipped + Counter(there)))


async def _list_pending(caller: RequestSender, given: Given) -> list[PendingMemory]:
    found = await caller.send("GET", "/v1/pending", {"session_id": given["session_id"]})
    return [
        PendingMemory(
            document=_document(one["memory"]),
            proposed_at=_moment(one["proposed_at"]),
            expires_at=_moment(one["expires_at"]),
            why=one["why"],
            ends=tuple(map(_document, one["ends"])),
        )
        for one in found["pending"]
    ]


async def _approve(caller: RequestSender, given: Given) -> list[str]:
    return await _decided(caller, given, "approve", {"edit": given["edit"]})


async def _reject(caller: RequestSender, given: Given) -> list[str]:
    return await _decided(caller, given, "reject", {"why": given["why"]})


async def _decided(caller: RequestSender, given: Given, decision: str, body: Given) -> list[str]:
    if (given["pending_id"] is None) == (given["session_id"] is None) or given["by"] is not None:
        raise InvalidInput("Give either pending_id or session_id; who decides is the key's user")
    ids = [given["pending_id"]]
    if given["session_id"] is not None:
        ids = [pending.id for pending in await _list_pending(caller, given)]
    decided: list[str] = []
    for id_ in ids:
        path = f"/v1/pending/{id_as_segment(id_)}/{decision}"
        decided += [id_] if await _changed(caller, "POST", path, body) else []
    return decided


def _path(memory_id: str) -> str:
    return f"/v1/memories/{id_as_segment(memory_id)}"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _receipts(page: MemoryPage[dict[str, Any]]) -> MemoryPage[Receipt]:
    return MemoryPage(map(Receipt.from_value, page), page.next_cursor)


def _document(memory: Given) -> MemoryStoreDocument:
    """The document that the service would return for a memory in an answer."""
    # The service leaves out None, False and []. ``is``, as a trust of 0 and an importance of 0.0 == False.
    given = {name: memory[name] for name in _VALUE}
    value = {name: one for name, one in given.items() if not (one is None or one is False or one == [])}
    return MemoryStoreDocument(
        id=memory["id"],
        value=value | {"memory_category": memory["category"]},
        metadata=memory["extra_metadata"],
        score=memory["score"],
        created_at=memory["created_at"] and _moment(memory["created_at"]),
        updated_at=memory["updated_at"] and _moment(memory["updated_at"]),
        relevance=memory["relevance"],
        explanation=memory["explanation"],
        links=tuple(MemoryLink(link["entity"], link["memory_id"]) for link in memory["links"]),
        version=memory["version"],
    )


Sends = Callable[[RequestSender, Given], Operation[T]]


class MemoryVerbs(Protocol):
    """The methods that `AgentMemoryStoreService` and `MemoryClient` share; the service documents their parameters.

    Type against it to accept either.
    """

    def save_memory(self, user_id: str, content: str, *args: Any, **options: Any) -> Awaitable[SavedId]: ...
    def get_memory(self, user_id: str, memory_id: str) -> Awaitable[MemoryStoreDocument | None]: ...
    def recall_memories(self, user_id: str, query: str, *args: Any, **options: Any) -> Awaitable[RecalledMemories]: ...
    def update_memory(self, user_id: str, memory_id: str, *args: Any, **options: Any) -> Awaitable[bool]: ...
    def delete_memory(self, user_id: str, memory_id: str, *args: Any, **options: Any) -> Awaitable[bool | Erased]: ...
    def delete_user_memories(self, user_id: str, *args: Any, **options: Any) -> Awaitable[int]: ...
    def list_memories(
        self, user_id: str, *args: Any, **options: Any
    ) -> Awaitable[tuple[MemoryPage[MemoryStoreDocument], int]]: ...
    def count_memories(self, user_id: str) -> Awaitable[dict[str, int]]: ...
    def get_memory_history(self, user_id: str, memory_id: str) -> Awaitable[list[MemoryStoreDocument]]: ...
    def why(self, user_id: str, memory_id: str, *args: Any, **options: Any) -> Awaitable[Why]: ...
    def list_receipts(self, user_id: str, *args: Any, **options: Any) -> Awaitable[MemoryPage[Receipt]]: ...
    def format_context_for_prompt(self, user_id: str, *args: Any, **options: Any) -> Awaitable[str]: ...
    def add_messages(self, user_id: str, messages: Any, *args: Any, **options: Any) -> Awaitable[Added]: ...
    def list_pending(self, user_id: str, *args: Any, **options: Any) -> Awaitable[list[PendingMemory]]: ...
    def approve_pending(self, user_id: str, *args: Any, **options: Any) -> Awaitable[list[str]]: ...
    def reject_pending(self, user_id: str, *args: Any, **options: Any) -> Awaitable[list[str]]: ...


class _Client:
    """What the sync and the async client share."""

    def __init__(self, http: httpx.Client, pool: WorkerPool, timeout: float | None) -> None:
        self.http, self.pool, self.timeout = http, pool, timeout

    def sent(
        self, sends: Sends[T], of: Callable[..., object], args: Sequence[Any], options: Mapping[str, Any]
    ) -> Operation[T]:
        """The operation that ``sends`` makes of a call's arguments, bound to the parameters of the service's ``of``.

        Raises InvalidId, as the service does: as a text, None would be a user that all callers without an id share.
        """
        bound = signature(of).bind(None, *args, **options)
        bound.apply_defaults()
        _, (_, user_id), *given = bound.arguments.items()
        if isinstance(user_id, Space):
            raise InvalidId("Spaces are not available over HTTP")
        encode_label(user_id)
        return sends(RequestSender(self.http, self.pool, str(user_id)), dict(given))


def _verb(of: MemoryOperation[P, T], sends: Sends[T]) -> Faces[Concatenate[_Client, P], T]:
    def sent(client: _Client, /, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        return client.sent(sends, of.body, args, kwargs)

    return faces(sent, of.body)


class SyncMemoryClient(_Client):
    """The methods of `MemoryClient` for code without async; they block."""

    save_memory = _verb(save, _save).sync
    get_memory = _verb(get, _get).sync
    recall_memories = _verb(recall, _recall).sync
    update_memory = _verb(update, _update).sync
    delete_memory = _verb(delete, _delete).sync
    delete_user_memories = _verb(delete_all, _delete_all).sync
    list_memories = _verb(list_memories, _list).sync
    count_memories = _verb(count, _count).sync
    get_memory_history = _verb(history, _history).sync
    why = _verb(why, _why).sync
    list_receipts = _verb(list_receipts, _list_receipts).sync
    format_context_for_prompt = _verb(format_context, _format_context).sync
    add_messages = _verb(add_messages, _add_messages).sync
    list_pending = _verb(list_pending, _list_pending).sync
    approve_pending = _verb(approve_pending, _approve).sync
    reject_pending = _verb(reject_pending, _reject).sync


class MemoryClient(_Client):
    """The memory that ``inference-core serve`` has at ``url``, in place of an `AgentMemoryStoreService`.

    Every method is a coroutine and takes the ``user_id`` first, which must be the key's user unless the key has the
    permission ``act-as``; `sync` has the same methods for sync code. They raise the service's errors; StoreUnavailable
    if the server cannot be reached, and WriteUnknown if it did not answer a change. They first retry what is safe to
    repeat: reads, saves and messages, which are stored once, and changes of one memory by its id.

    Args:
        url: The server's address, such as http://localhost:8765.
        key: A key of the server. None: no key, for a server that serves one user of this machine.
        timeout: Seconds that each operation may take. None: no limit.

    Raises:
        ConfigurationError: ``url`` does not start with http:// or https://.
    """

    save_memory = _verb(save, _save).aio
    get_memory = _verb(get, _get).aio
    recall_memories = _verb(recall, _recall).aio
    update_memory = _verb(update, _update).aio
    delete_memory = _verb(delete, _delete).aio
    delete_user_memories = _verb(delete_all, _delete_all).aio
    list_memories = _verb(list_memories, _list).aio
    count_memories = _verb(count, _count).aio
    get_memory_history = _verb(history, _history).aio
    why = _verb(why, _why).aio
    list_receipts = _verb(list_receipts, _list_receipts).aio
    format_context_for_prompt = _verb(format_context, _format_context).aio
    add_messages = _verb(add_messages, _add_messages).aio
    list_pending = _verb(list_pending, _list_pending).aio
    approve_pending = _verb(approve_pending, _approve).aio
    reject_pending = _verb(reject_pending, _reject).aio

    def __init__(self, url: str, key: str | None = None, *, timeout: float | None = 10.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"The server's address looks like http://localhost:8765, not {url!r}")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout)
        super().__init__(http, WorkerPool(_WORKERS, "memory-client"), timeout)
        self.sync = SyncMemoryClient(http, self.pool, timeout)

    def close(self) -> None:
        """Closes the connections and ends the threads, those of `sync` too."""
        self.pool.close()
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
