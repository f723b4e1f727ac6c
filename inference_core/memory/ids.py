"""New memory ids: 128 random bits in hex, drawn from the system's generator in batches, as each draw is slow."""

from __future__ import annotations

import os
import threading
from typing import Final

_BYTES: Final = 16
_PORTION: Final = 256
_lock = threading.Lock()
_waiting: list[str] = []


def new_id() -> str:
    """A new id, unique across processes and forks."""
    with _lock:
        if not _waiting:
            drawn = os.urandom(_BYTES * _PORTION)
            _waiting.extend(drawn[at : at + _BYTES].hex() for at in range(0, len(drawn), _BYTES))
        return _waiting.pop()


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a lock that was held at the fork stays held in the child
    _lock = threading.Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
