"""Which memories a policy forgets, and why. Pure, so that a dry run and a real one agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from inference_core.lifecycle.policy import EVERY_TYPE, ForgettingPolicy
from inference_core.lifecycle.retention import half_lives, strength
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import text_tokens
from inference_core.memory.validity import why_invalid
from inference_core.stores.accesses import Usage
from inference_core.stores.backend import Key

_SHARED_LABELS: Final = 2


class ForgettingReason(str, Enum):
    """Why a memory is forgotten. HISTORY: the memory that superseded it is forgotten."""

    EXPIRED = "expired"
    FADED = "faded"
    BUDGET = "budget"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Leaving:
    """A memory to be forgotten. ``heir`` is the memory that superseded it, which must go before."""

    record: MemoryRecord
    usage: Usage
    strength: float
    reason: ForgettingReason
    detail: str
    heir: Key | None = None

    @property
    def key(self) -> Key:
        """Where the memory is."""
        return key_of(self.record)


def key_of(record: MemoryRecord) -> Key:
    """Where ``record`` is."""
    return record.namespace, record.id


class Choice:
    """Chooses which of all of a user's ``records`` the policy forgets; ``leaving`` has them in the order of going."""

    def __init__(
        self, records: Sequence[MemoryRecord], usages: Mapping[Key, Usage], policy: ForgettingPolicy, now: datetime
    ) -> None:
        self.leaving: dict[Key, Leaving] = {}
        self._usages = usages
        self._half_lives = {
            key_of(one): half_lives(one, usages.get(key_of(one), Usage()), now, policy.half_life_days)
            for one in records
        }
        holding = {key_of(one) for one in records if why_invalid(one.to_value(), now) is None}
        self._support(records, [one for one in records if one.cites and key_of(one) in holding])
        self._ended = defaultdict[str, list[MemoryRecord]](list)
        for record in records:
            if record.superseded_by:
                self._ended[record.superseded_by].append(record)
        for record in records:
            if policy.expired and record.expires_at is not None and record.expires_at <= now:
                self._leave(record, ForgettingReason.EXPIRED, f"since {record.expires_at:%Y-%m-%d %H:%M} UTC")
            elif policy.fades(record.category) and self._strength(record) < policy.below:
                self._leave(record, ForgettingReason.FADED, f"{self._strength(record):.1%} of its strength is left")

        def rank(one: MemoryRecord) -> tuple[object, ...]:
            # What does not hold any more goes before what does, then the weaker, less important and older.
            key = key_of(one)
            return key in holding, -self._half_lives[key], one.importance, one.created_at, one.namespace, one.id

        weakest = sorted(records, key=rank)
        self._keep(policy.max_memories, weakest, "memories")
        self._keep(policy.max_tokens, weakest, "tokens")

    def _support(self, records: Sequence[MemoryRecord], citing: Sequence[MemoryRecord]) -> None:
        """Makes what a memory of ``citing`` follows from fade no faster than that memory."""
        by_id = defaultdict[str, list[MemoryRecord]](list)
        for record in records if citing else ():
            by_id[record.id].append(record)
        for one in citing:
            for source in (record for cited in one.cites for record in by_id.get(cited, ()) if _meet(record, one)):
                key = key_of(source)
                self._half_lives[key] = min(self._half_lives[key], self._half_lives[key_of(one)])

    def _strength(self, record: MemoryRecord) -> float:
        return strength(self._half_lives[key_of(record)])

    def _keep(self, budgets: Mapping[str, int], weakest: Sequence[MemoryRecord], what: str) -> None:
        """Lets the weakest go until ``budgets`` are kept, those of single types first."""
        for kind, limit in sorted(budgets.items(), key=lambda one: one[0] == EVERY_TYPE):
            group = [one for one in weakest if kind in (EVERY_TYPE, one.memory_type.value)]
            sizes = {key_of(one): text_tokens(one.content) if what == "tokens" else 1 for one in group}
            left = sum(size for key, size in sizes.items() if key not in self.leaving)
            for record in group:
                if left <= limit:
                    break
                gone = self._leave(record, ForgettingReason.BUDGET, f"more than {limit} {what} ({kind})")
                left -= sum(sizes.get(key, 0) for key in gone)

    def _leave(self, record: MemoryRecord, reason: ForgettingReason, detail: str) -> list[Key]:
        """Lets ``record`` and its history go, unless they are pinned; the keys of what goes now."""
        gone: list[Key] = []
        waiting: list[tuple[MemoryRecord, MemoryRecord | None]] = [(record, None)]
        while waiting:
            one, heir = waiting.pop()
            key = key_of(one)
            if one.pinned or key in self.leaving:
                continue
            usage = self._usages.get(key, Usage())
            why = (reason, detail) if heir is None else (ForgettingReason.HISTORY, f"what was before {heir.id}")
            self.leaving[key] = Leaving(one, usage, self._strength(one), *why, heir=heir and key_of(heir))
            gone.append(key)
            waiting += [(ended, one) for ended in self._ended.get(one.id, ()) if _meet(ended, one)]
        return gone


def _meet(one: MemoryRecord, other: MemoryRecord) -> bool:
    """Whether some agent reads both."""
    owners = {record.namespace[_SHARED_LABELS:] for record in (one, other)} - {()}
    return len(owners) <= 1
