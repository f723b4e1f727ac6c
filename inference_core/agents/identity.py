"""Who the user of a run is and which memory the run uses, decided once for all middleware and tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, Unpack, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langgraph.config import get_config
from langgraph.store.base import BaseStore

from inference_core.clock import time_zone
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import ConfigurationError, IdentityError, InvalidInput, raised_as
from inference_core.memory.namespaces import MemoryNamespaceBuilder, encode_label, is_owner
from inference_core.memory.text import id_text
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService, scope_on
from inference_core.services.operations.scope import MemoryPolicy, MemoryScope, PolicyOptions
from inference_core.stores.factory import check_store, refuse_mock

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

    The first of these that is given counts: the authenticated user of LangGraph Server, ``source``,
    ``context.user_id`` and ``config["configurable"]["user_id"]``. If one of the others contradicts the authenticated
    user, neither counts: the middleware then runs without memory, or raises with ``require_user``, and the tools answer
    that memory is off.

    Args:
        runtime: LangGraph's, of the run.
        source: A user, or a function that takes the runtime and returns one.
        owner: The user of a run that is resumed, or the user's `owner_mark`; "" if the run began without a user. None:
            a new run. Only the user who started a run may resume it, and must be given again.

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
    given = source
    if callable(source):
        with raised_as(lambda error: IdentityError(f"user_id failed: {error}"), but=(IdentityError, InvalidInput)):
            given = source(runtime)
    claimed: list[str] = []
    for claim in (given, field_of(getattr(runtime, "context", None), "user_id"), configurable_of().get("user_id")):
        if isinstance(name := id_text(claim), str):
            claimed.append(name)
        elif claim is not None:
            raise IdentityError(f"user_id must be a string, a UUID or an integer, not {type(claim).__name__}")
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
    """The field ``name`` of a context, which may be a mapping or an object; None if the context lacks it."""
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


class BindingOptions(PolicyOptions, total=False):
    """How to use the agent's store where no service is given."""

    agent_name: str | None
    """Scopes episodic and procedural memories to this agent. By default the name that `create_agent` was given; without
    one, or if it is None here, they are shared."""
    is_trusted: Callable[[BaseMessage], bool | None] | None
    """Judges a message. True: nothing in it is from outside; False: something is; None: decide as usual."""


class MemoryBinding:
    """The memory of ``service``, or of the store that the agent was compiled with, for ``user_id`` or the run's user.

    Raises ConfigurationError if ``service`` is not a memory service, TypeError for unknown options. Its methods raise
    ConfigurationError if there is neither a service nor a store.
    """

    def __init__(
        self, service: MemoryService | None = None, user_id: UserSource = None, **options: Unpack[BindingOptions]
    ) -> None:
        refuse_mock(service)
        if service is not None and not isinstance(service, MemoryService):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            advice = ". A store goes to create_agent(store=…)" if isinstance(service, BaseStore) else ""
            raise ConfigurationError(
                f"memory_service must be an AgentMemoryStoreService, not {type(service).__name__}{advice}"
            )
        if unknown := options.keys() - BindingOptions.__annotations__:
            raise TypeError(f"Unknown arguments: {', '.join(sorted(unknown))}")
        self._scope: MemoryScope | None = None if service is None else service.scope
        self._user = user_id
        self._name_of = partial(options.get, "agent_name") if "agent_name" in options else agent_of
        MemoryNamespaceBuilder(agent_name=options.get("agent_name"))  # refuses a bad name before the first run
        self.is_trusted = options.get("is_trusted")
        given: dict[str, Any] = {**options}
        self._policy = MemoryPolicy.of(**{name: given[name] for name in given.keys() & PolicyOptions.__annotations__})
        self._embedder: Embedder | None = None
        self._scopes: WeakKeyDictionary[BaseStore, dict[str | None, MemoryScope]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def has_spaces(self) -> bool:
        """Whether there are memories that users share."""
        return (self._scope or self._policy).spaces is not None

    @property
    def media_model(self) -> BaseChatModel | str | None:
        """The model with which workers put pictures and recordings into words; None: these are left out."""
        return (self._scope or self._policy).media_model

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
                known[name] = scope = scope_on(store, self._policy, name)
                self._embedder = scope.engine.embedder  # stays loaded for the next store if this one is dropped
            return known[name]
