"""Subject: the store that is tried, through its sync or its async methods."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from langgraph.store.base import BaseStore, Item, Op, SearchItem

from inference_core.testing.conformance.embeddings import WatchedEmbeddings
from inference_core.testing.conformance.loop import PATIENCE_S, LoopThread
from inference_core.testing.conformance.opening import Factory, Made, entered
from inference_core.testing.conformance.promises import NotApplicable

Mode = Literal["sync", "async"]
MODES: Final[tuple[Mode, Mode]] = ("sync", "async")
Namespace = tuple[str, ...]
NS: Final[Namespace] = ("ada", "notes")
"""Where most promises put their items."""
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a store by its sync name, and what it is called with."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def call(name: str, *arguments: Any, **options: Any) -> Call:
    """A call to be made later."""
    return Call(name, arguments, options)


@dataclass(frozen=True, slots=True)
class Location:
    """Where the data of the tried store are, and how to open them again."""

    folder: Path
    factory: Factory | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A store through one mode. Its methods are the store's own, sync: an async mode runs on a loop of its own."""

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

    def start(self, wanted: Call) -> Future[Any]:
        """Starts a call beside others; a thread of its own, or a task on the loop."""
        if self.mode == "async":
            return self.loop.start(self._awaited(wanted))
        pool = ThreadPoolExecutor(1)
        future = pool.submit(self._made, wanted)
        pool.shutdown(wait=False)
        return future

    def together(self, *calls: Call) -> list[Any]:
        """The results of calls that are made at once, or what they raised; async: in one turn of the loop."""
        if self.mode == "async":
            return self.loop.run(self._gathered(calls))
        with ThreadPoolExecutor(_THREADS) as pool:
            futures = [pool.submit(self._made, one) for one in calls]
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
        if factory is None or not factory.keeps_data():
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
        found = self.search(("ranking",), query="probe")
        self.delete(("ranking",), "probe")
        if not any(item.score for item in found):
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
        wanted = Call(name, arguments, options)
        return self.loop.run(self._awaited(wanted)) if self.mode == "async" else self._made(wanted)

    def _made(self, wanted: Call) -> Any:
        return getattr(self.store, wanted.name)(*wanted.arguments, **wanted.options)

    async def _awaited(self, wanted: Call) -> Any:
        method = getattr(self.store, f"a{wanted.name}")
        return await asyncio.wait_for(method(*wanted.arguments, **wanted.options), PATIENCE_S)

    async def _gathered(self, calls: Sequence[Call]) -> list[Any]:
        return await asyncio.gather(*map(self._awaited, calls), return_exceptions=True)


@contextmanager
def trying(made: Made, mode: Mode, embeddings: WatchedEmbeddings, place: Location) -> Generator[Subject]:
    """The store that was made, through ``mode``. Raises NotApplicable."""
    with LoopThread() as loop, entered(made, loop) as store:
        yield Subject(store, mode, embeddings, loop, place).checked()
