"""Long texts by passage."""

from __future__ import annotations

import pytest

from inference_core.retrieval.documents import MAX_PASSAGES, PASSAGE_WORDS, passages

HAN = "\u5b57"
FULL_STOP = "\u3002"


@pytest.mark.parametrize(
    "text",
    ["", " ", "  a short text \n", "word " * PASSAGE_WORDS, " " * 5_000, HAN * 2 * PASSAGE_WORDS],
    ids=["empty", "blank", "short", "as long as may be", "long blank", "Han"],
)
def test_a_text_that_is_not_too_long_stays_as_it_is(text: str):
    assert passages(text) == [text]


def test_one_word_more_makes_two_passages():
    first, second = passages("word " * PASSAGE_WORDS + "last")
    assert (first, second) == (" ".join(["word"] * PASSAGE_WORDS), "last")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two three. Four five! Six?  Seven.", ["One two three.", "Four five! Six? Seven."]),
        ("One two three\nfour five\n\n six seven", ["One two three", "four five six seven"]),
        ("It costs 3.50 now. Buy it at example.com today.", ["It costs 3.50 now.", "Buy it at example.com", "today."]),
        ("one two three four five six seven eight nine", ["one two three four", "five six seven eight", "nine"]),
        ("Ah. One two three four five six. Oh.", ["Ah.", "One two three four", "five six. Oh."]),
        (f"{HAN * 5}{FULL_STOP}{HAN * 24}{FULL_STOP}", [f"{HAN * 5}{FULL_STOP}", *[HAN * 8] * 3 + [FULL_STOP]]),
        (f"{HAN * 3}{FULL_STOP}" * 5, [f"{HAN * 3}{FULL_STOP} {HAN * 3}{FULL_STOP}"] * 2 + [f"{HAN * 3}{FULL_STOP}"]),
    ],
    ids=[
        "sentences",
        "lines",
        "points within words",
        "a long sentence",
        "a long one among others",
        "Han",
        "Han sentences",
    ],
)
def test_passages_end_with_sentences_where_that_is_possible(text: str, expected: list[str]):
    assert passages(text, 4) == expected


@pytest.mark.parametrize("characters", [181, 900, 10_000])
def test_scripts_without_spaces_count_two_characters_to_a_word(characters: int):
    found = passages(HAN * characters)
    assert len(found) == -(-characters // (2 * PASSAGE_WORDS))
    assert found[:-1] == [HAN * 2 * PASSAGE_WORDS] * (len(found) - 1)
    assert "".join(found) == HAN * characters


def test_what_is_beyond_the_last_passage_belongs_to_it():
    words = [f"w{number}." for number in range(100)]
    found = passages(" ".join(words), 1)
    assert found == [*words[: MAX_PASSAGES - 1], " ".join(words[MAX_PASSAGES - 1 :])]
