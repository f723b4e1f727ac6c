"""Spaces: memories that several users share, which of them a user may read, and the roles that users and groups have.

A role is a row of the user or the group that has it, in the memories' own store.
"""

from __future__ import annotations

from typing import Final

from inference_core.errors import InvalidId, InvalidInput
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import GRANTS, Namespace, Space, encode_label
from inference_core.memory.secrets import quoted
from inference_core.memory.spaces import SpaceRole, home_of, pseudonym
from inference_core.memory.text import encode_json
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.operation import operation, roles_of
from inference_core.services.operations.scope import MemoryScope, UserId
from inference_core.stores.backend import Check, Put, Remove, Row

_NOTHING: Final = "no memory"
"""The key of a row that is never there: no id of a memory has white space."""


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


@operation("grant", subject="space")
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


@operation("revoke", subject="space")
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


@operation("list_grants", subject="space")
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


@operation("get_spaces")
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

    The role's row is not in the space, so a check that always holds makes the batch touch the space for the event. If
    the two may lie on different servers, the event comes first: there is none missing if this is interrupted.
    """
    cause = Cause(at=scope.clock.now(), operation=operation, actor=scope.actor, reason=told, is_told=True)
    place = scope.namespaces.namespace_for(space, MemoryCategory.SEMANTIC)
    touching = Check(namespace=place, key=_NOTHING, expected=0)
    if scope.engine.backend.capabilities.split:
        await scope.engine.write([touching], cause)
        await scope.engine.write([write])
    else:
        await scope.engine.write([write, touching], cause)
    if scope.spaces is not None:
        scope.spaces.forget()
