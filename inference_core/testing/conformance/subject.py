"""`Subject`: the store under test, through its sync or its async methods; how it is opened, and its embeddings.

What a promise is: a method ``test_…`` of a `Promises` class; the first line of its docstring states the promise.

Every store must keep the contract promises. Robustness promises go beyond what LangGraph documents: a broken one is
reported, and fails only with ``strict``.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NoReturn, Self, TypeVar, cast
from unittest import SkipTest

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, InvalidNamespaceError, Item, Op, SearchItem
from numpy.typing import NDArray

from inference_core.errors import ConfigurationError

DIMENSIONS: Final = 64
PATIENCE_S: Final = 120.0
"""A call that takes longer counts as hanging."""
_WORDS: Final = re.compile(r"\w+")
_THREADS: Final = 16
T = TypeVar("T")
Mode = Literal["sync", "async"]
MODES: Final[tuple[Mode, Mode]] = ("sync", "async")
Namespace = tuple[str, ...]
NS: Final[Namespace] = ("ada", "notes")
"""Where most promises put their items."""
Made = BaseStore | AbstractContextManager[BaseStore] | AbstractAsyncContextManager[BaseStore]
"""What a factory gives: a store, or a context manager of one; an async one is entered on the suite's event loop."""


class WatchedEmbeddings(Embeddings):
    """Embeds a text as the sum of fixed vectors of its words, scaled to length 1. Safe for threads.

    ``texts`` are the documents that were embedded. While ``seconds`` is set, embedding documents takes that long;
    ``begun`` is set when it starts.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.begun = threading.Event()
        self.texts: list[str] = []

    @property
    def index(self) -> IndexConfig:
        """The ``index`` of a LangGraph store with these embeddings."""
        return {"dims": DIMENSIONS, "embed": self, "fields": ["text"]}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of length 1 for each text."""
        self.texts += texts
        self.begun.set()
        time.sleep(self.seconds)
        return [_vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return _vector(text)


def _vector(text: str) -> list[float]:
    total = sum(map(_direction, _WORDS.findall(text.lower())), np.full(DIMENSIONS, 1e-3))
    return (total / np.linalg.norm(total)).tolist()


@functools.cache
def _direction(word: str) -> NDArray[np.float64]:
    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=DIMENSIONS // 8).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float64) * 2 - 1


class LoopThread:
    """An event loop in a thread of its own: a context manager that takes coroutines from any other thread."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="conformance-loop", daemon=True)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Raises what it raises, TimeoutError if it hangs."""
        return self.start(coroutine).result(PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._runner.close()  # also ends the tasks that stores left behind


@dataclass(frozen=True, slots=True)
class Factory:
    """A function that opens a store, by its address ``module:function``.

    It is called with those of the following arguments that it accepts: ``place`` (a folder, empty at first: the same
    place is the same data, also in another process), ``embeddings`` (the suite's) and ``index`` (LangGraph's
    IndexConfig of them).
    """

    address: str

    def function(self) -> Callable[..., Made]:
        """The function itself. Raises ConfigurationError if there is none."""
        module, _, name = self.address.partition(":")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            found = getattr(import_module(module), name, None)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"{module!r} cannot be imported: {error}") from error
        if not callable(found):
            raise ConfigurationError(f"{self.address!r} is not a function; write module:function")
        return cast("Callable[..., Made]", found)

    def make(self, place: Path, embeddings: WatchedEmbeddings) -> Made:
        """What the function returns for ``place``; a store that is a context manager is closed by the suite."""
        function = self.function()
        offered: dict[str, Any] = {"place": place, "embeddings": embeddings, "index": embeddings.index}
        wanted = inspect.signature(function).parameters
        made = function(**{name: value for name, value in offered.items() if name in wanted})
        if not (isinstance(made, BaseStore) and isinstance(made, AbstractContextManager)):
            return made

        @contextmanager
        def owned() -> Generator[BaseStore]:  # nobody else closes it
            with cast("AbstractContextManager[BaseStore]", made) as opened:
                yield opened

        return owned()


@contextmanager
def entered(made: Made, loop: LoopThread) -> Generator[BaseStore]:
    """The store that was made, within its context manager."""
    if isinstance(made, BaseStore):
        yield made
    elif isinstance(made, AbstractContextManager):
        with made as store:
            yield store
    else:
        store = loop.run(made.__aenter__())
        try:
            yield store
        finally:
            loop.run(made.__aexit__(None, None, None))


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A method of a store by its sync name, and what it is called with."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def call(name: str, *arguments: Any, **options: Any) -> StoreCall:
    """A call for `Subject.start` or `Subject.together` to make."""
    return StoreCall(name, arguments, options)


@dataclass(frozen=True, slots=True)
class Location:
    """Where the data of the store under test are, and how to open them again."""

    folder: Path
    factory: Factory | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A store through one mode. Its methods are sync versions of the store's; async mode runs these on ``loop``."""

    store: BaseStore
    mode: Mode
    embeddings: WatchedEmbeddings
    loop: LoopThread
    place: Location

    def put(self, namespace: Namespace, key: str, value: dict[str, Any], **options: Any) -> None:
        """Stores an item."""
        self._call("put", namespace, key, value, **options)

    def get(self, namespace: Namespace, key: str, **options: Any) -> Item | None:
        """An item, or None."""
        return self._call("get", namespace, key, **options)

    def value(self, namespace: Namespace, key: str, **options: Any) -> dict[str, Any] | None:
        """An item's value, or None."""
        item = self.get(namespace, key, **options)
        return None if item is None else item.value

    def delete(self, namespace: Namespace, key: str) -> None:
        """Deletes an item."""
        self._call("delete", namespace, key)

    def search(self, prefix: Namespace, **options: Any) -> list[SearchItem]:
        """Items below a prefix."""
        return self._call("search", prefix, **options)

    def keys(self, prefix: Namespace, **options: Any) -> list[str]:
        """The keys of a search."""
        return [item.key for item in self.search(prefix, **options)]

    def list_namespaces(self, **options: Any) -> list[Namespace]:
        """Namespaces that match."""
        return [tuple(name) for name in self._call("list_namespaces", **options)]

    def batch(self, ops: Sequence[Op]) -> list[Any]:
        """The results of raw operations."""
        return self._call("batch", ops)

    def start(self, wanted: StoreCall) -> Future[Any]:
        """Starts a call in the background: in a thread of its own, or as a task on the loop."""
        if self.mode == "async":
            return self.loop.start(self._awaited(wanted))
        pool = ThreadPoolExecutor(1)
        future = pool.submit(self._made, wanted)
        pool.shutdown(wait=False)
        return future

    def together(self, *calls: StoreCall) -> list[Any]:
        """Makes calls at once (async: in one turn of the loop); returns the result of each, or what it raised."""
        if self.mode == "async":

            async def gathered() -> list[Any]:
                return await asyncio.gather(*map(self._awaited, calls), return_exceptions=True)

            return self.loop.run(gathered())
        with ThreadPoolExecutor(_THREADS) as pool:
            futures = [pool.submit(self._made, call) for call in calls]
        return [future.exception() or future.result() for future in futures]

    def other_mode(self) -> Subject:
        """The same store through its other mode. Raises NotApplicable."""
        other: Mode = "sync" if self.mode == "async" else "async"
        return replace(self, mode=other).checked()

    @contextmanager
    def again(self) -> Generator[Subject]:
        """Another store object on the same data. Raises NotApplicable without a factory that has a place."""
        with entered(self.factory().make(self.place.folder, self.embeddings), self.loop) as store:
            yield replace(self, store=store)

    def factory(self) -> Factory:
        """The factory that opens the data again, also in another process. Raises NotApplicable."""
        factory = self.place.factory
        if factory is None or "place" not in inspect.signature(factory.function()).parameters:
            raise NotApplicable("no factory that opens the same data again")
        return factory

    def embedded(self) -> Subject:
        """The subject itself. Raises NotApplicable unless the store uses the suite's embeddings."""
        self.put(("embedded",), "probe", {"text": "probe"})
        used = bool(self.embeddings.texts)
        self.delete(("embedded",), "probe")
        if not used:
            raise NotApplicable("the store does not use the suite's embeddings")
        return self

    def ranking(self) -> Subject:
        """The subject itself. Raises NotApplicable unless a query ranks items, by whatever means."""
        self.put(("ranking",), "probe", {"text": "probe"})
        items = self.search(("ranking",), query="probe")
        self.delete(("ranking",), "probe")
        if not any(item.score for item in items):
            raise NotApplicable("a query does not rank items in this store")
        return self

    def expiring(self) -> Subject:
        """The subject itself. Raises NotApplicable unless items can have a time to live."""
        if not self.store.supports_ttl:
            raise NotApplicable("items do not expire in this store")
        return self

    def checked(self) -> Subject:
        """The subject itself. Raises NotApplicable if the store does not have this mode."""
        try:
            self.search(("mode",), limit=1)
        except NotImplementedError as error:
            raise NotApplicable(f"no {self.mode} methods") from error
        return self

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        wanted = StoreCall(name, arguments, options)
        return self.loop.run(self._awaited(wanted)) if self.mode == "async" else self._made(wanted)

    def _made(self, wanted: StoreCall) -> Any:
        return getattr(self.store, wanted.name)(*wanted.arguments, **wanted.options)

    async def _awaited(self, wanted: StoreCall) -> Any:
        method = getattr(self.store, f"a{wanted.name}")
        return await asyncio.wait_for(method(*wanted.arguments, **wanted.options), PATIENCE_S)


@contextmanager
def trying(made: Made, mode: Mode, embeddings: WatchedEmbeddings, place: Location) -> Generator[Subject]:
    """The store that was made, through ``mode``. Raises NotApplicable."""
    with LoopThread() as loop, entered(made, loop) as store:
        yield Subject(store, mode, embeddings, loop, place).checked()


_SHOWN: Final = 150


class BrokenPromise(AssertionError):
    """The store does not do what was promised; the message says what it does instead."""


class NotApplicable(SkipTest):
    """The promise cannot be tested on this store; pytest and unittest skip it."""


class Promises:
    """A class of promises; each method takes the `Subject` to test."""

    strict: ClassVar[bool] = False

    def fall_short(self, error: Exception) -> None:
        """Called when a robustness promise is broken. Raises ``error``; a test suite may report it instead."""
        raise error


class Robustness(Promises):
    """Promises that LangGraph does not document; a broken one fails with ``strict``, else `fall_short` reports it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Robustness in cls.__bases__:
            for name, test in list(vars(cls).items()):
                if name.startswith("test_"):
                    setattr(cls, name, _robustness(test))


def _robustness(test: Callable[[Any, Subject], None]) -> Callable[[Any, Subject], None]:
    @functools.wraps(test)
    def tried(self: Promises, subject: Subject) -> None:
        try:
            test(self, subject)
        except SkipTest:
            raise
        except Exception as error:  # whatever a store raises breaks the promise
            if self.strict:
                raise
            self.fall_short(error)

    vars(tried)["is_robustness"] = True
    return tried


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise: its method's ``name``, the ``text`` that states it, and the ``reason`` why it matters.

    ``is_robustness``: it is a robustness promise, not a contract promise.
    """

    name: str
    is_robustness: bool
    text: str
    reason: str


def promises_of(kind: type[Promises]) -> list[Promise]:
    """The promises of a class: contract promises first, each kind in the order of the source."""
    methods = {name: method for base in kind.__mro__ for name, method in vars(base).items() if name.startswith("test_")}
    found: list[Promise] = []
    for name, method in methods.items():
        text, _, reason = (inspect.getdoc(method) or name).partition("\n")
        is_robustness = bool(getattr(method, "is_robustness", False))
        found.append(Promise(name, is_robustness, text.rstrip("."), " ".join(reason.split())))
    return sorted(found, key=lambda promise: promise.is_robustness)


def expect(condition: object, message: str) -> None:
    """Raises BrokenPromise with ``message`` unless ``condition`` holds."""
    if not condition:
        raise BrokenPromise(message)


def fail(message: str) -> NoReturn:
    """Raises BrokenPromise."""
    raise BrokenPromise(message)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Raises BrokenPromise unless what was ``found`` is what was ``wanted``."""
    expect(found == wanted, f"{what}: {_shown(found)} instead of {_shown(wanted)}")


def expect_same(found: Iterable[Any], wanted: Iterable[Any], what: str) -> None:
    """Like `expect_equal`, but in any order; each element must occur as often."""
    expect_equal(sorted(found, key=repr), sorted(wanted, key=repr), what)


def is_refused(method: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    """Whether a call raises, whatever the error: stores reject calls in their own ways."""
    with suppress(Exception):
        method(*arguments, **options)
        return False
    return True


def expect_invalid_namespace(what: str, method: Callable[..., object], *arguments: Any) -> None:
    """Raises BrokenPromise unless a call raises InvalidNamespaceError."""
    try:
        method(*arguments)
    except InvalidNamespaceError:
        return
    fail(f"{what} was accepted")


def as_json(value: object) -> str:
    """A value as JSON with sorted keys, for comparisons in which true, 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
