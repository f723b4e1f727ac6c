"""Files of models, found without importing the packages that carry them, and checked by SHA-256."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from inference_core.errors import EmbeddingError, MissingExtra


def find_package(package: str) -> Path | None:
    """The folder of a package; None if it is not installed."""
    found = importlib.util.find_spec(package)
    return Path(next(iter(found.submodule_search_locations))) if found and found.submodule_search_locations else None


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
    """Checks a file that is too large to be kept in memory. Raises what `checked_content` does."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, extra) from error
    _check(path, found, sha256)


def cache_folder() -> Path:
    """Where this package keeps files that it can make again. Raises OSError for a user without a home folder."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "inference-core"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def keep(path: Path, content: bytes) -> None:
    """Writes a file that only this user can read; others see the whole of it or nothing. Raises OSError."""
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
