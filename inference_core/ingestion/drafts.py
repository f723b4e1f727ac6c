"""Drafts: messages as memories word for word, and the marks of messages that were taken in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from inference_core.clock import Clock
from inference_core.drivers import Plan
from inference_core.errors import InvalidMemory
from inference_core.ingestion.messages import Message, mended, session_label
from inference_core.ingestion.splitting import split_text
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import canonical_text, digest_of, optional_text
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.services.operations.scope import MemoryScope, UserId, put_of
from inference_core.stores.backend import Put
from inference_core.stores.engine import StoreEngine

MARKS: Final = "ingested"
"""Second label of the namespace, below the user, that holds the marks."""
_NO_LIMIT: Final = 1 << 40
_TICK: Final = timedelta(microseconds=1)


def marks_of(user_id: UserId) -> Namespace:
    """The namespace of the marks of this user's messages."""
    return (encode_label(user_id), MARKS)


def mark(namespace: Namespace, key: str, clock: Clock) -> Put:
    """The write that marks a message as taken in; it fails if the message is marked already."""
    return Put(namespace=namespace, key=key, value="{}", updated_at=clock.now(), expected=0)


def unmarked(engine: StoreEngine, marks: Namespace, keys: Iterable[str]) -> Plan[list[str]]:
    """Plan: those of ``keys`` without a mark among ``marks``. Raises StoreError."""
    asked = list(keys)
    rows = yield from engine.get([(marks, key) for key in asked])
    return [key for key, row in zip(asked, rows, strict=True) if row is None]


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be written: the key of its mark, and its memories."""

    key: str
    session: str
    records: Sequence[MemoryRecord]

    @property
    def puts(self) -> list[Put]:
        """The writes of its memories."""
        return [put_of(record) for record in self.records]


class Drafts:
    """Makes drafts of one user's messages; ``metadata`` is added to each memory.

    Creation times increase, since they order the memories of a session.
    """

    def __init__(self, scope: MemoryScope, user_id: UserId, metadata: Mapping[str, Any] | None = None) -> None:
        self._scope = scope
        self._metadata = dict(metadata or {})
        self._namespace = scope.namespaces.namespace_for(user_id, MemoryCategory.EPISODIC)
        self._marks = marks_of(user_id)
        self._last: datetime | None = None

    def of(self, message: Message) -> Draft | None:
        """The draft of ``message``; None if it has no text.

        The author's name goes before the text unless it takes half the room; a text that is too long is split.
        """
        try:
            text = canonical_text(mended(message.text), max_bytes=_NO_LIMIT)
        except InvalidMemory:
            return None
        name = message.position if message.id is None else mended(message.id)
        key = digest_of([*self._namespace, message.session_id and mended(message.session_id), name, text])
        limit = self._scope.max_content_bytes
        author = optional_text(mended(message.author or ""), what="author")
        head = f"{author}: " if author and 2 * len(author.encode()) < limit else ""
        contents = [head + part for part in split_text(text, limit - len(head.encode()))]
        if len(contents) == 1:
            records = [self._record(message, key, contents[0])]
        else:
            records = [
                self._record(message, f"{key}-{part}", content, part=part, parts=len(contents))
                for part, content in enumerate(contents, 1)
            ]
        return Draft(key, message.session_id or "", records)

    def fresh(self, drafts: Sequence[Draft]) -> Plan[list[Draft]]:
        """Plan: those of ``drafts`` without a mark, each once. Raises StoreError."""
        known = {draft.key: draft for draft in drafts}
        keys = yield from unmarked(self._scope.engine, self._marks, known)
        return [known[key] for key in keys]

    def marks_of(self, drafts: Sequence[Draft]) -> list[Put]:
        """The writes that mark the messages of ``drafts``."""
        return [mark(self._marks, draft.key, self._scope.clock) for draft in drafts]

    def _record(self, message: Message, memory_id: str, content: str, **extra: int) -> MemoryRecord:
        now = self._scope.clock.now()
        self._last = now = now if self._last is None else max(now, self._last + _TICK)
        source = MemorySource(origin=message.origin, message_ids=() if message.id is None else (mended(message.id),))
        return MemoryRecord(
            id=memory_id,
            content=canonical_text(content, max_bytes=self._scope.max_content_bytes),
            memory_type=MemoryType.INTERACTION,
            category=MemoryCategory.EPISODIC,
            namespace=self._namespace,
            created_at=now,
            updated_at=now,
            session_id=session_label(message.session_id),
            agent_name=self._scope.namespaces.agent_name,
            extra_metadata={**self._metadata, **extra},
            source=source,
            trust=source.trust,
            valid_from=message.at,
        )
