"""What says the same, and what adds something."""

from __future__ import annotations

import pytest

from inference_core.retrieval.similarity import diversified, gist, overlap, words_of

LISBON = "The user lives in Lisbon."


@pytest.mark.parametrize(
    "other",
    ["Lives in Lisbon", "lives in LISBON!", "She lives in Lisbon", "The user lives in Lisbon."],
    ids=["shorter", "capitals", "pronoun", "equal"],
)
def test_another_wording_of_the_same_says_the_same(other: str):
    assert gist(LISBON) == gist(other) != frozenset()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Likes coffee", "Does not like coffee"),
        ("Likes coffee", "Never likes coffee"),
        ("The train leaves at 23:30", "The train leaves at 22:30"),
        ("Lives in Lisbon", "Lived in Lisbon"),
        ("Lives in Lisbon", "Lives in Porto"),
        ("Prefers C++", "Prefers C#"),
        ("Budget is -5", "Budget is 5"),
        ("The", "A"),
        ("", ""),
    ],
    ids=["negation", "never", "number", "tense", "place", "symbols", "sign", "empty words", "nothing"],
)
def test_what_changes_the_meaning_does_not_say_the_same(first: str, second: str):
    assert gist(first) != gist(second) or not gist(first)


def test_overlap_is_the_share_of_common_words():
    assert overlap(words_of("green tea"), words_of("black tea")) == pytest.approx(1 / 3)
    assert overlap(words_of("tea"), words_of("tea")) == 1
    assert overlap(words_of(""), words_of("")) == 0


def test_a_repetition_gives_way_to_something_new():
    texts = ["likes green tea", "likes green tea too", "owns a boat"]
    assert diversified([3.0, 2.9, 2.5], texts, 2, 0) == [0, 1]
    assert diversified([3.0, 2.9, 2.5], texts, 2, 1) == [0, 2]
    assert diversified([3.0, 2.9, 2.5], texts, 9, 1) == [0, 2, 1]
    assert diversified([], [], 3, 1) == []
