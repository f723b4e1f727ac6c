"""The vector space of a store: the model that made its vectors, and how many dimensions they have."""

from __future__ import annotations

from itertools import islice
from typing import Final

from inference_core.embeddings.embedder import Embedder
from inference_core.errors import EmbeddingMismatch
from inference_core.stores.backend import EMBEDDING_META, Backend

DIMENSIONS_META: Final = "embedding_dimensions"
"""The setting of a store that says how many dimensions its vectors have; missing until the first one was stored."""
_SCOPES_LOOKED_AT: Final = 20


class VectorSpace:
    """Holds ``embedder`` to the vectors of ``backend``. Raises EmbeddingMismatch if they are another model's.

    A class of one's own is known by its name alone, so a second model behind that name shows only in its vectors: one
    with other dimensions than the store's is refused when it answers for the first time.
    """

    def __init__(self, backend: Backend, embedder: Embedder) -> None:
        self._backend = backend
        self._embedder = embedder
        known = backend.get_meta(EMBEDDING_META)
        if known is not None and known != embedder.fingerprint:
            raise EmbeddingMismatch(
                f"The vectors of {backend.name} were made by {known!r}, not by {embedder.fingerprint!r}. Open it with "
                f"the first, or embed all texts anew: python -m inference_core reembed {backend.name} --embeddings NAME"
            )
        if known is None and backend.capabilities.writable:
            backend.set_meta(EMBEDDING_META, embedder.fingerprint)
        dimensions = None if known is None else self._recorded() or self._of_a_stored_vector()
        if dimensions:
            self._expect(dimensions)
        self.is_recorded = dimensions is not None and self._recorded() is not None

    def record(self) -> None:
        """Records the dimensions of the model's first vectors, unless another process was first.

        Raises EmbeddingMismatch if that one's model gives others, StoreError.
        """
        dimensions = self._embedder.dimensions
        known = self._recorded()
        if known:
            self._expect(known)
        elif dimensions:
            self._backend.set_meta(DIMENSIONS_META, str(dimensions))
        self.is_recorded = True

    def _expect(self, dimensions: int) -> None:
        name = self._embedder.fingerprint
        self._embedder.expect(
            dimensions,
            f"The vectors of {self._backend.name} have {dimensions} dimensions, and {name!r} gives others now. Open it "
            "with the model that made them, or name the new one, Embedder(model, 'my-model-2'), and embed all texts "
            "anew with inference_core.stores.reembed.reembed(url, embedder)",
        )

    def _recorded(self) -> int | None:
        found = self._backend.get_meta(DIMENSIONS_META)
        return int(found) if found and found.isdecimal() else None

    def _of_a_stored_vector(self) -> int | None:
        """Of a store that was made before dimensions were recorded: those of the first vector that is found."""
        from inference_core.retrieval.vectors import is_packed, unpack_vectors  # noqa: PLC0415 - numpy is slow to import

        if not self._backend.capabilities.change_feed:
            return None
        for scope in islice(self._backend.namespaces(), _SCOPES_LOOKED_AT):
            for change in islice(self._backend.changes(scope, 0), _SCOPES_LOOKED_AT):
                document = change.document
                if document is None or document.model != self._embedder.fingerprint:
                    continue
                if document.vector and is_packed(document.vector):
                    return unpack_vectors(document.vector).shape[1]
        return None
