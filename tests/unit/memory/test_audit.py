"""The value of an audit event: all that is known of it comes back, and empty fields take no room."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from inference_core.memory.audit import Actor, AuditEvent

AT = datetime(2026, 1, 15, tzinfo=UTC)
ADA = Actor(kind="user", id="ada")


@pytest.mark.parametrize(
    "known", [{}, {"reason": "asked"}, {"job": "j"}, {"undone": ("e1", "e2")}, {"reason": "r", "job": "j"}], ids=str
)
def test_an_event_survives_its_value(known: dict[str, Any]):
    event = replace(AuditEvent(id="e", at=AT, operation="save", actor=ADA, changes=()), **known)
    value = event.to_value()
    assert value.keys() == {"actor", "at", "changes", "operation", *known}
    assert [*value] == sorted(value)
    assert AuditEvent.from_value("e", value) == event
