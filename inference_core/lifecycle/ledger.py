"""The ledger: a file outside the stores that records erased users, so that restoring a backup erases them again.

The first line holds the ledger's key, each further line a receipt. A receipt names its user by an HMAC under that key:
whoever has the ledger can tell whether a given id was erased, but cannot list the ids.

A store notes its copies, backups and exports, so that an erasure can name them. Temporary copies are removed by a later
process if the one that made them was killed.
"""

from __future__ import annotations

import glob
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from inference_core.errors import ConfigurationError, InvalidId, InvalidInput
from inference_core.memory.namespaces import decode_label, encode_label
from inference_core.retrieval.analysis import UNSPACED
from inference_core.stores.backend import Backend
from inference_core.stores.engine import content_key_of
from inference_core.stores.locks import FileLock, private_file, sync_folder
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
        return sum(counts.left for store in self.places.values() for counts in store.values()) + sum(
            self.files.values()
        )

    def to_json(self) -> dict[str, Any]:
        """The receipt as JSON data, with a checksum of all of it."""
        given = json.dumps(asdict(self) | {"found": self.found, "left": self.left}, ensure_ascii=False)
        # A path or reason may hold lone surrogates. They are escaped, so that encoding never fails after a removal.
        content: dict[str, Any] = json.loads(_SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):x}", given))
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


COPIES_META: Final = "copies"
_MASK: Final = "…"
SHORTEST: Final = 8
"""Characters of an id or a text that an erasure searches files for: shorter ones may be anybody's."""
_LETTER: Final = rf"[^\W_{UNSPACED}]"
"""A letter or digit of a script that puts spaces between words."""
_DATE: Final = r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)"
_PREFIX: Final = "inference-core-"
_LOCK: Final = "in-use"
_YOUNG_S: Final = 60.0
"""`sweep` spares younger folders: the process that makes one may not have taken its lock yet."""


def note_copy(store: Backend, kind: str, path: Path, user_ids: Sequence[str] = ()) -> None:
    """Notes in ``store`` that ``path`` is a copy of it, of these users or of all. Raises StoreError.

    Users are noted by a keyed digest. Erasing one of them masks the user's id in the path.
    """
    if store.capabilities.writable:
        marks = _marks(store, map(encode_label, user_ids))
        at = datetime.now(UTC).isoformat(timespec="seconds")
        _keep(store, [*_known(store), {"kind": kind, "path": str(path.absolute()), "at": at, "users": marks or None}])


def copies_with(store: Backend, user_id: str) -> list[str]:
    """The copies that may hold the user, a line for each, without the user's id."""
    known = _known(store)
    (mark,) = _marks(store, [encode_label(user_id)]) if any(one["users"] for one in known) else [""]
    held = [one for one in known if one["users"] is None or mark in one["users"]]
    lines = (f"{one['kind']} of {one['at']}: {masked(one['path'], user_id)}" for one in held)
    return list(dict.fromkeys(lines))  # a store into which others were copied may know one twice


def forget_in_copies(store: Backend, user_id: str) -> None:
    """Takes the user out of the notes: drops copies of this user alone, and masks the id in the paths of others."""
    if not (known := _known(store)) and not store.get_meta(COPIES_META):
        return
    (mark,), left = _marks(store, [encode_label(user_id)]), list[dict[str, Any]]()
    for one in known:
        users = one["users"] and [user for user in one["users"] if user != mark]
        if users != []:
            left.append({**one, "path": masked(one["path"], user_id), "users": users})
    _keep(store, left)


def know_copies_of(source: Backend, target: Backend, user_ids: Sequence[str] = ()) -> None:
    """Notes the copies of ``source`` in ``target`` too, into which its users, or ``user_ids``, are copied.

    Raises InvalidId, StoreError.
    """
    if not (noted := _known(source)):
        return
    of_some = any(one["users"] for one in noted)
    all_labels = {namespace[0] for namespace in source.namespaces()} if of_some and not user_ids else set[str]()
    labels = sorted({encode_label(user_id) for user_id in user_ids} or all_labels)
    marks = _marks(target, labels)
    names = dict(zip(_marks(source, labels) if of_some else marks, marks, strict=True))
    known = _known(target)
    for one in noted:
        users = one["users"] and [names.get(mark, mark) for mark in one["users"]]
        if user_ids:
            users = marks if users is None else [mark for mark in users if mark in marks]
        if users != [] and (moved := {**one, "users": users}) not in known:
            known.append(moved)
    _keep(target, known)


def _known(store: Backend) -> list[dict[str, Any]]:
    """The noted copies, without deleted ones: those whose folder exists here, and they do not."""
    known: list[dict[str, Any]] = json.loads(store.get_meta(COPIES_META) or "[]")
    return [one for one in known if _may_be_there(Path(one["path"]))]


def _may_be_there(path: Path) -> bool:
    if _MASK in str(path.parent) or not path.parent.exists():
        return True
    if _MASK not in path.name:
        return path.exists()
    # A masked name is no longer known: the copy counts as long as any file matches it.
    return any(path.parent.glob(glob.escape(path.name).replace(_MASK, "*")))


def _keep(store: Backend, copies: Sequence[dict[str, Any]]) -> None:
    store.set_meta(COPIES_META, json.dumps(list(copies), ensure_ascii=False))


def _marks(store: Backend, labels: Iterable[str]) -> list[str]:
    if not (labels := list(labels)):
        return []  # make no key needlessly: a store without one takes over that of a store copied into it
    key = content_key_of(store)
    return [hmac.new(key, label.encode(), hashlib.sha256).hexdigest() for label in labels]


def masked(path: str, user_id: str) -> str:
    """``path`` with the user's id masked; a short id only where it stands alone, and not in a date."""
    for name in (user_id, encode_label(user_id)):
        if len(name) >= SHORTEST:  # an erasure searches files for it, within words as well
            path = path.replace(name, _MASK)
        else:  # it may be a part of any word; masked there, the path would no longer name the copy for other users
            alone = rf"(?<!{_LETTER}){re.escape(name)}(?!{_LETTER})"
            path = re.sub(rf"({_DATE})|{alone}", lambda match: match[1] or _MASK, path)
    return path


@contextmanager
def own_folder(kind: str) -> Generator[Path]:
    """A temporary folder for copies of a store, removed at the end; also removes those that killed processes left."""
    sweep()
    with (
        tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{kind}-") as place,
        closing(FileLock(Path(place) / _LOCK)) as lock,
        lock,
    ):
        yield Path(place)


def sweep() -> None:
    """Removes this account's folders of `own_folder` whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is another account's, or has just gone
            made = (folder / _LOCK).stat(follow_symlinks=False)
            is_ours = made.st_uid == folder.stat(follow_symlinks=False).st_uid == getattr(os, "getuid", int)()
            if is_ours and time.time() - made.st_mtime > _YOUNG_S:
                with closing(FileLock(folder / _LOCK)) as lock:
                    is_left = lock.take()
                if is_left:
                    shutil.rmtree(folder)


@contextmanager
def alone_at(path: Path) -> Generator[None]:
    """Lets one process at a time restore to ``path``; removes what a killed one left.

    Raises InvalidInput if another process is restoring there.
    """
    marker = path.with_name(f"{path.name}.restoring")
    with closing(FileLock(marker)) as lock:
        if not lock.take():
            raise InvalidInput(f"Another process is restoring a backup to {path}")
        for old in path.parent.iterdir():
            if re.fullmatch(re.escape(path.name) + r"\.[0-9a-f]{8}\.part.*", old.name):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        try:
            yield
        finally:
            marker.unlink()
