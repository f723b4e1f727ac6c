"""Which memories hold now, and which held at an instant in the past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_core.memory.record import why_invalid

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    """So many days from now."""
    return NOW + timedelta(days=number)


def value(**fields: Any) -> dict[str, Any]:
    """A stored memory of ten days ago."""
    given = {"content": "Lives in Lisbon", "created_at": day(-10), **fields}
    return {name: one.isoformat() if isinstance(one, datetime) else one for name, one in given.items()}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"content": ""}, "empty"),
        ({"content": 7}, "empty"),
        ({"superseded_by": "other"}, "superseded"),
        ({"superseded_by": ""}, None),
        ({"valid_to": NOW}, "expired"),
        ({"valid_to": day(1)}, None),
        ({"valid_to": "nonsense"}, None),
        ({"expires_at": day(-1)}, "expired"),
        ({"expires_at": day(1), "valid_to": day(-1)}, "expired"),
        ({"expires_at": day(1)}, None),
        ({"valid_from": day(1)}, None),
    ],
    ids=range(12),
)
def test_what_holds_now(fields: dict[str, Any], reason: str | None):
    assert why_invalid(value(**fields), NOW) == reason


@pytest.mark.parametrize(
    ("fields", "at", "reason"),
    [
        ({}, day(-5), None),
        ({}, day(-10), None),
        ({}, day(-11), "later"),
        ({"valid_from": day(-20)}, day(-11), None),
        ({"valid_from": day(-3)}, day(-5), "later"),
        ({"content": ""}, day(-5), "empty"),
        ({"valid_to": day(-3), "superseded_by": "other"}, day(-5), None),
        ({"valid_to": day(-3), "superseded_by": "other"}, day(-3), "over"),
        ({"valid_to": day(-3)}, day(-1), "over"),
        ({"valid_to": day(3)}, day(-1), None),
        ({"superseded_by": "other"}, day(-5), "superseded"),
        ({"expires_at": day(-1)}, day(-5), "expired"),
        ({"expires_at": day(1)}, day(-5), None),
        ({"created_at": None}, day(-99), None),
        ({"valid_to": day(-3)}, day(5), "over"),
    ],
    ids=range(15),
)
def test_what_held_then(fields: dict[str, Any], at: datetime, reason: str | None):
    assert why_invalid(value(**fields), NOW, at) == reason
