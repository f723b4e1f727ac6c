"""Who the user is: one answer for middleware and tools, or none, and then memory stays closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any, Protocol, TypedDict, Unpack, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from langgraph.config import get_config
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from inference_core.clock import Clock, SystemClock, time_zone
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import ConfigurationError, IdentityError, InvalidInput
from inference_core.memory.namespaces import MemoryNamespaceBuilder, encode_label
from inference_core.memory.text import MAX_CONTENT_BYTES
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.factory import engine_of


class RunContext(Protocol):
    """What LangGraph's Runtime and ToolRuntime have in common."""

    @property
    def context(self) -> Any:
        """The run's context, in whatever form the application chose."""
        ...

    @property
    def server_info(self) -> Any:
        """What LangGraph Server knows of the run, None elsewhere."""
        ...


UserSource = str | UUID | Callable[[Any], str | UUID | None] | None
"""A fixed user, or a function of the LangGraph runtime that gives the user of the run."""


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """Context schema for `create_agent`: whose memory a run uses, and the user's time zone (IANA name)."""

    user_id: str | None = None
    timezone: str | None = None


def resolve_user(runtime: RunContext | None, source: UserSource = None, *, owner: str | None = None) -> str:
    """The user of this run.

    ``owner`` is the user as whom a run began that is resumed now, "" if it began without one; None for a new run.
    In this order: the user whom LangGraph Server authenticated; ``source``; ``context.user_id``; the run's
    ``config["configurable"]["user_id"]``; and, for a run that is resumed without any of these, its ``owner``.
    Raises IdentityError if there is none, if an authenticated user and another source differ, if the user is not the
    ``owner`` of the run, or if ``source`` fails, which is the cause then; InvalidId if the id cannot name a user.
    """
    authenticated = _authenticated(runtime)
    claimed = list(_claims(runtime, source))
    if authenticated is not None and any(claim != authenticated for claim in claimed):
        raise IdentityError("The authenticated user and the requested user_id differ")
    user = authenticated or next(iter(claimed), None)
    if owner is not None and user not in (None, owner):
        raise IdentityError("This run belongs to another user")
    if not (user := user or owner):
        raise IdentityError(
            "No user: pass context={'user_id': …} or configurable={'user_id': …}, or give the middleware user_id"
        )
    encode_label(user)
    return user


def field_of(holder: Any, name: str) -> Any:
    """A field of a context that may be a mapping or an object; None if it has none."""
    return cast("Mapping[str, Any]", holder).get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def current_config() -> Mapping[str, Any]:
    """The configuration of the LangGraph run that this code is part of; empty outside of one."""
    try:
        return get_config()
    except RuntimeError:
        return {}


def configurable_of(config: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """What ``config``, by default that of the run that this code is part of, says under ``configurable``."""
    return (config or current_config()).get("configurable") or {}


def thread_of(config: Mapping[str, Any] | None = None) -> str | None:
    """The thread that ``config`` names, by default that of the run that this code is part of."""
    thread = configurable_of(config).get("thread_id")
    return None if thread is None else str(thread)


def _authenticated(runtime: RunContext | None) -> str | None:
    user = getattr(getattr(runtime, "server_info", None), "user", None)
    if user is None:
        return None
    identity = getattr(user, "identity", None)
    if identity == "" and getattr(user, "is_authenticated", True) is False:
        return None  # a server without authentication
    if not isinstance(identity, str) or not identity:
        raise IdentityError("The authenticated user has no identity")
    return identity


def _claims(runtime: RunContext | None, source: UserSource) -> Iterator[str]:
    """Who the user is said to be, by those who are not authenticated."""
    try:
        given = source(runtime) if callable(source) else source
    except (IdentityError, InvalidInput):
        raise
    except Exception as error:
        raise IdentityError(f"user_id failed: {error}") from error
    for claim in (given, field_of(getattr(runtime, "context", None), "user_id"), configurable_of().get("user_id")):
        if isinstance(claim, str | UUID):
            yield str(claim) if isinstance(claim, UUID) else claim
        elif claim is not None:
            raise IdentityError(f"user_id must be a string or a UUID, not {type(claim).__name__}")


# MemoryBinding: which memory an agent uses, and as whom. Shared by the middleware and its tools.


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
