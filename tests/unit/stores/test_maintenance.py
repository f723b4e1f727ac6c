"""Chores of a store: one thread, in turns, each by itself in its faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from inference_core import open_store
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.stores import maintenance as module
from inference_core.stores.maintenance import Maintenance

SECRET = "the user's own words"


@pytest.fixture
def chores() -> Iterator[Maintenance]:
    chores = Maintenance()
    yield chores
    chores.close()


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)


def test_a_chore_runs_when_it_is_woken_and_from_time_to_time(chores: Maintenance) -> None:
    woken: list[float] = []
    regular: list[int] = []
    chores.add("woken", lambda: woken.append(time.monotonic()))
    chores.add("regular", lambda: regular.append(1), 0.01)
    until(lambda: len(regular) > 2)
    assert woken == []
    asked = time.monotonic()
    chores.wake("woken", 0.05)
    until(lambda: woken)
    assert woken[0] - asked >= 0.05
    chores.wake("woken")
    until(lambda: len(woken) == 2)
    with pytest.raises(ConfigurationError, match="woken"):
        chores.add("woken", int)


def test_chores_take_turns(chores: Maintenance) -> None:
    ran: list[str] = []
    gate = threading.Event()

    def long() -> bool:
        gate.wait(60)
        ran.append("long")
        return len(ran) < 20

    chores.add("long", long)
    chores.add("short", lambda: ran.append("short"))
    chores.wake("long")
    time.sleep(0.02)
    chores.wake("short")
    gate.set()
    until(lambda: len(ran) >= 20)
    assert ran.index("short") <= 2


def test_a_wake_up_in_the_midst_of_the_work_is_not_lost(chores: Maintenance) -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)
        if len(ran) == 1:
            chores.wake("one")

    chores.add("one", work)
    chores.wake("one")
    until(lambda: len(ran) == 2)


@pytest.mark.parametrize("fault", [StoreUnavailable(SECRET), KeyError(SECRET), RecursionError(SECRET)])
def test_a_fault_of_any_kind_is_counted_and_ends_nothing(
    chores: Maintenance, fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Background threads caught only errors of this package, and died without a word of all others."""
    monkeypatch.setattr(module, "_PATIENCE_S", (0.01,))
    caplog.set_level("INFO")
    ran: list[int] = []
    faults = [fault, fault]

    def work() -> None:
        if faults:
            raise faults.pop()
        ran.append(1)

    chores.add("bad", work)
    chores.add("good", lambda: ran.append(2), 0.01)
    chores.wake("bad")
    until(lambda: {1, 2} <= set(ran))
    bad = chores.report()[0]
    assert (bad.name, bad.failures, bad.last_error) == ("bad", 2, type(fault).__name__)
    assert bad.runs >= 3
    assert "bad" in caplog.text
    assert SECRET not in caplog.text


def test_a_chore_that_has_failed_rests_however_often_it_is_woken(
    chores: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", (60.0,))
    chores.add("bad", lambda: 1 / 0)
    for _ in range(20):
        chores.wake("bad")
        time.sleep(0.002)
    assert [one.runs for one in chores.report()] == [1]


def test_what_has_only_begun_does_not_end_a_row_of_failures(
    chores: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", (0.01, 60.0))
    begins = [True, False, True, False]

    def work() -> None:
        if begins.pop():
            chores.wake("bad")
        else:
            raise StoreUnavailable("away")

    chores.add("bad", work)
    chores.wake("bad")
    until(lambda: len(begins) == 1)
    chores.wake("bad")
    time.sleep(0.1)
    (report,) = chores.report()
    assert (report.runs, report.failures) == (3, 2)


def test_what_has_to_be_flushed_is_done_at_the_end() -> None:
    chores = Maintenance()
    left, idle = [1, 2, 3], list[int]()

    def flush() -> bool:
        left.pop()
        return bool(left)

    chores.add("flushed", flush, 600, is_flushed=True)
    chores.add("not flushed", lambda: idle.append(1), 600)
    chores.add("broken", lambda: 1 / 0, 600, is_flushed=True)
    chores.close()
    assert (left, idle) == ([], [])


def test_a_chore_may_close_its_store() -> None:
    chores = Maintenance()
    chores.add("closes", chores.close)
    chores.wake("closes")
    until(lambda: chores._thread is not None and not chores._thread.is_alive())


def test_a_store_has_one_thread_for_all_chores(sqlite_url: str) -> None:
    before = set(threading.enumerate())
    with open_store(sqlite_url, embeddings=None) as store:
        store.put(("u",), "k", {"n": 1})
        names = sorted(one.name for one in set(threading.enumerate()) - before)
        assert [name for name in names if not name.startswith("memory-store-")] == [
            "memory-maintenance",
            "memory-writer",
        ]
        assert {one.name for one in store.engine.maintenance.report()} >= {"access counts", "expired rows"}
