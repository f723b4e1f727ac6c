"""Fields of stored values, read with patience: a value of another kind than expected counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from inference_core.clock import aware


def text_field(value: Mapping[str, Any], name: str) -> str | None:
    """A text."""
    found = value.get(name)
    return found if isinstance(found, str) else None


def texts_field(value: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts of a list."""
    found = value.get(name)
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType]


def mapping_field(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping."""
    found = value.get(name)
    return dict(found) if isinstance(found, Mapping) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def copied(value: Any) -> Any:
    """A copy of a JSON value that shares nothing with it, as rows are kept and given to several callers."""
    if isinstance(value, dict):
        # Most parts are texts, and most of the time goes into calls.
        parts = cast("dict[str, Any]", value).items()
        return {name: part if type(part) is str else copied(part) for name, part in parts}
    return list(map(copied, cast("list[Any]", value))) if isinstance(value, list) else value


def share_field(value: Mapping[str, Any], name: str, default: float) -> float:
    """A number from 0 to 1."""
    found = value.get(name)
    is_share = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= 1
    return float(found) if is_share and found is not None else default


def moment_field(value: Mapping[str, Any], name: str) -> datetime | None:
    """An instant in ISO 8601, in UTC; a naive one is taken as UTC."""
    found = value.get(name)
    try:
        return aware(datetime.fromisoformat(found)) if isinstance(found, str) else None
    except (ValueError, OverflowError):
        return None
