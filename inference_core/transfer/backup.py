"""Backups of whole stores: made beside writers, verified, restored into an empty store, rehearsed.

A backup is a folder: ``manifest.json``, and the store as SQLite's ``VACUUM INTO`` gives it, as the files of a file
store, or as rows (JSON Lines). Of SQLite, PostgreSQL and files it holds one moment between two commits; of other
databases each row as it was when it was read. Encrypted rows and files stay encrypted: the keys are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from inference_core.effects import run
from inference_core.errors import InvalidInput, StoreError, VersionConflict
from inference_core.lifecycle.erasing import replay
from inference_core.lifecycle.ledger import ErasureReceipt, Ledger
from inference_core.memory.places import ROOTS
from inference_core.memory.text import encode_json
from inference_core.stores.backend import CONTENT_KEY_META, EMBEDDING_META, Backend, Key, Put
from inference_core.stores.backends.file import FileBackend
from inference_core.stores.backends.file_format import pack_row, parse_key, sync_folder, unpack_row
from inference_core.stores.backends.rows import RowState
from inference_core.stores.backends.sqlite import SqliteBackend
from inference_core.stores.codec import UNREADABLE
from inference_core.stores.embedding import DIMENSIONS_META
from inference_core.stores.engine import StoreEngine
from inference_core.stores.opening import open_backend
from inference_core.stores.sealed import SEALED_META, SealedBackend
from inference_core.stores.search import Search
from inference_core.stores.urls import parse_url


@runtime_checkable
class _HasSnapshot(Protocol):
    """A database that can be read as of one moment."""

    def snapshot(self) -> AbstractContextManager[Backend]: ...


Progress = Callable[[int, int], None]
"""Is called with how many rows are done, and of how many."""
Stored = tuple[Key, RowState]
FORMAT: Final = "inference-core-backup"
_MANIFEST: Final = "manifest.json"
_SETTINGS: Final = (EMBEDDING_META, DIMENSIONS_META, CONTENT_KEY_META, SEALED_META)
_RESTORING: Final = "restoring"
"""The setting of a store that an interrupted restore has begun to fill."""
_PORTION: Final = 200
_RECALLS: Final = 20
_QUESTION: Final = 500
"""Characters of a text that a drill searches for."""
_STORE: Final = "store"
"""What holds the store in a backup: a file or, of a file store, a folder."""
_MODULUS: Final = 1 << 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """How many rows a user, or a shared list, has, and a digest of them all, in whatever order they are read."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup holds. ``kind`` is "sqlite", "file" or "rows"; ``contents`` by the first label of namespaces.

    ``files`` has the SHA-256 of each file, ``settings`` those of the whole store. ``at`` is an instant in ISO 8601.
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
        """How many first labels of users and applications there are."""
        return len(self.contents.keys() - ROOTS.keys())

    def to_json(self) -> dict[str, Any]:
        """Itself as JSON data, with a checksum over all of it."""
        content = {"format": FORMAT, "version": 1, **asdict(self)}
        return content | {"sha256": _checksum(content)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """The clock of a backup: what had not ended when it was made is there."""

    at: str

    def now(self) -> datetime:
        return datetime.fromisoformat(self.at)


def back_up(store: Backend, folder: Path, progress: Progress | None = None) -> Manifest:
    """Writes a backup of ``store`` to the new ``folder``, which appears when it is whole.

    Others may go on reading and writing. Only its owner may read it. Raises InvalidInput if the folder is there,
    StoreError, OSError.
    """
    if folder.exists():
        raise InvalidInput(f"{folder} is there already; name a new folder")
    inner = store.inner if isinstance(store, SealedBackend) else store
    part = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.part")
    part.mkdir(mode=0o700, parents=True)
    try:
        at, kind = datetime.now(UTC).isoformat(), _kind(inner)
        found = {name: inner.get_meta(name) for name in _SETTINGS}
        settings = {name: value for name, value in found.items() if value is not None}
        if isinstance(inner, SqliteBackend | FileBackend):
            inner.copy_into(part / _STORE)
        else:
            one_moment = inner.snapshot() if isinstance(inner, _HasSnapshot) else nullcontext(inner)
            with one_moment as frozen, _new_file(part / _STORE) as file:
                for key, state in _stored(frozen, progress):
                    file.write(pack_row(key, state) + b"\n")
        files = {str(path.relative_to(part)): _digest(path) for path in _files(part)}
        made = Manifest(
            id=secrets.token_hex(16), at=at, kind=kind, source=inner.name, contents={}, files=files, settings=settings
        )
        key = inner.key if isinstance(inner, FileBackend) else None
        with _rows_in(part, made, key) as rows:
            made = replace(made, contents=_contents(rows))
        with _new_file(part / _MANIFEST) as file:
            file.write(json.dumps(made.to_json(), ensure_ascii=False, indent=1).encode())
        sync_folder(part)
        part.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def verify(folder: Path, progress: Progress | None = None, *, encryption_key: str | bytes | None = None) -> Manifest:
    """Reads all of a backup and compares it with its manifest. Raises InvalidInput that names what is damaged.

    ``encryption_key`` is that of an encrypted file store.
    """
    manifest = read_manifest(folder)
    there = {str(path.relative_to(folder)) for path in _files(folder)} - {_MANIFEST}
    if wrong := sorted(there ^ manifest.files.keys()):
        raise InvalidInput(f"{folder} is damaged: {wrong[0]} is {'not part of it' if wrong[0] in there else 'missing'}")
    for name, digest in manifest.files.items():
        if _digest(folder / name) != digest:
            raise InvalidInput(f"{folder / name} is damaged: its checksum does not fit")
    with _rows_in(folder, manifest, encryption_key) as rows:
        _compare(manifest, _contents(_counted(rows, manifest.rows, progress)), str(folder))
    return manifest


def restore(
    folder: Path, url: str, ledger: Ledger | None = None, progress: Progress | None = None, **keys: Any
) -> tuple[Manifest, list[ErasureReceipt]]:
    """Fills the empty store at ``url`` with a backup, and erases again who is in the ``ledger``; their receipts.

    Of files the store appears when it is whole; a restore into a server that was interrupted is continued by the next
    call. ``keys`` are the options of `open_backend` that say how the store is encrypted. Raises InvalidInput if the
    backup is damaged or the store is not empty, StoreError.
    """
    own_key = None if keys.get("keys") else keys.get("encryption_key")
    manifest = verify(folder, encryption_key=own_key)
    scheme, path = parse_url(url).scheme, parse_url(url).path
    with ExitStack() as opened:
        part = None
        if path is not None:
            if path.exists():
                raise InvalidInput(f"{path} is there already: a backup is restored into a new store alone")
            part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
            part.parent.mkdir(parents=True, exist_ok=True)
            opened.callback(_remove, part)
            url = f"{scheme}:///{part}"
            if is_copied := manifest.kind == scheme:
                _copy(folder / _STORE, part)
        else:
            is_copied = False
        with closing(open_backend(url, clock=_At(at=manifest.at), as_it_is=True, **keys)) as store:
            inner = store.inner if isinstance(store, SealedBackend) else store
            if not is_copied:
                with _rows_in(folder, manifest, own_key) as rows:
                    _fill(inner, manifest, _counted(rows, manifest.rows, progress))
            _compare(manifest, _contents(_stored(inner)), inner.name)
            receipts = replay([store], ledger, by="restore") if ledger else []
        if part is not None and path is not None:
            for left in _beside(part):
                left.unlink(missing_ok=True)
            part.rename(path)
            sync_folder(path.parent)
    return manifest, receipts


def drill(folder: Path, progress: Progress | None = None, **keys: Any) -> Manifest:
    """Restores a backup to a place of its own, compares it, recalls memories from it, and removes it again.

    Raises InvalidInput if the backup is damaged, StoreError if what it restores to cannot be used.
    """
    kind = read_manifest(folder).kind
    with tempfile.TemporaryDirectory(prefix="inference-core-drill-") as place:
        url = f"{'file' if kind == 'file' else 'sqlite'}:///{place}/drill"
        manifest, _ = restore(folder, url, progress=progress, **keys)
        with closing(StoreEngine(open_backend(url, clock=_At(at=manifest.at), as_it_is=True, **keys))) as engine:
            texts = ((key, state.document.text) for key, state in _stored(engine.backend) if state.document)
            for (namespace, key), text in islice(texts, _RECALLS):
                found = run(engine.search(Search(groups=((namespace,),), text=text[:_QUESTION], limit=_RECALLS)))
                if key not in [one.row.key for one in found.groups[0]]:
                    raise StoreError(f"The restored store does not find {key!r} by its own text")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the backup in ``folder``. Raises InvalidInput if that is none, or damaged."""
    path = folder / _MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        checksum = content.pop("sha256")
        if content.pop("format") != FORMAT or checksum != _checksum({"format": FORMAT, **content}):
            raise InvalidInput(f"{path} is damaged: its checksum does not fit")
        if content.pop("version") > 1:
            raise InvalidInput(f"{folder} was made by a newer version of this package: update it")
        content["contents"] = {label: Contents(**one) for label, one in content["contents"].items()}
        return Manifest(**content)
    except (OSError, *UNREADABLE) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{folder} is no backup, or its {_MANIFEST} is damaged") from None


def _kind(store: Backend) -> str:
    return "sqlite" if isinstance(store, SqliteBackend) else "file" if isinstance(store, FileBackend) else "rows"


def _stored(store: Backend, progress: Progress | None = None) -> Iterator[Stored]:
    """All rows of a store that can be read and have not ended, with their texts and vectors."""
    scopes = store.namespaces()
    total, done = store.count(scopes) if progress else 0, 0
    for scope in scopes:
        changes = iter(store.changes(scope, 0))
        while portion := list(islice(changes, _PORTION)):
            keys = [(scope, change.key) for change in portion]
            for row, change, tokens in zip(store.get(keys), portion, store.tokens(keys), strict=True):
                if row is None:
                    continue
                document = change.document and change.document._replace(tokens=tokens)
                value = encode_json(row.value, what="value")
                times = row.created_at, row.updated_at
                yield (scope, row.key), RowState(row.seq, row.version, change.kind, *times, value, document, row.expiry)
            done += len(portion)
            if progress:
                progress(done, max(done, total))


def _contents(rows: Iterable[Stored]) -> dict[str, Contents]:
    """The contents of each first label. Sums of hashes: rows come in another order from each database."""
    found: dict[str, tuple[int, int]] = {}
    for (namespace, key), state in rows:
        count, total = found.get(namespace[0], (0, 0))
        packed = json.loads(pack_row((namespace, key), state))
        del packed["seq"]
        digest = hashlib.sha256(json.dumps(packed, sort_keys=True).encode()).digest()
        found[namespace[0]] = count + 1, (total + int.from_bytes(digest)) % _MODULUS
    return {label: Contents(rows=count, digest=f"{total:064x}") for label, (count, total) in sorted(found.items())}


def _compare(manifest: Manifest, found: Mapping[str, Contents], what: str) -> None:
    for label in sorted(manifest.contents.keys() | found.keys()):
        wanted, there = manifest.contents.get(label), found.get(label)
        if wanted != there:
            rows = f"{there.rows if there else 0} rows of {wanted.rows if wanted else 0}"
            raise InvalidInput(f"{what} does not hold what the manifest says of {label!r}: {rows}, or other contents")


def _counted(rows: Iterable[Stored], total: int, progress: Progress | None) -> Iterator[Stored]:
    for done, row in enumerate(rows, 1):
        yield row
        if progress and (done % _PORTION == 0 or done == total):
            progress(done, total)


@contextmanager
def _rows_in(folder: Path, manifest: Manifest, key: str | bytes | None) -> Generator[Iterator[Stored]]:
    """The rows of a backup, as they were at its time."""
    with ExitStack() as opened:
        if manifest.kind == "rows":
            file = opened.enter_context((folder / _STORE).open("rb"))
            yield (unpack_row(json.loads(line)) for line in file)
            return
        # Opening a store may change its files: those of a backup stay as they are.
        place = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="inference-core-backup-"))) / _STORE
        _copy(folder / _STORE, place)
        clock = _At(at=manifest.at)
        if manifest.kind == "sqlite":
            store: Backend = SqliteBackend(place, durable=False, clock=clock)
        else:
            store = FileBackend(place, key=parse_key(key) if key else None, clock=clock)
        with closing(store):
            yield _stored(store)


def _fill(store: Backend, manifest: Manifest, rows: Iterable[Stored]) -> None:
    """Writes the rows of a backup into an empty store, or into one that an earlier call has begun to fill."""
    begun = store.get_meta(_RESTORING)
    if begun != manifest.id and (begun or store.namespaces()):
        raise InvalidInput(f"{store.name} is not empty: a backup is restored into a new store alone")
    store.set_meta(_RESTORING, manifest.id)
    for name, value in manifest.settings.items():
        store.set_meta(name, value)
    source = iter(rows)
    while portion := list(islice(source, _PORTION)):
        for outcome in store.apply([[_put(key, state)] for key, state in portion]):
            if isinstance(outcome, Exception) and not isinstance(outcome, VersionConflict):  # there already
                raise outcome
    store.set_meta(_RESTORING, "")


def _put(key: Key, state: RowState) -> Put:
    return Put(
        namespace=key[0],
        key=key[1],
        value=state.value or "{}",
        document=state.document,
        kind=state.kind,
        created_at=state.created_at,
        updated_at=state.updated_at,
        expected=0,
        above=state.version - 1,
        expiry=state.expiry,
    )


def _copy(store: Path, place: Path) -> None:
    """Copies a database file or the folder of a file store."""
    if store.is_dir():
        shutil.copytree(store, place)
    else:
        shutil.copyfile(store, place)
        place.chmod(0o600)


def _beside(path: Path) -> list[Path]:
    """What SQLite and its lock leave beside a database that was closed."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", ".lock")]


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    for one in (path, *_beside(path)):
        with suppress(OSError):
            one.unlink()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


@contextmanager
def _new_file(path: Path) -> Generator[Any]:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
