"""MemoryLifecycle: what becomes of a user's memories with time, for applications."""

from __future__ import annotations

from inference_core.lifecycle.forgetting import forget
from inference_core.lifecycle.restoring import forgotten, restore
from inference_core.lifecycle.usage import usage
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.faces import Face, asynchronous, synchronous


class SyncMemoryLifecycle(Face):
    """The lifecycle without async: the same methods, which block."""

    forget = synchronous(forget)
    restore = synchronous(restore)
    forgotten = synchronous(forgotten)
    usage = synchronous(usage)


class MemoryLifecycle(Face):
    """Forgets and restores memories in the store of ``service``, and says which are used.

    ``forget``, ``restore`` and ``forgotten`` are about all of a user's memories, whichever agent they belong to;
    ``usage`` about those that the service's agent reads. ``timeout`` bounds each of them, in seconds; None: never.
    Methods raise InvalidInput, StoreUnavailable and its kinds.
    """

    forget = asynchronous(forget)
    restore = asynchronous(restore)
    forgotten = asynchronous(forgotten)
    usage = asynchronous(usage)

    def __init__(self, service: AgentMemoryStoreService, *, timeout: float | None = None) -> None:
        super().__init__(service.scope, timeout)
        self.sync = SyncMemoryLifecycle(service.scope, timeout)
