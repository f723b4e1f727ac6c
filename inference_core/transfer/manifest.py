"""The manifest of a backup: what the backup holds, of whom, and checksums that locate damage."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import ROOTS
from inference_core.stores.codec import UNREADABLE
from inference_core.stores.encryption.sealed import SEALED_META

FORMAT: Final = "inference-core-backup"
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """How many rows a user or a shared list has, and a digest of them that does not depend on their order."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup holds. ``kind`` is "sqlite", "file" or "rows"; ``contents`` by the first label of namespaces.

    ``files`` has the SHA-256 of each file, ``settings`` the store's settings. ``at`` is an instant in ISO 8601.
    """

    id: str
    at: str
    kind: str
    source: str
    contents: Mapping[str, Contents]
    files: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(one.rows for one in self.contents.values())

    @property
    def users(self) -> int:
        """How many owners (users, spaces, and applications with items of their own) have rows."""
        return len(self.contents.keys() - ROOTS.keys())

    @property
    def is_sealed(self) -> bool:
        """Whether its rows are encrypted with a key for each user."""
        return SEALED_META in self.settings

    def encoded(self) -> bytes:
        """The manifest as JSON, with a checksum of all of it."""
        content = {"format": FORMAT, "version": 1, **asdict(self)}
        return _encoded(content | {"sha256": _checksum(content)})

    def compare(self, found: Mapping[str, Contents], what: str) -> None:
        """Raises InvalidInput, naming the first label whose rows, ``found`` in ``what``, differ from the manifest."""
        for label in sorted(self.contents.keys() | found.keys()):
            wanted, there = self.contents.get(label), found.get(label)
            if wanted != there:
                rows = f"{there.rows if there else 0} rows of {wanted.rows if wanted else 0}"
                raise InvalidInput(f"{what} does not match the manifest for {label!r}: {rows}, or other contents")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the backup in ``folder``. Raises InvalidInput if there is none, or it is damaged."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        content: dict[str, Any] = json.loads(text)
        is_whole = _encoded(content) == text and content.pop("sha256") == _checksum(content)
        if content.pop("format") != FORMAT or not is_whole:
            raise InvalidInput(f"{path} is damaged: its checksum does not match")
        if content.pop("version") > 1:
            raise InvalidInput(f"{folder} was made by a newer version of this package: update it")
        content["contents"] = {label: Contents(**one) for label, one in content["contents"].items()}
        return Manifest(**content)
    except (OSError, *UNREADABLE) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{folder} is not a backup, or its {MANIFEST} is damaged") from None


def sound_manifest(folder: Path) -> Manifest:
    """The manifest of the backup in ``folder``, after checking its files against it. Raises InvalidInput."""
    manifest = read_manifest(folder)
    there = {str(path.relative_to(folder)) for path in files_in(folder)} - {MANIFEST}
    if wrong := sorted(there ^ manifest.files.keys()):
        raise InvalidInput(f"{folder} is damaged: {wrong[0]} is {'not part of it' if wrong[0] in there else 'missing'}")
    for name, digest in manifest.files.items():
        if digest_of(folder / name) != digest:
            raise InvalidInput(f"{folder / name} is damaged: its checksum does not match")
    return manifest


def files_in(folder: Path) -> list[Path]:
    """All files in ``folder`` and its subfolders, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digest_of(path: Path, *, durable: bool = False) -> str:
    """The SHA-256 of a file; ``durable`` also flushes the file to disk."""
    with path.open("rb") as file:
        if durable:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
