"""What an embedding model says of a text; some models give a vector for each token too, from the same pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from inference_core.retrieval.vectors import Floats


class TextEncoding(NamedTuple):
    """A text's vector; and of its tokens, if the model gives them, the vectors (tokens, dimensions) and the names.

    Vectors are of unit length. Token vectors may have fewer dimensions than the text's; marks of the beginning and the
    end are left out.
    """

    vector: Floats
    tokens: Floats | None = None
    pieces: tuple[str, ...] = ()


@runtime_checkable
class TokenEmbeddings(Protocol):
    """What a LangChain ``Embeddings`` object has to have besides for late interaction."""

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each text."""
        ...

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query."""
        ...
