"""Re-rankers that users bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import BaseDocumentCompressor, Document

from inference_core.stores.indexing.search import as_reranker, reordered

TEXTS = ["tea", "coffee", "water"]


class Lengths:
    """The longest text first."""

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        return [float(len(text)) for text in texts]


class Compressor(BaseDocumentCompressor):
    """Keeps texts that hold the query's first letter, the last one first."""

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        return [document for document in reversed(documents) if query[0] in document.page_content]


class TooFew:
    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        return [1.0]


def test_the_scores_decide_and_equal_ones_keep_their_order():
    assert reordered(as_reranker(Lengths()), "q", TEXTS) == [1, 2, 0]
    assert reordered(as_reranker(Lengths()), "q", ["ab", "cd", "efg"]) == [2, 0, 1]


def test_a_compressor_gives_the_order_and_what_it_drops_comes_last():
    assert reordered(as_reranker(Compressor()), "t", TEXTS) == [2, 0, 1]
    assert reordered(as_reranker(Compressor()), "z", TEXTS) == [0, 1, 2]


def test_too_few_scores_are_refused():
    with pytest.raises(ValueError, match="1 scores for 3 texts"):
        reordered(TooFew(), "q", TEXTS)
