"""Names of entities, and which of them a query names.

A name is compared folded, without accents and possessives: "José's" is "jose". Two entities that share a name are not
told apart; nothing is merged, and a link says by which name it was made.
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
"""So many characters at the end of a text tell whether it asks."""


@lru_cache(maxsize=4_096)
def canonical_name(name: str) -> str:
    """The form in which names are compared; "" if nothing is left."""
    words = (without_accents(word.strip(_MARKS).removesuffix("'s")) for word in folded(name).split())
    return " ".join(filter(None, words))


def author_of(text: str) -> str | None:
    """The name that ``text`` starts with as in "Ida: I moved", of at most three words; None if there is none."""
    found = _AUTHOR.match(text)
    words = found[1].split() if found else []
    is_name = 0 < len(words) <= _MAX_WORDS and not any(word[0].islower() for word in words)
    return " ".join(words) if is_name else None


def subjects_of(value: Mapping[str, object], text: str) -> dict[str, str]:
    """Whom or what a memory is about: who said it, and the entities of its record; by canonical name, as written."""
    author = author_of(text)
    return by_canonical([*([author] if author else []), *entities_of(value)])


def by_canonical(names: Iterable[str]) -> dict[str, str]:
    """``names`` by canonical form."""
    found = {canonical_name(name): name for name in names}
    found.pop("", None)
    return found


def asks_something(text: str) -> bool:
    """Whether ``text`` ends in a question; such a memory tells little about anybody."""
    return any(mark in text[-_END:] for mark in "?\uff1f")


class Named:
    """Which names stand in the text of a query, as whole words."""

    def __init__(self, text: str) -> None:
        self._words = f" {canonical_name.__wrapped__(text)} "

    def __contains__(self, name: str) -> bool:
        """Whether the query holds the canonical ``name``; function words are no names."""
        if _UNSPACED.match(name):
            return name in self._words
        return f" {name} " in self._words and is_content_token(name)
