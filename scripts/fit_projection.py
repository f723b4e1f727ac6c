"""Fits the projection of MiniLM's token vectors: the principal axes of the tokens of a folder of texts.

Usage: python scripts/fit_projection.py FILE.json... Every string in the files is a text; the project's own evaluation
data were used. Writes inference_core/embeddings/minilm_projection.npy (384, 128). Stored token vectors of another
projection are worthless, so a new one needs a new fingerprint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from inference_core.embeddings.local import LocalEmbeddings

AXES: Final = 128
TARGET: Final = Path("inference_core/embeddings/minilm_projection.npy")


def strings(value: Any) -> Iterator[str]:
    """All strings in JSON data that are sentences rather than names."""
    if isinstance(value, str):
        yield from [value] if " " in value else []
    elif isinstance(value, dict):
        yield from strings(list(cast("dict[str, Any]", value).values()))
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from strings(part)


def main() -> None:
    """Fits and writes."""
    texts = sorted(
        {text for name in sys.argv[1:] for text in strings(json.loads(Path(name).read_text(encoding="utf-8")))}
    )
    model = LocalEmbeddings()
    model.load()
    tokens = np.concatenate([model.token_vectors(text) for text in texts])
    _, axes = np.linalg.eigh(tokens.T @ tokens)
    np.save(TARGET, axes[:, ::-1][:, :AXES].astype(np.float16))
    print(f"{len(texts)} texts, {len(tokens)} tokens: {TARGET}")


if __name__ == "__main__":
    main()
