"""Statistics of a user's memories and of the jobs that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from heapq import nlargest
from typing import Final

from inference_core.ingestion.undo import count_jobs, jobs
from inference_core.lifecycle.forgetting import by_use, usages_beside
from inference_core.memory.namespaces import FORGOTTEN, USAGE, Namespace, memory_namespace, sidecar_namespace
from inference_core.memory.record import Bar, table, why_invalid
from inference_core.memory.types import MEMORY_TYPES
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of, records_of
from inference_core.stores.backend import Row
from inference_core.stores.engine import StoreEngine
from inference_core.stores.maintenance import Usage

_AGES: Final = {"today": timedelta(days=1), "this week": timedelta(days=7), "this month": timedelta(days=30)}
_OLDER: Final = "older"
_NAMED: Final = 5
_LOOKED_AT: Final = 200
"""How many of the most used and of the oldest memories are read to name the first few."""
_LISTED: Final = ("added", "reinforced", "superseded", "problems")
_SUMMED: Final = ("model_calls", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class NamedUsage:
    """A memory, how often it was recalled, and when last."""

    id: str
    content: str
    recalls: int
    last: datetime | None


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Statistics of a user's memories.

    ``by_age``, ``by_week`` and ``by_month`` count by the time of storage. ``over`` no longer hold; ``used`` were
    recalled, ``never_used`` never were, and the first few of both are named; ``forgotten`` can be restored. Of jobs:
    what they added, reinforced (duplicates avoided) and superseded, and the model calls and tokens that this took.
    """

    memories: int
    by_type: dict[str, int]
    by_age: dict[str, int]
    by_month: dict[str, int]
    over: int
    jobs: int
    added: int
    reinforced: int
    superseded: int
    problems: int
    model_calls: int
    input_tokens: int
    output_tokens: int
    by_week: dict[str, int] = field(default_factory=dict[str, int])
    used: int = 0
    never_used: int = 0
    most_used: list[NamedUsage] = field(default_factory=list["NamedUsage"])
    oldest_unused: list[NamedUsage] = field(default_factory=list["NamedUsage"])
    forgotten: int = 0

    def _repr_html_(self) -> str:
        """Tables for notebooks."""
        figures = {
            "memories": self.memories,
            "no longer hold": self.over,
            "recalled": self.used,
            "never recalled": self.never_used,
            "can be restored": self.forgotten,
        }
        parts = [table("Memories", ["", ""], figures.items())]
        for caption, counts in (("By type", self.by_type), ("By age", self.by_age), ("By month", self.by_month)):
            most = max([1, *counts.values()])
            parts.append(table(caption, ["", ""], [[name, Bar(str(n), n / most)] for name, n in counts.items()]))
        used = [[usage.content, usage.recalls, usage.last] for usage in (*self.most_used, *self.oldest_unused)]
        return "".join([*parts, table("Use", ["memory", "recalls", "last"], used)])


@operation("statistics")
async def statistics(scope: MemoryScope, user_id: UserId, newest: int | None = None) -> MemoryStatistics:
    """The statistics of the memories that this agent reads of the user. Raises InvalidInput, StoreError.

    With ``newest``, only that many of the newest memories, jobs and counts of recalls are read, and the oldest
    memories. The database then counts all memories (by type), the recalled ones, the forgotten ones and jobs. The named
    memories are among those that were read; the other figures cover only the newest memories and jobs.
    """
    namespaces = scope.namespaces.read_scopes(user_id)
    rows = await scope.engine.scan(namespaces, accepts=is_known, limit=newest)
    archives = [sidecar_namespace(namespace, FORGOTTEN) for namespace in namespaces]
    forgotten = await scope.engine.count(archives, kinds=frozenset(MEMORY_TYPES))  # and no earlier texts
    done = await jobs(scope, user_id, limit=newest)
    types, all_jobs, named, recalled = Counter[str](), len(done), rows, 0
    if newest is not None:
        for tally in await scope.engine.tally(namespaces):
            types[tally.kind] += tally.rows
        all_jobs = await count_jobs(scope, user_id)
        named, recalled = await _counted(scope.engine, namespaces, types.total(), newest)
    usages = await usages_beside(scope.engine, namespaces, None if newest is None else named)
    now = scope.clock.now()

    def summed_up() -> MemoryStatistics:
        records = list(map(record_of, rows))
        figures = by_use(records if named is rows else records_of(named), usages)
        by_type = types or Counter(record.memory_type.value for record in records)
        used = [NamedUsage(record.id, record.content, use.count, use.last) for record, use in figures if use.count]
        unused = [
            NamedUsage(record.id, record.content, use.count, use.last) for record, use in figures if not use.count
        ]
        days = Counter(record.created_at.date() for record in records)
        ages = (now - record.created_at for record in records)
        names = (next((name for name, limit in _AGES.items() if age < limit), _OLDER) for age in ages)
        listed = {name: sum(len(job.value[name]) for job in done) for name in _LISTED}
        summed = {name: sum(job.value[name] for job in done) for name in _SUMMED}
        return MemoryStatistics(
            memories=by_type.total(),
            by_type=dict(by_type.most_common()),
            by_age=dict(Counter(names).most_common()),
            by_month=_by_day(days, "%Y-%m"),
            by_week=_by_day(days, "%G-W%V"),
            used=len(used) if newest is None else recalled,
            never_used=len(unused) if newest is None else types.total() - recalled,
            most_used=used[:_NAMED],
            oldest_unused=unused[:_NAMED],
            forgotten=forgotten,
            over=sum(why_invalid(row.value, now) is not None for row in rows),
            jobs=all_jobs,
            **listed,
            **summed,
        )

    # On a worker thread: for a user with many memories it would block a server's event loop for a second.
    return await scope.engine.pool.call(summed_up)


async def _counted(
    engine: StoreEngine, namespaces: Sequence[Namespace], memories: int, newest: int
) -> tuple[list[Row], int]:
    """Memories among which are the most used of the ``newest`` recalled ones and the oldest unused; how many are used.

    ``memories`` is how many there are in all.
    """
    await engine.pool.call(engine.accesses.flush)
    places = [sidecar_namespace(namespace, USAGE) for namespace in namespaces]
    counts = [(Usage.of(row), row) for row in await engine.scan(places, limit=newest)]
    recalled = await engine.count(places) - sum(not usage.count for usage, _ in counts)  # a restored one may have none
    most = nlargest(_LOOKED_AT, counts, key=lambda one: (one[0].count, one[0].last or datetime.min.replace(tzinfo=UTC)))
    found = await engine.get([(memory_namespace(row.namespace), row.key) for _, row in most])
    found += await engine.page(namespaces, limit=_LOOKED_AT, offset=max(memories - _LOOKED_AT, 0))
    return list({(row.namespace, row.key): row for row in found if row}.values()), min(recalled, memories)


def _by_day(days: Mapping[date, int], form: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for day, count in days.items():
        counts[day.strftime(form)] += count
    return dict(sorted(counts.items()))
