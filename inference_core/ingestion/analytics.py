"""Figures about a user's memories and about the work that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.jobs import jobs
from inference_core.lifecycle.usage import MemoryUsage, usages_beside, used
from inference_core.memory.namespaces import FORGOTTEN, beside
from inference_core.memory.record import MemoryRecord
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.list import all_of
from inference_core.services.operations.scope import MemoryScope, UserId
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
    records = yield from all_of(scope.engine, scopes)
    figures = used(records, (yield from usages_beside(scope.engine, scopes)))
    forgotten = yield from scope.engine.count([beside(one, FORGOTTEN) for one in scopes])
    done = yield from jobs(scope, user_id)
    now = scope.clock.now()
    return MemoryStatistics(
        memories=len(records),
        by_type=_counted([record.memory_type.value for record in records]),
        by_age=_counted([_age(record, now) for record in records]),
        by_month=dict(sorted(Counter(f"{record.created_at:%Y-%m}" for record in records).items())),
        by_week=dict(sorted(Counter(f"{record.created_at:%G-W%V}" for record in records).items())),
        used=sum(one.count > 0 for one in figures),
        never_used=sum(one.count == 0 for one in figures),
        most_used=[_named(one) for one in figures[:_NAMED] if one.count],
        oldest_unused=[_named(one) for one in [one for one in figures if not one.count][:_NAMED]],
        forgotten=forgotten,
        over=sum(why_invalid(record.to_value(), now) is not None for record in records),
        jobs=len(done),
        added=_listed(done, "added"),
        reinforced=_listed(done, "reinforced"),
        superseded=_listed(done, "superseded"),
        problems=_listed(done, "problems"),
        model_calls=_summed(done, "model_calls"),
        input_tokens=_summed(done, "input_tokens"),
        output_tokens=_summed(done, "output_tokens"),
    )


def _named(one: MemoryUsage) -> NamedUsage:
    return NamedUsage(one.document.id, one.document.content, one.count, one.last)


def _age(record: MemoryRecord, now: datetime) -> str:
    return next((name for name, limit in _AGES.items() if now - record.created_at < limit), _OLDER)


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _listed(done: Sequence[Row], name: str) -> int:
    return sum(len(job.value[name]) for job in done)


def _summed(done: Sequence[Row], name: str) -> int:
    return sum(job.value[name] for job in done)
