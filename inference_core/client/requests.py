"""The requests and results of each verb of `MemoryClient`. Each is an operation, see `inference_core.effects`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx

from inference_core import errors
from inference_core.effects import WorkerPool
from inference_core.errors import DeadlineExceeded, InvalidInput, MemoryNotFound, StoreUnavailable, WriteUnknown
from inference_core.memory.receipt import Receipt
from inference_core.memory.record import MemoryLink, MemoryPage, MemoryStoreDocument, PendingMemory, RecalledMemories
from inference_core.memory.text import id_as_segment
from inference_core.memory.types import MemoryCategory
from inference_core.outbox.messages import Role, label
from inference_core.services.operations.delete import ForgottenMemory
from inference_core.services.operations.messages import judged, said_at
from inference_core.services.operations.receipts import Why
from inference_core.services.operations.save import SavedId
from inference_core.services.operations.scope import retried

Given = Mapping[str, Any]
_PAGE: Final = 200
_TRIES: Final = 3
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
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

        GET, requests of another method that ``reads`` says change nothing, and those that ``repeats`` marks as safe to
        send twice are retried if the server did not answer or is not available. Raises the server's error,
        StoreUnavailable, and WriteUnknown if a change was sent and not answered.
        """
        if self.http.is_closed:
            raise StoreUnavailable("The client is closed")
        is_read = reads or method == "GET"
        sent: dict[str, Any] = {"headers": {**(headers or {}), "Act-As-User": quote(self.user_id, safe="")}}
        if method == "GET":
            asked = {name: value for name, value in (body or {}).items() if value is not None}
            # httpx would send the name of a MemoryType, not its value.
            sent["params"] = {name: one.value if isinstance(one, Enum) else one for name, one in asked.items()}
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
    faults = "; ".join(f"{one['location']}: {one['message']}" for one in told.get("errors") or ())
    error = kind.__new__(kind)  # some constructors make the message of arguments that the server does not send
    Exception.__init__(error, told.get("detail") or faults or told.get("title") or f"HTTP {status}")
    if isinstance(error, errors.ConfirmationNeeded):
        error.pending_id, error.is_external = told["pending_id"], True
    return error


# The verbs. Each takes the arguments of the service's operation by name, and returns its result.


async def save(caller: RequestSender, given: Given) -> SavedId:
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
                there = await get(caller, {"memory_id": memory_id})
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


async def get(caller: RequestSender, given: Given) -> MemoryStoreDocument | None:
    try:
        return _document(await caller.send("GET", _path(given["memory_id"])))
    except MemoryNotFound:
        return None


async def recall(caller: RequestSender, given: Given) -> RecalledMemories:
    body = {name: value for name, value in given.items() if name != "include_scores"}
    found = await caller.send("POST", "/v1/memories/search", body, reads=True)
    by_meaning = found.get("by_meaning", False)  # older servers do not say
    recalled = RecalledMemories(map(_document, found["memories"]), by_meaning=by_meaning)
    if not given["include_scores"]:
        for one in recalled:
            one.score = one.relevance = None
    recalled.left_out = [(_document(one["memory"]), one["reason"]) for one in found["left_out"]]
    return recalled


async def update(caller: RequestSender, given: Given) -> bool:
    left_out = ("memory_id", "expected_version", "source")
    body = {name: value for name, value in given.items() if name not in left_out and value is not None}
    body |= {"origin": given["source"].origin.value} if given["source"] else {}
    version = given["expected_version"]
    return await _changed(caller, "PATCH", _path(given["memory_id"]), body, version, repeats=True)


async def delete(caller: RequestSender, given: Given) -> bool:
    if given["category"] is not None:
        raise InvalidInput("Over HTTP, an id is enough: leave category out")
    path = _path(given["memory_id"]) + ("?erase=true" if given["erase"] else "")
    return await _changed(caller, "DELETE", path, None, given["expected_version"], repeats=True)


async def _changed(
    caller: RequestSender, method: str, path: str, body: Any, version: int | None = None, *, repeats: bool = False
) -> bool:
    guard = {} if version is None else {"If-Match": f'"{version}"'}
    try:
        await caller.send(method, path, body, guard, repeats=repeats)
    except MemoryNotFound:
        return False
    return True


async def delete_all(caller: RequestSender, given: Given) -> int:
    chosen = "".join(f"&{name}={quote(value)}" for name, value in given.items() if value is not None)
    return (await caller.send("DELETE", f"/v1/memories?everything=true{chosen}"))["count"]


async def list_(caller: RequestSender, given: Given) -> tuple[MemoryPage[MemoryStoreDocument], int]:
    if given["offset"]:
        raise InvalidInput("Over HTTP, pages go on behind a cursor: pass next_cursor as after")
    asked = {name: value for name, value in given.items() if name not in ("offset", "limit", "after", "tags")}
    page, total = await _paged(caller, "/v1/memories", "memories", given, asked | {"tag": list(given["tags"])})
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


async def count(caller: RequestSender, given: Given) -> dict[str, int]:
    del given
    counts: dict[str, int] = {}
    for category in MemoryCategory:
        answer = await caller.send("GET", "/v1/memories", {"category": category.value, "limit": 1})
        counts[category.value] = answer["total"]
    return counts | {"total": sum(counts.values())}


async def history(caller: RequestSender, given: Given) -> list[MemoryStoreDocument]:
    try:
        found = await caller.send("GET", f"{_path(given['memory_id'])}/history")
    except MemoryNotFound:
        return []
    return list(map(_document, found["memories"]))


async def why(caller: RequestSender, given: Given) -> Why:
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


async def list_receipts(caller: RequestSender, given: Given) -> MemoryPage[Receipt]:
    page, _ = await _paged(caller, "/v1/receipts", "receipts", given, {"thread_id": given["thread_id"]})
    return _receipts(page)


async def format_context(caller: RequestSender, given: Given) -> str:
    return (await caller.send("POST", "/v1/context", given, reads=True))["context"]


async def add_messages(caller: RequestSender, given: Given) -> int:
    sent: list[dict[str, Any]] = []
    for one, role, is_proven in judged(given["messages"]):
        if role and one.text.strip():
            fields = {"role": role.value, "content": one.text, "id": one.id or uuid4().hex, "timestamp": said_at(one)}
            name = {"name": label(one.name)} if role is Role.USER and one.name else {}
            outside = {} if is_proven or role is Role.TOOL else {"outside": True}
            sent.append({**fields, **name, **outside})
        elif not is_proven:
            sent.append({"role": Role.TOOL.value, "content": ""})  # it only marks the session
    if not sent:
        return 0
    body = {"messages": sent, "session_id": given["session_id"]}
    return (await caller.send("POST", "/v1/messages", body, repeats=True))["count"]


async def list_pending(caller: RequestSender, given: Given) -> list[PendingMemory]:
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


async def approve(caller: RequestSender, given: Given) -> list[str]:
    return await _decided(caller, given, "approve", {"edit": given["edit"]})


async def reject(caller: RequestSender, given: Given) -> list[str]:
    return await _decided(caller, given, "reject", {"why": given["why"]})


async def _decided(caller: RequestSender, given: Given, decision: str, body: Given) -> list[str]:
    if (given["pending_id"] is None) == (given["session_id"] is None) or given["by"] is not None:
        raise InvalidInput("Give either pending_id or session_id; who decides is the key's user")
    ids = [given["pending_id"]]
    if given["session_id"] is not None:
        ids = [one.id for one in await list_pending(caller, given)]
    decided: list[str] = []
    for one in ids:
        path = f"/v1/pending/{id_as_segment(one)}/{decision}"
        decided += [one] if await _changed(caller, "POST", path, body) else []
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
        links=tuple(MemoryLink(one["entity"], one["memory_id"]) for one in memory["links"]),
        version=memory["version"],
    )
