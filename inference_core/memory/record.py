"""The form of a memory: `MemoryRecord` inside the package, the plain data classes of recall's results outside.

A record says whether it still holds, and which links it states. Results show themselves as tables in notebooks; all
text in a table is escaped, and nothing in it is active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeVar, cast

from inference_core.clock import aware
from inference_core.errors import UnsupportedSchema
from inference_core.memory.namespaces import Namespace, agent_in, space_in
from inference_core.memory.text import (
    copied,
    harmless,
    mapping_field,
    moment_field,
    share_field,
    text_field,
    texts_field,
)
from inference_core.memory.trust import MemorySource, Trust
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MEMORY_TYPE_TO_CATEGORY,
    MEMORY_TYPES,
    SINGULAR_TYPES,
    MemoryCategory,
    MemoryType,
    get_category_for_type,
)

SCHEMA_VERSION: Final = 1
DEFAULT_IMPORTANCE: Final = 0.5
CITES: Final = "cites"
"""The metadata key that lists the memories this one was derived from."""
SUMMARY: Final = "summary"
"""The source tool of summaries that periodic work made."""
INSIGHT: Final = "insight"
"""The source tool of higher-level memories."""
JOB: Final = "job"
"""Metadata key: the job that made the memory."""
BLOCK: Final = "block"
BLOCK_SESSIONS: Final = "sessions"
"""Metadata keys: the block of short-term memory that made the memory, and from which sessions."""
WOULD_END: Final = "would_end"
"""Metadata key of a superseded memory: the end that it had before."""
INDEXED_FIELDS: Final = ["content", "topic"]
"""The fields of a memory that recall searches."""
MAX_NAMES: Final = 64
"""Of a memory's entities, tags and related ids, only this many each are read."""
MAX_NAME_CHARACTERS: Final = 64
_TRIPLE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A memory with its times, source, trust and history.

    ``created_at`` is when it was first stored and never changes; ``updated_at`` is when it was last written.
    ``valid_from`` and ``valid_to`` bound when it is true in the user's world, as far as known. All instants are aware,
    in UTC. ``version`` grows by one with each write; 0 means not stored yet. ``importance`` is between 0 and 1.
    `docs/extending.md` lists what to change when you add a field.
    """

    id: str
    content: str
    memory_type: MemoryType
    category: MemoryCategory
    namespace: Namespace
    created_at: datetime
    updated_at: datetime
    version: int = 0
    topic: str | None = None
    session_id: str | None = None
    agent_name: str | None = None
    extra_metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    source: MemorySource = field(default_factory=MemorySource)
    trust: Trust = Trust.STATED
    importance: float = DEFAULT_IMPORTANCE
    pinned: bool = False
    tags: tuple[str, ...] = ()
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    supersedes: tuple[str, ...] = ()
    superseded_by: str | None = None

    @property
    def happened_at(self) -> datetime:
        """When it happened, if known, else when it was stored."""
        return self.valid_from or self.created_at

    @property
    def cites(self) -> tuple[str, ...]:
        """The ids of the memories this one was derived from."""
        return texts_field(self.extra_metadata, CITES)

    @property
    def indexed_text(self) -> str:
        """The text that recall searches: topic and content."""
        return f"{self.topic}: {self.content}" if self.topic else self.content

    def to_value(self) -> dict[str, Any]:
        """The record as the JSON value stored in a row. Id, namespace, version and update time are the row's own."""
        moments = {"valid_from": self.valid_from, "valid_to": self.valid_to, "expires_at": self.expires_at}
        unusual = {
            **{name: moment.isoformat() for name, moment in moments.items() if moment is not None},
            **({"importance": self.importance} if self.importance != DEFAULT_IMPORTANCE else {}),
            **({"pinned": True} if self.pinned else {}),
            **({"tags": list(self.tags)} if self.tags else {}),
            **({"supersedes": list(self.supersedes)} if self.supersedes else {}),
            **({"superseded_by": self.superseded_by} if self.superseded_by else {}),
        }
        return {
            "content": self.content,
            "memory_type": self.memory_type.value,
            "memory_category": self.category.value,
            "session_id": self.session_id,
            "topic": self.topic,
            "agent_name": self.agent_name,
            "extra_metadata": dict(self.extra_metadata),
            "created_at": self.created_at.isoformat(),
            "source": self.source.to_value(),
            "trust": int(self.trust),
            "schema_version": SCHEMA_VERSION,
            **unusual,
        }

    @classmethod
    def from_value(
        cls,
        value: Mapping[str, Any],
        *,
        memory_id: str,
        namespace: Namespace,
        stored_at: datetime,
        updated_at: datetime,
        version: int = 0,
    ) -> MemoryRecord:
        """The record in a row. Values written by older versions, and in the flat namespace, are upgraded on the way.

        ``stored_at`` stands in for a missing creation time. Raises UnsupportedSchema for a value of a newer version.
        """
        if not is_of_known_schema(value):
            stored = value["schema_version"]
            found = stored if isinstance(stored, int) else "that is no number"
            raise UnsupportedSchema(
                f"This memory has a schema version {found}; this package reads up to {SCHEMA_VERSION}. "
                "Update the package"
            )
        name = text_field(value, "memory_type") or ""
        name = SINGULAR_TYPES.get(name, name)
        kind = MemoryType(name) if name in MEMORY_TYPES else MemoryType.GENERAL
        labels = (namespace[1] if len(namespace) > 1 else None, text_field(value, "memory_category"))
        categories = (MemoryCategory(label) for label in labels if label in MEMORY_CATEGORIES)
        source = MemorySource.from_value(mapping_field(value, "source"))
        level = value.get("trust")
        is_level = isinstance(level, int) and not isinstance(level, bool) and level in tuple(Trust)
        return cls(
            id=memory_id,
            content=text_field(value, "content") or "",
            memory_type=kind,
            category=next(categories, MEMORY_TYPE_TO_CATEGORY[kind]),
            namespace=namespace,
            created_at=moment_field(value, "created_at") or aware(stored_at),
            updated_at=aware(updated_at),
            version=version,
            topic=text_field(value, "topic"),
            session_id=text_field(value, "session_id"),
            agent_name=text_field(value, "agent_name") or agent_in(namespace),
            extra_metadata=copied(mapping_field(value, "extra_metadata")),
            source=source,
            trust=min(Trust(level), source.trust) if is_level else source.trust,
            importance=share_field(value, "importance", DEFAULT_IMPORTANCE),
            pinned=value.get("pinned") is True,
            tags=texts_field(value, "tags"),
            valid_from=moment_field(value, "valid_from"),
            valid_to=moment_field(value, "valid_to"),
            expires_at=moment_field(value, "expires_at"),
            supersedes=texts_field(value, "supersedes"),
            superseded_by=text_field(value, "superseded_by"),
        )


def is_of_known_schema(value: Mapping[str, Any]) -> bool:
    """Whether this version of the package can read the stored ``value`` of a memory."""
    version = value.get("schema_version", 0)
    return isinstance(version, int) and version <= SCHEMA_VERSION


def why_invalid(value: Mapping[str, Any], now: datetime, as_of: datetime | None = None) -> str | None:
    """Why a stored memory does not hold at ``now``, or did not at ``as_of``; None if it does, or did.

    A namespace may also hold an application's own values, which count as empty, and memories that a newer version of
    this package wrote.
    """
    if not is_of_known_schema(value):
        return "newer"
    if not text_field(value, "content"):
        return "empty"
    is_superseded = "superseded_by" in value and bool(text_field(value, "superseded_by"))
    # Most memories have neither, and each search asks this of many.
    end = moment_field(value, "valid_to") if "valid_to" in value else None
    expiry = moment_field(value, "expires_at") if "expires_at" in value else None
    if as_of is None:
        if is_superseded:
            return "superseded"
        return "expired" if any(moment is not None and moment <= now for moment in (end, expiry)) else None
    start = moment_field(value, "valid_from") or moment_field(value, "created_at")
    if start is not None and start > as_of:
        return "later"
    if end is None and is_superseded:
        return "superseded"
    if end is not None and end <= as_of:
        return "over"
    is_expired = expiry is not None and expiry <= now  # now, not as_of: an expired memory can no longer be read
    return "expired" if is_expired else None


def holds_at(record: MemoryRecord, now: datetime) -> bool:
    """Whether ``record`` is valid at ``now``: it was not superseded and has not ended; see `why_invalid`."""
    ends = (record.valid_to, record.expires_at)
    return bool(record.content) and not record.superseded_by and all(end is None or end > now for end in ends)


def without_block(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """``metadata`` of a memory that is not, or not only, a block's any more."""
    is_block = BLOCK in metadata and isinstance(metadata.get(BLOCK_SESSIONS), list)
    own = (BLOCK, BLOCK_SESSIONS) if is_block else ()
    return {name: value for name, value in metadata.items() if name not in own}


def ended(old: MemoryRecord, new: MemoryRecord, successor_id: str | None = None) -> MemoryRecord:
    """``old``, superseded by ``new`` and valid only until ``new`` holds.

    ``successor_id`` names another memory that already states what ``new`` says and supersedes ``old`` in its place.
    """
    end = {} if old.valid_to is None else {WOULD_END: old.valid_to.isoformat()}
    return replace(
        old,
        valid_to=min(max(new.happened_at, old.happened_at), new.created_at),
        superseded_by=successor_id or new.id,
        updated_at=new.created_at,
        extra_metadata={**old.extra_metadata, **end},
    )


class MemoryLink(NamedTuple):
    """What links a memory to the memory ``memory_id``, or to the query if ``memory_id`` is None.

    ``entity`` is the entity, tag or rare word that both share, or "supersedes".
    """

    entity: str
    memory_id: str | None = None

    def __str__(self) -> str:
        """The link as a phrase for people."""
        target = "the query" if self.memory_id is None else f"memory {self.memory_id}"
        return f"linked through {self.entity!r} to {target}"


def turn_session_of(value: Mapping[str, Any]) -> str | None:
    """The session that a memory is a turn of, by its stored value; None for semantic and procedural memories.

    An event belongs to its session. What was learned does not: neighbouring memories say nothing about it.
    """
    is_turn = value.get("memory_category") == MemoryCategory.EPISODIC.value
    return text_field(value, "session_id") if is_turn else None


def entities_of(value: Mapping[str, Any]) -> list[str]:
    """The entities in a memory's stored value: those it lists, and both ends of its relations."""
    if not value.get("extra_metadata"):  # true of most memories, and recall calls this for each of its best hits
        return []
    metadata = mapping_field(value, "extra_metadata")
    entities = _items(metadata, "entities")
    named = [mapping_field({"entity": entity}, "entity").get("name", entity) for entity in entities]
    names = _listed(name for name in named if isinstance(name, str))
    relations = (texts_field({"ends": relation}, "ends") for relation in _items(metadata, "relations"))
    ends = (end for relation in relations if len(relation) == _TRIPLE for end in (relation[0], relation[2]))
    return _listed(chain(names, ends))


def tags_of(value: Mapping[str, Any]) -> list[str]:
    """The tags in a memory's stored value."""
    return _listed(texts_field(value, "tags"))


def neighbours_of(value: Mapping[str, Any]) -> list[str]:
    """The ids of the memories that this one superseded, and of the one that superseded it."""
    after = text_field(value, "superseded_by")
    return list(islice([*([after] if after else []), *texts_field(value, "supersedes")], MAX_NAMES))


def _listed(names: Iterable[str]) -> list[str]:
    return [name for name in islice(names, MAX_NAMES) if 0 < len(name) <= MAX_NAME_CHARACTERS]


def _items(metadata: Mapping[str, Any], name: str) -> list[Any]:
    found = metadata.get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []


T = TypeVar("T")
WEAK_RELEVANCE: Final = 0.1
"""Below this relevance, hits that answer the query and hits that do not look alike, so displays give no figure."""
LONGEST: Final = 300
"""A table cell shows this many characters of a text."""
SHORTEST: Final = 80
"""Its repr shows this many."""
_BAR: Final = 80


def _now_iso() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class MemoryStoreDocument:
    """A recalled memory: its id, stored value, your own metadata, and how well it matched.

    ``score`` orders the hits of one recall, higher first. ``relevance``, from 0 to 1, estimates how likely the memory
    answers the query. Both are None if nothing was ranked. ``explanation`` splits the score by kind of evidence, and
    ``links`` lists the links that raised it, if you asked for them. ``version`` grows with each write; 0 means unknown.
    ``space`` names the `Space` that it belongs to; None if it is the user's own.
    """

    id: str
    value: dict[str, Any]
    metadata: dict[str, Any]
    score: float | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    relevance: float | None = None
    explanation: dict[str, float] | None = None
    links: tuple[MemoryLink, ...] = ()
    version: int = 0
    space: str | None = None

    def __repr__(self) -> str:
        """Its id, type and the beginning of its text, for people."""
        content = self.content if len(self.content) <= SHORTEST else f"{self.content[: SHORTEST - 1]}…"
        parts = [repr(self.id), *([self.memory_type] if self.memory_type else []), repr(content)]
        return f"{type(self).__name__}({', '.join(parts)})"

    @classmethod
    def of(cls, record: MemoryRecord, score: float | None = None) -> MemoryStoreDocument:
        """A document with copies of the record's values: records are cached, documents belong to the caller."""
        value = record.to_value()  # of which only the metadata are the record's own
        value["extra_metadata"] = copied(value["extra_metadata"])
        return cls(
            id=record.id,
            value=value,
            metadata=copied(dict(record.extra_metadata)),
            score=score,
            created_at=record.created_at,
            updated_at=record.updated_at,
            version=record.version,
            space=space_in(record.namespace) if record.namespace else None,
        )

    @property
    def content(self) -> str:
        """The memory's text."""
        return str(self.value.get("content") or "")

    @property
    def topic(self) -> str | None:
        """The memory's topic."""
        return self.value.get("topic")

    @property
    def memory_type(self) -> str | None:
        """The name of the memory's type."""
        return self.value.get("memory_type")

    @property
    def memory_category(self) -> str | None:
        """The stored category, else the one that the type belongs to."""
        if stored := self.value.get("memory_category"):
            return str(stored)
        return get_category_for_type(self.memory_type).value if self.memory_type else None

    @property
    def tags(self) -> list[str]:
        """The memory's labels; ``value`` names them only if there are any."""
        return list(self.value.get("tags") or ())

    @property
    def importance(self) -> float:
        """From 0 to 1; ``value`` names it only if it is not the default."""
        return float(self.value.get("importance", DEFAULT_IMPORTANCE))

    @property
    def pinned(self) -> bool:
        """Whether it is always in the prompt's profile and never forgotten; ``value`` names it only then."""
        return self.value.get("pinned") is True

    @property
    def source(self) -> MemorySource:
        """Where the memory comes from."""
        return MemorySource.from_value(self.value.get("source") or {})

    @property
    def created_at_iso(self) -> str | None:
        """When it was first stored, in ISO 8601."""
        return self.created_at and self.created_at.isoformat()

    @property
    def updated_at_iso(self) -> str | None:
        """When it was last written, in ISO 8601."""
        return self.updated_at and self.updated_at.isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMemory:
    """A memory that waits for confirmation, and the memories (``ends``) that it supersedes once approved.

    ``document`` holds the evidence: its value's ``source`` names thread, messages and tool, its metadata the ``job``.
    The proposal lapses at ``expires_at``.
    """

    document: MemoryStoreDocument
    proposed_at: datetime
    expires_at: datetime
    why: str
    ends: tuple[MemoryStoreDocument, ...] = ()

    @property
    def id(self) -> str:
        """The proposal's id, which the memory keeps once approved."""
        return self.document.id


class MemoryPage(list[T]):
    """A page of results. Pass ``next_cursor`` as ``after`` to get the next page; it is None on the last one."""

    def __init__(self, items: Iterable[T] = (), next_cursor: str | None = None) -> None:
        super().__init__(items)
        self.next_cursor = next_cursor

    def _repr_html_(self) -> str | None:
        """A table of memories for notebooks; None for a page of something else."""
        memories = [one for one in self if isinstance(one, MemoryStoreDocument)]
        rows = [[one.id, one.content, one.memory_type, one.topic, one.created_at] for one in memories]
        if len(rows) < len(self):
            return None
        return table(counted_memories(len(rows)), ["id", "memory", "type", "topic", "stored"], rows)


def counted_memories(count: int) -> str:
    """How many memories there are: "1 memory", "2 memories"."""
    return f"{count} {'memory' if count == 1 else 'memories'}"


class RecalledMemories(list[MemoryStoreDocument]):
    """The memories that a recall found. ``left_out`` lists those it dropped, each with the reason, if you asked.

    ``by_meaning``: whether meaning was compared, not only words. ``reason`` says why it was not, or what else of the
    ranking failed; None if nothing did, or if there was no query.
    """

    def __init__(
        self, memories: Iterable[MemoryStoreDocument] = (), *, by_meaning: bool = False, reason: str | None = None
    ) -> None:
        super().__init__(memories)
        self.left_out: list[tuple[MemoryStoreDocument, str]] = []
        self.by_meaning = by_meaning
        self.reason = reason

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        shares = dict.fromkeys(name for memory in self for name in memory.explanation or {})
        most = max((memory.score for memory in self if memory.score), default=1.0)
        rows = [
            [
                memory.content,
                memory.memory_type,
                memory.created_at,
                None if memory.relevance is None else Bar(f"{memory.relevance:.0%}", memory.relevance),
                None if memory.score is None else Bar(f"{memory.score:.3g}", memory.score / most),
                *(f"{(memory.explanation or {}).get(name, 0.0):.3g}" for name in shares),
            ]
            for memory in self
        ]
        found = table(counted_memories(len(self)), ["memory", "type", "stored", "relevance", "score", *shares], rows)
        left = [[memory.content, reason] for memory, reason in self.left_out]
        return found + (table("Left out", ["memory", "why"], left) if left else "")


@dataclass
class MemoryData:
    """The fields of a memory's stored value as a flat data class."""

    content: str
    memory_type: str
    memory_category: str = ""
    session_id: str | None = None
    topic: str | None = None
    agent_name: str | None = None
    extra_metadata: dict[str, Any] | None = None
    created_at: str = field(default_factory=_now_iso)

    def __post_init__(self) -> None:
        self.memory_category = self.memory_category or get_category_for_type(self.memory_type).value


@dataclass
class MemoryMetadata:
    """Who and what a memory belongs to, for stores that keep metadata apart from the value."""

    user_id: str
    memory_type: str = "general"
    memory_category: str = MemoryCategory.SEMANTIC.value
    created_at: str = field(default_factory=_now_iso)
    session_id: str | None = None
    topic: str | None = None
    agent_name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, merged with ``extra``, whose keys never replace them."""
        own = {name: value for name, value in vars(self).items() if name != "extra" and value}
        return {**self.extra, **own}


class Bar(NamedTuple):
    """A figure and the bar beside it; ``share`` is the bar's length, from 0 to 1 of the longest bar."""

    figure: str
    share: float


def shown(cell: object) -> str:
    """A cell as HTML: text cut and escaped, bidirectional and invisible characters visible; times to the minute."""
    if isinstance(cell, Bar):
        width = round(_BAR * min(max(cell.share, 0.0), 1.0))
        style = f"display:inline-block;background:#4a90a4;height:.7em;width:{width}px"
        return f'<span style="{style}"></span> {shown(cell.figure)}'
    if isinstance(cell, datetime):
        return f"{cell:%Y-%m-%d %H:%M}"
    text = "" if cell is None else str(cell)
    if len(text) > LONGEST:
        text = text[:LONGEST] + "…"
    return escape(harmless(text))


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table of ``rows``, each cell formatted by `shown`."""
    cell = "style='text-align:left;vertical-align:top;max-width:40em;overflow-wrap:anywhere'"
    head = "".join(f"<th {cell}>{shown(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td {cell}>{shown(one)}</td>" for one in row) + "</tr>" for row in rows)
    title = f"<caption style='text-align:left'>{shown(caption)}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
