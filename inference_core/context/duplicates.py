"""What is said twice is told once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from inference_core.context.items import ContextItem, Dropped, DropReason, section_of
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.similarity import gist, overlap, words_of
from inference_core.slots.words import word_set

DEFAULT_OVERLAP: Final = 0.6
_SPARE: Final = 0.1
_TURNING: Final = word_set(
    "not no never nor none neither without nicht kein keine nie former formerly previously ex used stopped quit anymore"
    " longer instead unless except only until was were had if maybe perhaps might cannot"
)
"""Words by which a text says something else than the same text without them."""
_NAME: Final = re.compile(r"(?<![.!?:] )(?<!\A)\b[A-Z][\w'-]*")


@dataclass(frozen=True, slots=True)
class _Said:
    """An item as it is compared: its stems, and the names, numbers and turning words among its words."""

    item: ContextItem
    stems: frozenset[str]
    meant: frozenset[str]
    turning: frozenset[str]
    exact: frozenset[str]

    @classmethod
    def of(cls, item: ContextItem) -> _Said:
        return cls(item, *_features(item.text))


@lru_cache(maxsize=4_096)
def _features(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]:
    """Stems, gist, turning words, names and numbers; cached, as the same memories are compared in turn after turn."""
    words = words_of(text)
    turning = frozenset(word for word in words if word in _TURNING or word.endswith(("n't", "n\u2019t")))
    numbers = (word for word in words if any(map(str.isdigit, word)))
    exact = frozenset([*map(str.casefold, _NAME.findall(text)), *numbers])
    meant = gist(text)
    stems = frozenset(stem for word in meant for stem in analyze(word) or (word,))
    return stems, meant, turning, exact


def collapsed(
    items: Sequence[ContextItem], min_overlap: float = DEFAULT_OVERLAP
) -> tuple[list[ContextItem], list[Dropped]]:
    """``items`` without those that say only what another one says that is trusted as much, and the others.

    Of a memory that several sources gave, and of equal texts, one is kept; of two texts whose stems overlap by
    ``min_overlap`` the one that tells more, if the other has no name, number or negation of its own; what comes from
    outside may not add to it. Who is kept is as relevant as the best of them. What was said twice in the same
    conversation was said twice.
    """
    kept: list[_Said] = []
    dropped: list[Dropped] = []
    for said in sorted(map(_Said.of, items), key=_by_merit, reverse=True):
        at = next((at for at, other in enumerate(kept) if _tells(other, said, min_overlap)), None)
        if at is None:
            kept.append(said)
        else:
            dropped.append(Dropped(said.item, DropReason.DUPLICATE, kept[at].item.id))
            kept[at] = replace(kept[at], item=_merged(kept[at].item, said.item))
    return [said.item for said in kept], dropped


def _by_merit(said: _Said) -> tuple[Any, ...]:
    """Trusted before not, rules before what is none, more before less; a section of its own before a category's."""
    item = said.item
    category = item.record.category if item.record else None
    is_special = category is not None and item.section != section_of(category)
    when = item.happened_at.timestamp() if item.happened_at else 0.0
    is_rule = category is MemoryCategory.PROCEDURAL
    return item.relevance is None, item.trust, is_rule, len(said.stems), is_special, item.relevance or 0.0, when


def _tells(kept: _Said, said: _Said, min_overlap: float) -> bool:
    """Whether ``kept`` says all that ``said`` does."""
    if kept.item.trust < said.item.trust or _are_utterances(kept.item, said.item):
        return False
    if _is_same_memory(kept.item, said.item) or kept.item.text == said.item.text:
        return True
    if kept.meant == said.meant:
        return bool(said.meant)
    if kept.turning != said.turning or not said.exact <= kept.exact or overlap(kept.stems, said.stems) < min_overlap:
        return False
    adds = len(kept.stems - said.stems) > _SPARE * len(kept.stems)
    if adds and Trust.EXTERNAL in (kept.item.trust, said.item.trust):
        return False
    return len(said.stems - kept.stems) <= _SPARE * len(said.stems)


def _is_same_memory(first: ContextItem, second: ContextItem) -> bool:
    one, other = first.record, second.record
    return one is not None and other is not None and (one.namespace, one.id) == (other.namespace, other.id)


def _are_utterances(first: ContextItem, second: ContextItem) -> bool:
    return first.source == second.source and all(one.record is None is one.relevance for one in (first, second))


def _merged(kept: ContextItem, other: ContextItem) -> ContextItem:
    if kept.relevance is None or other.relevance is None or kept.relevance >= other.relevance:
        return kept
    return replace(kept, relevance=other.relevance, score=max(kept.score, other.score))
