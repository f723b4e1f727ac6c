"""What time it is, and which day that is for the user."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from inference_core.errors import ConfigurationError

_MILLISECONDS_FROM: Final = 1e11
"""From here on, a number is taken as milliseconds: as seconds, it would be the year 5138."""
_EPOCH: Final = re.compile(r"[0-9]{9,13}(?:\.[0-9]{1,9})?")
"""A number of seconds or milliseconds as text; a shorter one may be a day, such as 20250115."""


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        return datetime.now(UTC)


@lru_cache(maxsize=256)
def time_zone(name: str) -> tzinfo:
    """The time zone of an IANA name such as ``Europe/Warsaw``.

    Raises ConfigurationError for a name that the time zone database does not know.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigurationError(f"Unknown time zone {name!r}; use an IANA name such as 'Europe/Warsaw'") from error


def aware(moment: datetime) -> datetime:
    """``moment`` in UTC; a naive one is taken as UTC. Raises OverflowError at the ends of the calendar."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """``moment`` in the time of ``zone``; if that lies outside of the calendar, ``moment``'s own time taken as UTC."""
    try:
        return aware(moment).astimezone(zone)
    except OverflowError:
        return moment.replace(tzinfo=UTC)


def local_day(moment: datetime, zone: tzinfo) -> date:
    """The calendar day of ``moment`` for somebody in ``zone`` (at the ends of the calendar: the UTC day)."""
    return in_zone(moment, zone).date()


def moment_of(found: object) -> datetime | None:
    """The UTC instant of a datetime, an ISO 8601 text, or a number of seconds or milliseconds since 1970, else None."""
    try:
        if isinstance(found, datetime):
            return aware(found)
        if isinstance(found, str) and _EPOCH.fullmatch(found.strip()):
            found = float(found)
        if isinstance(found, str):
            return aware(datetime.fromisoformat(found.strip()))
        if isinstance(found, int | float) and not isinstance(found, bool):
            return datetime.fromtimestamp(found / 1000 if abs(found) >= _MILLISECONDS_FROM else found, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None
