"""Where memories live, (user, category[, agent]), which agent reads which of them, and all else that a store holds.

In places that others may see, such as a stream of an agent's state, a user is recognized by a mark.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from inference_core.errors import InvalidId
from inference_core.memory.secrets import quoted
from inference_core.memory.text import id_text
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MemoryCategory,
    get_category_for_type,
    validate_memory_category,
    validate_memory_type,
)

Namespace = tuple[str, ...]
MEMORIES_STORE_NAME: Final = "memories"
"""Last label of the flat namespace that was used before the CoALA categories."""
MIGRATED: Final[Namespace] = ("#migrated-flat-memories",)
"""Namespace of the marks of migrated memories: under no user's label, so that a purge of the user keeps them."""
MAX_ID_BYTES: Final = 512
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_RESERVED = frozenset({"langgraph"})
_NUMBERED = frozenset({"user_id", "session_id", "thread_id"})
_ESCAPE = "~"
_ENCODED = [chr(byte) if byte in _SAFE_BYTES else f"{_ESCAPE}{byte:02x}" for byte in range(256)]
GLOBAL: Final = "~global"
"""First label of the namespaces of memories that hold for all users."""
_SPACE: Final = "#"
"""First character of a space's label, and of some labels that belong to no user. No encoded user id begins with it."""
GRANTS: Final = "#grants"
"""First label of the namespaces that hold a user's or a group's roles in spaces."""
_NO_SPACES: Final = frozenset({GRANTS, MIGRATED[0], "#keys", "#store"})
QUEUE_ROOT: Final = "~outbox"
"""First label of the namespaces that list users with pending work. No user id encodes to it."""
JOBS_ROOT: Final = "~jobs"
"""First label of the namespaces of the server's jobs. No user id encodes to it."""
PORTIONS: Final = "~portions"
"""Second label of the namespaces that hold the input and output of a user's jobs on the server."""
_TEXTS: Final = frozenset(
    {"forgotten", "~versions", "~pending", "~holds", "~held", "outbox", "outbox_dead", "messages", "short_term", "jobs"}
    | {PORTIONS}
)
"""Second labels of namespaces with texts beside memories: what was deleted or waits, messages, reports of jobs."""
ERASED: Final = "~erased"
"""First label of the fences of users that are, or were, erased. No user id encodes to it."""
USAGE: Final = "usage"
"""Second label of the namespaces that count how often memories were recalled."""
FORGOTTEN: Final = "forgotten"
"""Second label of the namespaces that hold forgotten memories."""
VERSIONS: Final = "~versions"
"""Second label of the namespaces that hold earlier states of memories."""
PENDING: Final = "~pending"
"""Second label of the namespaces that hold what waits for the user's confirmation, and marks of what was rejected."""
QUOTA: Final = "~quota"
"""Second label of the namespace that counts a user's memories and bytes."""
AUDIT: Final = "~audit"
"""Second label of the namespace of a user's audit events."""
SALT: Final = "~key"
"""Key of the row, beside a user's audit events, that salts their commitments. Without it, none can be verified."""
HOLDS: Final = "~holds"
"""Second label of the namespace of a user's legal holds."""
HELD: Final = "~held"
"""Second label of the namespace that keeps copies of rows replaced while under a hold."""
SEALS: Final = "~audit-seals"
"""First label of the namespaces of the seals of audit trails. No user id encodes to it."""
_BESIDE: Final = frozenset({USAGE, FORGOTTEN, VERSIONS, PENDING})

# An erasure removes and counts the rows under a user's label, whatever their second label (`PLACES` names them in its
# receipt), and those of `ROOTS` that name the user. A test fails for a label of this package that is in neither.
PLACES: Final[Mapping[str, str]] = {
    **dict.fromkeys((*MEMORY_CATEGORIES, MEMORIES_STORE_NAME), "memories"),
    FORGOTTEN: "archive",
    USAGE: "recall counts",
    VERSIONS: "earlier versions",
    QUOTA: "counts of memories",
    AUDIT: "audit events",
    PENDING: "memories that wait for confirmation",
    HOLDS: "legal holds",
    HELD: "copies under a hold",
    "~receipts": "receipts of recalls",
    "~requests": "requests of the service",
    "outbox": "waiting messages and work",
    "outbox_dead": "dead letters",
    "ingested": "marks of messages",
    "messages": "kept messages",
    "jobs": "jobs",
    PORTIONS: "what jobs of the server take in and give",
    "short_term": "conversations",
    "vector_store": "passages of conversations",
}
"""What the namespaces with this second label hold, as an erasure's receipt calls it."""
ITEMS: Final = "items of the application"
LISTED: Final = "lists of work and of jobs, of API keys and of roles"
ROOTS: Final[Mapping[str, str | None]] = {
    **dict.fromkeys((QUEUE_ROOT, JOBS_ROOT, "#keys", GRANTS), "user"),
    ERASED: None,
    SEALS: None,
    MIGRATED[0]: None,
    "~global": None,
    "#store": None,
}
"""First labels that belong to no user, with the field of their rows that holds a user's id; None: no row names one."""

_SHORT: Final = frozenset({"ingested", "jobs"})
"""Those of these places that have no third label."""
_OWN_PLACES: Final = PLACES.keys() - {*MEMORY_CATEGORIES, MEMORIES_STORE_NAME}
_INTERNAL_ROOTS: Final = frozenset((root,) for root in ROOTS if root != GLOBAL)


@dataclass(frozen=True, slots=True)
class Space:
    """The owner of memories that several users share, such as a team; pass it where a ``user_id`` is asked for.

    With a ``member``, the service does only what that user's role in the space allows; without one, the application
    itself is the caller and may do everything. The user ``eng`` and the space ``eng`` are unrelated. Raises InvalidId
    for a name that is reserved or not valid as a user id.
    """

    name: str
    member: str | UUID | None = None

    def __post_init__(self) -> None:
        if (label := _SPACE + encode_label(self.name, what="a space's name")) in _NO_SPACES:
            raise InvalidId(f"{quoted(label)} is reserved; choose another name for the space")
        if self.member is not None:
            encode_label(self.member)


Owner = str | UUID | int | Space
"""Whose memories: a user's or a space's."""


def space_in(namespace: Namespace) -> str | None:
    """The name of the space that ``namespace`` belongs to; None if it is a user's."""
    if not "".join(namespace[:1]).startswith(_SPACE) or namespace[0] in _NO_SPACES:
        return None
    try:
        return decode_label(namespace[0][1:])
    except InvalidId:  # another program wrote it
        return None


def owner_in(namespace: Namespace) -> Owner:
    """The user or the space that ``namespace`` belongs to. Raises InvalidId if it is nobody's."""
    space = space_in(namespace)
    return decode_label(namespace[0]) if space is None else Space(space)


def encode_label(owner: Owner, *, what: str = "user_id") -> str:
    """A namespace label for a user id, an agent's name or a `Space`; different ids always give different labels.

    Plain ids (``[A-Za-z0-9_-]{1,64}``) stay as they are; any other becomes ``~`` and its UTF-8 bytes, those outside
    ``[A-Za-z0-9_-]`` as ``~xx``. Raises InvalidId if it is not a string, UUID or integer, is empty, holds NUL or lone
    surrogates, or has more than 512 bytes.
    """
    if isinstance(owner, Space):
        if owner.member is not None:  # a caller that gets here has not checked the member's role
            raise InvalidId("Only a service's methods take a space with a member")
        return _SPACE + encode_label(owner.name, what="a space's name")
    name = id_text(owner) if what in _NUMBERED or isinstance(owner, UUID) else owner
    if not isinstance(name, str):
        raise InvalidId(f"{what} must be a string, a UUID or an integer, not {type(name).__name__}")
    if _PLAIN.match(name) and name not in _RESERVED:
        return name
    try:
        raw = name.encode() if len(name) <= MAX_ID_BYTES else b""
    except UnicodeEncodeError as error:
        raise InvalidId(f"{what} holds a lone surrogate, so it is not valid Unicode") from error
    if not 0 < len(raw) <= MAX_ID_BYTES or b"\x00" in raw:
        raise InvalidId(f"{what} must have 1 to {MAX_ID_BYTES} bytes and no NUL; it has {len(name)} characters")
    return _ESCAPE + "".join([_ENCODED[byte] for byte in raw])


def decode_label(label: str) -> str:
    """The id that ``encode_label`` made ``label`` from. Raises InvalidId for a label that it never makes."""
    if not label.startswith(_ESCAPE):
        name = label
    else:
        head, *rest = label[1:].split(_ESCAPE)
        try:
            raw = head.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest)
            name = raw.decode()
        except ValueError as error:
            raise InvalidId(f"{quoted(label)} is not an encoded id") from error
    if not name or encode_label(name) != label:
        raise InvalidId(f"{quoted(label)} is not an encoded id")
    return name


def agent_in(namespace: Namespace) -> str | None:
    """The agent that the ``namespace`` of memories, or one beside it, belongs to; None if they are shared.

    A label that this package did not encode is returned as it is.
    """
    label = next(iter(namespace[3:] if is_sidecar(namespace) else namespace[2:]), None)
    try:
        return None if label is None else decode_label(label)
    except InvalidId:  # another program wrote it
        return label


def global_namespace(category: MemoryCategory | str, name: str) -> Namespace:
    """The namespace ``name`` for memories that hold for all users. No user id encodes to its first label.

    Raises InvalidCategory or InvalidId.
    """
    return (GLOBAL, validate_memory_category(category), encode_label(name, what="name"))


def holds_memories(namespace: Namespace) -> bool:
    """Whether ``namespace`` holds a user's memories of some category."""
    return len(namespace) > 1 and namespace[1] in MEMORY_CATEGORIES


def is_item(namespace: Namespace) -> bool:
    """Whether ``namespace`` may hold an application's own items: it is not one where this package stores texts."""
    return not (namespace[1:2] and namespace[1] in _TEXTS) and not holds_memories(namespace)


def sidecar_namespace(namespace: Namespace, place: str) -> Namespace:
    """The sidecar called ``place`` of the memory namespace ``namespace``; `holds_memories` is false for it."""
    return (namespace[0], place, *namespace[1:])


def holds_forgotten(namespace: Namespace) -> bool:
    """Whether ``namespace`` holds forgotten memories of a user."""
    return namespace[1:2] == (FORGOTTEN,) and holds_memories(memory_namespace(namespace))


def holds_pending(namespace: Namespace) -> bool:
    """Whether ``namespace`` holds what waits for a user's confirmation."""
    return namespace[1:2] == (PENDING,) and holds_memories(memory_namespace(namespace))


def is_sidecar(namespace: Namespace) -> bool:
    """Whether ``namespace`` is a sidecar: usage counts, forgotten or pending memories, or earlier versions."""
    return bool(namespace[1:2]) and namespace[1] in _BESIDE and holds_memories(memory_namespace(namespace))


def is_internal(namespace: Namespace) -> bool:
    """Whether the package keeps data of its own in ``namespace``, which are neither memories nor anybody's items.

    An application may give a namespace of two labels the name of one of these places, such as (user, "messages").
    """
    if namespace[:1] in _INTERNAL_ROOTS or is_sidecar(namespace):
        return True
    place = "".join(namespace[1:2])
    return place in _OWN_PLACES and (len(namespace) > 2 or place.startswith("~") or place in _SHORT)  # noqa: PLR2004


def memory_namespace(namespace: Namespace) -> Namespace:
    """The memory namespace that the sidecar ``namespace`` belongs to."""
    return (namespace[0], *namespace[2:])


class MemoryNamespaceBuilder:
    """Routes users, categories and agents to namespaces (the CoALA document's scheme).

    Semantic memory is shared by a user's agents. Episodic and procedural memory belong to the named agent, or are
    shared when it has no name or ``agent_scope_enabled`` is off. All memories of a `Space` are shared.
    """

    def __init__(
        self,
        base_collection: str = "agent_memory",
        agent_name: str | None = None,
        *,
        agent_scope_enabled: bool = True,
    ) -> None:
        self.base_collection = base_collection
        self.agent_name = agent_name
        self._agent_label: str | None = None
        if agent_scope_enabled and agent_name is not None and agent_name != "":
            self._agent_label = encode_label(agent_name, what="agent_name")

    @property
    def is_agent_scoped(self) -> bool:
        """Whether the agent has namespaces of its own for episodic and procedural memory."""
        return self._agent_label is not None

    def namespace_for(self, user_id: Owner, category: MemoryCategory | str) -> Namespace:
        """The namespace that memories of ``category`` are written to. Raises InvalidId, InvalidCategory."""
        name = validate_memory_category(category)
        shared = (encode_label(user_id), name)
        if name == MemoryCategory.SEMANTIC.value or self._agent_label is None or isinstance(user_id, Space):
            return shared
        return (*shared, self._agent_label)

    def namespace_for_type(self, user_id: Owner, memory_type: str) -> Namespace:
        """The namespace that memories of ``memory_type`` are written to. Raises InvalidId, InvalidMemoryType."""
        return self.namespace_for(user_id, get_category_for_type(validate_memory_type(memory_type)))

    def read_scopes(self, user_id: Owner, category: MemoryCategory | str | None = None) -> list[Namespace]:
        """The namespaces this agent reads: the shared ones and its own, never another agent's."""
        wanted = MEMORY_CATEGORIES if category is None else [validate_memory_category(category)]
        user, agent = encode_label(user_id), None if isinstance(user_id, Space) else self._agent_label
        namespaces: list[Namespace] = []
        for name in wanted:
            namespaces.append((user, name))
            if agent is not None and name != MemoryCategory.SEMANTIC.value:
                namespaces.append((user, name, agent))
        return namespaces

    def legacy_namespace(self, user_id: str | UUID) -> Namespace:
        """The flat namespace that was used before the categories."""
        return (encode_label(user_id), MEMORIES_STORE_NAME)


_SALT_BYTES: Final = 8
_DIGEST_BYTES: Final = 16
_MARK: Final = re.compile(rf"owner:([0-9a-f]{{{2 * _SALT_BYTES}}}):[0-9a-f]{{{2 * _DIGEST_BYTES}}}")


def owner_mark(user_id: str) -> str:
    """A salted digest of ``user_id``, another one at each call; "" for "", which stands for nobody."""
    return _marked(user_id, secrets.token_bytes(_SALT_BYTES)) if user_id else ""


def is_owner(mark: str | None, user_id: str) -> bool:
    """Whether ``mark`` is one of ``user_id``, or the plain id, as earlier versions kept it."""
    match = _MARK.fullmatch(mark or "")
    # A mark is never compared as text: somebody who has seen it could take it for a user id.
    return mark == (_marked(user_id, bytes.fromhex(match[1])) if match else user_id)


def _marked(user_id: str, salt: bytes) -> str:
    digest = hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, salt=salt).hexdigest()
    return f"owner:{salt.hex()}:{digest}"
