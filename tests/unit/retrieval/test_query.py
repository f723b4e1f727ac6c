"""What is read from the text of a query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from retrieval_support import EAST, NOW, floats

from inference_core.retrieval.analysis import query_alternatives
from inference_core.retrieval.documents import QueryVectors
from inference_core.retrieval.query import (
    MAX_QUERY_CHARACTERS,
    Named,
    Query,
    asks_something,
    author_of,
    by_canonical,
    canonical_name,
)
from inference_core.retrieval.vectors import PLAIN


def test_a_query_has_the_terms_and_vectors_of_its_text():
    vectors = {PLAIN: QueryVectors(floats(*EAST), floats(EAST, EAST))}
    query = Query.of("Green teas", NOW, vectors)
    assert query.terms == query_alternatives("Green teas")
    assert query.vectors is vectors


def test_without_a_model_there_are_no_vectors():
    query = Query.of("tea", NOW)
    assert not query.ignore_session
    assert (query.vectors, query.interval) == ({}, None)


@pytest.mark.parametrize(
    "text",
    ["", " \n", "the of", "tea", "\u6771\u4eac", "\u0645\u0631\u062d\u0628\u0627", "\U0001f600", "tea " * 16_384],
    ids=["empty", "blank", "stop words", "one word", "Han", "Arabic", "emoji", "64 KB"],
)
def test_any_text_is_a_query(text: str):
    query = Query.of(text, NOW)
    assert query.terms == query_alternatives(text)
    assert query.interval is None


def test_time_is_told_from_the_instant_of_the_query_and_its_zone():
    tokyo = timezone(timedelta(hours=9))
    query = Query.of("What did I do yesterday?", datetime(2026, 1, 15, 2, tzinfo=tokyo))
    start = datetime(2026, 1, 14, tzinfo=tokyo).timestamp()
    assert query.interval == (start, start + 86_400)
    assert query.interval != Query.of("What did I do yesterday?", datetime(2026, 1, 15, 2, tzinfo=UTC)).interval


@pytest.mark.parametrize(
    "text",
    [
        "Book a table for two",
        "plan my trip to Porto.",
        "  Write the report\n",
        "Whatever you do, keep it short",
        "\u8ba2\u4e00\u5f20\u7968",
    ],
    ids=["order", "point", "blanks", "starts like a question", "Han"],
)
def test_a_text_that_is_no_question_wants_action(text: str):
    assert Query.of(text, NOW).wants_action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "my sister's name?",
        "where do I live",
        "WHO is Ana",
        " Is it cold",
        "what's my plan",
        "Book a table? ",
        "\u6211\u4f4f\u5728\u54ea\u91cc\uff1f",
        "\u0623\u064a\u0646 \u0623\u0633\u0643\u0646\u061f",
        "\u03c0\u03bf\u03c5\u037e",
    ],
    ids=["empty", "blank", "mark", "where", "capitals", "is", "what's", "mark and blank", "Han", "Arabic", "Greek"],
)
def test_a_question_wants_no_action(text: str):
    assert not Query.of(text, NOW).wants_action


def test_of_a_long_text_only_the_beginning_is_read():
    text = "tea " * (MAX_QUERY_CHARACTERS // 4)
    assert not Query.of(text[:-1] + "?", NOW).wants_action
    assert Query.of(text + "?", NOW).wants_action


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
