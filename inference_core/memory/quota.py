"""Quotas: how many memories and bytes a user may have, how many writes a minute, and the same for each of their agents.

Memories and bytes are counted in one row per user, updated in the transaction of each write, so that the limits are
exact with any number of processes. Writes a minute are counted by each process for itself.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from inference_core.errors import ConfigurationError, QuotaExceeded
from inference_core.memory.namespaces import QUOTA, Namespace
from inference_core.memory.secrets import quoted
from inference_core.memory.text import encode_json, text_field

_LOG = logging.getLogger(__name__)
NEARLY: Final = 0.85
"""From this share of a limit on, the save tool's answer and the log say that the memory is nearly full."""
COUNTS: Final = "counts"
_KINDS: Final = ("memories", "bytes")
_MOST_KNOWN: Final = 10_000
_MINUTE_S: Final = 60.0
Changed = tuple[str | None, str | None]
"""A memory's stored value before and after a write; None: there is none."""
Used = tuple[int, int]
"""How many memories there are, and the bytes of their stored values: JSON with text, tags and metadata, no vectors."""
Counts = dict[str, Used]
"""What a user has: for each agent, what it saved; under "", the total."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The maximum for a user, and for each of the user's agents; None: no limit."""

    user: int | None = None
    agent: int | None = None

    @classmethod
    def of(cls, given: int | str | None) -> Limit:
        """The limit that a setting states, such as ``5000`` or ``5000,agent=1000``. Raises ConfigurationError."""
        found: dict[str, int] = {}
        for part in filter(None, map(str.strip, "" if given is None else str(given).split(","))):
            name, _, number = part.rpartition("=")
            if name.strip() not in ("", "agent") or not number.strip().isdecimal() or not int(number):
                raise ConfigurationError(f"{quoted(part)} is no limit; write 5000, or 5000,agent=1000")
            found[name.strip() or "user"] = int(number)
        return cls(**found)

    def for_owner(self, agent: str) -> int | None:
        """The limit of ``agent``, or of the user for ""."""
        return self.agent if agent else self.user


_NO_SIZES: Final = (Limit(), Limit())


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of each user: a number, or a text such as ``"5000,agent=1000"``, which also limits each agent.

    ``max_bytes`` counts memories as they are stored, as JSON with text, tags, metadata, times and source, without
    vectors. Deleted memories do not count. Raises ConfigurationError for a limit that cannot be read.
    """

    max_memories: int | str | None = None
    max_bytes: int | str | None = None
    writes_per_minute: int | str | None = None
    sizes: tuple[Limit, Limit] = field(init=False, repr=False)
    rate: Limit = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", (Limit.of(self.max_memories), Limit.of(self.max_bytes)))
        object.__setattr__(self, "rate", Limit.of(self.writes_per_minute))

    @property
    def has_sizes(self) -> bool:
        """Whether it limits the number or the bytes of memories."""
        return self.sizes != _NO_SIZES

    def check(self, before: Counts, after: Counts) -> None:
        """Raises QuotaExceeded if a write raises a count above its limit. A count above it already may stay or fall."""
        for agent, used in after.items():
            old = before.get(agent, (0, 0))
            for kind, limit, was, now in zip(_KINDS, self.sizes, old, used, strict=True):
                most = limit.for_owner(agent)
                if most is not None and now > max(most, was):
                    raise QuotaExceeded(kind, was, most, agent=agent or None)

    def shares(self, counts: Counts, owners: Iterable[str]) -> Iterator[tuple[float, str]]:
        """How much of each limit the agents ``owners`` ("": the user) have used: as a share, and in words."""
        for owner in owners:
            for kind, limit, used in zip(_KINDS, self.sizes, counts.get(owner, (0, 0)), strict=True):
                if most := limit.for_owner(owner):
                    of_agent = " of this agent" if owner else ""
                    yield used / most, f"{used:,} of {most:,} {kind}{of_agent}"


def counts_of(value: Mapping[str, Any]) -> Counts:
    """The counts in the value of a row."""
    return {str(agent): (int(used[0]), int(used[1])) for agent, used in value["counts"].items()}


def counts_to_json(counts: Counts) -> str:
    """The value of a row with these counts."""
    return encode_json({"counts": {agent: list(used) for agent, used in counts.items() if any(used)}}, what="counts")


def counted(before: Counts, changes: Iterable[Changed]) -> Counts:
    """The counts after ``changes``."""
    after = {"": (0, 0), **before}
    for change in changes:
        for value, sign in zip(change, (-1, 1), strict=True):
            if value:
                agent, size = "", len(value.encode())
                if '"agent_name"' in value:
                    with suppress(ValueError):
                        agent = text_field(json.loads(value), "agent_name") or ""
                for owner in {"", agent}:
                    rows, total = after.get(owner, (0, 0))
                    # What another version of this package, or a process without limits, wrote may not be counted yet.
                    after[owner] = max(0, rows + sign), max(0, total + sign * size)
    return after


class Quotas:
    """An engine's counts for quotas: writes of the last minute by user and agent, and the last known sizes."""

    def __init__(self, quota: Quota | None) -> None:
        self.quota = quota or Quota()
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}
        self._known: dict[str, Counts] = {}
        self._lock = threading.Lock()

    def spend(self, root: str, agent: str | None, now: float) -> None:
        """Counts a write at ``now`` (seconds) of the user with the label ``root``. Raises QuotaExceeded.

        Uses token buckets: each holds the writes of a minute and refills evenly.
        """
        owners = [(owner, most) for owner in {"", agent or ""} if (most := self.quota.rate.for_owner(owner))]
        with self._lock:
            left: dict[tuple[str, str], tuple[float, float]] = {}
            for owner, most in owners:
                tokens, then = self._buckets.get((root, owner), (float(most), now))
                tokens = min(float(most), tokens + max(0.0, now - then) * most / _MINUTE_S)
                if tokens < 1:
                    raise QuotaExceeded("writes a minute", most, most, agent=owner or None)
                left[root, owner] = tokens - 1, now
            if len(self._buckets) > _MOST_KNOWN:
                self._buckets = {key: one for key, one in self._buckets.items() if now - one[1] < _MINUTE_S}
            self._buckets |= left

    def note(self, root: str, counts: Counts) -> None:
        """Remembers a user's counts after a write, and logs a warning when they have just come near a limit."""
        with self._lock:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            was = self._known.get(root)
            self._known[root] = counts
        for agent in counts:
            near = self._nearest(counts, [agent])
            if near and not (was and self._nearest(was, [agent])):
                _LOG.warning("The memory of a user is nearly full: %s", near)

    def warning(self, root: str, agent: str | None) -> str | None:
        """The limit of which the user or ``agent`` has used most, in words; None if less than 85 % of it is used.

        Knows the counts after this process's last write for the user.
        """
        return self._nearest(self._known.get(root, {}), {"", agent or ""})

    def _nearest(self, counts: Counts, owners: Iterable[str]) -> str | None:
        share, words = max(self.quota.shares(counts, owners), default=(0.0, ""))
        return words if share >= NEARLY else None


def counts_place(root: str) -> tuple[Namespace, str]:
    """Namespace and key of the row with the counts of the user with the label ``root``."""
    return (root, QUOTA), COUNTS
