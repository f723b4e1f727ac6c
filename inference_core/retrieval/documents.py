"""Documents as an index sees them, the changes it applies, and the passages in which long texts are embedded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from inference_core.retrieval.analysis import ANALYZER, UNSPACED_LETTER, analyze

if TYPE_CHECKING:
    from inference_core.retrieval.vectors import Floats

LONG_CHARACTERS: Final = 1_000
"""Analysing a longer text of new words takes 10 ms or more, too long for an event loop's thread."""
Term = str | tuple[str, ...]
"""A term of a query, or the alternative forms in which documents may contain it."""
PASSAGE_WORDS: Final = 90
MAX_PASSAGES: Final = 64
_SENTENCE_END: Final = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_LONG_WORD: Final = 24


class DocumentMetadata(NamedTuple):
    """The session a text belongs to, its speaker, time and importance.

    ``session`` is "" without a session; ``happened_at`` is in seconds since 1970; ``importance`` is from 0 to 1.
    """

    session: str = ""
    by_assistant: bool = False
    happened_at: float | None = None
    importance: float = 0.5


class Document(NamedTuple):
    """A text as ranking sees it: its analysed terms (space-separated), its metadata and, once made, its vectors.

    ``analyzer`` is the version of the analysis that made the terms. ``vector`` is packed by `pack_vectors`, ``tokens``
    by `pack_tokens`; ``model`` is the fingerprint of the model that made both.
    """

    text: str
    terms: str
    analyzer: str
    situation: DocumentMetadata = DocumentMetadata()
    model: str = ""
    vector: bytes | None = None
    tokens: bytes | None = None

    @classmethod
    def of(cls, text: str, situation: DocumentMetadata = DocumentMetadata()) -> Document:  # noqa: B008 - immutable
        """``text`` analysed, without a vector yet."""
        return cls(text=text, terms=" ".join(analyze(text)), analyzer=ANALYZER, situation=situation)

    @classmethod
    def soon_of(cls, text: str, situation: DocumentMetadata = DocumentMetadata()) -> Document:  # noqa: B008 - immutable
        """Like `of`, but a long ``text`` gets its terms later, from `analysed` on a worker."""
        if len(text) <= LONG_CHARACTERS:
            return cls.of(text, situation)
        return cls(text=text, terms="", analyzer="", situation=situation)

    @property
    def is_analysed(self) -> bool:
        """Whether the terms have been made; false after `soon_of` for a long text."""
        return bool(self.analyzer)

    def analysed(self) -> Document:
        """The document with its terms."""
        if self.is_analysed:
            return self
        made = Document.of(self.text)
        return self._replace(terms=made.terms, analyzer=made.analyzer)


class QueryVectors(NamedTuple):
    """A query's vector in one space, and those of its content tokens (tokens, dimensions), if the model gives them.

    ``words`` holds, for each token, the number of the word that it belongs to; if empty, each token is a word.
    ``weight``, from 0 to 1, is how much closeness in this space counts relative to the others. ``necessity`` is the
    log-odds that a reply to the query needs memory, None if the model cannot tell.
    """

    vector: Floats
    tokens: Floats | None = None
    words: Sequence[int] = ()
    weight: float = 1.0
    necessity: float | None = None


Epoch = int | str
"""Changes when a database may have lost writes and given their sequence numbers again.

Sequence numbers of different epochs say nothing about each other.
"""
NO_EPOCH: Final = 0
"""Where no write is ever lost, or the database cannot tell."""


class Change(NamedTuple):
    """The newest state of a key. Without a ``document``, its row has no text (``is_there``) or was deleted.

    ``seq`` numbers the writes of a scope; ``created_at`` is in seconds since 1970. The document comes without tokens.
    ``epoch`` is that of the database when the change was read.
    """

    seq: int
    key: str
    kind: str
    created_at: float
    document: Document | None
    is_there: bool = True
    epoch: Epoch = NO_EPOCH


def passages(text: str, limit: int = PASSAGE_WORDS) -> list[str]:
    """``text`` in passages of at most ``limit`` words, so that no part of a long text is lost in an average vector.

    Passages end with a sentence where possible. In scripts without spaces, two characters count as a word. The last of
    64 passages holds all the remaining text.
    """
    if len(text) <= limit or _size(text) <= limit:
        return [text]
    parts: list[str] = []  # sentences, and longer ones in pieces
    for sentence in filter(None, map(str.strip, _SENTENCE_END.split(text))):
        if _size(sentence) <= limit:
            parts.append(sentence)
            continue
        pieces: list[str] = []
        for word in sentence.split():
            length = len(word) if _size(word) <= 1 else 2 * limit
            pieces += [word[start : start + length] for start in range(0, len(word), length)]
        parts += _joined(pieces, limit)
    found = _joined(parts, limit)
    rest = found[MAX_PASSAGES - 1 :]
    return [*found[: MAX_PASSAGES - 1], " ".join(rest)] if rest else found


def _size(text: str) -> int:
    """Length in words. A long run of characters, or one of a script without spaces, counts as several words."""
    return sum(
        (len(word) + 1) // 2 if len(word) > _LONG_WORD or UNSPACED_LETTER.search(word) else 1 for word in text.split()
    )


def _joined(parts: Sequence[str], limit: int) -> list[str]:
    """Neighbouring parts joined up to ``limit`` words."""
    found: list[str] = []
    current: list[str] = []
    size = 0
    for part in parts:
        if current and size + _size(part) > limit:
            found.append(" ".join(current))
            current, size = [], 0
        current.append(part)
        size += _size(part)
    return [*found, " ".join(current)]
