"""A folder of files that a person can read: one journal a user, in JSON Lines, for many threads and processes.

A batch is one line of its user's journal, on disk when `apply` returns; a batch of several users is in all of their
journals or in none. Writers take turns by a lock on the store, readers wait for nobody. A user's journal is read at its
first use and kept in memory; later only what was appended is read. Lines may be compressed and encrypted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from inference_core.clock import Clock, SystemClock
from inference_core.errors import ConfigurationError, StoreError, StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Capabilities, Key, Outcome, Pending, Row, Tally, Unreadable, Write
from inference_core.stores.backends.file_intent import Intent
from inference_core.stores.backends.file_journal import sync_folder
from inference_core.stores.backends.file_journals import DEFAULT_CACHE_BYTES, Journals, Summary
from inference_core.stores.backends.file_manifest import Manifest
from inference_core.stores.backends.file_writes import Transaction, commit, compact
from inference_core.stores.cursor import PageRequest, place_of
from inference_core.stores.locks import FileLock
from inference_core.stores.scan import holding_most
from inference_core.stores.table import Table

_JOURNALS: Final = "users"
T = TypeVar("T")


class FileBackend:
    """A Backend over ``folder``; ``key`` (32 bytes) encrypts it, ``compresses`` makes it smaller, if it is a new one.

    ``cache_bytes`` bounds the files whose content is kept in memory. Raises ConfigurationError if the folder cannot be
    opened, or not with this key; UnsupportedSchema if a newer version wrote it; MissingExtra.
    """

    capabilities = Capabilities(durable=True, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(
        self,
        folder: Path,
        *,
        key: bytes | None = None,
        compresses: bool = False,
        clock: Clock | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.name = f"file:///{folder}"
        folder = folder.absolute()  # a program that changes its folder must not find another one
        self._folder = folder
        self._clock = clock or SystemClock()
        self._journals_folder = folder / _JOURNALS
        self._manifest = Manifest(folder)
        self._turn = threading.Lock()
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                self._lock = opened.enter_context(closing(FileLock(folder / "store.lock")))
                with self._lock:
                    lines = self._manifest.open(key, compresses=compresses, is_new=not self._journals_folder.exists())
                    self._journals_folder.mkdir(exist_ok=True)
                    sync_folder(folder)
                    self._journals = Journals(self._journals_folder, lines, cache_bytes)
                    self._journals.clean()
                self._intent = Intent(folder / "intent.json", self._journals_folder, lines)
                self._found = _identity(folder)
                opened.pop_all()
        except ConfigurationError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"Cannot open the store at {folder}: {error}. Is the folder writable?") from error

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch as a line of each journal that it concerns. All or, if that raises, none are written."""
        with self._writing():
            with Transaction(self._journals, self._clock.now()) as transaction:
                outcomes = [transaction.stage(batch) for batch in batches]
                appends = transaction.appends()
            commit(appends, self._intent if transaction.spans_users else None)
            compact(self._journals, transaction.roots)
        return outcomes

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        now = self._clock.now()
        return self._each(keys, lambda table, key: table.get(key, now))

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        return self._each(keys, Table.tokens)

    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first; of scopes of several users, each one's newest are merged."""
        now = self._clock.now()
        rows: list[Row] = []
        end = request.offset + request.limit
        for root, owned in _by_root(request.scopes, lambda scope: scope):
            with self._table(root) as table:
                rows += table.page(replace(request, scopes=owned, limit=end, offset=0), now)
        return sorted(rows, key=place_of)[request.offset : end]

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold."""
        now = self._clock.now()
        total = 0
        for root, owned in _by_root(scopes, lambda scope: scope):
            with self._table(root) as table:
                total += table.count(owned, now, kinds)
        return total

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        now = self._clock.now()
        found: list[Tally] = []
        for root, owned in _by_root(scopes, lambda scope: scope):
            with self._table(root) as table:
                found += table.tally(owned, now)
        return found

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``.

        Without a prefix every journal is read that has changed since the last such call; the first time, all. Those
        that are damaged are left out.
        """
        now = self._clock.now()
        if prefix:
            with self._table(prefix[0]) as table:
                return table.namespaces(prefix, now)
        summaries = self._summaries()
        return sorted(name for one in summaries for name, end in one.ends.items() if end > now)

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        return self._each([(scope, "") for scope in scopes], lambda table, key: table.head(key[0]))

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        with self._table(scope[0]) as table:
            return table.changes(scope, since)

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``."""
        return holding_most(self.changes(scope, 0), words, limit)

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet. Reads what `namespaces` reads."""
        found: list[Pending] = []
        for one in self._summaries():
            if len(found) < limit and one.models - {model}:
                with self._table(one.root) as table:
                    found += islice(table.pending(model), limit - len(found))
        return found

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come. Reads what `namespaces` reads."""
        now = self._clock.now()
        found: list[Key] = []
        for one in self._summaries():
            if len(found) < limit and one.first_end <= now:
                with self._table(one.root) as table:
                    found += islice(table.expired(now), limit - len(found))
        return found

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        with self._open():
            return self._manifest.get(name)

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._writing():
            self._manifest.set(name, value)

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        """Every row of one user or of all; of a journal that is damaged one entry, for the whole of it."""
        with self._open():
            self._settle()
            for journal in self._journals.of(root):
                try:
                    journal.refresh()
                except StoreError:
                    name = journal.path.name
                    reason = f"line {journal.lines + 1} of {name} is damaged, and all of the file waits for its repair"
                    label = journal.root or root
                    yield Unreadable(root=label, namespace=None, key=name, reason=reason, place=journal)
                else:
                    yield from journal.table.rows(None)

    def discard(self, found: Sequence[Unreadable]) -> int:
        """Takes the damaged lines out of journals."""
        with self._writing():
            for one in found:
                one.place.salvage()
        return len(found)

    def forget(self, user: str) -> None:
        """Nothing is remembered of who follows changes."""

    def close(self) -> None:
        """Frees the lock's file; later calls are refused."""
        with self._turn:
            self._closed = True
            self._lock.close()

    @contextmanager
    def _open(self) -> Generator[None]:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"{self.name}: {error}") from error

    @contextmanager
    def _writing(self) -> Generator[None]:
        with self._turn, self._open(), self._lock:
            self._check_folder()
            self._intent.finish()
            yield

    def _check_folder(self) -> None:
        """Raises StoreUnavailable if the folder is not the one that was opened, whose lock and key this object has."""
        if _identity(self._folder) != self._found or not self._manifest.exists():
            raise StoreUnavailable(
                f"The folder {self._folder} or its store.json was deleted or replaced while the store was open; "
                "nothing was saved. Bring it back and open the store again, which means restarting the program"
            )

    def _settle(self) -> None:
        """Waits for a write of several users that is under way, or finishes one that was left."""
        self._check_folder()
        if self._intent.exists():
            with self._writing():
                pass

    @contextmanager
    def _table(self, root: str) -> Generator[Table]:
        with self._open():
            self._settle()
            with self._journals.use(root) as journal:
                yield journal.table

    def _each(self, keys: Sequence[Key], question: Callable[[Table, Key], T]) -> list[T]:
        """The answer for each key, in the order of the keys."""
        found: dict[Key, T] = {}
        for root, owned in _by_root(keys, lambda key: key[0]):
            with self._table(root) as table:
                found |= {key: question(table, key) for key in owned}
        return [found[key] for key in keys]

    def _summaries(self) -> Iterator[Summary]:
        with self._open():
            self._settle()
            yield from self._journals.summaries()


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _by_root(given: Iterable[T], namespace_of: Callable[[T], Namespace]) -> Iterable[tuple[str, list[T]]]:
    owned: dict[str, list[T]] = {}
    for one in given:
        owned.setdefault(namespace_of(one)[0], []).append(one)
    return owned.items()
