"""Names of entities, and which of them a query mentions.

Names are compared folded, without accents and possessives: "José's" is "jose". Entities that share a name are not told
apart; nothing is merged, and a link states the name it is based on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from inference_core.memory.links import MAX_NAME_CHARACTERS, entities_of
from inference_core.retrieval.analysis import is_content_token
from inference_core.retrieval.analysis_letters import UNSPACED, folded, without_accents

_AUTHOR: Final = re.compile(rf"\s*([^\W\d_][^\n:\uff1a]{{0,{MAX_NAME_CHARACTERS - 1}}})[:\uff1a]\s*\S")
_MAX_WORDS: Final = 3
_MARKS: Final = "'-.:@/+#_"
_UNSPACED: Final = re.compile(rf"[{UNSPACED}]{{2}}")
_END: Final = 60
"""A question mark among this many last characters makes a text a question."""


@lru_cache(maxsize=4_096)
def canonical_name(name: str) -> str:
    """The form in which names are compared; "" if nothing remains."""
    words = (without_accents(word.strip(_MARKS).removesuffix("'s")) for word in folded(name).split())
    return " ".join(filter(None, words))


def author_of(text: str) -> str | None:
    """The speaker's name, of at most three words, in a text like "Ida: I moved"; else None."""
    found = _AUTHOR.match(text)
    words = found[1].split() if found else []
    is_name = 0 < len(words) <= _MAX_WORDS and not any(word[0].islower() for word in words)
    return " ".join(words) if is_name else None


def subjects_of(value: Mapping[str, object], text: str) -> dict[str, str]:
    """Whom or what a memory is about: its speaker and its record's entities, as written, by canonical name."""
    author = author_of(text)
    return by_canonical([*([author] if author else []), *entities_of(value)])


def by_canonical(names: Iterable[str]) -> dict[str, str]:
    """``names`` by canonical name."""
    found = {canonical_name(name): name for name in names}
    found.pop("", None)
    return found


def asks_something(text: str) -> bool:
    """Whether ``text`` ends in a question, so that it says little about anybody."""
    return any(mark in text[-_END:] for mark in "?\uff1f")


class Named:
    """The names in the text of a query, as whole words."""

    def __init__(self, text: str) -> None:
        self._words = f" {canonical_name.__wrapped__(text)} "

    def __contains__(self, name: str) -> bool:
        """Whether the query contains the canonical ``name``. Function words are no names."""
        if _UNSPACED.match(name):
            return name in self._words
        return f" {name} " in self._words and is_content_token(name)
