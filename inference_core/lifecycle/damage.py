"""Rows of a store that cannot be read: found, named without a word of their content, and removed.

Reads leave out a damaged row, so that it stops no other. A memory that a newer version of this package wrote is not
damaged, but left out alike, since this version cannot tell what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from inference_core.errors import InvalidInput, SealError
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import decode_label, encode_label, holds_memories
from inference_core.memory.text import encode_json
from inference_core.services.operations.scope import is_known, put_of, record_of
from inference_core.stores.backend import Backend, Delete, Put, Row, Unreadable, Write
from inference_core.stores.governance.journal import Journal

Progress = Callable[[int, int], None]
"""Is called with how many rows are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A row that cannot be read: whose it is, if that is known, where it is, and why.

    ``is_newer``: it is sound, and was written by a newer version. ``keeps_row``: only its index entry is damaged, which
    `mend` rebuilds.
    """

    user_id: str | None
    place: str
    key: str
    reason: str
    is_newer: bool
    keeps_row: bool
    found: Unreadable | Row

    def to_json(self) -> dict[str, Any]:
        """Whose it is, where, and why, as JSON data."""
        return {"user_id": self.user_id, "place": self.place, "key": self.key, "reason": self.reason}

    def __str__(self) -> str:
        owner = "an unknown user" if self.user_id is None else self.user_id
        return f"{owner}, {self.place or 'an unknown place'}, {self.key}: {self.reason}"


def find_damage(backend: Backend, user_ids: Sequence[str] = (), progress: Progress | None = None) -> Iterator[Damage]:
    """What cannot be read of these users or of all; reads every row. Raises InvalidId, StoreError."""
    labels = [encode_label(user_id) for user_id in user_ids]
    rows = chain.from_iterable(map(backend.inspect, labels)) if labels else backend.inspect()
    total = backend.count(backend.namespaces()) if progress else 0
    for done, found in enumerate(rows, 1):
        if progress:
            progress(done, max(total, done))
        if isinstance(found, Unreadable):
            user, place = user_of(found.root), "/".join((found.namespace or ())[1:])
            keeps_row = found.only_index
            yield Damage(user, place, found.key, found.reason, is_newer=False, keeps_row=keeps_row, found=found)
        elif holds_memories(found.namespace) and not is_known(found):
            user, place = user_of(found.namespace[0]), "/".join(found.namespace[1:])
            reason = "a newer version of this package wrote it"
            yield Damage(user, place, found.key, reason, is_newer=True, keeps_row=False, found=found)


def mend(backend: Backend, damages: Iterable[Damage]) -> int:
    """Removes ``damages``; of rows of which only the index entry is damaged, rebuilds that.

    Returns how many were still as they were found. Raises Held for a user with a legal hold, StoreError.
    """
    journal, cause = Journal(backend), Cause(at=datetime.now(UTC), operation="repair")
    mended, backend = 0, journal.backend
    for damage in damages:
        found = damage.found
        if isinstance(found, Row):
            write: Write = Delete(namespace=found.namespace, key=found.key, expected=found.version)
        elif found.only_index and found.namespace and (row := backend.get([(found.namespace, found.key)])[0]):
            write = reindexed(backend, row)
        else:
            mended += journal.discard([found], cause)
            continue
        (outcome,) = journal.apply([[write]], cause)
        mended += isinstance(outcome, list)
    return mended


def reindexed(backend: Backend, row: Row) -> Put:
    """``row`` with a text that waits for its vector: the one that was indexed, or a memory's if that is damaged too."""
    change = None
    with suppress(SealError):  # of what was sealed, no part of a damaged text can be read
        change = next((one for one in backend.changes(row.namespace, row.seq - 1) if one.key == row.key), None)
    if change and change.document:
        document, kind = change.document._replace(model="", vector=None, tokens=None), change.kind
    elif holds_memories(row.namespace) and is_known(row):
        put = put_of(record_of(row))
        document, kind = put.document, put.kind
    else:
        document, kind = None, ""
    return Put(
        namespace=row.namespace,
        key=row.key,
        value=encode_json(row.value, what="value"),
        document=document,
        kind=kind,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expected=row.version,
        expiry=row.expiry,
    )


def user_of(label: str | None) -> str | None:
    """The user with this first label of a namespace; the label itself if no user has it."""
    try:
        return None if label is None else decode_label(label)
    except (InvalidInput, ValueError):
        return label
