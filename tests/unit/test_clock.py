"""Instants, zones and days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from inference_core.clock import SystemClock, aware, local_day, moment_of, time_zone
from inference_core.errors import ConfigurationError
from inference_core.testing import FrozenClock

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


def test_the_systems_clock_gives_instants_in_utc():
    before = datetime.now(UTC)
    now = SystemClock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC


@pytest.mark.parametrize("name", ["UTC", "Europe/Warsaw", "Pacific/Kiritimati", "Asia/Kathmandu"])
def test_a_zone_is_found_by_its_iana_name(name: str):
    assert time_zone(name) == ZoneInfo(name)
    assert time_zone(name) is time_zone(name)


@pytest.mark.parametrize(
    "name", ["", "Warsaw", "Europe", "../etc/passwd", "/etc/localtime", "a\x00b", "x" * 5000, "\ud800"]
)
def test_an_unknown_zone_is_refused(name: str):
    with pytest.raises(ConfigurationError, match="use an IANA name"):
        time_zone(name)


def test_a_moment_is_brought_to_utc():
    assert aware(NOON.replace(tzinfo=None)) == NOON
    assert aware(NOON.astimezone(timezone(timedelta(hours=9)))) == NOON
    assert aware(NOON.astimezone(ZoneInfo("Asia/Tokyo"))).tzinfo is UTC


def test_the_day_is_that_of_the_zone():
    evening = datetime(2026, 1, 15, 23, 30, tzinfo=UTC)
    assert local_day(evening, UTC) == date(2026, 1, 15)
    assert local_day(evening, ZoneInfo("Europe/Warsaw")) == date(2026, 1, 16)
    assert local_day(evening.replace(tzinfo=None), ZoneInfo("Asia/Tokyo")) == date(2026, 1, 16)


def test_the_day_at_the_ends_of_the_calendar_is_that_of_utc():
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert local_day(first, ZoneInfo("America/Los_Angeles")) == date.min
    assert local_day(last, ZoneInfo("Pacific/Kiritimati")) == date.max


@pytest.mark.parametrize("found", [True, float("nan"), 1e300, 10**400, "", "0001-01-01T00:00:00+14:00", [], None])
def test_what_is_no_time_is_none(found: object):
    assert moment_of(found) is None


def test_a_frozen_clock_moves_when_it_is_told_to():
    clock = FrozenClock(NOON.replace(tzinfo=None))
    assert clock.now() == clock.now() == NOON
    clock.advance(timedelta(days=-1))
    assert clock.now() == NOON - timedelta(days=1)
    clock.set(NOON.astimezone(ZoneInfo("Asia/Tokyo")))
    assert clock.now() == NOON
    assert clock.now().tzinfo is UTC
