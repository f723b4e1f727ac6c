"""How often memories are recalled, and when last: noted without waiting, written in batches off the read path.

Each figure is a row of its own beside the memory's namespace, so that noting one changes neither the memory, its
version nor any index, and is in nobody's way who writes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from inference_core.errors import InferenceCoreError, VersionConflict
from inference_core.memory.fields import moment_field
from inference_core.memory.namespaces import USAGE, beside, holds_memories
from inference_core.memory.text import encode_json
from inference_core.stores.backend import Backend, Delete, Key, Put, Row, Write
from inference_core.stores.background import Background
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
ACCESS_INTERVAL_S: Final = 30.0
MEMORIES_AT_ONCE: Final = 500
"""So many noted memories are written before the interval is over."""
_MOST_NOTED: Final = 20_000
_PORTION: Final = 200
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Usage:
    """How often a memory was recalled, and when last; ``last`` None: never."""

    count: int = 0
    last: datetime | None = None

    def joined(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(self.count + other.count, max(filter(None, (self.last, other.last)), default=None))

    @classmethod
    def of(cls, row: Row | None) -> Usage:
        """What a row says; nothing without one."""
        if row is None:
            return cls()
        count = row.value.get("count")
        return cls(count if isinstance(count, int) else 0, moment_field(row.value, "last"))


class AccessCounts(Background):
    """Notes recalls in this process and writes them every ``interval_s`` seconds, when many wait, and at the end.

    What was not written when the process dies is lost. While the database is away notes are kept, up to a bound.
    """

    def __init__(self, backend: Backend, writer: GroupWriter, interval_s: float = ACCESS_INTERVAL_S) -> None:
        super().__init__("memory-access-counts")
        self._backend = backend
        self._writer = writer
        self._interval_s = interval_s
        self._noted: dict[Key, Usage] = {}
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._is_started = False

    def note(self, keys: Iterable[Key], at: datetime) -> None:
        """The memories of ``keys`` were recalled ``at``; what is no memory is passed over. Waits for nothing."""
        with self._lock:
            for key in keys:
                if holds_memories(key[0]) and (key in self._noted or len(self._noted) < _MOST_NOTED):
                    known = self._noted.get(key)
                    self._noted[key] = Usage(known.count + 1 if known else 1, at)
            waiting = len(self._noted)
            if waiting and not self._is_started and not self._closed.is_set():
                self._is_started = True
                self._start()
        if waiting >= MEMORIES_AT_ONCE:
            self.wake()

    def flush(self) -> None:
        """Writes what was noted. Raises StoreError; what could not be written is noted still."""
        with self._flushing:
            waiting = self._taken()
            try:
                while waiting:
                    self._write(waiting[-1])
                    waiting.pop()
            finally:
                for noted in waiting:
                    self._put_back(noted)

    def close(self) -> None:
        """Writes what was noted, if the database answers soon."""
        with self._lock:
            self._closed.set()
        if self._is_started:
            super().close()

    def _work(self) -> None:
        is_over = False
        while not is_over:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            is_over = self._closed.is_set()
            try:
                self.flush()
            except InferenceCoreError as error:
                _LOG.info("Access counts are written later: %s", error)

    def _taken(self) -> list[dict[Key, Usage]]:
        """What was noted, in portions of one user each."""
        with self._lock:
            noted, self._noted = self._noted, {}
        by_user: dict[str, list[Key]] = {}
        for key in noted:
            by_user.setdefault(key[0][0], []).append(key)
        return [
            {key: noted[key] for key in keys[at : at + _PORTION]}
            for keys in by_user.values()
            for at in range(0, len(keys), _PORTION)
        ]

    def _put_back(self, noted: Mapping[Key, Usage]) -> None:
        with self._lock:
            for key, usage in noted.items():
                self._noted[key] = self._noted.get(key, Usage()).joined(usage)

    def _write(self, noted: Mapping[Key, Usage]) -> None:
        """Adds ``noted`` to what is stored; of memories that are gone nothing is kept."""
        keys = list(noted)
        for _ in range(_ATTEMPTS):
            memories = self._backend.get(keys)
            figures = self._backend.get([(beside(namespace, USAGE), key) for namespace, key in keys])
            there = [(key, row) for key, row, memory in zip(keys, figures, memories, strict=True) if memory]
            try:
                if there:
                    self._writer.submit([_put(key, row, noted[key]) for key, row in there]).result()
            except VersionConflict:
                continue
            return
        _LOG.info("Others write the same access counts; %d are written later", len(keys))
        self._put_back(noted)


def _put(key: Key, row: Row | None, noted: Usage) -> Put:
    return usage_put(key, Usage.of(row).joined(noted), expected=row.version if row else 0)


def usage_put(key: Key, usage: Usage, expected: int | None = None) -> Put:
    """The write that makes ``usage`` the figures of the memory at ``key``, if they are at version ``expected``."""
    namespace, name = key
    value = {"count": usage.count, "last": usage.last and usage.last.isoformat()}
    return Put(
        namespace=beside(namespace, USAGE),
        key=name,
        value=encode_json(value, what="access count"),
        updated_at=usage.last or datetime.now(UTC),
        expected=expected,
    )


def with_their_usage(batch: Sequence[Write]) -> list[Write]:
    """``batch``, and behind it the writes that remove the figures of the memories that it removes."""
    gone = [
        (beside(write.namespace, USAGE), write.key)
        for write in batch
        if isinstance(write, Delete) and holds_memories(write.namespace)
    ]
    named = {(write.namespace, write.key) for write in batch} if gone else set[Key]()
    return [*batch, *(Delete(namespace=place, key=key) for place, key in gone if (place, key) not in named)]
