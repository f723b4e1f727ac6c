"""A file store: a folder with one file for each user, readable as JSON Lines or compressed and encrypted.

A write replaces its user's file as a whole: write a temporary file, fsync, rename, fsync the folder. A file is
therefore always complete, and readers need no lock. Writers of all processes share a lock on the folder.

The files of a file store: the lines of a user's file, compression and encryption, and the manifest.

A user's file is a header line followed by lines of rows. The manifest, ``store.json``, says how lines are encoded.
Files of earlier versions are journals: a row may be in several lines, of which the last one counts, and an unfinished
last line is ignored.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import secrets
import shutil
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from hashlib import blake2b, sha256
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from inference_core.clock import Clock, aware
from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreError,
    StoreUnavailable,
    UnsupportedSchema,
    WriteUnknown,
)
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import NO_EPOCH, Document, DocumentMetadata, Epoch
from inference_core.stores.backend import (
    UNREADABLE,
    Batch,
    Capabilities,
    Key,
    Outcome,
    Row,
    RowState,
    Unreadable,
    expiry_micros,
    expiry_of,
    fault_of,
)
from inference_core.stores.backends.rows import Table, TableBackend, WriteSet
from inference_core.stores.locks import FileLock, sync_folder

VERSION: Final = 1
_CIPHER: Final = "AES-256-GCM"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_DIGEST_BYTES: Final = 8
_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])", re.ASCII)
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
Signature = tuple[int, int, int]
"""Modification time, size and inode of a file, by which one state of it differs from every other."""


class UserFile(NamedTuple):
    """The content of a user's file. It is never modified once others may read it, so readers need no lock."""

    root: str
    table: Table
    packed: dict[Key, bytes]
    """The JSON of rows that this process has written, so that the next write does not make it again."""
    signature: Signature | None = None


class DamagedFile(StoreError):
    """A line of a file cannot be read. ``root`` is its owner's label, or "" if the header is what is damaged."""

    def __init__(self, path: Path, line: int, root: str, what: str) -> None:
        super().__init__(
            f"{path}, line {line} is damaged: {what}. Nothing was changed. Restore the file from a backup, or keep the "
            "lines that can be read: inference-core repair"
        )
        self.line, self.root = line, root


class FileFormat:
    """Encodes lines and file names: readable, compressed with Zstandard (RFC 8878), encrypted, or both.

    A line is valid in its place alone, which is a file, a generation and a line number. A checksum detects accidents;
    encryption with AES-256-GCM (NIST SP 800-38D) detects tampering, too. Raises MissingExtra.
    """

    def __init__(self, *, compresses: bool = False, key: bytes | None = None, salt: bytes = b"") -> None:
        self._is_readable = not (compresses or key)
        self.suffix = ".jsonl" if self._is_readable else ".journal"
        self._rows_in_line = (
            1 if self._is_readable else 64
        )  # more compress better, but are lost together if the line is damaged
        self._zstandard: Any = None
        self._cipher: Any = None
        self.check = self._names = b""
        try:
            if compresses:
                import zstandard  # noqa: PLC0415 - optional

                self._zstandard = zstandard
            if key:
                from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional

                lines, self._names, self.check = (
                    hmac.digest(key, b"inference_core file store\0" + salt + purpose, "sha256")
                    for purpose in (b"lines", b"names", b"check")
                )
                self._cipher, self._invalid = AESGCM(lines), InvalidTag
        except ImportError as error:
            raise MissingExtra("Compression and encryption of a file store", "file") from error

    def file_name(self, label: str) -> str:
        """The file name of a root label, unique also on a file system that ignores case."""
        raw = label.encode(errors="surrogatepass")
        if self._cipher:
            return hmac.digest(self._names, raw, "sha256").hex()[:40] + self.suffix
        if _PLAIN_NAME.fullmatch(label) and not _DEVICES.fullmatch(label):
            return label + self.suffix
        shown = re.sub(r"[^a-z0-9]+", "-", label.lower(), flags=re.ASCII)[:24].strip("-")
        return f"{shown}~{sha256(raw).hexdigest()[:40]}{self.suffix}"

    def read(self, path: Path, content: bytes, *, leaves_out: bool = False) -> UserFile:
        """Decodes ``content``.

        Raises DamagedFile for the first line that cannot be read; with ``leaves_out``, only if that is the header.
        """
        *lines, _ = content.split(b"\n")
        name, root, generation = path.name, "", ""
        wanted = 1
        table = Table()
        for number, line in enumerate(lines):
            try:
                body = json.loads(self.decode_line(line, _place(name, generation, number)))
                if number:
                    for entry in body["entries"]:
                        table.set(*unpack_row(entry))
                else:
                    root, generation, wanted = body["root"], body["generation"], body.get("lines", 1)
            except UNREADABLE as error:
                if number and leaves_out:
                    continue
                raise DamagedFile(path, number + 1, root, fault_of(error)) from None
        if len(lines) < wanted and not (lines and leaves_out):
            raise DamagedFile(path, len(lines) + 1, root, "the rest of the file is missing")
        return UserFile(root, table, {})

    def write(self, path: Path, user: UserFile) -> bytes:
        """Encodes a file: the header, then the rows of each namespace in the order in which they were written."""
        states = sorted(user.table.states(), key=lambda one: (one[0][0], one[1].seq))
        rows = [user.packed.get(key) or pack_row(key, state) for key, state in states]
        step = self._rows_in_line
        bodies = [b'{"entries":[' + b",".join(rows[at : at + step]) + b"]}" for at in range(0, len(rows), step)]
        name, generation = path.name, secrets.token_hex(8)  # makes every line of an earlier state invalid here
        header = _JSON.encode({"root": user.root, "generation": generation, "lines": len(bodies) + 1})
        lines = [self.encode_line(header.encode(), _place(name, "", 0))]
        lines += (self.encode_line(body, _place(name, generation, number)) for number, body in enumerate(bodies, 1))
        return b"".join(line + b"\n" for line in lines)

    def encode_line(self, body: bytes, place: bytes) -> bytes:
        """Encodes a JSON object as a line for ``place``, without the line end."""
        if self._is_readable:
            return body[:-1] + b',"sum":"' + _digest(body, place).hex().encode() + b'"}'
        packed = self._zstandard.ZstdCompressor().compress(body) if self._zstandard else body
        if self._cipher:
            nonce = os.urandom(_NONCE_BYTES)
            packed = nonce + self._cipher.encrypt(nonce, packed, place)
        else:
            packed += _digest(packed, place)
        return packed.replace(b"\x1b", b"\x1be").replace(b"\n", b"\x1bn")

    def decode_line(self, line: bytes, place: bytes) -> bytes:
        """Decodes a line of `encode_line`. Raises ValueError if it was not made for this place."""
        if self._is_readable:
            body = line.rpartition(b',"sum":"')[0] + b"}"
            if line != self.encode_line(body, place):
                raise ValueError("the checksum is wrong")
            return body
        packed = line.replace(b"\x1bn", b"\n").replace(b"\x1be", b"\x1b")
        if self._cipher:
            try:
                packed = self._cipher.decrypt(packed[:_NONCE_BYTES], packed[_NONCE_BYTES:], place)
            except self._invalid as error:
                raise ValueError("it was not encrypted with this key for this place") from error
        else:
            packed, digest = packed[:-_DIGEST_BYTES], packed[-_DIGEST_BYTES:]
            if digest != _digest(packed, place):
                raise ValueError("the checksum is wrong")
        return self._zstandard.ZstdDecompressor().decompress(packed) if self._zstandard else packed


def open_manifest(path: Path, key: bytes | None, *, compresses: bool, is_new: bool) -> FileFormat:
    """Reads the manifest, or creates it if the folder ``is_new``.

    Raises ConfigurationError if ``key`` or ``compresses`` contradicts it, UnsupportedSchema, MissingExtra.
    """
    if not is_new and not path.exists():
        raise ConfigurationError(f"{path} is missing. Restore it from a backup: it says how the files are encoded")
    content: dict[str, Any] = {
        "schema_version": VERSION,
        "compression": "zstd" if compresses else None,
        "encryption": {"cipher": _CIPHER, "salt": secrets.token_hex(16)} if key else None,
        "settings": {},
    }
    content = content if is_new else read_manifest(path)
    encryption, is_compressed = content["encryption"], content["compression"] is not None
    salt = bytes.fromhex(encryption["salt"]) if encryption else b""
    made = FileFormat(compresses=is_compressed, key=key, salt=salt)
    problem = ""
    if compresses and not is_compressed:
        problem = "is not compressed: leave out compress=zstd, or use a new folder"
    elif key and not encryption:
        problem = "is not encrypted: open it without a key, or use a new folder"
    elif encryption and not key:
        problem = "is encrypted: set AGENT_MEMORY_ENCRYPTION_KEY, without AGENT_MEMORY_KEYS"
    elif encryption and not hmac.compare_digest(encryption.setdefault("check", made.check.hex()), made.check.hex()):
        problem = "was encrypted with another key"
    if problem:
        raise ConfigurationError(f"{path} says that the folder {problem}")
    if is_new:
        write_manifest(path, content)
    return made


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest. Raises StoreError if it is damaged, UnsupportedSchema."""
    try:
        content = json.loads(path.read_bytes())
        version, encryption = int(content["schema_version"]), content["encryption"]
        known = content["compression"] in (None, "zstd") and isinstance(content["settings"], dict)
        known &= encryption is None or (encryption["cipher"], len(encryption["salt"])) == (_CIPHER, 32)
    except UNREADABLE as error:
        raise StoreError(f"{path} is damaged: {fault_of(error)}. Restore it from a backup") from error
    if version > VERSION or not known:
        raise UnsupportedSchema(
            f"{path} has schema version {version}; this package knows up to {VERSION}. Update the package"
        )
    return content


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """Replaces a manifest atomically and durably. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    if not path.exists():  # it holds the store's own key
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    write_file(temporary, json.dumps(content, indent=2).encode(), path)
    temporary.replace(path)
    sync_folder(path.parent)


def parse_key(given: str | bytes) -> bytes:
    """Reads a key of 32 bytes, raw or in base64 or hexadecimal. Raises ConfigurationError, without quoting it."""
    try:
        if isinstance(given, str):
            text = given.strip().replace("-", "+").replace("_", "/")
            given = bytes.fromhex(text) if len(text) == 2 * _KEY_BYTES else b64decode(text, validate=True)
    except ValueError:
        given = b""
    if len(given) != _KEY_BYTES:
        raise ConfigurationError(
            "The encryption key must be 32 random bytes in base64 or hexadecimal; make one with: "
            'python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return given


def entry_of(key: Key, state: RowState) -> dict[str, Any]:
    """A row as JSON data: times in ISO 8601, vectors in base64."""
    entry: dict[str, Any] = {
        "namespace": key[0],
        "key": key[1],
        "version": state.version,
        "seq": state.seq,
        "kind": state.kind,
        "created": aware(state.created_at).isoformat(),
        "updated": aware(state.updated_at).isoformat(),
    }
    if state.expiry:
        entry["expiry"] = expiry_micros(state.expiry)
    if document := state.document:
        binary = {"vector": document.vector, "tokens": document.tokens}
        texts = {name: None if value is None else b64encode(value).decode() for name, value in binary.items()}
        entry["document"] = document._asdict() | texts
    if state.value is not None:
        entry["value"] = json.loads(state.value)
    return entry


def pack_row(key: Key, state: RowState) -> bytes:
    """Encodes a row as readable JSON. Raises StoreError."""
    try:
        return _JSON.encode(entry_of(key, state)).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"A file store cannot hold this: {error}") from error


def unpack_row(entry: dict[str, Any]) -> tuple[Key, RowState]:
    """Decodes a row of `pack_row`. Raises one of ``UNREADABLE``."""
    document = None
    if fields := entry.get("document"):
        binary = {name: None if (text := fields[name]) is None else b64decode(text) for name in ("vector", "tokens")}
        document = Document(**fields | binary | {"situation": DocumentMetadata(*fields["situation"])})
    state = RowState(
        seq=entry["seq"],
        version=entry["version"],
        kind=entry["kind"],
        created_at=datetime.fromisoformat(entry["created"]),
        updated_at=datetime.fromisoformat(entry["updated"]),
        value=_JSON.encode(entry["value"]) if "value" in entry else None,
        document=document,
        expiry=expiry_of(*entry["expiry"]) if "expiry" in entry else None,
    )
    return (tuple(entry["namespace"]), entry["key"]), state


def _place(name: str, generation: str, number: int) -> bytes:
    return f"{name}\n{generation}\n{number}".encode()


def _digest(body: bytes, place: bytes) -> bytes:
    return blake2b(place + b"\n" + body, digest_size=_DIGEST_BYTES).digest()


def signature_of(status: os.stat_result) -> Signature:
    """The signature of a file with this status."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def write_file(path: Path, content: bytes, replaced: Path | None = None) -> Signature:
    """Writes a file and syncs its content, but not yet its name. Raises OSError.

    It gets a later modification time than the file that it will replace. Within a tick of the system's clock, two
    files of the same size could otherwise have one signature, since inodes are reused. It also gets the permissions of
    that file; a new one is readable to those who may read the folder.
    """
    moment = time.time_ns()
    mode = path.parent.stat().st_mode
    with suppress(FileNotFoundError):
        if replaced:
            status = replaced.stat()
            moment, mode = max(moment, status.st_mtime_ns + 1_000), status.st_mode
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode & 0o666)) as file:
        file.write(content)
        file.flush()
        os.utime(path, ns=(moment, moment))
        os.fsync(file.fileno())
        return signature_of(os.fstat(file.fileno()))


_LOG = logging.getLogger(__name__)
_CACHE_BYTES: Final = 128 * 1024 * 1024


class FileBackend(TableBackend):
    """Serves ``folder``. ``key`` (32 bytes) and ``compresses`` say how a new one is encoded.

    Raises ConfigurationError if the folder cannot be opened, or not with this key; UnsupportedSchema if a newer version
    wrote it; MissingExtra.
    """

    capabilities = Capabilities(durable=True, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(
        self, folder: Path, *, key: bytes | None = None, compresses: bool = False, clock: Clock | None = None
    ) -> None:
        super().__init__(clock)
        self.name = f"file:///{folder}"
        self.key = key
        self._folder = folder = folder.absolute()  # a relative path would move with the working directory
        self._files = folder / "users"
        self._manifest = folder / "store.json"
        self._intent = folder / "intent.json"
        self._cache: dict[str, UserFile] = {}
        self._seen: dict[str, tuple[Signature | None, Epoch]] = {}
        """What was last read or written of each file, and its epoch, also if it is not in the cache any more."""
        self._epochs = count(1)
        self._cached_bytes = 0
        self._write_lock = threading.Lock()
        self._closed = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with ExitStack() as opened:
                self._folder_lock = opened.enter_context(closing(FileLock(folder / "store.lock")))
                with self._folder_lock:
                    is_new = not (self._manifest.exists() or self._files.exists())
                    self._format = open_manifest(self._manifest, key, compresses=compresses, is_new=is_new)
                    self._files.mkdir(mode=0o700, exist_ok=True)
                    sync_folder(folder)
                    self._finish()
                    for left in self._files.glob("*.tmp"):  # of a process that died during a write
                        left.unlink()
                self._status = folder.stat()
                opened.pop_all()
        except ConfigurationError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"Cannot open the store at {folder}: {error}. Is the folder writable?") from error

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies each batch as a whole or not at all, then replaces the files of all users that have changed.

        Raises StoreUnavailable if nothing was written, WriteUnknown if the write may not survive a power loss.
        """
        now = self._clock.now()
        drafts: dict[str, UserFile] = {}
        changed: dict[str, UserFile] = {}
        spans_users = False
        outcomes: list[Outcome] = []

        def draft(namespace: Namespace) -> UserFile:
            root = namespace[0]
            if root not in drafts:
                user = self._user(self._path(root))
                table = user.table.copy() if user.root else Table(next(self._epochs))
                drafts[root] = user._replace(root=root, table=table, packed=dict(user.packed))
            return drafts[root]

        with self._writing():
            for batch in batches:
                writes = WriteSet(
                    lambda key: draft(key[0]).table.state(key), lambda name: draft(name).table.head(name), now
                )
                try:
                    versions = writes.apply(batch)
                    packed = {key: pack_row(key, state) for key, state in writes.states.items()}
                except StoreError as error:
                    outcomes.append(error)
                    continue
                outcomes.append(versions)
                spans_users |= len({key[0][0] for key in writes.states}) > 1
                for key, state in writes.states.items():
                    user = changed[key[0][0]] = draft(key[0])
                    user.table.set(key, state)
                    user.packed[key] = packed[key]
            if changed:
                self._write(list(changed.values()), at_once=spans_users)
        return outcomes

    def get_meta(self, name: str) -> str | None:
        """A setting of the store, or its "schema_version"."""
        with self._open():
            content = read_manifest(self._manifest)
        return (content["settings"] | {"schema_version": str(content["schema_version"])}).get(name)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        with self._writing():
            content = read_manifest(self._manifest)
            if is_first and name in content["settings"]:
                return
            content["settings"][name] = value
            write_manifest(self._manifest, content)

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        """Every row of one user or of all. A damaged file is a single entry."""
        with self._open():
            self._settle()
            for path in self._paths() if root is None else [self._path(root)]:
                try:
                    user = self._user(path)
                except DamagedFile as error:
                    reason = f"line {error.line} of {path.name} is damaged; the whole file is unavailable until repair"
                    label = error.root or root
                    yield Unreadable(root=label, namespace=None, key=path.name, reason=reason, place=path)
                else:
                    yield from user.table.rows(None)

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        """Rewrites damaged files without the lines that cannot be read, and removes those with a damaged header.

        In a journal of an earlier version, rows return to their state before the damaged line.
        """
        with self._writing():
            for damaged in unreadable:
                path: Path = damaged.place
                try:
                    self._write([self._format.read(path, path.read_bytes(), leaves_out=True)], at_once=False)
                except DamagedFile:
                    path.unlink()
                    sync_folder(self._files)
        return len(unreadable)

    def copy_into(self, folder: Path) -> None:
        """Copies the files, as of this moment, to the new ``folder``. Others wait to write meanwhile."""
        with self._writing():
            folder.mkdir(mode=0o700)
            shutil.copytree(self._files, folder / self._files.name)
            shutil.copy2(self._manifest, folder)

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        with self._writing():
            path = self._path(root)
            self._cache.pop(path.name, None)
            path.unlink(missing_ok=True)
            sync_folder(self._files)
            for label in {namespace[0] for namespace, _ in also}:
                if not self._path(label).exists():
                    continue
                user = self._user(self._path(label))
                table, packed = user.table.copy(), dict(user.packed)
                table.erase("", also)
                for key in also:
                    packed.pop(key, None)
                self._write([user._replace(root=label, table=table, packed=packed)], at_once=False)

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """Does nothing: a file is replaced as a whole, and holds no more than its rows."""
        del fully
        return []

    def files(self) -> list[Path]:
        return [*self._files.iterdir(), self._manifest]

    def close(self) -> None:
        """Closes the lock file. Later calls raise StoreUnavailable."""
        with self._write_lock:
            self._closed = True
            self._folder_lock.close()

    @contextmanager
    def _open(self) -> Generator[None]:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"{self.name}: {error}") from error

    @contextmanager
    def _writing(self) -> Generator[None]:
        with self._write_lock, self._open(), self._folder_lock:
            self._check_folder()
            self._finish()
            yield

    def _check_folder(self) -> None:
        """Raises StoreUnavailable if the folder is not the one that was opened: the lock would not protect it."""
        with suppress(OSError):
            if os.path.samestat(self._folder.stat(), self._status) and self._manifest.exists():
                return
        raise StoreUnavailable(
            f"The folder {self._folder} or its store.json was deleted or replaced while the store was open; "
            "nothing was saved. Restore it and restart the program"
        )

    def _settle(self) -> None:
        """Waits for a running write of several users, or finishes the one of a process that died."""
        self._check_folder()
        if self._intent.exists():
            with self._writing():
                pass

    @contextmanager
    def _table(self, root: str) -> Generator[Table]:
        with self._open():
            self._settle()
            yield self._user(self._path(root)).table

    def _tables(self) -> Generator[Table]:
        with self._open():
            self._settle()
            for path in self._paths():
                try:
                    table = self._user(path).table
                except DamagedFile as error:
                    _LOG.warning("Skipping a damaged file: %s", error)
                else:
                    yield table

    def _path(self, root: str) -> Path:
        return self._files / self._format.file_name(root)

    def _paths(self) -> list[Path]:
        return [path for path in self._files.iterdir() if path.suffix == self._format.suffix]

    def _user(self, path: Path) -> UserFile:
        """The content of a file, read only if it has changed. Raises DamagedFile, StoreUnavailable."""
        try:
            known = self._cache.get(path.name)
            if known and known.signature == signature_of(path.stat()):
                return known
            with path.open("rb") as file:
                signature, content = signature_of(os.fstat(file.fileno())), file.read()
        except FileNotFoundError:
            return UserFile("", Table(), {})
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read: {error}") from error
        user = self._format.read(path, content)._replace(signature=signature)
        seen, epoch = self._seen.get(path.name, (None, NO_EPOCH))
        # A file may be replaced by an older copy of itself, and written to again, before this process looks.
        goes_on = seen == signature or (known and user.table.follows(known.table))
        user.table.epoch = epoch if goes_on else next(self._epochs)
        self._keep(path, user, len(content))
        return user

    def _keep(self, path: Path, user: UserFile, size: int) -> None:
        """Caches ``user``, emptying a full cache. Without a lock: at worst a race makes a file be read again."""
        if self._cached_bytes + size > _CACHE_BYTES:
            self._cache, self._cached_bytes = {}, 0
        self._cache[path.name] = user
        self._seen[path.name] = user.signature, user.table.epoch
        self._cached_bytes += size

    def _write(self, users: Sequence[UserFile], *, at_once: bool) -> None:
        """Replaces the files of ``users``; if ``at_once``, of all or of none. Requires the lock.

        A file is replaced by a rename. For several files at once, the rename of the intent decides: it lists the
        temporary files, and whoever finds an intent renames them. Readers wait for an intent, so there is none for
        batches that only share a transaction.
        """
        renames: dict[Path, Path] = {}
        written: list[tuple[Path, UserFile, int]] = []
        has_begun = False
        try:
            for user in users:
                path = self._path(user.root)
                temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
                renames[temporary] = path
                content = self._format.write(path, user)
                signature = write_file(temporary, content, replaced=path)
                written.append((path, user._replace(signature=signature), len(content)))
            if at_once:
                sync_folder(self._files)  # the files must be there after a power loss if the intent is
                intent = {"temporaries": [temporary.name for temporary in renames]}
                temporary = self._intent.with_suffix(".tmp")
                renames[temporary] = self._intent
                write_file(temporary, json.dumps(intent).encode())
            for temporary, path in list(renames.items())[-1 if at_once else 0 :]:
                temporary.replace(path)
                has_begun = True
            sync_folder(self._folder if at_once else self._files)
            self._finish()
        except OSError as error:
            if has_begun:
                raise WriteUnknown(f"A power loss may undo the write: {error}; retry under the same id") from error
            for temporary in renames:
                with suppress(OSError):
                    temporary.unlink()
            raise StoreUnavailable(f"The files of the store cannot be written: {error}") from error
        for one in written:
            self._keep(*one)

    def _finish(self) -> None:
        """Does the renames that an intent lists, if there is one. Requires the lock. Raises StoreError, OSError."""
        try:
            names: list[str] = json.loads(self._intent.read_bytes())["temporaries"]
            if any(Path(name).name != name or not name.endswith(".tmp") for name in names):
                raise ValueError
        except FileNotFoundError:
            return
        except UNREADABLE as error:
            raise StoreError(
                f"{self._intent} is damaged, or an earlier version of this package died during a write. Open the "
                "folder once with that version, or restore it from a backup"
            ) from error
        for name in names:
            with suppress(FileNotFoundError):  # renamed before the process died
                (self._files / name).replace(self._files / name.rsplit(".", 2)[0])
        sync_folder(self._files)
        self._intent.unlink()
