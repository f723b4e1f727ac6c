"""An index that grew ranks like one that was built afresh, and both rank like the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_support import examples
from retrieval_support import MODEL, asked, floats, packed

from inference_core.memory.types import GUIDING_TYPES
from inference_core.retrieval import index as postings
from inference_core.retrieval import vectors
from inference_core.retrieval.analysis import ANALYZER, analyze
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, Term
from inference_core.retrieval.index import K1, B, CollectionStatistics, ScopeIndex, ScopeView
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import (
    HYBRID,
    LATE,
    LEXICAL,
    MULTILINGUAL_HYBRID,
    MULTILINGUAL_LATE,
    Spread,
    Weights,
    between,
    rank,
)
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, pack_tokens

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
Vectors = tuple[tuple[float, ...], ...]
# One number of each vector is not zero, so that no product depends on the order of a summation.
AXES = [tuple(float(sign) if at == axis else 0.0 for at in range(4)) for axis in range(4) for sign in (1, -1)]
PASSAGES: list[Vectors] = [(), *((axis,) for axis in AXES), (AXES[0], AXES[3]), (AXES[5], AXES[2], AXES[7])]
TOKENS: list[tuple[Vectors, ...]] = [(), *(((axis,),) for axis in AXES), ((AXES[0], AXES[2]), (AXES[4],)), (AXES[:5],)]  # pyright: ignore[reportAssignmentType]
INTERVAL = (1.5, 3.0)


class Op(NamedTuple):
    """A write to one of the keys, and whether the indexes are asked after it."""

    kind: str
    scope: int
    key: str
    text: str
    passages: Vectors
    tokens: tuple[Vectors, ...]
    situation: DocumentMetadata
    model: str
    analyzer: str
    tag: str
    created: float
    asked: bool
    space: int = PLAIN


SITUATIONS = st.builds(
    DocumentMetadata,
    session=st.sampled_from(["", "s", "s", "t"]),
    by_assistant=st.booleans(),
    happened_at=st.sampled_from([None, None, 1.0, 2.0]),
    importance=st.sampled_from([0.5, 0.5, 0.25, 1.0]),
)
SPACE = st.sampled_from([PLAIN, PLAIN, MULTILINGUAL])
OPS = st.builds(
    Op,
    kind=st.sampled_from(["put", "put", "put", "hidden", "delete", "again", "vector", "vector"]),
    scope=st.sampled_from([0, 0, 0, 1]),
    key=st.sampled_from("abcdef"),
    text=st.sampled_from([*["green tea"] * 10, *TEXTS]),
    passages=st.sampled_from([PASSAGES[0], PASSAGES[1], *PASSAGES]),
    tokens=st.sampled_from(TOKENS),
    situation=SITUATIONS,
    model=st.sampled_from([MODEL, MODEL, MODEL, "other"]),
    analyzer=st.sampled_from([ANALYZER, ANALYZER, ANALYZER, "other-0"]),
    tag=st.sampled_from(["facts", "facts", "goals", "skill"]),
    created=st.sampled_from([1.0, 2.0, 3.0]),
    asked=st.booleans(),
    space=SPACE,
)


def _document(op: Op) -> Document:
    terms = " ".join(analyze(op.text)) if op.analyzer == ANALYZER else "terms of another analysis"
    tokens = pack_tokens([floats(*passage) for passage in op.tokens], op.space) if op.tokens else None
    vector = packed(*op.passages, space=op.space) if op.passages else None
    return Document(op.text, terms, op.analyzer, op.situation, op.model, vector, tokens)


class Scope:
    """The rows of a scope as a store keeps them, and an index that follows them."""

    def __init__(self) -> None:
        self.rows: dict[str, Change] = {}
        self.seq = 0
        self.index = ScopeIndex(MODEL)

    def apply(self, op: Op) -> None:
        old = self.rows.get(op.key)
        alive = old is not None and old.is_there
        created = old.created_at if old is not None and alive else op.created
        document = _document(op)
        if op.kind in ("put", "hidden"):
            self._write(op.key, op.tag, created, document if op.kind == "put" else None)
        elif old is not None and alive and op.kind == "delete":
            self._write(op.key, "", created, None, is_there=False)
        elif old is not None and alive and op.kind == "again":
            self._write(op.key, "", created, None, is_there=False)
            self._write(op.key, old.kind, op.created, old.document)
        elif old is not None and old.document is not None and op.kind == "vector":
            revised = old.document._replace(model=document.model, vector=document.vector, tokens=document.tokens)
            self._write(op.key, old.kind, created, revised)

    def changes(self, since: int = 0) -> list[Change]:
        return sorted((change for change in self.rows.values() if change.seq > since), key=lambda change: change.seq)

    def follow(self, portion: int = 100) -> ScopeView:
        """The view of all that was written, taken in by portions."""
        changes = self.changes(self.index.head)
        for start in range(0, len(changes), portion):
            self.index.apply(changes[start : start + portion])
        return self.index.publish()

    def rebuilt(self) -> ScopeView:
        return ScopeIndex(MODEL).update(self.changes())

    def tokens(self, key: str) -> bytes | None:
        document = self.rows[key].document
        return document.tokens if document else None

    def _write(self, key: str, kind: str, created: float, document: Document | None, *, is_there: bool = True) -> None:
        self.seq += 1
        self.rows[key] = Change(self.seq, key, kind, created, document, is_there)


def _hits(scopes: Sequence[Scope], indexes: Sequence[ScopeView], query: Query) -> list[tuple[Any, ...]]:
    """All that is told of each hit, the best first."""

    def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
        return [scopes[place.owner].tokens(indexes[place.owner].keys[place.slot]) for place in places]

    hits = rank(Pool(indexes), query, tokens_of).of(range(len(indexes)))
    return [
        (hit.place.owner, indexes[hit.place.owner].keys[hit.place.slot], hit.score, hit.relevance, hit.shares)
        for hit in hits
    ]


VECTORS = st.sampled_from([None, *AXES]).map(lambda vector: None if vector is None else floats(*vector))
QUERIES = st.builds(
    asked,
    terms=st.sampled_from([*TEXTS, "green running tea car zebra"]).map(lambda text: list(dict.fromkeys(analyze(text)))),
    vector=VECTORS,
    other=VECTORS,
    weight=st.sampled_from([1.0, 0.25]),
    tokens=st.sampled_from([None, AXES[:1], [AXES[0], AXES[5]]]).map(lambda rows: rows and floats(*rows)),
    interval=st.sampled_from([None, INTERVAL]),
    wants_action=st.booleans(),
)
USUAL = (
    asked(["green", "tea"]),
    asked(["tea"], floats(*AXES[0]), floats(AXES[0], AXES[2]), INTERVAL, wants_action=True),
    asked([("green", "tea"), "car"], floats(*AXES[1])),
)


@contextmanager
def _small_arrays() -> Generator[None]:
    """Arrays have so little room that they are replaced all the time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postings, "_FEW", 4)
        patched.setattr(vectors, "_FEW", 4)
        patched.setattr(postings, "_SMALL_TAIL", 2)
        patched.setattr(postings, "_TAIL_SHARE", 2)
        yield


@examples(150)
@given(st.lists(OPS, min_size=3, max_size=20), QUERIES, st.integers(1, 5))
def test_an_index_that_grew_ranks_like_one_built_afresh(ops: list[Op], query: Query, portion: int):
    with _small_arrays():
        scopes = [Scope(), Scope()]
        for op in ops:
            scopes[op.scope].apply(op)
            if op.asked:
                scopes[op.scope].follow(portion)
        grown = [scope.follow(portion) for scope in scopes]
    afresh = [scope.rebuilt() for scope in scopes]
    for wanted in (query, *USUAL):
        hits = _hits(scopes, grown, wanted)
        assert hits == _hits(scopes, afresh, wanted)
        assert hits == _hits(scopes, grown, wanted)


@examples(80)
@given(st.lists(OPS, max_size=20))
def test_an_index_counts_what_is_alive(ops: list[Op]):
    scope = Scope()
    for op in ops:
        scope.apply(op)
        if op.asked:
            scope.follow()
    view = scope.follow()
    rows = [change for change in scope.rows.values() if change.is_there]
    living = [change.document for change in rows if change.document]
    terms = [analyze(document.text) for document in living]
    afresh = scope.rebuilt()
    assert len(view) == len(living)
    assert view.length == sum(map(len, terms))
    assert view.document_frequency("tea") == sum("tea" in words for words in terms)
    assert view.seq == scope.index.head == scope.seq
    assert view.vectors.counts.tolist() == afresh.vectors.counts.tolist()
    assert abs(view.vectors.totals).sum() == abs(afresh.vectors.totals).sum()
    by_age = [change.key for change in sorted(rows, key=lambda change: (-change.created_at, change.key))]
    assert [view.keys[slot] for slot in view.by_age] == [afresh.keys[slot] for slot in afresh.by_age] == by_age


def _shown(view: ScopeView, query: Query) -> list[Any]:
    """All that a view tells, as plain values."""
    terms = [term for one in (query, *USUAL) for term in one.terms]
    statistics = CollectionStatistics.of([view], terms)
    return [
        *(view.seq, view.slots, len(view), view.length, statistics, view.nbytes, list(view.keys[: view.slots])),
        *(view.alive.tolist(), view.embedded.tolist(), view.order.slots.tolist(), view.order.session.tolist()),
        *([view.keys[slot] for slot in view.by_age], [view.slot_of(key) for key in "abcdef"]),
        *(view.slots_of("abcdef"), [view.kind(slot) for slot in view.by_age]),
        *(view.is_of(frozenset({"facts"}), view.by_age).tolist(), view.holding("tea", 2)),
        *(column.tolist() for column in view.bm25(terms, statistics)),
        *(repr(view.products({PLAIN: floats(*axis), MULTILINGUAL: floats(*axis)}).tolist()) for axis in AXES),
        *(view.vectors.counts.tolist(), view.vectors.totals.tolist()),
        *(view.in_order(name).tolist() for name in ("created", "ranks", "by_assistant", "happened", "importance")),
        *(
            [(hit.place, hit.score, hit.relevance) for hit in rank(Pool([view]), one).of([0])]
            for one in (query, *USUAL)
        ),
    ]


@examples(100)
@given(st.lists(OPS, min_size=2, max_size=25), QUERIES, st.integers(1, 4), st.integers(0, 2))
def test_a_view_never_changes(ops: list[Op], query: Query, portion: int, asked_at: int):
    """What it gives later is what it gave when it was taken, also where it is asked only later for the first time.

    Views that are equal to those taken, but were never asked, are what an index gives that ended there.
    """
    with _small_arrays():
        scope = Scope()
        taken: list[tuple[ScopeView, list[Any] | None, int]] = []
        for number, op in enumerate(ops):
            scope.apply(op)
            if op.asked:
                view = scope.follow(portion)
                taken.append((view, _shown(view, query) if number % 3 != asked_at else None, number + 1))
        scope.follow(portion)
        for view, shown, end in taken:
            assert _shown(view, query) == (shown or _shown(_ended(ops[:end], portion), query))


def _ended(ops: Sequence[Op], portion: int) -> ScopeView:
    """The last view of an index that followed ``ops``."""
    scope = Scope()
    view = ScopeView()
    for op in ops:
        scope.apply(op)
        view = scope.follow(portion) if op.asked else view
    return view


@dataclass
class Text:
    """A text as the reference sees it, and the evidence that the reference finds."""

    key: tuple[int, str]
    created: float
    kind: str
    words: list[str]
    situation: DocumentMetadata
    passages: Vectors
    tokens: tuple[Vectors, ...]
    space: int
    asks: bool = False
    near: Callable[[int], Text | None] = lambda _: None
    session: list[Text] = field(default_factory=list["Text"])
    bm25: float = 0.0
    lexical: float = 0.0
    coverage: float = 0.0
    closeness: float | None = None
    dense: float = 0.0
    late: float = 0.0
    similarity: float | None = None
    feedback: float = 0.0

    @property
    def is_hit(self) -> bool:
        return self.bm25 > 0 or self.closeness is not None


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(first, second, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    return math.sqrt(_mean([(value - _mean(values)) ** 2 for value in values]))


def _standard(values: Sequence[float], scale: float = 1.0) -> list[float]:
    spread = _deviation(values) if values else 0.0
    return [(value - _mean(values)) / (spread * scale) if spread > 1e-6 else 0.0 for value in values]


def _centre(vectors: Sequence[Sequence[float]]) -> list[float]:
    return [_mean(numbers) for numbers in zip(*vectors, strict=True)]


def _set_words(texts: Sequence[Text], terms: Sequence[tuple[str, ...]]) -> None:
    """BM25 and coverage by definition; the words of a query count as in a store of ten more texts."""
    mean = max(sum(len(text.words) for text in texts) / max(len(texts), 1), 1)
    holders = {term: sum(not set(term).isdisjoint(text.words) for text in texts) for term in terms}
    idf, shares = (
        {term: math.log(1 + (len(texts) + more - found + 0.5) / (found + 0.5)) for term, found in holders.items()}
        for more in (0, 10)
    )
    for text in texts:
        counts = {term: max(text.words.count(form) for form in term) for term in terms}
        held = [term for term in idf if counts[term]]
        norm = K1 * (1 - B + B * len(text.words) / mean)
        text.bm25 = sum(idf[term] * counts[term] * (K1 + 1) / (counts[term] + norm) for term in held)
        text.coverage = sum(shares[term] for term in held) / sum(shares.values()) if shares else 0.0
    best = max((text.bm25 for text in texts), default=0)
    for text in texts:
        text.lexical = text.bm25 / best if best else 0.0


def _in_space(texts: Sequence[Text], space: int) -> list[Text]:
    return [text for text in texts if text.passages and text.space == space]


def _weight(texts: Sequence[Text], query: Query, space: int) -> float:
    """How much closeness in a space counts, beside that in those others that there are."""
    spaces = [space for space in query.vectors if _in_space(texts, space)]
    return query.vectors[space].weight / max(query.vectors[one].weight for one in spaces)


def _set_meaning(texts: Sequence[Text], query: Query) -> None:
    for space, question in query.vectors.items():
        known = _in_space(texts, space)
        if not known:
            continue
        mean = _centre([vector for text in known for vector in text.passages])
        wanted = [number - other for number, other in zip(question.vector.tolist(), mean, strict=True)]
        for text in known:
            text.closeness = max(_dot(vector, wanted) for vector in text.passages)
        for text, dense in zip(known, _standard([text.closeness or 0.0 for text in known], 4), strict=True):
            text.dense = _weight(texts, query, space) * dense


def _set_late(candidates: Sequence[Text], query: Query) -> bool:
    """Whether there was enough to compare."""
    asked = {space: one.tokens.tolist() for space, one in query.vectors.items() if one.tokens is not None}
    compared = [text for text in candidates if text.tokens and text.space in asked]
    if not compared or 2 * len(compared) < len(candidates):
        return False
    most = max(query.vectors[text.space].weight for text in compared)
    for space, tokens_asked in asked.items():
        known = [text for text in compared if text.space == space]
        passages = [(text, tokens) for text in known for tokens in text.tokens]
        if not known:
            continue
        best = [[max(_dot(token, wanted) for token in tokens) for wanted in tokens_asked] for _, tokens in passages]
        standard = [_mean(row) for row in zip(*map(_standard, zip(*best, strict=True)), strict=True)]
        evidence = [
            max(one for (owner, _), one in zip(passages, standard, strict=True) if owner is text) for text in known
        ]
        for text in known:
            of_passages = [_mean(row) for (owner, _), row in zip(passages, best, strict=True) if owner is text]
            text.similarity = min(max(*of_passages, 0.0), 1.0)
        for text, late in zip(known, _standard(evidence, 4), strict=True):
            text.late = query.vectors[space].weight / most * late
    return True


def _set_feedback(candidates: Sequence[Text], texts: Sequence[Text]) -> None:
    for space in (PLAIN, MULTILINGUAL):
        known = _in_space(candidates, space)
        if len(known) <= 3:
            continue
        best = sorted(known, key=lambda text: -round(text.dense + text.late, 5))[:3]
        average = _centre([vector for text in _in_space(texts, space) for vector in text.passages])
        target = [one - other for one, other in zip(_centre([text.passages[0] for text in best]), average, strict=True)]
        for text, found in zip(known, _standard([_dot(text.passages[0], target) for text in known], 4), strict=True):
            text.feedback = found


def _spread(text: Text, name: str, weights: Spread) -> float:
    def near(by: int) -> float:
        other = text.near(by)
        return getattr(other, name) if other else 0.0

    values = sorted({getattr(other, name) for other in text.session}, reverse=True)
    assume(
        all(one - other > 1e-5 for one, other in pairwise(values))
    )  # equal values count once, nearly equal ones twice
    best = values[:3]
    if len(text.session) == 1:
        return weights.alone * values[0]
    return (
        weights.own * getattr(text, name)
        + weights.previous * near(1)
        + weights.around * (near(2) + near(-2))
        + weights.reply * near(-1)
        + weights.best * sum(best) / 3
    )


def _faded(weights: Weights, texts: Sequence[Text]) -> Weights:
    """What the best match of the query's words leaves of the weights."""
    trust = min(max(text.similarity for text in texts if text.similarity is not None) / weights.sure, 1) ** 3
    lexical, dense, late = (
        Spread(*(trust * weight for weight in one)) for one in (weights.lexical, weights.dense, weights.late)
    )
    dense = dense._replace(own=weights.dense.own, alone=weights.dense.alone)
    return weights._replace(lexical=lexical, dense=dense, late=late)


def _total(text: Text, query: Query, weights: Weights) -> float:
    """The score without feedback."""
    happened = text.created if text.situation.happened_at is None else text.situation.happened_at
    return (
        _spread(text, "lexical", weights.lexical)
        + weights.coverage * text.coverage
        + _spread(text, "dense", weights.dense)
        + _spread(text, "late", weights.late)
        + weights.not_assistant * (not text.situation.by_assistant)
        + weights.importance * (text.situation.importance - 0.5)
        + weights.guidance * (query.wants_action and text.kind in GUIDING_TYPES)
        - weights.asks * (text.asks and len(text.session) > 1)
        + weights.interval * (query.interval is not None and query.interval[0] <= happened < query.interval[1])
    )


def _reference(texts: Sequence[Text], query: Query) -> dict[tuple[int, str], float]:
    """The score of every hit, by definition."""
    _set_words(texts, [(term,) if isinstance(term, str) else term for term in query.terms])
    if not query.vectors:
        return {text.key: _total(text, query, LEXICAL) for text in texts if text.is_hit}
    _set_meaning(texts, query)
    held = {space: sum(len(text.passages) for text in _in_space(texts, space)) for space in (PLAIN, MULTILINGUAL)}
    share = held[MULTILINGUAL] / max(sum(held.values()), 1)
    hybrid, late = between(HYBRID, MULTILINGUAL_HYBRID, share), between(LATE, MULTILINGUAL_LATE, share)
    hits = [text for text in texts if text.is_hit]
    candidates = sorted(
        hits, key=lambda text: (-round(_total(text, query, hybrid), 5), -text.created, crc32(text.key[1].encode()))
    )
    weights = _faded(late, candidates) if _set_late(candidates, query) else hybrid
    _set_feedback(candidates, texts)
    return {
        text.key: _total(text, query, weights)
        + (weights.feedback.alone if len(text.session) == 1 else weights.feedback.own) * text.feedback
        for text in hits
    }


def _with_neighbours(texts: Sequence[Text]) -> None:
    sessions: dict[Any, list[Text]] = {}
    for text in sorted(texts, key=lambda text: (text.created, crc32(text.key[1].encode()))):
        sessions.setdefault((text.key[0], text.situation.session or text.key), []).append(text)
    for turns in sessions.values():
        for at, text in enumerate(turns):
            text.session = turns
            text.near = lambda by, turns=turns, at=at: turns[at - by] if 0 <= at - by < len(turns) else None


WORDS = st.lists(st.sampled_from(["tea", "green", "car", "shoe", "run", "\u6771\u4eac"]), max_size=8)
# No more than two, as are the tokens of a query: the sum of more depends on their order.
TERMS = st.lists(st.sampled_from(["tea", "green", "car", "absent", ("shoe", "run", "absent")]), max_size=2, unique=True)
ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 2),
        WORDS,
        st.sampled_from([*PASSAGES, *PASSAGES[1:]]),
        st.sampled_from(TOKENS),
        SITUATIONS,
        st.sampled_from(["facts", "skill"]),
        SPACE,
    ),
    min_size=1,
    max_size=12,
)


@examples(150)
@given(ENTRIES, QUERIES, TERMS)
def test_scores_are_those_of_the_formulas(entries: list[tuple[Any, ...]], query: Query, terms: list[Term]):
    query = replace(query, terms=terms)
    scopes, texts = [Scope(), Scope(), Scope()], list[Text]()
    for at, (scope, words, passages, tokens, situation, kind, space) in enumerate(entries):
        joined = " ".join(words)
        op = Op(
            *("put", scope, str(at), joined, passages, tokens, situation, MODEL, ANALYZER, kind, float(at)),
            asked=False,
            space=space,
        )
        asks = at % 3 == 0
        document = _document(op)._replace(terms=joined, text=joined + "?" * asks)
        scopes[scope].rows[str(at)] = Change(at + 1, str(at), kind, float(at), document)
        texts.append(Text((scope, str(at)), float(at), kind, words, situation, passages, tokens, space, asks))
    _with_neighbours(texts)
    expected = _reference(texts, query)
    indexes = [scope.rebuilt() for scope in scopes]
    statistics = CollectionStatistics.of(indexes, query.terms)
    for scope, index in enumerate(indexes):
        bm25, coverage = index.bm25(query.terms, statistics)
        found = {(scope, key): (float(bm25[slot]), float(coverage[slot])) for slot, key in enumerate(index.keys)}
        for text in texts:
            if text.key in found:
                assert found[text.key] == pytest.approx((text.bm25, text.coverage), rel=1e-4, abs=1e-6)
    hits = _hits(scopes, indexes, query)
    assert {(scope, key): score for scope, key, score, *_ in hits} == pytest.approx(expected, rel=1e-3, abs=1e-3)
    order = [(-score, -int(key)) for _, key, score, *_ in hits]
    assert order == sorted(order)
    for _, _, score, chance, shares in hits:
        assert sum(shares.values()) == pytest.approx(score, abs=1e-4)
        assert 0 <= chance <= 1
