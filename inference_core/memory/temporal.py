"""Time buckets of the memory block: how long ago something happened, in the user's calendar."""

from __future__ import annotations

from datetime import date, datetime, tzinfo
from enum import Enum

from inference_core.clock import local_day


class TimeBucket(Enum):
    """A bucket and its heading, in the order in which they are shown."""

    TODAY = "Recent (today)"
    YESTERDAY = "Yesterday"
    PREVIOUS_5_DAYS = "Previous 5 days"
    PREVIOUS_90_DAYS = "Previous 90 days"
    OLDER = "Older"


_LAST_DAY_OF = (
    (0, TimeBucket.TODAY),
    (1, TimeBucket.YESTERDAY),
    (6, TimeBucket.PREVIOUS_5_DAYS),
    (96, TimeBucket.PREVIOUS_90_DAYS),
)


def time_bucket(moment: datetime, today: date, zone: tzinfo) -> TimeBucket:
    """The bucket of ``moment`` on the day ``today`` in ``zone``; an instant in the future counts as today."""
    age = (today - local_day(moment, zone)).days
    return next((bucket for last, bucket in _LAST_DAY_OF if age <= last), TimeBucket.OLDER)
