"""Intent: what a write to several files is about to append, so that it happens to all of them or to none.

It is durable before the first file is touched and gone after the last one is durable. Whoever comes upon one that was
left by a process that died does what it says.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from inference_core.errors import StoreError, without_quotes
from inference_core.stores.backends.file_entries import pack_object
from inference_core.stores.backends.file_journal import Append, Journal, append, replace_file, sync_folder
from inference_core.stores.backends.file_lines import Lines, ReadableLines

_SEAL: Final = ReadableLines()
_PLACE: Final = b"intent"


class Intent:
    """The file at ``path``, for journals in ``folder``. All calls but `exists` need the store's lock."""

    def __init__(self, path: Path, folder: Path, lines: Lines) -> None:
        self._path = path
        self._folder = folder
        self._lines = lines

    def exists(self) -> bool:
        """Whether a write is under way or was left."""
        return self._path.exists()

    def write(self, appends: Sequence[Append]) -> None:
        """Notes ``appends``, durably. Raises OSError."""
        files = [[one.path.name, one.generation, one.at, b64encode(one.lines).decode()] for one in appends]
        replace_file(self._path, _SEAL.seal(pack_object({"files": files}), _PLACE))

    def clear(self) -> None:
        """What was noted is done, or taken back. Raises OSError."""
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)

    def finish(self) -> None:
        """Does what was left. Raises StoreError if it cannot be read, OSError."""
        if self.exists():
            for one in self._noted():
                self._redo(one)
            sync_folder(self._folder)
            self.clear()

    def _noted(self) -> Iterator[Append]:
        try:
            for name, generation, at, lines in json.loads(_SEAL.unseal(self._path.read_bytes(), _PLACE))["files"]:
                yield Append(self._folder / self._checked(name), generation, at, b64decode(lines))
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(
                f"{self._path} is damaged: {without_quotes(error)}. Restore the folder from a backup"
            ) from error

    def _checked(self, name: str) -> str:
        if Path(name).name != name or not name.endswith(self._lines.suffix):
            raise ValueError(f"{name!r} is no journal")
        return name

    def _redo(self, wanted: Append) -> None:
        """Appends what is not there; a file of another generation was compacted later, so it holds everything."""
        journal = Journal(wanted.path, self._lines)
        try:
            journal.refresh()
        except StoreError:  # what was being appended may be damaged; it is written anew
            if journal.end < wanted.at:
                raise
        is_same = journal.generation == wanted.generation or journal.end == wanted.at == 0
        if is_same and wanted.at <= journal.end < wanted.at + len(wanted.lines):
            append(wanted)
