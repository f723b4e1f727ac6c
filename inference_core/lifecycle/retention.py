"""How much of a memory's strength is left.

Strength falls with the time since a memory was last used, the slower the more often it was recalled, after Ebbinghaus
(1885) and MemoryBank (Zhong et al., arXiv 2305.10250). Importance counts and recalling resets the time, as in
Generative Agents (Park et al., arXiv 2304.03442). Two departures: recalls count by their logarithm, since what is
injected into every prompt is recalled often; importance stretches the half-life instead of being added.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import log2
from typing import Final

from inference_core.memory.record import MemoryRecord
from inference_core.stores.accesses import Usage

USUAL_HALF_LIFE_DAYS: Final = 30.0
_DAY: Final = timedelta(days=1)


def half_lives(record: MemoryRecord, usage: Usage, now: datetime, half_life_days: float | None) -> float:
    """How many of its half-lives ago the memory was last recalled or written; 0 for the future.

    The half-life is ``half_life_days`` for a memory of importance 0.5 that was never recalled, half of that at
    importance 0, twice at 1, and grows by one with each doubling of its recalls plus one.
    """
    last = max(record.updated_at, usage.last) if usage.last else record.updated_at
    stability = 2 ** (2 * record.importance - 1) * (1 + log2(1 + usage.count))
    return max(0.0, (now - last) / _DAY / (half_life_days or USUAL_HALF_LIFE_DAYS) / stability)


def strength(lived: float) -> float:
    """What is left after ``lived`` half-lives, from 1 down to 0."""
    return 2.0**-lived
