"""Which language a text is in: by its script, and among Latin scripts by function words and letters of its own.

Own rules and no library: texts here are short, so what decides is whether a function word is there; py3langid needs
4.6 MB and a matrix product for each text, and answers "la" or "eo" for two words instead of "I cannot tell".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from inference_core.retrieval.stopword_lists import LATIN, OTHER
from inference_core.retrieval.stopwords import STOP_WORDS

LATIN_LANGUAGES: Final = ("en", *LATIN)
"""Languages of the Latin script that can be told apart; of two with the same evidence the earlier one is taken."""
STEMMERS: Final[Mapping[str, str]] = {
    "ar": "arabic",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
}
"""The name of Snowball's stemmer by ISO 639-1 code."""
MAX_SAMPLE: Final = 512
"""Characters at the start of a text that decide on its language."""
_LETTERS: Final = {
    "de": "äöüß",
    "es": "áéíóúñü¿¡",
    "fr": "àâæçèéêëîïôœùû",
    "it": "àèéìòù",
    "pt": "àáâãçéêíóõú",
    "ca": "àçèéíòóú·",
    "nl": "éëï",
    "pl": "ąćęłńóśźż",
    "sv": "åäö",
    "da": "åæø",
    "no": "åæø",
    "fi": "äö",
    "hu": "áéíóöőúüű",
    "et": "äõöü",
    "lt": "ąčęėįšųūž",
    "cs": "áčďéěíňóřšťúůýž",
    "ro": "ăâîșțşţ",
    "tr": "çğıöşü",
}
_SCRIPTS: Final = {
    "Latin": "A-Za-z\u00c0-\u024f\u1e00-\u1eff",
    "ru": "\u0400-\u052f",
    "el": "\u0370-\u03ff\u1f00-\u1fff",
    "ar": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefe",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "hy": "\u0530-\u058f",
    "ta": "\u0b80-\u0bff",
    "th": "\u0e00-\u0e7f",
    "lo": "\u0e80-\u0eff",
    "my": "\u1000-\u109f",
    "km": "\u1780-\u17ff",
    "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "ja": "\u3040-\u30ff\uff66-\uff9f",
    "zh": "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
}
_RUNS: Final = re.compile("|".join(f"(?P<{name}>[{letters}]+)" for name, letters in _SCRIPTS.items()))
_BEYOND_LATIN: Final = re.compile("[^\\x00-\u024f\u1e00-\u1eff\u2000-\u20ff]")
_ALSO_ENGLISH: Final = frozenset(
    [
        *(
            "ad",
            "ai",
            "bet",
            "bin",
            "biz",
            "bus",
            "care",
            "ci",
            "co",
            "come",
            "dan",
            "den",
            "die",
            "dies",
            "dig",
            "dir",
        ),
        *("dog", "door", "dove", "ed", "em", "end", "fi", "go", "ham", "hat", "hay", "hem", "hi", "ins", "io", "k"),
        *(
            "made",
            "man",
            "men",
            "met",
            "min",
            "mine",
            "mint",
            "mot",
            "need",
            "one",
            "os",
            "pan",
            "par",
            "pas",
            "per",
            "plus",
        ),
        *(
            "pole",
            "pro",
            "sale",
            "sans",
            "sea",
            "see",
            "sense",
            "sin",
            "son",
            "ten",
            "till",
            "todo",
            "ton",
            "v",
            "van",
            "vi",
        ),
        *("want", "war"),
        *("ada", "ben", "dina", "ella", "hans", "jo", "kai", "kim", "lei", "mai", "mia", "mina", "sue", "tom"),
    ]
)
"""Function words that English has as words with a subject of their own, or as given names: no evidence for another
language."""
_IDEOGRAPHIC: Final = frozenset({"ja", "zh", "ko", "th", "lo", "my", "km"})
_LETTERS_A_WORD: Final = 3
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def language_of(text: str) -> str:
    """The ISO 639-1 code of the language of ``text``, "" if nothing gives it away; "en" if several fit as well.

    Only the first 512 characters count. A script that several languages share stands for the most frequent one:
    Cyrillic for "ru", Arabic for "ar", Devanagari for "hi".
    """
    sample = text[:MAX_SAMPLE]
    if _BEYOND_LATIN.search(sample):
        script = _main_script(sample)
        if script != "Latin":
            return script
    folded = sample.casefold().replace("\u2019", "'")
    return latin_language(_WORD.findall(folded), folded)


def latin_language(words: Iterable[str], text: str) -> str:
    """The language of a text in Latin script, of its folded ``words`` and its letters; "" without evidence.

    English unless another language has more of its function words and letters in it than English has words.
    """
    languages = _languages_by_word()
    evidence = [found for word in words if (found := languages.get(word))]
    if not text.isascii():
        by_letter = _languages_by_letter()
        evidence += [by_letter[letter] for letter in sorted(set(text) & by_letter.keys())]
    elif all(found[0] == "en" for found in evidence):
        return "en" if evidence else ""
    return _most_frequent(evidence)


def script_language(letter: str) -> str:
    """The language whose script ``letter`` belongs to; "" for Latin letters and for scripts that are not known."""
    found = _RUNS.match(letter)
    return "" if found is None or found.lastgroup in (None, "Latin") else str(found.lastgroup)


@cache
def stop_words(language: str) -> frozenset[str]:
    """The function words of a language in lower case; none for a language without a list."""
    if language == "en":
        return STOP_WORDS
    return frozenset((LATIN.get(language) or OTHER.get(language, "")).split())


def _main_script(sample: str) -> str:
    """The script with the most words; a run of a script without spaces counts a word for each three letters."""
    counts: dict[str, float] = {}
    for run in _RUNS.finditer(sample):
        name = str(run.lastgroup)
        words = max(1, len(run.group()) / _LETTERS_A_WORD) if name in _IDEOGRAPHIC else 1
        counts[name] = counts.get(name, 0) + words
    if "ja" in counts:
        counts["ja"] += counts.pop("zh", 0)
    return max(counts, key=lambda name: (counts[name], name == "Latin"), default="Latin")


def _most_frequent(evidence: Iterable[tuple[str, ...]]) -> str:
    counts = dict.fromkeys(LATIN_LANGUAGES, 0)
    for languages in evidence:
        for language in languages:
            counts[language] += 1
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] else ""


@cache
def _languages_by_word() -> dict[str, tuple[str, ...]]:
    return _inverted({language: stop_words(language) - _ALSO_ENGLISH for language in LATIN_LANGUAGES})


@cache
def _languages_by_letter() -> dict[str, tuple[str, ...]]:
    return _inverted(_LETTERS)


def _inverted(entries: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """By word or letter the languages that have it, in the order of the languages."""
    found: dict[str, list[str]] = {}
    for language, items in entries.items():
        for item in items:
            found.setdefault(item, []).append(language)
    return {item: tuple(languages) for item, languages in found.items()}
