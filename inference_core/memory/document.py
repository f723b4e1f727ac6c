"""What recall returns, the plain data classes of the public API, and tables of results for notebooks.

All text in a table is escaped, and nothing in it is active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, NamedTuple, TypeVar

from inference_core.memory.namespaces import space_in
from inference_core.memory.record import DEFAULT_IMPORTANCE, MemoryLink, MemoryRecord
from inference_core.memory.text import copied, harmless
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryCategory, get_category_for_type

T = TypeVar("T")
WEAK_RELEVANCE: Final = 0.1
"""Below this relevance, hits that answer the query and hits that do not look alike, so displays give no figure."""
LONGEST: Final = 300
"""A table cell shows this many characters of a text."""
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

    @classmethod
    def of(cls, record: MemoryRecord, score: float | None = None) -> MemoryStoreDocument:
        """A document with copies of the record's values: records are cached, documents belong to the caller."""
        return cls(
            id=record.id,
            value=copied(record.to_value()),
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
        shares = dict.fromkeys(name for one in self for name in one.explanation or {})
        most = max((one.score for one in self if one.score), default=1.0)
        rows = [
            [
                one.content,
                one.memory_type,
                one.created_at,
                None if one.relevance is None else Bar(f"{one.relevance:.0%}", one.relevance),
                None if one.score is None else Bar(f"{one.score:.3g}", one.score / most),
                *(f"{(one.explanation or {}).get(name, 0.0):.3g}" for name in shares),
            ]
            for one in self
        ]
        found = table(f"{len(self)} memories", ["memory", "type", "stored", "relevance", "score", *shares], rows)
        left = [[one.content, reason] for one, reason in self.left_out]
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
    head = "".join(f"<th {cell}>{shown(one)}</th>" for one in headings)
    body = "".join("<tr>" + "".join(f"<td {cell}>{shown(one)}</td>" for one in row) + "</tr>" for row in rows)
    title = f"<caption style='text-align:left'>{shown(caption)}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
