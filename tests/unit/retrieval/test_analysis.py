"""From text to index terms."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from retrieval_support import analyze_query
from support import each

from inference_core.retrieval import analysis
from inference_core.retrieval.analysis import (
    MAX_CHARACTERS,
    MAX_GUESSED_WORDS,
    MAX_QUERY_CHARACTERS,
    MAX_QUERY_WORDS,
    MAX_TERM_CHARACTERS,
    META_WORDS,
    STOP_WORDS,
    analyze,
    is_content_token,
    query_alternatives,
)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  \n\t", []),
        ("the of and", []),
        ("Running runners RUN", ["run", "runner", "run"]),
        ("Anna's car", ["anna", "car"]),
        ("Anna\u2019s car", ["anna", "car"]),
        ("it's", []),
        ("she didn't go", ["go"]),
        ("port 8080 v2 ext4", ["port", "8080", "v2", "ext4"]),
        ("e-mail", ["e", "mail"]),
        ("and/or tea", ["tea"]),
        ("STRASSE stra\u00dfe", ["strass", "strass"]),
        ("\uff26\uff55\uff4c\uff4c", ["full"]),
        ("rock'n'roll", ["rock'n'roll"]),
        ("soft\u00adhyphen", ["softhyphen"]),
        ("\u200fabc\u200f\ufeff", ["abc"]),
        ("one\x00two\ud800three", ["one", "two", "three"]),
        (
            "\u0413\u0440\u0443\u0437\u0438\u044f \u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8",
            ["\u0433\u0440\u0443\u0437", "\u10d7\u10d1\u10d8\u10da\u10d8\u10e1\u10d8"],
        ),
        (
            "\u05d0\u05e0\u05d9 \u05d2\u05e8 \u05d1\u05d7\u05d9\u05e4\u05d4",
            ["\u05d2\u05e8", "\u05d1\u05d7\u05d9\u05e4\u05d4"],
        ),
    ],
    ids=ascii,
)
def test_text_becomes_terms(text: str, terms: list[str]):
    assert analyze(text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("PostgreSQL-15", ["postgresql", "15", "postgresql-15"]),
        ("INC-2041", ["inc", "2041", "inc-2041"]),
        ("23:30", ["23", "30", "23:30"]),
        ("3.14", ["3", "14", "3.14"]),
        ("v2.1.3", ["v2", "1", "3", "v2.1.3"]),
        ("ann@b.com", ["ann", "b", "com", "ann@b.com"]),
        ("https://example.com/a-page", ["https", "exampl", "com", "page"]),
        ("issue#42", ["issu", "42", "issue#42"]),
        ("snake_case", ["snake", "case", "snake_case"]),
        ("C++, C# and #tag", ["c", "c++", "c", "c#", "tag"]),
        ("GPT\u6a21\u578bv2", ["gpt", "\u6a21\u578b", "v2"]),
    ],
    ids=ascii,
)
def test_codes_and_names_are_found_whole_and_by_their_parts(text: str, terms: list[str]):
    assert analyze(text) == terms
    assert set(analyze_query(text)) >= set(terms)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("\u6f22", ["\u6f22"]),
        ("\u6f22\u5b57", ["\u6f22\u5b57"]),
        ("\u6771\u4eac\u90fd", ["\u6771\u4eac", "\u4eac\u90fd"]),
        ("Python\u5f00\u53d1", ["python", "\u5f00\u53d1"]),
        ("\uff76\uff9e\uff72\uff84\uff9e", ["\u30ac\u30a4", "\u30a4\u30c9"]),
        ("\ud55c\uad6d\uc5b4", ["\ud55c\uad6d", "\uad6d\uc5b4"]),
        ("\u4f50\u3005\u6728", ["\u4f50\u3005", "\u3005\u6728"]),
        ("\u0e41\u0e21\u0e27", ["\u0e41\u0e21", "\u0e21\u0e27"]),
        ("\u0e01\u0e34\u0e19\u0e19\u0e49", ["\u0e01\u0e34\u0e19", "\u0e19\u0e19\u0e49"]),
        ("\u0ea5\u0eb2\u0ea7", ["\u0ea5\u0eb2", "\u0eb2\u0ea7"]),
        ("\u1781\u17d2\u1798\u17c2\u179a", ["\u1781\u17d2\u1798\u17c2", "\u1798\u17c2\u179a"]),
    ],
    ids=ascii,
)
def test_scripts_without_spaces_become_bigrams_of_letters_with_their_marks(text: str, terms: list[str]):
    assert analyze(text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("\U0001f600\u200d\U0001f525 !?", ["\U0001f600", "\U0001f525"]),
        ("tea\u2764\ufe0f", ["tea", "\u2764"]),
        ("\U0001f44d\U0001f3fd", ["\U0001f44d"]),
        ("\U0001f1e9\U0001f1ea", ["\U0001f1e9\U0001f1ea"]),
        ("\u2500\u2500 tea \u2022", ["tea"]),
    ],
    ids=["joined", "variant", "skin", "flag", "drawing"],
)
def test_emoji_are_terms(text: str, terms: list[str]):
    assert analyze(text) == terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Lodz", "\u0141\u00f3d\u017a"),
        ("cafe", "caf\u00e9"),
        ("cafe", "cafe\u0301"),
        ("Muller", "M\u00fcller"),
        ("smorrebrod", "sm\u00f8rrebr\u00f8d"),
        ("Istanbul", "\u0130stanbul"),
        ("\u0435\u043b\u043a\u0430", "\u0451\u043b\u043a\u0438"),
        ("\u0643\u062a\u0627\u0628", "\u0643\u0650\u062a\u0627\u0628\u064c"),
        ("\u0643\u062a\u0627\u0628", "\u0643\u062a\u0640\u0640\u0627\u0628"),
        ("\u03c0\u03cc\u03bb\u03b7", "\u03c0\u03bf\u03bb\u03b7"),
        ("\u05e9\u05dc\u05d5\u05dd", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd"),
    ],
    ids=ascii,
)
def test_accents_make_no_difference(one: str, other: str):
    assert set(analyze_query(one)) & set(analyze(other))
    assert set(analyze_query(other)) & set(analyze(one))


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("Katze Haus", "Die Katzen sind in den H\u00e4usern"),
        ("gato blanco", "Los gatos blancos duermen en la casa"),
        ("\u00bfD\u00f3nde trabajas?", "Mi hermana trabaja en el hospital"),
        ("canci\u00f3n", "Las canciones que me gustan"),
        ("chat noir", "Les chats noirs sont dans la maison"),
        ("maison", "J'habite une maison \u00e0 Paris"),
        ("avion", "Il a pris l\u2019avion pour Rome"),
        ("Quand part l'avion ?", "Les avions partent \u00e0 midi"),
        ("herbata", "Bardzo lubi\u0119 herbat\u0119"),
        ("Kto ma ksi\u0105\u017cki?", "Ona ma ksi\u0105\u017ck\u0119 o ptakach"),
        (
            "\u043a\u043e\u0448\u043a\u0430",
            "\u041c\u043e\u0438 \u043a\u043e\u0448\u043a\u0438",
        ),
        (
            "\u0433\u0434\u0435 \u043a\u043d\u0438\u0433\u0430",
            "\u043e\u043d \u0447\u0438\u0442\u0430\u0435\u0442 \u043a\u043d\u0438\u0433\u0438",
        ),
        (
            "\u0643\u062a\u0627\u0628",
            "\u0642\u0631\u0623\u062a \u0627\u0644\u0643\u062a\u0627\u0628 \u0623\u0645\u0633",
        ),
        ("\u0928\u0926\u0940", "\u0928\u0926\u093f\u092f\u094b\u0902 \u092e\u0947\u0902 \u092a\u093e\u0928\u0940"),
        ("What does Weber want?", "Herr Weber hat das nicht gesagt"),
        ("ferie Roma", "Le ferie sono state belle e siamo andati a Roma"),
    ],
    ids=ascii,
)
def test_a_query_finds_other_forms_of_its_words_in_its_language(query: str, document: str):
    assert set(analyze_query(query)) & set(analyze(document))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Die Katzen m\u00f6gen keine Milch", ["katz", "katzen", "mog", "mogen", "milch"]),
        ("J'aime l'\u00e9t\u00e9 et l\u2019hiver \u00e0 Paris", ["aim", "hiv", "hiver", "paris", "pari"]),
        ("\u0928\u092e\u0938\u094d\u0924\u0947 \u092e\u0947\u0902", ["\u0928\u092e\u0938\u094d\u0924"]),
    ],
    ids=["de", "fr", "hi"],
)
def test_a_word_of_another_language_has_its_stem_there_and_in_english(text: str, terms: list[str]):
    assert analyze(text) == terms


@pytest.mark.parametrize(
    "text", ["Flour, \u00bd a cup, and coffee", "Some tea\u2026 and coffee", "Acme\u2122 and coffee"]
)
def test_regression_characters_that_become_several_do_not_cut_the_end_of_the_text(text: str):
    assert analyze(text)[-1:] == analyze("coffee")


def test_a_typographic_apostrophe_is_an_apostrophe():
    assert analyze("O\u2019Brien doesn\u2019t know") == analyze("O'Brien doesn't know") == ["o'brien", "know"]


@pytest.mark.parametrize("text", ["don't", "I'm", "you\u2019re", "we've", "he'll", "she'd", "it's", "that\u2019s"])
def test_a_contraction_of_stop_words_is_no_term(text: str):
    assert analyze(text) == []


@pytest.mark.parametrize("name", ["d'souza", "d'artagnan", "t'pol", "o'brien", "m'bappe"])
def test_a_name_with_an_apostrophe_is_a_term(name: str):
    assert analyze(name.title()) == [name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\u0130stanbul'da ya\u015f\u0131yorum", "\u0130stanbul"),
        ("Ankara\u2019ya ta\u015f\u0131nd\u0131", "Ankara nerede?"),
        ("Czyta ksi\u0105\u017cki Kennedy'ego", "Kennedy"),
    ],
    ids=["locative", "dative", "Polish"],
)
def test_regression_a_name_is_found_without_the_ending_after_its_apostrophe(text: str, name: str):
    assert not set(analyze(text)).isdisjoint(analyze_query(name))


def test_a_stop_word_is_no_term():
    assert [word for word in STOP_WORDS if analyze(f"{word} {word.upper()}")] == []


def test_a_stop_word_with_an_apostrophe_has_no_parts():
    assert analyze("J'ai une voiture rouge et un chat noir dans le jardin")[0] == "voitur"


@pytest.mark.parametrize(("word", "stemmed"), [("prefers", "prefer"), ("flies", "fli"), ("b2b", "b2b"), ("2nd", "2nd")])
def test_words_are_stemmed_unless_they_hold_digits(word: str, stemmed: str):
    assert analyze(word) == [stemmed]


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("What did Anna say about her house?", ["anna", "hous"]),
        ("Can you remind me what we discussed about the budget in our previous conversation?", ["budget"]),
        ("How many cats did she mention?", ["cat"]),
        ("What did she say?", ["say"]),
        ("What is it?", []),
        ("tea and tea", ["tea"]),
        ("Was hat Anna zur Order gesagt?", ["anna", "ord", "order", "gesagt"]),
    ],
)
def test_a_query_is_cleaned_of_english_words_about_asking(query: str, terms: list[str]):
    assert analyze_query(query) == terms


def test_the_alternatives_of_a_word_stand_together():
    assert query_alternatives("the green teas") == [("green",), ("tea",)]
    assert query_alternatives("Wo sind die Katzen?") == [("katz", "katzen")]
    assert query_alternatives("\u6771\u4eac\u90fd") == [("\u6771\u4eac",), ("\u4eac\u90fd",)]


def test_only_a_short_query_is_stemmed_in_languages_that_are_guessed():
    short = " ".join(["katzen"] * MAX_GUESSED_WORDS)
    assert analyze_query(short) == ["katz", "katzen", "kats"]
    assert analyze_query(f"{short} katzen") == ["katzen"]
    assert analyze_query("state-of-the-art") == ["stat", "state", "art"]


@pytest.mark.parametrize("token", ["house", "2041", "##ning", "\u6771", "caf\u00e9"], ids=ascii)
def test_a_token_with_a_subject_is_a_content_token(token: str):
    assert is_content_token(token)


@each(["", "?", "##-", "the", "##s", "what", "t", *sorted(META_WORDS)])
def test_a_function_word_or_punctuation_is_no_content_token(token: str):
    assert not is_content_token(token)


def test_text_beyond_the_limit_is_not_analysed():
    assert analyze("\u6f22" * MAX_CHARACTERS + "beyond") == ["\u6f22\u6f22"] * (MAX_CHARACTERS - 1)
    assert len(analyze("tea " * 1_000_000)) == MAX_CHARACTERS // 4
    assert analyze_query(" " * MAX_QUERY_CHARACTERS + "tea") == []
    assert len(analyze_query(" ".join(f"w{number}" for number in range(100)))) == MAX_QUERY_WORDS


def test_a_long_word_is_cut():
    assert analyze("9" * MAX_TERM_CHARACTERS) == analyze("9" * 5_000) == ["9" * MAX_TERM_CHARACTERS]


def test_a_long_compound_is_not_a_term():
    assert analyze("1-" * 40) == ["1"] * 40
    assert analyze("1-" * 31 + "1") == [*["1"] * 32, "1-" * 31 + "1"]


HOSTILE = {
    "word": "x" * 65_536,
    "words": " ".join(f"wording{number}s" for number in range(6_000)),
    "french": "le la " + " ".join(f"nation{number:x}ements" for number in range(5_000)),
    "han": "".join(chr(0x4E00 + number * 7_919 % 20_000) for number in range(65_536)),
    "marks": "a" + "\u0301\u0323" * 32_768,
    "ligatures": "\ufdfa" * 65_536,
    "hyphens": "b-" * 32_768,
    "apostrophes": "b'" * 32_768,
    "dots": "." * 65_536,
    "surrogates": "\ud800" * 65_536,
    "emoji": "\U0001f600" * 65_536,
    "thai": "\u0e19\u0e49\u0e33" * 20_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_huge_query_takes_little_time(text: str):
    analyze_query("loads the stemmers")
    started = time.thread_time()
    analyze_query(text)
    assert time.thread_time() - started < 0.1


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_huge_text_takes_a_bounded_time(text: str):
    started = time.thread_time()
    assert all(0 < len(term) <= 2 * MAX_TERM_CHARACTERS for term in analyze(text))
    assert time.thread_time() - started < 1


def test_threads_do_not_disturb_each_others_stems():
    words = [f"{prefix}nationalizing{suffix}" for prefix in "bcdfgh" for suffix in ("s", "es", "ly", "ness")]
    expected = [analysis._stem(word, "en") for word in words]
    found: list[list[str]] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: found.append([analysis._stem(word, "en") for word in words]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == [expected] * 4
