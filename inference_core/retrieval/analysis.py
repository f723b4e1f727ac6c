"""From text to index terms: words folded and stemmed, stop words left out, scripts without spaces as bigrams.

Stemmers are Snowball's, by the script of a word and, for Latin script, by the language of the text. A word of another
language is also indexed under its English stem, so that queries of unknown language, in English, or without accents
still find it. Bigrams follow Lucene's CJK analysis; case folding and NFKC follow the Unicode Standard (annexes 15 and
31). Unlike in ``re``, marks count as letters, so the vowel signs of Devanagari and Thai do not split words.

Which language a text is in: by its script, and among Latin scripts by function words and letters of its own.

Own rules instead of a library: texts are short, so a single function word decides. py3langid needs 4.6 MB and a matrix
product per text, and answers "la" or "eo" for two words instead of "unknown".
"""

from __future__ import annotations

import threading
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, pairwise
from typing import Any, Final, cast

import Stemmer

from inference_core.lazy import lazy_pattern

WORDS: Final[dict[str, Any]] = tomllib.loads((files(str(__package__)) / "words.toml").read_text("utf-8"))
"""The lists of ``words.toml``."""
STOP_WORDS: Final = frozenset(WORDS["latin"]["en"].split())
"""English function words, too frequent to tell one memory from another."""
META_WORDS: Final = frozenset(WORDS["meta_words"].split())
"""English words of a query that are about asking and about the conversation itself, not about what was said in it."""
LATIN_LANGUAGES: Final = tuple(WORDS["latin"])
"""Languages in Latin script that can be told apart. With equal evidence, the earlier one wins."""
STEMMERS: Final[Mapping[str, str]] = WORDS["stemmers"]
"""The name of Snowball's stemmer by ISO 639-1 code."""
MAX_SAMPLE: Final = 512
"""Only this many characters at the start of a text are examined."""
_SCRIPTS: Final = lazy_pattern("|".join(f"(?P<{name}>[{letters}]+)" for name, letters in WORDS["scripts"].items()))
_BEYOND_LATIN: Final = lazy_pattern("[^\\x00-\u024f\u1e00-\u1eff\u2000-\u20ff]")
_IDEOGRAPHIC: Final = frozenset({"ja", "zh", "ko", "th", "lo", "my", "km"})
_LETTERS_A_WORD: Final = 3
"""So many letters of the scripts in `_IDEOGRAPHIC` count as a word."""
_WORD: Final = lazy_pattern(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def language_of(text: str) -> str:
    """The ISO 639-1 code of the language of ``text``; "" if unknown, "en" if it fits as well as any other.

    Only the first 512 characters count. A script shared by several languages gives the most frequent one: Cyrillic
    "ru", Arabic "ar", Devanagari "hi".
    """
    sample = text[:MAX_SAMPLE]
    if _BEYOND_LATIN.search(sample):
        counts: dict[str, float] = {}  # words by script
        for run in _SCRIPTS.finditer(sample):
            name = str(run.lastgroup)
            words = max(1, len(run.group()) / _LETTERS_A_WORD) if name in _IDEOGRAPHIC else 1
            counts[name] = counts.get(name, 0) + words
        if "ja" in counts:
            counts["ja"] += counts.pop("zh", 0)
        script = max(counts, key=lambda name: (counts[name], name == "Latin"), default="Latin")
        if script != "Latin":
            return script
    folded = sample.casefold().replace("\u2019", "'")
    return latin_language(_WORD.findall(folded), folded)


def latin_language(words: Iterable[str], text: str) -> str:
    """The language of a text in Latin script, by its folded ``words`` and its letters; "" without evidence.

    English, unless another language has more function words and letters in it than English has function words.
    """
    by_word, by_letter = _evidence()
    evidence = [found for word in words if (found := by_word.get(word))]
    if not text.isascii():
        evidence += _by_letters(text, by_letter)
    elif all(found[0] == "en" for found in evidence):
        return "en" if evidence else ""
    counts = Counter(language for languages in evidence for language in languages)
    return max(LATIN_LANGUAGES, key=counts.__getitem__) if counts else ""


def _by_letters(text: str, by_letter: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """For each word of ``text`` with letters that no word before it had, the languages that have most of these.

    By word, as a foreign name is one, however many such letters it has: "Pediatrician is now Dr. Öztürk".
    """
    left = set(text) & by_letter.keys()
    for word in text.split() if left else ():
        if own := left.intersection(word):
            left -= own
            counts = Counter(language for letter in own for language in by_letter[letter])
            yield tuple(language for language, count in counts.items() if count == max(counts.values()))


def script_language(letter: str) -> str:
    """The language of the script ``letter`` belongs to; "" for Latin and unknown scripts."""
    match = _SCRIPTS.match(letter)
    return "" if match is None or match.lastgroup in (None, "Latin") else str(match.lastgroup)


@cache
def stop_words(language: str) -> frozenset[str]:
    """The function words of a language in lower case; none for a language without a list."""
    lists: dict[str, str] = WORDS["latin"] | WORDS["other"]
    return frozenset(lists.get(language, "").split())


@cache
def _evidence() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """For each function word, and for each letter, the languages that have it, in order."""
    also_english = set(WORDS["also_english"].split())
    by_word = _inverted({language: stop_words(language) - also_english for language in LATIN_LANGUAGES})
    return by_word, _inverted(WORDS["letters"])


def _inverted(entries: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for language, items in entries.items():
        for item in items:
            found[item] = (*found.get(item, ()), language)
    return found


ANALYZER: Final = "snowball-5"
"""Version of this analysis. Terms stored by another version are recomputed from the text."""
MAX_CHARACTERS: Final = 32_768
"""Text beyond this many characters is not analysed."""
MAX_TERM_CHARACTERS: Final = 64
MAX_QUERY_CHARACTERS: Final = 2_048
"""Text of a query beyond this many characters is not analysed."""
MAX_QUERY_WORDS: Final = 48
"""At most this many distinct words of a query are searched, because the postings of each one are read."""
GUESSED_LANGUAGES: Final = ("de", "es", "fr", "it", "pt", "nl", "pl")
"""The languages tried for a query in Latin letters whose language is unknown."""
MAX_GUESSED_WORDS: Final = 6
UNSPACED: Final = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3\u3005-\u3007\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Han, Kana and Hangul, for a character class: scripts without spaces between words."""
MARKS: Final = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3\u3099\u309a"
"""Marks of those scripts, for a character class."""
_MOST_EXPANDED: Final = 4
_NOISE: Final = lazy_pattern(r"([^\w\s]{32})[^\w\s]+")
_KEPT: Final = frozenset("_'-.:@/+#")
_DROPPED_BEFORE_STEMMING: Final = lazy_pattern(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]"
)
_REPLACED: Final = {"\u0451": "\u0435", "\u2018": "'", "\u2019": "'", "\u02bc": "'", "\u2010": "-", "\u2212": "-"}
_EMOJI: Final = lazy_pattern("[\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001f1e5\U0001f200-\U0001faff]")
_FLAGS: Final = lazy_pattern("[\U0001f1e6-\U0001f1ff]")
_WITHOUT_DECOMPOSITION: Final = str.maketrans(WORDS["plain_letters"])
_ACCENTS: Final = lazy_pattern("[\u0300-\u036f]")
_HAS_LATIN_OR_GREEK: Final = lazy_pattern("[a-z\u00df-\u024f\u0370-\u03ff\u1e00-\u1fff]")
_JOINERS: Final = "'\\-.:@/+#"
_TOKEN: Final = lazy_pattern(
    rf"[{UNSPACED}]+|[^{UNSPACED} {_JOINERS}]+(?:(?:://|[{_JOINERS}])[^{UNSPACED} {_JOINERS}]+)*(?:\+\+|#)?"
)
_ASCII_TOKEN: Final = lazy_pattern(rf"[a-z0-9_]+(?:(?:://|[{_JOINERS}])[a-z0-9_]+)*(?:\+\+|#)?")
_CLUSTER: Final = lazy_pattern(rf"[{UNSPACED}][{MARKS}]*")
UNSPACED_LETTER: Final = lazy_pattern(rf"[{UNSPACED}]")
_PART: Final = lazy_pattern(r"[^\-.:@/+#_]+")
_WHOLE: Final = lazy_pattern(r"[\d@+#_]")
_NOT_STEMMED: Final = lazy_pattern(r"[\d']")
_stemmer: Final = cache(cast("Any", Stemmer).Stemmer)  # it has no type stubs
_LOCK: Final = threading.Lock()
"""Stemmers are not thread-safe: each keeps the word that it works on."""
_CONTRACTED: Final = frozenset({"", "s", "t", "d", "m", "re", "ve", "ll"})
_ELIDED: Final = frozenset(WORDS["elided"].split())
_ELIDING: Final = {("ca",), ("fr",), ("it",)}
_ENDING_APART: Final = {("pl",), ("tr",)}
"""The languages that put an apostrophe between a name and its ending."""


def analyze(text: str) -> list[str]:
    """The index terms of ``text`` in their order, with repetitions. Never raises."""
    words, language = _words(text[:MAX_CHARACTERS])
    terms: list[str] = []
    for word in words:
        # A run without spaces may be as long as the text, which is too much for the cache.
        terms += _terms(word, language) if len(word) <= MAX_TERM_CHARACTERS else _terms.__wrapped__(word, language)
    return terms


def words_by_term(text: str) -> dict[str, str]:
    """The index terms of the first 2,048 characters of ``text``, each with the last word that gave it."""
    words, language = _words(text[:MAX_QUERY_CHARACTERS])
    return {term: word for word in words for term in _terms(word[:MAX_TERM_CHARACTERS], language)}


def query_alternatives(text: str) -> list[tuple[str, ...]]:
    """For each distinct word of a query, its alternative index terms; a document matches with any one of them.

    English question words and words about the conversation are left out, unless nothing else remains. The words of a
    short query of unknown language are stemmed as in several languages.
    """
    words, language = _words(text[:MAX_QUERY_CHARACTERS])
    languages = (language,) if language else GUESSED_LANGUAGES if len(words) <= MAX_GUESSED_WORDS else ()
    subject = [word for word in words if word not in META_WORDS] if language == "en" else words
    return _alternatives(subject, languages) or _alternatives(words, languages)


def is_content_token(token: str) -> bool:
    """Whether a lower-case token of a query, a word or a piece of one, carries content.

    English function words, words about the conversation, and punctuation do not.
    """
    word = token.removeprefix("##")
    return any(map(str.isalnum, word)) and word not in STOP_WORDS and word not in META_WORDS


def _words(text: str) -> tuple[list[str], str]:
    """The tokens of a text, and the language of those in Latin letters."""
    if text.isascii():
        letters = text.lower()
        words: list[str] = _ASCII_TOKEN.findall(letters)
    else:
        letters = folded(text)
        words = _TOKEN.findall(letters)
    return words, latin_language(words, letters)


def _alternatives(words: Iterable[str], languages: tuple[str, ...]) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], None] = {}
    for forms in chain.from_iterable(_atoms(word, languages) for word in words):
        found[forms] = None
        if len(found) == MAX_QUERY_WORDS:
            break
    return list(found)


@lru_cache(maxsize=65_536)
def _terms(word: str, language: str) -> tuple[str, ...]:
    return tuple(chain.from_iterable(_atoms(word, (language,) if language else ())))


def _atoms(word: str, languages: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """The parts of a token, each with its terms: bigrams, or words and, for a code or a name, also the whole."""
    if UNSPACED_LETTER.match(word):
        clusters = _CLUSTER.findall(word)
        bigrams = [first + second for first, second in pairwise(clusters)] or clusters
        return ((bigram,) for bigram in bigrams)
    if len(languages) == 1 and word in stop_words(languages[0]):
        return ()
    parts = _PART.findall(word)
    forms = filter(None, (_forms(part[:MAX_TERM_CHARACTERS], languages) for part in parts))
    if parts == [word] or len(word) > MAX_TERM_CHARACTERS or not _WHOLE.search(word):
        return forms
    return chain(forms, [(without_accents(word),)])


@lru_cache(maxsize=65_536)
def _forms(word: str, languages: tuple[str, ...]) -> tuple[str, ...]:
    """The terms of a word: its stem in each language and in English; none for a stop word."""
    bare = word.removesuffix("'s")
    script = "" if bare.isascii() else script_language(bare[:1])
    if script:
        return () if bare in stop_words(script) else (without_accents(_stem(bare, script)),)
    if languages in _ELIDING:
        head, _, tail = bare.partition("'")
        bare = tail if tail and head in _ELIDED else bare  # French "l'avion" as "avion"
    head, _, tail = bare.partition("'")
    is_english_stop = (head in STOP_WORDS and tail in _CONTRACTED) or bare.endswith("n't")
    english = "" if is_english_stop else _stem(without_accents(bare), "en")
    if bare in stop_words(languages[0]) if len(languages) == 1 else not english:
        return ()
    own = [without_accents(_stem(bare, language)) for language in languages if language != "en"]
    if languages in _ENDING_APART and tail and len(head) > 1:  # Turkish "Ankara'da" also as "Ankara"; not "O'Brien"
        own += _forms(head, languages)
    return tuple(dict.fromkeys(filter(None, [*own, english])))


def _stem(word: str, language: str) -> str:
    """The stem of a word; the word itself if it has a digit or apostrophe or its language has no stemmer."""
    if language not in STEMMERS or _NOT_STEMMED.search(word):
        return word
    with _LOCK:
        stem: str = _stemmer(STEMMERS[language]).stemWord(word)
    return stem or word


def stem_of(word: str, language: str) -> str:
    """A folded word's stem, in the language of its script or, for Latin, in ``language``; a stop word is unchanged."""
    return next(iter(_forms(word, (language,))), word)


def folded(text: str) -> str:
    """``text`` in lower case, with spaces for everything that is no part of a word; at most four times as long.

    Accents stay, as stemmers need them. Emoji are put between spaces; marks that only modify a letter are removed. Runs
    of more than 32 marks and punctuation characters are cut, because normalising them takes quadratic time.
    """
    # NFKC turns an ellipsis into three characters, and an Arabic ligature into up to eighteen.
    compatible = unicodedata.normalize("NFKC", _NOISE.sub(r"\1", text))[: _MOST_EXPANDED * len(text)]
    letters = unicodedata.normalize("NFC", compatible.casefold()).translate(_LETTERS)
    return unicodedata.normalize("NFC", letters)  # again: a letter and its mark may now be adjacent


@lru_cache(maxsize=65_536)
def without_accents(word: str) -> str:
    """A folded word of Latin or Greek letters without accents: "łódź" as "lodz"; others as they are."""
    if word.isascii() or not _HAS_LATIN_OR_GREEK.search(word):
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", word.translate(_WITHOUT_DECOMPOSITION)))
    return unicodedata.normalize("NFC", bare)


class _Letters(dict[int, str]):
    """The folded form of each code point, computed when the character first occurs."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        category = unicodedata.category(letter)
        made = "" if category == "Cf" else " "
        if letter in _KEPT or _FLAGS.match(letter):
            made = letter
        elif letter in _REPLACED:
            made = _REPLACED[letter]
        elif _DROPPED_BEFORE_STEMMING.match(letter):
            made = ""
        elif _EMOJI.match(letter):
            made = f" {letter} "
        elif category[0] in "LN" or category in ("Mn", "Mc"):
            made = letter
        self[code] = made
        return made


_LETTERS: Final = _Letters()
