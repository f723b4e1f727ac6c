"""Whether a stored memory still holds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from inference_core.memory.fields import moment_field, text_field


def why_invalid(value: Mapping[str, Any], now: datetime) -> str | None:
    """Why the memory of a stored ``value`` does not hold at ``now``; None if it does.

    A scope may also hold an application's own values, which are no memories and count as empty.
    """
    if not text_field(value, "content"):
        return "empty"
    if text_field(value, "superseded_by"):
        return "superseded"
    ends = [moment_field(value, name) for name in ("valid_to", "expires_at") if value.get(name)]
    return "expired" if any(end is not None and end <= now for end in ends) else None
