"""How long the memories of a store live: the defaults of `open_store`, given to memories as they are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, cast

from langgraph.store.base import TTLConfig

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, InvalidInput
from inference_core.memory.namespaces import holds_memories
from inference_core.memory.record import MemoryRecord
from inference_core.memory.secrets import quoted
from inference_core.memory.types import validate_memory_category
from inference_core.stores.backend import Expiry, Key, Put, Touch, Write

FRESH: Final = 0.1
"""A read extends a time to live once this share of it has passed."""
_MAX_MINUTES: Final = 100 * 366 * 24 * 60
_MOST_NOTED: Final = 10_000
_KNOWN: Final = ("default_ttl", "refresh_on_read", "sweep_interval_minutes", "categories")


class MemoryTTLConfig(TTLConfig, total=False):
    """LangGraph's TTLConfig, and minutes for the memories of single ``categories``; None: they do not expire."""

    categories: Mapping[str, float | None]


def expiry_in(now: datetime, minutes: float) -> Expiry:
    """The expiry of what is put ``now`` and lives for so many minutes. Raises InvalidInput."""
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes <= _MAX_MINUTES:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidInput(f"ttl is in minutes, above 0 and at most {_MAX_MINUTES:,}; got {quoted(minutes)}")
    ttl = timedelta(minutes=minutes)
    return Expiry(now + ttl, ttl)


def parse_ttl(text: str) -> MemoryTTLConfig:
    """The defaults that ``text`` names in minutes, such as ``1440``, or ``1440,episodic=60,semantic=none``.

    Raises ConfigurationError.
    """
    config = MemoryTTLConfig()
    categories: dict[str, float | None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        category, separator, number = (piece.strip() for piece in part.rpartition("="))
        try:
            minutes = None if number == "none" else float(number)
        except ValueError as error:
            raise ConfigurationError(f"{quoted(part)} is no time; write minutes: 1440, or 1440,episodic=60") from error
        if separator:
            categories[category] = minutes
        else:
            config["default_ttl"] = minutes
    config["categories"] = categories
    return config


@dataclass(frozen=True, slots=True)
class MemoryLifetimes:
    """How long memories live, by category; ``default`` for the others, None: forever. Safe for several threads."""

    default: timedelta | None
    categories: Mapping[str, timedelta | None]
    extends: bool
    clock: Clock
    _extended: dict[Key, datetime] = field(default_factory=dict[Key, datetime])

    @classmethod
    def of(cls, config: TTLConfig | MemoryTTLConfig, clock: Clock) -> MemoryLifetimes:
        """Those that ``config`` names. Raises ConfigurationError."""
        given = cast("MemoryTTLConfig", config)
        if unknown := [name for name in given if name not in _KNOWN]:
            raise ConfigurationError(f"ttl: unknown {', '.join(unknown)}; known: {', '.join(_KNOWN)}")

        def checked(minutes: float | None) -> timedelta | None:
            return None if minutes is None else expiry_in(clock.now(), minutes).ttl

        try:
            categories = {
                validate_memory_category(name): checked(minutes)
                for name, minutes in (given.get("categories") or {}).items()
            }
            return cls(checked(given.get("default_ttl")), categories, given.get("refresh_on_read", True), clock)
        except InvalidInput as error:
            raise ConfigurationError(f"ttl: {error}") from error

    def stamped(self, batch: Sequence[Write]) -> list[Write]:
        """``batch`` with an expiry for each memory without one, except pinned ones and those with ``expires_at``."""
        stamped = list(batch)
        for at, put in enumerate(batch):
            if not isinstance(put, Put) or put.expiry or not holds_memories(put.namespace):
                continue
            ttl = self.categories.get(put.namespace[1], self.default)
            if ttl is None:
                continue
            value = json.loads(put.value)
            if value.get("pinned") is not True and not value.get("expires_at"):
                stamped[at] = replace(put, expiry=Expiry(self.clock.now() + ttl, ttl))
        return stamped

    def touches(self, records: Iterable[MemoryRecord]) -> list[Touch]:
        """The writes that extend the time of what was read, unless that was done a moment ago."""
        now = self.clock.now()
        made: list[Touch] = []
        if len(self._extended) > _MOST_NOTED:
            self._extended.clear()
        for record in records if self.extends else ():
            key, ttl = (record.namespace, record.id), self.categories.get(record.category.value, self.default)
            last = max(record.updated_at, self._extended.get(key, record.updated_at))
            if ttl is not None and now - last > ttl * FRESH:
                self._extended[key] = now
                made.append(Touch(namespace=record.namespace, key=record.id, version=record.version, at=now + ttl))
        return made
