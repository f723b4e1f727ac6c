"""The inputs and outputs of embedding models, beyond LangChain's ``Embeddings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from inference_core.retrieval.vectors import Floats


class TextEncoding(NamedTuple):
    """A text's vector and, if the model gives them, its tokens' vectors (tokens, dimensions) and names.

    Vectors have unit length. Token vectors may have fewer dimensions than the text's; start and end tokens have none.
    ``pieces`` are in lower case; those that continue a word begin with "##", as in BERT's vocabulary. ``space`` is the
    vector space that the vectors are in, for a model with several. ``necessity`` is, for a query, the log-odds that a
    reply to it needs memory (`scripts/fit_necessity.py`); None if the model cannot tell.
    """

    vector: Floats
    tokens: Floats | None = None
    pieces: tuple[str, ...] = ()
    space: int = 0
    necessity: float | None = None


@runtime_checkable
class TokenEmbeddings(Protocol):
    """What late interaction requires of a LangChain ``Embeddings`` object in addition."""

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each text."""
        ...

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query."""
        ...


@runtime_checkable
class SpacedEmbeddings(Protocol):
    """A model with a vector space for each group of languages."""

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        """The encoding of each text, in the space of its language (ISO 639-1; "" if unknown)."""
        ...

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        """The encoding of a query in each of ``spaces``."""
        ...


@runtime_checkable
class QueryBatches(Protocol):
    """A `TokenEmbeddings` that encodes several queries at once, so that callers at the same time share the work."""

    def encode_queries(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each query, the same as by itself."""
        ...


@runtime_checkable
class SpacedQueryBatches(Protocol):
    """A `SpacedEmbeddings` that does so."""

    def encode_queries_in(self, texts: list[str], spaces: frozenset[int]) -> list[list[TextEncoding]]:
        """The encodings of each query in each of ``spaces``."""
        ...


class Passage(NamedTuple):
    """A text to embed, and the language of the whole that it is part of (ISO 639-1; "" if unknown)."""

    text: str
    language: str = ""


Encodings = list[TextEncoding]
