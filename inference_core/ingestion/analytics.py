"""Figures about a user's memories and about the work that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.jobs import jobs
from inference_core.lifecycle.usage import by_use, usages_beside
from inference_core.memory.namespaces import FORGOTTEN, beside
from inference_core.memory.record import MemoryRecord
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of
from inference_core.stores.accesses import Usage
from inference_core.stores.backend import Row

_AGES: Final = {"today": timedelta(days=1), "this week": timedelta(days=7), "this month": timedelta(days=30)}
_OLDER: Final = "older"
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class NamedUsage:
    """A memory, how often it was recalled, and when last."""

    id: str
    content: str
    recalls: int
    last: datetime | None


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Figures of a user's memories.

    ``by_age``, ``by_week`` and ``by_month`` count when they were stored; ``over`` do not hold any more; ``used`` were
    recalled at some time, ``never_used`` never, and of both the first few are named; ``forgotten`` can be restored.
    Of the jobs that made memories of conversations: what they added, said again (duplicates avoided) and ended, and
    what the models took for that.
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


def statistics(scope: MemoryScope, user_id: UserId) -> Plan[MemoryStatistics]:
    """Plan: the figures of what this agent reads of the user. Raises InvalidInput, StoreError."""
    scopes = scope.namespaces.read_scopes(user_id)
    rows = yield from scope.engine.scan(scopes, accepts=is_known)
    records = list(map(record_of, rows))
    figures = by_use(records, (yield from usages_beside(scope.engine, scopes)))
    forgotten = yield from scope.engine.count([beside(one, FORGOTTEN) for one in scopes])
    done = yield from jobs(scope, user_id)
    now = scope.clock.now()
    days = Counter(record.created_at.date() for record in records)
    return MemoryStatistics(
        memories=len(records),
        by_type=_counted([record.memory_type.value for record in records]),
        by_age=_counted([_age(record, now) for record in records]),
        by_month=_by_day(days, "%Y-%m"),
        by_week=_by_day(days, "%G-W%V"),
        used=sum(usage.count > 0 for _, usage in figures),
        never_used=sum(usage.count == 0 for _, usage in figures),
        most_used=[_named(*one) for one in figures[:_NAMED] if one[1].count],
        oldest_unused=[_named(*one) for one in islice((one for one in figures if not one[1].count), _NAMED)],
        forgotten=forgotten,
        over=sum(why_invalid(row.value, now) is not None for row in rows),
        jobs=len(done),
        added=_listed(done, "added"),
        reinforced=_listed(done, "reinforced"),
        superseded=_listed(done, "superseded"),
        problems=_listed(done, "problems"),
        model_calls=_summed(done, "model_calls"),
        input_tokens=_summed(done, "input_tokens"),
        output_tokens=_summed(done, "output_tokens"),
    )


def _named(record: MemoryRecord, usage: Usage) -> NamedUsage:
    return NamedUsage(record.id, record.content, usage.count, usage.last)


def _age(record: MemoryRecord, now: datetime) -> str:
    return next((name for name, limit in _AGES.items() if now - record.created_at < limit), _OLDER)


def _by_day(days: Mapping[date, int], form: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for day, count in days.items():
        counts[day.strftime(form)] += count
    return dict(sorted(counts.items()))


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _listed(done: Sequence[Row], name: str) -> int:
    return sum(len(job.value[name]) for job in done)


def _summed(done: Sequence[Row], name: str) -> int:
    return sum(job.value[name] for job in done)
