"""What speaks against a memory when a prompt is filled: where it is from, how it is worded, what was said since.

Only saved memories are doubted for their words: what was said in a conversation says more than one thing, and all of it
may hold. Nothing is left out for a doubt alone; it lowers the place, and the prompt's line says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Final

from inference_core.context.comparing import asks_for_history, stems_of
from inference_core.context.items import ContextItem, Doubt, section_of
from inference_core.context.relevance import MAX_CHARACTERS
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.languages import WORDS
from inference_core.retrieval.similarity import overlap

_PHRASES: Final = [line for lines in WORDS["hypothetical"].values() for line in lines.splitlines() if line]
_HYPOTHETICAL: Final = re.compile(
    rf"\b(?:{'|'.join(map(re.escape, _PHRASES))}|if\b.*\b(?:would|could|\w+['\u2019]d))\b", re.IGNORECASE
)
_ALIKE: Final = 0.17
"""Texts whose stems overlap by more are taken to be on the same, if the question asks for it."""
_LOST: Final = 0.5
_SHARED: Final = 0.4
"""A newer memory has at least this share of what the older one has of the question."""


def doubted(items: Sequence[ContextItem], query: str | None, losses: Sequence[float] = ()) -> list[ContextItem]:
    """``items`` in their order, each with what speaks against it; if that is known of all, as they are.

    What no source has judged, such as rules and goals that stand in every prompt, is not doubted. A saved memory is
    perhaps outdated if it has a newer one of ``items`` on the same that is neither doubted itself nor trusted less, or
    if recall found one: ``losses`` are what each lost to it, from 0 to 1.
    """
    if all(item.doubts is not None for item in items):
        return list(items)
    doubts = [set[Doubt]() for _ in items]
    for item, found in zip(items, doubts, strict=True):
        if item.relevance is not None:
            if item.record is not None and item.record.source.origin is Origin.WEB:
                found.add(Doubt.FROM_WEB)
            is_fact = _is_note(item) and item.section == section_of(MemoryCategory.SEMANTIC)
            if is_fact and _is_hypothetical(item.text):  # a rule may well name what would be the case
                found.add(Doubt.HYPOTHETICAL)
    for found, loss in zip(doubts, losses, strict=False):
        found.update({Doubt.OUTDATED} if loss >= _LOST else ())
    asked = stems_of(query) if query and not asks_for_history(query) else frozenset[str]()
    telling = [
        at for at, item in enumerate(items) if asked and _is_note(item) and not asked.isdisjoint(stems_of(item.text))
    ]
    telling.sort(key=lambda at: items[at].when)
    for old, new in combinations(telling, 2):
        if not doubts[new] and _is_outdated(items[old], items[new], asked):
            doubts[old].add(Doubt.OUTDATED)
    return [replace(item, doubts=frozenset(found)) for item, found in zip(items, doubts, strict=True)]


@lru_cache(maxsize=4_096)  # the same memories are found in turn after turn
def _is_hypothetical(text: str) -> bool:
    return _HYPOTHETICAL.search(text) is not None


def _is_outdated(old: ContextItem, new: ContextItem, asked: frozenset[str]) -> bool:
    """Whether ``new`` may tell what became of ``old``: it is newer, trusted as much, and much the same."""
    if old.when == new.when or new.trust < old.trust or old.section != new.section:
        return False
    said, says = stems_of(old.text), stems_of(new.text)
    held = said & asked
    return len(held & says) >= _SHARED * len(held) and overlap(said, says) > _ALIKE


def _is_note(item: ContextItem) -> bool:
    """Whether it is a saved memory, of one statement."""
    record = item.record
    if record is None or item.relevance is None:
        return False
    return record.category is not MemoryCategory.EPISODIC and len(item.text) <= MAX_CHARACTERS
