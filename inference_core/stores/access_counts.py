"""Access counts: how often memories are recalled, and when last.

The figures of a memory are a row of their own, in a namespace beside the memory's. So noting a recall changes neither
the memory nor its version nor any index, and never blocks a writer of the memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from inference_core.errors import VersionConflict
from inference_core.memory.namespaces import FORGOTTEN, USAGE, holds_memories, sidecar_namespace
from inference_core.memory.text import encode_json, moment_field
from inference_core.stores.backend import Backend, Key, Put, Remove, Row, Write
from inference_core.stores.governance.fence import fences_of
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
ACCESS_INTERVAL_S: Final = 30.0
MEMORIES_AT_ONCE: Final = 500
"""Once this many memories are noted, they are written before the interval is over."""
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
        """The figures in ``row``; without a row, no recalls."""
        if row is None:
            return cls()
        count = row.value.get("count")
        return cls(count if isinstance(count, int) else 0, moment_field(row.value, "last"))


class AccessCounts:
    """Notes recalls in this process until they are written; calls ``wake`` when many wait.

    What is not yet written when the process dies is lost. While the database is away, notes are kept up to a bound.
    """

    def __init__(self, backend: Backend, writer: GroupWriter, wake: Callable[[], None] = lambda: None) -> None:
        self._backend = backend
        self._writer = writer
        self._fences = fences_of(backend)
        self._wake = wake
        self._noted: dict[str, dict[Key, Usage]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def note(self, keys: Iterable[Key], at: datetime) -> None:
        """Notes that the memories at ``keys`` were recalled ``at``; ignores other rows. Never waits for the database.

        A read-only store keeps no figures.
        """
        if not self._backend.capabilities.writable:
            return
        with self._lock:
            for key in keys:
                if holds_memories(key[0]):
                    self._add(key, Usage(1, at))
            waiting = self._count
        if waiting >= MEMORIES_AT_ONCE:
            self._wake()

    def flush(self) -> None:
        """Writes what was noted so far. Raises StoreError; what could not be written stays noted."""
        with self._lock:
            portions = sum(-(-len(noted) // _PORTION) for noted in self._noted.values())
        for _ in range(portions):
            self.write_portion()

    def write_portion(self) -> bool:
        """Writes a portion of one user's figures. Returns whether to go on at once.

        Raises StoreError. What could not be written stays noted.
        """
        # Two locks: `_flushing` admits one portion at a time, also while the database works; `_lock` is not held during
        # that, so that `note` does not wait for the database.
        with self._flushing:
            with self._lock:
                user = next(iter(self._noted), None)
                if user is None:
                    return False
                of_user = self._noted[user]
                noted = {key: of_user.pop(key) for key in list(islice(of_user, _PORTION))}
                if not of_user:
                    del self._noted[user]
                self._count -= len(noted)
            is_written = False
            try:
                is_written = self._write(noted)
            finally:
                if not is_written:
                    with self._lock:
                        for key, usage in noted.items():
                            self._add(key, usage)
            if not is_written:
                _LOG.info("Others write the same access counts; %d are written later", len(noted))
            return is_written and self._count > 0

    def _add(self, key: Key, usage: Usage) -> None:
        of_user = self._noted.get(key[0][0], {})
        if key in of_user:
            of_user[key] = of_user[key].joined(usage)
        elif self._count < _MOST_NOTED:
            self._noted.setdefault(key[0][0], of_user)[key] = usage
            self._count += 1

    def _write(self, noted: Mapping[Key, Usage]) -> bool:
        """Adds ``noted`` to what is stored, except for memories that are gone. Returns False if others were faster."""
        keys = list(noted)
        fence = self._fences.checks([keys[0][0][0]])
        for attempt in range(1, _ATTEMPTS + 1):
            # Figures that cannot be read seem absent, and conflict with that; the last attempt replaces them whatever
            # is there, since all other figures would have to wait.
            absent = None if attempt == _ATTEMPTS else 0
            memories = self._backend.get(keys)
            figures = self._backend.get([(sidecar_namespace(namespace, USAGE), key) for namespace, key in keys])
            there = [(key, row) for key, row, memory in zip(keys, figures, memories, strict=True) if memory]
            try:
                if there:
                    self._writer.submit(
                        [
                            usage_put(key, Usage.of(row).joined(noted[key]), expected=row.version if row else absent)
                            for key, row in there
                        ]
                        + fence
                    ).result()
            except VersionConflict:
                fence = self._fences.read([keys[0][0][0]])  # an erased user's memories are not there any more
                continue
            return True
        return False


def usage_put(key: Key, usage: Usage, expected: int | None = None) -> Put:
    """The write that makes ``usage`` the figures of the memory at ``key``, if they are at version ``expected``."""
    namespace, name = key
    value = {"count": usage.count, "last": usage.last and usage.last.isoformat()}
    return Put(
        namespace=sidecar_namespace(namespace, USAGE),
        key=name,
        value=encode_json(value, what="access count"),
        updated_at=usage.last or datetime.now(UTC),
        expected=expected,
    )


def with_sidecars(batch: Sequence[Write]) -> list[Write]:
    """``batch``, and behind it the writes that remove the figures and earlier texts of the memories that it removes."""
    gone = [
        (sidecar_namespace(write.namespace, place), write.key)
        for write in batch
        if isinstance(write, Remove) and holds_memories(write.namespace)
        for place in (USAGE, FORGOTTEN)
    ]
    named = {(write.namespace, write.key) for write in batch} if gone else set[Key]()
    return [*batch, *(Remove(namespace=place, key=key) for place, key in gone if (place, key) not in named)]
