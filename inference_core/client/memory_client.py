"""MemoryClient: the memory of ``inference-core serve``, with the verbs, results and errors of the service.

A verb has the parameters of the service's operation, and is an `Operation` itself, whose requests run on threads of the
client. So each is written once for sync and async code, and a client can be shared between threads and event loops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

import httpx

from inference_core.client import requests
from inference_core.effects import Operation, WorkerPool, arun, run
from inference_core.errors import ConfigurationError, InvalidId
from inference_core.memory.namespaces import Space, encode_label
from inference_core.memory.receipt import Receipt
from inference_core.memory.record import MemoryPage, MemoryStoreDocument, PendingMemory, RecalledMemories
from inference_core.services.operations.delete import delete, delete_all
from inference_core.services.operations.list import count, get, history, list_memories
from inference_core.services.operations.messages import add_messages
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.recall import recall
from inference_core.services.operations.receipts import Why, list_receipts, why
from inference_core.services.operations.review import approve_pending, list_pending, reject_pending
from inference_core.services.operations.save import SavedId, save, update
from inference_core.services.operations.scope import MemoryScope, present_as

P = ParamSpec("P")
T = TypeVar("T")
Sends = Callable[[requests.RequestSender, requests.Given], Operation[T]]
_SELF: Final = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
_WORKERS: Final = 16


class MemoryVerbs(Protocol):
    """The methods that `AgentMemoryStoreService` and `MemoryClient` share; the service documents their parameters.

    Type against it to accept either.
    """

    def save_memory(self, user_id: str, content: str, *args: Any, **options: Any) -> Awaitable[SavedId]: ...
    def get_memory(self, user_id: str, memory_id: str) -> Awaitable[MemoryStoreDocument | None]: ...
    def recall_memories(self, user_id: str, query: str, *args: Any, **options: Any) -> Awaitable[RecalledMemories]: ...
    def update_memory(self, user_id: str, memory_id: str, *args: Any, **options: Any) -> Awaitable[bool]: ...
    def delete_memory(self, user_id: str, memory_id: str, *args: Any, **options: Any) -> Awaitable[bool]: ...
    def delete_user_memories(self, user_id: str, *args: Any, **options: Any) -> Awaitable[int]: ...
    def list_memories(
        self, user_id: str, *args: Any, **options: Any
    ) -> Awaitable[tuple[MemoryPage[MemoryStoreDocument], int]]: ...
    def count_memories(self, user_id: str) -> Awaitable[dict[str, int]]: ...
    def get_memory_history(self, user_id: str, memory_id: str) -> Awaitable[list[MemoryStoreDocument]]: ...
    def why(self, user_id: str, memory_id: str, *args: Any, **options: Any) -> Awaitable[Why]: ...
    def list_receipts(self, user_id: str, *args: Any, **options: Any) -> Awaitable[MemoryPage[Receipt]]: ...
    def format_context_for_prompt(self, user_id: str, *args: Any, **options: Any) -> Awaitable[str]: ...
    def add_messages(self, user_id: str, messages: Any, *args: Any, **options: Any) -> Awaitable[int]: ...
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
        return sends(requests.RequestSender(self.http, self.pool, str(user_id)), dict(given))


def _synchronous(
    of: Callable[Concatenate[MemoryScope, P], Operation[T]], sends: Sends[T]
) -> Callable[Concatenate[_Client, P], T]:
    def method(self: _Client, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self.sent(sends, of, args, kwargs), self.timeout)

    present_as(method, of, _SELF)
    return method


def _asynchronous(
    of: Callable[Concatenate[MemoryScope, P], Operation[T]], sends: Sends[T]
) -> Callable[Concatenate[_Client, P], Coroutine[Any, Any, T]]:
    async def method(self: _Client, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(self.sent(sends, of, args, kwargs), self.timeout)

    present_as(method, of, _SELF)
    return method


class SyncMemoryClient(_Client):
    """The methods of `MemoryClient` for code without async; they block."""

    save_memory = _synchronous(save, requests.save)
    get_memory = _synchronous(get, requests.get)
    recall_memories = _synchronous(recall, requests.recall)
    update_memory = _synchronous(update, requests.update)
    delete_memory = _synchronous(delete, requests.delete)
    delete_user_memories = _synchronous(delete_all, requests.delete_all)
    list_memories = _synchronous(list_memories, requests.list_)
    count_memories = _synchronous(count, requests.count)
    get_memory_history = _synchronous(history, requests.history)
    why = _synchronous(why, requests.why)
    list_receipts = _synchronous(list_receipts, requests.list_receipts)
    format_context_for_prompt = _synchronous(format_context, requests.format_context)
    add_messages = _synchronous(add_messages, requests.add_messages)
    list_pending = _synchronous(list_pending, requests.list_pending)
    approve_pending = _synchronous(approve_pending, requests.approve)
    reject_pending = _synchronous(reject_pending, requests.reject)


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

    save_memory = _asynchronous(save, requests.save)
    get_memory = _asynchronous(get, requests.get)
    recall_memories = _asynchronous(recall, requests.recall)
    update_memory = _asynchronous(update, requests.update)
    delete_memory = _asynchronous(delete, requests.delete)
    delete_user_memories = _asynchronous(delete_all, requests.delete_all)
    list_memories = _asynchronous(list_memories, requests.list_)
    count_memories = _asynchronous(count, requests.count)
    get_memory_history = _asynchronous(history, requests.history)
    why = _asynchronous(why, requests.why)
    list_receipts = _asynchronous(list_receipts, requests.list_receipts)
    format_context_for_prompt = _asynchronous(format_context, requests.format_context)
    add_messages = _asynchronous(add_messages, requests.add_messages)
    list_pending = _asynchronous(list_pending, requests.list_pending)
    approve_pending = _asynchronous(approve_pending, requests.approve)
    reject_pending = _asynchronous(reject_pending, requests.reject)

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
