"""Quotas of sizes: the transaction of each write counts the user's memories, and refuses a write above a limit.

On a store of another library, whose batches are not atomic, the limits are exact in one process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from inference_core.clock import SystemClock
from inference_core.errors import QuotaExceeded, StoreError, VersionConflict
from inference_core.memory.namespaces import GLOBAL, holds_memories
from inference_core.memory.quota import Counts, Quotas, counted, counts_of, counts_place, counts_to_json
from inference_core.memory.text import encode_json
from inference_core.stores.backend import (
    EXTRA,
    Backend,
    Batch,
    Expire,
    Outdated,
    Put,
    Remove,
    Row,
    States,
    Write,
    WriteRule,
)

_VERIFIED_S: Final = 600.0
"""Seconds between two verifications of a user's counts: processes without limits write without counting."""
_REFUSED_S: Final = 60.0
"""Seconds between two verifications while writes are refused."""
_MOST_KNOWN: Final = 10_000


class QuotaCounts:
    """Gives writes to ``backend`` the rules that hold them to ``quotas``."""

    def __init__(self, backend: Backend) -> None:
        self.quotas = Quotas(None)
        self._backend = backend
        self._verified: dict[str, float] = {}
        """When the counts of users were last compared with their rows."""

    def rules(self, batch: Batch) -> list[QuotaRule]:
        """A rule for each user whose memories ``batch`` changes; none without limits."""
        if not self.quotas.quota.has_sizes:
            return []
        changing = [write for write in batch if isinstance(write, Put | Remove | Expire)]
        roots = {write.namespace[0] for write in changing if holds_memories(write.namespace)} - {GLOBAL}
        removed = {(write.namespace, write.key) for write in changing if roots}  # a purge removes the counts too
        found = [QuotaRule(self, root) for root in sorted(roots) if counts_place(root) not in removed]
        for one in found:
            with suppress(StoreError):  # then the write says so itself; if it does not, nothing is wrong with it
                self.verify(one.root, _VERIFIED_S)
        return found

    def verify(self, root: str, every_s: float) -> bool:
        """Compares the counts with the rows, at most every ``every_s`` seconds. Returns whether they were wrong."""
        now = time.monotonic()
        if now - self._verified.get(root, -every_s) < every_s:
            return False
        if len(self._verified) > _MOST_KNOWN:
            self._verified.clear()
        self._verified[root] = now
        (row,) = self._backend.get([counts_place(root)])
        namespaces = [name for name in self._backend.namespaces((root,)) if holds_memories(name)]
        rows = sum(tally.rows for tally in self._backend.tally(namespaces)) if namespaces else 0
        return (row is None or counts_of(row.value).get("", (0, 0))[0] != rows) and self.recount(root)

    def recount(self, root: str) -> bool:
        """Counts the user's rows anew, unless others write the counts meanwhile. Returns whether they were wrong."""
        (row,) = self._backend.get([counts_place(root)])
        there = [row for row in self._backend.inspect(root) if isinstance(row, Row) and holds_memories(row.namespace)]
        counts = counted({}, ((None, _without_extra(row.value)) for row in there))
        put = _put(root, counts, SystemClock().now(), row.version if row else 0)
        if row and counts_to_json(counts_of(row.value)) == put.value:
            return False
        (outcome,) = self._backend.apply([[put]])
        if isinstance(outcome, Exception) and not isinstance(outcome, VersionConflict):
            raise outcome
        return True


class QuotaRule(WriteRule):
    """Updates the counts of the user with the label ``root``; refuses a batch that raises a count above its limit."""

    def __init__(self, counts: QuotaCounts, root: str) -> None:
        self.root = root
        self._place = counts_place(root)
        self.reads, self.makes = [self._place], [self._place[0]]
        self._counts = counts
        self._after: Counts | None = None

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """The new counts. Raises QuotaExceeded, and Outdated if something is added and there are no counts yet."""
        # An expired row counts until something removes or replaces it.
        changes = [
            (_stored(before[key].value) if key in before else None, _stored(after[key].value))
            for key in after
            if key[0][0] == self.root and holds_memories(key[0])
        ]
        row = before.get(self._place)
        if row is None or not row.is_alive(now):
            if any(new for _, new in changes):
                raise Outdated(self, "The memories of this user are not counted yet")
            return []
        counts = counts_of(json.loads(row.value or ""))
        self._after = counted(counts, changes)
        self._counts.quotas.quota.check(counts, self._after)
        return [_put(self.root, self._after, now)]

    def renew(self, error: Exception) -> bool:
        """Counts the user's memories if there is no count yet or it may be wrong. Returns whether the count changed."""
        if isinstance(error, Outdated):
            return error.rule is self and self._counts.recount(self.root)
        return isinstance(error, QuotaExceeded) and self._counts.verify(self.root, _REFUSED_S)

    def landed(self, *, is_sure: bool) -> None:
        """Remembers the new counts."""
        if is_sure and self._after is not None:
            self._counts.quotas.note(self.root, self._after)


def _without_extra(value: Mapping[str, Any]) -> str:
    """The value of a row as it was put, without the field that `ForeignBackend` adds to it."""
    return encode_json({name: part for name, part in value.items() if name != EXTRA}, what="memory")


def _stored(value: str | None) -> str | None:
    return _without_extra(json.loads(value)) if value and EXTRA in value else value


def _put(root: str, counts: Counts, now: datetime, expected: int | None = None) -> Put:
    namespace, key = counts_place(root)
    return Put(namespace=namespace, key=key, value=counts_to_json(counts), updated_at=now, expected=expected)
