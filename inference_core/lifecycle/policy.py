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
"""The key of a budget for all of a user's memories together."""
DEFAULT_BELOW: Final = 0.1
DEFAULT_KEEP_DAYS: Final = 90.0
_MOST_DAYS: Final = 36_500.0
_KINDS: Final = (EVERY_TYPE, *MEMORY_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingPolicy:
    """When a user's memories are forgotten. Pinned memories never are.

    ``expired``: once its ``expires_at`` has come. ``half_life_days``: once less than ``below`` (0 to 1) of its strength
    is left, for memories of the ``fading`` categories; None: never. ``max_memories`` and ``max_tokens`` are budgets by
    memory type, or for all types under ``"all"``: the weakest are forgotten until they are kept. Forgotten memories can
    be restored for ``keep_days``, then the next run erases them. Raises InvalidInput.
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
        if self.half_life_days is not None and not 0 < self.half_life_days <= _MOST_DAYS:
            raise InvalidInput(f"half_life_days is more than 0 and at most {_MOST_DAYS:g}, not {self.half_life_days}")
        if not 0 <= self.below <= 1:
            raise InvalidInput(f"below is from 0 to 1, not {self.below}")
        if not 0 <= self.keep_days <= _MOST_DAYS:
            raise InvalidInput(f"keep_days is from 0 to {_MOST_DAYS:g}, not {self.keep_days}")
        check_budget("max_memories", self.max_memories)
        check_budget("max_tokens", self.max_tokens)

    @classmethod
    def from_settings(cls, settings: MemorySettings) -> ForgettingPolicy:
        """The policy of ``settings``. Raises ConfigurationError."""
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
        """Whether memories of ``category`` fade."""
        return self.half_life_days is not None and category in self.fading


def check_budget(name: str, budget: Mapping[str, object]) -> None:
    """Raises InvalidInput unless ``budget`` maps memory types or "all" to whole numbers."""
    for kind, limit in budget.items():
        if kind not in _KINDS:
            raise InvalidInput(f"{name}: {kind!r:.60} is none of {', '.join(_KINDS)}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise InvalidInput(f"{name}: a budget is a whole number from 0, not {limit!r:.60}")


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
