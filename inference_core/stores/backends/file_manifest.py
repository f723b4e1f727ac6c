"""Manifest: ``store.json``, which says how the lines of a folder are written, and holds the store's settings."""

from __future__ import annotations

import hmac
import json
import secrets
from pathlib import Path
from typing import Any, Final

from inference_core.errors import ConfigurationError, StoreError, UnsupportedSchema
from inference_core.stores.backends.file_journal import replace_file
from inference_core.stores.backends.file_lines import CompressedLines, EncryptedLines, Lines, ReadableLines
from inference_core.stores.codec import fault_of

VERSION: Final = 1
_NAME: Final = "store.json"
_ZSTD: Final = "zstd"
_CIPHER: Final = "AES-256-GCM"


class Manifest:
    """The manifest of ``folder``. Writing needs the store's lock."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME

    def open(self, key: bytes | None, *, compresses: bool, is_new: bool) -> Lines:
        """How the lines are written; the manifest is made if the folder ``is_new``.

        Raises ConfigurationError if ``key`` or ``compresses`` do not fit the folder, UnsupportedSchema, MissingExtra.
        """
        if self.exists():
            return self._lines(self._read(), key, compresses=compresses)
        if not is_new:
            raise ConfigurationError(f"{self._path} is missing; restore it: it says how the journals are written")
        packing = CompressedLines() if compresses else None
        made: dict[str, Any] = {"schema_version": VERSION, "compression": _ZSTD if compresses else None}
        made |= {"encryption": None, "settings": {}}
        lines: Lines = packing or ReadableLines()
        if key:
            salt = secrets.token_bytes(16)
            lines = EncryptedLines(key, salt, packing)
            made["encryption"] = {"cipher": _CIPHER, "salt": salt.hex(), "check": lines.check}
        self._write(made)
        return lines

    def exists(self) -> bool:
        """Whether it is there."""
        return self._path.exists()

    def get(self, name: str) -> str | None:
        """A setting. Raises StoreError."""
        content = self._read()
        return str(content["schema_version"]) if name == "schema_version" else content["settings"].get(name)

    def set(self, name: str, value: str) -> None:
        """Stores a setting, durably. Raises StoreError, OSError."""
        content = self._read()
        content["settings"][name] = value
        self._write(content)

    def _lines(self, content: dict[str, Any], key: bytes | None, *, compresses: bool) -> Lines:
        if compresses and content["compression"] is None:
            raise ConfigurationError(f"{self._path} says that the folder is not compressed; leave out compress=zstd")
        packing = CompressedLines() if content["compression"] else None
        encryption = content["encryption"]
        if encryption is None:
            if key:
                raise ConfigurationError(
                    f"{self._path} says that the folder is not encrypted: open it without a key, or another with it"
                )
            return packing or ReadableLines()
        if not key:
            raise ConfigurationError(f"{self._path} says that the folder is encrypted: set AGENT_MEMORY_ENCRYPTION_KEY")
        lines = EncryptedLines(key, bytes.fromhex(encryption["salt"]), packing)
        if not hmac.compare_digest(lines.check, encryption["check"]):
            raise ConfigurationError(f"{self._path} says that the folder was encrypted with another key")
        return lines

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_bytes())
            version = int(content["schema_version"])
            known = content["compression"] in (None, _ZSTD) and isinstance(content["settings"], dict)
            encryption = content["encryption"]
            known &= encryption is None or (encryption["cipher"], len(encryption["salt"])) == (_CIPHER, 32)
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(f"{self._path} is damaged: {fault_of(error)}. Restore it from a backup") from error
        if version > VERSION or not known:
            raise UnsupportedSchema(
                f"{self._path} has schema version {version}; this package knows up to {VERSION}. Update the package"
            )
        return content

    def _write(self, content: dict[str, Any]) -> None:
        replace_file(self._path, json.dumps(content, indent=2).encode())
