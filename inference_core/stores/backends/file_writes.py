"""Transaction: what the batches that are handed over together make of the journals of a file store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Self

from inference_core.errors import StoreError, StoreUnavailable, WriteUnknown
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Key, Outcome, Write
from inference_core.stores.backends.file_entries import pack_cells
from inference_core.stores.backends.file_intent import Intent
from inference_core.stores.backends.file_journal import Append, Journal, append, sync_folder, truncate
from inference_core.stores.backends.file_journals import Journals
from inference_core.stores.cells import Cell, Staging

_LOG = logging.getLogger(__name__)


class Transaction:
    """Stages batches, each after the ones before it; nothing is written. It keeps the journals locked until its end."""

    def __init__(self, journals: Journals, now: datetime) -> None:
        self._journals = journals
        self._now = now
        self._used: dict[str, Journal] = {}
        self._locks = ExitStack()
        self._cells: dict[Key, Cell] = {}
        self._heads: dict[Namespace, int] = {}
        self._bodies: dict[str, list[bytes]] = {}
        self.spans_users = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks.__exit__(kind, error, trace)

    def stage(self, batch: Sequence[Write]) -> Outcome:
        """The versions after ``batch``, or why it cannot be written."""
        staging = Staging(self._cell, self._head, self._now)
        try:
            versions = staging.apply(batch)
            bodies = _bodies_of(staging.cells)
        except StoreError as error:
            return error
        except OSError as error:
            return StoreUnavailable(f"A journal cannot be read: {error}")
        self._cells |= staging.cells
        self._heads |= staging.heads
        for root, body in bodies.items():
            self._bodies.setdefault(root, []).append(body)
        self.spans_users |= len(bodies) > 1
        return versions

    @property
    def roots(self) -> list[str]:
        """The root labels that are written to."""
        return list(self._bodies)

    def appends(self) -> list[Append]:
        """What to write."""
        return [self._used[root].append_of(root, bodies) for root, bodies in self._bodies.items()]

    def _cell(self, key: Key) -> Cell | None:
        return self._cells.get(key) or self._journal(key[0][0]).table.cell(key)

    def _head(self, scope: Namespace) -> int:
        staged = self._heads.get(scope)
        return self._journal(scope[0]).table.head(scope) if staged is None else staged

    def _journal(self, root: str) -> Journal:
        if root not in self._used:
            journal = self._locks.enter_context(self._journals.use(root))
            journal.cut()
            self._used[root] = journal
        return self._used[root]


def commit(appends: Sequence[Append], intent: Intent | None) -> None:
    """Writes all of ``appends`` or none; those of one batch to several files need an ``intent``.

    Raises StoreUnavailable if nothing was written, WriteUnknown if that could not be made sure.
    """
    try:
        if intent:
            intent.write(appends)
        for one in appends:
            append(one)
        for folder in {one.path.parent for one in appends if not one.at}:
            sync_folder(folder)
        if intent:
            intent.clear()
    except OSError as error:
        _take_back(appends, intent)
        raise StoreUnavailable(f"The journals cannot be written: {error}") from error


def _take_back(appends: Sequence[Append], intent: Intent | None) -> None:
    try:
        for one in appends:
            truncate(one.path, one.at)
        if intent:
            intent.clear()
    except OSError as error:
        raise WriteUnknown(
            f"The journals can be neither written nor set back: {error}; retry under the same id"
        ) from error


def compact(journals: Journals, roots: Iterable[str]) -> None:
    """Compacts the journals of ``roots`` that are mostly stale; one that cannot be is left for the next time."""
    for root in roots:
        with journals.use(root) as journal:
            if journal.is_stale:
                try:
                    journal.compact()
                except OSError as error:
                    _LOG.warning("A journal could not be compacted; the next write tries again: %s", error)


def _bodies_of(cells: Mapping[Key, Cell]) -> dict[str, bytes]:
    """The line of each root label."""
    owned: dict[str, list[tuple[Key, Cell]]] = {}
    for key, cell in cells.items():
        owned.setdefault(key[0][0], []).append((key, cell))
    return {root: pack_cells(found) for root, found in owned.items()}
