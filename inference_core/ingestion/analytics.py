"""Figures about a user's memories and about the work that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.jobs import jobs
from inference_core.memory.record import MemoryRecord
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.list import page_of
from inference_core.services.operations.scope import MemoryScope, UserId
from inference_core.stores.backend import Row

_AGES: Final = {"today": timedelta(days=1), "this week": timedelta(days=7), "this month": timedelta(days=30)}
_OLDER: Final = "older"


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """``by_age`` and ``by_month`` count when memories were stored; ``over`` are those that do not hold any more.

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


def statistics(scope: MemoryScope, user_id: UserId) -> Plan[MemoryStatistics]:
    """Plan: the figures of what this agent reads of the user. Raises InvalidInput, StoreError."""
    records, _ = yield from page_of(scope.engine, scope.namespaces.read_scopes(user_id), None, None, None, 0)
    done = yield from jobs(scope, user_id)
    now = scope.clock.now()
    return MemoryStatistics(
        memories=len(records),
        by_type=_counted([record.memory_type.value for record in records]),
        by_age=_counted([_age(record, now) for record in records]),
        by_month=dict(sorted(Counter(f"{record.created_at:%Y-%m}" for record in records).items())),
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


def _age(record: MemoryRecord, now: datetime) -> str:
    return next((name for name, limit in _AGES.items() if now - record.created_at < limit), _OLDER)


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _listed(done: Sequence[Row], name: str) -> int:
    return sum(len(job.value[name]) for job in done)


def _summed(done: Sequence[Row], name: str) -> int:
    return sum(job.value[name] for job in done)
