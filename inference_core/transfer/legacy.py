"""Items that other applications keep in LangGraph's stores: where, whose they are, and what memory each becomes.

A layout says in which namespaces an application keeps memories, and whose memories each one holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol, cast

from inference_core.clock import moment_of
from inference_core.errors import InvalidId, InvalidInput, InvalidMemory, SecretFound, UnsupportedSchema
from inference_core.memory.namespaces import MEMORIES_STORE_NAME, MemoryNamespaceBuilder, decode_label, encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import DEFAULT_GUARD, Guard
from inference_core.memory.secrets import quoted
from inference_core.memory.text import canonical_id, canonical_metadata, canonical_text, optional_text
from inference_core.memory.trust import LEFTOVERS, MemorySource, Origin, Trust, trust_of
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MEMORY_TYPES,
    MemoryCategory,
    MemoryType,
    get_category_for_type,
    type_meant,
)
from inference_core.outbox.messages import mended, split_text
from inference_core.stores.backend import EXTRA

_SAID_BY: Final = {origin.value: origin for origin in Origin} | {
    "human": Origin.USER,
    "assistant": Origin.AGENT,
    "ai": Origin.AGENT,
    "function": Origin.TOOL,
}
"""The origin that each name stands for, by which other applications say who stated a memory."""
NO_CONTENT: Final = "no content"
NOT_AN_OBJECT: Final = "the value is not a JSON object"
NOT_STORABLE: Final = "cannot be stored"
REFUSED: Final = "contains a secret"
NOT_OFFERED: Final = "the user has rejected it, or has too much to confirm"
NO_TEXT: Final = "the file holds no text"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
USER, CATEGORY, AGENT, ANY = "{user}", "{category}", "{agent}", "*"
COALA: Final = "coala"
"""The CoALA document's layout, one namespace a category."""
FLAT: Final = "flat"
"""All memories of a user in one namespace: the layout of the same application before that."""
LANGMEM: Final = "langmem"
FILES: Final = "files"
"""deepagents' files; only on request, since not every file is a memory."""
_LABELS: Final = {
    COALA: ((USER, CATEGORY), (USER, CATEGORY, AGENT)),
    FLAT: ((USER, MEMORIES_STORE_NAME),),
    LANGMEM: (("memories", USER),),
    FILES: ((USER, "filesystem"),),
}
_LIKE: Final = 0.8
"""The similarity from which a name counts as a misspelling of a known layout, not as a label."""
USUAL: Final = (COALA, FLAT, LANGMEM)
"""The layouts that are looked for unless others are named."""
UNCLEAR_USER: Final = "its namespace has a dot, so whose it is is not clear: give the user's id by name"


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem:
    """An item as its store holds it. ``fault`` says why it cannot be migrated, if that is known.

    ``category`` and ``agent_name`` come from its namespace. ``origin`` distinguishes a user's items that have the same
    key in different namespaces. An item without an ``origin`` counts as the same as any other item with its key.
    """

    user_id: str = ""
    key: str
    value: Any = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None
    fault: str | None = None
    layout: str = FLAT
    category: str | None = None
    agent_name: str | None = None
    origin: str = ""


class Unusable(InvalidMemory):
    """The item holds no memory that can be stored. ``reason`` is one of a few fixed texts; the message says more."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(detail or reason)
        self.reason = reason


def records_of(
    item: LegacyItem, namespaces: MemoryNamespaceBuilder, max_content_bytes: int, guard: Guard = DEFAULT_GUARD
) -> list[MemoryRecord]:
    """``item`` as a record without secrets; a file of deepagents that is too long for one memory as several.

    Raises Unusable, also for secrets that ``guard`` rejects.
    """
    if item.fault is not None:
        raise Unusable(item.fault)
    if not isinstance(item.value, Mapping):
        raise Unusable(NOT_AN_OBJECT)
    value = dict(cast("Mapping[str, Any]", item.value))
    try:
        if item.category and EXTRA in value:
            records = [_own_record(item, item.category, value, max_content_bytes)]
        else:
            told = value
            if isinstance(content := value.get("content"), Mapping):
                # langmem may store an object of the application's own schema: it is kept as it is, beside a text of it.
                fields = cast("Mapping[str, Any]", content)
                told = value | dict(fields)
                if not isinstance(fields.get("content"), str):
                    known = {name: field for name, field in fields.items() if field not in (None, "", [], {})}
                    texts = (
                        f"{name}: {field if isinstance(field, str) else json.dumps(field, ensure_ascii=False)}"
                        for name, field in known.items()
                    )
                    told = value | {"content": "; ".join(texts), "fields": fields}
            parts: Iterable[LegacyItem] = [replace(item, value=told)]
            if "modified_at" in value and ("encoding" in value or isinstance(value.get("content"), list)):
                parts = _parts_of_file(item, value, max_content_bytes, guard)
            records = [_record_of(part, namespaces, max_content_bytes) for part in parts]
        for record in records:
            guard.refuse(record.content, record.topic, record.tags, record.extra_metadata)
    except SecretFound as error:
        raise Unusable(REFUSED, f"{REFUSED} ({', '.join(error.kinds)})") from error
    return [guard.record(record) for record in records]


def is_undated(item: LegacyItem) -> bool:
    """Whether ``item`` does not say when its memory was made, or not in a form that can be read."""
    value: Mapping[str, Any] = cast("Any", item.value) if isinstance(item.value, Mapping) else {}
    return not (moment_of(value.get("created_at")) or item.created_at or item.updated_at or "modified_at" in value)


def _own_record(item: LegacyItem, category: str, value: dict[str, Any], max_content_bytes: int) -> MemoryRecord:
    """A memory that this package wrote into another library's store, with all fields as they are. Raises Unusable."""
    builder = MemoryNamespaceBuilder(agent_name=item.agent_name)
    updated = item.updated_at or item.created_at or _EPOCH
    try:
        known = {name: field for name, field in value.items() if name != EXTRA}
        record = MemoryRecord.from_value(
            known,
            memory_id=canonical_id(item.key),
            namespace=builder.namespace_for(item.user_id, category),
            stored_at=item.created_at or updated,
            updated_at=updated,
        )
        return replace(record, content=canonical_text(record.content, max_bytes=max_content_bytes))
    except (InvalidInput, UnsupportedSchema) as error:
        raise Unusable(NOT_STORABLE, str(error)) from error


def _parts_of_file(
    item: LegacyItem, value: dict[str, Any], max_content_bytes: int, guard: Guard
) -> Iterator[LegacyItem]:
    """A file as a memory with its path as the topic, or as several if it is too long. Raises Unusable, SecretFound."""
    content: Any = value.pop("content")
    if isinstance(content, list):
        content = "\n".join(map(str, cast("list[Any]", content)))
    if not isinstance(content, str) or value.pop("encoding", "utf-8") != "utf-8":
        raise Unusable(NO_TEXT)
    modified = moment_of(value.pop("modified_at", None))
    item = replace(item, updated_at=modified or item.updated_at)
    guard.refuse(content)
    clean = guard.text(mended(content))  # before a secret is split in two
    for part, text in enumerate(split_text(clean, max_content_bytes) or [""], 1):
        key = item.key if part == 1 else f"{item.key}#{part}"
        yield replace(item, key=key, value=value | {"content": text, "topic": item.key})


def _record_of(item: LegacyItem, namespaces: MemoryNamespaceBuilder, max_content_bytes: int) -> MemoryRecord:
    """``item`` as a record in the namespace of its category, under the same id and with the same times.

    The category is that of the item's namespace, else the value's own if it names one, else that of its type; an
    unknown type becomes ``general``. An id that is invalid here is replaced by its hash. What does not fit is kept in
    ``extra_metadata["legacy"]``. Raises Unusable.
    """
    value: dict[str, Any] = dict(item.value)
    content = value.pop("content", None)
    if content is None or (isinstance(content, str) and not content.strip()):
        raise Unusable(NO_CONTENT)
    category, metadata = item.category or value.get("memory_category"), value.get("extra_metadata")
    has_agent = item.category is not None and isinstance(value.get("agent_name"), str)
    fields: dict[str, Any] = {
        "memory_type": _kind(value.get("memory_type")),
        "memory_category": MemoryCategory(category) if category in MEMORY_CATEGORIES else None,
        "topic": _label(value.get("topic")),
        "session_id": _label(value.get("session_id")),
        "agent_name": _label(value.get("agent_name")) if has_agent else None,
        "extra_metadata": dict(metadata) if isinstance(metadata, Mapping) else None,  # pyright: ignore[reportUnknownArgumentType] - JSON
        "created_at": moment_of(value.get("created_at")),
    }
    left = {name: found for name, found in value.items() if found not in (None, "") and fields.get(name) is None}
    try:
        memory_id = canonical_id(item.key)
    except InvalidMemory:
        memory_id = blake2b(item.key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        left["id"] = item.key
    extra: dict[str, Any] = fields["extra_metadata"] or {}
    if left:
        earlier = {LEFTOVERS: extra[LEFTOVERS]} if LEFTOVERS in extra else {}
        extra = extra | {LEFTOVERS: left | earlier}
    kind = fields["memory_type"] or MemoryType.GENERAL
    category = fields["memory_category"] or get_category_for_type(kind)
    source = _source(item)
    trust = Trust(max(trust_of({"source": source.to_value(), "trust": item.value.get("trust")}), 0))
    created = fields["created_at"] or item.created_at or item.updated_at or datetime.now(UTC)
    try:
        builder = MemoryNamespaceBuilder(agent_name=item.agent_name) if item.category else namespaces
        return MemoryRecord(
            id=memory_id,
            content=canonical_text(content, max_bytes=max_content_bytes),
            memory_type=kind,
            category=category,
            namespace=builder.namespace_for(item.user_id, category),
            created_at=created,
            updated_at=item.updated_at or created,
            topic=fields["topic"],
            session_id=fields["session_id"],
            agent_name=fields["agent_name"] or builder.agent_name,
            extra_metadata=canonical_metadata(extra) if extra else {},
            expires_at=item.expires_at,
            source=source,
            trust=trust,
        )
    except InvalidInput as error:
        raise Unusable(NOT_STORABLE, str(error)) from error


def _source(item: LegacyItem) -> MemorySource:
    """The item's source: the least trusted origin that it names, or else the other application's agent."""
    given: Any = item.value.get("source")
    inner: Any = cast("Mapping[str, Any]", given).get("origin") if isinstance(given, Mapping) else given
    told: list[Any] = [inner, item.value.get("origin"), item.value.get("role")]
    origins = [origin for name in told if isinstance(name, str) and (origin := _SAID_BY.get(name.strip().lower()))]
    lowest = min(origins, key=lambda origin: MemorySource(origin=origin).trust, default=Origin.AGENT)
    return MemorySource(origin=lowest, tool=item.layout)


def _kind(found: Any) -> MemoryType | None:
    """The type that a name means, None if none; names may be singular, or the enum's, as in ``MemoryType.GENERAL``."""
    if not isinstance(found, str):
        return None
    name = type_meant(found.rpartition(".")[2])
    return MemoryType(str(name)) if name in MEMORY_TYPES else None


def _label(found: Any) -> str | None:
    try:
        return optional_text(found, what="a label")
    except InvalidMemory:
        return None


class LegacyPlace(NamedTuple):
    """What a namespace holds: memories of ``user_id`` in a layout. ``fault`` says why they cannot be migrated."""

    layout: str
    user_id: str
    category: str | None = None
    agent_name: str | None = None
    fault: str | None = None


class Joined(Protocol):
    """A source of namespaces, and whether their labels were joined by dots."""

    were_joined: bool


class Layouts:
    """The layouts to look for, of these users or of all; the first that fits a namespace counts.

    A layout is a name (``coala``, ``flat``, ``langmem``, ``files``) or labels joined by dots, in which ``{user}``,
    ``{category}``, ``{agent}`` and ``*`` stand for one label each: ``notes.{user}``. One without ``{user}`` holds the
    memories of the one user that is named. Raises InvalidInput, InvalidId.
    """

    def __init__(
        self,
        names: Sequence[str] | None = None,
        user_ids: Sequence[str] | None = None,
        flat_name: str = MEMORIES_STORE_NAME,
    ) -> None:
        for what, given in (("user_ids", user_ids), ("layouts", names)):
            if isinstance(given, str):
                raise InvalidInput(f"{what} must be a list of ids or names, not one text")
        if not flat_name or flat_name in MEMORY_CATEGORIES:
            raise InvalidInput(f"The flat namespace cannot be called {quoted(flat_name)}; its usual name is 'memories'")
        for user_id in user_ids or ():
            encode_label(user_id)
        self._users = None if user_ids is None else frozenset(user_ids)
        known = _LABELS | {FLAT: ((USER, flat_name),)}
        has_one_user = len(self._users or ()) == 1
        self._labels: list[tuple[str, tuple[str, ...]]] = []
        for name in names or USUAL:
            near = get_close_matches(name, known, 1, cutoff=_LIKE)
            if name not in known and near:
                raise InvalidInput(f"Unknown layout {quoted(name)}; did you mean {near[0]}?")
            for labels in known.get(name, (tuple(name.split(".")),)):
                if not all(labels) or (USER not in labels and not has_one_user):
                    raise InvalidInput(
                        f"Unknown layout {quoted(name)}; known: {', '.join(known)}, or labels such as 'notes.{USER}'. "
                        f"One without {USER} needs exactly one user to be named"
                    )
                self._labels.append((name, labels))

    def holds(self, user_id: str) -> bool:
        """Whether the memories of this user are wanted."""
        return self._users is None or user_id in self._users

    @property
    def are_of_all_users(self) -> bool:
        """Whether no users are named."""
        return self._users is None

    def place_of(self, labels: Sequence[str], source: Joined) -> LegacyPlace | None:
        """What a namespace of ``source`` holds; None if it fits no layout, or is another user's.

        If the labels ``were_joined``, they come from a text in which dots join them, as in LangGraph's tables. So
        ``a.b.memories`` may be the flat namespace of a user ``a.b`` or something else of ``a``; it counts as memories
        of ``a.b`` only if that user is among the ``user_ids``.
        """
        for name, pattern in self._labels:
            if len(labels) == len(pattern) and (found := self._read(name, pattern, labels)):
                is_wanted = self.holds(found.user_id) or self.holds(decoded(found.user_id))
                return found if is_wanted else None
        for name, pattern in self._labels if source.were_joined else ():
            if USER not in pattern or len(labels) < len(pattern):
                continue
            at, more = pattern.index(USER), len(labels) - len(pattern) + 1
            joined = [*labels[:at], ".".join(labels[at : at + more]), *labels[at + more :]]
            if found := self._read(name, pattern, joined):
                if self._users is None:
                    return found._replace(fault=UNCLEAR_USER)
                if found.user_id in self._users:
                    return found
        return None

    def _read(self, name: str, pattern: Sequence[str], labels: Sequence[str]) -> LegacyPlace | None:
        fields: dict[str, str] = {}
        for wanted, label in zip(pattern, labels, strict=True):
            if wanted == CATEGORY and label not in MEMORY_CATEGORIES:
                return None
            if wanted in (USER, CATEGORY, AGENT):
                fields[wanted] = label
            elif wanted not in (ANY, label):
                return None
        user = fields[USER] if USER in fields else next(iter(self._users or ()))
        return LegacyPlace(name, user, fields.get(CATEGORY), fields.get(AGENT))


def decoded(label: str) -> str:
    """The id that ``label`` encodes, as this package writes it; any other label as it is."""
    try:
        return decode_label(label)
    except InvalidId:
        return label
