"""What an index knows of a text, and how it hears of changes."""

from __future__ import annotations

from typing import NamedTuple

from inference_core.retrieval.analysis import ANALYZER, analyze


class Document(NamedTuple):
    """A text as ranking sees it: its analysed terms (space-separated), and its vector once that is there.

    ``analyzer`` names the analysis that made the terms. ``vector`` is float32 bytes of unit length, ``model`` the
    fingerprint of the model that made it.
    """

    text: str
    terms: str
    analyzer: str
    model: str = ""
    vector: bytes | None = None

    @classmethod
    def of(cls, text: str) -> Document:
        """``text`` analysed, without a vector yet."""
        return cls(text=text, terms=" ".join(analyze(text)), analyzer=ANALYZER)

    @property
    def current_terms(self) -> str:
        """The terms, made again from the text if another analysis made them."""
        return self.terms if self.analyzer == ANALYZER else " ".join(analyze(self.text))


class Change(NamedTuple):
    """The newest state of a key. ``document`` None: deleted, or never to be found by a query.

    ``seq`` numbers the writes of a scope; ``created_at`` is in seconds since 1970.
    """

    seq: int
    key: str
    kind: str
    created_at: float
    document: Document | None
