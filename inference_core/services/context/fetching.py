"""Asks sources side by side, under one deadline; what fails or is late is left out and named."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, Final, cast

from inference_core.context.items import ContextItem
from inference_core.drivers import Deadline, Plan, Pool, Wait, run
from inference_core.errors import ConfigurationError, DeadlineExceeded, IdentityError, StoreUnavailable
from inference_core.memory.namespaces import encode_label, global_namespace
from inference_core.memory.types import MemoryCategory
from inference_core.services.context.source import ContextRequest, ContextSource, SearchingSource
from inference_core.services.context.together import Together
from inference_core.stores.search import Search

WORKERS: Final = 8
"""Calls of one source at a time; while all of them hang, the source is left out at once."""
_HANG_S: Final = 2.0
"""No prompt waits for a source nearly so long."""
_AN_INSTANT_S: Final = 0.001
_MAX_REASON: Final = 200
_EVERYBODY: Final = global_namespace(MemoryCategory.SEMANTIC, "any")[0]
Fetching = Future[list[ContextItem]]


class Sources:
    """Some sources, each with workers of its own, so that one that hangs takes nothing from the others.

    Raises ConfigurationError if two have the same name, or one is no source.
    """

    def __init__(self, sources: Sequence[ContextSource]) -> None:
        for one in sources:
            if not isinstance(one, ContextSource):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{one!r:.80} is no context source: it needs name, section, limit and fetch")
        self._pools = {one.name: Pool(WORKERS, f"context-{one.name}", hang_s=_HANG_S) for one in sources}
        if len(self._pools) < len(sources):
            raise ConfigurationError("Two context sources have the same name; give one of them another")
        self._sources = tuple(sources)
        for pool in self._pools.values():
            weakref.finalize(self, pool.close)

    def fetch(self, request: ContextRequest, seconds: float | None) -> Plan[tuple[list[ContextItem], dict[str, str]]]:
        """Plan: what all sources give within ``seconds``, and why some give nothing. Never raises for a source."""
        deadline = Deadline(seconds)
        items: list[ContextItem] = []
        left_out: dict[str, str] = {}
        request = replace(request, together=Together(request.scope.engine, dict(self._questions(request))))
        under_way: list[tuple[ContextSource, Fetching]] = []
        for source in self._sources:
            try:
                under_way.append((source, self._pools[source.name].submit(partial(_fetched, source, request))))
            except (StoreUnavailable, RuntimeError) as error:  # its workers hang, or no thread can be started
                left_out[source.name] = _reason(error)
        try:
            for source, future in under_way:
                try:
                    items += yield self._wait(future, request, deadline)
                except DeadlineExceeded:
                    left_out[source.name] = "late"
                except Exception as error:  # noqa: BLE001 - whatever one source raises, the others are shown
                    left_out[source.name] = _reason(error)
        finally:
            for _, future in under_way:
                future.cancel()
        return items, left_out

    def _questions(self, request: ContextRequest) -> Iterator[tuple[str, Search]]:
        """The searches for the question itself, by source."""
        for source in self._sources:
            with suppress(Exception):  # its fetch asks the same, and says what is wrong
                search = source.question(request) if isinstance(source, SearchingSource) else None
                if search is not None and search.text == request.query:
                    yield source.name, search

    def _wait(self, future: Fetching, request: ContextRequest, deadline: Deadline) -> Wait[list[ContextItem]]:
        try:
            left = deadline.remaining()
        except DeadlineExceeded:
            left = _AN_INSTANT_S  # what is there by now is taken
        return Wait(lambda: future, timeout=left, may_block=request.scope.engine.pool.may_block)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_REASON]}"


def _fetched(source: ContextSource, request: ContextRequest) -> list[ContextItem]:
    """What ``source`` gives, in its name. Raises what it raises, IdentityError for a memory of another user."""
    given: Any = source.fetch(request)
    if isinstance(given, Generator):
        given = run(cast("Plan[Sequence[ContextItem]]", given))
    elif isawaitable(given):
        given = asyncio.run(_awaited(cast("Awaitable[Sequence[ContextItem]]", given)))
    items: list[ContextItem] = list(given)[: source.limit]
    owners = (encode_label(request.user_id), _EVERYBODY)
    if any(item.record is not None and item.record.namespace[0] not in owners for item in items):
        raise IdentityError(f"Source {source.name} gave a memory of another user")
    return [replace(item, source=source.name) for item in items]


async def _awaited(given: Awaitable[Sequence[ContextItem]]) -> Sequence[ContextItem]:
    return await given
