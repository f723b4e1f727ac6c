"""ExtractiveSummarizer: the sentences that stand for a session best, word for word; no model.

A sentence counts by how near it is to the session as a whole: the cosine of its tf-idf vector with the sum of all, the
centroid of Radev et al. (Centroid-based summarization of multiple documents, 2004). What repeats a sentence that is
taken already is left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.candidates import Extraction
from inference_core.ingestion.messages import Role, mended
from inference_core.ingestion.session_content import SessionContent, Source, Summary, candidate_of
from inference_core.retrieval.analysis import analyze

MAX_CHARACTERS: Final = 800
MAX_SENTENCES: Final = 2_000
"""Of a session, the newest sentences beyond this many are not looked at further."""
MAX_SENTENCE: Final = 300
_END: Final = re.compile("(?<=[.!?])\\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_SAME: Final = 0.6
_ASSISTANTS_SHARE: Final = 0.5
_MIN_TERMS: Final = 2
Vector = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Sentence:
    """``at`` is its place in the session."""

    at: int
    text: str
    source: Source
    terms: Counter[str]


class ExtractiveSummarizer:
    """Takes sentences of at most ``max_characters`` together. It can neither conclude nor put in other words."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self.max_characters = max_characters

    def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Plan[Extraction]:
        """Plan: the summary; none if nobody said a sentence."""
        del now, zone
        yield from ()
        taken = _chosen(_sentences(content.sources), self.max_characters)
        if not taken:
            return Extraction(())
        authors = (one.source.author for one in taken if one.source.author)
        summary = Summary(
            text=" ".join(one.text for one in taken),
            cited=[one.source for one in taken],
            participants=tuple(dict.fromkeys(authors)),
        )
        return Extraction((candidate_of(content, summary),))


def _sentences(sources: Sequence[Source]) -> list[_Sentence]:
    texts = [(text.strip(), source) for source in sources for text in _END.split(mended(source.text))]
    found = [
        _Sentence(at, text[:MAX_SENTENCE].rstrip(), source, Counter(analyze(text[:MAX_SENTENCE])))
        for at, (text, source) in enumerate(texts[-MAX_SENTENCES:])
        if text
    ]
    return [one for one in found if len(one.terms) >= _MIN_TERMS] or found[:1]


def _chosen(sentences: Sequence[_Sentence], room: int) -> list[_Sentence]:
    """The best that fit, in the order in which they were said; the very best also if it is too long."""
    vectors = _vectors(sentences)
    centroid: Counter[str] = Counter()
    for vector in vectors.values():
        centroid.update(vector)
    ranked = sorted(sentences, key=lambda one: (-_cosine(vectors[one.at], centroid) * _share(one.source), one.at))
    taken: list[_Sentence] = []
    for one in ranked:
        is_new = all(_cosine(vectors[one.at], vectors[other.at]) < _SAME for other in taken)
        if not taken or (is_new and len(one.text) < room):
            taken.append(one)
            room -= len(one.text) + 1
    return sorted(taken, key=lambda one: one.at)


def _vectors(sentences: Sequence[_Sentence]) -> dict[int, Vector]:
    held = Counter(term for one in sentences for term in one.terms)
    rarity = {term: math.log(1 + len(sentences) / count) for term, count in held.items()}
    return {one.at: {term: count * rarity[term] for term, count in one.terms.items()} for one in sentences}


def _cosine(one: Vector, other: Vector) -> float:
    product = sum(weight * other[term] for term, weight in one.items() if term in other)
    size = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / size if size else 0.0


def _share(source: Source) -> float:
    """What the user says tells more of the session than what the assistant answers."""
    return _ASSISTANTS_SHARE if source.role is Role.ASSISTANT else 1.0
