"""Plans, driven in a thread and on an event loop; pools; deadlines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from inference_core.effects import Deadline, Effect, Operation, WorkerPool, arun, patiently, run, settle, within
from inference_core.errors import DeadlineExceeded, StoreUnavailable

T = TypeVar("T")
Driver = Callable[[Operation[Any], float | None], Any]
SOON = 0.05
LATE = 10.0


def _arun(plan: Operation[T], timeout: float | None = None) -> T:
    return asyncio.run(arun(plan, timeout))


@pytest.fixture(params=[run, _arun], ids=["run", "arun"])
def drive(request: pytest.FixtureRequest) -> Driver:
    return request.param


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2, "test")
    yield pool
    pool.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Calls that wait for it hang until the end of the test."""
    gate = threading.Event()
    yield gate
    gate.set()


async def _divide(pool: WorkerPool, divisor: int) -> float:
    first = await pool.call(lambda: 6)
    return await pool.call(lambda: first / divisor)


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LATE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def _hang(pool: WorkerPool, gate: threading.Event) -> None:
    """Leaves a call that hangs on each of the pool's two workers."""
    for _ in range(2):
        pool.submit(gate.wait)
    _wait_for(lambda: pool.hangs)


def test_a_plan_returns_its_result(drive: Driver, pool: WorkerPool):
    assert drive(_divide(pool, 2), None) == 3
    assert drive(_divide(pool, 2), LATE) == 3


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_regression_more_than_a_thread_can_wait_for_is_no_limit(drive: Driver, pool: WorkerPool, timeout: float):
    assert drive(_divide(pool, 2), timeout) == 3


def test_a_plan_without_effects_returns_its_result(drive: Driver):
    async def plan() -> str:
        return "done"

    assert drive(plan(), SOON) == "done"


@pytest.mark.parametrize("timeout", [None, LATE])
def test_the_error_of_a_call_is_raised(drive: Driver, pool: WorkerPool, timeout: float | None):
    with pytest.raises(ZeroDivisionError):
        drive(_divide(pool, 0), timeout)


@pytest.mark.parametrize("timeout", [None, LATE])
def test_the_error_of_a_plan_is_raised(drive: Driver, pool: WorkerPool, timeout: float | None):
    async def plan() -> None:
        await pool.call(int)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        drive(plan(), timeout)


@pytest.mark.parametrize("timeout", [None, LATE])
def test_a_plan_can_catch_the_error_of_a_call_and_go_on(drive: Driver, pool: WorkerPool, timeout: float | None):
    async def plan() -> int:
        try:
            await _divide(pool, 0)
        except ZeroDivisionError:
            return await pool.call(lambda: 7)
        return 0

    assert drive(plan(), timeout) == 7


@pytest.mark.parametrize("timeout", [None, LATE])
def test_a_timeout_error_of_the_call_itself_is_its_own(drive: Driver, pool: WorkerPool, timeout: float | None):
    def call() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        drive(pool.call(call), timeout)


@pytest.mark.parametrize("timeout", [None, LATE])
def test_a_timeout_error_of_a_coroutine_is_its_own(timeout: float | None):
    async def native() -> None:
        raise TimeoutError("the call's own")

    async def plan() -> None:
        await Effect(Future, native=native)

    with pytest.raises(TimeoutError, match="the call's own"):
        _arun(plan(), timeout)


def test_a_call_that_outlives_the_deadline_raises_in_the_plan(drive: Driver, pool: WorkerPool, gate: threading.Event):
    caught: list[Exception] = []

    async def plan() -> str:
        try:
            await pool.call(gate.wait, LATE)
        except DeadlineExceeded as error:
            caught.append(error)
        return "went on"

    started = time.monotonic()
    assert drive(plan(), SOON) == "went on"
    assert SOON * 0.9 <= time.monotonic() - started < LATE / 2
    assert len(caught) == 1


class LateFuture(Future[str]):
    """Finishes in the moment in which its waiter gives up."""

    def result(self, timeout: float | None = None) -> str:
        if not self.done():
            self.set_result("finished")
            raise TimeoutError
        return super().result(timeout)


def test_a_call_that_finishes_at_the_deadline_has_its_result():
    async def plan() -> str:
        return await Effect(LateFuture)

    assert run(plan(), LATE) == "finished"


def test_after_the_deadline_every_effect_raises(drive: Driver, pool: WorkerPool, gate: threading.Event):
    ran: list[int] = []

    async def plan() -> None:
        with pytest.raises(DeadlineExceeded):
            await pool.call(gate.wait)
        await pool.call(ran.append, 1)

    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        drive(plan(), SOON)
    assert ran == []


@pytest.mark.parametrize("timeout", [None, LATE])
def test_an_effect_may_have_a_shorter_deadline_of_its_own(
    drive: Driver, pool: WorkerPool, gate: threading.Event, timeout: float | None
):
    async def plan() -> str:
        with pytest.raises(DeadlineExceeded):
            await Effect(lambda: pool.submit(gate.wait), timeout=SOON)
        return await pool.call(str, 5)

    assert drive(plan(), timeout) == "5"


def test_a_part_of_a_plan_may_have_a_limit_of_its_own(drive: Driver, pool: WorkerPool, gate: threading.Event):
    async def plan() -> list[float]:
        before = await within(LATE, _divide(pool, 2))
        with pytest.raises(DeadlineExceeded):
            await within(SOON, pool.call(gate.wait))
        with pytest.raises(ZeroDivisionError):
            await within(LATE, _divide(pool, 0))
        return [before, await _divide(pool, 3)]

    assert drive(plan(), None) == [3, 2]


def test_a_call_that_has_not_begun_is_taken_back(drive: Driver, pool: WorkerPool, gate: threading.Event):
    ran: list[int] = []
    blockers = [pool.submit(gate.wait) for _ in range(2)]
    with pytest.raises(DeadlineExceeded):
        drive(pool.call(ran.append, 1), SOON)
    gate.set()
    assert [blocker.result(LATE) for blocker in blockers] == [True, True]
    run(pool.call(int), LATE)
    assert ran == []


def test_the_thread_of_a_sync_caller_without_a_deadline_does_the_work(pool: WorkerPool):
    assert run(pool.call(threading.get_ident)) == threading.get_ident()
    assert run(pool.call(threading.get_ident), LATE) != threading.get_ident()


def test_a_worker_does_the_work_of_an_async_caller(pool: WorkerPool):
    assert _arun(pool.call(threading.get_ident)) != threading.get_ident()


@pytest.mark.parametrize("timeout", [None, LATE])
def test_a_thread_that_must_not_block_does_not_wait(timeout: float | None):
    def refuse() -> None:
        raise ValueError("this thread must not wait")

    careful = WorkerPool(1, "careful", refuse)
    with pytest.raises(ValueError, match="must not wait"):
        run(careful.call(lambda: 1), timeout)
    assert _arun(careful.call(lambda: 1), timeout) == 1
    careful.close()


def test_an_async_caller_awaits_what_is_native():
    async def native() -> str:
        await asyncio.sleep(0)
        return "native"

    async def plan() -> str:
        return await Effect(Future, inline=lambda: "inline", native=native)

    assert _arun(plan()) == "native"
    assert run(plan()) == "inline"


def test_a_native_call_is_bounded_by_the_deadline():
    cancelled: list[bool] = []

    async def native() -> None:
        try:
            await asyncio.sleep(LATE)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def plan() -> None:
        await Effect(Future, native=native)

    with pytest.raises(DeadlineExceeded, match="within its deadline"):
        _arun(plan(), SOON)
    assert cancelled == [True]


def test_a_worker_goes_on_after_its_caller_has_left(gate: threading.Event):
    workers = WorkerPool(1, "alone")

    async def plan() -> None:
        await Effect(lambda: workers.submit(gate.wait))

    with pytest.raises(DeadlineExceeded):
        run(plan(), SOON)
    gate.set()
    assert run(workers.call(lambda: 1), LATE) == 1
    workers.close()


async def test_cancellation_of_a_task_reaches_the_plan_and_the_caller(pool: WorkerPool, gate: threading.Event):
    seen: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def call() -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    async def plan() -> None:
        try:
            await pool.call(call)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(arun(plan()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert seen == ["cancelled"]


async def test_cancellation_of_a_task_reaches_the_coroutine_it_awaits():
    seen: list[str] = []
    begun = asyncio.Event()

    async def native() -> None:
        begun.set()
        try:
            await asyncio.sleep(LATE)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def plan() -> None:
        await Effect(Future, native=native)

    task = asyncio.create_task(arun(plan()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_caller_who_went_away_is_no_hang(gate: threading.Event):
    """Two cancelled calls, which would have returned in a moment, made the pool refuse everybody's."""
    pool = WorkerPool(1, "one")
    begun = threading.Event()
    ran: list[str] = []

    def call() -> None:
        begun.set()
        gate.wait()
        ran.append("first")

    task = asyncio.create_task(arun(pool.call(call)))
    while not begun.is_set():  # noqa: ASYNC110 - set by a thread
        await asyncio.sleep(0.001)
    queued = asyncio.create_task(arun(pool.call(ran.append, "dropped")))
    await asyncio.sleep(0)
    for gone in (task, queued):
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    other = asyncio.create_task(arun(pool.call(lambda: 1)))
    await asyncio.sleep(0)
    gate.set()
    assert await other == 1
    assert ran == ["first"]
    pool.close()


def test_a_deadline_is_no_hang(pool: WorkerPool, gate: threading.Event):
    """Callers with short deadlines made the pool refuse those who had time."""
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            run(pool.call(gate.wait), SOON)
    patient = pool.submit(lambda: 1)
    gate.set()
    assert patient.result(LATE) == 1


async def test_results_that_come_together_reach_each_who_waits():
    futures: list[Future[int]] = [Future() for _ in range(100)]

    async def plan(future: Future[int]) -> int:
        return await Effect(lambda: future)

    tasks = [asyncio.create_task(arun(plan(future), LATE)) for future in futures]
    await asyncio.sleep(0)

    def settle_all() -> None:
        for at, future in enumerate(futures):
            future.set_result(at)

    threads = [threading.Thread(target=settle_all)]
    for thread in threads:
        thread.start()
    assert await asyncio.gather(*tasks) == list(range(100))


def test_a_result_that_comes_after_its_loop_has_ended_harms_nobody(pool: WorkerPool, gate: threading.Event):
    async def leave() -> None:
        task = asyncio.create_task(arun(pool.call(gate.wait)))
        await asyncio.sleep(SOON)
        task.cancel()

    asyncio.run(leave())
    gate.set()
    assert run(pool.call(lambda: 1), LATE) == 1


async def test_other_threads_of_the_loop_are_not_delayed_by_hanging_calls(gate: threading.Event):
    pool = WorkerPool(8, "hanging")
    tasks = [asyncio.create_task(arun(pool.call(gate.wait))) for _ in range(40)]
    await asyncio.sleep(SOON)
    started = time.monotonic()
    assert await asyncio.to_thread(lambda: "free") == "free"
    assert time.monotonic() - started < 1
    gate.set()
    assert await asyncio.gather(*tasks) == [True] * 40
    pool.close()


async def test_plans_on_one_loop_run_side_by_side(pool: WorkerPool):
    barrier = threading.Barrier(2)
    results = await asyncio.gather(*(arun(pool.call(barrier.wait, LATE), LATE) for _ in range(2)))
    assert sorted(results) == [0, 1]


def test_a_pool_runs_calls_side_by_side_up_to_its_size():
    pool, lock, gate = WorkerPool(3, "three"), threading.Lock(), threading.Event()
    running, most = 0, 0

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(LATE)
        with lock:
            running -= 1

    futures = [pool.submit(call) for _ in range(12)]
    _wait_for(lambda: most == 3)
    gate.set()
    assert [future.result(LATE) for future in futures] == [None] * 12
    assert most == 3
    pool.close()


def test_a_pool_runs_calls_in_the_order_of_their_arrival():
    pool = WorkerPool(1, "one")
    ran: list[int] = []
    for future in [pool.submit(lambda at=at: ran.append(at)) for at in range(50)]:
        future.result(LATE)
    assert ran == list(range(50))
    pool.close()


def test_a_free_worker_is_used_again():
    pool = WorkerPool(8, "reused")
    names: set[str] = set()
    for _ in range(20):
        names.add(pool.submit(lambda: threading.current_thread().name).result(LATE))
        _wait_for(lambda: pool._idle == len(pool._threads))
    assert names == {"reused-1"}
    pool.close()


def test_a_closed_pool_refuses_calls_and_finishes_those_that_wait(gate: threading.Event):
    pool = WorkerPool(1, "closing")
    blocker, waiting = pool.submit(gate.wait), pool.submit(lambda: 5)
    pool.close()
    with pytest.raises(StoreUnavailable, match="closing is closed"):
        pool.submit(int)
    gate.set()
    assert (blocker.result(LATE), waiting.result(LATE)) == (True, 5)


def test_the_threads_of_a_closed_pool_end():
    pool = WorkerPool(2, "ending")
    pool.submit(int).result(LATE)
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("ending-")]
    pool.close()
    for worker in workers:
        worker.join(LATE)
    assert len(workers) == 1
    assert not workers[0].is_alive()


def test_a_pool_whose_workers_all_hang_refuses_calls_until_they_return(gate: threading.Event):
    pool = WorkerPool(2, "test", hang_s=SOON)
    _hang(pool, gate)
    with pytest.raises(StoreUnavailable, match="test: all 2 workers wait for calls that do not return"):
        run(pool.call(int), LATE)
    gate.set()
    _wait_for(lambda: not pool.hangs)
    assert run(pool.call(lambda: 1), LATE) == 1
    pool.close()


def test_a_pool_with_a_worker_left_goes_on(pool: WorkerPool, gate: threading.Event):
    with pytest.raises(DeadlineExceeded):
        run(pool.call(gate.wait), SOON)
    assert run(pool.call(lambda: 1), LATE) == 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_a_worker_survives_any_error(error: BaseException):
    pool = WorkerPool(1, "survivor")

    def call() -> None:
        raise error

    assert pool.submit(call).exception(LATE) is error
    assert pool.submit(lambda: 1).result(LATE) == 1
    pool.close()


def test_a_cancelled_call_is_not_run():
    ran: list[int] = []
    future: Future[None] = Future()
    future.cancel()
    settle(future, lambda: ran.append(1))
    assert ran == []


def test_a_deadline_bounds_what_is_left():
    assert Deadline(None).remaining() is None
    assert Deadline(None).remaining(3) == 3
    left = Deadline(LATE).remaining()
    assert left is not None
    assert LATE - 1 < left <= LATE
    assert Deadline(LATE).remaining(2) == 2
    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        Deadline(0).remaining()


def test_a_system_without_threads_leaves_nothing_behind(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was refused used to be made later, by a pool that had lost a worker for good."""
    made: list[str] = []

    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="can't start new thread"):
                pool.submit(lambda: made.append("refused"))
    pool.submit(lambda: made.append("accepted")).result(LATE)
    assert made == ["accepted"]


# Patience: how long calls may run, not how long they wait for their turn.


def _patient(pool: WorkerPool, seconds: float, call: Callable[[], T]) -> Operation[T]:
    return patiently(seconds, pool.call(call))


def test_a_patient_caller_waits_for_its_turn_while_others_are_answered(drive: Driver, gate: threading.Event):
    """The queue takes longer than the caller's patience, which no single call does, even on a busy machine."""
    pool = WorkerPool(1, "test")
    for _ in range(50):
        pool.submit(lambda: gate.wait(SOON))
    assert drive(_patient(pool, 40 * SOON, lambda: "answered"), None) == "answered"
    pool.close()


def test_a_patient_caller_gives_up_if_nobody_is_answered(drive: Driver, pool: WorkerPool, gate: threading.Event):
    for _ in range(2):
        pool.submit(gate.wait)
    with pytest.raises(DeadlineExceeded, match="did not begin"):
        drive(_patient(pool, SOON, lambda: "answered"), None)


def test_a_patient_caller_gives_up_on_its_own_call(drive: Driver, pool: WorkerPool, gate: threading.Event):
    with pytest.raises(DeadlineExceeded, match="did not finish"):
        drive(_patient(pool, SOON, gate.wait), None)


def test_a_slow_database_uses_up_the_patience_of_those_in_the_queue(drive: Driver, gate: threading.Event):
    """Others are answered, but each only after more than the caller would wait for itself."""
    pool = WorkerPool(1, "test")
    for _ in range(20):
        pool.submit(lambda: gate.wait(4 * SOON))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="did not begin"):
        drive(_patient(pool, SOON, lambda: "answered"), None)
    assert time.monotonic() - began < 80 * SOON
    gate.set()
    pool.close()


def test_a_call_that_was_dropped_counts_as_no_answer(pool: WorkerPool, gate: threading.Event):
    """Those who have given up are no sign that the database answers."""
    pool.submit(gate.wait)
    pool.submit(gate.wait)
    dropped = pool.submit(lambda: None)
    assert dropped.cancel()
    assert not pool.has_answered(LATE)
    last = pool.submit(threading.Event().is_set)
    gate.set()
    last.result(LATE)
    _wait_for(lambda: pool.has_answered(LATE))


def test_calls_use_up_patience_together(drive: Driver, pool: WorkerPool, gate: threading.Event):
    async def plan() -> str:
        await pool.call(lambda: gate.wait(2 * SOON))
        await pool.call(lambda: gate.wait(2 * SOON))
        return "done"

    assert drive(patiently(LATE, plan()), None) == "done"
    with pytest.raises(DeadlineExceeded):
        drive(patiently(3 * SOON, plan()), None)


def test_what_has_a_limit_of_its_own_is_not_waited_for_longer(drive: Driver, gate: threading.Event):
    """Such as the question's vectors: recall goes on without them, while the queue of the model goes on."""
    pool = WorkerPool(1, "test")
    for _ in range(40):
        pool.submit(lambda: gate.wait(SOON / 2))

    async def plan() -> str:
        try:
            await within(SOON, pool.call(lambda: "vectors"))
        except DeadlineExceeded:
            return "words"
        return "vectors"

    assert drive(patiently(LATE, plan()), None) == "words"
    pool.close()


def test_a_busy_event_loop_uses_up_no_patience(pool: WorkerPool):
    """The loop goes on with other callers for longer than the patience, between two calls of this one."""

    async def busy() -> str:
        loop = asyncio.get_running_loop()

        async def plan() -> str:
            await pool.call(lambda: loop.call_soon_threadsafe(time.sleep, 4 * SOON))
            return await pool.call(lambda: "answered")

        return await arun(patiently(2 * SOON, plan()))

    assert asyncio.run(busy()) == "answered"
