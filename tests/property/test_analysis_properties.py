"""Index terms, whatever the text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_support import examples
from retrieval_support import analyze_query

from inference_core.retrieval import analysis
from inference_core.retrieval.analysis import (
    LATIN_LANGUAGES,
    MAX_TERM_CHARACTERS,
    STEMMERS,
    analyze,
    folded,
    is_content_token,
    language_of,
    without_accents,
)

MANY = examples(150)
MARKS = "\u0345\u0301\u0323\u200d\u00ad\u0640\u0e33\u093c\u0958\uff76\uff9e"
PRONE = st.text(alphabet=f"{MARKS}\u0130\u0131\u00df\u1e9e\u03c2\u2126\ufdfa\u00e9'-.:@/+#_ aA1", max_size=12)
WORDS = st.lists(
    st.sampled_from(
        [
            *("die", "the", "la", "of", "Katzen", "cats", "gatos", "l'avion", "3.14"),
            *("\u0142\u00f3d\u017a", "caf\u00e9", "\u043a\u043e\u0448\u043a\u0438", "\u6771\u4eac"),
        ]
    ),
    max_size=6,
).map(" ".join)
ANY_TEXT = st.text(alphabet=st.characters(), max_size=60) | PRONE | WORDS


@MANY
@given(ANY_TEXT)
@example("\ud800\x00")
@example("\u0345\u0300")
def test_terms_are_never_empty_never_long_and_hold_no_space(text: str):
    terms = analyze(text)
    assert [term for term in terms if not term or " " in term or len(term) > 2 * MAX_TERM_CHARACTERS] == []
    assert terms == analyze(text)
    assert " ".join(terms).split(" ") == (terms or [""])


@MANY
@given(ANY_TEXT)
@example("\u0130stanbul")
@example("\u1e9e\u0301")
@example("\u30ab\u200b\u3099")
def test_folding_is_idempotent(text: str):
    once = folded(text)
    assert folded(once).split() == once.split()
    bare = without_accents(once)
    assert without_accents(bare) == bare


@MANY
@given(
    st.text(alphabet=st.characters(max_codepoint=0x24F, exclude_characters="\u0131\u0149\u017f"), max_size=40) | WORDS
)
def test_case_makes_no_difference(text: str):
    assert analyze(text.upper()) == analyze(text.lower())


@MANY
@given(st.text(alphabet=st.characters(max_codepoint=0x7F), max_size=40))
def test_plain_text_is_analysed_as_if_it_were_not_plain(text: str):
    assert analyze(f"{text} \u2022") == analyze(text)


@MANY
@given(ANY_TEXT)
def test_a_text_is_found_by_itself(text: str):
    terms = analyze_query(text)
    assert len(terms) == len(set(terms))
    document = set(analyze(text))
    assert not terms or document & set(terms)


@MANY
@given(ANY_TEXT)
def test_a_language_is_one_that_is_known(text: str):
    assert language_of(text) in {"", "he", "th", "lo", "my", "km", "ko", "ja", "zh", *LATIN_LANGUAGES, *STEMMERS}


@MANY
@given(st.text(max_size=8))
def test_a_content_token_holds_a_letter_or_a_digit(token: str):
    assert not is_content_token(token) or any(letter.isalnum() for letter in token)


@MANY
@given(
    st.sampled_from(sorted(STEMMERS)), st.text(alphabet=st.characters(categories=["L", "M"]), min_size=1, max_size=70)
)
def test_a_stemmer_takes_any_word(language: str, word: str):
    assert analysis._stem(word, language)
