"""Time buckets, against calendars worked out by hand and by another way."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from inference_core.memory.temporal import TimeBucket, by_time_bucket, time_bucket

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
    assert by_time_bucket([moment], lambda item: item, NOW, ZoneInfo(zone)) == {bucket: [moment]}


@pytest.mark.parametrize(
    ("moment", "bucket"),
    [
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), OLDER),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), TODAY),
    ],
)
def test_a_moment_outside_of_the_calendar_of_utc_has_a_bucket(moment: datetime, bucket: TimeBucket):
    assert time_bucket(moment, NOW.date(), UTC) is bucket


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Asia/Tokyo"), timezone(timedelta(hours=-9))])
def test_items_are_grouped_in_order_with_the_newest_first(zone: tzinfo):
    ages = [400, 0, 1, 96, 3, 97, 6, 7, 2]
    moments = [NOW - timedelta(days=age) for age in ages]
    found = by_time_bucket(moments, lambda item: item, NOW, zone)
    assert {bucket: [(NOW - item).days for item in items] for bucket, items in found.items()} == {
        TODAY: [0],
        YESTERDAY: [1],
        DAYS: [2, 3, 6],
        MONTHS: [7, 96],
        OLDER: [97, 400],
    }
    assert list(found) == list(TimeBucket)


def test_empty_buckets_are_left_out():
    nothing: list[datetime] = []
    assert by_time_bucket(nothing, lambda item: item, NOW, UTC) == {}
    assert list(by_time_bucket([NOW], lambda item: item, NOW, UTC)) == [TODAY]


def test_items_of_the_same_instant_keep_their_order():
    found = by_time_bucket(["b", "a", "c"], lambda _: NOW, NOW, UTC)
    assert found == {TODAY: ["b", "a", "c"]}


def test_naive_and_aware_moments_are_ordered_together():
    late = datetime(2026, 1, 1, 12, tzinfo=UTC)
    early = datetime(2026, 1, 1, 11)  # noqa: DTZ001 - naive on purpose
    (members,) = by_time_bucket([early, late], lambda moment: moment, late, UTC).values()
    assert members == [late, early]


def test_moments_of_a_repeated_hour_are_ordered_by_when_they_were():
    zone = ZoneInfo("America/New_York")
    first = datetime(2025, 11, 2, 1, 50, tzinfo=zone)
    second = datetime(2025, 11, 2, 1, 10, fold=1, tzinfo=zone)
    (members,) = by_time_bucket([first, second], lambda moment: moment, second, zone).values()
    assert members == [second, first]
