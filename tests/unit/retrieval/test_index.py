"""ScopeIndex: postings and vectors that follow the changes of a scope."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from inference_core.retrieval.documents import Change, Document
from inference_core.retrieval.index import CollectionStatistics, ScopeIndex

MODEL = "m"
EAST, NORTH = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
_seq = count(1)


def _put(key: str, terms: str, vector: np.ndarray | None = None, *, kind: str = "facts", model: str = MODEL) -> Change:
    packed = None if vector is None else vector.astype(np.float32).tobytes()
    document = Document(text=terms, terms=terms, analyzer="english-1", model=model, vector=packed)
    return Change(next(_seq), key, kind, 0.0, document)


def _delete(key: str) -> Change:
    return Change(next(_seq), key, "", 0.0, None)


def _index(*changes: Change) -> ScopeIndex:
    index = ScopeIndex(MODEL)
    index.update(changes)
    return index


def _scores(index: ScopeIndex, *terms: str) -> dict[str, tuple[float, float]]:
    scores, coverage = index.bm25(terms, CollectionStatistics.of([index], terms))
    return {
        index.keys[slot]: (float(scores[slot]), float(coverage[slot]))
        for slot in range(index.slots)
        if index.alive[slot] and scores[slot] > 0
    }


def _cosines(index: ScopeIndex, query: np.ndarray = EAST) -> dict[str, float]:
    found = index.cosine(query.astype(np.float32))
    return {
        index.keys[slot]: float(found[slot])
        for slot in range(index.slots)
        if index.alive[slot] and not np.isnan(found[slot])
    }


def test_an_empty_index_finds_nothing():
    index = _index()
    assert (len(index), index.slots, index.head, index.length, index.nbytes) == (0, 0, 0, 0, 0)
    assert _scores(index, "tea") == {}
    assert _cosines(index) == {}
    assert index.document_frequency("tea") == 0


def test_bm25_follows_the_formula():
    index = _index(_put("a", "tea tea green"), _put("b", "tea"), _put("c", "car"))
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
    index = _index(_put("a", "tea green"), _put("b", "tea"), _put("c", "car"))
    statistics = CollectionStatistics.of([index], ["tea", "green", "absent"])
    weights = {term: statistics.idf(term) for term in ("tea", "green", "absent")}
    found = _scores(index, "tea", "green", "absent", "tea")
    total = sum(weights.values())
    assert found["a"][1] == pytest.approx((weights["tea"] + weights["green"]) / total, rel=1e-6)
    assert found["b"][1] == pytest.approx(weights["tea"] / total, rel=1e-6)


def test_statistics_are_those_of_all_indexes_together():
    one, two = _index(_put("a", "tea green"), _put("b", "car")), _index(_put("c", "tea"))
    statistics = CollectionStatistics.of([one, two], ["tea", "absent"])
    assert (statistics.documents, statistics.length) == (3, 4)
    assert statistics.frequency == {"tea": 2, "absent": 0}
    assert statistics.idf("tea") == pytest.approx(math.log(1 + 1.5 / 2.5))
    assert statistics.idf("absent") == pytest.approx(math.log(1 + 3.5 / 0.5))


def test_a_term_that_every_document_holds_still_counts():
    index = _index(*(_put(str(at), "tea") for at in range(50)))
    assert CollectionStatistics.of([index], ["tea"]).idf("tea") > 0


def test_a_changed_text_replaces_the_old_one():
    index = _index(_put("a", "tea green"), _put("a", "car"))
    assert (len(index), index.slots, index.length) == (1, 2, 1)
    assert _scores(index, "tea") == {}
    assert list(_scores(index, "car")) == ["a"]
    assert (index.document_frequency("tea"), index.document_frequency("car")) == (0, 1)


def test_a_deleted_document_is_gone():
    index = _index(_put("a", "tea", EAST), _put("b", "tea", NORTH), _delete("a"), _delete("never there"))
    assert (len(index), index.length) == (1, 1)
    assert list(_scores(index, "tea")) == ["b"]
    assert list(_cosines(index)) == ["b"]


def test_a_document_can_come_back():
    index = _index(_put("a", "tea", EAST), _delete("a"), _put("a", "tea"))
    assert list(_scores(index, "tea")) == ["a"]
    assert _cosines(index) == {}


def test_a_changed_kind_takes_effect_with_the_same_text():
    index = _index(_put("a", "tea", EAST), _put("a", "tea", EAST, kind="goals"))
    living = [slot for slot in range(index.slots) if index.alive[slot]]
    assert [index.kinds[slot] for slot in living] == ["goals"]
    assert _cosines(index) == {"a": 1.0}


def test_the_head_is_the_last_change():
    changes = [_put("a", "tea"), _delete("b"), _put("c", "")]
    assert _index(*changes).head == changes[-1].seq


def test_a_text_without_terms_is_found_by_its_vector_only():
    index = _index(_put("a", "", EAST))
    assert (len(index), index.length) == (1, 0)
    assert _scores(index, "") == {}
    assert _cosines(index) == {"a": 1.0}


def test_cosines_are_those_of_the_vectors():
    half = np.array([0.6, 0.8])
    index = _index(_put("a", "x", EAST), _put("b", "y"), _put("c", "z", half))
    assert _cosines(index) == pytest.approx({"a": 1.0, "c": 0.6})
    assert _cosines(index, NORTH) == pytest.approx({"a": 0.0, "c": 0.8})


def test_a_vector_that_comes_later_is_taken_over_in_place():
    index = _index(_put("a", "tea"), _put("b", "tea", NORTH))
    assert list(_cosines(index)) == ["b"]
    index.update([_put("a", "tea", EAST)])
    assert _cosines(index) == {"a": 1.0, "b": 0.0}
    assert index.slots == 2


@pytest.mark.parametrize("last", [_put("a", "tea"), _put("a", "tea", NORTH, model="other")], ids=["none", "other"])
def test_the_last_of_several_changes_of_a_key_counts(last: Change):
    assert _cosines(_index(_put("a", "tea", EAST), last)) == {}
    assert _cosines(_index(_put("a", "tea", EAST), last, _put("a", "tea", NORTH))) == {"a": 0.0}


def test_a_vector_of_another_size_is_left_out():
    index = _index(_put("a", "x", EAST), _put("b", "y", np.ones(3)))
    assert _cosines(index) == {"a": 1.0}
    index.update([_put("a", "x", np.ones(3))])
    assert _cosines(index) == {}


def test_the_creation_time_follows_a_document_that_was_deleted_and_came_back():
    old, new = (_put("a", "tea")._replace(created_at=moment) for moment in (5.0, 9.0))
    index = _index(old)
    index.update([new])
    assert [float(index.created[slot]) for slot in range(index.slots) if index.alive[slot]] == [9.0]


def test_vectors_of_another_model_are_left_out():
    index = _index(_put("a", "x", EAST, model="other"), _put("b", "y", EAST))
    assert list(_cosines(index)) == ["b"]
    index.update([_put("b", "y", np.ones(3), model="other")])
    assert _cosines(index) == {}


def test_a_query_of_another_length_has_no_cosines():
    assert _cosines(_index(_put("a", "x", EAST)), np.ones(3)) == {}


@pytest.mark.parametrize("with_vectors", [True, False])
def test_an_index_grows_beyond_its_first_room(with_vectors: bool):
    vectors = [np.array([at % 2, 1 - at % 2]) if with_vectors else None for at in range(200)]
    index = _index(*(_put(str(at), f"tea t{at}", vector) for at, vector in enumerate(vectors)))
    assert len(_scores(index, "tea")) == len(index) == 200
    assert list(_scores(index, "t150")) == ["150"]
    expected = {str(at): float(at % 2) for at in range(200)} if with_vectors else {}
    assert _cosines(index) == expected


def test_terms_of_another_analysis_are_made_again_in_the_index():
    document = Document(text="Running shoes", terms="Running", analyzer="other-0")
    index = _index(Change(1, "a", "facts", 0.0, document))
    assert list(_scores(index, "run")) == ["a"]
    assert _scores(index, "Running") == {}


def test_an_index_of_mostly_dead_slots_is_sparse():
    index = _index(*(_put("a", f"t{at}") for at in range(64)))
    assert not index.is_sparse
    index.update([_put("a", "another")])
    assert index.is_sparse
    assert not _index(*(_put(str(at), "tea") for at in range(200))).is_sparse


def test_the_size_grows_with_slots_terms_and_vectors():
    sizes = [
        _index().nbytes,
        _index(_put("a", "")).nbytes,
        _index(_put("a", "tea green")).nbytes,
        _index(_put("a", "tea green", EAST)).nbytes,
    ]
    assert sizes == sorted(set(sizes))
