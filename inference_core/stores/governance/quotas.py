"""A backend that counts each user's memories in the transaction of each write, and refuses what goes beyond a quota.

Takes secrets out of writes, whatever made them: the last check before a database.

The guard that it applies, and that earlier steps have usually applied already, is in `memory/redaction.py`.

How long the memories of a store live: the defaults of `open_store`, given to memories as they are written.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from langgraph.store.base import TTLConfig

from inference_core.clock import Clock, SystemClock
from inference_core.errors import ConfigurationError, InvalidInput, QuotaExceeded, StoreError, VersionConflict
from inference_core.memory.namespaces import GLOBAL, Namespace, holds_memories, is_item
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
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import Guard
from inference_core.memory.secrets import quoted
from inference_core.memory.text import encode_json
from inference_core.memory.types import validate_memory_category
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import (
    EXTRA,
    Backend,
    Expire,
    Expiry,
    Key,
    Measure,
    NotCounted,
    Outcome,
    Put,
    Remove,
    Row,
    Touch,
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


def redacted(guard: Guard, put: Put) -> Put:
    """``put`` without secrets in value and text; a text that changes gets new terms and vectors.

    An application's own items, and rows without texts, stay as they are.
    """
    if guard.is_off or is_item(put.namespace):
        return put
    value, document = guard.stored(put.value), put.document
    if document and (text := guard.text(document.text)) is not document.text:
        document = Document.soon_of(text, document.situation)
    return put if value is put.value and document is put.document else replace(put, value=value, document=document)


def without_secrets(guard: Guard, batch: Sequence[Write]) -> list[Write]:
    """``batch`` with each row to be put `redacted`."""
    return [redacted(guard, one) if isinstance(one, Put) else one for one in batch]


FRESH: Final = 0.1
"""A read extends a time to live once this share of it has passed."""
_MAX_MINUTES: Final = 100 * 366 * 24 * 60
_MOST_NOTED: Final = 10_000
_KNOWN: Final = ("default_ttl", "refresh_on_read", "sweep_interval_minutes", "categories")


class MemoryTTLConfig(TTLConfig, total=False):
    """LangGraph's TTLConfig, and minutes for the memories of single ``categories``; None: they do not expire."""

    categories: Mapping[str, float | None]


def expiry_in(now: datetime, minutes: float) -> Expiry:
    """The expiry of what is put ``now`` and lives for so many minutes. Raises InvalidInput."""
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes <= _MAX_MINUTES:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidInput(f"ttl is in minutes, above 0 and at most {_MAX_MINUTES:,}; got {quoted(minutes)}")
    ttl = timedelta(minutes=minutes)
    return Expiry(now + ttl, ttl)


def parse_ttl(text: str) -> MemoryTTLConfig:
    """The defaults that ``text`` names in minutes, such as ``1440``, or ``1440,episodic=60,semantic=none``.

    Raises ConfigurationError.
    """
    config = MemoryTTLConfig()
    categories: dict[str, float | None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        category, separator, number = (piece.strip() for piece in part.rpartition("="))
        try:
            minutes = None if number == "none" else float(number)
        except ValueError as error:
            raise ConfigurationError(f"{quoted(part)} is no time; write minutes: 1440, or 1440,episodic=60") from error
        if separator:
            categories[category] = minutes
        else:
            config["default_ttl"] = minutes
    config["categories"] = categories
    return config


@dataclass(frozen=True, slots=True)
class MemoryLifetimes:
    """How long memories live, by category; ``default`` for the others, None: forever. Safe for several threads."""

    default: timedelta | None
    categories: Mapping[str, timedelta | None]
    extends: bool
    clock: Clock
    _extended: dict[Key, datetime] = field(default_factory=dict[Key, datetime])

    @classmethod
    def of(cls, config: TTLConfig | MemoryTTLConfig, clock: Clock) -> MemoryLifetimes:
        """Those that ``config`` names. Raises ConfigurationError."""
        given = cast("MemoryTTLConfig", config)
        if unknown := [name for name in given if name not in _KNOWN]:
            raise ConfigurationError(f"ttl: unknown {', '.join(unknown)}; known: {', '.join(_KNOWN)}")

        def checked(minutes: float | None) -> timedelta | None:
            return None if minutes is None else expiry_in(clock.now(), minutes).ttl

        try:
            categories = {
                validate_memory_category(name): checked(minutes)
                for name, minutes in (given.get("categories") or {}).items()
            }
            return cls(checked(given.get("default_ttl")), categories, given.get("refresh_on_read", True), clock)
        except InvalidInput as error:
            raise ConfigurationError(f"ttl: {error}") from error

    def stamped(self, batch: Sequence[Write]) -> list[Write]:
        """``batch`` with an expiry for each memory without one, except pinned ones and those with ``expires_at``."""
        stamped = list(batch)
        for at, put in enumerate(batch):
            if not isinstance(put, Put) or put.expiry or not holds_memories(put.namespace):
                continue
            ttl = self.categories.get(put.namespace[1], self.default)
            if ttl is None:
                continue
            value = json.loads(put.value)
            if value.get("pinned") is not True and not value.get("expires_at"):
                stamped[at] = replace(put, expiry=Expiry(self.clock.now() + ttl, ttl))
        return stamped

    def touches(self, records: Iterable[MemoryRecord]) -> list[Touch]:
        """The writes that extend the time of what was read, unless that was done a moment ago."""
        now = self.clock.now()
        made: list[Touch] = []
        if len(self._extended) > _MOST_NOTED:
            self._extended.clear()
        for record in records if self.extends else ():
            key, ttl = (record.namespace, record.id), self.categories.get(record.category.value, self.default)
            last = max(record.updated_at, self._extended.get(key, record.updated_at))
            if ttl is not None and now - last > ttl * FRESH:
                self._extended[key] = now
                made.append(Touch(namespace=record.namespace, key=record.id, version=record.version, at=now + ttl))
        return made
