"""Who the user is: one answer for middleware and tools, or none, and then memory stays closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast
from uuid import UUID

from langgraph.config import get_config

from inference_core.errors import IdentityError, InvalidInput
from inference_core.memory.namespaces import encode_label


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
