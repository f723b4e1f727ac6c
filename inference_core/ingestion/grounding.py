"""Grounding: whether a memory is drawn from the user's own words or from tools and pasted text.

A model that obeys an injected text may name the user as its source. So sources are checked against the words of the
messages themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from inference_core.ingestion.messages import Message, Role
from inference_core.ingestion.pasting import own_words
from inference_core.memory.trust import Origin
from inference_core.retrieval.analysis import analyze

_STEM: Final = 5
"""Letters of a word that are compared, so that inflection and a wrongly guessed language do not matter."""


class Grounding:
    """The users' own words in ``messages``, and the words that only tools, pasted text or ``others`` have."""

    def __init__(self, messages: Sequence[Message], others: Iterable[str] = ()) -> None:
        users = [message.text for message in messages if message.role is Role.USER]
        self._own = _words_of(own_words(text) for text in users)
        external = [message.text for message in messages if message.origin is Origin.TOOL]
        pasted = [text[len(own) :] if text.startswith(own := own_words(text)) else text for text in users]
        self._others = _words_of([*external, *pasted, *others]) - self._own

    def is_external(self, text: str) -> bool:
        """Whether ``text`` has more words from outside than of the user's own."""
        words = _words(text)
        return len(words & self._others) > len(words & self._own)


def _words_of(texts: Iterable[str]) -> frozenset[str]:
    return frozenset[str]().union(*map(_words, texts))


@lru_cache(maxsize=256)
def _words(text: str) -> frozenset[str]:
    return frozenset(term[:_STEM] for term in analyze(text))
