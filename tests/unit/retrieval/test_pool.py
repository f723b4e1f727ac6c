"""Several indexes as one collection."""

from __future__ import annotations

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, delete, floats, index_of, put

from inference_core.retrieval.index import CollectionStatistics, ScopeView
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, SPACES

NONE = float("nan")


def _keys(pool: Pool) -> list[str]:
    return [pool.views[place.owner].keys[place.slot] for place in pool.places(np.arange(len(pool)))]


def _three() -> Pool:
    """A session in each of two indexes, among dead slots and texts without a session; the third index is empty."""
    first = index_of(
        put("b", "tea", EAST, created=2, session="s", kind="goals"),
        put("dead", "tea tea tea", EAST, EAST),
        put("a", "green tea", NORTH, WEST, created=1, session="s"),
        delete("dead"),
        put("c", "car"),
    )
    second = index_of(put("d", "tea", created=4, session="s"), put("e", "car", WEST, created=3, session="s"))
    return Pool([first, index_of(), second])


def test_the_living_documents_of_all_indexes_have_a_position_each():
    pool = _three()
    assert _keys(pool) == ["c", "a", "b", "e", "d"]
    assert pool.owners.tolist() == [0, 0, 0, 2, 2]
    assert list(pool.places(np.array([1, 4]))) == [Place(0, 2), Place(2, 0)]
    assert pool.order.session.tolist() == [0, 1, 1, 2, 2]


def test_columns_and_kinds_are_given_by_position():
    pool = _three()
    assert pool.column("created").tolist() == [0, 1, 2, 3, 4]
    assert pool.kinds_in(frozenset({"goals", "other"})).tolist() == [False, False, True, False, False]
    assert not pool.kinds_in(frozenset()).any()


def test_terms_are_weighed_by_the_statistics_of_all_indexes():
    pool = _three()
    scores, coverage = pool.bm25(["tea"])
    statistics = CollectionStatistics.of(pool.views, ["tea"])
    assert (statistics.documents, statistics.length, statistics.frequency["tea"]) == (5, 6, 3)
    mean = 6 / 5
    one, two = (2.2 / (1 + 1.2 * (0.25 + 0.75 * length / mean)) for length in (1, 2))
    idf = statistics.idf("tea")
    assert scores.tolist() == pytest.approx([0, idf * two, idf * one, 0, idf * one])
    assert coverage.tolist() == [0, 1, 1, 0, 1]


def test_products_and_vectors_are_those_of_the_documents():
    pool = _three()
    assert pool.products({PLAIN: floats(*WEST)}).tolist() == pytest.approx([NONE, 1, -1, 1, NONE], nan_ok=True)
    positions, vectors = pool.first_vectors(np.array([4, 3, 0, 2, 1]))
    assert positions.tolist() == [3, 2, 1]
    assert vectors.tolist() == [list(WEST), list(EAST), list(NORTH)]


def test_of_vectors_of_several_sizes_the_largest_count():
    pool = Pool([index_of(put("a", "x", EAST)), index_of(put("b", "x", (0.0, 0.0, 1.0)))])
    positions, vectors = pool.first_vectors(np.array([0, 1]))
    assert (positions.tolist(), vectors.tolist()) == ([1], [[0, 0, 1]])


def test_the_mean_vector_is_that_of_all_living_passages():
    assert _three().mean_vector(PLAIN, 2).tolist() == [-0.25, 0.25]


def test_the_mean_vector_is_taken_from_vectors_of_the_wanted_size():
    pool = Pool([index_of(put("a", "x", EAST)), index_of(put("b", "x", (0.0, 0.0, 1.0)))])
    assert pool.mean_vector(PLAIN, 2).tolist() == [1, 0]
    assert pool.mean_vector(PLAIN, 3).tolist() == [0, 0, 1]
    assert pool.mean_vector(PLAIN, 4).tolist() == [0, 0, 0, 0]
    assert pool.products({PLAIN: floats(*EAST)}).tolist() == pytest.approx([1, NONE], nan_ok=True)


@pytest.mark.parametrize(
    "indexes",
    [[], [index_of()], [index_of(), index_of(put("a", "tea", EAST), delete("a"))]],
    ids=["none", "one", "two"],
)
def test_a_collection_without_documents(indexes: list[ScopeView]):
    pool = Pool(indexes)
    scores, coverage = pool.bm25(["tea"])
    created = pool.column("created")
    assert len(pool) == len(scores) == len(coverage) == len(created) == len(pool.products({PLAIN: floats(*EAST)})) == 0
    assert pool.kinds_in(frozenset({"facts"})).tolist() == []
    assert pool.mean_vector(PLAIN, 2).tolist() == [0, 0]
    assert len(pool.first_vectors(np.array([], np.intp))[0]) == 0


def test_columns_are_those_of_the_living_documents():
    index = index_of(put("a"), put("b"))
    assert len(index.columns.died) == 2
    assert Pool([index, index_of(put("c"))]).column("importance").tolist() == [0.5, 0.5, 0.5]


def test_how_close_documents_are_to_each_other_by_their_first_vectors():
    first = index_of(put("a", "", (1, 0, 0, 1), (0, 0, 0, 1)), put("b", "", (0, 1, 0, 1)), put("none", "tea"))
    second = index_of(put("c", "", (1, 0, 0, 1)), put("d", "", (0, 0, 1, 1)))
    pool = Pool([first, second, index_of(put("other size", "", EAST))])
    alike = pool.alike([Place(0, 0), Place(1, 0), Place(0, 1), Place(0, 2), Place(2, 0)])
    assert alike.shape == (5, 5)
    assert alike[0, 1] == pytest.approx(1)
    assert alike[0, 2] == pytest.approx(alike[2, 1].item())
    assert alike[0, 2] < 0.35
    assert np.isnan(alike[3:]).all()
    assert np.isnan(alike[:, 3:]).all()


@pytest.mark.parametrize("count", [2, 3, 4, 8, 40])
def test_unrelated_documents_are_not_alike_however_few_there_are(count: int):
    """The mean of a few vectors holds much of each, so that two unrelated ones looked opposed, alike ones unrelated."""
    vectors = np.hstack([np.eye(count), np.ones((count, 1))])
    pool = Pool([index_of(*(put(str(at), "", tuple(one)) for at, one in enumerate(vectors.tolist())))])
    alike = pool.alike([Place(0, 0), Place(0, 1)])
    assert alike[0, 1] == pytest.approx(0, abs=1e-3)
    assert alike[0, 0] == pytest.approx(1, abs=1e-3)


def test_without_any_vector_nothing_is_known_to_be_alike():
    assert np.isnan(Pool([index_of(put("a", "tea"))]).alike([Place(0, 0)])).all()


def test_each_space_has_its_own_mean_and_share():
    pool = Pool(
        [
            index_of(put("a", "x", EAST), put("b", "x", NORTH, WEST, space=MULTILINGUAL), put("c", "x")),
            index_of(put("d", "x", WEST, space=MULTILINGUAL)),
            index_of(),
        ]
    )
    assert pool.held_spaces == {PLAIN, MULTILINGUAL}
    spaces = {"a": PLAIN, "b": MULTILINGUAL, "c": SPACES, "d": MULTILINGUAL}
    assert dict(zip(_keys(pool), pool.spaces.tolist(), strict=True)) == spaces
    assert pool.mean_vector(PLAIN, 2).tolist() == [1, 0]
    assert pool.mean_vector(MULTILINGUAL, 2).tolist() == pytest.approx([-2 / 3, 1 / 3])
    assert (pool.share_in(MULTILINGUAL), Pool([]).share_in(MULTILINGUAL)) == (0.75, 0.0)
    products = dict(zip(_keys(pool), pool.commonness({PLAIN: 2, MULTILINGUAL: 2}).tolist(), strict=True))
    assert products == pytest.approx({"a": 1, "b": 2 / 3, "c": NONE, "d": 2 / 3}, nan_ok=True)
