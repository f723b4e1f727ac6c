"""MemoryRecord: the one form of a memory everywhere in the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from inference_core.clock import aware
from inference_core.errors import UnsupportedSchema
from inference_core.memory.fields import copied, mapping_field, moment_field, share_field, text_field, texts_field
from inference_core.memory.namespaces import Namespace
from inference_core.memory.trust import MemorySource, Trust
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MEMORY_TYPE_TO_CATEGORY,
    MEMORY_TYPES,
    SINGULAR_TYPES,
    MemoryCategory,
    MemoryType,
)

SCHEMA_VERSION: Final = 1
DEFAULT_IMPORTANCE: Final = 0.5
_LEVELS: Final = tuple(Trust)
CITES: Final = "cites"
"""The metadata key that lists the memories this one was derived from."""
INDEXED_FIELDS: Final = ["content", "topic"]
"""The fields of a memory that recall searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A memory with its times, source, trust and history.

    ``created_at`` is when it was first stored and never changes; ``updated_at`` is when it was last written.
    ``valid_from`` and ``valid_to`` bound when it is true in the user's world, as far as known. All instants are aware,
    in UTC. ``version`` grows by one with each write; 0 means not stored yet. ``importance`` is between 0 and 1.
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
        is_level = isinstance(level, int) and not isinstance(level, bool) and level in _LEVELS
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
            agent_name=text_field(value, "agent_name"),
            extra_metadata=copied(mapping_field(value, "extra_metadata")),
            source=source,
            trust=Trust(level) if is_level else source.trust,
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
