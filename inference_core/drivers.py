"""Runs an operation, sync or async: the only place where the two part.

An operation is a generator function, a *plan*. It yields `Wait` effects, gets their results and returns its own. `run`
drives a plan in the caller's thread, `arun` on an event loop. Blocking work runs on a `Pool` that the store owns, never
on the loop's default executor. A deadline bounds every effect; a call that outlives it keeps its worker, and when all
workers of a pool are kept like that, the pool refuses further calls at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast

from inference_core.errors import DeadlineExceeded, StoreUnavailable

T = TypeVar("T")
P = ParamSpec("P")
Plan = Generator["Wait[Any]", Any, T]
"""A generator that yields effects and returns a T."""


def _ignore(_: Future[Any]) -> None:
    """Nothing has to be known about an abandoned call."""


def any_thread() -> None:
    """Every thread may wait."""


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """Something to wait for, at most ``timeout`` seconds: started by ``start``.

    ``inline`` is the same for a sync caller without a deadline, in its own thread; ``native`` is the same for an async
    caller. ``abandoned`` hears of a call that outlived its deadline. ``may_block`` is called before a sync caller's
    thread waits, and raises if it would wait in vain.
    """

    start: Callable[[], Future[T]]
    inline: Callable[[], T] | None = None
    native: Callable[[], Awaitable[T]] | None = None
    timeout: float | None = None
    abandoned: Callable[[Future[Any]], None] = _ignore
    may_block: Callable[[], None] = any_thread


class Deadline:
    """A point in time, ``seconds`` from now; None means never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def remaining(self, limit: float | None = None) -> float | None:
        """Seconds that are left, at most ``limit``. Raises DeadlineExceeded if none are."""
        if self._at is None:
            return limit
        left = self._at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("The operation's deadline passed")
        return left if limit is None else min(left, limit)


class Pool:
    """At most ``workers`` daemon threads that run blocking calls in the order of their arrival.

    ``may_block`` is called before a sync caller's thread waits for one of them.
    """

    def __init__(self, workers: int, name: str, may_block: Callable[[], None] = any_thread) -> None:
        self._workers = workers
        self._name = name
        self.may_block = may_block
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wake = threading.Condition()
        self._running: list[threading.Thread] = []
        self._waiting = 0
        self._stuck: set[Future[Any]] = set()
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Runs ``call`` on a worker. Raises StoreUnavailable if the pool is closed or every worker hangs."""
        future: Future[T] = Future()
        with self._wake:
            if self._closed:
                raise StoreUnavailable(f"{self._name} is closed")
            if len(self._stuck) >= self._workers:
                raise StoreUnavailable(f"{self._name}: all {self._workers} workers wait for calls that do not return")
            self._tasks.append((future, call))
            if len(self._tasks) > self._waiting and len(self._running) < self._workers:
                name = f"{self._name}-{len(self._running) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._running.append(thread)
                thread.start()
            self._wake.notify()
        return future

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
        """A plan that runs ``function`` on this pool, or in the thread of a sync caller without a deadline."""
        task = partial(function, *args, **kwargs)
        result: T = yield Wait(
            partial(self.submit, task), inline=task, abandoned=self.abandon, may_block=self.may_block
        )
        return result

    def abandon(self, future: Future[Any]) -> None:
        """Counts the worker of a call that nobody waits for any more as stuck until the call returns."""
        with self._wake:
            if future.done():
                return
            self._stuck.add(future)
        future.add_done_callback(self._release)

    def close(self, timeout: float = 0.0) -> None:
        """Ends the workers after the calls that wait already, which get ``timeout`` seconds; refuses later ones."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._running:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _release(self, future: Future[Any]) -> None:
        with self._wake:
            self._stuck.discard(future)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            settle(*task)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._wake:
            self._waiting += 1
            self._wake.wait_for(lambda: self._tasks or self._closed)
            self._waiting -= 1
            return self._tasks.popleft() if self._tasks else None


def in_turn(plans: Iterable[Plan[T]]) -> Plan[list[T]]:
    """Plan: the results of ``plans``, one after the other."""
    results: list[T] = []
    for plan in plans:
        result = yield from plan
        results.append(result)
    return results


def settle(future: Future[T], call: Callable[[], T]) -> None:
    """Runs ``call`` and puts its result or its error into ``future``, unless that was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the error belongs to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)


def in_thread(call: Callable[[], T], timeout: float | None = None) -> Wait[T]:
    """``call`` on a thread of its own, without the context of the caller; in the caller's if there is no deadline."""
    return Wait(partial(_started, call), inline=None if timeout else call, timeout=timeout)


def _started(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    threading.Thread(target=settle, args=(future, call), name="memory-call", daemon=True).start()
    return future


def run(plan: Plan[T], timeout: float | None = None) -> T:
    """Runs ``plan`` in this thread. Raises DeadlineExceeded after ``timeout`` seconds, else what the plan raises."""
    deadline = Deadline(timeout)
    advance = partial(next, plan)
    while True:
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        try:
            advance = partial(plan.send, _wait(effect, deadline))
        except BaseException as error:  # noqa: BLE001 - thrown into the plan, which decides
            advance = partial(plan.throw, error)


async def arun(plan: Plan[T], timeout: float | None = None) -> T:  # noqa: ASYNC109 - one for both drivers
    """Runs ``plan`` on the running event loop; otherwise like ``run``."""
    deadline = Deadline(timeout)
    advance = partial(next, plan)
    while True:
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        try:
            advance = partial(plan.send, await _await(effect, deadline))
        except BaseException as error:  # noqa: BLE001 - thrown into the plan, which decides
            advance = partial(plan.throw, error)


def _wait(effect: Wait[T], deadline: Deadline) -> T:
    effect.may_block()
    left = deadline.remaining(effect.timeout)
    if left is None and effect.inline is not None:
        return effect.inline()
    future = effect.start()
    try:
        return future.result(left)
    except TimeoutError as error:
        if future.done():
            return future.result()
        raise _given_up(effect, future) from error


async def _await(effect: Wait[T], deadline: Deadline) -> T:
    left = deadline.remaining(effect.timeout)
    future = None if effect.native is not None else effect.start()
    limit = asyncio.timeout(left)
    try:
        async with limit:
            if effect.native is not None:
                return await effect.native()
            return await asyncio.wrap_future(cast("Future[T]", future))
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise _given_up(effect, future) from error
    except asyncio.CancelledError:
        if future is not None:
            effect.abandoned(future)
        raise


def _given_up(effect: Wait[Any], future: Future[Any] | None) -> DeadlineExceeded:
    if future is not None and not future.cancel():
        effect.abandoned(future)
    return DeadlineExceeded("The call did not finish within its deadline")
