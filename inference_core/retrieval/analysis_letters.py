"""Folding of letters: case, compatibility forms, accents, and which characters belong to words.

Case folding and NFKC follow the Unicode Standard (annexes 15 and 31). Unlike in ``re``, marks count as letters, so the
vowel signs of Devanagari and Thai do not split words.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from inference_core.retrieval.stopwords import WORDS

UNSPACED: Final = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3\u3005-\u3007\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Han, Kana and Hangul, for a character class: scripts without spaces between words."""
MARKS: Final = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3\u3099\u309a"
"""Marks of those scripts, for a character class."""
_NOISE: Final = re.compile(r"([^\w\s]{32})[^\w\s]+")
_KEPT: Final = frozenset("_'-.:@/+#")
_DROPPED_BEFORE_STEMMING: Final = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]"
)
_REPLACED: Final = {"\u0451": "\u0435", "\u2018": "'", "\u2019": "'", "\u02bc": "'", "\u2010": "-", "\u2212": "-"}
_EMOJI: Final = re.compile("[\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001f1e5\U0001f200-\U0001faff]")
_FLAGS: Final = re.compile("[\U0001f1e6-\U0001f1ff]")
_WITHOUT_DECOMPOSITION: Final = str.maketrans(WORDS["plain_letters"])
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_HAS_LATIN_OR_GREEK: Final = re.compile("[a-z\u00df-\u024f\u0370-\u03ff\u1e00-\u1fff]")


def folded(text: str) -> str:
    """``text`` in lower case, with spaces for everything that is no part of a word; never much longer.

    Accents stay, as stemmers need them. Emoji are put between spaces; marks that only modify a letter are removed. Runs
    of more than 32 marks and punctuation characters are cut, because normalising them takes quadratic time.
    """
    compatible = unicodedata.normalize("NFKC", _NOISE.sub(r"\1", text))[: len(text)]
    letters = unicodedata.normalize("NFC", compatible.casefold()).translate(_LETTERS)
    return unicodedata.normalize("NFC", letters)  # what stood between a letter and its mark may be gone


@lru_cache(maxsize=65_536)
def without_accents(word: str) -> str:
    """A folded word of Latin or Greek letters without accents: "łódź" as "lodz"; others as they are."""
    if word.isascii() or not _HAS_LATIN_OR_GREEK.search(word):
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", word.translate(_WITHOUT_DECOMPOSITION)))
    return unicodedata.normalize("NFC", bare)


class _Letters(dict[int, str]):
    """The folded form of each code point, filled in as characters occur."""

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
