"""Names: who said a text, when two are the same, and which ones a query names."""

from __future__ import annotations

import pytest

from inference_core.retrieval.query import Named, asks_something, author_of, by_canonical, canonical_name


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("Jos\u00e9's", "jose"),
        ("JOSE", "jose"),
        ("Mary-Ann  Lee.", "mary-ann lee"),
        ("?!", ""),
        ("\u674e\u96f7", "\u674e\u96f7"),
    ],
    ids=["accent_and_possessive", "capitals", "words", "nothing", "han"],
)
def test_names_are_compared_folded(name: str, canonical: str):
    assert canonical_name(name) == canonical


@pytest.mark.parametrize(
    ("text", "author"),
    [
        ("Ida: I moved", "Ida"),
        ("Mary Ann Lee: hi", "Mary Ann Lee"),
        ("\u674e\u96f7\uff1a\u4f60\u597d", "\u674e\u96f7"),
        ("Note that: no", None),
        ("A B C D: no", None),
        ("Ida:", None),
        ("at 10:30", None),
        ("x" * 99 + ": no", None),
    ],
    ids=range(8),
)
def test_an_author_is_a_short_name_before_a_colon(text: str, author: str | None):
    assert author_of(text) == author


def test_a_query_names_whole_words():
    named = Named("What does Jos\u00e9's cat think? \u674e\u96f7\u559c\u6b22\u4ec0\u4e48")
    assert [name in named for name in ("jose", "cat", "jo", "what", "\u674e\u96f7", "\u674e", "\u738b\u82b3")] == [
        True,
        True,
        False,
        False,
        True,
        False,
        False,
    ]


def test_names_without_letters_are_none_and_questions_end_in_a_mark():
    assert by_canonical(["Ida", "IDA", "?"]) == {"ida": "IDA"}
    assert asks_something("Is it? (photo)")
    assert not asks_something("Is it? " + "Yes, it is. " * 9)
