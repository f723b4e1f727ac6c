"""Which language a text is in: by its script, and among Latin scripts by function words and letters of its own.

Own rules instead of a library: texts are short, so a single function word decides. py3langid needs 4.6 MB and a matrix
product per text, and answers "la" or "eo" for two words instead of "unknown".
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

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
_SCRIPTS: Final = re.compile("|".join(f"(?P<{name}>[{letters}]+)" for name, letters in WORDS["scripts"].items()))
_BEYOND_LATIN: Final = re.compile("[^\\x00-\u024f\u1e00-\u1eff\u2000-\u20ff]")
_IDEOGRAPHIC: Final = frozenset({"ja", "zh", "ko", "th", "lo", "my", "km"})
_LETTERS_A_WORD: Final = 3
"""So many letters of the scripts in `_IDEOGRAPHIC` count as a word."""
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


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
    found = _SCRIPTS.match(letter)
    return "" if found is None or found.lastgroup in (None, "Latin") else str(found.lastgroup)


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
