"""What can be done with a user's memories: each operation is registered once, where it is written, by `operation`.

The registration says how telemetry names it and which role it needs in a space, and makes the methods that users call.
Groups and roles come from the application, by the user's id alone: never from a run's context or a tool's argument,
which a model can write. Whoever has no role learns nothing, not even whether a space exists.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial, update_wrapper
from inspect import BoundArguments, signature
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from inference_core.effects import Effect, Operation, faces, in_thread
from inference_core.errors import InvalidInput, SpaceNotFound, UntrustedWrite
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import Namespace, Space, decode_label, encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.spaces import SpaceRole, pseudonym
from inference_core.memory.text import canonical_id
from inference_core.memory.trust import MemorySource, Origin, Trust, guides
from inference_core.memory.types import MEMORY_CATEGORIES, validate_memory_type
from inference_core.services.operations.scope import MemoryScope, UserId, archive_keys, find, record_of
from inference_core.telemetry import is_observed, observed

P = ParamSpec("P")
T = TypeVar("T")
_NO_VERSION: Final = 2**62
"""A version that no memory has."""
_OF_A_MEMBER: Final = frozenset({"memory_id", "expected_version"})
"""What an operation has to take for members who are not admins: `_limit` reads and sets it."""


class Face(Protocol):
    """An object whose methods are made from operations: the scope that they work in, and their limit in seconds."""

    scope: MemoryScope
    timeout: float | None


class MemoryOperation(Generic[P, T]):
    """An operation on what a user, or a `Space`, remembers: its first argument after the scope, named ``subject``.

    Other operations call it like a function. For callers from outside, `checked` holds the members of a space to their
    roles; `sync` and `aio` are `checked` as methods of a `Face`.

    Attributes:
        span: Telemetry's name for it, if possible one of OpenTelemetry's conventions.
        needs: The role that a member needs in a space. None: it is about conversations or profiles, which no space has.
        subject: The name of the parameter that says whose memories these are.
        reviewer: The name of the parameter that says who decides, if any; in a space, that is the member.
    """

    def __init__(
        self,
        body: Callable[Concatenate[MemoryScope, P], Operation[T]],
        span: str,
        needs: SpaceRole | None,
        subject: str,
        reviewer: str | None,
    ) -> None:
        self.signature = signature(body)
        self.parameters = tuple(self.signature.parameters)
        wanted = {subject, reviewer or subject}
        if needs in (SpaceRole.PROPOSE, SpaceRole.WRITE):
            wanted |= _OF_A_MEMBER
        if self.parameters[1] != subject or not wanted <= {*self.parameters}:
            raise TypeError(f"{body} lacks one of the parameters {sorted(wanted)}, or {subject!r} is not its second")
        update_wrapper(cast("Any", self), body)
        self.body = body
        self.span, self.needs, self.subject, self.reviewer = span, needs, subject, reviewer
        self.sync, self.aio = faces(self._on, body)

    def __call__(self, scope: MemoryScope, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        """The operation itself, for callers that have made sure that it is allowed."""
        return self.body(scope, *args, **kwargs)

    def checked(self, scope: MemoryScope, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        """Runs it in a span of telemetry; for a `Space` with a member, only as far as the member's role allows.

        Raises SpaceNotFound if the role does not allow it, and UntrustedWrite if a member who is not an admin would
        change or delete a memory that guides agents. If such a member adds one, it waits for an admin.
        """
        subject = args[0] if args else kwargs.get(self.subject)
        if isinstance(subject, Space):
            return self._in_space(subject, scope, self.signature.bind(scope, *args, **kwargs))
        return self._observed(scope, *args, **kwargs)

    def _observed(self, scope: MemoryScope, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        """The operation, in a span if telemetry is on."""
        running = self.body(scope, *args, **kwargs)
        if not is_observed():
            return running
        named = dict(zip(self.parameters[1:], args, strict=False)) | kwargs
        return observed(self.span, scope.namespaces.agent_name, named, running)

    def _on(self, face: Face, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Effect[Any], Any, T]:
        return self.checked(face.scope, *args, **kwargs)

    async def _in_space(self, space: Space, scope: MemoryScope, given: BoundArguments) -> T:
        """The operation, with ``given`` changed for the member of ``space`` who runs it.

        Raises SpaceNotFound, UntrustedWrite.
        """
        if self.needs is None:
            raise InvalidInput("Conversations and profiles belong to a user; save what the space should know")
        if space.member is None:
            return await self._observed(*given.args, **given.kwargs)
        role = (await roles_of(scope, space.member)).get(space.name)
        if role is None or role < self.needs:
            raise SpaceNotFound(space.name, self.needs.name.lower())
        # A pseudonym, so that nothing in the space names the member once that user is erased.
        member = pseudonym(await scope.engine.content_key(), str(space.member))
        given.arguments[self.subject] = Space(space.name)
        # For the same reason without the thread: `thread_label` begins with the user.
        by = Actor(kind=Origin.USER.value, id=member, agent=scope.actor.agent, tool=scope.actor.tool)
        acting = replace(scope, actor=by)
        if self.reviewer is not None:
            given.arguments[self.reviewer] = member
        elif self.needs in (SpaceRole.PROPOSE, SpaceRole.WRITE):
            creates = self.needs is SpaceRole.PROPOSE
            acting = replace(acting, spares_pins=role < SpaceRole.ADMIN)
            named = str(space.member), encode_label(space.member)
            if await _limit(scope, Space(space.name), member, named, role, given, creates=creates):
                acting = replace(acting, confirm=MEMORY_CATEGORIES)
        given.arguments[self.parameters[0]] = acting
        return await self._observed(*given.args, **given.kwargs)


def operation(
    span: str,
    *,
    needs: SpaceRole | None = SpaceRole.ADMIN,
    subject: str = "user_id",
    reviewer: str | None = None,
) -> Callable[[Callable[Concatenate[MemoryScope, P], Operation[T]]], MemoryOperation[P, T]]:
    """Registers the function below it as a `MemoryOperation`, which says what the arguments mean.

    Raises TypeError if the function has no parameter ``subject`` after its scope, or lacks another one that is needed.
    """

    def register(body: Callable[Concatenate[MemoryScope, P], Operation[T]]) -> MemoryOperation[P, T]:
        return MemoryOperation(body, span, needs, subject, reviewer)

    return register


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
    is_guide = any(guides(record.memory_type.value, record.category.value) or record.pinned for record in there)
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
