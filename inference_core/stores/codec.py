"""Values, namespaces and instants as databases hold them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from inference_core.clock import aware
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Expiry

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970, exact."""
    return (aware(moment) - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant of ``to_micros``."""
    return _EPOCH + timedelta(microseconds=micros)


def micros_of(duration: timedelta) -> int:
    """Microseconds of a duration."""
    return duration // _MICROSECOND


def expiry_of(at: int | None, ttl: int | None) -> Expiry | None:
    """The expiry that was stored as `to_micros` and `micros_of`."""
    return None if at is None or ttl is None else Expiry(from_micros(at), timedelta(microseconds=ttl))


def pack_namespace(namespace: Namespace) -> str:
    """A namespace as text; different namespaces give different texts."""
    return _COMPACT.encode(namespace)


@lru_cache(maxsize=4_096)
def unpack_namespace(text: str) -> Namespace:
    """The namespace of ``pack_namespace``."""
    return tuple(json.loads(text))


def unpack_value(text: str) -> dict[str, Any]:
    """A value that was stored as JSON."""
    return json.loads(text)
