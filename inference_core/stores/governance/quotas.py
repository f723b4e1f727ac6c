"""A backend that counts each user's memories in the transaction of each write, and refuses what goes beyond a quota."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from inference_core.clock import SystemClock
from inference_core.errors import QuotaExceeded, StoreError, VersionConflict
from inference_core.memory.namespaces import GLOBAL, Namespace, holds_memories
from inference_core.memory.quota import (
    Changed,
    Counts,
    Quota,
    Quotas,
    counted,
    counts_of,
    counts_place,
    counts_to_json,
)
from inference_core.memory.text import encode_json
from inference_core.stores.backend import (
    EXTRA,
    Backend,
    Expire,
    Key,
    Measure,
    NotCounted,
    Outcome,
    Put,
    Remove,
    Row,
    Write,
    answered,
)
from inference_core.stores.encryption.sealed import SealedBackend
from inference_core.stores.governance.holds import holding

_ATTEMPTS: Final = 8
_VERIFIED_S: Final = 600.0
"""How often counts are verified: processes without limits, and imports by them, do not count what they write."""
_REFUSED_S: Final = 60.0
"""How often counts are verified while writes are refused."""
_MOST_KNOWN: Final = 10_000


def limited(backend: Backend, quotas: Quotas | Quota | None) -> Backend:
    """``backend`` with holds, and with limits to what users may store if there are any.

    On a store of another library, whose batches are not atomic, the limits are exact in one process.
    """
    known = quotas if isinstance(quotas, Quotas) else Quotas(quotas)
    backend = holding(backend)
    return cast("Backend", _Limited(backend, known)) if known.quota.has_sizes else backend


class _Limited:
    """Passes all calls on to ``backend``, and adds a `Measure` to a batch for each user whose memories it changes."""

    def __init__(self, backend: Backend, quotas: Quotas) -> None:
        self._backend = backend
        self._quotas = quotas
        # A sealed value tells the database neither its size nor its agent.
        self._counts_inside = backend.capabilities.atomic and not isinstance(self.beneath, SealedBackend)
        self._lock = threading.Lock()
        self._verified: dict[str, float] = {}
        """When the counts of users were last compared with their rows."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @property
    def beneath(self) -> Backend:
        """The backend without limits and holds."""
        return getattr(self._backend, "beneath", self._backend)

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Like `Backend.apply`; a batch beyond the quota is refused with QuotaExceeded."""
        measures: list[list[Measure]] = []
        for batch in batches:
            changing = [write for write in batch if isinstance(write, Put | Remove | Expire)]
            roots = {one.namespace[0] for one in changing if holds_memories(one.namespace)} - {GLOBAL}
            removed = {(one.namespace, one.key) for one in changing if roots}  # a purge removes the counts too
            places = [place for place in map(counts_place, sorted(roots)) if place not in removed]
            measures.append([Measure(namespace=name, key=key, quota=self._quotas.quota) for name, key in places])
        for root in {one.namespace[0] for some in measures for one in some}:
            with suppress(StoreError):  # then the write says so itself; if it does not, nothing is wrong with it
                self._verify(root, _VERIFIED_S)
        outcomes: dict[int, Outcome] = {}
        waiting = list(range(len(batches)))
        for _ in range(_ATTEMPTS):
            outcomes |= self._sent({at: (batches[at], measures[at]) for at in waiting})
            waiting = [at for at in waiting if self._may_go_again(measures, outcomes, at)]
            if not waiting:
                break
        for some, outcome in zip(measures, (outcomes[at] for at in range(len(batches))), strict=True):
            for one in some if isinstance(outcome, list) else ():
                for counts in one.found:
                    self._quotas.note(one.namespace[0], counts)
        ends = answered([outcomes[at] for at in range(len(batches))])
        return [end[: len(batch)] if isinstance(end, list) else end for batch, end in zip(batches, ends, strict=True)]

    def _sent(self, batches: Mapping[int, tuple[Sequence[Write], Sequence[Measure]]]) -> dict[int, Outcome]:
        """The outcome of each of ``batches``. What fails is theirs alone: others may be stored by now."""
        try:
            if self._counts_inside:
                found = self._backend.apply([[*batch, *some] for batch, some in batches.values()])
                return dict(zip(batches, found, strict=True))
        except StoreError as error:
            return dict.fromkeys(batches, error)
        outcomes: dict[int, Outcome] = {}
        for at, (batch, some) in batches.items():
            try:
                outcomes[at] = self._in_turn(batch, some)
            except StoreError as error:
                outcomes[at] = error
        return outcomes

    def _in_turn(self, batch: Sequence[Write], measures: Sequence[Measure]) -> Outcome:
        """Applies ``batch`` with counts that this process computes from what it reads; again if they have changed."""
        addresses = [(write.namespace, write.key) for write in batch]
        places = [(one.namespace, one.key) for one in measures]
        beneath = self.beneath
        with self._lock:
            while True:
                rows = self._backend.get([*addresses, *places])
                # A row that has expired counts until something removes or replaces it.
                stored = beneath.with_ended().get(addresses) if isinstance(beneath, SealedBackend) else rows
                changes: dict[Key, Changed] = {}
                for address, write, row, alive in zip(addresses, batch, stored, rows, strict=False):
                    if isinstance(write, Expire) and alive:
                        continue  # its life was extended meanwhile, so it stays
                    if isinstance(write, Put | Remove | Expire) and holds_memories(write.namespace):
                        old = changes[address][0] if address in changes else row and _stored(row)
                        changes[address] = old, write.value if isinstance(write, Put) else None
                puts: list[Write] = []
                try:
                    for one, row in zip(measures, rows[len(batch) :], strict=True):
                        of_user = [change for (name, _), change in changes.items() if name[0] == one.namespace[0]]
                        if (counts := one.counted(of_user, counts_of(row.value) if row else None)) is not None:
                            puts.append(_put(one.namespace, one.key, counts, row.version if row else 0))
                except (QuotaExceeded, NotCounted) as error:
                    return error
                (outcome,) = self._backend.apply([[*batch, *puts]])
                versions = [row and row.version for row in rows[len(batch) :]]
                if not isinstance(outcome, VersionConflict) or versions == [
                    row and row.version for row in self._backend.get(places)
                ]:
                    return outcome

    def _may_go_again(self, measures: Sequence[Sequence[Measure]], outcomes: dict[int, Outcome], at: int) -> bool:
        """Whether the batch was refused for missing or wrong counts, which have now been corrected.

        If they cannot be, that is its outcome.
        """
        roots = [one.namespace[0] for one in measures[at]]
        try:
            if isinstance(outcomes[at], NotCounted):
                for root in roots:
                    self._recount(root)
                return True
            return isinstance(outcomes[at], QuotaExceeded) and any(self._verify(root, _REFUSED_S) for root in roots)
        except StoreError as error:
            outcomes[at] = error
            return False

    def _verify(self, root: str, every_s: float) -> bool:
        """Compares the counts with the rows, at most every ``every_s`` seconds. Returns whether they were wrong."""
        now = time.monotonic()
        if now - self._verified.get(root, -every_s) < every_s:
            return False
        if len(self._verified) > _MOST_KNOWN:
            self._verified.clear()
        self._verified[root] = now
        (row,) = self._backend.get([counts_place(root)])
        scopes = [name for name in self._backend.namespaces((root,)) if holds_memories(name)]
        rows = sum(one.rows for one in self._backend.tally(scopes)) if scopes else 0
        return (row is None or counts_of(row.value).get("", (0, 0))[0] != rows) and self._recount(root)

    def _recount(self, root: str) -> bool:
        """Counts the user's rows anew, again if others write the counts meanwhile. Returns whether they were wrong."""
        namespace, key = counts_place(root)
        for _ in range(_ATTEMPTS):
            (row,) = self._backend.get([(namespace, key)])
            found = self._backend.inspect(root)
            there = (_stored(one) for one in found if isinstance(one, Row) and holds_memories(one.namespace))
            put = _put(namespace, key, counted({}, ((None, value) for value in there)), row.version if row else 0)
            if row and counts_to_json(counts_of(row.value)) == put.value:
                return False
            (outcome,) = self._backend.apply([[put]])
            if isinstance(outcome, list):
                return True
        return False


def _stored(row: Row) -> str:
    """The value of ``row`` as it was put, without what is added to it in another library's store."""
    return encode_json({name: part for name, part in row.value.items() if name != EXTRA}, what="memory")


def _put(namespace: Namespace, key: str, counts: Counts, expected: int | None = None) -> Put:
    value, now = counts_to_json(counts), SystemClock().now()
    return Put(namespace=namespace, key=key, value=value, updated_at=now, expected=expected)
