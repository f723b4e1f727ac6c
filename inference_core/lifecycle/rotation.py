"""The keys of an encrypted store: what has become of them, and new ones for all rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference_core.memory.namespaces import ROOTS, encode_label
from inference_core.stores.encryption.sealed import GRACE_S, OF_STORE, SealedBackend

Progress = Callable[[int, int], None]
"""Is called with how many rows are done, and of how many."""


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """How many users a store has rows of, for how many of these all keys were destroyed, and a rotation has begun."""

    users: int
    destroyed: int
    rotating: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """How many labels (users, and the store's own) have a new key, and how many rows were sealed anew.

    ``is_resumed``: only those were done with which an interrupted rotation had begun.
    """

    labels: int
    rows: int
    is_resumed: bool


def key_status(backend: SealedBackend, user_ids: Sequence[str] = ()) -> KeyStatus:
    """The keys of these users or of all. Raises InvalidId, StoreError."""
    live = [_live(backend, label) for label in _labels(backend, user_ids) if label not in ROOTS]
    return KeyStatus(len(live), live.count(0), sum(count > 1 for count in live))


def rotate(
    backend: SealedBackend,
    user_ids: Sequence[str] = (),
    progress: Progress | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Rotation:
    """Seals all rows of these users or of all with new keys, then destroys the old ones.

    May be interrupted: the next call finishes what was begun. May run beside writers, for whose last writes with the
    old keys it waits a minute. Rows change neither version nor times. Raises InvalidId, SealError, StoreError.
    """
    ring, started = backend.keyring, time.monotonic()
    labels = [*_labels(backend, user_ids), *([] if user_ids else [OF_STORE])]
    begun = [label for label in labels if _live(backend, label) > 1]
    labels = begun or [label for label in labels if _live(backend, label)]
    for label in [] if begun else labels:
        ring.rotate(label)
    total = backend.count([scope for label in labels for scope in backend.namespaces((label,))])
    seen = 0

    def advance(count: int) -> None:
        nonlocal seen
        seen += count
        if progress:
            progress(min(seen, total), total)

    rows = sum(backend.reseal(label, advance) for label in labels)
    if labels:
        wait(max(0.0, started + GRACE_S - time.monotonic()))
    for label in labels:
        rows += backend.reseal(label)
        ring.destroy(label, keep=1)
    return Rotation(len(labels), rows, bool(begun))


def _labels(backend: SealedBackend, user_ids: Sequence[str]) -> list[str]:
    return [encode_label(user) for user in user_ids] or sorted({scope[0] for scope in backend.inner.namespaces()})


def _live(backend: SealedBackend, label: str) -> int:
    return sum(key.secret is not None for key in backend.keyring.get(label))
