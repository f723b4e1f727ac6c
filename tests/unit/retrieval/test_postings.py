"""The inverted index, sorted and waiting."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.retrieval.documents import Term
from inference_core.retrieval.postings import Postings


def _found(postings: Postings, term: Term) -> dict[int, int]:
    slots, counts = postings.find(term)
    assert len(set(slots.tolist())) == len(slots)
    return {int(slot): int(count) for slot, count in zip(slots, counts, strict=True)}


def test_a_new_index_holds_nothing():
    postings = Postings()
    postings.settle()
    assert _found(postings, "tea") == {}
    assert _found(postings, ("tea", "teas")) == {}


def test_forms_count_as_one_term_by_the_commonest():
    postings = Postings()
    postings.add(0, ["tea", "teas", "teas"])
    postings.add(1, ["tea"])
    assert _found(postings, ("tea", "teas", "absent")) == {0: 2, 1: 1}


def test_many_questions_are_answered_anew():
    postings = Postings()
    postings.add(0, [f"w{number}" for number in range(200)])
    for number in [*range(200), *range(200)]:
        assert _found(postings, f"w{number}") == {0: 1}
    postings.add(1, ["w7"])
    assert _found(postings, "w7") == {0: 1, 1: 1}


def test_counts_end_at_255():
    postings = Postings()
    postings.add(0, ["tea"] * 5_000)
    assert _found(postings, "tea") == {0: 255}
    postings.settle()
    assert _found(postings, "tea") == {0: 255}


@pytest.mark.parametrize("portion", [1, 500], ids=["one by one", "at once"])
def test_large_indexes_are_sorted_and_still_take_more(portion: int):
    postings = Postings()
    texts = [[f"w{slot % 7}", "all", "all", f"only{slot}"] for slot in range(3_000)]
    for slot, words in enumerate(texts):
        postings.add(slot, words)
        if slot % portion == 0:
            postings.settle()
    for term in ("w3", "all", "only17", "only2999", "none"):
        expected = {slot: words.count(term) for slot, words in enumerate(texts) if term in words}
        assert _found(postings, term) == expected
    assert postings.nbytes < 200 * len(texts)


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=6), max_size=30), st.integers(0, 30))
def test_what_is_found_does_not_depend_on_what_is_sorted(texts: list[list[str]], at: int):
    postings = Postings()
    for slot, words in enumerate(texts):
        postings.add(slot, words)
        if slot == at:
            postings._sort()  # pyright: ignore[reportPrivateUsage] - without thousands of terms
    for term in "abcdef":
        assert _found(postings, term) == {
            slot: Counter(words)[term] for slot, words in enumerate(texts) if term in words
        }
