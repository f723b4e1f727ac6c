"""Data keys, one or more for each first label of a namespace (a user's), in a key store of their own.

A key store holds each data key encrypted ("wrapped") with a master key. Destroying a user's data key makes every copy
of the user's rows unreadable, also those in old backups and logs. So the key store must not be in the same backup as
the rows.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypedDict

from inference_core.errors import ConfigurationError, MissingExtra, SealError, StoreUnavailable, in_one_line
from inference_core.stores.backend import UNREADABLE
from inference_core.stores.backends.file import Signature, parse_key, signature_of, write_file
from inference_core.stores.locks import FileLock, check_names, sync_folder
from inference_core.stores.urls import parse_url

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_BUSY_S: Final = 5.0
_MOST_KNOWN: Final = 10_000
"""The keys of this many users are kept unwrapped, until the file changes."""
_TICK_NS: Final = 50_000_000
"""More than a tick of the clock behind the modification times of files."""


class DataKey(NamedTuple):
    """A key of 32 bytes with its id of 8 random bytes; ``secret`` None: it was destroyed."""

    id: bytes
    secret: bytes | None


class KeyRing(Protocol):
    """Data keys by label. Methods block, may be called from any thread, and raise StoreUnavailable.

    `get` is called for each read and write, so that a key that was destroyed elsewhere is not used any more. If it is
    slow, cache the keys, but for a few seconds at most.
    """

    def get(self, label: str, *, makes: bool = False) -> Sequence[DataKey]:
        """The keys of ``label``, the newest first, and the ids of those that were destroyed, as far as known.

        ``makes``: if none is left, a new one is made, and is durable when this returns.
        """
        ...

    def rotate(self, label: str) -> None:
        """Makes a new key for ``label``, which encrypts rows from now on; the older ones can still decrypt."""
        ...

    def destroy(self, label: str, *, keep: int = 0) -> int:
        """Destroys the keys of ``label`` for good, except the ``keep`` newest. Returns how many."""
        ...

    def close(self) -> None:
        """Releases what it has open."""
        ...


class _Entry(TypedDict):
    """A key as a key store holds it: ``wrapped`` in base64, None once it was ``destroyed``."""

    id: str
    made: str
    wrapped: str | None
    destroyed: str | None


class StoredKeyRing(ABC):
    """A key store in a file. It holds labels as HMACs, so that it does not tell whose keys were destroyed.

    Raises ConfigurationError if ``master`` is not the key that it was made with, MissingExtra without cryptography.
    """

    def __init__(self, path: Path, master: str | bytes) -> None:
        self.path = path.absolute()
        self._place = str(self.path)
        self._wrapping = _wrapping_key(parse_key(master))
        self._lock = threading.Lock()
        self._known: dict[str, list[DataKey]] = {}
        self._stamp: Signature | None = None
        try:
            names = self._setting(self._wrap(b"names", secrets.token_bytes(KEY_BYTES)))
            self._names = decrypt(self._wrapping, b64decode(names), b"names")
        except (OSError, sqlite3.Error, *UNREADABLE) as error:
            raise ConfigurationError(f"Cannot open the key store {path}: {in_one_line(error)}") from error
        except SealError:
            raise ConfigurationError(
                f"The key store {path} was made with another master key: set AGENT_MEMORY_ENCRYPTION_KEY to that one"
            ) from None

    @abstractmethod
    def _setting(self, made: str) -> str:
        """The key that labels are hashed with, wrapped; if the key store is new, stores ``made`` as that key."""

    @abstractmethod
    def _wrapped_names(self) -> str:
        """The same key as it is stored now: another process may have wrapped it anew."""

    @abstractmethod
    def _read(self, name: str) -> list[_Entry]:
        """The entries under ``name``, the newest first."""

    @abstractmethod
    def _change(self, name: str, change: Callable[[list[_Entry]], list[_Entry]]) -> list[_Entry]:
        """Replaces the entries under ``name``, durably, while nobody else changes any. Returns the new entries."""

    @abstractmethod
    def _rewrap(self, names: str, rewrapped: Callable[[list[_Entry]], list[_Entry]]) -> None:
        """Replaces the setting and all entries at once."""

    @abstractmethod
    def close(self) -> None:
        """Releases what it has open."""

    def get(self, label: str, *, makes: bool = False) -> list[DataKey]:
        with self._guarded():
            stamp = signature_of(os.stat(self._place))  # noqa: PTH116 - this runs with every read and write
            if stamp != self._stamp or len(self._known) > _MOST_KNOWN:
                self._known.clear()
            # A file that was just changed may be changed once more within the same tick of the clock.
            self._stamp = stamp if time.time_ns() - stamp[0] > _TICK_NS else None
            keys = self._known.get(label)
            if keys is None or (makes and not any(key.secret for key in keys)):
                name = self._name(label)
                entries = self._read(name)
                if makes and not any(entry["wrapped"] for entry in entries):
                    # Another process may have made one meanwhile.
                    entries = self._change(
                        name, lambda now: now if any(entry["wrapped"] for entry in now) else self._more(now)
                    )
                keys = []
                for entry in entries:
                    wrapped, place = entry["wrapped"], _place(entry["id"])
                    secret = None if wrapped is None else self._unwrapped(wrapped, place)
                    keys.append(DataKey(bytes.fromhex(entry["id"]), secret))
                self._known[label] = keys
            return keys

    def rotate(self, label: str) -> None:
        with self._guarded():
            self._change(self._name(label), self._more)

    def destroy(self, label: str, *, keep: int = 0) -> int:
        destroyed: list[str] = []

        def without(entries: list[_Entry]) -> list[_Entry]:
            found = [entry["id"] for entry in entries if entry["wrapped"]][keep:]
            destroyed.extend(found)
            return [
                {**entry, "wrapped": None, "destroyed": _now()} if entry["id"] in found else entry for entry in entries
            ]

        with self._guarded():
            self._change(self._name(label), without)
        return len(destroyed)

    def rewrap(self, master: str | bytes) -> None:
        """Wraps all data keys with another master key. Rows do not change; the old master key opens nothing then."""
        wrapping = _wrapping_key(parse_key(master))

        def again(wrapped: str, place: bytes) -> str:
            return b64encode(encrypt(wrapping, self._unwrapped(wrapped, place), place)).decode()

        def rewrapped(entries: list[_Entry]) -> list[_Entry]:
            wrapped = [(entry, entry["wrapped"]) for entry in entries]
            return [
                entry if old is None else {**entry, "wrapped": again(old, _place(entry["id"]))}
                for entry, old in wrapped
            ]

        with self._guarded():
            self._rewrap(b64encode(encrypt(wrapping, self._names, b"names")).decode(), rewrapped)
            self._wrapping = wrapping

    def _name(self, label: str) -> str:
        return hmac.digest(self._names, label.encode(errors="surrogatepass"), "sha256").hex()

    def _more(self, entries: list[_Entry]) -> list[_Entry]:
        self._check_master()  # rows encrypted with a key that a new master key cannot unwrap would be lost
        own = secrets.token_hex(ID_BYTES)
        wrapped = self._wrap(_place(own), secrets.token_bytes(KEY_BYTES))
        return [_Entry(id=own, made=_now(), wrapped=wrapped, destroyed=None), *entries]

    def _unwrapped(self, wrapped: str, place: bytes) -> bytes:
        try:
            return decrypt(self._wrapping, b64decode(wrapped), place)
        except SealError:
            self._check_master()
            raise

    def _check_master(self) -> None:
        """Raises StoreUnavailable if another process has replaced the master key since this one opened the file."""
        try:
            decrypt(self._wrapping, b64decode(self._wrapped_names()), b"names")
        except SealError:
            raise StoreUnavailable(
                f"The key store {self.path} has another master key now: restart with AGENT_MEMORY_ENCRYPTION_KEY set "
                "to that one"
            ) from None

    def _wrap(self, place: bytes, key: bytes) -> str:
        return b64encode(encrypt(self._wrapping, key, place)).decode()

    @contextmanager
    def _guarded(self) -> Generator[None]:
        try:
            with self._lock:
                yield
        except (OSError, sqlite3.Error, *UNREADABLE) as error:
            raise StoreUnavailable(f"The key store {self.path} failed: {in_one_line(error)}") from error


class SqliteKeyRing(StoredKeyRing):
    """A key store in an SQLite file, safe for several processes. A missing file is made, readable only by its owner."""

    def __init__(self, path: Path, master: str | bytes) -> None:
        try:
            path.touch(mode=0o600)
            check_names(path)
            self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            # A destroyed key must leave no bytes: not in the file, and not in a journal of earlier pages.
            self._database.execute("PRAGMA secure_delete = ON")
            self._database.execute("PRAGMA journal_mode = DELETE")
            self._database.execute("PRAGMA synchronous = EXTRA")
            self._database.execute("CREATE TABLE IF NOT EXISTS keys (name TEXT PRIMARY KEY, entries TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"Cannot open the key store {path}: {in_one_line(error)}") from error
        super().__init__(path, master)

    def _setting(self, made: str) -> str:
        self._database.execute("INSERT OR IGNORE INTO keys VALUES ('', ?)", (made,))
        return self._wrapped_names()

    def _wrapped_names(self) -> str:
        return self._database.execute("SELECT entries FROM keys WHERE name = ''").fetchone()[0]

    def _read(self, name: str) -> list[_Entry]:
        found = self._database.execute("SELECT entries FROM keys WHERE name = ?", (name,)).fetchone()
        return json.loads(found[0]) if found else []

    def _change(self, name: str, change: Callable[[list[_Entry]], list[_Entry]]) -> list[_Entry]:
        with self._transaction():
            changed = change(self._read(name))
            self._database.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", (name, json.dumps(changed)))
        return changed

    def _rewrap(self, names: str, rewrapped: Callable[[list[_Entry]], list[_Entry]]) -> None:
        with self._transaction():
            rows = self._database.execute("SELECT name, entries FROM keys WHERE name <> ''").fetchall()
            changed = [(json.dumps(rewrapped(json.loads(entries))), name) for name, entries in rows]
            self._database.executemany("UPDATE keys SET entries = ? WHERE name = ?", [(names, ""), *changed])

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            yield

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._database.close()


class FileKeyRing(StoredKeyRing):
    """A key store in a JSON file, rewritten as a whole at each change: for some thousand users; else use SQLite."""

    def __init__(self, path: Path, master: str | bytes) -> None:
        self._seen: Any = None
        self._content: dict[str, Any] = {}
        super().__init__(path, master)

    def _setting(self, made: str) -> str:
        with self._writing() as content:
            if "names" not in content:
                self._write({"names": made, "keys": {}})
        return self._wrapped_names()

    def _wrapped_names(self) -> str:
        return self._loaded()["names"]

    def _read(self, name: str) -> list[_Entry]:
        return self._loaded()["keys"].get(name, [])

    def _change(self, name: str, change: Callable[[list[_Entry]], list[_Entry]]) -> list[_Entry]:
        with self._writing() as content:
            changed = change(content["keys"].get(name, []))
            self._write(content | {"keys": content["keys"] | {name: changed}})
        return changed

    def _rewrap(self, names: str, rewrapped: Callable[[list[_Entry]], list[_Entry]]) -> None:
        with self._writing() as content:
            self._write({"names": names, "keys": {name: rewrapped(one) for name, one in content["keys"].items()}})

    def close(self) -> None:
        """Does nothing: the file is open only while it is read or written."""

    @contextmanager
    def _writing(self) -> Generator[dict[str, Any]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(FileLock(self.path.with_name(f"{self.path.name}.lock"))) as lock, lock:
            yield self._loaded()

    def _loaded(self) -> dict[str, Any]:
        with suppress(FileNotFoundError):
            signature = signature_of(self.path.stat())
            if signature != self._seen:
                self._content, self._seen = json.loads(self.path.read_bytes()), signature
            return self._content
        return {}

    def _write(self, content: dict[str, Any]) -> None:
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)
        write_file(temporary, json.dumps(content).encode(), replaced=self.path)
        temporary.replace(self.path)
        sync_folder(self.path.parent)


def open_keys(url: str, master: str | bytes | None, store: object = None) -> StoredKeyRing:
    """The key store at ``url``: ``sqlite:///keys.db`` or ``file:///keys.json``; made if it is not there.

    Raises ConfigurationError if the master key is missing, malformed or not the key store's, and if the key store would
    be inside ``store``, the URL of the store that it is for.
    """
    if not master:
        raise ConfigurationError(
            "A key store needs its master key: set AGENT_MEMORY_ENCRYPTION_KEY, or pass encryption_key=. It is 32 "
            'random bytes in base64 or hexadecimal: python -c "import secrets; print(secrets.token_hex(32))"'
        )
    parsed = parse_url(url)
    if parsed.scheme not in ("sqlite", "file") or parsed.path is None:
        raise ConfigurationError(
            "keys is the URL of a key store, 'sqlite:///keys.db' or 'file:///keys.json', or an object with the "
            f"methods of KeyRing; not a {parsed.scheme} URL"
        )
    path = parse_url(store).path if isinstance(store, str) else None
    if path and path.absolute() in (parsed.path.absolute(), *parsed.path.absolute().parents):
        raise ConfigurationError("keys must be a file of its own: a copy of the store must not hold the keys to it")
    return (SqliteKeyRing if parsed.scheme == "sqlite" else FileKeyRing)(parsed.path, master)


def encrypt(key: bytes, body: bytes, place: bytes) -> bytes:
    """``body`` encrypted with AES-256-GCM and a random nonce; it can be opened only with the same ``place``."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _cipher(key).encrypt(nonce, body, place)


def decrypt(key: bytes, body: bytes, place: bytes) -> bytes:
    """What `encrypt` was given. Raises SealError if it was changed, or is of another key or another place."""
    try:
        return _cipher(key).decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], place)
    except (_invalid_tag(), ValueError):  # looked up only when something was raised
        raise SealError("it was not sealed with this key for this place") from None


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

    return InvalidTag


@lru_cache(maxsize=1_024)
def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtra("Encryption per user", "encryption") from error
    return AESGCM(key)


def _wrapping_key(master: bytes) -> bytes:
    """The key that wraps data keys: derived, as the same master key may also encrypt the files of a store."""
    return hmac.digest(master, b"inference_core key store", "sha256")


def _place(key_id: str) -> bytes:
    return f"key {key_id}".encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
