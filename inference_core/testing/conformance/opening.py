"""Opening the store to try: what a factory is called with, and what it may give back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from langgraph.store.base import BaseStore

from inference_core.errors import ConfigurationError
from inference_core.testing.conformance.embeddings import WatchedEmbeddings
from inference_core.testing.conformance.loop import LoopThread

Made = BaseStore | AbstractContextManager[BaseStore] | AbstractAsyncContextManager[BaseStore]
"""What a factory gives: a store, or a context manager of one; an async one is entered on the suite's event loop."""


@dataclass(frozen=True, slots=True)
class Factory:
    """A function that opens a store, by its address ``module:function``.

    It is called with those of these arguments that it has: ``place`` (a folder, empty at first: the same place is the
    same data, also from another process), ``embeddings`` (the suite's) and ``index`` (LangGraph's IndexConfig of them).
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

    def keeps_data(self) -> bool:
        """Whether it says where the data are, so that they can be opened again."""
        return "place" in inspect.signature(self.function()).parameters

    def make(self, place: Path, embeddings: WatchedEmbeddings) -> Made:
        """What the function gives for ``place``."""
        function = self.function()
        offered: dict[str, Any] = {"place": place, "embeddings": embeddings, "index": embeddings.index}
        wanted = inspect.signature(function).parameters
        made = function(**{name: value for name, value in offered.items() if name in wanted})
        return _owned(made) if isinstance(made, BaseStore) and isinstance(made, AbstractContextManager) else made


@contextmanager
def _owned(store: AbstractContextManager[BaseStore]) -> Generator[BaseStore]:
    """A store that nobody else closes."""
    with store as opened:
        yield opened


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
