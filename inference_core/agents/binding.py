"""MemoryBinding: which memory an agent uses, and as whom. Shared by the middleware and its tools."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any, TypedDict, Unpack
from weakref import WeakKeyDictionary

from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from inference_core.agents.identity import RunContext, UserSource, field_of, resolve_user
from inference_core.clock import Clock, SystemClock, time_zone
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import ConfigurationError
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.memory.text import MAX_CONTENT_BYTES
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.factory import engine_of


class BindingOptions(TypedDict, total=False):
    """How memory is used on stores for which no service was given.

    ``agent_name`` (None) and ``agent_scope_enabled`` (True) say which memories are the agent's own, ``embeddings``
    (None) how a store is ranked that is not ours, ``timezone`` (an IANA name or tzinfo; UTC) what days are, if the
    run's context names no zone. ``counts_access`` (True): what is recalled is counted.
    """

    agent_name: str | None
    agent_scope_enabled: bool
    embeddings: EmbeddingsSpec
    timezone: str | tzinfo
    max_content_bytes: int
    counts_access: bool
    clock: Clock | None


class MemoryBinding:
    """The memory of ``service``, or of whatever store the agent was compiled with; as ``user_id`` or the run's user.

    Raises ConfigurationError if ``service`` is not a memory service, or at use if there is neither service nor store,
    TypeError for unknown options.
    """

    def __init__(self, service: Any = None, user_id: UserSource = None, **options: Unpack[BindingOptions]) -> None:
        if service is not None and not isinstance(service, AgentMemoryStoreService | SyncMemoryService):
            raise ConfigurationError(f"memory_service must be an AgentMemoryStoreService, not {type(service).__name__}")
        if unknown := options.keys() - BindingOptions.__annotations__:
            raise TypeError(f"Unknown arguments: {', '.join(sorted(unknown))}")
        self._scope: MemoryScope | None = None if service is None else service.scope
        self._user = user_id
        zone = options.get("timezone", UTC)
        self._embeddings = options.get("embeddings")
        self._parts: dict[str, Any] = {
            "namespaces": MemoryNamespaceBuilder(
                agent_name=options.get("agent_name"), agent_scope_enabled=options.get("agent_scope_enabled", True)
            ),
            "clock": options.get("clock") or SystemClock(),
            "zone": time_zone(zone) if isinstance(zone, str) else zone,
            "max_content_bytes": options.get("max_content_bytes", MAX_CONTENT_BYTES),
            "counts_access": options.get("counts_access", True),
        }
        self._embedder: Embedder | None = None
        self._scopes: WeakKeyDictionary[BaseStore, MemoryScope] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def user(self, runtime: RunContext | None, owner: str | None = None) -> str:
        """The user of the run. Raises IdentityError, InvalidId."""
        return resolve_user(runtime, self._user, owner=owner)

    def scope_of(self, runtime: Runtime[Any]) -> MemoryScope:
        """The `scope` of a run, in the time zone that its context names, if any. Raises ConfigurationError."""
        scope = self.scope(runtime.store)
        name = field_of(runtime.context, "timezone")
        if isinstance(name, str) and name:
            with suppress(ConfigurationError):  # it is not the name of a time zone
                return replace(scope, zone=time_zone(name))
        return scope

    def scope(self, store: BaseStore | None) -> MemoryScope:
        """The agent's view of its memory; made once for each store object and forgotten with it."""
        if self._scope is not None:
            return self._scope
        if store is None:
            raise ConfigurationError(
                "There is no memory to use: pass store=open_store('sqlite:///memory.db') to create_agent, "
                "or a service to MemoryMiddleware"
            )
        with self._lock:
            if store not in self._scopes:
                engine = engine_of(store, self._embeddings)
                self._embedder = engine.embedder  # stays loaded for the next store, also if this one goes
                self._scopes[store] = MemoryScope(engine=engine, **self._parts)
            return self._scopes[store]
