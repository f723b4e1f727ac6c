"""A file store: a folder with one file for each user, readable as JSON Lines or compressed and encrypted.

A write replaces its user's file as a whole: write a temporary file, fsync, rename, fsync the folder. A file is
therefore always complete, and readers need no lock. Writers of all processes share a lock on the folder.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, StoreError, StoreUnavailable, WriteUnknown
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import NO_EPOCH, Epoch
from inference_core.stores.backend import Capabilities, Key, Outcome, Row, Unreadable, Write
from inference_core.stores.backends.file_format import (
    DamagedFile,
    Signature,
    UserFile,
    open_manifest,
    pack_row,
    read_manifest,
    signature_of,
    write_file,
    write_manifest,
)
from inference_core.stores.backends.rows import WriteSet
from inference_core.stores.backends.tables import Table, TableBackend
from inference_core.stores.codec import UNREADABLE
from inference_core.stores.locks import FileLock, sync_folder

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

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
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

    def discard(self, found: Sequence[Unreadable]) -> int:
        """Rewrites damaged files without the lines that cannot be read, and removes those with a damaged header.

        In a journal of an earlier version, rows return to their state before the damaged line.
        """
        with self._writing():
            for one in found:
                path: Path = one.place
                try:
                    self._write([self._format.read(path, path.read_bytes(), leaves_out=True)], at_once=False)
                except DamagedFile:
                    path.unlink()
                    sync_folder(self._files)
        return len(found)

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
