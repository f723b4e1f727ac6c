"""Fits the projection of a model's token vectors: the principal axes of the tokens of many texts.

Usage: python scripts/fit_projection.py minilm|e5 FILE.json... Every string in the files is a text. MiniLM's was made
from the project's evaluation data, e5's from them and scripts/projection_texts.json. Languages count alike, as far as
they have 1,000 tokens. Writes inference_core/embeddings/MODEL_projection.npy (384, 128). Stored token vectors of
another projection are worthless, so a new one needs a new fingerprint.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from inference_core.embeddings.local import LocalEmbeddings
from inference_core.embeddings.multilingual import MultilingualEmbeddings
from inference_core.retrieval.languages import language_of

AXES: Final = 128
ENOUGH: Final = 1_000
MODELS: Final = {"minilm": LocalEmbeddings, "e5": MultilingualEmbeddings}


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
    texts = {text for path in paths for text in strings(json.loads(Path(path).read_text(encoding="utf-8")))}
    model = MODELS[name]()
    by_language: dict[str, list[np.ndarray]] = defaultdict(list)
    for text in sorted(texts):
        by_language[language_of(text)].append(model.token_vectors(text))
    products = np.zeros((0, 0))
    for language, vectors in sorted(by_language.items()):
        tokens = np.concatenate(vectors)
        product = tokens.T @ tokens / max(len(tokens), ENOUGH)
        products = products + product if products.size else product
        print(f"{language or 'unknown'}: {len(vectors)} texts, {len(tokens)} tokens")
    _, axes = np.linalg.eigh(products)
    np.save(f"inference_core/embeddings/{name}_projection.npy", axes[:, ::-1][:, :AXES].astype(np.float16))


if __name__ == "__main__":
    main()
