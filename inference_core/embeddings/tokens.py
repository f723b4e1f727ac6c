"""The encoding of a text: its vector and, with some models, a vector for each token from the same pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from inference_core.retrieval.vectors import Floats


class TextEncoding(NamedTuple):
    """A text's vector and, if the model gives them, its tokens' vectors (tokens, dimensions) and names.

    Vectors have unit length. Token vectors may have fewer dimensions than the text's. Start and end marks are left out.
    """

    vector: Floats
    tokens: Floats | None = None
    pieces: tuple[str, ...] = ()


@runtime_checkable
class TokenEmbeddings(Protocol):
    """What a LangChain ``Embeddings`` object needs in addition for late interaction."""

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each text."""
        ...

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query."""
        ...
