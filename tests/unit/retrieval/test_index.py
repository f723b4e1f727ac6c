"""ScopeIndex: postings and vectors that follow the changes of a scope."""

from __future__ import annotations

import math

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, Vector, delete, floats, index_of, put

from inference_core.retrieval.documents import Change, Document
from inference_core.retrieval.index import CollectionStatistics, ScopeIndex

DIAGONAL, LONGER = (0.6, 0.8), (1.0, 1.0, 1.0)


def _scores(index: ScopeIndex, *terms: str) -> dict[str, tuple[float, float]]:
    scores, coverage = index.bm25(terms, CollectionStatistics.of([index], terms))
    return {
        index.keys[slot]: (float(scores[slot]), float(coverage[slot]))
        for slot in range(index.slots)
        if index.alive[slot] and scores[slot] > 0
    }


def _products(index: ScopeIndex, query: Vector = EAST) -> dict[str, float]:
    found = index.columns.vectors.products(floats(*query), index.slots)
    return {
        index.keys[slot]: float(found[slot])
        for slot in range(index.slots)
        if index.alive[slot] and not np.isnan(found[slot])
    }


def test_an_empty_index_finds_nothing():
    index = index_of()
    assert (len(index), index.slots, index.head, index.length) == (0, 0, 0, 0)
    assert len(index.order.slots) == 0
    assert _scores(index, "tea") == {}
    assert _products(index) == {}
    assert index.document_frequency("tea") == 0


def test_bm25_follows_the_formula():
    index = index_of(put("a", "tea tea green"), put("b", "tea"), put("c", "car"))
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    mean = 5 / 3
    expected = {
        "a": idf * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / mean)),
        "b": idf * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 1 / mean)),
    }
    found = _scores(index, "tea")
    assert {key: score for key, (score, _) in found.items()} == pytest.approx(expected, rel=1e-6)
    assert {key: coverage for key, (_, coverage) in found.items()} == {"a": 1.0, "b": 1.0}


def test_coverage_is_the_share_of_the_querys_idf():
    index = index_of(put("a", "tea green"), put("b", "tea"), put("c", "car"))
    statistics = CollectionStatistics.of([index], ["tea", "green", "absent"])
    weights = {term: statistics.idf(term) for term in ("tea", "green", "absent")}
    found = _scores(index, "tea", "green", "absent", "tea")
    total = sum(weights.values())
    assert found["a"][1] == pytest.approx((weights["tea"] + weights["green"]) / total, rel=1e-6)
    assert found["b"][1] == pytest.approx(weights["tea"] / total, rel=1e-6)


def test_a_term_may_have_several_forms():
    index = index_of(
        put("both", "tea thee tea"), put("one", "thee"), put("dead", "thee tea"), put("none", "car"), delete("dead")
    )
    forms = ("tea", "thee", "absent")
    statistics = CollectionStatistics.of([index], [forms])
    assert (index.document_frequency(forms), statistics.frequency) == (2, {forms: 2})
    scores, coverage = index.bm25([forms], statistics)
    idf, mean = math.log(1 + 1.5 / 2.5), 5 / 3
    norms = [1.2 * (0.25 + 0.75 * length / mean) for length in (3, 1)]
    expected = [idf * 2 * 2.2 / (2 + norms[0]), idf * 2.2 / (1 + norms[1]), 0]
    assert scores[[0, 1, 3]].tolist() == pytest.approx(expected)
    assert coverage[[0, 1, 3]].tolist() == [1, 1, 0]
    assert index.document_frequency(("absent",)) == 0


def test_statistics_are_those_of_all_indexes_together():
    one, two = index_of(put("a", "tea green"), put("b", "car")), index_of(put("c", "tea"))
    statistics = CollectionStatistics.of([one, two], ["tea", "absent"])
    assert (statistics.documents, statistics.length) == (3, 4)
    assert statistics.frequency == {"tea": 2, "absent": 0}
    assert statistics.idf("tea") == pytest.approx(math.log(1 + 1.5 / 2.5))
    assert statistics.idf("absent") == pytest.approx(math.log(1 + 3.5 / 0.5))


def test_a_term_that_every_document_holds_still_counts():
    index = index_of(*(put(str(at), "tea") for at in range(50)))
    assert CollectionStatistics.of([index], ["tea"]).idf("tea") > 0


def test_a_changed_text_replaces_the_old_one():
    index = index_of(put("a", "tea green"), put("a", "car"))
    assert (len(index), index.slots, index.length) == (1, 2, 1)
    assert _scores(index, "tea") == {}
    assert list(_scores(index, "car")) == ["a"]
    assert (index.document_frequency("tea"), index.document_frequency("car")) == (0, 1)


def test_a_deleted_document_is_gone():
    index = index_of(put("a", "tea", EAST), put("b", "tea", NORTH), delete("a"), delete("never there"))
    assert (len(index), index.length) == (1, 1)
    assert list(_scores(index, "tea")) == ["b"]
    assert list(_products(index)) == ["b"]


def test_a_document_can_come_back():
    index = index_of(put("a", "tea", EAST), delete("a"), put("a", "tea"))
    assert list(_scores(index, "tea")) == ["a"]
    assert _products(index) == {}


def test_the_head_is_the_last_change():
    changes = [put("a", "tea")._replace(seq=3), delete("b")._replace(seq=5), put("c", "")._replace(seq=9)]
    index = index_of(*changes)
    assert index.head == 9
    index.update([])
    assert index.head == 9


def test_a_text_without_terms_is_found_by_its_vector_only():
    index = index_of(put("a", "", EAST))
    assert (len(index), index.length) == (1, 0)
    assert _scores(index, "") == {}
    assert _products(index) == {"a": 1.0}


def test_products_are_those_of_the_best_passage():
    index = index_of(put("a", "x", EAST), put("b", "y"), put("c", "z", DIAGONAL, WEST))
    assert _products(index) == pytest.approx({"a": 1.0, "c": 0.6}, abs=1e-3)
    assert _products(index, WEST) == pytest.approx({"a": -1.0, "c": 1.0})


@pytest.mark.parametrize("vectors", [[EAST], [NORTH, EAST, WEST]], ids=["one", "passages"])
def test_a_vector_that_comes_later_is_taken_over_in_place(vectors: list[Vector]):
    index = index_of(put("a", "tea"), put("b", "tea", NORTH))
    assert list(_products(index)) == ["b"]
    for _ in range(2):
        index.update([put("a", "tea", *vectors)])
        assert _products(index) == {"a": 1.0, "b": 0.0}
        assert index.slots == 2
        assert index.columns.vectors.count == 1 + len(vectors)


def test_a_vector_may_follow_its_text_within_the_same_changes():
    index = index_of(put("a", "tea"), put("a", "tea", EAST), put("b", "car"), put("b", "tea"), put("b", "tea", NORTH))
    assert _products(index) == {"a": 1.0, "b": 0.0}
    assert (len(index), index.slots) == (2, 3)


@pytest.mark.parametrize("last", [put("a", "tea"), put("a", "tea", NORTH, model="other")], ids=["none", "other"])
def test_the_last_of_several_changes_of_a_key_counts(last: Change):
    assert _products(index_of(put("a", "tea", EAST), last)) == {}
    assert _products(index_of(put("a", "tea", EAST), last, put("a", "tea", NORTH))) == {"a": 0.0}


def test_a_text_gets_the_vectors_of_its_last_state_only():
    index = index_of(put("a", "tea", EAST, WEST), put("b", "tea", EAST))
    index.update([put("a", "tea", NORTH, NORTH)])
    assert _products(index) == {"a": 0.0, "b": 1.0}
    assert index.columns.vectors.total.tolist() == [1, 2]
    index.update([delete("a"), put("a", "tea", EAST, WEST), delete("b")])
    assert _products(index) == {"a": 1.0}
    assert (index.columns.vectors.total.tolist(), index.columns.vectors.count) == ([0, 0], 2)


def test_a_vector_of_another_size_is_left_out():
    index = index_of(put("a", "x", EAST), put("b", "y", LONGER))
    assert _products(index) == {"a": 1.0}
    index.update([put("a", "x", LONGER)])
    assert _products(index) == {}


@pytest.mark.parametrize(
    "change",
    [
        put("a", "tea", EAST, created=9),
        put("a", "tea", EAST, session="s"),
        put("a", "tea", EAST, by_assistant=True),
        put("a", "tea", EAST, happened=9),
        put("a", "tea", EAST, importance=1),
        put("a", "tea", EAST, kind="goals"),
    ],
    ids=["created", "session", "role", "happened", "importance", "kind"],
)
def test_whatever_changes_takes_effect_with_the_same_text(change: Change):
    index, afresh = index_of(put("a", "tea", EAST), change), index_of(change)
    slot, fresh = int(np.flatnonzero(index.alive)[0]), 0
    assert len(index) == 1
    assert index.kinds[slot] == afresh.kinds[fresh]
    assert _products(index) == {"a": 1.0}
    for name in ("created", "sessions", "by_assistant", "happened", "importance", "ranks", "lengths"):
        assert getattr(index.columns, name)[slot] == getattr(afresh.columns, name)[fresh], name


def test_what_happened_at_no_known_time_happened_when_it_was_stored():
    index = index_of(put("a", created=5), put("b", created=5, happened=-3))
    assert index.columns.happened[:2].tolist() == [5, -3]


def test_the_order_follows_the_changes():
    index = index_of(put("b", created=2, session="s"), put("a", created=1, session="s"), put("c", created=3))
    assert [index.keys[slot] for slot in index.order.slots] == ["c", "a", "b"]
    assert index.order is index.order
    index.update([delete("a"), put("d", created=0, session="s"), put("e", session="t")])
    assert [index.keys[slot] for slot in index.order.slots] == ["c", "d", "b", "e"]


def test_kinds_can_be_asked_for():
    index = index_of(put("a"), put("b", kind="goals"), put("c", kind="skill"), delete("a"))
    of_goals = index.is_of(frozenset({"goals", "unknown"}))
    assert dict(zip((index.keys[slot] for slot in index.order.slots), of_goals.tolist(), strict=True)) == {
        "b": True,
        "c": False,
    }
    assert not index.is_of(frozenset()).any()


def test_vectors_of_another_model_are_left_out():
    index = index_of(put("a", "x", EAST, model="other"), put("b", "y", EAST))
    assert list(_products(index)) == ["b"]
    index.update([put("b", "y", LONGER, model="other")])
    assert _products(index) == {}


@pytest.mark.parametrize("count", [1, 255, 256, 1_000])
def test_a_term_counts_at_most_255_times(count: int):
    index = index_of(put("a", "tea " * count), put("b", "car"))
    counted, mean = min(count, 255), (count + 1) / 2
    expected = math.log(2) * counted * 2.2 / (counted + 1.2 * (0.25 + 0.75 * count / mean))
    assert _scores(index, "tea")["a"][0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("with_vectors", [True, False], ids=["vectors", "no vectors"])
def test_an_index_grows_beyond_its_first_room(with_vectors: bool):
    vectors = [[(EAST, NORTH)[at % 2]] if with_vectors else [] for at in range(200)]
    index = index_of(*(put(str(at), f"tea t{at}", *vector) for at, vector in enumerate(vectors)))
    assert len(_scores(index, "tea")) == len(index) == 200
    assert list(_scores(index, "t150")) == ["150"]
    expected = {str(at): 1.0 - at % 2 for at in range(200)} if with_vectors else {}
    assert _products(index) == expected


def test_terms_of_another_analysis_are_made_again_in_the_index():
    document = Document(text="Running shoes", terms="Running", analyzer="other-0")
    index = index_of(Change(1, "a", "facts", 0.0, document))
    assert list(_scores(index, "run")) == ["a"]
    assert _scores(index, "Running") == {}


def test_an_index_of_mostly_dead_slots_is_sparse():
    index = index_of(*(put("a", f"t{at}") for at in range(64)))
    assert not index.is_sparse
    index.update([put("a", "another")])
    assert index.is_sparse
    assert not index_of(*(put(str(at), "tea") for at in range(200))).is_sparse


def test_the_size_grows_with_slots_terms_and_vectors():
    sizes = [
        index_of().nbytes,
        index_of(put("a", "")).nbytes,
        index_of(put("a", "tea green")).nbytes,
        index_of(put("a", "tea green", EAST)).nbytes,
    ]
    assert sizes == sorted(set(sizes))


def test_the_size_is_that_after_the_last_change():
    index = index_of(put("a", "tea"))
    before = index.nbytes
    assert index.nbytes == before
    index.update([put("b", "green", EAST)])
    assert index.nbytes > before
