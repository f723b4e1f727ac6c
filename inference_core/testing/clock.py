"""A clock that moves only when a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from inference_core.clock import aware


class FrozenClock:
    """A Clock that stands at ``moment`` (a naive one is taken as UTC)."""

    def __init__(self, moment: datetime = datetime(2026, 1, 15, 12, tzinfo=UTC)) -> None:
        self._moment = aware(moment)

    def now(self) -> datetime:
        """The instant at which the clock stands."""
        return self._moment

    def advance(self, step: timedelta) -> None:
        """Moves the clock, also backwards."""
        self._moment += step

    def set(self, moment: datetime) -> None:
        """Sets the clock."""
        self._moment = aware(moment)
