"""MemoryBinding: which memory an agent uses, and as whom. Shared by the middleware and its tools."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any, TypedDict
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
    """How memory is used on stores for which no service was given; the defaults are those of `MemoryBinding`.

    ``agent_name`` and ``agent_scope_enabled`` say which memories are the agent's own, ``embeddings`` how a store is
    ranked that is not ours, ``timezone`` (an IANA name or tzinfo) what days are, if the run's context names no zone.
    ``counts_access``: what is recalled is counted.
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

    The other arguments are `BindingOptions`. Raises ConfigurationError if ``service`` is not a memory service, or at
    use if there is neither service nor store.
    """

    def __init__(
        self,
        service: Any = None,
        user_id: UserSource = None,
        *,
        agent_name: str | None = None,
        agent_scope_enabled: bool = True,
        embeddings: EmbeddingsSpec = None,
        timezone: str | tzinfo = UTC,
        max_content_bytes: int = MAX_CONTENT_BYTES,
        counts_access: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if service is not None and not isinstance(service, AgentMemoryStoreService | SyncMemoryService):
            raise ConfigurationError(f"memory_service must be an AgentMemoryStoreService, not {type(service).__name__}")
        self._scope: MemoryScope | None = None if service is None else service.scope
        self._user = user_id
        self._namespaces = MemoryNamespaceBuilder(agent_name=agent_name, agent_scope_enabled=agent_scope_enabled)
        self._embeddings = embeddings
        self._zone = time_zone(timezone) if isinstance(timezone, str) else timezone
        self._max_content_bytes = max_content_bytes
        self._counts_access = counts_access
        self._clock = clock or SystemClock()
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
                self._scopes[store] = MemoryScope(
                    engine=engine,
                    namespaces=self._namespaces,
                    clock=self._clock,
                    zone=self._zone,
                    max_content_bytes=self._max_content_bytes,
                    counts_access=self._counts_access,
                )
            return self._scopes[store]
