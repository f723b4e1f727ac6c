"""From text to index terms."""

from __future__ import annotations

import pytest

from inference_core.retrieval.analysis import ANALYZER, MAX_CHARACTERS, MAX_TERM_CHARACTERS, analyze
from inference_core.retrieval.documents import Document
from inference_core.retrieval.stopwords import STOP_WORDS


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  \n\t", []),
        ("the of and", []),
        ("\U0001f600\u200d\U0001f525 !?", []),
        ("Running runners RUN", ["run", "runner", "run"]),
        ("Anna's car", ["anna", "car"]),
        ("Anna\u2019s car", ["anna", "car"]),
        ("it's", []),
        ("port 8080 v2 ext4", ["port", "8080", "v2", "ext4"]),
        ("snake_case", ["snake_case"]),
        ("e-mail", ["e", "mail"]),
        ("STRASSE stra\u00dfe", ["strass", "strass"]),
        ("\uff26\uff55\uff4c\uff4c", ["full"]),
        ("cafe\u0301 caf\u00e9", ["caf\u00e9", "caf\u00e9"]),
        ("\u6f22", ["\u6f22"]),
        ("\u6f22\u5b57", ["\u6f22\u5b57"]),
        ("\u6771\u4eac\u90fd", ["\u6771\u4eac", "\u4eac\u90fd"]),
        ("Python\u5f00\u53d1", ["python", "\u5f00\u53d1"]),
        ("\uff76\uff9e\uff72\uff84\uff9e", ["\u30ac\u30a4", "\u30a4\u30c9"]),
        ("\ud55c\uad6d\uc5b4", ["\ud55c\uad6d", "\uad6d\uc5b4"]),
        ("\u041c\u043e\u0441\u043a\u0432\u0430", ["\u043c\u043e\u0441\u043a\u0432\u0430"]),
        ("\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", ["\u0645\u0631\u062d\u0628\u0627", "\u0628\u0643"]),
    ],
    ids=ascii,
)
def test_text_becomes_terms(text: str, terms: list[str]):
    assert analyze(text) == terms


def test_a_typographic_apostrophe_is_an_apostrophe():
    assert analyze("O\u2019Brien doesn\u2019t") == analyze("O'Brien doesn't")


@pytest.mark.parametrize("text", ["don't", "I'm", "you\u2019re", "we've", "he'll", "she'd", "it's", "that\u2019s"])
def test_a_contraction_of_stop_words_is_no_term(text: str):
    assert analyze(text) == []


@pytest.mark.parametrize("name", ["d'souza", "d'artagnan", "t'pol", "o'brien", "m'bappe"])
def test_a_name_with_an_apostrophe_is_a_term(name: str):
    assert analyze(name.title()) == [name]


def test_a_stop_word_is_no_term():
    assert [word for word in STOP_WORDS if analyze(f"{word} {word.upper()}")] == []


@pytest.mark.parametrize(("word", "stemmed"), [("prefers", "prefer"), ("flies", "fli"), ("b2b", "b2b"), ("2nd", "2nd")])
def test_words_are_stemmed_unless_they_hold_digits(word: str, stemmed: str):
    assert analyze(word) == [stemmed]


def test_text_beyond_the_limit_is_not_analysed():
    assert analyze("\u6f22" * MAX_CHARACTERS + "beyond") == ["\u6f22\u6f22"] * (MAX_CHARACTERS - 1)
    assert len(analyze("tea " * 1_000_000)) == MAX_CHARACTERS // 4


def test_a_long_word_is_cut():
    assert analyze("9" * MAX_TERM_CHARACTERS) == analyze("9" * 5_000) == ["9" * MAX_TERM_CHARACTERS]


def test_a_document_holds_the_terms_of_its_text():
    document = Document.of("Likes green teas")
    assert (document.text, document.terms, document.analyzer) == ("Likes green teas", "like green tea", ANALYZER)
    assert (document.model, document.vector) == ("", None)
    assert document.current_terms == "like green tea"


def test_terms_of_another_analysis_are_made_again():
    document = Document(text="Likes green teas", terms="likes teas", analyzer="other-0")
    assert document.current_terms == "like green tea"
