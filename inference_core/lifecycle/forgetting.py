"""`MemoryLifecycle`: forgetting moves the memories that a policy chooses to the archive; they can be restored.

Whatever fails, each memory is in its namespace or in the archive, and the next run continues. A memory that is changed,
pinned or (unless it has expired) recalled between choice and move stays.

Which memories a policy forgets, and why. Pure, so that a dry run and a real one agree.

A memory's strength decays with the time since it was last used, more slowly the more often it was recalled, after
Ebbinghaus (1885) and MemoryBank (Zhong et al., arXiv 2305.10250). Importance counts and recalling resets the time, as
in Generative Agents (Park et al., arXiv 2304.03442). Two departures: recalls count by their logarithm, since a memory
that is injected into every prompt is recalled often; importance stretches the half-life instead of being added.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from math import log2
from typing import Final, Generic, TypeVar

from inference_core.effects import Operation, Progress, run
from inference_core.errors import ConfigurationError, InferenceCoreError, InvalidId, InvalidInput
from inference_core.memory.namespaces import (
    USAGE,
    VERSIONS,
    Namespace,
    decode_label,
    encode_label,
    holds_forgotten,
    holds_memories,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.record import MemoryPage, MemoryRecord, MemoryStoreDocument, why_invalid
from inference_core.memory.secrets import quoted
from inference_core.memory.text import canonical_id, text_tokens
from inference_core.memory.types import MEMORY_TYPES, MemoryCategory, validate_memory_category
from inference_core.retrieval.documents import Document
from inference_core.services.agent_memory_service import AgentMemoryStoreService, ServiceBase
from inference_core.services.operations.delete import (
    DELETED,
    ForgottenMemory,
    archive_writes,
    forgotten_of,
    is_archived,
    is_over,
    restore_writes,
)
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of, records_of, retried
from inference_core.settings import MemorySettings
from inference_core.stores.backend import Cursor, Key, Remove, Row, Write
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import refuse_mock
from inference_core.stores.maintenance import Usage

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
            key_of(record): half_lives(record, usages.get(key_of(record), Usage()), now, policy.half_life_days)
            for record in records
        }
        holding = {key_of(record) for record in records if why_invalid(record.to_value(), now) is None}
        by_id = defaultdict[str, list[MemoryRecord]](list)
        self._ended = defaultdict[str, list[MemoryRecord]](list)
        for record in records:
            by_id[record.id].append(record)
            if record.superseded_by:
                self._ended[record.superseded_by].append(record)
        for one in (record for record in records if record.cites and key_of(record) in holding):
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
            group = [record for record in weakest if kind in (EVERY_TYPE, record.memory_type.value)]
            sizes = {key_of(record): text_tokens(record.content) if what == "tokens" else 1 for record in group}
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


T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_PORTION: Final = 100
_READ_AT_ONCE: Final = 2_000
_HOUR_S: Final = 3_600.0


# The archive keeps forgotten and deleted memories until they are restored or erased; no recall reads it.


@dataclass(slots=True)
class RestoreReport:
    """Ids of memories: ``restored``, ``taken`` by another memory meanwhile, or ``missing`` from the archive."""

    restored: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])


@operation("forgotten")
async def forgotten(scope: MemoryScope, user_id: UserId) -> list[ForgottenMemory]:
    """The user's memories that can be restored, of all agents, the latest forgotten first. Raises StoreError."""
    now = scope.clock.now()
    places = await archives(scope.engine, user_id)
    rows = await scope.engine.scan(places, accepts=lambda row: is_archived(row, now))
    return sorted(map(forgotten_of, rows), key=lambda memory: memory.forgotten_at, reverse=True)


async def forgotten_page(
    scope: MemoryScope, user_id: UserId, *, limit: int = 50, after: str | None = None
) -> MemoryPage[ForgottenMemory]:
    """A page of the memories that `forgotten` gives, sorted by when they were first stored, the newest first.

    Raises InvalidInput, StoreError.
    """
    now, cursor = scope.clock.now(), None if after is None else Cursor.decode(after)
    places = await archives(scope.engine, user_id)
    rows = await scope.engine.scan(places, accepts=lambda row: is_archived(row, now), limit=limit + 1, after=cursor)
    return MemoryPage(map(forgotten_of, rows[:limit]), Cursor.of(rows[limit - 1]).encode() if rows[limit:] else None)


@operation("restore")
async def restore(scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None = None) -> RestoreReport:
    """Restores these forgotten and deleted memories (None: all), with their ids, times, metadata and history.

    They count as used now. If another memory has been saved with the same id, that memory stays. Raises InvalidInput,
    StoreError.
    """
    return await restore_archived(scope, user_id, memory_ids)


async def restore_archived(
    scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None, *, deleted: bool = True
) -> RestoreReport:
    """Like `restore`; with ``deleted`` False, restores forgotten memories only, none that somebody deleted."""
    engine, now = scope.engine, scope.clock.now()

    def is_wanted(row: Row) -> bool:
        return is_archived(row, now) and (deleted or forgotten_of(row).reason != DELETED)

    async def put_back(portion: Sequence[Row], known: dict[Key, Document]) -> list[Key]:
        """Restores those rows that are still archived and whose ids are free; returns their keys in the archive."""
        keys = [(row.namespace, row.key) for row in portion]
        found = await engine.get(keys)
        places = await engine.get([(memory_namespace(namespace), key) for namespace, key in keys])
        at = scope.clock.now()
        back: list[Key] = []
        writes: list[Write] = []
        for key, row, place in zip(keys, found, places, strict=True):
            if row and place is None:
                back.append(key)
                writes += restore_writes(row, known.get(key), at)
        if writes:
            await scope.write(writes, "restore", embeds=False)
        return back

    namespaces = await archives(engine, user_id)
    if memory_ids is None:
        rows = await engine.scan(namespaces, accepts=is_wanted)
    else:
        keys = [(scope, key) for key in dict.fromkeys(map(canonical_id, memory_ids)) for scope in namespaces]
        rows = [row for row in await engine.get(keys) if row and is_wanted(row)]
    report = RestoreReport()
    try:
        for portion in portions(rows, _PORTION):
            known = await documents(engine, [(row.namespace, row.key) for row in portion])
            back = await retried(partial(put_back, portion, known))
            report.restored += [key for _, key in back]
            report.taken += [row.key for row in portion if (row.namespace, row.key) not in back]
    finally:  # portions before one that failed were restored, and may need vectors
        engine.embed_later()
    there = {*report.restored, *report.taken}
    report.missing = [memory_id for memory_id in dict.fromkeys(memory_ids or ()) if memory_id not in there]
    return report


async def archives(engine: StoreEngine, user_id: UserId) -> list[Namespace]:
    """The namespaces of the user's archives, every agent's."""
    names = await engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_forgotten(name)]


def documents(engine: StoreEngine, keys: Collection[Key]) -> Operation[dict[Key, Document]]:
    """The indexed texts of the rows at ``keys``, with their vectors; rows without an indexed text are left out."""

    def read() -> dict[Key, Document]:
        backend, wanted = engine.backend, set(keys)
        found: dict[Key, Document] = {}
        for scope in dict.fromkeys(namespace for namespace, _ in keys):
            backend.heads([scope])  # refreshes the mirror of another library's store, from which changes() reads
            for change in backend.changes(scope, 0):
                if change.document and (scope, change.key) in wanted:
                    found[scope, change.key] = change.document
        tokens = backend.tokens(list(found))
        return {key: document._replace(tokens=own) for (key, document), own in zip(found.items(), tokens, strict=True)}

    return engine.pool.call(read)


def portions(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """``items`` in portions of at most ``size``."""
    return [items[at : at + size] for at in range(0, len(items), size)]


@dataclass(slots=True)
class ForgettingReport:
    """What was forgotten, or would be, and why.

    ``kept`` are the ids of memories that were changed, pinned or recalled after they were chosen, ``erased`` of those
    that can no longer be restored; ``remaining`` counts the memories that the user has left.
    """

    forgotten: list[EvictionCandidate] = field(default_factory=list[EvictionCandidate])
    kept: list[str] = field(default_factory=list[str])
    erased: list[str] = field(default_factory=list[str])
    remaining: int = 0


@operation("forget")
async def forget(
    scope: MemoryScope,
    user_id: UserId,
    policy: ForgettingPolicy | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ForgettingReport:
    """Forgets the user's memories that ``policy`` chooses (default: those that have expired), of all agents.

    ``dry_run`` only reports what would be forgotten and erased. If a run is interrupted, run it again to finish.
    Raises InvalidInput, StoreError.
    """
    chosen = policy or ForgettingPolicy()
    engine, now = scope.engine, scope.clock.now()
    names = await engine.namespaces((encode_label(user_id),))
    namespaces = [name for name in names if holds_memories(name)]
    found = await engine.scan(namespaces, accepts=is_known)
    rows = {(row.namespace, row.key): row for row in found}
    usages = await usages_beside(engine, namespaces)
    archived = await engine.scan([name for name in names if holds_forgotten(name)], accepts=is_known)
    memories = [row for row in found if row.value.get("content")]
    held = await engine.held([*memories, *archived])
    choice = Choice(list(map(record_of, memories)), usages, chosen, now).leaving.values()
    leaving = [candidate for candidate in choice if candidate.key not in held]
    since = now - timedelta(days=chosen.keep_days)
    # An archived memory that is also in its namespace is left from a move or a restoration that was interrupted.
    # What somebody deleted, and earlier texts, have an end of their own.
    overdue = [
        row
        for row in archived
        if (row.namespace, row.key) not in held
        and (
            is_over(row, now)
            or (
                (memory := forgotten_of(row)).until is None
                and (memory.forgotten_at <= since or (memory_namespace(row.namespace), row.key) in rows)
            )
        )
    ]
    if dry_run:
        return ForgettingReport(leaving, [], [row.key for row in overdue], len(memories) - len(leaving))
    forgotten = await _archive(scope, leaving, now, progress)
    erased: list[str] = []
    # Under an id that is in use again, erasing would take the earlier texts of the memory that is there.
    doubled = [row for row in overdue if (memory_namespace(row.namespace), row.key) in rows]
    single = [row for row in overdue if row not in doubled]
    for some, at_once in ((doubled, scope), (single, replace(scope, deleted_days=0.0))):
        for portion in portions(some, _PORTION):
            erased += await retried(partial(_erase, at_once, portion))
    for orphans in portions([key for key in usages if key not in rows], _PORTION):
        await engine.write(
            [Remove(namespace=sidecar_namespace(namespace, USAGE), key=key) for namespace, key in orphans]
        )
    if not engine.backend.capabilities.change_feed:  # such a store does not remove by itself what has ended
        versions = [sidecar_namespace(name, VERSIONS) for name in namespaces]
        over = await engine.scan(versions, accepts=lambda row: is_over(row, now))
        await engine.remove_later(over)
    kept = [candidate.record.id for candidate in leaving if candidate.key not in forgotten]
    return ForgettingReport(list(forgotten.values()), kept, erased, len(memories) - len(forgotten))


async def _archive(
    scope: MemoryScope, leaving: Sequence[EvictionCandidate], now: datetime, progress: Progress | None
) -> dict[Key, EvictionCandidate]:
    """Moves ``leaving`` to the archive, portion by portion; returns those that were moved, by key."""
    engine, done = scope.engine, 0
    gone: dict[Key, EvictionCandidate] = {}

    async def move(portion: Sequence[EvictionCandidate], known: Mapping[Key, Document]) -> list[EvictionCandidate]:
        """Moves those that have not changed since. Raises VersionConflict if one changes during the move."""
        await engine.pool.call(engine.accesses.flush)
        rows = await engine.get([candidate.key for candidate in portion])
        figures = await engine.get(
            [(sidecar_namespace(candidate.record.namespace, USAGE), candidate.record.id) for candidate in portion]
        )
        going: dict[Key, EvictionCandidate] = {}
        writes: list[Write] = []
        for one, row, figure in zip(portion, rows, figures, strict=True):
            if row is None or row.version != one.record.version:
                continue
            if one.reason is not ForgettingReason.EXPIRED and Usage.of(figure) != one.usage:
                continue  # recalled since it was chosen; what has expired goes even so
            # History goes after what superseded it: while that stays, so does this.
            if one.successor is None or one.successor in gone or one.successor in going:
                going[one.key] = one
                writes += archive_writes(row, figure, now, one.reason.value, document=known.get(one.key))
        if writes:
            await scope.write(writes, "forget", embeds=False)
        return list(going.values())

    for stretch in portions(leaving, _READ_AT_ONCE):
        known = await documents(engine, [candidate.key for candidate in stretch])
        for portion in portions(stretch, _PORTION):
            went = await retried(partial(move, portion, known))
            gone |= {candidate.key: candidate for candidate in went}
            done += len(portion)
            if progress:
                progress(done, len(leaving))
    return gone


async def _erase(scope: MemoryScope, portion: Sequence[Row]) -> list[str]:
    """Removes rows of the archive, unless they have changed; returns the ids of those removed."""
    rows = await scope.engine.get([(row.namespace, row.key) for row in portion])
    same = [row for row, old in zip(rows, portion, strict=True) if row and row.version == old.version]
    if same:
        gone = [Remove(namespace=row.namespace, key=row.key, expected=row.version) for row in same]
        await scope.write(gone, "erase")
    return [row.key for row in same]


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A memory, how often it was recalled, and when last."""

    document: MemoryStoreDocument
    count: int
    last: datetime | None


@operation("usage")
async def usage(scope: MemoryScope, user_id: UserId) -> list[MemoryUsage]:
    """How often each memory that this agent reads was recalled.

    The most used come first, then the most recently used, then the oldest. Recalls by other processes are included
    within 30 seconds, once those have written them. Raises InvalidInput, StoreError.
    """
    namespaces = scope.namespaces.read_scopes(user_id)
    rows = await scope.engine.scan(namespaces)
    found = by_use(records_of(rows), await usages_beside(scope.engine, namespaces))
    return [MemoryUsage(MemoryStoreDocument.of(record), figure.count, figure.last) for record, figure in found]


def by_use(records: Sequence[MemoryRecord], figures: Mapping[Key, Usage]) -> list[tuple[MemoryRecord, Usage]]:
    """``records`` with their usage: the most used first, then the most recently used, then the oldest."""
    found = [(record, figures.get((record.namespace, record.id), Usage())) for record in records]
    found.sort(key=lambda one: (-one[1].count, -(one[1].last.timestamp() if one[1].last else 0), one[0].created_at))
    return found


async def usages_beside(
    engine: StoreEngine, namespaces: Sequence[Namespace], only: Sequence[Row] | None = None
) -> dict[Key, Usage]:
    """The usage of the memories in exactly ``namespaces``, or of ``only`` these rows, without those never recalled."""
    await engine.pool.call(engine.accesses.flush)
    if only is None:
        rows = await engine.scan([sidecar_namespace(namespace, USAGE) for namespace in namespaces])
    else:
        found = await engine.get([(sidecar_namespace(row.namespace, USAGE), row.key) for row in only])
        rows = [row for row in found if row]
    return {(memory_namespace(row.namespace), row.key): Usage.of(row) for row in rows}


class Rounds(Generic[T]):
    """Runs ``apply`` for each of ``users`` at the first `run_if_due`, then once every ``hours``; None: never.

    Several processes may run rounds at the same time.
    """

    def __init__(
        self,
        users: Callable[[], Operation[Sequence[T]]],
        apply: Callable[[T], Operation[int]],
        hours: float | None,
    ) -> None:
        self._users = users
        self._apply = apply
        self._every_s = (hours or 0.0) * _HOUR_S
        self._due = 0.0 if hours else float("inf")

    def run_if_due(self) -> int:
        """Runs a round if one is due; returns the sum of what ``apply`` returned, else 0.

        A failure is logged, and its user waits for the next round.
        """
        if time.monotonic() < self._due:
            return 0
        self._due = time.monotonic() + self._every_s
        done = 0
        try:
            users = run(self._users())
        except InferenceCoreError as error:
            _LOG.warning("Nothing is forgotten or removed this time: %s", error)
            return 0
        for user_id in users:
            try:
                done += run(self._apply(user_id))
            except InferenceCoreError as error:
                _LOG.warning("Nothing of a user is forgotten or removed this time: %s", error)
        return done


class ForgettingRounds(Rounds[str]):
    """Applies ``policy`` to each user of the store of ``scope``, at once and then every ``hours``; None: never."""

    def __init__(self, scope: MemoryScope, policy: ForgettingPolicy, hours: float | None) -> None:
        async def apply(user_id: str) -> int:
            return len((await forget(scope, user_id, policy)).forgotten)

        super().__init__(lambda: users_of(scope), apply, hours)


async def users_of(scope: MemoryScope) -> list[str]:
    """The users who have memories in the store, or forgotten ones."""
    names = await scope.engine.namespaces()
    users: list[str] = []
    for label in dict.fromkeys(name[0] for name in names if holds_memories(name) or holds_forgotten(name)):
        with suppress(InvalidId):  # an application's own namespace may look like one of ours
            users.append(decode_label(label))
    return users


class SyncMemoryLifecycle(ServiceBase):
    """`MemoryLifecycle` for callers without an event loop."""

    forget = forget.sync
    restore = restore.sync
    forgotten = forgotten.sync
    usage = usage.sync


class MemoryLifecycle(ServiceBase):
    """Forgets and restores a user's memories in the store of ``service``, and reports how they are used.

    ``forget``, ``restore`` and ``forgotten`` apply to all of a user's memories, whichever agent wrote them; ``usage``
    to those that the agent of ``service`` reads. ``timeout`` limits each call, in seconds; None: no limit. Methods
    raise InvalidInput for bad arguments and StoreUnavailable if the database does not answer. ``sync`` has the same
    methods for sync code.
    """

    forget = forget.aio
    restore = restore.aio
    forgotten = forgotten.aio
    usage = usage.aio

    def __init__(self, service: AgentMemoryStoreService, *, timeout: float | None = None) -> None:
        refuse_mock(service)
        super().__init__(service.scope, timeout)
        self.sync = SyncMemoryLifecycle(service.scope, timeout)
