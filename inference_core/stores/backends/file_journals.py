"""The journals of a folder: those used last stay in memory, and of all of them what is asked about everybody."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from inference_core.errors import StoreError
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backends.file_journal import TEMPORARY, Journal, Signature, signature
from inference_core.stores.backends.file_lines import Lines

_LOG = logging.getLogger(__name__)
DEFAULT_CACHE_BYTES: Final = 128 * 1024 * 1024
_OF_A_JOURNAL: Final = 1024
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class Summary(NamedTuple):
    """Of one journal: until when each namespace holds rows, when the first row ends, and the models of its vectors."""

    root: str
    ends: dict[Namespace, datetime]
    first_end: datetime
    models: frozenset[str]


class Journals:
    """Journals in ``folder``, the least recently used dropped beyond ``max_bytes`` of files.

    A user whose file alone is larger is still served: it is read, used and dropped.
    """

    def __init__(self, folder: Path, lines: Lines, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._folder = folder
        self._lines = lines
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._journals: OrderedDict[str, Journal] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._summaries: dict[str, tuple[Signature | None, Summary]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the files whose content is in memory, about, as of each one's last use."""
        return self._total

    @contextmanager
    def use(self, root: str) -> Generator[Journal]:
        """The journal of ``root``, up to date and locked. Raises StoreError, OSError."""
        name = self._lines.file_name(root)
        with self._lock:
            journal = self._journals.setdefault(name, Journal(self._folder / name, self._lines))
            self._journals.move_to_end(name)
        with journal.lock:
            try:
                journal.refresh()
                yield journal
            finally:
                self._settle(name, journal.end)

    def summaries(self) -> Iterator[Summary]:
        """Of every journal that is not damaged; only those that have changed are read anew. Raises OSError."""
        for path in self._folder.iterdir():
            if path.suffix == self._lines.suffix:
                try:
                    yield self._summary(path)
                except StoreError as error:
                    _LOG.warning("A journal is left out: %s", error)

    def of(self, root: str | None) -> Iterator[Journal]:
        """The journal of a user, or all, as they are found: not read yet. Raises OSError."""
        wanted = None if root is None else self._lines.file_name(root)
        for path in self._folder.iterdir():
            if path.suffix == self._lines.suffix and wanted in (None, path.name):
                yield Journal(path, self._lines)

    def clean(self) -> None:
        """Removes what an interrupted compaction has left. Call it while holding the store's lock. Raises OSError."""
        for path in self._folder.glob(f"*{TEMPORARY}"):
            path.unlink()

    def _summary(self, path: Path) -> Summary:
        seen = signature(path)
        known = self._summaries.get(path.name)
        if known is None or known[0] != seen:
            with self._lock:
                journal = self._journals.get(path.name) or Journal(path, self._lines)
            with journal.lock:
                journal.refresh()
                known = self._summaries[path.name] = (seen, _summary_of(journal))
        return known[1]

    def _settle(self, name: str, size: int) -> None:
        with self._lock:
            if name in self._journals:
                charged = size + _OF_A_JOURNAL
                self._total += charged - self._sizes.get(name, 0)
                self._sizes[name] = charged
            while self._total > self._max_bytes and self._journals:
                dropped, _ = self._journals.popitem(last=False)
                self._total -= self._sizes.pop(dropped, 0)


def _summary_of(journal: Journal) -> Summary:
    ends: dict[Namespace, datetime] = {}
    first = _NEVER
    models: set[str] = set()
    for (namespace, _), cell in journal.table.cells():
        if cell.value is None:
            continue
        end = cell.expiry.at if cell.expiry else _NEVER
        first = min(first, end)
        ends[namespace] = max(ends.get(namespace, end), end)
        if cell.document:
            models.add(cell.document.model)
    return Summary(journal.root, ends, first, frozenset(models))
