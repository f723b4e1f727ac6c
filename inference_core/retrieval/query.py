"""What a search looks for, derived from the text of a query, and the names in it.

Names are compared folded, without accents and possessives: "José's" is "jose". If a query names nobody that way, stems
are compared: "Anny" is "Anna" in Polish. Entities that share a name are not told apart; nothing is merged, and a link
states the name that it is based on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Final

from inference_core.memory.record import MAX_NAME_CHARACTERS, entities_of
from inference_core.retrieval.analysis import (
    UNSPACED,
    folded,
    is_content_token,
    language_of,
    query_alternatives,
    stem_of,
    without_accents,
)
from inference_core.retrieval.documents import QueryVectors, Term
from inference_core.retrieval.time_expressions import interval_of

MAX_QUERY_CHARACTERS: Final = 8_192
_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
_OPENS_A_QUESTION: Final = re.compile(
    r"(?:who|whom|whose|what|when|where|which|why|how|did|do|does|is|are|was|were|am|has|have|had|can|could|would|"
    r"should|will|may)\b",
    re.IGNORECASE,
)
_AUTHOR: Final = re.compile(rf"\s*([^\W\d_][^\n:\uff1a]{{0,{MAX_NAME_CHARACTERS - 1}}})[:\uff1a]\s*\S")
_AUTHORS_PLACE: Final = MAX_NAME_CHARACTERS + 32
_MAX_WORDS: Final = 3
_MARKS: Final = "'-.:@/+#_"
_SUFFIX: Final = re.compile(r"(?:'s|(?<=\w{3})'\w{1,4})$")
"""A possessive, or a case that follows an apostrophe: "Ida's", Turkish "Ayşe'nin"; but not "O'Brien"."""
_UNSPACED: Final = re.compile(rf"[{UNSPACED}]{{2}}")
_SHORT: Final = 120
_END: Final = 60
"""A text with a question mark among its last so many characters is a question."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query's analysed terms, its vectors by space if there is a model, and what it asks for.

    ``interval`` is the time that the text refers to, in seconds since 1970. ``wants_action``: it tells the agent to do
    something instead of asking a question. ``ignore_session``: rank texts without regard to their speaker and session.
    """

    terms: Sequence[Term] = ()
    vectors: Mapping[int, QueryVectors] = field(default_factory=dict[int, QueryVectors])
    interval: tuple[float, float] | None = None
    wants_action: bool = False
    ignore_session: bool = False

    @classmethod
    def of(
        cls,
        text: str,
        now: datetime,
        vectors: Mapping[int, QueryVectors] | None = None,
        *,
        ignore_session: bool = False,
    ) -> Query:
        """The query ``text``, asked at ``now`` in the user's time zone."""
        text = text[:MAX_QUERY_CHARACTERS]
        interval = interval_of(text, now)
        clean = text.strip()
        asks = clean.endswith(_QUESTION_MARKS) or _OPENS_A_QUESTION.match(clean) is not None
        return cls(
            terms=query_alternatives(text),
            vectors=vectors or {},
            interval=None if interval is None else (interval[0].timestamp(), interval[1].timestamp()),
            wants_action=bool(clean) and not asks,
            ignore_session=ignore_session,
        )


@lru_cache(maxsize=4_096)
def canonical_name(name: str) -> str:
    """The form in which names are compared; "" if nothing remains."""
    words = (without_accents(_SUFFIX.sub("", word.strip(_MARKS))) for word in folded(name).split())
    return " ".join(filter(None, words))


def author_of(text: str) -> str | None:
    """The speaker's name, of at most three words, in a text like "Ida: I moved"; else None."""
    head = text[:_AUTHORS_PLACE]
    found = _AUTHOR.match(head) if ":" in head or "\uff1a" in head else None
    words = found[1].split() if found else []
    is_name = 0 < len(words) <= _MAX_WORDS and words[-1][0].isalpha() and not words[-1][0].islower()
    return " ".join(words) if is_name else None


def subjects_of(value: Mapping[str, object], text: str) -> dict[str, str]:
    """Whom or what a memory is about: its speaker and its entities, from canonical name to the name as written."""
    author, entities = author_of(text), entities_of(value)
    return by_canonical([*([author] if author else []), *entities]) if author or entities else {}


def by_canonical(names: Iterable[str]) -> dict[str, str]:
    """``names`` by canonical name."""
    found = {canonical_name(name): name for name in names}
    found.pop("", None)
    return found


def asks_something(text: str) -> bool:
    """Whether ``text`` ends in a question, so that it says little about anybody."""
    return any(mark in text[-_END:] for mark in "?\uff1f")


def only_asks(text: str) -> bool:
    """Whether ``text`` is a short question. A long one also says what it is about."""
    return len(text) < _SHORT and asks_something(text)


class Named:
    """The text of a query, searched for names: whole words, or in scripts without spaces any part of it."""

    def __init__(self, text: str) -> None:
        self._text = text[:MAX_QUERY_CHARACTERS]
        self._words = f" {canonical_name.__wrapped__(self._text)} "

    def __contains__(self, name: str) -> bool:
        """Whether the query contains the canonical ``name``. Function words do not count as names."""
        if _UNSPACED.match(name):
            return name in self._words
        return f" {name} " in self._words and is_content_token(name)

    def is_any(self, names: Iterable[str]) -> bool:
        """Whether the query contains one of the canonical ``names`` in any grammatical case."""
        return any(name in self or self.resembles(name) for name in names)

    def resembles(self, name: str) -> bool:
        """Whether the query contains the canonical ``name`` in another grammatical case. False for English queries."""
        stems, language = self._stems
        return bool(stems) and is_content_token(name) and f" {_stemmed(name, language)} " in stems

    @cached_property
    def _stems(self) -> tuple[str, str]:
        language = language_of(self._text)
        return ("", "") if language in ("", "en") else (f" {_stemmed(self._words, language)} ", language)


def _stemmed(words: str, language: str) -> str:
    return " ".join(stem_of(word, language) for word in words.split())
