"""Operations as coroutines that await effects, and the two drivers that run them. Sync and async code differ only here.

An `Operation` awaits an `Effect` whenever it has to wait, and nothing else but other operations. `run` drives it in the
caller's thread, `arun` on an event loop. Blocking work runs on a `WorkerPool` that the store owns, never on the loop's
default executor.

A caller that went away, a caller whose time is up and a database that does not answer are three different things. In
the first two cases, a call that is still queued is dropped and one that runs goes on; neither says anything about the
database. A call counts as hung once it has been *running* for `HANG_S`, whether or not anyone still waits for it. Only
time in which this process could run counts (`awake_s`): a stopped process has not heard from the database either.

A queue is none of these: if many callers come at once, each waits for its turn as long as the others are answered, and
the wait takes nothing off its `Patience`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, update_wrapper, wraps
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from inference_core.errors import DeadlineExceeded, StoreUnavailable
from inference_core.telemetry import carried

T = TypeVar("T")
P = ParamSpec("P")
HANG_S: Final = 10.0
"""A call that has been running for this long counts as hung. A healthy database answers within milliseconds, or within
a second or two during a checkpoint or another process's large transaction. Callers have usually given up by
then: their default deadline is shorter."""
RECALL_TIMEOUT_S: Final = 0.3
COLD_TIMEOUT_S: Final = 2.0
"""Default of the seconds that a reply may wait for its memories, and while the store is cold."""
_BEAT_S: Final = 0.2


def any_thread() -> None:
    """The default ``may_block``: every thread may wait."""


@dataclass(frozen=True, slots=True)
class Effect(Generic[T]):
    """Work to wait for, for at most ``timeout`` seconds. ``start`` starts the work and returns its future.

    ``inline`` does the same work in the thread of a sync caller without a deadline; ``native`` does it for an async
    caller. ``may_block`` is called before a sync caller's thread waits, and raises if it would wait in vain.
    ``patience`` is the caller's, if it has one.
    """

    start: Callable[[], Future[T]]
    inline: Callable[[], T] | None = None
    native: Callable[[], Awaitable[T]] | None = None
    timeout: float | None = None
    may_block: Callable[[], None] = any_thread
    patience: Patience | None = None

    def __await__(self) -> Generator[Effect[T], T, T]:
        """Hands itself to the driver of the operation that awaits it; returns the result of the work."""
        return (yield self)


Operation = Coroutine[Effect[Any], Any, T]
"""A coroutine that awaits effects and returns a T: what an ``async def`` of this package returns unless it says that an
event loop runs it. `run` and `arun` drive it."""
Progress = Callable[[int, int], None]
"""Long work calls it with how much is done and how much there is, in rows, memories or users."""


class Deadline:
    """A point in time, ``seconds`` from now; None, and more than a thread can wait for, means never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None or seconds > threading.TIMEOUT_MAX else time.monotonic() + seconds

    def remaining(self, limit: float | None = None) -> float | None:
        """Seconds that are left, at most ``limit``. Raises DeadlineExceeded if none are."""
        if self._at is None:
            return limit
        left = self._at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("The operation's deadline passed")
        return left if limit is None else min(left, limit)


class Turn(Future[T]):
    """A call on ``pool``. ``began`` and ``ended`` say when it ran, in seconds of the monotonic clock."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self.pool = pool
        self.began: float | None = None
        self.ended: float | None = None

    def set_result(self, result: T) -> None:
        """As a future does; notes the time."""
        self.ended = time.monotonic()
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """As a future does; notes the time."""
        self.ended = time.monotonic()
        super().set_exception(exception)


class Patience:
    """An operation's limit for the time that its calls *run*, in seconds.

    The time that they wait for a free worker does not count while the pool answers others in good time, nor does the
    time that a busy event loop takes to go on. So a burst of callers costs nobody the answer, and a database that does
    not answer costs each no more than ``seconds``.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds

    def limit(self, timeout: float | None) -> float:
        """For how long to wait at first, at most ``timeout``. Raises DeadlineExceeded if nothing is left."""
        if self._left <= 0:
            raise DeadlineExceeded("The operation's deadline passed")
        return self._left if timeout is None else min(self._left, timeout)

    def more(self, future: Future[Any]) -> float:
        """For how many more seconds to wait for ``future``, whose limit has passed; 0: no longer."""
        if not isinstance(future, Turn):
            return 0.0
        if future.began is None:
            return self._left if future.pool.has_answered(self._seconds) else 0.0
        # Beside others, a call runs more slowly than alone.
        is_beside = future.pool.has_answered(self._seconds, since=future.began)
        return max(0.0, future.began + (self._seconds if is_beside else self._left) - time.monotonic())

    def charge(self, future: Future[Any] | None, waited: float) -> None:
        """Subtracts the seconds for which ``future`` ran; ``waited`` if that is unknown."""
        if isinstance(future, Turn) and future.began is not None and future.ended is not None:
            waited = future.ended - future.began
        self._left -= waited


def start_thread(thread: threading.Thread) -> None:
    """Starts ``thread``; record it only afterwards. Raises StoreUnavailable if the system allows no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(f"No thread could be started: {error}") from error


class _Heart:
    """Beats in a thread of its own while this process runs; each beat stands for `_BEAT_S` seconds.

    A process that was stopped, on a machine that slept or was busy with others, has fewer beats than the time that went
    by: no clock of the system tells this apart everywhere.
    """

    def __init__(self) -> None:
        self.beats = 0
        self._process = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Makes it beat in this process. A fork has no threads of its parent, so it needs a thread of its own."""
        if self._process == os.getpid() or not self._lock.acquire(blocking=False):
            return
        try:
            if self._process != os.getpid():
                threading.Thread(target=self._beat, name="memory-heart", daemon=True).start()
                self._process = os.getpid()
        except RuntimeError:
            pass  # the system allows no more threads; the next call tries again
        finally:
            self._lock.release()

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT_S)
            self.beats += 1


_heart: Final = _Heart()


def awake_s() -> float:
    """Seconds in which this process could run, from any start. It tells how long a call has had to be answered."""
    _heart.start()
    return _heart.beats * _BEAT_S


class Process:
    """The process that an object with threads was made in: a fork of it has the object without the threads."""

    def __init__(self) -> None:
        self._id = os.getpid()

    def check(self) -> None:
        """Raises StoreUnavailable in a fork, where a call would wait forever."""
        if os.getpid() != self._id:
            raise StoreUnavailable("The store was opened before this process was forked; open it again in this process")


class WorkerPool:
    """At most ``workers`` daemon threads that run blocking calls in the order of their arrival.

    It refuses further calls while every worker hangs, that is, has been busy with one call for ``hang_s`` seconds in
    which this process could run. ``may_block`` is called before a sync caller's thread waits for a worker.
    """

    def __init__(
        self, workers: int, name: str, may_block: Callable[[], None] = any_thread, *, hang_s: float = HANG_S
    ) -> None:
        self._workers = workers
        self._name = name
        self.may_block = may_block
        self._tasks: deque[tuple[Turn[Any], Callable[[], Any]]] = deque()
        self._wake = threading.Condition()
        self._hang_s = hang_s
        self._process = Process()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._began: dict[int, float] = {}
        self._last: tuple[float, float] = (-math.inf, 0.0)
        """When the last call ended, and how long it had run."""
        self._closed = False

    def has_answered(self, seconds: float, since: float = -math.inf) -> bool:
        """Whether a call has ended within the last ``seconds`` and ``since``, and took no more than ``seconds``."""
        ended, took = self._last
        return took <= seconds and ended >= max(since, time.monotonic() - seconds)

    @property
    def hangs(self) -> bool:
        """Whether every worker has been busy with one call for ``hang_s`` seconds."""
        began = tuple(self._began.values())
        return len(began) == self._workers and max(began) <= awake_s() - self._hang_s

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Runs ``call`` on a worker.

        Raises StoreUnavailable if the pool is closed, every worker hangs, a thread that it needs cannot be started, or
        this process is a fork.
        """
        self._process.check()
        future: Turn[T] = Turn(self)
        with self._wake:
            if self._closed:
                raise StoreUnavailable(f"{self._name} is closed")
            if self.hangs:
                raise StoreUnavailable(f"{self._name}: all {self._workers} workers wait for calls that do not return")
            if len(self._tasks) >= self._idle and len(self._threads) < self._workers:
                name = f"{self._name}-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._work, args=(len(self._threads),), name=name, daemon=True)
                start_thread(thread)
                self._threads.append(thread)
            self._tasks.append((future, call))
            self._wake.notify()
        return future

    def effect(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Effect[T]:
        """A call of ``function`` on this pool, or in the thread of a sync caller without a deadline."""
        task = carried(partial(function, *args, **kwargs))
        return Effect(partial(self.submit, task), inline=task, may_block=self.may_block)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """An operation that runs ``function``, as `effect` does."""
        return await self.effect(function, *args, **kwargs)

    def close(self, timeout: float = 0.0) -> None:
        """Refuses further calls and ends the workers after the queued ones; waits at most ``timeout`` seconds."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, worker: int) -> None:
        while True:
            with self._wake:
                self._began.pop(worker, None)
                self._idle += 1
                while not (self._tasks or self._closed):
                    self._wake.wait()
                self._idle -= 1
                if not self._tasks:
                    return
                self._began[worker] = awake_s()
                turn, call = self._tasks.popleft()
            turn.began = time.monotonic()
            settle(turn, call)
            if turn.ended is not None:  # else it was dropped, which says nothing about the others
                self._last = turn.ended, turn.ended - turn.began
            del turn, call  # else an idle thread would keep the call's objects alive until its next call


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


def in_thread(call: Callable[[], T], timeout: float | None = None) -> Effect[T]:
    """``call`` on a new thread, without the caller's context; a sync caller without a deadline runs it itself."""

    def start() -> Future[T]:
        future: Future[T] = Future()
        threading.Thread(target=settle, args=(future, call), name="memory-call", daemon=True).start()
        return future

    return Effect(start, inline=None if timeout else call, timeout=timeout)


def within(seconds: float, operation: Operation[T]) -> Operation[T]:
    """``operation``, which raises DeadlineExceeded ``seconds`` from now: a limit for a part of an operation."""
    deadline = Deadline(seconds)
    return _changed(operation, lambda effect: replace(effect, timeout=deadline.remaining(effect.timeout)))


def patiently(seconds: float, operation: Operation[T]) -> Operation[T]:
    """``operation``, which raises DeadlineExceeded once its calls have run for ``seconds``; see `Patience`."""
    patience = Patience(seconds)
    return _changed(operation, lambda effect: replace(effect, patience=patience))


async def _changed(operation: Operation[T], change: Callable[[Effect[Any]], Effect[Any]]) -> T:
    advance = partial(operation.send, None)
    while True:
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        try:
            advance = partial(operation.send, await change(effect))
        except BaseException as error:  # noqa: BLE001 - thrown into the operation, which decides
            advance = partial(operation.throw, error)


def run(operation: Operation[T], timeout: float | None = None) -> T:
    """Runs ``operation`` in this thread. Raises what it raises, and DeadlineExceeded after ``timeout`` seconds."""
    deadline = Deadline(timeout)
    advance = partial(operation.send, None)
    while True:
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        try:
            advance = partial(operation.send, _wait(effect, deadline))
        except BaseException as error:  # noqa: BLE001 - thrown into the operation, which decides
            advance = partial(operation.throw, error)


async def arun(operation: Operation[T], timeout: float | None = None) -> T:
    """Runs ``operation`` on the running event loop; otherwise like ``run``."""
    deadline = Deadline(timeout)
    advance = partial(operation.send, None)
    while True:
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        try:
            advance = partial(operation.send, await _await(effect, deadline))
        except BaseException as error:  # noqa: BLE001 - thrown into the operation, which decides
            advance = partial(operation.throw, error)


def blocking(function: Callable[P, Operation[T]]) -> Callable[P, T]:
    """``function``, which runs its operation in the caller's thread instead of returning it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(function(*args, **kwargs))

    return call


class _Timed(Protocol):
    timeout: float | None


F = TypeVar("F", bound=_Timed)
_SELF: Final = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)


class Faces(NamedTuple, Generic[P, T]):
    """A method for sync code, which blocks, and the same one as a coroutine method."""

    sync: Callable[P, T]
    aio: Callable[P, Coroutine[Any, Any, T]]


def faces(
    operation: Callable[Concatenate[F, P], Operation[T]], shown: Callable[..., object] | None = None, *, hidden: int = 1
) -> Faces[Concatenate[F, P], T]:
    """Both methods that run ``operation`` of an object, each within that object's ``timeout`` in seconds.

    `help` describes them as ``shown``, by default ``operation`` itself, with ``self`` in place of its first ``hidden``
    parameters.
    """

    def sync(self: F, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(self, *args, **kwargs), self.timeout)

    async def aio(self: F, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(operation(self, *args, **kwargs), self.timeout)

    for method in (sync, aio):
        present_as(method, shown or operation, _SELF, hidden=hidden)
    return Faces(sync, aio)


def present_as(method: Callable[..., object], shown: Callable[..., object], *first: Parameter, hidden: int = 1) -> None:
    """Gives ``method`` the name, docstring and types of ``shown``, with ``first`` in place of ``hidden`` parameters.

    Lines of the docstring that describe a hidden parameter are left out.
    """
    described: Any = update_wrapper(method, shown)
    described.__name__ = shown.__name__.removeprefix("_")
    given = signature(shown)
    parameters = [*first, *list(given.parameters.values())[hidden:]]
    for name in list(given.parameters)[:hidden]:
        described.__doc__ = re.sub(rf"^ +{name}: .*\n", "", described.__doc__ or "", flags=re.MULTILINE)
    described.__signature__ = Signature(parameters, return_annotation=given.return_annotation)
    notes = {
        parameter.name: parameter.annotation for parameter in parameters if parameter.annotation is not Parameter.empty
    }
    described.__annotations__ = notes | {"return": given.return_annotation}


def _wait(effect: Effect[T], deadline: Deadline) -> T:
    effect.may_block()
    left = _limit(effect, deadline)
    if left is None and effect.inline is not None:
        return effect.inline()
    future, began = effect.start(), time.monotonic()
    try:
        while True:
            try:
                return future.result(left)
            except TimeoutError as error:
                if future.done():
                    return future.result()
                if not (left := _more(effect, future)):
                    raise _given_up(future) from error
    finally:
        _charge(effect, future, began)


async def _await(effect: Effect[T], deadline: Deadline) -> T:
    left = _limit(effect, deadline)
    began = time.monotonic()
    if effect.native is not None:
        limit = asyncio.timeout(left)
        try:
            async with limit:
                return await effect.native()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineExceeded("The call did not finish within its deadline") from error
        finally:
            _charge(effect, None, began)
    # What `asyncio.wait_for` and `asyncio.wrap_future` do, at half their cost: each operation has two such waits.
    future, loop = effect.start(), asyncio.get_running_loop()
    if loop not in _postboxes:
        _postboxes[loop] = _Postbox()
    waiter: asyncio.Future[None] = loop.create_future()
    future.add_done_callback(partial(_postboxes[loop].wake, waiter))
    try:
        while True:
            timer = None if left is None else loop.call_later(left, _finish, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
            if future.done():
                return future.result()
            if not (left := _more(effect, future)):
                raise _given_up(future)
            waiter = loop.create_future()
            future.add_done_callback(partial(_postboxes[loop].wake, waiter))
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        _charge(effect, future, began)


def _limit(effect: Effect[Any], deadline: Deadline) -> float | None:
    left = deadline.remaining(effect.timeout)
    return left if effect.patience is None else effect.patience.limit(left)


def _more(effect: Effect[Any], future: Future[Any]) -> float:
    # What has a limit of its own, such as a question's vectors, can be done without.
    return effect.patience.more(future) if effect.patience and effect.timeout is None else 0.0


def _charge(effect: Effect[Any], future: Future[Any] | None, began: float) -> None:
    if effect.patience is not None:
        waited = time.monotonic() - began
        effect.patience.charge(future, waited if effect.timeout is None else min(waited, effect.timeout))


def _given_up(future: Future[Any]) -> DeadlineExceeded:
    if future.cancel():
        return DeadlineExceeded("The call did not begin within its deadline; it is not made")
    return DeadlineExceeded("The call did not finish within its deadline")


class _Postbox:
    """Wakes waiters on one event loop. Those due together, as after a transaction, are woken by one call into it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: list[asyncio.Future[None]] = []

    def wake(self, waiter: asyncio.Future[None], _: Future[Any]) -> None:
        """Wakes ``waiter``. Called in the thread that made the result."""
        with self._lock:
            self._due.append(waiter)
            if len(self._due) > 1:
                return  # the thread that added the first one calls the loop
        with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            waiter.get_loop().call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for waiter in due:
            _finish(waiter)


_postboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Postbox] = WeakKeyDictionary()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
