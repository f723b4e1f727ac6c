"""Queued: saves that the database could not take, and how they are part of what this process reads meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference_core.drivers import Plan
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Backend, Delete, Key, Put, Row, Write
from inference_core.stores.replay import Replay
from inference_core.stores.search import Found, RecallMode, Search, SearchResult
from inference_core.stores.spool import Conflict, Spool

if TYPE_CHECKING:
    from inference_core.stores.searcher import Searcher

_INDEX_BYTES: Final = 1 << 28


class Queued:
    """The spool in ``folder`` for ``backend``; ``stored`` hears when something of it was stored.

    A row that waits has version 0.
    """

    def __init__(self, folder: Path, backend: Backend, stored: Callable[[], None]) -> None:
        self._spool = Spool(folder, backend.name)
        self._replay = Replay(self._spool, backend, stored)

    @property
    def waiting(self) -> int:
        """How many memories wait."""
        return len(self._spool)

    def conflicts(self) -> list[Conflict]:
        """What could not be stored, since another memory stands under its id."""
        return self._spool.conflicts()

    def keep(self, puts: Sequence[Put]) -> list[int]:
        """Queues ``puts`` and gives their versions: 0. Raises StoreUnavailable if the spool fails too."""
        self._spool.add([replace(put, expected=0) for put in puts])
        self._replay.wake()
        return [0] * len(puts)

    def written(self, batch: Sequence[Write]) -> None:
        """The database took ``batch``, which goes before what waited under the same keys."""
        self._spool.remove([(write.namespace, write.key) for write in batch if isinstance(write, Put | Delete)])

    def get(self, plan: Plan[list[Row | None]], keys: Sequence[Key]) -> Plan[list[Row | None]]:
        """The row of each key, stored or waiting; if the database is away, those that wait."""
        waiting = [row and _waiting(row) for row in self._spool.waiting.get(keys)]
        try:
            stored = yield from plan
        except StoreUnavailable:
            if any(waiting):
                return waiting
            raise
        return [row or queued for row, queued in zip(stored, waiting, strict=True)]

    def newest(
        self,
        ask: Callable[[int, int], Plan[list[Row]]],
        scopes: Sequence[Namespace],
        kinds: frozenset[str] | None,
        limit: int,
        offset: int,
    ) -> Plan[list[Row]]:
        """The page of what is stored, which ``ask`` gives by limit and offset, and of what waits."""
        waiting = self._spool.waiting.newest(scopes, kinds=kinds, limit=limit + offset)
        if not waiting:
            return (yield from ask(limit, offset))
        rows = {(row.namespace, row.key): _waiting(row) for row in waiting}
        rows |= {(row.namespace, row.key): row for row in (yield from ask(limit + offset, 0))}
        return sorted(rows.values(), key=lambda row: (-row.created_at.timestamp(), row.key))[offset : offset + limit]

    def count(self, plan: Plan[int], scopes: Sequence[Namespace]) -> Plan[int]:
        """How many rows are stored or wait."""
        waiting = self._spool.waiting.count(scopes)
        return (yield from plan) + waiting

    def search(self, plan: Plan[SearchResult], search: Search) -> Plan[SearchResult]:
        """The best of what is stored and of what waits; if the database is away, of what waits, by words."""
        if not self._spool.holds(scope for group in search.groups for scope in group):
            return (yield from plan)
        ranked = self._searcher.ranked(search, None)
        waiting = [[replace(found, row=_waiting(found.row)) for found in group] for group in ranked.groups]
        try:
            stored = yield from plan
        except StoreUnavailable as error:
            if not any(waiting):
                raise
            return SearchResult(waiting, RecallMode.LEXICAL, f"only what waits to be stored: {error}", ranked.left_out)
        groups = [_merged(*both, search.limit) for both in zip(stored.groups, waiting, strict=True)]
        return replace(stored, groups=groups, left_out=[*stored.left_out, *ranked.left_out])

    def close(self) -> None:
        """What waits stays in the spool's file."""
        self._replay.close()
        self._spool.close()

    @cached_property
    def _searcher(self) -> Searcher:
        from inference_core.stores.searcher import Searcher  # noqa: PLC0415 - numpy is slow to import

        return Searcher(self._spool.waiting, "", _INDEX_BYTES)


def _waiting(row: Row) -> Row:
    return replace(row, version=0)


def _merged(stored: Sequence[Found], waiting: Sequence[Found], limit: int) -> list[Found]:
    known = {(found.row.namespace, found.row.key) for found in stored}
    fresh = [found for found in waiting if (found.row.namespace, found.row.key) not in known]
    return sorted([*stored, *fresh], key=lambda found: -found.score)[:limit]
