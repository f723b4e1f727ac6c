"""Cursor: a place in a list of rows, from which the list goes on whatever was added or removed meanwhile."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import is_text
from inference_core.stores.codec import from_micros, pack_namespace, to_micros

if TYPE_CHECKING:
    from inference_core.stores.backend import Row

_MAX_LENGTH: Final = 16_384
Place = tuple[int, str, str]
"""What lists are sorted by: the newest creation first, ties by key, then by the packed namespace."""


class Cursor(NamedTuple):
    """The row at which a page ended; it need not be there any more."""

    created_at: datetime
    key: str
    namespace: Namespace

    @classmethod
    def of(cls, row: Row) -> Cursor:
        """The cursor after which the list goes on behind ``row``."""
        return cls(row.created_at, row.key, row.namespace)

    @property
    def place(self) -> Place:
        """Where it stands in a list."""
        return -to_micros(self.created_at), self.key, pack_namespace(self.namespace)

    def encode(self) -> str:
        """The cursor as text for a URL, which only `decode` needs to understand."""
        micros = to_micros(self.created_at)
        return urlsafe_b64encode(json.dumps([micros, self.key, *self.namespace]).encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """The cursor of `encode`. Raises InvalidInput for anything else."""
        with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            micros, key, *namespace = json.loads(urlsafe_b64decode(text[:_MAX_LENGTH] + "=" * (-len(text) % 4)))
            if type(micros) is int and namespace and all(map(is_text, [key, *namespace])):
                return cls(from_micros(micros), key, tuple(namespace))
        raise InvalidInput(f"Not the cursor of a page: {text!r:.80}")


def place_of(row: Row) -> Place:
    """Where ``row`` stands in a list."""
    return Cursor.of(row).place


def cut(rows: Iterable[Row], limit: int, after: Cursor | None, offset: int = 0) -> list[Row]:
    """The page of ``rows`` in any order: for what has to be sorted here."""
    start = after and after.place
    places = ((place_of(row), row) for row in rows)
    behind = [(place, row) for place, row in places if start is None or place > start]
    behind.sort(key=lambda one: one[0])
    return [row for _, row in behind[offset : offset + limit]]
