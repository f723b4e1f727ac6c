"""Whether a stored memory still holds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from inference_core.memory.fields import moment_field, text_field
from inference_core.memory.record import is_of_known_schema


def why_invalid(value: Mapping[str, Any], now: datetime, as_of: datetime | None = None) -> str | None:
    """Why the memory of a stored ``value`` does not hold at ``now``, or did not at ``as_of``; None if it does or did.

    A scope may also hold an application's own values, which are no memories and count as empty, and memories that a
    newer version of this package wrote.
    """
    if not is_of_known_schema(value):
        return "newer"
    return _why_now(value, now) if as_of is None else _why_then(value, now, as_of)


def _why_now(value: Mapping[str, Any], now: datetime) -> str | None:
    if not text_field(value, "content"):
        return "empty"
    if text_field(value, "superseded_by"):
        return "superseded"
    ends = [moment_field(value, name) for name in ("valid_to", "expires_at") if value.get(name)]
    return "expired" if any(end is not None and end <= now for end in ends) else None


def _why_then(value: Mapping[str, Any], now: datetime, as_of: datetime) -> str | None:
    """What is expired by now is gone, whatever is asked; what was superseded held until its end."""
    if not text_field(value, "content"):
        return "empty"
    start = moment_field(value, "valid_from") or moment_field(value, "created_at")
    if start is not None and start > as_of:
        return "later"
    end, expiry = moment_field(value, "valid_to"), moment_field(value, "expires_at")
    if end is None and text_field(value, "superseded_by"):
        return "superseded"
    if end is not None and end <= as_of:
        return "over"
    return "expired" if expiry is not None and expiry <= now else None
