"""What a newer statement does to an older one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from inference_core.slots.reading import read
from inference_core.slots.slot import ANY, Comparison, Holds, Slot
from inference_core.slots.values import key_of, kind_of
from inference_core.slots.words import PEOPLE


@dataclass(frozen=True, slots=True)
class Said:
    """A statement as it is compared: its words, its slots and when it was said, aware, if that is known."""

    words: tuple[str, ...]
    slots: tuple[Slot, ...]
    clauses: int
    at: datetime | None = None

    @classmethod
    def of(cls, text: str, at: datetime | None = None) -> Said:
        """``text`` as it is compared. Never raises."""
        return _said(text, at)


@lru_cache(maxsize=4_096)
def _said(text: str, at: datetime | None) -> Said:
    """Cached, as the same memories are compared in turn after turn."""
    return Said(_words(text), *read(text, at), at)


def compare(old: str, new: str, *, old_at: datetime | None = None, new_at: datetime | None = None) -> Comparison:
    """What ``new`` does to ``old``; ``old_at`` and ``new_at``, aware, are when they were said.

    SUPERSEDES only if both speak of the same attribute of the same subject at the same time and cannot both hold. SAME
    only if ``new`` tells nothing that ``old`` does not. Whatever is not certain is BOTH. Never raises.
    """
    return compare_said(Said.of(old, old_at), Said.of(new, new_at))


def compare_said(old: Said, new: Said) -> Comparison:
    """`compare` of statements that were read before."""
    if old.words == new.words:
        return Comparison.SAME
    is_late = old.at is not None and new.at is not None and new.at < old.at
    found = [_between(first, second, new.at) for first in old.slots for second in new.slots]
    if Comparison.SUPERSEDES in found:
        return Comparison.BOTH if is_late else Comparison.SUPERSEDES
    return Comparison.SAME if found == [Comparison.SAME] and new.clauses == 1 else Comparison.BOTH


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.casefold().split() if (word := part.strip(".,!;:")))


def _between(old: Slot, new: Slot, now: datetime | None) -> Comparison:
    if old.subject != new.subject or _is_over(old, now) or new.is_addition:
        return Comparison.BOTH
    if _closes(old, new):
        return Comparison.SUPERSEDES
    if old.attribute != new.attribute:
        return Comparison.BOTH
    if key_of(old.value) == key_of(new.value):
        return _of_one_value(old, new)
    return Comparison.SUPERSEDES if _excludes(old, new) else Comparison.BOTH


def _is_over(slot: Slot, now: datetime | None) -> bool:
    return slot.is_past or (slot.valid_to is not None and now is not None and slot.valid_to <= now)


def _closes(old: Slot, new: Slot) -> bool:
    """Whether ``new`` says of the very value of ``old`` that it holds no longer."""
    if old.is_negated:
        return False
    is_near = new.attribute in (old.attribute, ANY)
    if new.replaced is not None and is_near and not new.is_negated:
        return key_of(new.replaced) == key_of(old.value)
    if not new.is_negated or new.is_past or not is_near:
        return False
    return new.value == ANY or (new.attribute == ANY and key_of(new.value) == key_of(old.value))


def _of_one_value(old: Slot, new: Slot) -> Comparison:
    if old.is_negated != new.is_negated:
        return Comparison.BOTH if new.is_past else Comparison.SUPERSEDES
    if new.is_past:
        return Comparison.BOTH if old.is_negated else Comparison.SUPERSEDES
    tells_when = new.valid_from is not None and new.valid_from != old.valid_from
    return Comparison.BOTH if tells_when else Comparison.SAME


def _excludes(old: Slot, new: Slot) -> bool:
    """Whether the values of one attribute cannot both hold."""
    if old.is_negated or new.is_negated or new.is_past or old.holds is Holds.SEVERAL or new.holds is Holds.SEVERAL:
        return False
    is_told = new.is_change or new.is_correction
    if old.valid_from and new.valid_from and new.valid_from < old.valid_from and not is_told:
        return False
    if not is_told and (Holds.USUALLY_ONE in (old.holds, new.holds) or _could_be_another(old)):
        return False
    if kind_of(old.value) != kind_of(new.value) and not is_told:
        return False
    return not _tells_more(old, new, is_told=is_told)


def _could_be_another(slot: Slot) -> bool:
    """Whether the subject may be somebody else each time: "my brother"."""
    return any(part in PEOPLE for part in slot.subject.split("/"))


def _tells_more(old: Slot, new: Slot, *, is_told: bool) -> bool:
    """Whether one value is the other in more words."""
    first, second = key_of(old.value), key_of(new.value)
    if is_told:
        return second[: len(first)] == first
    return set(first) <= set(second) or set(second) <= set(first)
