"""From text to index terms: words folded and stemmed, stop words left out, CJK scripts as character bigrams.

The stemmer is Snowball's English (Porter2). Bigrams for scripts without spaces follow Lucene's CJK analysis.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final

from inference_core.retrieval.stopwords import STOP_WORDS

ANALYZER: Final = "english-1"
"""Name of this analysis; terms that another one made are made again from the text."""
MAX_CHARACTERS: Final = 32_768
"""Text beyond this many characters is not analysed."""
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003ffff"
_TOKEN: Final = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+(?:'[^\W{_CJK}]+)?")
_IS_CJK: Final = re.compile(rf"[{_CJK}]")
_POSSESSIVE: Final = re.compile(r"'s\Z")


def analyze(text: str) -> list[str]:
    """The index terms of ``text`` in their order, with repetitions."""
    folded = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold().replace("\u2019", "'")
    return [term for token in _TOKEN.findall(folded) for term in _terms(token)]


def _terms(token: str) -> Iterator[str]:
    if _IS_CJK.match(token):
        yield from (first + second for first, second in pairwise(token)) if len(token) > 1 else (token,)
    elif token.partition("'")[0] not in STOP_WORDS:
        yield stem(_POSSESSIVE.sub("", token))


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The stem of a folded English word; words with digits are kept whole."""
    return word if not word.isalpha() else _stemmer().stemWord(word)


@cache
def _stemmer() -> Any:
    import snowballstemmer  # noqa: PLC0415 - imports every language, which takes longer than all of this package

    return snowballstemmer.stemmer("english")
