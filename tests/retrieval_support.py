"""Small indexes, texts and queries for the tests of ranking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain

import numpy as np

from inference_core.retrieval.analysis import ANALYZER, query_alternatives
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, QueryVectors, Term
from inference_core.retrieval.index import ScopeIndex, ScopeView
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import TokensOf, rank
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, Floats, pack_vectors

MODEL = "m"
NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
EAST, NORTH, WEST = (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)
Vector = Sequence[float]


def analyze_query(text: str) -> list[str]:
    """The different terms that a search for ``text`` looks up."""
    return list(dict.fromkeys(chain.from_iterable(query_alternatives(text))))


def floats(*values: float | Vector) -> Floats:
    return np.array(values, np.float32)


def packed(*vectors: Vector, space: int = PLAIN) -> bytes:
    return pack_vectors(floats(*vectors), space)


def put(
    key: str,
    terms: str = "",
    *vectors: Vector,
    created: float = 0.0,
    kind: str = "facts",
    session: str = "",
    by_assistant: bool = False,
    happened: float | None = None,
    importance: float = 0.5,
    model: str = MODEL,
    space: int = PLAIN,
) -> Change:
    """A text that consists of ``terms``, with a vector for each of its passages."""
    situation = DocumentMetadata(session, by_assistant, happened, importance)
    vector = packed(*vectors, space=space) if vectors else None
    return Change(1, key, kind, created, Document(terms, terms, ANALYZER, situation, model, vector))


def delete(key: str) -> Change:
    return Change(1, key, "", 0.0, None, is_there=False)


def grown(index: ScopeIndex, *changes: Change) -> ScopeView:
    """The view of ``index`` after ``changes``, which are numbered from its head on."""
    return index.update([change._replace(seq=seq) for seq, change in enumerate(changes, index.head + 1)])


def index_of(*changes: Change) -> ScopeView:
    return grown(ScopeIndex(MODEL), *changes)


def asked(
    terms: Sequence[Term] = (),
    vector: Floats | None = None,
    tokens: Floats | None = None,
    interval: tuple[float, float] | None = None,
    *,
    wants_action: bool = False,
    other: Floats | None = None,
    weight: float = 1.0,
) -> Query:
    """A query with vectors, and with an ``other`` one in the multilingual space."""
    vectors = {} if vector is None else {PLAIN: QueryVectors(vector, tokens, weight=weight)}
    if other is not None:
        vectors[MULTILINGUAL] = QueryVectors(other, tokens)
    return Query(terms, vectors, interval, wants_action=wants_action)


def scores_of(indexes: Sequence[ScopeView], query: Query, tokens_of: TokensOf | None = None) -> list[tuple[str, float]]:
    """Key and score of each hit, the best first."""
    hits = rank(Pool(indexes), query, tokens_of).of(range(len(indexes)))
    return [(indexes[hit.place.owner].keys[hit.place.slot], hit.score) for hit in hits]


def keys_of(indexes: Sequence[ScopeView], query: Query, tokens_of: TokensOf | None = None) -> list[str]:
    return [key for key, _ in scores_of(indexes, query, tokens_of)]
