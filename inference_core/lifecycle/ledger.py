"""The ledger: a file outside the stores that records erased users, so that restoring a backup erases them again.

The first line holds the ledger's key, each further line a receipt. A receipt names its user by an HMAC under that key:
whoever has the ledger can tell whether a given id was erased, but cannot list the ids.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from inference_core.errors import ConfigurationError, InvalidId
from inference_core.memory.namespaces import decode_label
from inference_core.stores.locks import private_file, sync_folder
from inference_core.stores.urls import parse_url

_FORMAT: Final = "inference-core-erasures"
DEFAULT: Final = f"{_FORMAT}.jsonl"
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCounts:
    """How many rows (or threads) of the user a place held, and how many are left."""

    found: int
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """What an erasure found and removed. ``places`` by store, then by place; ``files`` counts traces left in each file.

    A trace is a piece of an erased text, or an id. ``remains`` says where freed bytes may still be, ``copies`` which
    backups and exports still hold the user, ``not_ours`` what this package cannot reach. ``began`` and ``ended`` are
    instants in ISO 8601. ``subject`` is the user, and ``threads`` the conversations that the user's data named, under
    their names in the ledger. ``replay_of`` is the id of the erasure that was repeated.
    """

    id: str
    subject: str
    began: str
    ended: str
    by: str
    reason: str
    places: Mapping[str, Mapping[str, PlaceCounts]]
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    remains: tuple[str, ...] = ()
    not_ours: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    replay_of: str = ""

    @property
    def found(self) -> int:
        """How many rows and threads there were."""
        return sum(place.found for store in self.places.values() for place in store.values())

    @property
    def left(self) -> int:
        """How many rows, threads and traces are still there."""
        return sum(one.left for store in self.places.values() for one in store.values()) + sum(self.files.values())

    def to_json(self) -> dict[str, Any]:
        """The receipt as JSON data, with a checksum of all of it."""
        given = json.dumps(asdict(self) | {"found": self.found, "left": self.left}, ensure_ascii=False)
        # A path or reason may hold lone surrogates. They are escaped, so that encoding never fails after a removal.
        content: dict[str, Any] = json.loads(_SURROGATE.sub(lambda one: rf"\\u{ord(one[0]):x}", given))
        text = json.dumps(content, ensure_ascii=False, sort_keys=True)
        return content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


class Ledger:
    """The ledger at ``path``, created on the first write. Raises ConfigurationError if it is not one or was changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        self._key = secrets.token_bytes(32)
        self._is_new = not path.exists()
        if not self._is_new:
            self._read()

    def _read(self) -> None:
        # Not splitlines(): receipts of an earlier version may contain other line ends.
        head, *lines = self.path.read_bytes().split(b"\n")
        try:
            known = json.loads(head.decode())
            self._key, is_sound = bytes.fromhex(known["key"]), known["format"] == _FORMAT
            for line in lines:
                with suppress(ValueError):  # a process that died while it wrote leaves a part of a line
                    self.entries.append(json.loads(line.decode()))
            for entry in self.entries if is_sound else ():
                content = {name: value for name, value in entry.items() if name != "sha256"}
                text = json.dumps(content, ensure_ascii=False, sort_keys=True)
                if entry["sha256"] != hashlib.sha256(text.encode()).hexdigest():
                    is_sound = False
                    break
        except (ValueError, LookupError, TypeError, AttributeError):
            is_sound = False
        if not is_sound:
            raise ConfigurationError(
                f"{self.path} is not a ledger of erasures, or was changed; nothing was done. Restore it from a copy, "
                "or name another"
            )

    def subject(self, user_id: str) -> str:
        """The user's name in this ledger: an HMAC of the id."""
        return hmac.digest(self._key, user_id.encode(errors="surrogatepass"), "sha256").hex()

    def subject_of(self, label: str) -> str | None:
        """The name in this ledger of the user whose namespaces begin with ``label``; None if it is nobody's."""
        with suppress(InvalidId):
            return self.subject(decode_label(label))
        return None

    def thread(self, thread_id: str) -> str:
        """A conversation's name in this ledger: a shortened HMAC of the thread id."""
        return hmac.digest(self._key, b"thread\0" + thread_id.encode(errors="surrogatepass"), "sha256").hex()[:24]

    def append(self, receipt: ErasureReceipt) -> None:
        """Adds the receipt, durably, unless it is there. Raises OSError."""
        if any(entry["id"] == receipt.id for entry in self.entries):
            return
        entry = receipt.to_json()
        self.make()
        # On a line of its own, even behind the partial line of a process that died.
        with private_file(self.path, os.O_APPEND) as file:
            file.write(f"\n{json.dumps(entry)}\n".encode())
        self.entries.append(entry)

    def make(self) -> None:
        """Creates the file unless it exists: the key must be on disk before it is used. Raises OSError."""
        if not self._is_new:
            return
        self._is_new = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.part")
        head = {"format": _FORMAT, "version": 1, "key": self._key.hex()}
        with private_file(part) as file:
            file.write(json.dumps(head).encode() + b"\n")
        try:
            os.link(part, self.path)  # the file appears whole, and never replaces another one
        except FileExistsError:  # another process was faster: its key counts
            self._read()
        finally:
            part.unlink()
            sync_folder(self.path.parent)  # what is removed next must not outlive its ledger

    def plan(self, user_id: str) -> Path:
        """The file beside the ledger that keeps what an erasure has found until it is complete."""
        return self.path.with_name(f"{self.path.name}.{self.subject(user_id)[:16]}")


def ledger_of(url: str) -> Path:
    """The default ledger of the store at ``url``: beside the store's files, else in the working directory."""
    path = parse_url(url).path
    return path.with_name(path.name + ".erasures.jsonl") if path else Path(DEFAULT)
