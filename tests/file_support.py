"""What the tests of file stores share: ways to write a folder, and what lies in it."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Outcome, PageRequest, Put
from inference_core.stores.backends.file import FileBackend

KEY = bytes(range(32))
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"compresses": True},
    "encrypted": {"key": KEY},
    "both": {"key": KEY, "compresses": True},
}


class Opener:
    """Opens the same folder again and again; each backend shares nothing but files with the others, as processes do."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        self.options = options
        self.opened = ExitStack()

    def __call__(self) -> FileBackend:
        return self.opened.enter_context(closing(FileBackend(self.folder, **self.options)))

    def files(self) -> list[Path]:
        return sorted((self.folder / "users").iterdir())

    def file(self) -> Path:
        (only,) = self.files()
        return only


def put(key: str, user: str = "ada", **value: Any) -> Put:
    namespace: Namespace = (user, "semantic")
    return Put(namespace=namespace, key=key, value=json.dumps(value), updated_at=datetime(2026, 1, 1, tzinfo=UTC))


def done(outcomes: list[Outcome]) -> None:
    assert not [one for one in outcomes if isinstance(one, Exception)]


def keys(backend: FileBackend, user: str = "ada") -> list[str]:
    return [row.key for row in backend.page(PageRequest([(user, "semantic")], limit=99))]


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def lines_of(path: Path) -> list[bytes]:
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]
