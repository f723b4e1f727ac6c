"""Model files of an extra's packages, found without importing the package and checked by SHA-256."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from inference_core.errors import EmbeddingError, MissingExtra


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
