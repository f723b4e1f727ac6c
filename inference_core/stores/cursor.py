"""Pages of a list of rows: what is asked for, and the place from which the list goes on."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
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
    """The row at which a page ended; the list goes on behind it whatever was added or removed meanwhile."""

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


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which rows a list wants: of exactly ``scopes`` (and of ``kinds``) behind ``after``, the newest creation first.

    ``offset`` skips rows, for a list that is read in one go.
    """

    scopes: Sequence[Namespace]
    _: KW_ONLY
    kinds: frozenset[str] | None = None
    limit: int
    after: Cursor | None = None
    offset: int = 0


def place_of(row: Row) -> Place:
    """Where ``row`` stands in a list."""
    return Cursor.of(row).place


def cut(rows: Iterable[Row], request: PageRequest) -> list[Row]:
    """The page that ``request`` asks for, of rows in any order: for what has to be sorted here."""
    start = request.after and request.after.place
    places = ((place_of(row), row) for row in rows)
    behind = [(place, row) for place, row in places if start is None or place > start]
    behind.sort(key=lambda one: one[0])
    return [row for _, row in behind[request.offset : request.offset + request.limit]]
