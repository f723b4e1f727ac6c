"""Fits the projection of a model's vectors: what all have in common, and the principal axes of their tokens.

Usage: python scripts/fit_projection.py minilm|e5|mpnet FILE.json... Every string in the files is a text. The English
models' were made from the project's evaluation data, e5's from them and scripts/projection_texts.json. Languages count
alike, as far as they have 1,000 tokens. Writes inference_core/embeddings/MODEL_projection.npz: ``axes`` (width, 128)
and, of a model that wants a prefix, the mean of the vectors of texts and of tokens (2, width) by prefix. The English
models' vectors have next to nothing in common. Stored vectors of another projection are worthless, so a new one needs a
new fingerprint.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from inference_core.embeddings import large, local, multilingual
from inference_core.embeddings.encoder import EncoderEmbeddings
from inference_core.embeddings.large import LargeEmbeddings
from inference_core.embeddings.local import LocalEmbeddings
from inference_core.embeddings.multilingual import MultilingualEmbeddings
from inference_core.retrieval.analysis import language_of
from inference_core.retrieval.vectors import Floats

AXES: Final = 128
ENOUGH: Final = 1_000
MODELS: Final = {
    "minilm": (LocalEmbeddings, local.DIMENSIONS),
    "e5": (MultilingualEmbeddings, multilingual.DIMENSIONS),
    "mpnet": (LargeEmbeddings, large.DIMENSIONS),
}


def strings(value: Any) -> Iterator[str]:
    """All strings in JSON data that are sentences rather than names."""
    if isinstance(value, str):
        yield from [value] if " " in value or not value.isascii() else []
    elif isinstance(value, dict):
        yield from strings(list(cast("dict[str, Any]", value).values()))
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from strings(part)


def main() -> None:
    """Fits and writes."""
    name, *paths = sys.argv[1:]
    kind, width = MODELS[name]
    texts = {text for path in paths for text in strings(json.loads(Path(path).read_text(encoding="utf-8")))}
    by_language: dict[str, list[str]] = defaultdict(list)
    for text in sorted(texts):
        by_language[language_of(text)].append(text)
    place = Path(f"inference_core/embeddings/{name}_projection.npz")
    if not place.exists():
        np.savez(place, axes=np.eye(width))  # the model does not load without one
    model = kind()
    fitted: dict[str, NDArray[np.floating[Any]]] = {}
    products = np.zeros((width, width))
    for prefix in sorted(model.prefixes, reverse=True):  # the axes are those of queries and passages together
        found = {language: _vectors(model, prefix, own) for language, own in by_language.items()}
        means = np.mean([[vectors.mean(0), tokens.mean(0)] for vectors, tokens in found.values()], axis=0)
        if prefix:
            fitted[prefix] = means.astype(np.float16)
        for _, tokens in found.values():
            centred = tokens - means[1] if prefix else tokens
            products += centred.T @ centred / max(len(tokens), ENOUGH)
    _, axes = np.linalg.eigh(products)
    fitted["axes"] = axes[:, ::-1][:, :AXES].astype(np.float16)
    np.savez(place, **cast("dict[str, Any]", fitted))


def _vectors(model: EncoderEmbeddings, prefix: str, texts: list[str]) -> tuple[Floats, Floats]:
    """The vectors of ``texts`` after ``prefix``, and of all of their tokens."""
    found = [model.original(text, prefix) for text in texts]
    return np.stack([vector for vector, _ in found]), np.concatenate([tokens for _, tokens in found])


if __name__ == "__main__":
    main()
