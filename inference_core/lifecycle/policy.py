"""What is to be forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from inference_core.errors import ConfigurationError, InvalidInput
from inference_core.memory.types import MEMORY_TYPES, MemoryCategory, validate_memory_category

if TYPE_CHECKING:
    from inference_core.settings import MemorySettings

EVERY_TYPE: Final = "all"
"""Stands in a budget for all of a user's memories together."""
DEFAULT_BELOW: Final = 0.1
DEFAULT_KEEP_DAYS: Final = 90.0
_MOST_DAYS: Final = 36_500.0
_KINDS: Final = (EVERY_TYPE, *MEMORY_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingPolicy:
    """When a memory of a user is forgotten. Pinned memories never are.

    ``expired``: when its ``expires_at`` has come. ``half_life_days``: when it has faded (`lifecycle.retention`) until
    less than ``below`` of its strength, from 0 to 1, is left, if it is of one of the ``fading`` categories; None:
    never.
    ``max_memories`` and ``max_tokens`` are budgets by memory type, or for all types together under ``"all"``: the
    weakest go first until they are kept. What was forgotten can be restored for ``keep_days``; then the next run
    erases it. Raises InvalidInput.
    """

    expired: bool = True
    half_life_days: float | None = None
    below: float = DEFAULT_BELOW
    fading: tuple[MemoryCategory | str, ...] = (MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC)
    max_memories: Mapping[str, int] = field(default_factory=dict[str, int])
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    keep_days: float = DEFAULT_KEEP_DAYS

    def __post_init__(self) -> None:
        for category in self.fading:
            validate_memory_category(category)
        _check("half_life_days", self.half_life_days is None or 0 < self.half_life_days <= _MOST_DAYS)
        _check("below", 0 <= self.below <= 1)
        _check("keep_days", 0 <= self.keep_days <= _MOST_DAYS)
        for name in ("max_memories", "max_tokens"):
            check_budget(name, getattr(self, name))

    @classmethod
    def from_settings(cls, settings: MemorySettings) -> ForgettingPolicy:
        """The policy that ``settings`` describe. Raises ConfigurationError."""
        try:
            return cls(
                half_life_days=settings.forget_half_life,
                below=settings.forget_below,
                max_memories=parse_budget(settings.forget_max_memories or ""),
                max_tokens=parse_budget(settings.forget_max_tokens or ""),
                keep_days=settings.forgotten_days,
            )
        except InvalidInput as error:
            raise ConfigurationError(f"What to forget is not clear. {error}") from error

    def fades(self, category: MemoryCategory) -> bool:
        """Whether memories of ``category`` fade away."""
        return self.half_life_days is not None and category in self.fading


def check_budget(name: str, budget: Mapping[str, int]) -> None:
    """Raises InvalidInput unless ``budget`` gives whole numbers to memory types or to "all"."""
    for kind, limit in budget.items():
        if kind not in _KINDS:
            raise InvalidInput(f"{name}: {kind!r:.60} is none of {', '.join(_KINDS)}")
        if not _is_count(limit):
            raise InvalidInput(f"{name}: a budget is a whole number from 0, not {limit!r:.60}")


def _is_count(limit: object) -> bool:
    return isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0


def parse_budget(text: str) -> dict[str, int]:
    """The budget that ``text`` names, such as ``5000`` or ``5000,context=200``. Raises InvalidInput."""
    budget: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        kind, separator, number = part.rpartition("=")
        if not number.strip().isdecimal():
            raise InvalidInput(f"{part!r:.60} is no budget; write 5000, or 5000,context=200")
        budget[kind.strip() if separator else EVERY_TYPE] = int(number)
    check_budget("Budget", budget)
    return budget


def _check(name: str, is_sensible: bool) -> None:
    if not is_sensible:
        raise InvalidInput(f"{name} of a forgetting policy makes no sense; see ForgettingPolicy")
