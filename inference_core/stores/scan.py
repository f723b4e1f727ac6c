"""Finding rows by reading all of their terms: what answers while there is no index yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Final

from inference_core.retrieval.documents import Change, Term

MAX_WORDS: Final = 64
"""A scan looks for that many words of a query at most."""


def holding_most(changes: Iterable[Change], words: Sequence[Term], limit: int) -> list[Change]:
    """At most ``limit`` of ``changes``: those that hold the most of ``words``, of equal ones the last written."""
    wanted = [forms_of(word) for word in words[:MAX_WORDS]]
    found: list[tuple[int, int, Change]] = []
    for change in changes:
        if change.document:
            terms = set(change.document.terms.split())
            if count := sum(not terms.isdisjoint(forms) for forms in wanted):
                found.append((count, change.seq, change))
    return [change for _, _, change in nlargest(limit, found, key=lambda one: one[:2])]


def forms_of(word: Term) -> tuple[str, ...]:
    """All forms in which documents may hold ``word``."""
    return (word,) if isinstance(word, str) else word
