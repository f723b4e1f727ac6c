"""Ranking by 8-bit copies of vectors: the order is that of the vectors themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

import numpy as np
import pytest
from retrieval_support import MODEL, asked, delete, floats, grown, put

from inference_core.retrieval import vectors
from inference_core.retrieval.documents import Change
from inference_core.retrieval.index import ScopeIndex, ScopeView
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import EstimatedCloseness, LazyRanking, rank
from inference_core.retrieval.vectors import LARGE, MULTILINGUAL, PLAIN

SIZE, MANY = 24, 4_300
WORDS = ["tea", "green", "car", "red", "boat", "key", "note"]
RANDOM, CHANCE = np.random.default_rng(1), Random(1)


def _some(count: int) -> list[Sequence[float]]:
    found = RANDOM.standard_normal((count, SIZE)) + 0.3
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).tolist()


def _texts(first: int, count: int, *, spaces: int = 1) -> Iterator[Change]:
    """Texts, some of them in sessions, without a vector, with three, or in another space."""
    for number in range(first, first + count):
        passages = 0 if number % 50 == 7 else 3 if number % 40 == 3 else 1
        yield put(
            f"k{number}",
            " ".join(CHANCE.choices(WORDS, k=3)),
            *_some(passages),
            created=number,
            session=f"s{number // 9}" if number % 3 == 0 else "",
            space=MULTILINGUAL if spaces > 1 and number % 4 == 1 else PLAIN,
        )


def _both(*portions: Sequence[Change]) -> tuple[ScopeView, ScopeView]:
    """The view of an index with whole vectors, and of one that was measured after the first of ``portions``."""
    plain, compact = ScopeIndex(MODEL), ScopeIndex(MODEL)
    for number, portion in enumerate(portions):
        with pytest.MonkeyPatch.context() as without:
            without.setattr(vectors, "multiply_codes", None)
            grown(plain, *portion)
        grown(compact, *portion)
        if not number:
            assert (plain.is_unmeasured, compact.is_unmeasured) == (False, True)
            assert EstimatedCloseness.of(Pool([compact.view]), _queries()[0]) is None
            compact.measure()
            assert not compact.is_unmeasured
    return plain.view, compact.view


@pytest.fixture(autouse=True)
def _multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NumPy, whether simsimd is installed or not; and in small blocks, so that there are many."""
    monkeypatch.setattr(vectors, "_BLOCK", 512)
    monkeypatch.setattr(vectors, "multiply_codes", vectors._multiply_by_numpy)


def _queries(*, spaces: int = 1) -> list[Query]:
    return [
        asked(
            CHANCE.sample(WORDS, 2),
            floats(*_some(1)[0]),
            other=floats(*_some(1)[0]) if spaces > 1 else None,
            wants_action=number % 2 == 0,
        )
        for number in range(4)
    ]


def _found(views: Sequence[ScopeView], query: Query, most: int | None) -> list[tuple[str, float, float]]:
    ranking = rank(Pool(views), query, groups=[[owner] for owner in range(len(views))])
    assert isinstance(ranking, LazyRanking)
    hits = islice(ranking.of(range(len(views))), most)
    return [(views[hit.place.owner].keys[hit.place.slot], hit.score, hit.relevance) for hit in hits]


def _assert_alike(plain: Sequence[ScopeView], compact: Sequence[ScopeView], queries: Sequence[Query]) -> None:
    for number, query in enumerate(queries):
        assert EstimatedCloseness.of(Pool(compact), query) is not None
        most = 200 if number else None
        expected, found = _found(plain, query, most), _found(compact, query, most)
        assert [key for key, *_ in found] == [key for key, *_ in expected]
        assert [numbers for _, *numbers in found] == [pytest.approx(numbers, abs=2e-5) for _, *numbers in expected]


@pytest.mark.parametrize("spaces", [1, 2])
def test_the_order_is_the_same_after_any_writes(spaces: int):
    first = list(_texts(0, MANY, spaces=spaces))
    few = [*_texts(MANY, 30, spaces=spaces), *(delete(f"k{number}") for number in range(0, 90, 3))]
    many = [*_texts(MANY + 30, 280, spaces=spaces), *(delete(f"k{number}") for number in range(1, 90, 3))]
    for portions in ([first, few], [first, few, many]):
        plain, compact = _both(*portions)
        assert bool(len(compact.vectors.waiting)) == (portions[-1] is few)
        _assert_alike([plain], [compact], _queries(spaces=spaces))


def test_compact_and_other_indexes_are_ranked_as_one():
    plain, compact = _both(list(_texts(0, MANY)))
    others = [grown(ScopeIndex(MODEL), *_texts(MANY, 200)), ScopeIndex(MODEL).view]
    _assert_alike([plain, *others], [compact, *others], _queries())


def test_a_space_that_comes_later_is_searched_too():
    plain, compact = _both(list(_texts(0, MANY)), [put("late", "tea", *_some(1), space=MULTILINGUAL)])
    assert MULTILINGUAL not in compact.vectors.moments
    _assert_alike([plain], [compact], _queries(spaces=2))


def test_vectors_that_are_all_the_same_say_nothing():
    first = [put(f"k{number}", WORDS[number % 7], [0.2] * SIZE, created=number) for number in range(MANY)]
    plain, compact = _both(first)
    _assert_alike([plain], [compact], _queries())


def test_what_a_view_shows_stays_when_its_index_becomes_large():
    index = ScopeIndex(MODEL)
    texts = list(_texts(0, MANY))
    before = grown(index, *texts[: LARGE - 1])
    query = _queries()[0]
    expected = _found([before], query, 300)
    after = grown(index, *texts[LARGE - 1 :])
    assert (bool(before.vectors.codes), bool(after.vectors.codes)) == (False, True)
    assert after.vectors.first[0].nbytes * 2 == before.vectors.first[0].nbytes
    assert _found([before], query, 300) == expected


def test_a_query_of_another_size_or_without_vectors_is_not_estimated():
    _, compact = _both(list(_texts(0, MANY)))
    pool = Pool([compact])
    for query in (asked(["tea"]), asked(["tea"], floats(1.0, 0.0))):
        assert EstimatedCloseness.of(pool, query) is None
        assert len(list(islice(rank(pool, query).of([0]), 5))) == 5
