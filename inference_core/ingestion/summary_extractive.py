"""ExtractiveSummarizer: the most central sentences of a session, word for word, without a model.

A sentence's score is the cosine of its tf-idf vector with the sum of all, the centroid of Radev et al. (Centroid-based
summarization of multiple documents, 2004). Sentences that repeat a chosen one are left out.
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
from inference_core.ingestion.derived import Source
from inference_core.ingestion.messages import Role, mended
from inference_core.ingestion.session_content import SessionContent, Summary, candidate_of
from inference_core.retrieval.analysis import analyze

MAX_CHARACTERS: Final = 800
MAX_SENTENCES: Final = 2_000
"""Of a longer session only the newest sentences are considered."""
MAX_SENTENCE: Final = 300
_END: Final = re.compile("(?<=[.!?])\\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_SAME: Final = 0.6
_ASSISTANTS_SHARE: Final = 0.5
_MIN_TERMS: Final = 2


@dataclass(frozen=True, slots=True)
class _Sentence:
    """``at`` is its position in the session."""

    at: int
    text: str
    source: Source
    terms: Counter[str]


class ExtractiveSummarizer:
    """Takes sentences of at most ``max_characters`` in all. It can neither conclude nor rephrase."""

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
    """The best that fit, in the order in which they were said; the very best even if it is too long."""
    holding = Counter(term for one in sentences for term in one.terms)
    rarity = {term: math.log(1 + len(sentences) / count) for term, count in holding.items()}
    vectors = {one.at: {term: count * rarity[term] for term, count in one.terms.items()} for one in sentences}
    centroid: Counter[str] = Counter()
    for vector in vectors.values():
        centroid.update(vector)

    def score(one: _Sentence) -> float:
        # What the user says tells more of the session than what the assistant answers.
        share = _ASSISTANTS_SHARE if one.source.role is Role.ASSISTANT else 1.0
        return share * _cosine(vectors[one.at], centroid)

    taken: list[_Sentence] = []
    for one in sorted(sentences, key=lambda one: (-score(one), one.at)):
        is_new = all(_cosine(vectors[one.at], vectors[other.at]) < _SAME for other in taken)
        if not taken or (is_new and len(one.text) < room):
            taken.append(one)
            room -= len(one.text) + 1
    return sorted(taken, key=lambda one: one.at)


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    product = sum(weight * other[term] for term, weight in one.items() if term in other)
    size = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / size if size else 0.0
