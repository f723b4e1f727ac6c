"""Beyond the contract: times that can be relied on, and items that expire when they should."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from langgraph.store.base import Item

from inference_core.testing.conformance.promises import (
    NotApplicable,
    Promises,
    expect,
    expect_equal,
    expect_same,
    fail,
    strength,
)
from inference_core.testing.conformance.subject import NS, Subject

_MINUTE_S: Final = 60.0
_TICK_S: Final = 1.1
"""After so long, times in whole seconds have moved, too."""
_BRIEF_S: Final = 1.2
_LONG_S: Final = 2.4


class TimeStrength(Promises):
    """When something was created, changed, and is over."""

    @strength
    def test_updates_keep_the_creation_time(self, subject: Subject) -> None:
        """An update keeps created_at and moves updated_at.

        InMemoryStore and SqliteStore reset created_at, so that nobody knows how old a memory is.
        """
        subject.put(NS, "a", {"n": 1})
        first = _got(subject, "a")
        time.sleep(_TICK_S)
        subject.put(NS, "a", {"n": 2})
        second = _got(subject, "a")
        expect_equal(second.created_at, first.created_at, "created_at after an update")
        expect(second.updated_at > first.updated_at, "updated_at did not move")

    @strength
    def test_times_have_a_zone(self, subject: Subject) -> None:
        """Times are aware, and now.

        SqliteStore gives naive ones: compared with an aware one they raise TypeError.
        """
        subject.put(NS, "a", {"n": 1})
        for item in (_got(subject, "a"), *subject.search(NS)):
            expect(item.created_at.tzinfo and item.updated_at.tzinfo, f"{item.updated_at!r} is naive")
            away = abs(datetime.now(UTC) - item.updated_at)
            expect(away < timedelta(minutes=1), f"updated_at is {away} from now")

    @strength
    def test_times_are_finer_than_a_second(self, subject: Subject) -> None:
        """Items that were put a twentieth of a second apart have different times, in their order.

        SqliteStore counts whole seconds: what an agent learnt within one has no order.
        """
        for key in "abc":
            subject.put(NS, key, {"n": 1})
            time.sleep(0.05)
        times = [_got(subject, key).updated_at for key in "abc"]
        expect(times[0] < times[1] < times[2], f"times do not rise: {[f'{at:%H:%M:%S.%f}' for at in times]}")

    @strength
    def test_expired_items_are_gone(self, subject: Subject) -> None:
        """An item whose time is over is not found, swept or not, and reading does not revive it.

        SqliteStore and PostgresStore give it until it is swept, by default by nobody; a get makes it live on.
        PostgresStore hides it if it was opened with ttl={"omit_expired": True}.
        """
        subject.expiring().put(NS, "kept", {"text": "tea"})
        for key in ("got", "peeked"):
            subject.put(NS, key, {"text": "tea"}, ttl=_BRIEF_S / _MINUTE_S)
        time.sleep(_BRIEF_S / 2)
        subject.get(NS, "peeked", refresh_ttl=False)
        time.sleep(_BRIEF_S)
        expect_equal(subject.value(NS, "got"), None, "get of an expired item")
        expect_equal(subject.value(NS, "peeked", refresh_ttl=False), None, "get after a look without refresh")
        expect_equal(subject.keys(NS), ["kept"], "search")
        expect_equal(subject.keys(NS, query="tea"), ["kept"], "search with a query")

    @strength
    def test_reading_extends_a_life(self, subject: Subject) -> None:
        """A read starts an item's time anew, also one of seconds.

        PostgresStore keeps whole minutes: 0.2 becomes 0, and with omit_expired the first read ends the item.
        """
        subject.expiring()
        for key in ("got", "found"):
            subject.put(NS, key, {"n": 1}, ttl=_LONG_S / _MINUTE_S)
        started = time.monotonic()
        time.sleep(_LONG_S / 2)
        subject.get(NS, "got")
        expect_same(subject.keys(NS), ["found", "got"], "half-way")
        if time.monotonic() - started > _LONG_S * 0.9:
            raise NotApplicable("this machine is too slow for lives of seconds")
        time.sleep(_LONG_S / 2 + 0.3)
        reached = time.monotonic() - started
        if reached > _LONG_S * 1.4:
            raise NotApplicable("this machine is too slow for lives of seconds")
        expect_same(subject.keys(NS, refresh_ttl=False), ["found", "got"], "after the time that was given first")


def _got(subject: Subject, key: str) -> Item:
    item = subject.get(NS, key)
    if item is None:
        fail(f"{key!r} is not there")
    return item
