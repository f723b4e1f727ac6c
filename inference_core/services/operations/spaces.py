"""Spaces: memories that several users share, and who may do what in each.

A role is a row of the user or the group that has it, in the memories' own store. Groups come from the application, by
the user's id alone: never from a run's context or a tool's argument, which a model can write. Whoever has no role
learns nothing, not even whether a space exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import BoundArguments, signature
from itertools import chain
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from inference_core.effects import Operation, in_thread
from inference_core.errors import InvalidId, InvalidInput, SpaceNotFound, UntrustedWrite
from inference_core.memory.audit import Actor, Cause
from inference_core.memory.namespaces import GRANTS, Namespace, Space, decode_label, encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.secrets import quoted
from inference_core.memory.spaces import SpaceRole, home_of, pseudonym
from inference_core.memory.text import canonical_id, encode_json
from inference_core.memory.trust import MemorySource, Origin, Trust, guides
from inference_core.memory.types import MEMORY_CATEGORIES, MemoryCategory, validate_memory_type
from inference_core.services.operations.delete import archive_keys
from inference_core.services.operations.scope import MemoryScope, UserId, find, record_of
from inference_core.stores.backend import Check, Put, Remove, Row
from inference_core.telemetry import observed

P = ParamSpec("P")
T = TypeVar("T")

NEEDED: Final[Mapping[str, SpaceRole]] = {
    **dict.fromkeys(
        (
            "get",
            "recall",
            "recall_by_category",
            "list_memories",
            "count",
            "history",
            "user_context",
            "user_context_with_timestamps",
            "format_context",
        ),
        SpaceRole.READ,
    ),
    "save": SpaceRole.PROPOSE,
    **dict.fromkeys(("update", "delete"), SpaceRole.WRITE),
}
"""The role that each operation of the service needs in a space; those that are not named need ADMIN."""
_NOTHING: Final = "no memory"
"""The key of a row that is never there: no id of a memory has white space."""
_NO_VERSION: Final = 2**62
"""A version that no memory has."""
_OF_REVIEWERS: Final = frozenset({"approve_pending", "reject_pending"})
_OF_USERS: Final = frozenset({"add_messages", "add_messages_once", "add_completion"})


async def roles_of(scope: MemoryScope, user_id: UserId) -> dict[str, SpaceRole]:
    """The spaces that the user may read, by name, with the user's role in each; empty if spaces are off."""
    if scope.spaces is None or isinstance(user_id, Space):
        return {}
    user, now = str(user_id), scope.clock.now()
    known = scope.spaces.known(scope.engine, user, now)
    if known is not None:
        return known
    roles: dict[str, SpaceRole] = {}
    find = partial(scope.spaces.homes, await scope.engine.content_key(), user)
    homes: list[Namespace] = find() if scope.spaces.groups_of is None else await in_thread(find)
    rows = await scope.engine.scan(homes)
    for row in rows:
        role = SpaceRole(row.value["role"])
        name = decode_label(row.key)
        roles[name] = max(role, roles.get(name, role))
    scope.spaces.learn(scope.engine, user, now, roles)
    return roles


async def readable(
    scope: MemoryScope,
    user_id: UserId,
    category: MemoryCategory | str | None = None,
    *,
    role: SpaceRole = SpaceRole.READ,
) -> list[Namespace]:
    """The namespaces that the agent reads for the user: the user's, and those of spaces where the user has ``role``."""
    own = scope.namespaces.read_scopes(user_id, category)
    roles = await roles_of(scope, user_id)
    for name in sorted(name for name, has in roles.items() if has >= role):
        own += scope.namespaces.read_scopes(Space(name), category)
    return own


async def in_space(
    scope: MemoryScope,
    operation: Callable[Concatenate[MemoryScope, P], Operation[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Runs ``operation``; for a `Space` with a member, only as far as that member's role allows.

    Raises SpaceNotFound if the role does not allow it, and UntrustedWrite if a member who is not an admin would change
    or delete a memory that guides agents; one that such a member would add waits for an admin.
    """
    if not any(isinstance(one, Space) for one in chain(args[:1], kwargs.values())):
        return await observed(scope.namespaces.agent_name, operation, scope, *args, **kwargs)
    given = signature(operation).bind(scope, *args, **kwargs)
    first = list(given.arguments)[1]
    space: Any = given.arguments[first]
    if operation.__name__ in _OF_USERS:
        raise InvalidInput("Conversations belong to a user, not to a space; save what the space should know")
    if isinstance(space, Space) and space.member is not None:
        needed = NEEDED.get(operation.__name__, SpaceRole.ADMIN)
        role = (await roles_of(scope, space.member)).get(space.name)
        if role is None or role < needed:
            raise SpaceNotFound(space.name, needed.name.lower())
        # A pseudonym, so that nothing in the space names the member once that user is erased.
        member = pseudonym(await scope.engine.content_key(), str(space.member))
        given.arguments[first] = Space(space.name)
        # For the same reason without the thread: `thread_label` begins with the user.
        by = Actor(kind=Origin.USER.value, id=member, agent=scope.actor.agent, tool=scope.actor.tool)
        acting = replace(scope, actor=by)
        if operation.__name__ in _OF_REVIEWERS:
            given.arguments["by"] = member
        elif needed in (SpaceRole.PROPOSE, SpaceRole.WRITE):
            creates = needed is SpaceRole.PROPOSE
            acting = replace(acting, spares_pins=role < SpaceRole.ADMIN)
            named = str(space.member), encode_label(space.member)
            if await _limit(scope, Space(space.name), member, named, role, given, creates=creates):
                acting = replace(acting, confirm=MEMORY_CATEGORIES)
        given.arguments["scope"] = acting
    return await observed(scope.namespaces.agent_name, operation, *given.args, **given.kwargs)


async def grant(scope: MemoryScope, space: Space, role: str, user: str | None = None, group: str | None = None) -> None:
    """Gives a user or a group a role in the space, in place of the one that they have there.

    Give ``user`` or ``group``, not both. ``role`` is "read", "propose", "write" or "admin"; each includes those before
    it. Raises InvalidInput, InvalidId, StoreUnavailable; SpaceNotFound if ``space`` names a member who is not an admin.
    """
    home, now = home_of(await scope.engine.content_key(), user, group), scope.clock.now()
    if role.upper() not in SpaceRole.__members__:
        raise InvalidInput(
            f"role must be one of {', '.join(one.name.lower() for one in SpaceRole)}, not {quoted(role)}"
        )
    value = {
        "role": int(SpaceRole[role.upper()]),
        "at": now.isoformat(),
        "user" if group is None else "group": str(user or group),
    }
    put = Put(namespace=home, key=_key(space), value=encode_json(value, what="grant"), updated_at=now)
    told = f"{role.lower()}: {await _shown(scope, user, group)}"
    await _changed(scope, space, put, "grant", told)


async def revoke(scope: MemoryScope, space: Space, user: str | None = None, group: str | None = None) -> bool:
    """Takes the role in the space away from a user or a group; returns False if they have none. Name one of the two.

    Other processes notice it within the ``refresh_seconds`` of their `Spaces`, five by default. Raises InvalidInput,
    InvalidId, StoreUnavailable; SpaceNotFound if ``space`` names a member who is not an admin.
    """
    key = (home_of(await scope.engine.content_key(), user, group), _key(space))
    if (await scope.engine.get([key]))[0] is None:
        return False
    told = await _shown(scope, user, group)
    await _changed(scope, space, Remove(namespace=key[0], key=key[1]), "revoke", told)
    return True


async def list_grants(scope: MemoryScope, space: Space) -> dict[str, str]:
    """The roles in the space, by "user:ID" or "group:NAME". Raises StoreUnavailable, SpaceNotFound."""
    key, homes = _key(space), await scope.engine.namespaces((GRANTS,))
    rows: list[Row | None] = await scope.engine.get([(home, key) for home in homes])
    values = [row.value for row in rows if row]
    return {
        f"{kind}:{value[kind]}": SpaceRole(value["role"]).name.lower()
        for kind in ("group", "user")
        for value in sorted(values, key=str)
        if kind in value
    }


async def get_spaces(scope: MemoryScope, user_id: UserId) -> dict[str, str]:
    """The spaces that the user may read, by name, with the user's role. Raises StoreUnavailable."""
    encode_label(user_id)
    roles = await roles_of(scope, user_id)
    return {name: roles[name].name.lower() for name in sorted(roles)}


def _key(space: Space) -> str:
    """The key of the grants in ``space``. Raises InvalidId for anything else, such as a user."""
    if not isinstance(space, Space):  # pyright: ignore[reportUnnecessaryIsInstance] - for callers without types
        raise InvalidId(f"Name a Space, such as Space('team'), not {type(space).__name__}")
    return encode_label(space.name)


async def _shown(scope: MemoryScope, user: str | None, group: str | None) -> str:
    """The user, by pseudonym, or the group, as the audit events of a space name them."""
    return f"user {pseudonym(await scope.engine.content_key(), str(user))}" if user else f"group {group}"


async def _changed(scope: MemoryScope, space: Space, write: Put | Remove, operation: str, told: str) -> None:
    """Changes a role and records an event in the audit trail of the space.

    The role's row is not in the space, so a check that always holds makes the batch touch the space for the event.
    """
    cause = Cause(at=scope.clock.now(), operation=operation, actor=scope.actor, reason=told, is_told=True)
    place = scope.namespaces.namespace_for(space, MemoryCategory.SEMANTIC)
    await scope.engine.write([write, Check(namespace=place, key=_NOTHING, expected=0)], cause)
    if scope.spaces is not None:
        scope.spaces.forget()


async def _limit(
    scope: MemoryScope,
    space: Space,
    member: str,
    named: tuple[str, ...],
    role: SpaceRole,
    given: BoundArguments,
    *,
    creates: bool,
) -> bool:
    """Changes the arguments ``given`` to a write so that it counts as the member's, never as another user's words.

    A session id that contains one of the member's names (``named``) is left out, as the memory outlives an erasure of
    that user. Returns whether the write has to wait for an admin. Raises UntrustedWrite.
    """
    arguments: dict[str, Any] = given.arguments
    if any(name in str(arguments.get("session_id")) for name in named):
        arguments["session_id"] = None
    old, there = None, list[MemoryRecord]()
    if memory_id := arguments.get("memory_id"):
        old = await find(scope, space, memory_id)
        there += [old] if old else []
        if role is SpaceRole.WRITE:  # what was deleted or forgotten comes back, unless somebody erases or replaces it
            keys = archive_keys(scope.namespaces.read_scopes(space), canonical_id(memory_id))
            there += [record_of(row) for row in await scope.engine.get(keys) if row]
    kind, category = arguments.get("memory_type"), arguments.get("category")
    is_guide = any(guides(one.memory_type.value, one.category.value) or one.pinned for one in there)
    is_guide |= guides(kind and validate_memory_type(kind), category) or bool(arguments.get("pinned"))
    if is_guide and role is SpaceRole.WRITE and not creates:
        raise UntrustedWrite("In a space, only an admin changes what guides agents: preferences, rules and pins")
    if arguments.get("expected_version") is None and memory_id:  # only what was checked here is written
        # A row that cannot be read may be a rule, so a member who is no admin does not delete what nobody sees.
        unseen = _NO_VERSION if role is SpaceRole.WRITE and not there else None
        arguments["expected_version"] = old.version if old else (0 if creates else unseen)
    if "source" in given.signature.parameters:
        source = arguments.get("source") or MemorySource()
        origin = source.origin if source.trust is Trust.EXTERNAL else Origin.AGENT
        arguments["source"] = MemorySource(origin=origin, tool=source.tool, author=member)
    return role is SpaceRole.PROPOSE or (is_guide and role is SpaceRole.WRITE)
