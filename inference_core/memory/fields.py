"""Typed reads of stored JSON values: a field of an unexpected type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from inference_core.clock import aware


def text_field(value: Mapping[str, Any], name: str) -> str | None:
    """The field if it is a string, else None."""
    found = value.get(name)
    return found if isinstance(found, str) else None


def texts_field(value: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The strings in a list field."""
    found = value.get(name)
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType]


def mapping_field(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A copy of a mapping field, else an empty dict."""
    found = value.get(name)
    return dict(found) if isinstance(found, Mapping) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def copied(value: Any) -> Any:
    """A deep copy of a JSON value: rows are cached and handed to several callers."""
    if isinstance(value, dict):
        # Most parts are strings, and the calls take most of the time.
        parts = cast("dict[str, Any]", value).items()
        return {name: part if type(part) is str else copied(part) for name, part in parts}
    return list(map(copied, cast("list[Any]", value))) if isinstance(value, list) else value


def share_field(value: Mapping[str, Any], name: str, default: float) -> float:
    """The field if it is a number from 0 to 1, else ``default``."""
    found = value.get(name)
    is_share = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= 1
    return float(found) if is_share and found is not None else default


def moment_field(value: Mapping[str, Any], name: str) -> datetime | None:
    """An ISO 8601 instant, converted to UTC; a naive one is taken as UTC."""
    found = value.get(name)
    try:
        return aware(datetime.fromisoformat(found)) if isinstance(found, str) else None
    except (ValueError, OverflowError):
        return None
