"""MemoryClient: the memory of ``inference-core serve``, with the verbs, results and errors of the service.

A verb has the parameters of the service's operation, and is an `Operation` itself, whose requests run on threads of the
client. So each is written once for sync and async code, and a client can be shared between threads and event loops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

import httpx

from inference_core.client import requests
from inference_core.effects import Faces, Operation, WorkerPool, faces
from inference_core.errors import ConfigurationError, InvalidId
from inference_core.memory.namespaces import Space, encode_label
from inference_core.memory.receipt import Receipt
from inference_core.memory.record import MemoryPage, MemoryStoreDocument, PendingMemory, RecalledMemories
from inference_core.services.operations.delete import delete, delete_all
from inference_core.services.operations.list import count, get, history, list_memories
from inference_core.services.operations.messages import add_messages
from inference_core.services.operations.operation import MemoryOperation
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.recall import recall
from inference_core.services.operations.receipts import Why, list_receipts, why
from inference_core.services.operations.review import approve_pending, list_pending, reject_pending
from inference_core.services.operations.save import SavedId, save, update

P = ParamSpec("P")
T = TypeVar("T")
Sends = Callable[[requests.RequestSender, requests.Given], Operation[T]]
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


def _verb(of: MemoryOperation[P, T], sends: Sends[T]) -> Faces[Concatenate[_Client, P], T]:
    def sent(client: _Client, /, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        return client.sent(sends, of.body, args, kwargs)

    return faces(sent, of.body)


class SyncMemoryClient(_Client):
    """The methods of `MemoryClient` for code without async; they block."""

    save_memory = _verb(save, requests.save).sync
    get_memory = _verb(get, requests.get).sync
    recall_memories = _verb(recall, requests.recall).sync
    update_memory = _verb(update, requests.update).sync
    delete_memory = _verb(delete, requests.delete).sync
    delete_user_memories = _verb(delete_all, requests.delete_all).sync
    list_memories = _verb(list_memories, requests.list_).sync
    count_memories = _verb(count, requests.count).sync
    get_memory_history = _verb(history, requests.history).sync
    why = _verb(why, requests.why).sync
    list_receipts = _verb(list_receipts, requests.list_receipts).sync
    format_context_for_prompt = _verb(format_context, requests.format_context).sync
    add_messages = _verb(add_messages, requests.add_messages).sync
    list_pending = _verb(list_pending, requests.list_pending).sync
    approve_pending = _verb(approve_pending, requests.approve).sync
    reject_pending = _verb(reject_pending, requests.reject).sync


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

    save_memory = _verb(save, requests.save).aio
    get_memory = _verb(get, requests.get).aio
    recall_memories = _verb(recall, requests.recall).aio
    update_memory = _verb(update, requests.update).aio
    delete_memory = _verb(delete, requests.delete).aio
    delete_user_memories = _verb(delete_all, requests.delete_all).aio
    list_memories = _verb(list_memories, requests.list_).aio
    count_memories = _verb(count, requests.count).aio
    get_memory_history = _verb(history, requests.history).aio
    why = _verb(why, requests.why).aio
    list_receipts = _verb(list_receipts, requests.list_receipts).aio
    format_context_for_prompt = _verb(format_context, requests.format_context).aio
    add_messages = _verb(add_messages, requests.add_messages).aio
    list_pending = _verb(list_pending, requests.list_pending).aio
    approve_pending = _verb(approve_pending, requests.approve).aio
    reject_pending = _verb(reject_pending, requests.reject).aio

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
