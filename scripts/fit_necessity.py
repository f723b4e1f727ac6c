"""Fits what tells from the vector of a message whether a reply to it needs memory.

Usage: python scripts/fit_necessity.py [minilm] [mpnet] [e5], by default all of them.
`scripts/necessity_texts.json` has messages in 15 languages by language, each with 1 if something stored about the user
may matter for the reply, else 0: greetings, thanks, talk about the last answer, knowledge of the world, sums, code.
All were written for this. A logistic regression on the entries of a vector and on their products is fitted to the
vectors of a model's languages, and checked on each fifth part by the four others; it prints the share that is right and
the area under the ROC curve. Writes inference_core/embeddings/necessity.npz: see `NECESSITY`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inference_core.embeddings.encoder import NECESSITY, EncoderEmbeddings, Necessity
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
AXES: Final = 32
"""So many directions of the products are kept: half as many take 0.005 of the AUC, all would add 0.003."""
BASE: Final = 0.25
"""What is added to the inner product of two vectors before it is squared: the larger, the less products count."""
STRENGTH: Final = 0.1
"""Of the L2 regularization."""
_STEPS: Final = 5
Numbers = NDArray[Any]


def fitted(vectors: Numbers, labels: Numbers) -> Necessity:
    """Logistic regression with the kernel (`BASE` + x·y)², by Newton's method, in `AXES` directions."""
    kernel = (BASE + vectors @ vectors.T) ** 2
    shares, intercept = np.zeros(len(labels), np.float32), 0.0
    for _ in range(_STEPS):
        told = kernel @ shares + intercept
        chance = 1 / (1 + np.exp(-told))
        weights = np.maximum(chance * (1 - chance), 1e-4)
        target = told + (labels - chance) / weights
        solved = np.linalg.solve(kernel + np.diag(STRENGTH / weights), np.column_stack([target, np.ones_like(target)]))
        intercept = solved[:, 0].sum() / solved[:, 1].sum()
        shares = solved[:, 0] - intercept * solved[:, 1]
    # The sum of the kernel's terms, as one function of a vector.
    of_products = (vectors * shares[:, None]).T @ vectors
    scales, directions = np.linalg.eigh(of_products)
    largest = np.argsort(-np.abs(scales))[:AXES]
    mean_of_others = (scales.sum() - scales[largest].sum()) / len(scales)
    intercept += BASE**2 * shares.sum() + mean_of_others
    axes = np.column_stack([2 * BASE * vectors.T @ shares, directions[:, largest]])
    return Necessity(axes, np.array([intercept, *scales[largest]], np.float32))


def checked(vectors: Numbers, labels: Numbers) -> tuple[float, float]:
    """The share that is right and the area under the ROC curve, each part by a fit to the others."""
    parts = np.random.default_rng(0).permutation(len(labels)) % PARTS
    told = np.zeros(len(labels))
    for part in range(PARTS):
        found = fitted(vectors[parts != part], labels[parts != part])
        told[parts == part] = [found.of(vector) for vector in vectors[parts == part]]
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
        vectors = np.array([one.vector for one in encodings], np.float32)
        labels = np.array([label for _, label in own], np.float32)
        right, area = checked(vectors, labels)
        print(f"{name}: {len(own)} messages, {100 * right:.1f} % right, AUC {area:.3f}")
        found = fitted(vectors, labels)
        held |= {name: found.axes.astype(np.float16), f"{name}_scales": found.scales}
    np.savez(PLACE, **held)


if __name__ == "__main__":
    main()
