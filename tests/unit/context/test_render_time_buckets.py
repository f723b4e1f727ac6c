"""Time buckets, against calendars worked out by hand and by another way."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from inference_core.context.render import TimeBucket, time_bucket

TODAY, YESTERDAY, DAYS, MONTHS, OLDER = TimeBucket
NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)


def _at(zone: str, *parts: int, fold: int = 0) -> datetime:
    year, month, day, hour, minute = (*parts, 0)[:5]
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold)


def test_the_buckets_are_shown_in_order_under_their_headings():
    assert [bucket.value for bucket in TimeBucket] == [
        "Recent (today)",
        "Yesterday",
        "Previous 5 days",
        "Previous 90 days",
        "Older",
    ]


@pytest.mark.parametrize(
    ("days", "bucket"),
    [
        (-4000, TODAY),
        (-1, TODAY),
        (0, TODAY),
        (1, YESTERDAY),
        (2, DAYS),
        (6, DAYS),
        (7, MONTHS),
        (96, MONTHS),
        (97, OLDER),
        (700_000, OLDER),
    ],
)
def test_the_bucket_follows_from_the_age_in_days(days: int, bucket: TimeBucket):
    assert time_bucket(NOW - timedelta(days=days), NOW.date(), UTC) is bucket


@pytest.mark.parametrize(
    ("zone", "moment", "today", "bucket"),
    [
        # Kiritimati is 14 hours ahead of UTC, so its day begins at 10:00 of the day before.
        ("Pacific/Kiritimati", datetime(2026, 1, 14, 9, 59, tzinfo=UTC), date(2026, 1, 15), YESTERDAY),
        ("Pacific/Kiritimati", datetime(2026, 1, 14, 10, 0, tzinfo=UTC), date(2026, 1, 15), TODAY),
        # Nepal is 5:45 ahead.
        ("Asia/Kathmandu", datetime(2026, 1, 14, 18, 14, tzinfo=UTC), date(2026, 1, 15), YESTERDAY),
        ("Asia/Kathmandu", datetime(2026, 1, 14, 18, 15, tzinfo=UTC), date(2026, 1, 15), TODAY),
        # Newfoundland is 3:30 behind in winter.
        ("America/St_Johns", datetime(2026, 1, 15, 3, 29, tzinfo=UTC), date(2026, 1, 15), YESTERDAY),
        ("America/St_Johns", datetime(2026, 1, 15, 3, 30, tzinfo=UTC), date(2026, 1, 15), TODAY),
        # Samoa had no 30 December 2011: the 29th ended at 10:00 UTC of the 30th and the 31st followed.
        ("Pacific/Apia", datetime(2011, 12, 30, 9, 59, tzinfo=UTC), date(2011, 12, 31), DAYS),
        ("Pacific/Apia", datetime(2011, 12, 30, 10, 0, tzinfo=UTC), date(2011, 12, 31), TODAY),
        # Lord Howe moves its clocks by half an hour: +11 until 2 a.m. of 5 April 2026, +10:30 afterwards.
        ("Australia/Lord_Howe", datetime(2026, 4, 5, 13, 29, tzinfo=UTC), date(2026, 4, 6), YESTERDAY),
        ("Australia/Lord_Howe", datetime(2026, 4, 5, 13, 30, tzinfo=UTC), date(2026, 4, 6), TODAY),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 12, 59, tzinfo=UTC), date(2026, 4, 5), YESTERDAY),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 13, 0, tzinfo=UTC), date(2026, 4, 5), TODAY),
        # 29 March 2026 has 23 hours in Warsaw, 25 October 25.
        ("Europe/Warsaw", _at("Europe/Warsaw", 2026, 3, 29, 0, 0), date(2026, 3, 30), YESTERDAY),
        ("Europe/Warsaw", datetime(2026, 3, 28, 22, 59, tzinfo=UTC), date(2026, 3, 30), DAYS),
        ("Europe/Warsaw", _at("Europe/Warsaw", 2026, 10, 25, 2, 30, fold=1), date(2026, 10, 25), TODAY),
        ("Europe/Warsaw", datetime(2026, 10, 25, 22, 59, tzinfo=UTC), date(2026, 10, 25), TODAY),
        ("Europe/Warsaw", datetime(2026, 10, 24, 21, 59, tzinfo=UTC), date(2026, 10, 25), YESTERDAY),
    ],
)
def test_days_are_those_of_the_users_calendar(zone: str, moment: datetime, today: date, bucket: TimeBucket):
    assert time_bucket(moment, today, ZoneInfo(zone)) is bucket


def test_a_naive_moment_is_utc():
    naive = datetime(2026, 1, 14, 23)  # noqa: DTZ001
    assert time_bucket(naive, NOW.date(), UTC) is YESTERDAY
    assert time_bucket(naive, NOW.date(), ZoneInfo("Europe/Warsaw")) is TODAY


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Apia", "America/Los_Angeles"])
@pytest.mark.parametrize(
    ("moment", "bucket"), [(datetime.min.replace(tzinfo=UTC), OLDER), (datetime.max.replace(tzinfo=UTC), TODAY)]
)
def test_the_ends_of_the_calendar_have_a_bucket(zone: str, moment: datetime, bucket: TimeBucket):
    assert time_bucket(moment, NOW.date(), ZoneInfo(zone)) is bucket


@pytest.mark.parametrize(
    ("moment", "bucket"),
    [
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), OLDER),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), TODAY),
    ],
)
def test_a_moment_outside_of_the_calendar_of_utc_has_a_bucket(moment: datetime, bucket: TimeBucket):
    assert time_bucket(moment, NOW.date(), UTC) is bucket
