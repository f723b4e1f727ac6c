"""Fits what tells from the vector of a message whether a reply to it needs memory.

Usage: python scripts/fit_necessity.py [minilm] [mpnet] [e5], by default all of them.
`scripts/necessity_texts.json` has messages in 15 languages by language, each with 1 if something stored about the user
may matter for the reply, else 0: greetings, thanks, talk about the last answer, knowledge of the world, sums, code.
All were written for this. A logistic regression is fitted to the vectors of a model's languages, and checked on each
fifth part by the four others; it prints the share that is right and the area under the ROC curve. Writes
inference_core/embeddings/necessity.npz: of each model, weights (width,) and an intercept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inference_core.embeddings.encoder import NECESSITY, EncoderEmbeddings
from inference_core.embeddings.large import LargeEmbeddings
from inference_core.embeddings.local import LocalEmbeddings
from inference_core.embeddings.multilingual import MultilingualEmbeddings

TEXTS: Final = Path(__file__).parent / "necessity_texts.json"
PLACE: Final = Path(__file__).parents[1] / "inference_core" / "embeddings" / NECESSITY
MODELS: Final[dict[str, tuple[type[EncoderEmbeddings], frozenset[str] | None]]] = {
    "minilm": (LocalEmbeddings, frozenset({"en"})),
    "mpnet": (LargeEmbeddings, frozenset({"en"})),
    "e5": (MultilingualEmbeddings, None),
}
"""By name, a model and the languages that it knows; None: all."""
PARTS: Final = 5
STRENGTH: Final = 1.0
"""Of the L2 regularization. From 0.1 to 3, the results are about the same."""
_STEPS: Final = 30
Numbers = NDArray[np.float64]


def fitted(vectors: Numbers, labels: Numbers) -> Numbers:
    """Logistic regression by Newton's method: the weights and, last, the intercept."""
    given = np.column_stack([vectors, np.ones(len(vectors))])
    penalty = np.full(given.shape[1], STRENGTH)
    penalty[-1] = 0.0
    weights = np.zeros(given.shape[1])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-given @ weights))
        slope = given.T @ (chance - labels) + penalty * weights
        curvature = (given * (chance * (1 - chance))[:, None]).T @ given + np.diag(penalty)
        weights -= np.linalg.solve(curvature, slope)
    return weights


def checked(vectors: Numbers, labels: Numbers) -> tuple[float, float]:
    """The share that is right and the area under the ROC curve, each part by a fit to the others."""
    parts = np.random.default_rng(0).permutation(len(labels)) % PARTS
    told = np.zeros(len(labels))
    for part in range(PARTS):
        weights = fitted(vectors[parts != part], labels[parts != part])
        told[parts == part] = vectors[parts == part] @ weights[:-1] + weights[-1]
    ranks = told.argsort().argsort() + 1
    positive = labels > 0
    count = positive.sum()
    area = (ranks[positive].sum() - count * (count + 1) / 2) / (count * (~positive).sum())
    return float(np.mean((told > 0) == positive)), float(area)


def main() -> None:
    """Fits, prints and writes."""
    texts: dict[str, list[tuple[str, int]]] = json.loads(TEXTS.read_text(encoding="utf-8"))
    held: dict[str, NDArray[Any]] = dict(np.load(PLACE)) if PLACE.exists() else {}
    if not held:
        np.savez(PLACE)  # the models do not load without one
    for name in sys.argv[1:] or MODELS:
        kind, known = MODELS[name]
        own = [pair for language, pairs in texts.items() if known is None or language in known for pair in pairs]
        encodings = kind().encode_queries([text for text, _ in own])
        vectors = np.array([one.vector for one in encodings], np.float64)
        labels = np.array([label for _, label in own], np.float64)
        right, area = checked(vectors, labels)
        print(f"{name}: {len(own)} messages, {100 * right:.1f} % right, AUC {area:.3f}")
        held[name] = fitted(vectors, labels).astype(np.float32)
    np.savez(PLACE, **held)


if __name__ == "__main__":
    main()
