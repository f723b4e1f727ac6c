"""Secrets that a store holds from before it redacted them: found by kind and id, and redacted in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from inference_core.lifecycle.damage import reindexed, user_of
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import encode_label, holds_memories, is_item
from inference_core.memory.redaction import Guard
from inference_core.memory.text import encode_json
from inference_core.services.operations.scope import is_known, put_of, record_of
from inference_core.stores.backend import Backend, Row
from inference_core.stores.governance.journal import Journal
from inference_core.stores.governance.redacting import redacted

Progress = Callable[[int, int], None]
"""Is called with how many rows are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """A row that holds secrets: whose it is, where it is, and their kinds; never the secrets.

    ``is_item``: an application's own item, which `redact` leaves as it is.
    """

    user_id: str | None
    place: str
    key: str
    kinds: tuple[str, ...]
    is_item: bool
    found: Row

    def to_json(self) -> dict[str, Any]:
        """All but the row, as JSON data."""
        fields = {"user_id": self.user_id, "place": self.place, "key": self.key}
        return {**fields, "kinds": list(self.kinds), "is_item": self.is_item}

    def __str__(self) -> str:
        what = f"{', '.join(self.kinds)}{' (an item of your application)' if self.is_item else ''}"
        return f"{self.user_id}, {self.place}, {self.key}: {what}"


def find_secrets(
    backend: Backend, guard: Guard, user_ids: Sequence[str] = (), progress: Progress | None = None
) -> Iterator[Exposed]:
    """The rows of these users, or of all, with what ``guard`` finds; reads every row. Raises InvalidId, StoreError."""
    labels = [encode_label(user_id) for user_id in user_ids]
    rows = chain.from_iterable(map(backend.inspect, labels)) if labels else backend.inspect()
    total = backend.count(backend.namespaces()) if progress else 0
    for done, found in enumerate(rows, 1):
        if progress:
            progress(done, max(total, done))
        if isinstance(found, Row) and (kinds := guard.kinds(guard.told(found.value))):
            label, *place = found.namespace
            item = is_item(found.namespace)
            yield Exposed(user_of(label), "/".join(place), found.key, kinds, is_item=item, found=found)


def redact(backend: Backend, guard: Guard, exposed: Iterable[Exposed]) -> int:
    """Redacts ``exposed`` in place, as a new version; items of applications stay. How many were as they were found.

    Texts that change lose their vectors; whoever opens the store next with its model makes them anew. Raises
    StoreError.
    """
    done, journal = 0, Journal(backend)
    for one in exposed:
        if one.is_item:
            continue
        row = one.found
        if holds_memories(row.namespace) and is_known(row):
            put = put_of(record_of(row), expected=row.version)
            put = replace(put, value=encode_json(row.value, what="value"), expiry=row.expiry)
        else:
            put = reindexed(backend, row)
        (outcome,) = journal.apply([[redacted(guard, put)]], Cause(at=datetime.now(UTC), operation="redact"))
        done += isinstance(outcome, list)
    return done
