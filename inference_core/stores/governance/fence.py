"""Fences: a write that began before a user was erased brings nothing back.

A user that is being erased has a row, the fence, whose version changes when the erasure begins and when it ends. Each
write checks, in its own transaction, that the fences of its users are at the versions that this process knows. A write
that began before an erasure ended is refused with UserErased. What begins later is written: a user may come back.
A worker's write may begin later and still come from older messages. If the outbox is in this database, the write checks
the worker's claim of the messages, which an erasure ends; otherwise the checks of the fences, which the worker takes
before it reads the messages (`Pipeline.process`).

The namespace of a fence is an HMAC of the user's label, whose key lies in the same database: without that key
and the id, it reveals nothing. As long as nobody was ever erased there is no key, and all writes check just that.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from inference_core.errors import UserErased, VersionConflict
from inference_core.memory.namespaces import ERASED, MIGRATED, QUEUE_ROOT, Namespace
from inference_core.memory.text import encode_json
from inference_core.retrieval.documents import NO_EPOCH, Epoch
from inference_core.stores.backend import Backend, Check, Key, Put, Row, Write

_KEY_ROW: Final[Key] = ((ERASED,), "key")
_STATE: Final = "state"
_NEVER: Final = -1
"""No row is at this version: a Check for it refuses the batch."""
_SKEW_S: Final = 60.0
"""How far the clocks of two machines may differ: a write is later than an erasure if it began this long after it."""
_MOST_KNOWN: Final = 10_000
_JUMP: Final = 1 << 32
_MAKING: Final = threading.Lock()
_NOBODYS: Final = frozenset({ERASED, QUEUE_ROOT, *MIGRATED})


class Fence(NamedTuple):
    """What is known of a user's fence. ``is_up``: the user is being erased; ``since``: in seconds since 1970."""

    version: int = 0
    is_up: bool = False
    since: float = 0.0

    @classmethod
    def of(cls, row: Row | None) -> Fence:
        """What a row says; without one, the user was never erased."""
        return cls(row.version, bool(row.value["up"]), float(row.value["at"])) if row else cls()


class Fences:
    """The fences of the database ``backend``, as far as this process knows them. Methods block; safe for threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = weakref.proxy(backend)
        # Processes that share a file share a clock.
        self._skew_s = 0.0 if backend.files() else _SKEW_S
        self._key: bytes | None = None
        self._epoch: Epoch = NO_EPOCH
        self._known: dict[str, Fence] = {}
        self._lock = threading.Lock()

    def scope(self, root: str) -> Namespace:
        """The namespace whose head changes with each erasure of the user, as far as this process knows."""
        key = self._key
        return (ERASED,) if key is None else _place(key, root)[0]

    def checks(self, roots: Iterable[str]) -> list[Check]:
        """The writes that refuse a batch if one of these users was erased since, or is being erased.

        They follow from what this process knows; the database is not read.
        """
        key = self._key  # another thread may read it anew
        if key is None:
            return [Check(namespace=_KEY_ROW[0], key=_KEY_ROW[1], expected=0)]
        named = [(_place(key, root), self._known.get(root, Fence())) for root in dict.fromkeys(roots)]
        return [
            Check(namespace=namespace, key=key, expected=_NEVER if fence.is_up else fence.version)
            for (namespace, key), fence in named
        ]

    def is_outlived(self, epoch: Epoch) -> bool:
        """Whether the key, and with it all that is known, may have been lost, as the database is of ``epoch`` now."""
        return self._key is not None and epoch not in (NO_EPOCH, self._epoch)

    def read(self, roots: Sequence[str], *, anew: bool = False) -> list[Check]:
        """Like `checks`, after reading the fences from the database, and with ``anew`` the key. Raises StoreError."""
        if self._key is None or anew:
            (row,) = self._backend.get([_KEY_ROW])
            self._epoch, self._key = (row.epoch, bytes.fromhex(row.value["key"])) if row else (NO_EPOCH, None)
        if (key := self._key) is not None:
            rows = self._backend.get([_place(key, root) for root in roots])
            with self._lock:
                if len(self._known) + len(roots) > _MOST_KNOWN:
                    self._known.clear()
                self._known |= {root: Fence.of(row) for root, row in zip(roots, rows, strict=True)}
        return self.checks(roots)

    def renewed(self, checks: Sequence[Check], roots: Sequence[str], began: float) -> list[Check] | None:
        """The checks for another try of a batch that was refused; None if its fences were not the reason.

        ``began``: when the write began, in seconds since 1970. Raises UserErased if that was before the end of an
        erasure, StoreError.
        """
        fresh = self.read(roots)
        fences = [self._known.get(root, Fence()) for root in roots]
        is_changed = fresh != checks
        if any(fence.is_up or (is_changed and began < fence.since + self._skew_s) for fence in fences):
            raise UserErased
        return fresh if is_changed else None

    def put_up(self, root: str) -> None:
        """Keeps out all writers of the user. Raises StoreError."""
        if not self._backend.get([_KEY_ROW])[0]:
            key = {"key": secrets.token_hex(32)}
            # Another process may make one at the same time: then that one counts.
            self._apply(_put(_KEY_ROW, key, expected=0))
        self.read([root], anew=True)
        self._set(root, is_up=True)

    def take_down(self, root: str) -> None:
        """Lets in writes of the user that begin after this. Raises StoreError."""
        self._set(root, is_up=False)

    def since(self, root: str) -> float:
        """When the last erasure of the user from this store ended, in seconds since 1970. Raises StoreError.

        0 if there was none, or it was interrupted and has not ended.
        """
        self.read([root])
        fence = self._known.get(root, Fence())
        return 0.0 if fence.is_up else fence.since

    def _set(self, root: str, *, is_up: bool) -> None:
        self.read([root])
        # The database may lose this version, and get another erasure's: a write that knows this one must not fit that.
        above = self._known.get(root, Fence()).version + secrets.randbelow(_JUMP)
        self._apply(_put(_place(self._key or b"", root), {"up": is_up, "at": time.time()}, above=above))
        self.read([root])

    def _apply(self, write: Write) -> None:
        (outcome,) = self._backend.apply([[write]])
        if isinstance(outcome, Exception) and not isinstance(outcome, VersionConflict):
            raise outcome


_FENCES: Final[weakref.WeakKeyDictionary[Backend, Fences]] = weakref.WeakKeyDictionary()


def fences_of(backend: Backend) -> Fences:
    """The one Fences of this process for ``backend``."""
    with _MAKING:
        found = _FENCES.get(backend)
        if found is None:
            found = _FENCES[backend] = Fences(backend)
        return found


def _place(key: bytes, root: str) -> Key:
    name = hmac.digest(key, root.encode(errors="surrogatepass"), "sha256").hex()[:32]
    return (ERASED, name), _STATE


def _put(key: Key, value: dict[str, Any], expected: int | None = None, above: int = 0) -> Put:
    text = encode_json(value, what="fence")
    return Put(namespace=key[0], key=key[1], value=text, updated_at=datetime.now(UTC), expected=expected, above=above)


def roots_of(batch: Iterable[Write]) -> list[str]:
    """The users' labels under which ``batch`` puts something: no other write brings anything back."""
    roots = dict.fromkeys(one.namespace[0] for one in batch if isinstance(one, Put))
    return [root for root in roots if root not in _NOBODYS]
