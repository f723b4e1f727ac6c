"""The documents of scopes: each one's head, and which writer has it at the moment."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pymongo.errors import DuplicateKeyError

from inference_core.errors import StoreBusy, WriteUnknown

LEASE_S: Final = 30.0
"""A writer that does not come back within this time loses its scopes; clocks of writers must agree better than that."""
_WAIT_S: Final = 10.0
_PAUSE_S: Final = 0.005


class Scopes:
    """Heads of scopes, in the collections ``scopes`` and ``rows``."""

    def __init__(self, scopes: Any, rows: Any) -> None:
        self._scopes = scopes
        self._rows = rows
        self._known: set[str] = set()

    def heads(self, names: Sequence[str]) -> dict[str, int]:
        """The number of the last write of each scope that everybody may see."""
        return {found["_id"]: found["head"] for found in self._scopes.find({"_id": {"$in": list(names)}})}

    def prepare(self, names: Sequence[str]) -> None:
        """Makes the documents that are missing. Call it outside of a transaction."""
        for name in set(names) - self._known:
            with suppress(DuplicateKeyError):  # somebody else was quicker
                self._scopes.update_one({"_id": name}, {"$setOnInsert": {"head": 0, "until": 0.0}}, upsert=True)
            self._known.add(name)

    @contextmanager
    def taken(self, names: Sequence[str], session: Any) -> Generator[dict[str, int]]:
        """Takes the scopes for this writer; their last numbers, which become their heads if the writer changes them.

        Raises StoreBusy if another writer does not give one back, WriteUnknown if one was lost meanwhile.
        """
        writer = secrets.token_hex(8)
        heads: dict[str, int] = {}
        published: dict[str, int] = {}
        lost = False
        try:
            for name in sorted(names):  # everybody in one order, so that nobody waits in a circle
                published[name] = self._take(name, writer, session)
                # Also the numbers of rows that a writer left above the head when it died.
                newest = self._rows.find({"scope": name}, {"seq": 1}, session=session).sort("seq", -1).limit(1)
                heads[name] = max(published[name], *(found["seq"] for found in newest), 0)
            yield heads
            published = heads
        finally:
            for name, head in published.items():
                ours, free = {"_id": name, "writer": writer}, {"$set": {"head": head, "until": 0.0}}
                lost |= not self._scopes.update_one(ours, free, session=session).matched_count
        if lost:
            raise WriteUnknown("Another writer has taken over, because this one took too long; retry under the same id")

    def _take(self, name: str, writer: str, session: Any) -> int:
        """Waits for the scope, whose head it returns."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            now = time.time()
            changes = {"$set": {"writer": writer, "until": now + LEASE_S}}
            found = self._scopes.find_one_and_update({"_id": name, "until": {"$lt": now}}, changes, session=session)
            if found:
                return found["head"]
            if time.monotonic() > deadline:
                raise StoreBusy("Another writer does not give the scope back; try again later")
            time.sleep(_PAUSE_S)
