"""Gives every text of a store a vector of another embedding model."""

from __future__ import annotations

from collections.abc import Callable

from inference_core.embeddings.factory import EmbeddingsSpec, make_embedder
from inference_core.errors import ConfigurationError
from inference_core.stores.backend import EMBEDDING_META
from inference_core.stores.backfill import PORTION, fill
from inference_core.stores.factory import open_backend
from inference_core.stores.vector_space import DIMENSIONS_META, VectorSpace
from inference_core.stores.writer import GroupWriter


def reembed(
    url: str,
    embeddings: EmbeddingsSpec,
    progress: Callable[[int, int], None] | None = None,
    *,
    encryption_key: str | bytes | None = None,
) -> int:
    """Embeds all texts of the store at ``url`` that have no vector of this model; how many there were.

    Resumable: the store belongs to the new model from the start, and what an interruption left over is embedded by the
    next call or, in the background, by whoever opens the store. ``progress`` hears (done, total). Raises
    ConfigurationError, EmbeddingMismatch, EmbeddingError, StoreError.
    """
    embedder = make_embedder(embeddings)
    if embedder is None:
        raise ConfigurationError("Name the embedding model, for example 'local' or 'openai:text-embedding-3-small'")
    backend = open_backend(url, encryption_key=encryption_key)
    writer = GroupWriter(backend)
    try:
        if backend.get_meta(EMBEDDING_META) == embedder.fingerprint:
            VectorSpace(backend, embedder)  # refuses another model behind the same name, whose texts look embedded
        embedder.embed_now(["test"])
        backend.set_meta(EMBEDDING_META, embedder.fingerprint)
        backend.set_meta(DIMENSIONS_META, str(embedder.dimensions))
        total = backend.count(backend.namespaces())
        done = 0
        while portion := backend.pending(embedder.fingerprint, PORTION):
            fill(writer, embedder, portion, with_tokens=True)
            done += len(portion)
            if progress:
                progress(done, total)
    finally:
        writer.close()
        embedder.close()
        backend.close()
    return done
