"""ScopeIndex: postings and vectors that follow the changes of a scope."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from retrieval_support import EAST, MODEL, NORTH, WEST, Vector, delete, floats, grown, index_of, put

from inference_core.retrieval.documents import Change, Document
from inference_core.retrieval.index import CollectionStatistics, ScopeIndex, ScopeView
from inference_core.retrieval.vectors import PLAIN

DIAGONAL, LONGER = (0.6, 0.8), (1.0, 1.0, 1.0)

KINDS_AND_IMPORTANCE = (
    *(("a", "facts", 1.0), ("b", "preferences", 0.99), ("c", "goals", 0.0)),
    *(("d", "facts", 1.0), ("e", "facts", 1.0), ("f", "facts", 0.5)),
)


def _scores(index: ScopeView, *terms: str) -> dict[str, tuple[float, float]]:
    scores, coverage = index.bm25(terms, CollectionStatistics.of([index], terms))
    return {
        index.keys[slot]: (float(scores[slot]), float(coverage[slot]))
        for slot in range(index.slots)
        if index.alive[slot] and scores[slot] > 0
    }


def _products(index: ScopeView, query: Vector = EAST) -> dict[str, float]:
    found = index.products({PLAIN: floats(*query)})
    return {
        index.keys[slot]: float(found[slot])
        for slot in range(index.slots)
        if index.alive[slot] and not np.isnan(found[slot])
    }


def test_an_empty_index_finds_nothing():
    index = index_of()
    assert (len(index), index.slots, index.seq, index.length) == (0, 0, 0, 0)
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
    weights = {term: statistics.idf(term, 10) for term in ("tea", "green", "absent")}
    assert weights["absent"] > statistics.idf("absent")  # in a small store, a word that is found is not common
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
    index = ScopeIndex(MODEL)
    assert index.update(changes).seq == index.head == 9
    assert index.update([]).seq == index.head == 9


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
    index = ScopeIndex(MODEL)
    before = grown(index, put("a", "tea"), put("b", "tea", NORTH))
    for _ in range(2):
        view = grown(index, put("a", "tea", *vectors))
        assert _products(view) == {"a": 1.0, "b": 0.0}
        assert view.slots == 2
        assert view.vectors.counts.tolist() == [1 + len(vectors), 0]
    assert list(_products(before)) == ["b"]


def test_a_vector_may_follow_its_text_within_the_same_changes():
    index = index_of(put("a", "tea"), put("a", "tea", EAST), put("b", "car"), put("b", "tea"), put("b", "tea", NORTH))
    assert _products(index) == {"a": 1.0, "b": 0.0}
    assert (len(index), index.slots) == (2, 3)


@pytest.mark.parametrize("last", [put("a", "tea"), put("a", "tea", NORTH, model="other")], ids=["none", "other"])
def test_the_last_of_several_changes_of_a_key_counts(last: Change):
    assert _products(index_of(put("a", "tea", EAST), last)) == {}
    assert _products(index_of(put("a", "tea", EAST), last, put("a", "tea", NORTH))) == {"a": 0.0}


def test_a_text_gets_the_vectors_of_its_last_state_only():
    index = ScopeIndex(MODEL)
    grown(index, put("a", "tea", EAST, WEST), put("b", "tea", EAST))
    view = grown(index, put("a", "tea", NORTH, NORTH))
    assert _products(view) == {"a": 0.0, "b": 1.0}
    assert view.vectors.totals.tolist() == [[1, 2], [0, 0]]
    view = grown(index, delete("a"), put("a", "tea", EAST, WEST), delete("b"))
    assert _products(view) == {"a": 1.0}
    assert (view.vectors.totals.tolist(), view.vectors.counts.tolist()) == ([[0, 0], [0, 0]], [2, 0])


def test_a_vector_of_another_size_is_left_out():
    index = ScopeIndex(MODEL)
    assert _products(grown(index, put("a", "x", EAST), put("b", "y", LONGER))) == {"a": 1.0}
    assert _products(grown(index, put("a", "x", LONGER))) == {}
    assert _products(grown(index, delete("b"), put("b", "y", WEST))) == {"b": -1.0}


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
    assert index.kind(slot) == afresh.kind(fresh)
    assert _products(index) == {"a": 1.0}
    for name in ("created", "sessions", "by_assistant", "happened", "importance", "ranks", "lengths"):
        assert getattr(index.columns, name)[slot] == getattr(afresh.columns, name)[fresh], name


def test_what_happened_at_no_known_time_happened_when_it_was_stored():
    index = index_of(put("a", created=5), put("b", created=5, happened=-3))
    assert index.columns.happened[:2].tolist() == [5, -3]


def test_the_order_follows_the_changes():
    index = ScopeIndex(MODEL)
    view = grown(index, put("b", created=2, session="s"), put("a", created=1, session="s"), put("c", created=3))
    assert [view.keys[slot] for slot in view.order.slots] == ["c", "a", "b"]
    assert view.order is view.order
    later = grown(index, delete("a"), put("d", created=0, session="s"), put("e", session="t"))
    assert [later.keys[slot] for slot in later.order.slots] == ["c", "d", "b", "e"]


def test_kinds_can_be_asked_for():
    index = index_of(put("a"), put("b", kind="goals"), put("c", kind="skill"), delete("a"))
    slots = index.order.slots
    of_goals = index.is_of(frozenset({"goals", "unknown"}), slots)
    assert dict(zip((index.keys[slot] for slot in slots), of_goals.tolist(), strict=True)) == {"b": True, "c": False}
    assert not index.is_of(frozenset(), slots).any()
    assert {index.keys[slot]: index.kind(slot) for slot in slots} == {"b": "goals", "c": "skill"}


def test_vectors_of_another_model_are_left_out():
    index = ScopeIndex(MODEL)
    assert list(_products(grown(index, put("a", "x", EAST, model="other"), put("b", "y", EAST)))) == ["b"]
    assert _products(grown(index, put("b", "y", LONGER, model="other"))) == {}


def test_what_is_important_or_of_a_kind_is_found_among_the_living():
    rows = [put(key, kind=kind, importance=of, created=at) for at, (key, kind, of) in enumerate(KINDS_AND_IMPORTANCE)]
    view = index_of(*rows, delete("e"))
    assert [view.keys[slot] for slot in view.important] == ["a", "d"]
    for _ in range(2):  # the second time it is remembered
        assert [view.keys[slot] for slot in view.newest_of(frozenset({"facts", "goals"}))] == ["f", "d", "c", "a"]
        assert [view.keys[slot] for slot in view.newest_of(frozenset({"preferences"}))] == ["b"]
        assert [view.keys[slot] for slot in view.newest_of(None)] == ["f", "d", "c", "b", "a"]


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
    index, other = ScopeIndex(MODEL), ScopeIndex(MODEL)
    grown(index, *(put("a", f"t{at}") for at in range(64)))
    assert not index.is_sparse
    grown(index, put("a", "another"))
    assert index.is_sparse
    grown(other, *(put(str(at), "tea") for at in range(200)))
    assert not other.is_sparse


def test_the_size_grows_with_slots_terms_and_vectors():
    sizes = [
        index_of().nbytes,
        index_of(put("a", "")).nbytes,
        index_of(put("a", "tea green " * 1_000)).nbytes,
        index_of(put("a", "tea green " * 1_000, EAST)).nbytes,
    ]
    assert sizes == sorted(set(sizes))


def test_rows_without_a_text_are_there_and_no_texts():
    hidden = Change(1, "hidden", "notes", 5.0, None)
    index = ScopeIndex(MODEL)
    view = grown(index, put("a", "tea", created=3), hidden)
    assert (len(view), view.length, view.alive.tolist()) == (1, 1, [True, True])
    assert [view.keys[slot] for slot in view.by_age] == ["hidden", "a"]
    assert (view.slot_of("hidden"), view.kind(1)) == (1, "notes")
    assert (view.slots_of(["hidden", "a", "none"]), view.document_frequency("tea")) == ([0], 1)
    view = grown(index, put("hidden", "tea", created=5))
    assert {view.keys[slot] for slot in view.order.slots} == {"a", "hidden"}
    assert grown(index, delete("hidden"), delete("a")).by_age.tolist() == []
    view = grown(index, hidden)
    assert (len(view), [view.keys[slot] for slot in view.by_age]) == (0, ["hidden"])


@pytest.mark.parametrize("created", [[1, 2, 3, 4], [2, 2, 2, 2], [1, 2, 2, 1]], ids=["unequal", "equal", "some"])
def test_rows_by_age_the_newest_first_of_equal_ones_by_key(created: list[float]):
    keys = ["d", "b", "c", "a"]
    view = index_of(*(put(key, "tea", created=at) for key, at in zip(keys, created, strict=True)), delete("gone"))
    expected = [key for _, key in sorted(zip((-at for at in created), keys, strict=True))]
    assert [view.keys[slot] for slot in view.by_age] == expected


def test_a_key_is_found_where_it_was_in_each_view():
    index = ScopeIndex(MODEL)
    changes = [
        *(
            put("a", "tea"),
            put("b", "tea"),
            put("a", "car"),
            delete("a"),
            delete("a"),
            put("a", "tea"),
            put("a", "car"),
        ),
        *(put(f"c{at}", "tea") for at in range(100)),
        put("a", "boat"),
    ]
    views = [grown(index, change) for change in changes]
    expected = [0, 0, 2, None, None, 3, 4, *[4] * 100, 105]
    assert [view.slot_of("a") for view in views] == expected
    assert [view.slot_of("b") for view in views] == [None, *[1] * (len(views) - 1)]
    assert ScopeView().slot_of("a") is None


def test_some_of_the_texts_that_hold_a_term():
    view = index_of(*(put(str(at), "tea") for at in range(9)), delete("0"), put("1", "car"))
    assert sorted(view.holding("tea", 9)) == list(range(2, 9))
    assert len(view.holding("tea", 3)) == 4
    assert view.holding("boat", 3) == []


def test_what_is_ranked_stays_in_its_slot_when_the_rest_of_the_row_is_written():
    """A row whose value changed without its text is another row: who has read it before must read it again."""
    index = ScopeIndex(MODEL)
    before = grown(index, put("a", "tea", EAST), put("b", "tea"))
    after = grown(index, put("a", "tea", EAST))
    assert (after.slots, after.slot_of("a")) == (2, 0)
    assert after.columns.written.tolist() == [3, 2]
    assert (before.seq, before.slot_of("a"), _products(before)) == (2, 0, {"a": 1.0})


def test_changes_that_came_once_may_come_again():
    """A load that fails leaves changes behind that no view shows, and the next one brings them again."""
    changes = [put("a", "tea", EAST), put("b", "tea"), put("a", "car"), delete("b"), put("b", "car", NORTH)]
    numbered = [change._replace(seq=at) for at, change in enumerate(changes, 1)]

    def failing(start: int, end: int) -> Iterator[Change]:
        yield from numbered[start:end]
        raise ConnectionError

    for start, end in combinations_with_replacement(range(len(changes) + 1), 2):
        index = ScopeIndex(MODEL)
        first = index.update(numbered[:start])
        shown = _shown(first)
        with pytest.raises(ConnectionError):
            index.apply(failing(start, end))
        assert (index.head, index.view, _shown(first)) == (start, first, shown)
        again = index.update(numbered[start:])
        assert _shown(again) == _shown(index_of(*changes))


def _shown(view: ScopeView) -> tuple[Any, ...]:
    scores = [_scores(view, term) for term in ("tea", "car")]
    return (
        len(view),
        view.length,
        view.vectors.counts.tolist(),
        view.vectors.totals.tolist() if view.vectors.counts.any() else 0,
        scores,
        _products(view),
    )


def test_the_size_is_that_after_the_last_change():
    index = ScopeIndex(MODEL)
    view = grown(index, put("a", "tea"))
    before = view.nbytes
    assert grown(index).nbytes == before
    assert grown(index, put("b", "green", EAST)).nbytes > before
    assert view.nbytes == before
