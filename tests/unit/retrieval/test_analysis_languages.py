"""The language of a text."""

from __future__ import annotations

import pytest
import Stemmer

from inference_core.retrieval.analysis import LATIN_LANGUAGES, MAX_SAMPLE, STEMMERS, WORDS, language_of, stop_words


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is the house?", "en"),
        ("Katze und Hund", "de"),
        ("H\u00e4user kaufen", "de"),
        ("El gato duerme", "es"),
        ("\u00bfD\u00f3nde vive Ana?", "es"),
        ("J'ai un chien", "fr"),
        ("J\u2019ai soif", "fr"),
        ("Dove abita il mio amico?", "it"),
        ("Onde mora a Ana?", "pt"),
        ("Waar woont Jan?", "nl"),
        ("Gdzie mieszka Anna?", "pl"),
        ("\u017b\u00f3\u0142w", "pl"),
        ("Var bor du?", "sv"),
        ("Miss\u00e4 h\u00e4n asuu?", "fi"),
        ("Kde je m\u016fj k\u013e\u00fa\u010d", "cs"),
        ("Nerede ya\u015f\u0131yor?", "tr"),
        ("\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "ru"),
        ("\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1", "el"),
        ("\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "ar"),
        ("\u05e9\u05dc\u05d5\u05dd", "he"),
        ("\u0928\u092e\u0938\u094d\u0924\u0947", "hi"),
        ("\uc548\ub155\ud558\uc138\uc694", "ko"),
        ("\u3053\u308c\u306f\u732b\u3067\u3059", "ja"),
        ("\u6771\u4eac\u90fd\u306b\u4f4f\u3080", "ja"),
        ("\u6211\u559c\u6b22\u559d\u8336", "zh"),
        ("\u0e09\u0e31\u0e19\u0e0a\u0e2d\u0e1a\u0e0a\u0e32", "th"),
    ],
    ids=ascii,
)
def test_a_language_is_known_by_its_script_its_words_or_its_letters(text: str, language: str):
    assert language_of(text) == language


@pytest.mark.parametrize("text", ["", "green tea", "123 !?", "\U0001f600", "die hard", "Met Anna"], ids=ascii)
def test_what_gives_nothing_away_has_no_language(text: str):
    assert language_of(text) == ""


@pytest.mark.parametrize(
    "text",
    ["no me", "She met Jos\u00e9 at the caf\u00e9 in S\u00e3o Paulo", "I like Tokyo \u6771\u4eac very much", "in was"],
    ids=ascii,
)
def test_english_wins_a_tie(text: str):
    assert language_of(text) == "en"


@pytest.mark.parametrize(
    "text", ["Pediatrician is now Dr. \u00d6zt\u00fcrk", "Lives in \u0141\u00f3d\u017a"], ids=ascii
)
def test_regression_a_foreign_name_makes_no_text_foreign(text: str):
    """Each letter counted, so that a name outvoted the words, and the text was embedded by the other model."""
    assert language_of(text) == "en"


def test_the_script_with_more_words_decides():
    assert (
        language_of(
            "deploy \u043d\u0430 \u0441\u0435\u0440\u0432\u0435\u0440 \u0441\u0435\u0433\u043e\u0434\u043d\u044f"
        )
        == "ru"
    )
    assert language_of("We deploy to \u0441\u0435\u0440\u0432\u0435\u0440 today") == "en"


def test_text_beyond_the_sample_does_not_count():
    assert language_of("x " * (MAX_SAMPLE // 2) + "the house") == ""


def test_stop_words_are_lower_case_and_belong_to_a_language_that_can_be_told():
    for language in (*LATIN_LANGUAGES, *WORDS["other"]):
        words = stop_words(language)
        assert len(words) > 40
        assert [word for word in words if word != word.lower()] == []
    assert stop_words("ja") == stop_words("") == frozenset()


def test_each_stemmer_exists():
    assert set(STEMMERS.values()) <= set(Stemmer.algorithms())


def test_content_words_that_larger_lists_leave_out_are_kept():
    assert not stop_words("es") & {"trabajo", "tiempo", "d\u00eda"}
    assert not stop_words("de") & {"jahr", "mensch", "uhr", "heute"}


@pytest.mark.parametrize("name", ["Ada", "Ben", "Mia", "Tom", "Kim", "Ella", "Hans"])
def test_a_given_name_does_not_decide(name: str):
    assert language_of(f"{name} owns two bakeries") in ("", "en")
