"""The arrays of an index: slots and their vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrieval_support import EAST, NORTH, WEST, Vector, floats, packed

from inference_core.retrieval import index as postings
from inference_core.retrieval import vectors
from inference_core.retrieval.documents import Term
from inference_core.retrieval.index import NEVER, Columns, Postings, PostingsView
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, Vectors, VectorsView

NONE = float("nan")


def _slot(at: int) -> tuple[Any, ...]:
    """One value for each column, unlike those of other slots."""
    return (
        *(at + 1, NEVER - at, NEVER, at / 2, at + 3, 4_294_967_295 - at, at % 5, at - 1),
        *(at % 2 == 1, -at, at / 256, at % 5 == 1, at % 3 == 1, at - 1, -at, at * 2**40),
    )


def _with(vectors: Mapping[int, Sequence[Vector]]) -> Vectors:
    made = Vectors()
    made.set({slot: packed(*rows) for slot, rows in vectors.items()})
    return made


def _products(vectors: VectorsView, known: Sequence[int], query: Vector = EAST, slots: int = 8) -> list[float]:
    """Of the first ``slots``, of which the ``known`` ones have vectors."""
    return vectors.products({PLAIN: floats(*query)}, np.isin(np.arange(slots), known)).tolist()


@pytest.mark.parametrize("portions", [[1], [64], [65], [3, 200], [1] * 130], ids=len)
def test_slots_keep_what_they_were_given_while_the_arrays_grow(portions: list[int]):
    made = Columns.empty()
    start = 0
    for size in portions:
        made.extend(start, [_slot(at) for at in range(start, start + size)])
        start += size
    first = made.first(start)
    for at in range(start):
        assert tuple(getattr(first, name)[at] for name in Columns.__slots__) == _slot(at)
    assert {len(getattr(first, name)) for name in Columns.__slots__} == {start}


def test_no_slots_change_nothing():
    made = Columns.empty()
    made.extend(0, [])
    assert not made.died.any()


def test_the_size_counts_all_arrays():
    slot = 3 * 8 + 8 + 4 + 4 + 4 + 4 + 1 + 8 + 4 + 1 + 1 + 4 + 2 * 8
    made = Columns.empty()
    assert made.nbytes == 64 * slot
    made.extend(0, [_slot(at) for at in range(65)])
    assert made.nbytes == 64 * slot * 5 // 4
    assert _with({}).nbytes == 64
    assert _with({0: [EAST]}).nbytes == 64 * 2 * 4 + 64
    assert _with({0: [EAST, WEST]}).nbytes == 2 * 64 * 2 * 4 + 8 + 64


def test_a_slot_counts_as_the_best_of_its_passages():
    view = _with({0: [WEST, NORTH, EAST], 2: [NORTH], 3: [WEST, NORTH]}).view()
    assert _products(view, [0, 2, 3], slots=4) == pytest.approx([1, NONE, 0, 0], nan_ok=True)
    assert _products(view, [0, 2, 3], WEST, slots=4) == pytest.approx([1, NONE, 0, 1], nan_ok=True)


def test_slots_that_are_not_known_have_no_products():
    view = _with({0: [EAST], 1: [EAST, NORTH], 2: [NORTH]}).view()
    assert _products(view, [0, 2], slots=4) == pytest.approx([1, NONE, 0, NONE], nan_ok=True)


@pytest.mark.parametrize("slots", [10, 64, 65, 130, 200, 8_200])
def test_vectors_that_come_later(slots: int):
    """In any order, in all blocks, while those of the first one grow."""
    made = _with({0: [EAST]})
    last = slots - 1
    before = made.view()
    assert made.set({last: packed(NORTH, EAST), 3: packed(WEST)}) == [3, last]
    products = _products(made.view(), [0, 3, last], slots=slots)
    assert {at: value for at, value in enumerate(products) if not np.isnan(value)} == {0: 1, 3: -1, last: 1}
    assert made.view().rows(np.array([last, 3, 0, last])).tolist() == [[*NORTH], [*WEST], [*EAST], [*NORTH]]
    assert _products(before, [0], slots=slots)[0] == 1
    assert (before.counts[PLAIN], made.view().counts[PLAIN]) == (1, 4)


def test_blocks_keep_their_rows_when_others_are_added(monkeypatch: pytest.MonkeyPatch):
    """Of a portion of rows some may be of one block and some of the next."""
    monkeypatch.setattr(vectors, "_BLOCK", 8)
    monkeypatch.setattr(vectors, "_FEW", 2)
    directions = [EAST, NORTH, WEST]
    for portion in (1, 3, 7, 30):
        made = Vectors()
        views: list[VectorsView] = []
        for start in range(0, 30, portion):
            slots = range(start, min(start + portion, 30))
            made.set({at: packed(directions[at % 3], *([EAST] if at % 4 == 0 else [])) for at in slots})
            views.append(made.view())
        for number, view in enumerate(views, 1):
            size = min(number * portion, 30)
            expected = [1 if at % 4 == 0 else directions[at % 3][0] for at in range(size)]
            assert _products(view, range(size), slots=size) == expected
            assert view.rows(np.arange(size)).tolist() == [[*directions[at % 3]] for at in range(size)]


@pytest.mark.parametrize("portion", [1, 2, 30])
def test_vectors_come_in_any_order(portion: int, monkeypatch: pytest.MonkeyPatch):
    """Texts that waited for their vectors get them in another order than that of their slots."""
    monkeypatch.setattr(vectors, "_BLOCK", 8)
    monkeypatch.setattr(vectors, "_FEW", 2)
    made = Vectors()
    slots = np.random.default_rng(0).permutation(30).tolist()
    for start in range(0, 30, portion):
        made.set({slot: packed((slot, 1.0)) for slot in slots[start : start + portion]})
    assert _products(made.view(), range(30), slots=30) == list(range(30))
    assert made.view().rows(np.array([29, 0, 15]))[:, 0].tolist() == [29, 0, 15]


def test_many_passages_find_room():
    made = _with({slot: [NORTH] * 39 + [EAST if slot % 2 else WEST] for slot in range(8)})
    assert _products(made.view(), range(8)) == [float(slot % 2) for slot in range(8)]
    assert made.counts.tolist() == [8 * 40, 0]


@pytest.mark.parametrize(
    "other",
    [[(1.0, 0.0, 0.0)], [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)], [(1.0,), (1.0,)]],
    ids=["one vector", "passages", "as many bytes"],
)
def test_vectors_of_another_size_than_the_first_are_left_out(other: list[Vector]):
    made = _with({0: [EAST]})
    assert made.set({1: packed(*other), 2: packed(NORTH)}) == [2]
    view = made.view()
    assert _products(view, [0, 2], slots=4) == pytest.approx([1, NONE, 0, NONE], nan_ok=True)
    assert (view.size, view.counts[PLAIN]) == (2, 2)
    assert view.totals[PLAIN].tolist() == [1, 1]


def test_vectors_of_as_many_bytes_are_told_apart_within_one_portion():
    made = Vectors()
    assert sorted(made.set({0: packed(EAST), 1: packed((1.0,), (1.0,)), 2: packed(NORTH)})) == [0, 2]
    assert _products(made.view(), [0, 2], slots=4) == pytest.approx([1, NONE, 0, NONE], nan_ok=True)


def test_each_space_has_its_own_products_counts_and_sums():
    made = Vectors()
    vectors = {0: [EAST, NORTH], 3: [WEST], 200: [NORTH, WEST]}
    spaces = {0: PLAIN, 3: MULTILINGUAL, 200: MULTILINGUAL}
    made.set({slot: packed(*own, space=spaces[slot]) for slot, own in vectors.items()})
    view, known = made.view(), np.isin(np.arange(201), list(vectors))
    assert view.held_spaces == {PLAIN, MULTILINGUAL}
    both = view.products({PLAIN: floats(*NORTH), MULTILINGUAL: floats(*WEST)}, known)
    assert both[list(vectors)].tolist() == [1, 1, 1]
    alone = view.products({MULTILINGUAL: floats(*NORTH)}, known)
    assert alone[list(vectors)].tolist() == pytest.approx([NONE, 0, 1], nan_ok=True)
    assert (view.counts.tolist(), view.totals.tolist()) == ([2, 3], [[1, 1], [-2, 1]])
    made.forget(200)
    assert (made.counts.tolist(), made.totals.tolist()) == ([2, 1], [[1, 1], [-1, 0]])


def test_a_query_of_another_size_has_no_products():
    assert np.isnan(_products(_with({0: [EAST, NORTH]}).view(), [0], (1.0, 0.0, 0.0))).all()
    assert np.isnan(_products(_with({}).view(), [])).all()


def test_the_first_vector_of_a_slot():
    view = _with({1: [NORTH, EAST], 3: [WEST]}).view()
    assert view.rows(np.array([3, 1, 1])).tolist() == [[*WEST], [*NORTH], [*NORTH]]
    assert view.rows(np.array([], np.intp)).shape == (0, 2)
    assert Vectors().view().rows(np.array([], np.intp)).shape == (0, 0)


def test_forgetting_takes_all_passages_of_one_slot_out_of_the_mean_and_no_others():
    made = _with({0: [WEST, EAST], 1: [WEST, EAST, EAST], 2: [NORTH]})
    before = made.view()
    made.forget(1)
    assert (made.counts[PLAIN], made.totals[PLAIN].tolist()) == (3, [0, 1])
    made.forget(2)
    assert (made.counts[PLAIN], made.totals[PLAIN].tolist()) == (2, [0, 0])
    assert (before.counts[PLAIN], before.totals[PLAIN].tolist()) == (6, [1, 1])
    assert _products(before, [0, 1, 2], slots=3) == [1, 1, 0]


def test_the_sum_of_all_vectors_is_exact_in_any_order():
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(60, 3, 16))
    rows = [list(map(tuple, one / np.linalg.norm(one, axis=1, keepdims=True))) for one in drawn]
    kept = {slot: rows[slot][: 1 + slot % 3] for slot in range(30)}
    grown = _with({slot: rows[slot] for slot in range(30, 60)})
    for slot in reversed(range(30)):
        grown.set({slot: packed(*kept[slot])})
    for slot in range(30, 60):
        grown.forget(slot)
    afresh = _with(kept)
    assert grown.totals.tolist() == afresh.totals.tolist()
    assert grown.counts.tolist() == afresh.counts.tolist() == [60, 0]


Texts = list[list[str]]


def _found(view: PostingsView, term: Term) -> dict[int, int]:
    slots, counts = view.find(term)
    assert len(set(slots.tolist())) == len(slots)
    return {int(slot): int(count) for slot, count in zip(slots, counts, strict=True)}


def _held(texts: Sequence[Sequence[str]], term: str) -> dict[int, int]:
    return {slot: min(Counter(words)[term], 255) for slot, words in enumerate(texts) if term in words}


def _of(*texts: Sequence[str]) -> PostingsView:
    made = Postings()
    made.add(range(len(texts)), texts)
    return made.view()


def test_a_new_index_holds_nothing():
    view = Postings().view()
    assert _found(view, "tea") == {}
    assert _found(view, ("tea", "teas")) == {}


def test_texts_without_words_are_held_by_no_term():
    assert _found(_of([], ["tea"], []), "tea") == {1: 1}


def test_forms_count_as_one_term_by_the_commonest():
    assert _found(_of(["tea", "teas", "teas"], ["tea"]), ("tea", "teas", "absent")) == {0: 2, 1: 1}


def test_many_questions_are_answered_anew():
    made = Postings()
    made.add([0], [[f"w{number}" for number in range(200)]])
    view = made.view()
    for number in [*range(200), *range(200)]:
        assert _found(view, f"w{number}") == {0: 1}
    made.add([1], [["w7"]])
    assert _found(made.view(), "w7") == {0: 1, 1: 1}
    assert _found(view, "w7") == {0: 1}


@pytest.mark.parametrize("count", [255, 256, 5_000])
def test_counts_end_at_255_in_the_tail_and_sorted(count: int):
    made = Postings()
    made.add([0], [["tea"] * count])
    tail = slice(made._tail)
    waiting = PostingsView(Postings().view().whole, made._tail_terms[tail], made._tail_slots[tail])
    assert _found(waiting, "tea") == _found(made.view(), "tea") == {0: 255}


@pytest.mark.parametrize("portion", [1, 7, 500, 3_000], ids=str)
def test_large_indexes_are_sorted_and_still_take_more(portion: int):
    """Each view is asked when all is written, and gives what was there when it was made."""
    made = Postings()
    texts = [[f"w{slot % 7}", "all", "all", f"only{slot}"] for slot in range(3_000)]
    views: list[tuple[int, PostingsView]] = []
    for start in range(0, len(texts), portion):
        added = texts[start : start + portion]
        made.add(range(start, start + len(added)), added)
        view = made.view()
        if start % 100 == 0:
            views.append((start + len(added), view))
    views.append((len(texts), made.view()))
    for size, view in views:
        for term in ("w3", "all", "only17", "only2999", "none"):
            assert _found(view, term) == _held(texts[:size], term)
    assert made.nbytes < 200 * len(texts)


WORDS = st.lists(st.lists(st.sampled_from("abcde"), max_size=6), max_size=30)


@given(WORDS, st.integers(0, 30))
def test_what_is_found_does_not_depend_on_what_is_sorted(texts: Texts, at: int):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postings, "_SMALL_TAIL", 1)
        patched.setattr(postings, "_TAIL_SHARE", 1)
        made = Postings()
        for slot, words in enumerate(texts):
            made.add([slot], [words])
            if slot == at:
                made.view()
        view = made.view()
    for term in "abcdef":
        assert _found(view, term) == _held(texts, term)
        assert _found(view, (term, "a")) == {
            slot: max(Counter(words)[term], Counter(words)["a"])
            for slot, words in enumerate(texts)
            if term in words or "a" in words
        }


@given(WORDS, st.integers(1, 8))
def test_a_view_shows_what_was_there_when_it_was_made(texts: Texts, portion: int):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postings, "_SMALL_TAIL", 4)
        patched.setattr(postings, "_TAIL_SHARE", 4)
        made = Postings()
        views: list[PostingsView] = []
        for start in range(0, len(texts), portion):
            added = texts[start : start + portion]
            made.add(range(start, start + len(added)), added)
            views.append(made.view())
    for number, view in enumerate(views, 1):
        for term in "abcdef":
            assert _found(view, term) == _held(texts[: number * portion], term)
