"""Days and local times around every kind of jump of the clocks, against a calendar of whole numbers."""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.sqlite import SqliteStore

from inference_core import AgentMemoryStoreService, MemoryStoreDocument, open_store
from inference_core.clock import aware
from inference_core.context.render import TimeBucket, render_memories, time_bucket
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.testing import FrozenClock

U = "ada@example.com"
DAY, HOUR, MICROSECOND = timedelta(days=1), timedelta(hours=1), timedelta(microseconds=1)
TODAY, YESTERDAY, DAYS, MONTHS, OLDER = TimeBucket
KATHMANDU = ZoneInfo("Asia/Kathmandu")
ZONES = [
    ZoneInfo(name)
    for name in (
        "UTC",
        "Pacific/Kiritimati",  # 14 hours ahead; left out the last day of 1994
        "Etc/GMT+12",  # 12 hours behind
        "Asia/Manila",  # almost 16 hours behind until 1844, then left out a day
        "Asia/Kathmandu",
        "Australia/Lord_Howe",  # moves its clocks by half an hour
        "Pacific/Apia",  # left out 30 December 2011
        "America/New_York",
        "America/St_Johns",
        "Europe/Lisbon",
        "Europe/Dublin",  # its winter time is the exception, an hour behind
        "Africa/Monrovia",  # 44 minutes and 30 seconds behind until 1972
    )
]
LAST_DAYS = (0, 1, 6, 96)
AGES = (0, 1, -1, 3_600, 7_200, -3_600, 86_400, -86_400, 90_000, 82_800, 604_800, 8_380_800, 10**8, -(10**9))
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def on_clock_face(moment: datetime) -> int:
    """Seconds since the year 1 began, as far as date and time alone tell."""
    years = moment.year - 1
    is_leap = moment.year % 4 == 0 and (moment.year % 100 != 0 or moment.year % 400 == 0)
    days = years * 365 + years // 4 - years // 100 + years // 400
    days += _DAYS_BEFORE[moment.month - 1] + (is_leap and moment.month > 2) + moment.day - 1
    return ((days * 24 + moment.hour) * 60 + moment.minute) * 60 + moment.second


def seconds(span: timedelta) -> int:
    return span.days * 86_400 + span.seconds


def offset(utc: datetime, zone: ZoneInfo) -> int:
    """How far the clocks of ``zone`` are ahead then: as much as they say themselves; 0 outside of the calendar."""
    naive = utc.replace(tzinfo=None)
    guesses = {zone.utcoffset(moved(naive, -DAY)), zone.utcoffset(moved(naive, DAY))}
    found = [ahead for ahead in guesses if ahead is not None and shows(zone, naive, ahead)]
    return seconds(found[0]) if found else 0


def shows(zone: ZoneInfo, utc: datetime, ahead: timedelta) -> bool:
    """Whether clocks that are ``ahead`` are on a time that comes, and that comes when they are."""
    try:
        clock_face = utc + ahead
    except OverflowError:
        return False
    before = zone.utcoffset(clock_face) or timedelta()
    after = zone.utcoffset(clock_face.replace(fold=1)) or timedelta()
    return before >= after and ahead in (before, after)


def local_seconds(moment: datetime, zone: ZoneInfo) -> int:
    """What the clocks of ``zone`` show then, as `on_clock_face` counts it."""
    utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return on_clock_face(utc) + offset(utc, zone)


def bucket_at(local_now: int, moment: datetime, zone: ZoneInfo) -> TimeBucket:
    return bucket_of(local_now // 86_400 - local_seconds(moment, zone) // 86_400)


def bucket_of(age: int) -> TimeBucket:
    if age <= 0:
        return TODAY
    return next((bucket for last, bucket in zip(LAST_DAYS, TimeBucket, strict=False) if age <= last), OLDER)


def moved(moment: datetime, span: timedelta) -> datetime:
    """``moment + span``, or the end of the calendar."""
    try:
        return moment + span
    except OverflowError:
        end = datetime.max if span > timedelta() else datetime.min  # noqa: DTZ901 - it gets the moment's zone
        return end.replace(tzinfo=moment.tzinfo)


@cache
def jumps(zone: ZoneInfo) -> list[datetime]:
    """The instants from 1840 to 2040 at which the clocks of ``zone`` were moved."""
    first = datetime(1840, 1, 1, tzinfo=UTC)
    points = [(at, offset(first + timedelta(seconds=at), zone)) for at in range(0, 200 * 365 * 86_400, 45 * 86_400)]
    found: list[datetime] = []
    for (low, before), (high, after) in pairwise(points):
        left, right = low, high if before != after else low
        while right - left > 1:
            middle = (left + right) // 2
            is_before = offset(first + timedelta(seconds=middle), zone) == before
            left, right = (middle, right) if is_before else (left, middle)
        found += [first + timedelta(seconds=right)] if right > low else []
    return found


def instants(count: int, chance: random.Random) -> list[datetime]:
    """``count`` instants in UTC: jumps of the clocks, turns of years, leap days, the ends of the calendar, any."""
    spans = [0 * HOUR, -MICROSECOND, HOUR / 2, -HOUR / 2, HOUR, -HOUR, DAY, -DAY, -DAY - MICROSECOND]
    spans += [12 * HOUR, -14 * HOUR, 16 * HOUR]
    years = [1, 4, 1583, 1600, 1900, 1969, 1970, 1999, 2000, 2023, 2024, 2026, 2038, 2100, 9996, 9999]
    dates = [(1, 1), (2, 28), (3, 1), (12, 31)]
    turns = [datetime(year, *date, tzinfo=UTC) for year in years for date in dates]
    turns += [datetime(year, 2, 29, tzinfo=UTC) for year in (4, 1600, 2000, 2024, 9996)]
    ends = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    fixed = [moved(turn, span) for turn in (*turns, *ends) for span in spans]
    clocks = sorted({jump for zone in ZONES for jump in jumps(zone)})
    near_jumps = [moved(chance.choice(clocks), chance.choice(spans)) for _ in range((count - len(fixed)) * 2 // 3)]
    every = (ends[1] - ends[0]) // MICROSECOND
    others = [
        ends[0] + MICROSECOND * chance.randint(0, every) for _ in range(max(0, count - len(fixed) - len(near_jumps)))
    ]
    return [*fixed, *near_jumps, *others][:count]


def around(now: datetime, local: int, number: int) -> list[datetime]:
    """Two moments, at the edge of a bucket of ``now`` and of some age, each in one of the forms that stores give."""
    back = timedelta(days=LAST_DAYS[number % 4], seconds=local % 86_400, microseconds=now.microsecond + number // 4 % 2)
    age = timedelta(seconds=AGES[number % len(AGES)])
    return [in_form(number // 8 % 4, moved(now, -back)), in_form(number // 3 % 4, moved(now, -age))]


def in_form(number: int, moment: datetime) -> datetime:
    """``moment`` as one store or another gives it; where that is not possible, in UTC."""
    if number == 0:
        return moment.replace(tzinfo=None)
    if number == 1:
        return moment.replace(microsecond=0, tzinfo=None)
    try:
        return moment.astimezone(KATHMANDU) if number == 2 else moment
    except OverflowError:
        return moment


@pytest.fixture(scope="module")
def times(request: pytest.FixtureRequest) -> list[datetime]:
    """500 instants, always the same; at full size 20,000, always others."""
    full = bool(request.config.getoption("--full"))
    return instants(20_000 if full else 500, random.Random() if full else random.Random(17))


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_every_moment_is_in_the_bucket_of_its_day_and_in_no_other(times: list[datetime], zone: ZoneInfo):
    for number, now in enumerate(times):
        local = local_seconds(now, zone)
        moments = around(now, local, number)
        expected = [bucket_at(local, moment, zone) for moment in moments]
        today = date.fromordinal(local // 86_400 + 1)
        assert [time_bucket(moment, today, zone) for moment in moments] == expected, (now, moments)


def test_the_moments_lie_in_every_bucket_of_every_zone(times: list[datetime]):
    found = {
        (zone.key, bucket_at(local_seconds(now, zone), moment, zone))
        for zone in ZONES
        for number, now in enumerate(times[::50])
        for moment in around(now, local_seconds(now, zone), number)
    }
    assert len(found) == len(ZONES) * len(TimeBucket)


def test_the_jumps_of_the_clocks_are_known():
    found = {zone.key: list(jumps(zone)) for zone in ZONES}
    assert [zone for zone, moments in found.items() if not moments] == ["UTC", "Etc/GMT+12"]
    assert datetime(2011, 12, 30, 10, tzinfo=UTC) in found["Pacific/Apia"]
    assert datetime(2026, 4, 4, 15, tzinfo=UTC) in found["Australia/Lord_Howe"]
    assert datetime(1972, 1, 7, 0, 44, 30, tzinfo=UTC) in found["Africa/Monrovia"]
    assert {datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)} <= {*found["America/New_York"]}


def as_record(moment: datetime, number: int) -> MemoryRecord:
    return MemoryRecord(
        id=f"m-{number}",
        content=f"memory {number}.",
        memory_type=MemoryType.FACTS,
        category=MemoryCategory.SEMANTIC,
        namespace=("ada", "semantic"),
        created_at=aware(moment),
        updated_at=aware(moment),
    )


def read_stamp(stamp: str) -> int:
    """A printed local time as `on_clock_face` counts it."""
    return on_clock_face(datetime(*map(int, re.split("[-T:]", stamp))))  # noqa: DTZ001 # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_the_block_shows_each_memory_once_under_its_day_at_its_local_time(times: list[datetime], zone: ZoneInfo):
    for number, now in enumerate(times[::25]):
        local = local_seconds(now, zone)
        moments = around(now, local, number)
        records = [as_record(moment, at) for at, moment in enumerate(moments)]
        header, *lines = render_memories({MemoryCategory.SEMANTIC: records}, now=now, zone=zone).split("\n")
        assert read_stamp(header.split("): ")[1].rstrip("Z")) == local
        heading, shown = "", list[tuple[int, str, int]]()
        for line in lines:
            if bullet := re.match(r"  - \[(.*?)\] memory (\d+)\. \(type: facts\)", line):
                shown.append((int(bullet[2]), heading, read_stamp(bullet[1])))
            elif line.startswith("  "):
                heading = line.strip().removesuffix(":")
        assert sorted(shown) == [
            (at, bucket_at(local, moment, zone).value, local_seconds(moment, zone)) for at, moment in enumerate(moments)
        ]


@pytest.mark.parametrize(
    ("zone", "now", "header"),
    [
        ("UTC", datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC), "(UTC): 2024-02-29T23:59:59Z"),
        ("America/New_York", datetime(2026, 3, 8, 6, 59, 59, tzinfo=UTC), "(EST): 2026-03-08T01:59:59"),
        ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC), "(EDT): 2026-03-08T03:00:00"),
        ("America/New_York", datetime(2026, 11, 1, 5, 30, tzinfo=UTC), "(EDT): 2026-11-01T01:30:00"),
        ("America/New_York", datetime(2026, 11, 1, 6, 30, tzinfo=UTC), "(EST): 2026-11-01T01:30:00"),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 14, 59, tzinfo=UTC), "(+11): 2026-04-05T01:59:00"),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, 1, tzinfo=UTC), "(+1030): 2026-04-05T01:31:00"),
        ("Pacific/Apia", datetime(2011, 12, 30, 9, 59, 59, tzinfo=UTC), "(-10): 2011-12-29T23:59:59"),
        ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC), "(+14): 2011-12-31T00:00:00"),
        ("Asia/Kathmandu", datetime(2025, 12, 31, 18, 15, tzinfo=UTC), "(+0545): 2026-01-01T00:00:00"),
        ("Pacific/Kiritimati", datetime(9999, 12, 31, 9, 59, tzinfo=UTC), "(+14): 9999-12-31T23:59:00"),
    ],
)
def test_the_header_tells_the_local_time(clock: FrozenClock, zone: str, now: datetime, header: str):
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock, timezone=zone).sync
        clock.set(now)
        service.save_memory(U, "Drinks tea")
        block = service.format_context_for_prompt(U)
        assert block.split("\n")[0] == f"Current datetime {header}"
        assert f"{TODAY.value}:\n  - [{header.split('): ')[1].rstrip('Z')}] Drinks tea" in block


def headings(block: str) -> list[str]:
    return re.findall(r"^  (\S.*):$", block, re.MULTILINE)


@pytest.mark.parametrize("zone", ZONES[::3], ids=str)
def test_a_clock_that_steps_back_and_then_over_midnight(any_store: BaseStore, clock: FrozenClock, zone: ZoneInfo):
    service = AgentMemoryStoreService(any_store, clock=clock, timezone=zone).sync
    clock.set(datetime(2026, 5, 15, 23, 30, tzinfo=zone))
    service.save_memory(U, "Drinks tea", memory_id="m-1")
    saved_at = clock.now()
    for step, heading in ((-HOUR, TODAY), (-DAY, TODAY), (DAY + HOUR, TODAY), (HOUR / 2, YESTERDAY), (DAY, DAYS)):
        clock.advance(step)
        assert headings(service.format_context_for_prompt(U)) == [heading.value]
        assert headings(service.format_context_for_prompt(U, "tea")) == [heading.value]
        assert [(one.id, one.created_at) for one in service.recall_memories(U, "tea")] == [("m-1", saved_at)]


@pytest.mark.parametrize(
    "change",
    [{"content": "Drinks coffee"}, {"memory_type": "context"}, {"topic": "drinks"}, {"category": "procedural"}],
    ids=str,
)
def test_no_update_moves_the_creation(any_store: BaseStore, clock: FrozenClock, change: dict[str, Any]):
    service = AgentMemoryStoreService(any_store, agent_name="planner", clock=clock, timezone="Pacific/Apia").sync
    created = datetime(2011, 12, 30, 9, 59, 59, 123_456, tzinfo=UTC)
    clock.set(created)
    service.save_memory(U, "Drinks tea", memory_id="m-1")
    for step in (HOUR, -2 * HOUR, DAY, -400 * DAY):
        clock.advance(step)
        assert service.update_memory(U, "m-1", **change)
        assert [one.created_at for one in service.list_memories(U)[0]] == [created]
        service.save_memory(U, "Drinks tea", memory_id="m-1")
        assert [one.created_at for one in service.recall_memories(U, "tea")] == [created]


def test_saves_within_a_millisecond_keep_their_order(any_store: BaseStore, clock: FrozenClock):
    service = AgentMemoryStoreService(any_store, clock=clock).sync
    contents = [f"memory {number}." for number in range(20)]
    for content in contents:
        service.save_memory(U, content, "preferences")
        clock.advance(50 * MICROSECOND)
    newest_first = contents[::-1]
    assert said(service.list_memories(U)[0]) == newest_first
    assert said(service.recall_memories(U, "", 20)) == newest_first
    assert said(service.recall_memories(U, "memory", 20)) == newest_first
    assert service.get_user_context(U, max_per_type=20) == {"preferences": newest_first}
    block = service.format_context_for_prompt(U, max_memories=60)
    assert re.findall(r"memory \d+\.", block) == newest_first


STORED_TIMES = [
    ("2026-03-08 06:59:59", datetime(2026, 3, 8, 6, 59, 59, tzinfo=UTC)),
    ("2026-03-08T04:59:59", datetime(2026, 3, 8, 4, 59, 59, tzinfo=UTC)),
    ("2026-03-08T05:00:00Z", datetime(2026, 3, 8, 5, tzinfo=UTC)),
    ("2026-03-08T12:45:00.000001+05:45", datetime(2026, 3, 8, 7, 0, 0, 1, tzinfo=UTC)),
    ("2026-03-08", datetime(2026, 3, 8, tzinfo=UTC)),
    ("0001-01-01T00:00:00", datetime.min.replace(tzinfo=UTC)),
    ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ("9999-12-31T23:59:59.999999+00:00", datetime.max.replace(tzinfo=UTC)),
]


def said(documents: list[MemoryStoreDocument]) -> list[str]:
    return [document.content for document in documents]


def test_every_form_of_a_stored_time_is_read_as_the_instant_that_it_names(any_store: BaseStore, clock: FrozenClock):
    new_york = ZoneInfo("America/New_York")
    clock.set(datetime(2026, 3, 8, 12, tzinfo=UTC))
    service = AgentMemoryStoreService(any_store, clock=clock, timezone=new_york).sync
    for number, (stored, utc) in enumerate(STORED_TIMES):
        user = f"user-{number}"
        value = {"content": "Drinks tea", "memory_type": "facts", "created_at": stored}
        any_store.put((user, "semantic"), "m-1", value)
        (found,) = service.list_memories(user)[0]
        assert found.created_at == utc
        expected = [bucket_at(local_seconds(clock.now(), new_york), utc, new_york).value]
        for query in (None, "tea"):
            assert headings(service.format_context_for_prompt(user, query)) == expected


def test_a_seconds_only_naive_stamp_of_sqlite_is_utc(sqlite_url: str, clock: FrozenClock):
    with SqliteStore.from_conn_string(sqlite_url.removeprefix("sqlite:///")) as store:
        store.setup()
        store.put(("ada", "semantic"), "m-1", {"content": "Drinks tea", "memory_type": "facts"})
        for stamp in ("2026-03-08 06:59:59", "2026-11-01 05:30:00", "2011-12-30 10:00:00", "2024-02-29 10:00:00"):
            store.conn.execute("UPDATE store SET created_at = ?, updated_at = ?", (stamp, stamp))
            written = datetime.fromisoformat(stamp).replace(tzinfo=UTC)
            clock.set(written + DAY)
            item = store.get(("ada", "semantic"), "m-1")
            assert item is not None
            assert item.created_at == written.replace(tzinfo=None)
            for zone in ZONES:
                service = AgentMemoryStoreService(store, clock=clock, timezone=zone).sync
                assert [one.created_at for one in service.list_memories("ada")[0]] == [written]
                expected = bucket_at(local_seconds(clock.now(), zone), written, zone)
                assert headings(service.format_context_for_prompt("ada")) == [expected.value]
                assert time_bucket(item.created_at, clock.now().astimezone(zone).date(), zone) is expected
