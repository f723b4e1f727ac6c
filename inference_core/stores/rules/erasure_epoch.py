"""Fences: a write that began before a user was erased brings nothing back.

A user that is being erased has a row, the fence, whose version changes when the erasure begins and when it ends. Each
write checks, in its own transaction, that the fences of its users are at the versions that this process knew when the
write began. If one has changed, the user was erased meanwhile, and the write is refused with UserErased. What begins
later is written: a user may come back. No clock decides which came first, since clocks can be set back.

So a write must know the present fences when it begins. It reads them, unless this process has just done so, or has just
written with them (`Fences.is_fresh`). A fence stays up for longer than such a moment: so whatever began before an
erasure cannot take the state after it for the state at its beginning. What cannot wait for a read, such as a note of
what was told, takes what is known, and may be refused although it began after the erasure.

A worker's write may begin later and still come from older messages. If the outbox is in this database, the write checks
the worker's claim of the messages, which an erasure ends; otherwise the checks of the fences, which the worker takes
before it reads the messages (`Pipeline.process`). An import takes those of all users when it begins (`Fences.all`).

The namespace of a fence is an HMAC of the user's label, whose key lies in the same database: without that key
and the id, it reveals nothing. As long as nobody was ever erased there is no key, and all writes check just that. A
database that is split over servers has a key in each place where it has fences.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from inference_core.errors import StoreError, UserErased, VersionConflict
from inference_core.memory.namespaces import ERASED, GLOBAL, ROOTS, Namespace
from inference_core.memory.text import encode_json
from inference_core.retrieval.documents import NO_EPOCH, Epoch
from inference_core.stores.backend import (
    Backend,
    Batch,
    Check,
    Key,
    Outdated,
    Put,
    Row,
    States,
    Write,
    WriteRule,
    beside,
)

_KEY: Final = "key"
_STATE: Final = "state"
_LONG_AGO: Final = float("-inf")
_NEVER: Final = -1
"""No row is at this version: a Check for it refuses the batch."""
_MOMENT_S: Final = 0.1
"""What is known of fences is true of a write that begins, or began, within this time of it. By a monotonic clock."""
_HELD_S: Final = 0.15
"""How long a fence is up at least."""
_MOST_KNOWN: Final = 10_000
_JUMP: Final = 1 << 32
_PRIVATE: Final = "memory://"
_MAKING: Final = threading.Lock()
_NOBODYS: Final = ROOTS.keys() - {GLOBAL}


class Fence(NamedTuple):
    """What is known of a user's fence. ``is_up``: the user is being erased.

    ``erasure`` is the id of the last erasure that was completed, and ``since`` when that was, in seconds since 1970.
    """

    version: int = 0
    is_up: bool = False
    since: float = 0.0
    erasure: str = ""

    @classmethod
    def of(cls, row: Row | None) -> Fence:
        """What a row says; without one, the user was never erased."""
        if row is None:
            return cls()
        return cls(row.version, bool(row.value["up"]), float(row.value["at"]), str(row.value.get("erasure", "")))

    @property
    def expected(self) -> int:
        """The version that a write must find; none while the user is being erased."""
        return _NEVER if self.is_up else self.version


_DOWN: Final = Fence()
AllFences = Mapping[Namespace, Fence]
"""The fences of all users at one moment, by their namespaces."""


class Fences:
    """The fences of the database ``backend``, as far as this process knows them. Methods block; safe for threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = weakref.proxy(backend)
        # A database in this process's memory is erased from through this object, which thus knows all there is.
        self._is_ours_alone = backend.name == _PRIVATE
        self._keys: dict[Namespace, tuple[bytes, Epoch]] = {}
        """The keys by their namespaces, and the epoch that they were read in."""
        self._known: dict[str, Fence] = {}
        self._seen: dict[str | Namespace, float] = {}
        """When the fence of a user was as it is known, by the monotonic clock; of a key's place: that it had none."""
        self._up: dict[str, float] = {}
        self._lock = threading.Lock()

    def scope(self, root: str) -> Namespace:
        """The namespace whose head changes with each erasure of the user, as far as this process knows."""
        return self._row(root)[0]

    def home(self, root: str) -> Namespace:
        """Where the key of the user's fence is: that is `scope` as long as nobody of this place was erased."""
        return beside(self._backend, (ERASED,), root)

    def checks(self, roots: Iterable[str]) -> list[Check]:
        """The writes that refuse a batch if one of these users was erased since, or is being erased.

        They follow from what this process knows; the database is not read.
        """
        return self._checks(roots, self._known)

    def is_outlived(self, root: str, epoch: Epoch) -> bool:
        """Whether the key, and with it all that is known, may have been lost, as the database is of ``epoch`` now."""
        known = self._keys.get(self.home(root))
        return known is not None and epoch not in (NO_EPOCH, known[1])

    def is_fresh(self, roots: Iterable[str]) -> bool:
        """Whether `checks` gives what the database had a moment ago, so that a write that begins now need not read."""
        if self._is_ours_alone:
            return True
        known, least = self._known, time.monotonic() - _MOMENT_S
        return all(
            self._seen.get(self._seen_as(root), _LONG_AGO) > least and not known.get(root, _DOWN).is_up
            for root in roots
        )

    def refresh(self, roots: Sequence[str]) -> None:
        """Reads what `checks` needs, unless it `is_fresh`, for a write that begins soon. Raises StoreError."""
        if not self.is_fresh(roots):
            self._read(roots)

    def begun(self, known: Sequence[Check], roots: Sequence[str], began: float) -> list[Check]:
        """Like `read`, for a write that began at ``began`` by the monotonic clock, when ``known`` were the `checks`.

        Raises UserErased if a user is being erased, or may have been erased since then; StoreError.
        """
        fences = self._read(roots)
        if time.monotonic() - began > _MOMENT_S:  # this process is busy, or the database
            self._compare(known, fences)
        return self._checks(roots, fences)

    def read(self, roots: Sequence[str], *, anew: bool = False) -> list[Check]:
        """Like `checks`, after reading the fences from the database, and with ``anew`` the key. Raises StoreError."""
        return self._checks(roots, self._read(roots, anew=anew))

    def note_passed(self, checks: Sequence[Check], roots: Iterable[str], began: float) -> None:
        """Notes that a batch with ``checks`` of these users, begun at ``began`` by the monotonic clock, was written."""
        with self._lock:
            if checks == self._checks(roots, self._known):
                for name in map(self._seen_as, roots):
                    self._seen[name] = max(began, self._seen.get(name, _LONG_AGO))

    def rule(self, roots: Sequence[str], checks: Sequence[Check] | None = None) -> FenceRule:
        """What refuses a batch if one of these users is erased, or was since ``checks`` were taken (None: now)."""
        return FenceRule(self, roots, self.checks(roots) if checks is None else checks)

    def renewed(self, checks: Sequence[Check], roots: Sequence[str]) -> list[Check] | None:
        """The checks for another try of a batch that was refused; None if its fences were not the reason.

        Raises UserErased if a user was erased since ``checks`` were taken, or is being erased; StoreError.
        """
        fences = self._read(roots)
        self._compare(checks, fences)
        fresh = self._checks(roots, fences)  # others: somebody else was the first to be erased from this database
        return fresh if fresh != checks else None

    def all(self) -> AllFences:
        """The fences of all users now, for `checks_since` and `erased_since`. Raises StoreError."""
        return {
            row.namespace: Fence.of(row)
            for row in self._backend.inspect(ERASED)
            if isinstance(row, Row) and row.key == _STATE
        }

    def checks_since(self, then: AllFences, roots: Iterable[str]) -> list[Check]:
        """The writes that refuse a batch if one of these users was erased since ``then``, or was being erased then."""
        return self._checks(roots, self._as_of(then, roots))

    def erased_since(self, then: AllFences, roots: Sequence[str]) -> list[str]:
        """Those of these users who were erased since ``then``, or were being erased then. Raises StoreError."""
        fences = self._read(roots)
        return [root for root, fence in self._as_of(then, fences).items() if fences[root].version != fence.expected]

    def put_up(self, root: str) -> None:
        """Keeps out all writers of the user. Raises StoreError."""
        row = self.home(root), _KEY
        if not self._backend.get([row])[0]:
            key = {"key": secrets.token_hex(32)}
            # Another process may make one at the same time: then that one counts.
            self._apply(_put(row, key, expected=0))
        self.read([root], anew=True)
        self._set(root, is_up=True)
        self._up[root] = time.monotonic()

    def take_down(self, root: str, erasure: str = "") -> None:
        """Lets in writes of the user that begin after this; ``erasure`` was completed, if given. Raises StoreError."""
        if (left := self._up.pop(root, _LONG_AGO) + _HELD_S - time.monotonic()) > 0:
            time.sleep(left)
        self._set(root, is_up=False, erasure=erasure)

    def last(self, root: str) -> Fence:
        """The fence of the user; one that says nothing if an erasure was interrupted. Raises StoreError."""
        fence = self._read([root]).get(root, _DOWN)
        return _DOWN if fence.is_up else fence

    def since(self, root: str) -> float:
        """When the last erasure of the user from this store ended, in seconds since 1970. Raises StoreError.

        0 if there was none, or it was interrupted and has not ended.
        """
        return self.last(root).since

    def _set(self, root: str, *, is_up: bool, erasure: str = "") -> None:
        known = self._read([root]).get(root, _DOWN)
        at = time.time() if erasure else known.since
        value = {"up": is_up, "at": at, "erasure": erasure or known.erasure}
        # The database may lose this version, and get another erasure's: a write that knows this one must not fit that.
        above = known.version + secrets.randbelow(_JUMP)
        if (place := self._place(root)) is None:
            raise StoreError("The database has lost writes during this erasure; erase the user again")
        self._apply(_put(place, value, above=above))
        self.read([root])

    def _apply(self, write: Write) -> None:
        (outcome,) = self._backend.apply([[write]])
        if isinstance(outcome, Exception) and not isinstance(outcome, VersionConflict):
            raise outcome

    def _read(self, roots: Sequence[str], *, anew: bool = False) -> dict[str, Fence]:
        """The fences of these users; none of those in whose place nobody was ever erased."""
        began, homes = time.monotonic(), dict.fromkeys(map(self.home, roots))
        unknown = [home for home in homes if anew or home not in self._keys]
        if unknown:
            for home, row in zip(unknown, self._backend.get([(home, _KEY) for home in unknown]), strict=True):
                if row:
                    self._keys[home] = bytes.fromhex(row.value["key"]), row.epoch
                else:
                    self._keys.pop(home, None)
                    self._seen[home] = began
        places = {root: place for root in roots if (place := self._place(root))}
        rows: list[Row | None] = self._backend.get(list(places.values())) if places else []
        fences = {root: Fence.of(row) for root, row in zip(places, rows, strict=True)}
        with self._lock:
            if len(self._known) + len(fences) > _MOST_KNOWN:
                self._known, self._seen = {}, {}
            for root, fence in fences.items():
                if began >= self._seen.get(root, _LONG_AGO):  # else another thread has read a later state meanwhile
                    self._known[root], self._seen[root] = fence, began
        return fences

    def _compare(self, checks: Sequence[Check], fences: Mapping[str, Fence]) -> None:
        """Raises UserErased if one of the present ``fences`` is up, or has changed since ``checks``."""
        expected = {(check.namespace, check.key): check.expected for check in checks}
        for root, fence in fences.items():
            if fence.is_up or fence.version != expected.get(self._row(root), 0):
                raise UserErased

    def _checks(self, roots: Iterable[str], known: Mapping[str, Fence]) -> list[Check]:
        expected = {self._row(root): known.get(root, _DOWN).expected for root in roots}
        return [Check(namespace=place, key=name, expected=version) for (place, name), version in expected.items()]

    def _as_of(self, then: AllFences, roots: Iterable[str]) -> dict[str, Fence]:
        """The fences of these users ``then``."""
        return {root: then.get(place[0], _DOWN) for root in roots if (place := self._place(root))}

    def _seen_as(self, root: str) -> str | Namespace:
        """What `_seen` says when the fence of the user was as it is known."""
        home = self.home(root)
        return root if home in self._keys else home

    def _row(self, root: str) -> Key:
        """The row whose version changes with an erasure of the user: the fence's, or the key's if there is none."""
        return self._place(root) or (self.home(root), _KEY)

    def _place(self, root: str) -> Key | None:
        """The row of the user's fence; None as long as it has no key."""
        known = self._keys.get(self.home(root))
        if known is None:
            return None
        name = hmac.digest(known[0], root.encode(errors="surrogatepass"), "sha256").hex()[:32]
        return beside(self._backend, (ERASED, name), root), _STATE


class FenceRule(WriteRule):
    """Refuses a batch with UserErased if one of its users was erased since it began."""

    def __init__(self, fences: Fences, roots: Sequence[str], checks: Sequence[Check], began: float = _LONG_AGO) -> None:
        self._fences, self._roots, self._began = fences, roots, began
        self._expect(checks)

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """Nothing. Raises Outdated if the fences are others than those that were known."""
        del after
        for place, check in zip(self.reads, self._checks, strict=True):
            state = before.get(place)
            if (state.version if state and state.is_alive(now) else 0) != check.expected:
                raise Outdated(self, "A user of this write was erased, or is being erased")
        return []

    def renew(self, error: Exception) -> bool:
        """Takes the present fences if these users were not erased meanwhile. Raises UserErased, StoreError."""
        if not isinstance(error, Outdated) or error.rule is not self:
            return False
        renewed = self._fences.renewed(self._checks, self._roots)
        self._expect(renewed or self._checks)
        return renewed is not None

    def landed(self, *, is_sure: bool) -> None:
        """Notes that the fences were as they were known."""
        if is_sure:
            self._fences.note_passed(self._checks, self._roots, self._began)

    def _expect(self, checks: Sequence[Check]) -> None:
        self._checks, self.reads = checks, [(one.namespace, one.key) for one in checks]


_FENCES: Final[weakref.WeakKeyDictionary[Backend, Fences]] = weakref.WeakKeyDictionary()


def fences_of(backend: Backend) -> Fences:
    """The one Fences of this process for ``backend``."""
    with _MAKING:
        found = _FENCES.get(backend)
        if found is None:
            found = _FENCES[backend] = Fences(backend)
        return found


def _put(key: Key, value: dict[str, Any], expected: int | None = None, above: int = 0) -> Put:
    text = encode_json(value, what="fence")
    return Put(namespace=key[0], key=key[1], value=text, updated_at=datetime.now(UTC), expected=expected, above=above)


def roots_of(batch: Batch) -> list[str]:
    """The users' labels under which ``batch`` puts something: no other write brings anything back."""
    roots = dict.fromkeys(put.namespace[0] for put in batch if isinstance(put, Put))
    return [root for root in roots if root not in _NOBODYS]
