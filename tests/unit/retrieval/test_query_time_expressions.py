"""The time that a query speaks of."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from inference_core.retrieval import query
from inference_core.retrieval.query import MAX_CHARACTERS, interval_of

SUNDAY = datetime(2024, 3, 31, 12, 30, tzinfo=UTC)


def _days(text: str, now: datetime = SUNDAY) -> str:
    """First and last day of the interval, or nothing."""
    found = interval_of(text, now)
    if found is None:
        return ""
    start, end = found
    assert start.time() == end.time() == datetime.min.time()
    first, last = start.date(), end.date() - timedelta(days=1)
    return f"{first}" if first == last else f"{first} {last}"


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("What did I say yesterday?", "2024-03-30"),
        ("the day before yesterday", "2024-03-29"),
        ("last night", "2024-03-30"),
        ("What is on today", "2024-03-31"),
        ("this morning", "2024-03-31"),
        ("tomorrow", "2024-04-01"),
        ("last week", "2024-03-18 2024-03-24"),
        ("this week", "2024-03-25 2024-03-31"),
        ("last weekend", "2024-03-23 2024-03-24"),
        ("last month", "2024-02-01 2024-02-29"),
        ("this quarter", "2024-01-01 2024-03-31"),
        ("last quarter", "2023-10-01 2023-12-31"),
        ("this year", "2024-01-01 2024-12-31"),
        ("last year's trip", "2023-01-01 2023-12-31"),
        ("last summer", "2023-06-01 2023-08-31"),
        ("last winter", "2023-12-01 2024-02-29"),
        ("this winter", "2023-12-01 2024-02-29"),
        ("this autumn", "2024-09-01 2024-11-30"),
        ("in the winter of 2022", "2022-12-01 2023-02-28"),
        ("three days ago", "2024-03-28"),
        ("a week ago", "2024-03-18 2024-03-24"),
        ("two months ago", "2024-01-01 2024-01-31"),
        ("13 months ago", "2023-02-01 2023-02-28"),
        ("a couple of years ago", "2022-01-01 2022-12-31"),
        ("in the last 3 days", "2024-03-28 2024-03-31"),
        ("over the past two weeks", "2024-03-17 2024-03-31"),
        ("the past month", "2024-02-28 2024-03-31"),
        ("last two years", "2022-03-28 2024-03-31"),
        ("on Friday", "2024-03-29"),
        ("on Sunday", "2024-03-31"),
        ("last Sunday", "2024-03-24"),
        ("last Monday", "2024-03-25"),
        ("half a year ago", "2023-09-01 2023-09-30"),
        ("in the last half year", "2023-09-28 2024-03-31"),
        ("since Monday", "2024-03-25 2024-03-31"),
        ("a week ago today", "2024-03-18 2024-03-24"),
        ("on Monday last week", "2024-03-18"),
        ("last week on Friday", "2024-03-22"),
        ("Tuesday of last week", "2024-03-19"),
        ("in May last year", "2023-05-01 2023-05-31"),
        ("on January 5 last year", "2023-01-05"),
        ("in the summer of last year", "2023-06-01 2023-08-31"),
    ],
)
def test_a_relative_expression(text: str, days: str):
    assert _days(text) == days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2023-05-08", "2023-05-08"),
        ("2023/5/8", "2023-05-08"),
        ("at 2023-05-08T10:00", "2023-05-08"),
        ("on 8 May 2023", "2023-05-08"),
        ("the 8th of May, 2023", "2023-05-08"),
        ("May 8, 2023", "2023-05-08"),
        ("MAY 8TH 2023", "2023-05-08"),
        ("Sept. 8 2023", "2023-09-08"),
        ("28/05/2023", "2023-05-28"),
        ("5/28/2023", "2023-05-28"),
        ("05/05/2023", "2023-05-05"),
        ("29 February", "2024-02-29"),
        ("on 8 May", "2023-05-08"),
        ("on May 8", "2023-05-08"),
        ("March 8th", "2024-03-08"),
        ("December 25", "2023-12-25"),
        ("in May", "2023-05-01 2023-05-31"),
        ("in March", "2024-03-01 2024-03-31"),
        ("last March", "2023-03-01 2023-03-31"),
        ("this June", "2024-06-01 2024-06-30"),
        ("May 2023", "2023-05-01 2023-05-31"),
        ("in 2023-05", "2023-05-01 2023-05-31"),
        ("in 2022", "2022-01-01 2022-12-31"),
        ("Q3 2022", "2022-07-01 2022-09-30"),
        ("in Q3", "2023-07-01 2023-09-30"),
        ("the third quarter of 2022", "2022-07-01 2022-09-30"),
        ("between March and May 2023", "2023-03-01 2023-05-31"),
        ("between March and May", "2023-03-01 2023-05-31"),
        ("from November to February 2023", "2022-11-01 2023-02-28"),
        ("from November 2021 to February 2023", "2021-11-01 2023-02-28"),
        ("between 2019 and 2021", "2019-01-01 2021-12-31"),
        ("since May", "2023-05-01 2024-03-31"),
        ("since the 8th of May 2023", "2023-05-08 2024-03-31"),
        ("since yesterday", "2024-03-30 2024-03-31"),
        ("since 2021", "2021-01-01 2024-03-31"),
    ],
)
def test_a_date_in_english(text: str, days: str):
    assert _days(text) == days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("am 8. Mai 2023", "2023-05-08"),
        ("08.05.2023", "2023-05-08"),
        ("im M\u00e4rz", "2024-03-01 2024-03-31"),
        ("seit Dezember", "2023-12-01 2024-03-31"),
        ("Oktober 2022", "2022-10-01 2022-10-31"),
        ("el 8 de mayo de 2023", "2023-05-08"),
        ("en enero", "2024-01-01 2024-01-31"),
        ("diciembre de 2022", "2022-12-01 2022-12-31"),
        ("le 1er mai 2023", "2023-05-01"),
        ("en ao\u00fbt", "2023-08-01 2023-08-31"),
        ("2023\u5e745\u67088\u65e5", "2023-05-08"),
        ("\u62112023\u5e745\u6708\u53bb\u4e86", "2023-05-01 2023-05-31"),
        ("5\u6708", "2023-05-01 2023-05-31"),
        ("5\u67088\u53f7", "2023-05-08"),
        ("2022\u5e74", "2022-01-01 2022-12-31"),
    ],
    ids=ascii,
)
def test_a_date_in_another_language(text: str, days: str):
    assert _days(text) == days


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Where do I live?",
        "May I ask you something?",
        "This may be wrong",
        "what may have happened",
        "Which of the 8 may be late?",
        "may 3 people come",
        "Does May like tea?",
        "march 5 miles",
        "this march",
        "Mars is a planet",
        "before May 2023",
        "by last Friday",
        "by the 8th of May 2023",
        "between 5 and 10 May 2023",
        "5-8 May 2023",
        "in May and in June",
        "8 May 2023 or 9 May 2023",
        "08/05/2023",
        "2023-02-30",
        "31 June",
        "the first quarter of the game",
        "in past years",
        "a few weeks ago",
        "half a month ago",
        "on Fridays",
        "version 2.10.3",
        "INC-2041-05",
        "port 2023",
        "in 1500 words",
        "day after tomorrow",
        "the last one",
        "2023",
    ],
)
def test_what_is_not_certain_is_no_time(text: str):
    assert _days(text) == ""


@pytest.mark.parametrize(
    ("now", "text", "days"),
    [
        (date(2024, 1, 1), "last month", "2023-12-01 2023-12-31"),
        (date(2024, 1, 1), "yesterday", "2023-12-31"),
        (date(2024, 2, 29), "last year", "2023-01-01 2023-12-31"),
        (date(2024, 2, 29), "past year", "2023-02-28 2024-02-29"),
        (date(2023, 3, 1), "29 February", "2020-02-29"),
        (date(2023, 3, 1), "yesterday", "2023-02-28"),
        (date(2024, 1, 31), "one month ago", "2023-12-01 2023-12-31"),
        (date(2024, 7, 1), "last May", "2024-05-01 2024-05-31"),
        (date(2024, 5, 20), "last May", "2023-05-01 2023-05-31"),
        (date(2024, 5, 20), "in May", "2024-05-01 2024-05-31"),
        (date(2024, 10, 1), "this winter", "2024-12-01 2025-02-28"),
        (date(2024, 12, 31), "this quarter", "2024-10-01 2024-12-31"),
        (date(9999, 12, 31), "today", ""),
        (date(9999, 12, 31), "in May", "9999-05-01 9999-05-31"),
        (date(1, 1, 1), "last year", ""),
        (date(1, 1, 1), "29 February", ""),
        (date(1, 1, 1), "last summer", ""),
    ],
    ids=str,
)
def test_ends_of_months_and_of_years(now: date, text: str, days: str):
    assert _days(text, datetime(now.year, now.month, now.day, tzinfo=UTC)) == days


def test_the_interval_is_in_the_zone_of_now():
    warsaw = ZoneInfo("Europe/Warsaw")
    found = interval_of("today", datetime(2024, 3, 31, 12, tzinfo=warsaw))
    assert found is not None
    assert found == (datetime(2024, 3, 31, tzinfo=warsaw), datetime(2024, 4, 1, tzinfo=warsaw))
    assert [moment.tzinfo for moment in found] == [warsaw, warsaw]
    assert (found[1].astimezone(UTC) - found[0].astimezone(UTC)) == timedelta(hours=23)


def test_which_day_it_is_depends_on_the_zone():
    moment = datetime(2024, 1, 1, 23, tzinfo=UTC)
    assert _days("today", moment) == "2024-01-01"
    assert _days("today", moment.astimezone(timezone(timedelta(hours=9)))) == "2024-01-02"


def test_text_beyond_the_limit_is_not_looked_at():
    assert _days(" " * (MAX_CHARACTERS - 9) + "yesterday") == "2024-03-30"
    assert _days(" " * (MAX_CHARACTERS - 8) + "yesterday") == ""


@pytest.mark.parametrize("part", ["1 ", "may ", " ", "x", "2023-", "last "], ids=ascii)
def test_a_long_text_takes_little_time(part: str):
    started = time.process_time()
    assert _days(part * 65_536) == ""
    assert time.process_time() - started < 0.2


def test_the_rules_are_compiled_when_the_first_text_is_read():
    """Another test may have read one in this process, without coverage."""
    query._rules.cache_clear()
    assert _days("yesterday") == "2024-03-30"
    assert query._rules.cache_info().misses == 1
