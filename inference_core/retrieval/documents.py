"""What an index knows of a text, and how it hears of changes."""

from __future__ import annotations

from typing import Final, NamedTuple

LONG_CHARACTERS: Final = 1_000
"""The analysis of a longer text of new words takes 10 ms and more, too long for the thread of an event loop."""
Term = str | tuple[str, ...]
"""A term of a query, or the forms in which documents may hold it."""


class Situation(NamedTuple):
    """In which session a text was said, by whom and when, and how important it is.

    ``session`` "" is no session; ``happened_at`` is in seconds since 1970; ``importance`` lies between 0 and 1.
    """

    session: str = ""
    by_assistant: bool = False
    happened_at: float | None = None
    importance: float = 0.5


class Document(NamedTuple):
    """A text as ranking sees it: its analysed terms (space-separated), its situation and, once they are there, vectors.

    ``analyzer`` names the analysis that made the terms. ``vector`` holds what `pack_vectors` made, ``tokens`` what
    `pack_tokens` made, ``model`` the fingerprint of the model that made both.
    """

    text: str
    terms: str
    analyzer: str
    situation: Situation = Situation()
    model: str = ""
    vector: bytes | None = None
    tokens: bytes | None = None

    @classmethod
    def of(cls, text: str, situation: Situation = Situation()) -> Document:  # noqa: B008 - immutable
        """``text`` analysed, without a vector yet."""
        from inference_core.retrieval.analysis import ANALYZER, analyze  # noqa: PLC0415 - its word lists take time

        return cls(text=text, terms=" ".join(analyze(text)), analyzer=ANALYZER, situation=situation)

    @classmethod
    def soon_of(cls, text: str, situation: Situation = Situation()) -> Document:  # noqa: B008 - immutable
        """Like `of`, but a long ``text`` gets its terms from `analysed`, for which a worker has the time."""
        if len(text) <= LONG_CHARACTERS:
            return cls.of(text, situation)
        return cls(text=text, terms="", analyzer="", situation=situation)

    @property
    def is_analysed(self) -> bool:
        """Whether it has its terms."""
        return bool(self.analyzer)

    def analysed(self) -> Document:
        """Itself with its terms."""
        if self.is_analysed:
            return self
        made = Document.of(self.text)
        return self._replace(terms=made.terms, analyzer=made.analyzer)


class Change(NamedTuple):
    """The newest state of a key. ``document`` None: no query finds it.

    Then it was deleted or, if it ``is_there``, has no text.
    ``seq`` numbers the writes of a scope; ``created_at`` is in seconds since 1970. A document's tokens are left out.
    """

    seq: int
    key: str
    kind: str
    created_at: float
    document: Document | None
    is_there: bool = True
