"""The inverted index, sorted and waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.retrieval import columns as postings
from inference_core.retrieval.columns import Postings, PostingsView
from inference_core.retrieval.documents import Term

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
