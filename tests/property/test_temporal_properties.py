"""Time buckets against the C library's calendar."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.context.render import TimeBucket, time_bucket

MANY = examples(100)
ZONES = st.sampled_from(
    [
        "UTC",
        "Pacific/Kiritimati",
        "Pacific/Apia",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "America/St_Johns",
        "America/Los_Angeles",
        "Europe/Warsaw",
        "Africa/Casablanca",
    ]
)
SECONDS = st.integers(0, 2_000_000_000)
AGES = st.integers(-3 * 86_400, 110 * 86_400) | st.integers(0, 2_000_000_000)
# Changes of the clocks in Warsaw and on Lord Howe, and the day that Samoa left out.
WARSAW, LORD_HOWE, APIA = 1_774_746_000, 1_775_314_800, 1_325_239_200


@contextmanager
def _local_time(zone: str) -> Generator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        os.environ.update({} if before is None else {"TZ": before})
        time.tzset()


def _day(seconds: int) -> date:
    local = time.localtime(seconds)
    return date(local.tm_year, local.tm_mon, local.tm_mday)


def _expected(day: date, today: date) -> TimeBucket:
    if day >= today:
        return TimeBucket.TODAY
    if day == today - timedelta(days=1):
        return TimeBucket.YESTERDAY
    if day in [today - timedelta(days=back) for back in range(2, 7)]:
        return TimeBucket.PREVIOUS_5_DAYS
    if day in [today - timedelta(days=back) for back in range(7, 97)]:
        return TimeBucket.PREVIOUS_90_DAYS
    return TimeBucket.OLDER


@MANY
@given(ZONES, SECONDS, AGES)
@example("Europe/Warsaw", WARSAW, 3_600)
@example("Europe/Warsaw", WARSAW + 79_200, 79_201)
@example("Australia/Lord_Howe", LORD_HOWE, 1_800)
@example("Pacific/Apia", APIA, 1)
def test_the_bucket_is_that_of_the_c_librarys_calendar(zone: str, now: int, age: int):
    moment = max(now - age, 0)
    with _local_time(zone):
        expected = _expected(_day(moment), _day(now))
        today = _day(now)
    instant = datetime.fromtimestamp(moment, UTC)
    assert time_bucket(instant, today, ZoneInfo(zone)) is expected
    assert time_bucket(instant.replace(tzinfo=None), today, ZoneInfo(zone)) is expected
    assert time_bucket(instant.astimezone(ZoneInfo("Asia/Kathmandu")), today, ZoneInfo(zone)) is expected


@MANY
@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)), ZONES)
def test_every_instant_has_a_bucket(moment: datetime, now: datetime, zone: str):
    assert time_bucket(moment, now.date(), ZoneInfo(zone)) in TimeBucket
