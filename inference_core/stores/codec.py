"""Values, namespaces and instants as databases hold them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from inference_core.clock import aware
from inference_core.errors import InvalidInput, UnsupportedSchema
from inference_core.memory.namespaces import Namespace
from inference_core.memory.secrets import quoted
from inference_core.memory.text import is_text
from inference_core.stores.backend import Expiry

if TYPE_CHECKING:
    from inference_core.stores.backend import Key, Row


MIN_MICROS: Final = -62_135_596_800_000_000
MAX_MICROS: Final = 253_402_300_799_999_999
MIN_SECONDS: Final = MIN_MICROS / 1e6
MAX_SECONDS: Final = MAX_MICROS / 1e6
"""The first and the last instant of the calendar, as `to_micros` and in seconds since 1970."""
UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What unpacking damaged data raises. The message may quote the data: see `fault_of`."""
SEALED: Final = b"\x00ics1"
"""The prefix of every field that SealedBackend has sealed; packed vectors begin with a number of passages, not 0."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970, exact."""
    return (aware(moment) - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant of ``to_micros``."""
    return _EPOCH + timedelta(microseconds=micros)


def near_micros(micros: int) -> datetime:
    """The instant of ``to_micros``; a damaged one outside of the calendar becomes its nearer end."""
    return from_micros(min(max(micros, MIN_MICROS), MAX_MICROS))


def expiry_micros(expiry: Expiry | None) -> tuple[int | None, int | None]:
    """When a row ends, as `to_micros`, and its time to live in microseconds; None twice if it does not expire."""
    return (to_micros(expiry.at), expiry.ttl // _MICROSECOND) if expiry else (None, None)


def expiry_of(at: int | None, ttl: int | None) -> Expiry | None:
    """The inverse of `expiry_micros`."""
    return None if at is None or ttl is None else Expiry(from_micros(at), timedelta(microseconds=ttl))


@lru_cache(maxsize=4_096)
def pack_namespace(namespace: Namespace) -> str:
    """A namespace as text; different namespaces give different texts."""
    return _COMPACT.encode(namespace)


def by_namespace(keys: Iterable[Key]) -> dict[Namespace, list[str]]:
    """The distinct ``keys`` of each namespace, in their order."""
    found: dict[Namespace, dict[str, None]] = {}
    for namespace, key in keys:
        found.setdefault(namespace, {})[key] = None
    return {namespace: list(names) for namespace, names in found.items()}


@lru_cache(maxsize=4_096)
def unpack_namespace(text: str) -> Namespace:
    """The namespace of ``pack_namespace``. Raises one of ``UNREADABLE``."""
    labels = cast("list[object]", json.loads(text))
    if type(labels) is not list or not labels or not all(type(label) is str for label in labels):
        raise WrongType
    return tuple(map(str, labels))


def namespace_of(packed: object) -> Namespace | None:
    """The namespace that was packed; None if it cannot be parsed."""
    try:
        return unpack_namespace(packed) if type(packed) is str else None
    except UNREADABLE:
        return None


def unpack_value(text: str) -> dict[str, Any]:
    """A value that was stored as JSON. Raises one of ``UNREADABLE``."""
    value: dict[str, Any] = json.loads(text)
    if type(value) is not dict:
        raise WrongType
    return value


def is_vector(packed: bytes) -> bool:
    """Whether ``packed`` can be unpacked as the vectors of a text, or is sealed."""
    if packed.startswith(SEALED):
        return True
    from inference_core.retrieval.vectors import is_packed  # noqa: PLC0415 - numpy is slow to import

    return is_packed(packed)


def check_schema(found: int, known: int) -> None:
    """Raises UnsupportedSchema if a store has a later schema than the one that this package knows."""
    if found > known:
        raise UnsupportedSchema(
            f"This store has schema version {found}; this package knows up to {known}. Update the package"
        )


class WrongType(TypeError):
    """A stored value does not have the type that belongs in its place."""


def fault_of(error: Exception) -> str:
    """Why stored data could not be unpacked, in words of our own: the message of ``error`` may quote the data."""
    match error:
        case UnicodeError():
            return "a text is not UTF-8"
        case json.JSONDecodeError():
            return "a value is not JSON"
        case OverflowError():
            return "a time lies outside of the calendar"
        case RecursionError():
            return "a value is nested too deeply"
        case TypeError() | LookupError() | AttributeError():
            return "a value has a wrong type"
        case _:
            return "a value cannot be unpacked"


# Pages of a list of rows: the request for a page, and the cursor behind which the list goes on.

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
        """The cursor for the rows behind ``row``."""
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
        raise InvalidInput(f"Not the cursor of a page: {quoted(text)}")


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
