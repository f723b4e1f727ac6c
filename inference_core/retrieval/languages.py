"""Which language a text is in: by its script, and among Latin scripts by function words and letters of its own.

Own rules and no library: texts here are short, so what decides is whether a function word is there; py3langid needs
4.6 MB and a matrix product for each text, and answers "la" or "eo" for two words instead of "I cannot tell".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from inference_core.retrieval.stopword_lists import LATIN, OTHER
from inference_core.retrieval.stopwords import WORDS

LATIN_LANGUAGES: Final = tuple(LATIN)
"""Languages of the Latin script that can be told apart; of two with the same evidence the earlier one is taken."""
STEMMERS: Final[Mapping[str, str]] = WORDS["stemmers"]
"""The name of Snowball's stemmer by ISO 639-1 code."""
MAX_SAMPLE: Final = 512
"""Characters at the start of a text that decide on its language."""
_SCRIPTS: Final = re.compile("|".join(f"(?P<{name}>[{letters}]+)" for name, letters in WORDS["scripts"].items()))
_BEYOND_LATIN: Final = re.compile("[^\\x00-\u024f\u1e00-\u1eff\u2000-\u20ff]")
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
    by_word, by_letter = _evidence()
    evidence = [found for word in words if (found := by_word.get(word))]
    if not text.isascii():
        evidence += [by_letter[letter] for letter in set(text) & by_letter.keys()]
    elif all(found[0] == "en" for found in evidence):
        return "en" if evidence else ""
    counts = Counter(language for languages in evidence for language in languages)
    return max(LATIN_LANGUAGES, key=counts.__getitem__) if counts else ""


def script_language(letter: str) -> str:
    """The language whose script ``letter`` belongs to; "" for Latin letters and for scripts that are not known."""
    found = _SCRIPTS.match(letter)
    return "" if found is None or found.lastgroup in (None, "Latin") else str(found.lastgroup)


@cache
def stop_words(language: str) -> frozenset[str]:
    """The function words of a language in lower case; none for a language without a list."""
    return frozenset((LATIN.get(language) or OTHER.get(language, "")).split())


def _main_script(sample: str) -> str:
    """The script with the most words; a run of a script without spaces counts a word for each three letters."""
    counts: dict[str, float] = {}
    for run in _SCRIPTS.finditer(sample):
        name = str(run.lastgroup)
        words = max(1, len(run.group()) / _LETTERS_A_WORD) if name in _IDEOGRAPHIC else 1
        counts[name] = counts.get(name, 0) + words
    if "ja" in counts:
        counts["ja"] += counts.pop("zh", 0)
    return max(counts, key=lambda name: (counts[name], name == "Latin"), default="Latin")


@cache
def _evidence() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """By word and by letter the languages that have it, in the order of the languages."""
    also_english = set(WORDS["also_english"].split())
    by_word = _inverted({language: stop_words(language) - also_english for language in LATIN_LANGUAGES})
    return by_word, _inverted(WORDS["letters"])


def _inverted(entries: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for language, items in entries.items():
        for item in items:
            found[item] = (*found.get(item, ()), language)
    return found
