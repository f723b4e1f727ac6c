"""What of a store cannot be read: found, named without a word of its content, and removed.

A row that is damaged is left out everywhere, so that it stops no other; here it is looked for. A memory that a newer
version of this package has written is not damaged, and left out alike: this version cannot tell what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import decode_label, encode_label, holds_memories
from inference_core.memory.text import encode_json
from inference_core.services.operations.scope import is_known, put_of, record_of
from inference_core.stores.backend import Backend, Delete, Put, Row, Unreadable, Write

Progress = Callable[[int, int], None]
"""Hears how many rows are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A row that cannot be read: whose it is, if that is known, where it stands, and why.

    ``is_newer``: it is sound, and was written by a newer version. ``keeps_row``: only what indexes know of it is
    damaged, and is made anew.
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
    """What of these users or of all cannot be read: every row is looked at. Raises InvalidId, StoreError."""
    labels = [encode_label(user_id) for user_id in user_ids]
    rows = chain.from_iterable(map(backend.inspect, labels)) if labels else backend.inspect()
    total = backend.count(backend.namespaces()) if progress else 0
    for done, found in enumerate(rows, 1):
        if progress:
            progress(done, max(total, done))
        if damage := _damage(found):
            yield damage


def mend(backend: Backend, damages: Iterable[Damage]) -> int:
    """Removes ``damages``, and makes anew what indexes know of rows of which only that is damaged.

    How many were still as they were found. Raises StoreError.
    """
    return sum(_mended(backend, one.found) for one in damages)


def _mended(backend: Backend, found: Unreadable | Row) -> int:
    if isinstance(found, Row):
        write: Write = Delete(namespace=found.namespace, key=found.key, expected=found.version)
    elif found.only_index and found.namespace and (row := backend.get([(found.namespace, found.key)])[0]):
        write = _anew(backend, row)
    else:
        return backend.discard([found])
    (outcome,) = backend.apply([[write]])
    return int(isinstance(outcome, list))


def _anew(backend: Backend, row: Row) -> Put:
    """``row`` with a text that waits for its vector: the one that was indexed, or a memory's if that is damaged too."""
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


def _damage(found: Row | Unreadable) -> Damage | None:
    if isinstance(found, Unreadable):
        place = "/".join(found.namespace[1:]) if found.namespace else ""
        keeps = found.only_index
        return Damage(_user(found.root), place, found.key, found.reason, is_newer=False, keeps_row=keeps, found=found)
    if not holds_memories(found.namespace) or is_known(found):
        return None
    place, reason = "/".join(found.namespace[1:]), "a newer version of this package wrote it"
    return Damage(_user(found.namespace[0]), place, found.key, reason, is_newer=True, keeps_row=False, found=found)


def _user(label: str | None) -> str | None:
    try:
        return None if label is None else decode_label(label)
    except (InvalidInput, ValueError):
        return label
