"""Re-rankers that users bring: a cross-encoder, an LLM, or any LangChain document compressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from langchain_core.documents import BaseDocumentCompressor, Document

_POSITION: Final = "position"


@runtime_checkable
class Reranker(Protocol):
    """Judges how well texts answer a query."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """A score for each text, higher is better."""
        ...


class CompressorReranker:
    """A LangChain ``BaseDocumentCompressor`` as a Reranker: its order counts, and what it drops comes last."""

    def __init__(self, compressor: BaseDocumentCompressor) -> None:
        self._compressor = compressor

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Scores from the order in which the compressor gives the texts; 0 for those that it drops."""
        documents = [Document(text, metadata={_POSITION: at}) for at, text in enumerate(texts)]
        kept = self._compressor.compress_documents(documents, query)
        scores = [0.0] * len(texts)
        for place, document in enumerate(kept):
            scores[document.metadata[_POSITION]] = float(len(kept) - place)
        return scores


def as_reranker(given: Reranker | BaseDocumentCompressor) -> Reranker:
    """``given`` as a Reranker."""
    return CompressorReranker(given) if isinstance(given, BaseDocumentCompressor) else given


def reordered(reranker: Reranker, query: str, texts: Sequence[str]) -> list[int]:
    """Positions of ``texts``, the best first; of equal ones the first. Raises what the re-ranker raises, ValueError."""
    scores = list(reranker.rerank(query, texts))
    if len(scores) != len(texts):
        raise ValueError(f"The re-ranker gave {len(scores)} scores for {len(texts)} texts")
    return sorted(range(len(texts)), key=lambda at: -scores[at])
