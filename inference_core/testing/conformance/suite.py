"""StoreConformance: the promises as a pytest class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from inference_core.errors import ConfigurationError, MissingExtra
from inference_core.testing.conformance.runner import EveryPromise
from inference_core.testing.conformance.subject import (
    MODES,
    Factory,
    Location,
    Made,
    Subject,
    WatchedEmbeddings,
    trying,
)

try:
    import pytest
except ImportError as error:
    raise MissingExtra("StoreConformance", "testing") from error


class StoreConformance(EveryPromise):
    """Tests of a LangGraph store, each through its sync and its async methods; subclass it as ``Test…``.

    Override the fixture ``store``: an empty store for each test, or a context manager of one (an async one is entered
    on the suite's event loop). Or set ``factory`` to the address of such a function, ``"module:function"``, with the
    parameters that `Factory` names: then the promises about several processes are tested too. A broken robustness
    promise is an expected failure (``pytest -rx`` lists it), unless ``strict`` is set.
    """

    factory: ClassVar[str | None] = None

    @pytest.fixture
    def embeddings(self) -> WatchedEmbeddings:
        """The suite's embeddings, for the store's index; promises about vectors are skipped without them."""
        return WatchedEmbeddings()

    @pytest.fixture
    def store(self, tmp_path: Path, embeddings: WatchedEmbeddings) -> Made:
        """The store to test."""
        if self.factory is None:
            raise ConfigurationError('Override the fixture `store`, or set `factory` to "module:function"')
        return Factory(self.factory).make(tmp_path, embeddings)

    @pytest.fixture(params=MODES)
    def subject(
        self, request: pytest.FixtureRequest, store: Made, embeddings: WatchedEmbeddings, tmp_path: Path
    ) -> Iterator[Subject]:
        """The store through one of its modes."""
        place = Location(tmp_path, Factory(self.factory) if self.factory else None)
        with trying(store, request.param, embeddings, place) as subject:
            yield subject

    def fall_short(self, error: Exception) -> None:
        """Reports a broken robustness promise."""
        pytest.xfail(f"{type(error).__name__}: {error}")
