"""Who the user of a run is and which memory the run uses, decided once for all middleware and tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any, Final, Protocol, TypedDict, Unpack, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain_core.messages import BaseMessage
from langgraph.config import get_config
from langgraph.store.base import BaseStore

from inference_core.clock import Clock, SystemClock, time_zone
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import ConfigurationError, IdentityError, InvalidInput, raised_as
from inference_core.memory.namespaces import MemoryNamespaceBuilder, encode_label, is_owner
from inference_core.memory.quota import Quota
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.spaces import Spaces
from inference_core.memory.text import MAX_CONTENT_BYTES
from inference_core.memory.types import validate_memory_category
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.operations.scope import DEFAULT_DELETED_DAYS, MemoryScope
from inference_core.stores.factory import check_store, engine_of

CHECKPOINTER: Final = "__pregel_checkpointer"
"""LangGraph's key for the checkpointer in a run's configuration."""


class RunContext(Protocol):
    """What Runtime and ToolRuntime of LangGraph have in common."""

    @property
    def context(self) -> Any:
        """The run's context, of any type."""
        ...

    @property
    def server_info(self) -> Any:
        """The run's data on LangGraph Server, None elsewhere."""
        ...


UserSource = str | UUID | Callable[[Any], str | UUID | None] | None
"""A user, or a function that takes the LangGraph runtime and returns the run's user."""
MemoryService = AgentMemoryStoreService | SyncMemoryService


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """A context schema for `create_agent`: the run's user, and the user's time zone as an IANA name."""

    user_id: str | None = None
    timezone: str | None = None


def resolve_user(runtime: RunContext | None, source: UserSource = None, *, owner: str | None = None) -> str:
    """The user of this run.

    The first of: the authenticated user of LangGraph Server, ``source``, ``context.user_id`` and
    ``config["configurable"]["user_id"]``. If one contradicts the authenticated user, neither is taken: the middleware
    then runs without memory, or raises with ``require_user``, and the tools answer that memory is off.

    Args:
        runtime: LangGraph's, of the run.
        source: A user, or a function that takes the runtime and returns one.
        owner: The user of a run that is resumed, or the user's `owner_mark`; "" if it began without one. None: a new
            run. Only the user who started a run may resume it, and must be named again.

    Raises:
        IdentityError: No user is given; another source contradicts the authenticated user; the user is not the
            ``owner``; or ``source`` failed, which is then the cause.
        InvalidId: The id is not a valid user id.
    """
    server_user = getattr(getattr(runtime, "server_info", None), "user", None)
    authenticated = getattr(server_user, "identity", None)
    if authenticated == "" and getattr(server_user, "is_authenticated", True) is False:
        authenticated = None  # a server without authentication
    elif server_user is not None and (not isinstance(authenticated, str) or not authenticated):
        raise IdentityError("The authenticated user has no identity")
    with raised_as(lambda error: IdentityError(f"user_id failed: {error}"), but=(IdentityError, InvalidInput)):
        given = source(runtime) if callable(source) else source
    claimed: list[str] = []
    for claim in (given, field_of(getattr(runtime, "context", None), "user_id"), configurable_of().get("user_id")):
        if isinstance(claim, str | UUID):
            claimed.append(str(claim) if isinstance(claim, UUID) else claim)
        elif claim is not None:
            raise IdentityError(f"user_id must be a string or a UUID, not {type(claim).__name__}")
    if authenticated is not None and any(claim != authenticated for claim in claimed):
        raise IdentityError("The authenticated user and the requested user_id differ")
    user = authenticated or next(iter(claimed), None)
    if owner is not None and user is not None and not is_owner(owner, user):
        raise IdentityError("This run belongs to another user")
    if not user:
        raise IdentityError(
            f"No user{' resumes this run, which belongs to one' if owner else ''}: "
            "pass context={'user_id': …} or configurable={'user_id': …}, or give the middleware user_id"
        )
    encode_label(user)
    return user


def field_of(holder: Any, name: str) -> Any:
    """A field of a context that may be a mapping or an object; None if it has none."""
    return cast("Mapping[str, Any]", holder).get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def current_config() -> Mapping[str, Any]:
    """The configuration of the current LangGraph run; empty outside of one."""
    try:
        return get_config()
    except RuntimeError:
        return {}


def configurable_of(config: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The ``configurable`` part of ``config``, by default of the current run's."""
    return (config or current_config()).get("configurable") or {}


def thread_of(config: Mapping[str, Any] | None = None) -> str | None:
    """The thread id in ``config``, by default in the current run's."""
    thread = configurable_of(config).get("thread_id")
    return None if thread is None else str(thread)


def is_subagent(config: Mapping[str, Any] | None = None) -> bool:
    """Whether a tool of another agent started the run of ``config``, by default the current one."""
    *outer, _ = str(configurable_of(config).get("checkpoint_ns") or "").split("|")
    return any(node.startswith("tools:") for node in outer)


def forgets_state(config: Mapping[str, Any] | None = None) -> bool:
    """Whether the agent of ``config`` is a node of a graph that keeps the messages, but none of its private state.

    Such a node has a new state in each run, unless it was compiled with ``checkpointer=True``.
    """
    *outer, _ = str(configurable_of(config).get("checkpoint_ns") or "").split("|")
    return any(":" in node for node in outer) and configurable_of(config).get(CHECKPOINTER, True) is not None


def agent_of(config: Mapping[str, Any] | None = None) -> str | None:
    """The name that `create_agent` was given for the agent of ``config``, by default the current one; None: none."""
    metadata: Mapping[str, Any] = (config or current_config()).get("metadata") or {}
    name = metadata.get("lc_agent_name")
    return name if isinstance(name, str) and name else None


def thread_label(user_id: str | None, thread_id: str | UUID) -> str:
    """The thread id that LangGraph sees, unique for each pair of user and thread. Raises InvalidId."""
    # Encoded labels contain no colon, so the separator is unambiguous.
    user = "" if user_id is None else encode_label(user_id)
    return user + ":" + encode_label(thread_id, what="thread_id")


class BindingOptions(TypedDict, total=False):
    """How to use the agent's store where no service is given."""

    agent_name: str | None
    """Scopes episodic and procedural memories to this agent. By default the name that `create_agent` was given; without
    one, or if it is None here, they are shared."""
    agent_scope_enabled: bool
    """False: read and write shared memories only."""
    embeddings: EmbeddingsSpec
    """The embedding model, for a store that `open_store` did not make."""
    secrets: Policy | Guard
    """What happens to credentials, for the same stores: "redact" (the default), "reject", "off" or a `Guard`."""
    quota: Quota
    """The limits of each user, for the same stores."""
    audit: bool
    """Whether changes of memories leave audit events, for the same stores; True by default."""
    timezone: str | tzinfo
    """Decides to which day a memory belongs, unless the run's context names a zone; UTC by default."""
    max_content_bytes: int
    """The maximum size of a memory's content in bytes of UTF-8; longer ones are refused. 8,192 by default."""
    counts_access: bool
    """Whether to count recalls; True by default."""
    deleted_days: float
    """How many days memories that the tools deleted can be restored; 7 by default."""
    is_trusted: Callable[[BaseMessage], bool | None] | None
    """Judges the messages of a run: True, nothing in it is from outside; False, something is; None, decide as usual."""
    confirm: Collection[str]
    """Names of categories; what the model writes into them waits for the user's confirmation. Empty by default."""
    spaces: Spaces | None
    """Adds the memories of spaces in which the user has a role; None, the default: shared memories are not read."""
    clock: Clock | None


class MemoryBinding:
    """The memory of ``service``, or of the store that the agent was compiled with, for ``user_id`` or the run's user.

    Raises ConfigurationError if ``service`` is not a memory service, or when used if there is neither service nor
    store; TypeError for unknown options.
    """

    def __init__(
        self, service: MemoryService | None = None, user_id: UserSource = None, **options: Unpack[BindingOptions]
    ) -> None:
        if service is not None and not isinstance(service, MemoryService):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise ConfigurationError(f"memory_service must be an AgentMemoryStoreService, not {type(service).__name__}")
        if unknown := options.keys() - BindingOptions.__annotations__:
            raise TypeError(f"Unknown arguments: {', '.join(sorted(unknown))}")
        self._scope: MemoryScope | None = None if service is None else service.scope
        self._user = user_id
        zone = options.get("timezone", UTC)
        self._embeddings, self._guard = options.get("embeddings"), Guard.of(options.get("secrets"))
        self._quota = options.get("quota")
        self._audit = options.get("audit", True)
        self._parts: dict[str, Any] = {
            "clock": options.get("clock") or SystemClock(),
            "zone": time_zone(zone) if isinstance(zone, str) else zone,
            "max_content_bytes": options.get("max_content_bytes", MAX_CONTENT_BYTES),
            "counts_access": options.get("counts_access", True),
            "deleted_days": options.get("deleted_days", DEFAULT_DELETED_DAYS),
            "confirm": frozenset(map(validate_memory_category, options.get("confirm", ()))),
        }
        self.is_trusted = options.get("is_trusted")
        self._spaces = options.get("spaces") if service is None else service.scope.spaces
        self._is_scoped = options.get("agent_scope_enabled", True)
        self._name_of = (lambda: options["agent_name"]) if "agent_name" in options else agent_of
        MemoryNamespaceBuilder(agent_name=options.get("agent_name"))  # refuses a bad name before the first run
        self._embedder: Embedder | None = None
        self._scopes: WeakKeyDictionary[BaseStore, dict[str | None, MemoryScope]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def has_spaces(self) -> bool:
        """Whether there are memories that users share."""
        return self._spaces is not None

    def user(self, runtime: RunContext | None, owner: str | None = None) -> str:
        """The user of the run. Raises IdentityError, InvalidId."""
        return resolve_user(runtime, self._user, owner=owner)

    def scope_of(self, runtime: object) -> MemoryScope:
        """The `scope` of a run, in the time zone that its context names, if any. Raises ConfigurationError.

        ``runtime`` is LangGraph's Runtime or ToolRuntime; None for a tool that the application's own code calls.
        """
        scope = self.scope(getattr(runtime, "store", None))
        name = field_of(getattr(runtime, "context", None), "timezone")
        if isinstance(name, str) and name:
            with suppress(ConfigurationError):  # not the name of a time zone: keep the default
                return replace(scope, zone=time_zone(name))
        return scope

    def scope(self, store: BaseStore | None) -> MemoryScope:
        """The agent's view of its memory; made once for each store object and agent. Raises ConfigurationError."""
        if self._scope is not None:
            return self._scope
        if store is None:
            raise ConfigurationError(
                "There is no memory to use: pass store=open_store('sqlite:///memory.db') to create_agent, "
                "or a service to MemoryMiddleware"
            )
        check_store(store)  # create_agent takes anything
        name = self._name_of()
        with self._lock:
            known = self._scopes.setdefault(store, {})
            if name not in known:
                engine = engine_of(store, self._embeddings, self._guard, self._quota, audit=self._audit)
                self._embedder = engine.embedder  # keeps the model loaded for the next store if this one is dropped
                namespaces = MemoryNamespaceBuilder(agent_name=name, agent_scope_enabled=self._is_scoped)
                known[name] = MemoryScope(engine=engine, namespaces=namespaces, spaces=self._spaces, **self._parts)
            return known[name]
