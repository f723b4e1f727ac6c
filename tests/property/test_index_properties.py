"""An index that grew ranks like one that was built afresh, and both rank like the formulas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.documents import Change, Document
from inference_core.retrieval.index import K1, B, CollectionStatistics, ScopeIndex
from inference_core.retrieval.ranking import COVERAGE_WEIGHT, DENSE_SCALE, LEXICAL_WEIGHT, query_of, rank

MODEL = "m"
TEXTS = [
    "",
    "the of",
    "tea",
    "green tea",
    "tea tea tea car",
    "running shoes",
    "\u6771\u4eac\u90fd\u306b\u4f4f\u3080",
    "\u043b\u044e\u0431\u0438\u0442 \u0447\u0430\u0439",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f600",
]
QUERIES = [*TEXTS, "green running tea car zebra"]
# Of unit length, with exact products, so that no order depends on how a sum is rounded.
VECTORS: list[list[float] | None] = [
    None,
    *([0.5 * (1 - 2 * (bits >> at & 1)) for at in range(4)] for bits in range(16)),
    [1, 0, 0, 0],
]


class Op(NamedTuple):
    """A write to one of the keys, and whether the indexes are asked after it."""

    kind: str
    scope: int
    key: str
    text: str
    vector: int
    model: str
    analyzer: str
    tag: str
    created: float
    asked: bool


OPS = st.builds(
    Op,
    kind=st.sampled_from(["put", "put", "put", "hidden", "delete", "again", "vector", "vector"]),
    scope=st.sampled_from([0, 0, 0, 1]),
    key=st.sampled_from("abc"),
    text=st.sampled_from([*["green tea"] * 20, *TEXTS]),
    vector=st.sampled_from([0, 0, 1, 16, *range(len(VECTORS))]),
    model=st.sampled_from([MODEL, MODEL, MODEL, "other"]),
    analyzer=st.sampled_from(["english-1", "english-1", "english-1", "other-0"]),
    tag=st.sampled_from(["facts", "facts", "facts", "goals"]),
    created=st.sampled_from([1.0, 2.0]),
    asked=st.booleans(),
)


def _document(text: str, vector: int, model: str, analyzer: str = "english-1") -> Document:
    terms = " ".join(analyze(text)) if analyzer == "english-1" else "terms of another analysis"
    values = VECTORS[vector]
    packed = None if values is None else np.array(values, np.float32).tobytes()
    return Document(text=text, terms=terms, analyzer=analyzer, model=model, vector=packed)


class Scope:
    """The rows of a scope as a store keeps them, and an index that follows them."""

    def __init__(self) -> None:
        self.rows: dict[str, Change] = {}
        self.seq = 0
        self.index = ScopeIndex(MODEL)

    def apply(self, op: Op) -> None:
        old = self.rows.get(op.key)
        alive = old is not None and old.kind != ""
        created = old.created_at if old is not None and alive else op.created
        document = _document(op.text, op.vector, op.model, op.analyzer)
        if op.kind in ("put", "hidden"):
            self._write(op.key, op.tag, created, document if op.kind == "put" else None)
        elif old is not None and alive and op.kind == "delete":
            self._write(op.key, "", created, None)
        elif old is not None and alive and op.kind == "again":
            self._write(op.key, "", created, None)
            self._write(op.key, old.kind, op.created, old.document)
        elif old is not None and old.document is not None and op.kind == "vector":
            revised = old.document._replace(model=document.model, vector=document.vector)
            self._write(op.key, old.kind, created, revised)

    def changes(self, since: int = 0) -> list[Change]:
        return sorted(change for change in self.rows.values() if change.seq > since)

    def follow(self) -> None:
        self.index.update(self.changes(self.index.head))

    def rebuilt(self) -> ScopeIndex:
        index = ScopeIndex(MODEL)
        index.update(self.changes())
        return index

    def _write(self, key: str, kind: str, created: float, document: Document | None) -> None:
        self.seq += 1
        self.rows[key] = Change(self.seq, key, kind, created, document)


def _hits(indexes: Sequence[ScopeIndex], text: str, vector: int) -> list[tuple[int, str, str, float]]:
    values = VECTORS[vector]
    query = query_of(text, None if values is None else np.array(values, np.float32).tobytes())
    hits = list(rank(indexes, query).of(range(len(indexes))))
    return [
        (hit.index, indexes[hit.index].keys[hit.slot], indexes[hit.index].kinds[hit.slot], hit.score) for hit in hits
    ]


@settings(max_examples=120, deadline=None)
@given(st.lists(OPS, min_size=3, max_size=15), st.sampled_from(QUERIES), st.integers(0, len(VECTORS) - 1))
def test_an_index_that_grew_ranks_like_one_built_afresh(ops: list[Op], query: str, vector: int):
    scopes = [Scope(), Scope()]
    for op in ops:
        scopes[op.scope].apply(op)
        if op.asked:
            scopes[op.scope].follow()
    for scope in scopes:
        scope.follow()
    grown, afresh = [scope.index for scope in scopes], [scope.rebuilt() for scope in scopes]
    for text, wanted in ((query, vector), ("green tea", 0), ("", 1)):
        hits, expected = _hits(grown, text, wanted), _hits(afresh, text, wanted)
        assert [hit[:3] for hit in hits] == [hit[:3] for hit in expected]
        assert [hit[3] for hit in hits] == pytest.approx([hit[3] for hit in expected], abs=2e-5)
        assert hits == _hits(grown, text, wanted)


@settings(max_examples=80, deadline=None)
@given(st.lists(OPS, max_size=15))
def test_an_index_counts_what_is_alive(ops: list[Op]):
    scope = Scope()
    for op in ops:
        scope.apply(op)
        if op.asked:
            scope.follow()
    scope.follow()
    living = [change.document for change in scope.rows.values() if change.document]
    terms = [analyze(document.text) for document in living]
    assert len(scope.index) == len(living)
    assert scope.index.length == sum(map(len, terms))
    assert scope.index.document_frequency("tea") == sum("tea" in words for words in terms)
    assert scope.index.head == scope.seq


def _reference(documents: dict[Any, list[str]], query: list[str]) -> dict[Any, tuple[float, float]]:
    """BM25 and coverage by definition, for documents that hold a term of the query."""
    mean = max(sum(map(len, documents.values())) / max(len(documents), 1), 1)
    holders = {term: sum(term in words for words in documents.values()) for term in set(query)}
    idf = {term: math.log(1 + (len(documents) - found + 0.5) / (found + 0.5)) for term, found in holders.items()}
    scores: dict[Any, tuple[float, float]] = {}
    for key, words in documents.items():
        counts = Counter(words)
        held = [term for term in idf if counts[term]]
        norm = K1 * (1 - B + B * len(words) / mean)
        score = sum(idf[term] * counts[term] * (K1 + 1) / (counts[term] + norm) for term in held)
        if held:
            scores[key] = score, sum(idf[term] for term in held) / sum(idf.values())
    return scores


def _fused(
    documents: dict[Any, list[str]], vectors: dict[Any, list[float]], query: list[str], wanted: list[float] | None
) -> dict[Any, float]:
    """The fused score of every hit, by the definition in `fuse`."""
    lexical = _reference(documents, query)
    best = max((score for score, _ in lexical.values()), default=1)
    covered = max((coverage for _, coverage in lexical.values()), default=0)
    dense: dict[Any, float] = {}
    if wanted is not None and vectors:
        cosines = {key: float(np.dot(vector, wanted)) for key, vector in vectors.items()}
        spread = float(np.std(list(cosines.values()))) or 1
        mean = float(np.mean(list(cosines.values())))
        dense = {key: (cosine - mean) / spread / DENSE_SCALE for key, cosine in cosines.items()}
    scores: dict[Any, float] = {}
    for key in lexical.keys() | dense.keys():
        score, coverage = lexical.get(key, (0, 0))
        evidence = COVERAGE_WEIGHT * coverage + LEXICAL_WEIGHT * covered * score / best
        scores[key] = evidence + dense.get(key, 0)
    return scores


WORDS = st.lists(st.sampled_from(["tea", "green", "car", "shoe", "run", "\u6771\u4eac"]), max_size=8)
ENTRIES = st.lists(st.tuples(st.integers(0, 2), WORDS, st.integers(0, len(VECTORS) - 1)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(ENTRIES, WORDS, st.integers(0, len(VECTORS) - 1))
def test_scores_are_those_of_the_formulas(entries: list[tuple[int, list[str], int]], query: list[str], vector: int):
    indexes = [ScopeIndex(MODEL) for _ in range(3)]
    for at, (scope, words, at_vector) in enumerate(entries):
        document = _document(" ".join(words), at_vector, MODEL)
        indexes[scope].update([Change(at + 1, str(at), "facts", float(at), document)])
    documents = {(scope, str(at)): words for at, (scope, words, _) in enumerate(entries)}
    statistics = CollectionStatistics.of(indexes, query)
    expected = _reference(documents, query)
    for scope, index in enumerate(indexes):
        bm25, coverage = index.bm25(query, statistics)
        for slot, key in enumerate(index.keys):
            score = float(bm25[slot]), float(coverage[slot])
            assert score == pytest.approx(expected.get((scope, key), (0, 0)), rel=1e-4, abs=1e-6)
    vectors = {(scope, str(at)): values for at, (scope, _, chosen) in enumerate(entries) if (values := VECTORS[chosen])}
    hits = _hits(indexes, " ".join(query), vector)
    fused = _fused(documents, vectors, query, VECTORS[vector])
    assert {(scope, key): score for scope, key, _, score in hits} == pytest.approx(fused, rel=1e-4, abs=1e-5)
    order = [(-score, -int(key)) for _, key, _, score in hits]
    assert order == sorted(order)
