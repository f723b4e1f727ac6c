"""Which memories a policy forgets, and why. Pure, so that a dry run and a real one agree.

A memory's strength decays with the time since it was last used, more slowly the more often it was recalled, after
Ebbinghaus (1885) and MemoryBank (Zhong et al., arXiv 2305.10250). Importance counts and recalling resets the time, as
in Generative Agents (Park et al., arXiv 2304.03442). Two departures: recalls count by their logarithm, since a memory
that is injected into every prompt is recalled often; importance stretches the half-life instead of being added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from math import log2
from typing import Final

from inference_core.errors import ConfigurationError, InvalidInput
from inference_core.memory.record import MemoryRecord, why_invalid
from inference_core.memory.secrets import quoted
from inference_core.memory.text import text_tokens
from inference_core.memory.types import MEMORY_TYPES, MemoryCategory, validate_memory_category
from inference_core.settings import MemorySettings
from inference_core.stores.access_counts import Usage
from inference_core.stores.backend import Key

EVERY_TYPE: Final = "all"
"""The key of a budget for all of a user's memories together."""
DEFAULT_BELOW: Final = 0.1
DEFAULT_KEEP_DAYS: Final = 90.0
_MOST_DAYS: Final = 36_500.0
_KINDS: Final = (EVERY_TYPE, *MEMORY_TYPES)
USUAL_HALF_LIFE_DAYS: Final = 30.0
_DAY: Final = timedelta(days=1)
_SHARED_LABELS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingPolicy:
    """When a user's memories are forgotten. Pinned memories never are.

    ``expired``: forget a memory after its ``expires_at``. ``half_life_days``: forget it once less than ``below`` (0 to
    1) of its strength is left, in the ``fading`` categories; None: never. ``max_memories`` and ``max_tokens`` are
    budgets by memory type, or for all types under ``"all"``; the weakest memories are forgotten until they fit.
    Forgotten memories can be restored for ``keep_days``, then the next run erases them. Raises InvalidInput.
    """

    expired: bool = True
    half_life_days: float | None = None
    below: float = DEFAULT_BELOW
    fading: tuple[MemoryCategory | str, ...] = (MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC)
    max_memories: Mapping[str, int] = field(default_factory=dict[str, int])
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    keep_days: float = DEFAULT_KEEP_DAYS

    def __post_init__(self) -> None:
        for category in self.fading:
            validate_memory_category(category)
        if self.half_life_days is not None and not 0 < self.half_life_days <= _MOST_DAYS:
            raise InvalidInput(f"half_life_days is more than 0 and at most {_MOST_DAYS:g}, not {self.half_life_days}")
        if not 0 <= self.below <= 1:
            raise InvalidInput(f"below is from 0 to 1, not {self.below}")
        if not 0 <= self.keep_days <= _MOST_DAYS:
            raise InvalidInput(f"keep_days is from 0 to {_MOST_DAYS:g}, not {self.keep_days}")
        check_budget("max_memories", self.max_memories)
        check_budget("max_tokens", self.max_tokens)

    @classmethod
    def from_settings(cls, settings: MemorySettings) -> ForgettingPolicy:
        """The policy of ``settings``. Raises ConfigurationError."""
        try:
            return cls(
                half_life_days=settings.forget_half_life,
                below=settings.forget_below,
                max_memories=parse_budget(settings.forget_max_memories or ""),
                max_tokens=parse_budget(settings.forget_max_tokens or ""),
                keep_days=settings.forgotten_days,
            )
        except InvalidInput as error:
            raise ConfigurationError(f"What to forget is not clear. {error}") from error

    def fades(self, category: MemoryCategory) -> bool:
        """Whether memories of ``category`` fade."""
        return self.half_life_days is not None and category in self.fading


def check_budget(name: str, budget: Mapping[str, object]) -> None:
    """Raises InvalidInput unless ``budget`` maps memory types or "all" to whole numbers."""
    for kind, limit in budget.items():
        if kind not in _KINDS:
            raise InvalidInput(f"{name}: {quoted(kind)} is not one of {', '.join(_KINDS)}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise InvalidInput(f"{name}: a budget is a whole number from 0, not {quoted(limit)}")


def parse_budget(text: str) -> dict[str, int]:
    """The budget that ``text`` names, such as ``5000`` or ``5000,context=200``. Raises InvalidInput."""
    budget: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        kind, separator, number = part.rpartition("=")
        if not number.strip().isdecimal():
            raise InvalidInput(f"{quoted(part)} is not a budget; write 5000, or 5000,context=200")
        budget[kind.strip() if separator else EVERY_TYPE] = int(number)
    check_budget("Budget", budget)
    return budget


def half_lives(record: MemoryRecord, usage: Usage, now: datetime, half_life_days: float | None) -> float:
    """The time since the memory was last recalled or written, in its half-lives; 0 if that lies in the future.

    The half-life is ``half_life_days`` (None: 30) for a memory of importance 0.5 that was never recalled; half of that
    at importance 0, twice at 1. It is multiplied by 1 + log2(1 + recalls).
    """
    last = max(record.updated_at, usage.last) if usage.last else record.updated_at
    stability = 2 ** (2 * record.importance - 1) * (1 + log2(1 + usage.count))
    return max(0.0, (now - last) / _DAY / (half_life_days or USUAL_HALF_LIFE_DAYS) / stability)


def strength(lived: float) -> float:
    """What is left after ``lived`` half-lives, from 1 down to 0."""
    return 2.0**-lived


class ForgettingReason(str, Enum):
    """Why a memory is forgotten. HISTORY: the memory that superseded it is forgotten."""

    EXPIRED = "expired"
    FADED = "faded"
    BUDGET = "budget"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A memory to be forgotten. ``successor`` is the memory that superseded it, which must be forgotten first."""

    record: MemoryRecord
    usage: Usage
    strength: float
    reason: ForgettingReason
    detail: str
    successor: Key | None = None

    @property
    def key(self) -> Key:
        """Where the memory is."""
        return key_of(self.record)


def key_of(record: MemoryRecord) -> Key:
    """Where ``record`` is."""
    return record.namespace, record.id


class Choice:
    """Chooses which ``records`` the policy forgets, given all of a user's; ``leaving`` has them in order of removal."""

    def __init__(
        self, records: Sequence[MemoryRecord], usages: Mapping[Key, Usage], policy: ForgettingPolicy, now: datetime
    ) -> None:
        self.leaving: dict[Key, EvictionCandidate] = {}
        self._usages = usages
        self._half_lives = {
            key_of(one): half_lives(one, usages.get(key_of(one), Usage()), now, policy.half_life_days)
            for one in records
        }
        holding = {key_of(one) for one in records if why_invalid(one.to_value(), now) is None}
        by_id = defaultdict[str, list[MemoryRecord]](list)
        self._ended = defaultdict[str, list[MemoryRecord]](list)
        for record in records:
            by_id[record.id].append(record)
            if record.superseded_by:
                self._ended[record.superseded_by].append(record)
        for one in (one for one in records if one.cites and key_of(one) in holding):
            # The memories that another one cites fade no faster than that one, as long as it holds.
            for source in (record for cited in one.cites for record in by_id.get(cited, ()) if _meet(record, one)):
                key = key_of(source)
                self._half_lives[key] = min(self._half_lives[key], self._half_lives[key_of(one)])
        for record in records:
            if policy.expired and record.expires_at is not None and record.expires_at <= now:
                self._leave(record, ForgettingReason.EXPIRED, f"since {record.expires_at:%Y-%m-%d %H:%M} UTC")
            elif policy.fades(record.category) and self._strength(record) < policy.below:
                self._leave(record, ForgettingReason.FADED, f"{self._strength(record):.1%} of its strength is left")

        def rank(one: MemoryRecord) -> tuple[object, ...]:
            # Memories that no longer hold go before those that do; then the weaker, less important and older first.
            key = key_of(one)
            return key in holding, -self._half_lives[key], one.importance, one.created_at, one.namespace, one.id

        weakest = sorted(records, key=rank)
        self._keep(policy.max_memories, weakest, "memories")
        self._keep(policy.max_tokens, weakest, "tokens")

    def _strength(self, record: MemoryRecord) -> float:
        return strength(self._half_lives[key_of(record)])

    def _keep(self, budgets: Mapping[str, int], weakest: Sequence[MemoryRecord], what: str) -> None:
        """Forgets the weakest until ``budgets`` are met, those of single types before that of all."""
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
        """Adds ``record`` and its history to ``leaving``, except what is pinned; returns the keys that were added."""
        gone: list[Key] = []
        waiting: list[tuple[MemoryRecord, MemoryRecord | None]] = [(record, None)]
        while waiting:
            one, successor = waiting.pop()
            key = key_of(one)
            if one.pinned or key in self.leaving:
                continue
            usage = self._usages.get(key, Usage())
            if successor is not None:
                reason, detail = ForgettingReason.HISTORY, f"what was before {successor.id}"
            after = successor and key_of(successor)
            self.leaving[key] = EvictionCandidate(one, usage, self._strength(one), reason, detail, after)
            gone.append(key)
            waiting += [(ended, one) for ended in self._ended.get(one.id, ()) if _meet(ended, one)]
        return gone


def _meet(one: MemoryRecord, other: MemoryRecord) -> bool:
    """Whether any one agent can read both: they are not two agents' own."""
    owners = {record.namespace[_SHARED_LABELS:] for record in (one, other)} - {()}
    return len(owners) <= 1
