"""Backups of whole stores: made beside writers, verified, restored into an empty store, tested by a trial restore.

A backup is a folder: ``manifest.json``, and the store as SQLite's ``VACUUM INTO`` gives it, as the files of a file
store, or as rows (JSON Lines). For SQLite, PostgreSQL and files it is a snapshot between two commits; for other
databases it has each row as it was when it was read. Encrypted rows and files stay encrypted: the keys are not in it.

The manifest of a backup: what the backup holds, of whom, and checksums that locate damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Protocol, runtime_checkable

from inference_core.effects import Progress, run
from inference_core.errors import Held, InvalidInput, StoreError, VersionConflict
from inference_core.lifecycle.conversations import Threads
from inference_core.lifecycle.ledger import COPIES_META, ErasureReceipt, Ledger, alone_at, note_copy, own_folder
from inference_core.lifecycle.repairs import replay
from inference_core.memory.namespaces import ROOTS, Namespace
from inference_core.memory.text import encode_json
from inference_core.outbox.outbox import put_in_place
from inference_core.retrieval.documents import Change
from inference_core.services.operations.tuning import TUNABLE, TUNED_META
from inference_core.stores.backend import (
    CONTENT_KEY_META,
    EMBEDDING_META,
    UNREADABLE,
    Backend,
    Key,
    Put,
    RowState,
    with_ended,
)
from inference_core.stores.backends.file import FileBackend, entry_of, pack_row, parse_key, sync_folder, unpack_row
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.stores.encryption.encrypted import ENCRYPTED_META, EncryptedBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_backend
from inference_core.stores.indexing.embedding import DIMENSIONS_META
from inference_core.stores.indexing.search import Search
from inference_core.stores.locks import private_file
from inference_core.stores.rules.audit_log import AUDIT_META, KEY_META
from inference_core.stores.urls import parse_url, url_of

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
    def is_encrypted(self) -> bool:
        """Whether its rows are encrypted with a key for each user."""
        return ENCRYPTED_META in self.settings

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


@runtime_checkable
class _HasSnapshot(Protocol):
    """A database that can be read as of one moment."""

    def snapshot(self) -> AbstractContextManager[Backend]: ...


Stored = tuple[Key, RowState]
_SETTINGS: Final = (
    *(EMBEDDING_META, DIMENSIONS_META, CONTENT_KEY_META, ENCRYPTED_META, AUDIT_META, KEY_META, COPIES_META),
    *(TUNED_META + name for name in sorted(TUNABLE)),
)
_RESTORING: Final = "restoring"
"""The setting with the id of the backup, in a store that a restore has begun to fill; empty once it is done."""
_FILLED: Final = " filled"
"""Follows that id once all rows are there: from then on, users may have been erased again."""
_PORTION: Final = 200
_RECALLS: Final = 20
_QUESTION: Final = 500
"""Characters of a text that a drill searches for."""
_STORE: Final = "store"
"""What holds the store in a backup: a file or, of a file store, a folder."""
_MODULUS: Final = 1 << 256
_SORTED: Final = json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """A clock that stands at the time of the backup: rows that have expired since are still there."""

    at: str

    def now(self) -> datetime:
        return datetime.fromisoformat(self.at)


def back_up(store: Backend, folder: Path, progress: Progress | None = None) -> Manifest:
    """Writes a backup of ``store`` to the new ``folder``, which appears only once it is complete.

    Others can keep reading and writing the store. Only the owner of the files may read them. Raises InvalidInput if
    the folder exists, StoreError, OSError.
    """
    if folder.exists():
        raise InvalidInput(f"{folder} already exists; name a new folder")
    inner = _database(store)
    part = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.part")
    part.mkdir(mode=0o700, parents=True)
    note_copy(inner, "backup that was interrupted", part)  # an erasure names it, should this process be killed
    try:
        at = datetime.now(UTC).isoformat()
        kind = "sqlite" if isinstance(inner, SqliteBackend) else "file" if isinstance(inner, FileBackend) else "rows"
        contents: Mapping[str, Contents] = {}
        if isinstance(inner, SqliteBackend | FileBackend):
            inner.copy_into(part / _STORE)
            settings = {name: inner.get_meta(name) for name in _SETTINGS}
        else:
            one_moment = inner.snapshot() if isinstance(inner, _HasSnapshot) else nullcontext(inner)
            with one_moment as frozen, private_file(part / _STORE) as file:
                contents = _contents(_stored(with_ended(frozen), progress), file)
                settings = {name: frozen.get_meta(name) for name in _SETTINGS}
        files = {str(path.relative_to(part)): digest_of(path, durable=True) for path in files_in(part)}
        made = Manifest(
            id=secrets.token_hex(16),
            at=at,
            kind=kind,
            source=inner.name,
            contents=contents,
            files=files,
            settings={name: value for name, value in settings.items() if value is not None},
        )
        if kind != "rows":
            with _rows_in(part, made, inner.key if isinstance(inner, FileBackend) else None, progress) as rows:
                made = replace(made, contents=_contents(rows))
        with private_file(part / MANIFEST) as file:
            file.write(made.encoded())
        sync_folder(part)
        part.rename(folder)
        sync_folder(folder.parent)
        note_copy(inner, "backup", folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def verify(folder: Path, progress: Progress | None = None, *, encryption_key: str | bytes | None = None) -> Manifest:
    """Reads an entire backup and compares it with its manifest. Raises InvalidInput, naming what is damaged.

    ``encryption_key`` is that of an encrypted file store.
    """
    manifest = sound_manifest(folder)
    with _rows_in(folder, manifest, encryption_key, progress) as rows:
        manifest.compare(_contents(rows), str(folder))
    return manifest


def restore(
    folder: Path,
    url: str,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    *,
    threads: Sequence[Threads] = (),
    audit_key: bytes | None = None,
    **keys: Any,
) -> tuple[Manifest, list[ErasureReceipt]]:
    """Fills the empty store at ``url`` with a backup, erases users in ``ledger`` again; returns manifest and receipts.

    A store in files appears only once it is complete; an interrupted restore into a server is continued by the next
    call. ``threads`` are the conversations, which may be restored as well; ``audit_key`` is that of `erase`. ``keys``
    are the options of `open_backend` that say how the store is encrypted; a backup that is not encrypted is restored
    without ``keys=``. Raises InvalidInput if the backup is damaged or the store is not empty, StoreError.
    """
    own_key = None if keys.get("keys") else keys.get("encryption_key")
    scheme, path = parse_url(url).scheme, parse_url(url).path
    is_copied = path is not None and read_manifest(folder).kind == scheme
    parts = 1 if is_copied else 3
    # Copied files are compared afterwards; rows are verified first, so that no damaged backup is written to a server.
    manifest = (
        sound_manifest(folder) if is_copied else verify(folder, _part(progress, 0, parts), encryption_key=own_key)
    )
    receipts, held = list[ErasureReceipt](), None
    with ExitStack() as opened:
        part = None
        if path is not None:
            _check_is_new(path)
            part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
            part.parent.mkdir(parents=True, exist_ok=True)
            opened.enter_context(alone_at(path))
            opened.callback(_remove, part)
            url = url_of(scheme, part)
            if is_copied:
                _copy(folder / _STORE, part)
        with closing(_opened(url, manifest, keys)) as store:
            inner = with_ended(_database(store))
            if inner.get_meta(_RESTORING) != manifest.id + _FILLED:
                if not is_copied:
                    with _rows_in(folder, manifest, own_key, _part(progress, 1, parts)) as rows:
                        _fill(inner, manifest, rows)
                manifest.compare(_contents(_stored(inner, _part(progress, parts - 1, parts))), inner.name)
                inner.set_meta(_RESTORING, manifest.id + _FILLED)
            put_in_place(store)
            try:
                labels = manifest.contents
                replayed = partial(replay, threads=threads, by="restore", labels=labels, audit_key=audit_key)
                receipts = replayed([store], ledger) if ledger else []
            except Held as error:
                held = error
            inner.set_meta(_RESTORING, "")
        if part is not None and path is not None:
            for left in _beside(part):
                left.unlink(missing_ok=True)
            part.rename(path)
            sync_folder(path.parent)
    if held and ledger:
        raise StoreError(
            f"The backup is restored, but legal holds in it protect users in the ledger: {', '.join(held.holds)}. "
            f"Release these holds, then run inference-core erasures --replay {ledger.path}"
        )
    return manifest, receipts


def drill(folder: Path, progress: Progress | None = None, **keys: Any) -> Manifest:
    """Restores a backup to a temporary folder, compares it, recalls memories from it, and removes it again.

    Raises InvalidInput if the backup is damaged, StoreError if what it restores to cannot be used.
    """
    kind = read_manifest(folder).kind
    with own_folder("drill") as place:
        url = url_of("file" if kind == "file" else "sqlite", place / "drill")
        manifest, _ = restore(folder, url, progress=progress, **keys)
        with closing(StoreEngine(_opened(url, manifest, keys))) as engine:
            # Only unique beginnings: of texts that begin alike, the search may return any.
            times = Counter(hash((key[0], text)) for key, text in _beginnings(engine.backend))
            alone = ((key, text) for key, text in _beginnings(engine.backend) if times[hash((key[0], text))] == 1)
            for (namespace, key), text in islice(alone, _RECALLS):
                result = run(engine.search(Search(groups=((namespace,),), text=text, limit=_RECALLS)))
                if key not in [hit.row.key for hit in result.groups[0]]:
                    raise StoreError(f"The restored store does not find {key!r} by its own text")
    return manifest


def _check_is_new(path: Path) -> None:
    if path.exists():
        raise InvalidInput(f"{path} already exists: a backup is restored only into a new store")
    if (log := path.with_name(f"{path.name}-wal")).exists():  # SQLite would write it into the restored store
        raise InvalidInput(f"{log} is left from a store that is gone; move it to where that store's file is")


def _opened(url: str, manifest: Manifest, keys: Mapping[str, Any]) -> Backend:
    """The store that the backup is restored to. Unencrypted rows must not get into a store that is marked encrypted."""
    fitting = dict[str, Any]() if keys.get("keys") and not manifest.is_encrypted else keys
    return open_backend(url, clock=_At(at=manifest.at), as_it_is=True, **fitting)


def _beginnings(store: Backend) -> Iterator[tuple[Key, str]]:
    """The beginning of each text, to search for; without texts that have no words, such as "!!!"."""
    rows = ((key, state.document) for key, state in _stored(store))
    return ((key, document.text[:_QUESTION]) for key, document in rows if document and document.terms)


def _database(store: Backend) -> Backend:
    """The database of ``store``, without the wrappers for holds, limits and encryption."""
    return store.inner if isinstance(store, EncryptedBackend) else store


def _stored(store: Backend, progress: Progress | None = None) -> Iterator[Stored]:
    """All rows of a store that can be read, with their texts and vectors."""
    namespaces = store.namespaces()
    total, done = store.count(namespaces) if progress else 0, 0
    for namespace in namespaces:
        store.heads([namespace])  # other libraries' stores notice changes only when asked for this
        changes = iter(store.changes(namespace, 0))
        while portion := list(islice(changes, _PORTION)):
            found = list(_whole(store, namespace, portion))
            yield from found
            done += len(found)
            if progress:
                progress(done, max(done, total))


def _whole(store: Backend, namespace: Namespace, portion: list[Change]) -> Iterator[Stored]:
    """The rows of ``portion``. One that is written between the reads of its text and of its value is read again."""
    while portion:
        keys = [(namespace, change.key) for change in portion]
        later: set[str] = set()
        for row, change, tokens in zip(store.get(keys), portion, store.tokens(keys), strict=True):
            if row is None:
                continue
            if row.seq != change.seq and row.seq:  # other libraries' stores number no writes
                later.add(row.key)
                continue
            document = change.document and change.document._replace(tokens=tokens)
            value = encode_json(row.value, what="value")
            times = row.created_at, row.updated_at
            yield (namespace, row.key), RowState(row.seq, row.version, change.kind, *times, value, document, row.expiry)
        since = min((change.seq for change in portion), default=0)
        newest = {change.key: change for change in store.changes(namespace, since)} if later else {}
        portion = [newest[key] for key in later if key in newest]


def _contents(rows: Iterable[Stored], file: IO[bytes] | None = None) -> dict[str, Contents]:
    """The contents of each first label; also writes the rows to ``file``.

    Digests are sums of hashes, because the order of rows differs between databases.
    """
    found: dict[str, tuple[int, int]] = {}
    for key, state in rows:
        if file:
            file.write(pack_row(key, state) + b"\n")
        count, total = found.get(key[0][0], (0, 0))
        entry = entry_of(key, state)
        del entry["seq"]  # each database numbers its writes by itself
        digest = hashlib.sha256(_SORTED.encode(entry).encode()).digest()
        found[key[0][0]] = count + 1, (total + int.from_bytes(digest)) % _MODULUS
    return {label: Contents(rows=count, digest=f"{total:064x}") for label, (count, total) in sorted(found.items())}


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    """Progress of one of several passes over the same rows."""
    return progress and (lambda done, total: progress(number * total + done, parts * total))


@contextmanager
def _rows_in(
    folder: Path, manifest: Manifest, key: str | bytes | None, progress: Progress | None
) -> Generator[Iterator[Stored]]:
    """The rows of a backup, as they were at its time."""
    with ExitStack() as opened:
        if manifest.kind == "rows":
            yield _lines(opened.enter_context((folder / _STORE).open("rb")), manifest.rows, progress)
            return
        # Opening a store may change its files, so open a copy of the backup's.
        place = opened.enter_context(own_folder("backup")) / _STORE
        _copy(folder / _STORE, place)
        clock = _At(at=manifest.at)
        if manifest.kind == "sqlite":
            store: Backend = SqliteBackend(place, durable=False, clock=clock)
        else:
            store = FileBackend(place, key=parse_key(key) if key else None, clock=clock)
        with closing(store):
            yield _stored(with_ended(store), progress)


def _lines(file: IO[bytes], total: int, progress: Progress | None) -> Iterator[Stored]:
    for done, line in enumerate(file, 1):
        yield unpack_row(json.loads(line))
        if progress and (done % _PORTION == 0 or done == total):
            progress(done, total)


def _fill(store: Backend, manifest: Manifest, rows: Iterable[Stored]) -> None:
    """Writes the rows of a backup into a store that is empty, or that an earlier call has begun to fill."""
    begun = store.get_meta(_RESTORING)
    if begun != manifest.id and (begun or store.namespaces()):
        raise InvalidInput(f"{store.name} is not empty: a backup is restored only into a new store")
    store.set_meta(_RESTORING, manifest.id)
    for name, value in manifest.settings.items():
        store.set_meta(name, value)
    puts = (
        Put(
            namespace=namespace,
            key=key,
            value=state.value or "{}",
            document=state.document,
            kind=state.kind,
            created_at=state.created_at,
            updated_at=state.updated_at,
            expected=0,
            above=state.version - 1,
            expiry=state.expiry,
        )
        for (namespace, key), state in rows
    )
    while portion := list(islice(puts, _PORTION)):
        for outcome in store.apply([[put] for put in portion]):
            if isinstance(outcome, Exception) and not isinstance(outcome, VersionConflict):  # there already
                raise outcome


def _copy(store: Path, place: Path) -> None:
    """Copies a database file or the folder of a file store."""
    if store.is_dir():
        shutil.copytree(store, place)
    else:
        shutil.copyfile(store, place)
        place.chmod(0o600)


def _beside(path: Path) -> list[Path]:
    """The files that SQLite and its lock may leave beside a closed database."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", ".lock")]


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    for one in (path, *_beside(path)):
        with suppress(OSError):
            one.unlink()
