"""From text to index terms: words folded and stemmed, stop words left out, CJK scripts as character bigrams.

The stemmer is Snowball's English (Porter2). Bigrams for scripts without spaces follow Lucene's CJK analysis.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final

from inference_core.retrieval.stopwords import STOP_WORDS

ANALYZER: Final = "english-1"
"""Name of this analysis; terms that another one made are made again from the text."""
MAX_CHARACTERS: Final = 32_768
"""Text beyond this many characters is not analysed."""
MAX_TERM_CHARACTERS: Final = 64
_FIRST_CJK: Final = "\u3040"
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003ffff"
_TOKEN: Final = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+(?:'[^\W{_CJK}]+)?")
_IS_CJK: Final = re.compile(rf"[{_CJK}]")
_CONTRACTED: Final = frozenset({"", "s", "t", "d", "m", "re", "ve", "ll"})
_POSSESSIVE: Final = re.compile(r"'s\Z")


def analyze(text: str) -> list[str]:
    """The index terms of ``text`` in their order, with repetitions."""
    folded = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold().replace("\u2019", "'")
    terms: list[str] = []
    for token in _TOKEN.findall(folded):
        if token[0] >= _FIRST_CJK and _IS_CJK.match(token):
            terms += [first + second for first, second in pairwise(token)] if len(token) > 1 else [token]
        elif term := _term(token[:MAX_TERM_CHARACTERS]):
            terms.append(term)
    return terms


@lru_cache(maxsize=65_536)
def _term(word: str) -> str:
    """The index term of a folded word: its English stem; words with digits whole; nothing for a stop word."""
    head, _, tail = word.partition("'")
    if head in STOP_WORDS and tail in _CONTRACTED:
        return ""
    bare = _POSSESSIVE.sub("", word)
    return _stemmer().stemWord(bare) if bare.isalpha() else bare


@cache
def _stemmer() -> Any:
    import snowballstemmer  # noqa: PLC0415 - imports every language, which takes longer than all of this package

    return snowballstemmer.stemmer("english")
