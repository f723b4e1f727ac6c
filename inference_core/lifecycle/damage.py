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
from inference_core.memory.record import is_of_known_schema
from inference_core.stores.backend import Backend, Delete, Row, Unreadable

Progress = Callable[[int, int], None]
"""Hears how many rows are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A row that cannot be read: whose it is, if that is known, where it stands, and why.

    ``is_newer``: it is sound, and was written by a newer version. ``keeps_row``: only its vector is damaged, which is
    made anew.
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
    """Removes ``damages``; how many were still there as they were found. Raises StoreError."""
    done = 0
    for one in damages:
        if isinstance(one.found, Unreadable):
            done += backend.discard([one.found])
        else:
            (outcome,) = backend.apply(
                [[Delete(namespace=one.found.namespace, key=one.found.key, expected=one.found.version)]]
            )
            done += isinstance(outcome, list)
    return done


def _damage(found: Row | Unreadable) -> Damage | None:
    if isinstance(found, Unreadable):
        place = "/".join(found.namespace[1:]) if found.namespace else ""
        keeps = found.only_vector
        return Damage(_user(found.root), place, found.key, found.reason, is_newer=False, keeps_row=keeps, found=found)
    if not holds_memories(found.namespace) or is_of_known_schema(found.value):
        return None
    place, reason = "/".join(found.namespace[1:]), "a newer version of this package wrote it"
    return Damage(_user(found.namespace[0]), place, found.key, reason, is_newer=True, keeps_row=False, found=found)


def _user(label: str | None) -> str | None:
    try:
        return None if label is None else decode_label(label)
    except (InvalidInput, ValueError):
        return label
