"""Whether a stored memory still holds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from inference_core.memory.fields import moment_field, text_field
from inference_core.memory.record import is_of_known_schema


def why_invalid(value: Mapping[str, Any], now: datetime, as_of: datetime | None = None) -> str | None:
    """Why a stored memory does not hold at ``now``, or did not at ``as_of``; None if it does, or did.

    A namespace may also hold an application's own values, which count as empty, and memories that a newer version of
    this package wrote.
    """
    if not is_of_known_schema(value):
        return "newer"
    if not text_field(value, "content"):
        return "empty"
    is_superseded = bool(text_field(value, "superseded_by"))
    end, expiry = moment_field(value, "valid_to"), moment_field(value, "expires_at")
    if as_of is None:
        if is_superseded:
            return "superseded"
        return "expired" if any(moment is not None and moment <= now for moment in (end, expiry)) else None
    start = moment_field(value, "valid_from") or moment_field(value, "created_at")
    if start is not None and start > as_of:
        return "later"
    if end is None and is_superseded:
        return "superseded"
    if end is not None and end <= as_of:
        return "over"
    is_expired = expiry is not None and expiry <= now  # by now: what is gone cannot be asked for any more
    return "expired" if is_expired else None
