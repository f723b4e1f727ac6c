"""EncryptedBackend: any of our databases with its rows encrypted, with a key for each user.

Values, texts with their terms and metadata, vectors and token vectors are encrypted, each for its namespace, key and
field. What the database needs to find rows stays readable: namespaces, keys, kinds, times, versions, sizes, and the
name of the embedding model. Whatever has to look into a text does so in this process.

RowCipher: encrypts and decrypts the fields of a user's rows, each bound to its namespace, key and field.
"""

from __future__ import annotations

import copy
import json
import time
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from inference_core.errors import ConfigurationError, SealError, StoreError, WriteUnknown, in_one_line
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, Term
from inference_core.stores.backend import (
    CONTENT_KEY_META,
    ENCRYPTED,
    LOST,
    UNREADABLE,
    Backend,
    Batch,
    Cursor,
    Head,
    Key,
    Outcome,
    PageRequest,
    Put,
    Remove,
    Rewrite,
    Row,
    RowState,
    SetVector,
    States,
    Tally,
    UnembeddedRow,
    Unreadable,
    Write,
    WriteRule,
    change_of,
    pack_namespace,
    unpack_value,
    with_ended,
)
from inference_core.stores.backends.rows import holding_most
from inference_core.stores.encryption.keyring import ID_BYTES, DataKey, KeyRing, decrypt, encrypt

_FIELD: Final = "sealed"
_HEADER: Final = len(ENCRYPTED) + ID_BYTES
COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Writes JSON without spaces."""


class RowCipher:
    """Encrypts and decrypts the fields of rows whose namespaces have the same first label.

    Methods that open a field return None if its key was destroyed, and raise a SealError that names the row. ``again``
    gives the present keys: a rotation may have made one since.
    """

    def __init__(self, keys: Sequence[DataKey], store: str, again: Callable[[], Sequence[DataKey]]) -> None:
        self._secrets = {ENCRYPTED + key.id: key.secret for key in keys}
        self._store = store
        self._again = again
        self.current = next((key.id for key in keys if key.secret), b"")
        self.is_destroyed = bool(keys) and not self.current

    def encrypt(self, body: bytes, place: Key, field: str) -> bytes:
        """``body`` encrypted with the newest key, for this field of this row."""
        header = ENCRYPTED + self.current
        return header + encrypt(self._secrets[header] or b"", body, _place(place, field))

    def encrypt_text(self, body: bytes, place: Key, field: str) -> str:
        """The same as text, in base 64."""
        return b64encode(self.encrypt(body, place, field)).decode()

    def encrypted_write(self, write: Put | SetVector | Rewrite) -> Put | SetVector | Rewrite:
        """``write`` with its value, document and vectors encrypted. Raises UnicodeError."""
        place = write.namespace, write.key
        if isinstance(write, SetVector):
            tokens = None if write.tokens is None else self.encrypt(write.tokens, place, "tokens")
            return replace(write, vector=self.encrypt(write.vector, place, "vector"), tokens=tokens)
        value = f'{{"{_FIELD}":"{self.encrypt_text(write.value.encode(), place, "value")}"}}'
        document = write.document
        if document is not None:
            text, terms, analyzer, situation, model, vector, tokens = document
            known = COMPACT.encode([text, terms, analyzer, *situation]).encode()
            document = Document(
                text=self.encrypt_text(known, place, "text"),
                terms="",
                analyzer="",
                model=model,
                vector=None if vector is None else self.encrypt(vector, place, "vector"),
                tokens=None if tokens is None else self.encrypt(tokens, place, "tokens"),
            )
        return replace(write, value=value, document=document)

    def decrypt(self, blob: bytes, place: Key, field: str) -> bytes | None:
        """The body that was encrypted as ``blob``."""
        header = blob[:_HEADER]
        if header not in self._secrets and header.startswith(ENCRYPTED):
            known = {one: secret for one, secret in self._secrets.items() if secret}
            # Known keys stay: the row may have been read before it was encrypted anew.
            self._secrets = {ENCRYPTED + key.id: key.secret for key in self._again()} | known
        try:
            secret = self._secrets[header]
            return None if secret is None else decrypt(secret, blob[_HEADER:], _place(place, field))
        except KeyError:
            reason = "it is not sealed"
            if header.startswith(ENCRYPTED):
                reason = "the key store does not have its key; is it the right one?"
        except SealError:
            reason = "it was changed, cut or swapped, or belongs to another row"
        namespace, key = place
        raise SealError(
            f"The {field} of {key!r} in {'/'.join(namespace[1:])!r} of {self._store} cannot be opened: {reason}. "
            "Nothing of it was read. Restore a backup, or remove the row with inference-core repair",
            f"its {field} cannot be opened: {reason}",
        )

    def decrypt_text(self, text: object, place: Key, field: str) -> bytes | None:
        """The same from a text of `encrypt_text`."""
        return self.decrypt(_decoded(text), place, field)

    def row(self, row: Row) -> Row | None:
        """``row`` with its value open."""
        place = row.namespace, row.key
        opened = self.decrypt_text(row.value.get(_FIELD), place, "value")
        return None if opened is None else replace(row, value=json.loads(opened))

    def document(self, document: Document, place: Key, *, with_vector: bool = True) -> Document | None:
        """``document`` with its text, terms and vector open; token vectors are read separately."""
        opened = self.decrypt_text(document.text, place, "text")
        vector = document.vector if with_vector else None
        opened_vector = None if vector is None else self.decrypt(vector, place, "vector")
        if opened is None or (vector is not None and opened_vector is None):
            return None
        text, terms, analyzer, *situation = json.loads(opened.decode())
        model = document.model if with_vector else ""
        return Document(text, terms, analyzer, DocumentMetadata(*situation), model, opened_vector)

    def key_id_of(self, row: Row) -> bytes:
        """The id of the key that the value of ``row`` is encrypted with."""
        return _decoded(row.value.get(_FIELD))[len(ENCRYPTED) : _HEADER]

    def is_current(self, row: Row, document: Document | None, tokens: bytes | None) -> bool:
        """Whether the row is encrypted with the newest key, in all of its fields."""
        blobs = [_decoded(row.value.get(_FIELD)), tokens]
        if document is not None:
            blobs += [_decoded(document.text), document.vector]
        return all(blob is None or blob.startswith(ENCRYPTED + self.current) for blob in blobs)


def _decoded(text: object) -> bytes:
    """The bytes of an encrypted text; empty if it is anything else."""
    try:
        return a2b_base64(text, strict_mode=True) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _place(place: Key, field: str) -> bytes:
    return f"{_packed(place[0])}\n{place[1]}\n{field}".encode()


_packed = lru_cache(maxsize=4_096)(pack_namespace)


T = TypeVar("T")
ENCRYPTED_META: Final = "sealed"
"""The setting that marks an encrypted store; only the store's own key opens it."""
GRACE_S: Final = 60.0
"""How long after a new key was made a write may still use the one before. Seconds."""
OF_STORE: Final = "#store"
"""The label of the key for the store's own settings. No user's label begins with "#"."""
_PORTION: Final = 200


class EncryptedBackend:
    """A Backend on ``inner`` whose rows are encrypted with the keys of ``keyring``.

    A row whose key was destroyed is left out like one that cannot be read. If a row was moved, swapped, cut or changed,
    or the key store does not know its key, reading it raises SealError, and nothing is returned.
    Raises ConfigurationError if ``inner`` holds rows that are not encrypted, or was encrypted with another key store.
    ``closes_keys``: the key store is closed with it.
    """

    def __init__(self, inner: Backend, keyring: KeyRing, *, closes_keys: bool = False) -> None:
        self.inner = inner
        self.keyring = keyring
        self._closes_keys = closes_keys
        self.name = inner.name
        self.capabilities = inner.capabilities
        if inner.get_meta(ENCRYPTED_META) is None:
            if inner.namespaces():
                raise ConfigurationError(
                    f"{self.name} was written without keys. Copy it into a new store, which will be sealed: "
                    f"inference-core copy --from {self.name} --to URL; or open it without AGENT_MEMORY_KEYS"
                )
            self._set_encrypted(ENCRYPTED_META, "1")
        try:
            self._get_encrypted(ENCRYPTED_META)
        except SealError as error:
            raise ConfigurationError(
                f"{self.name} was sealed with the keys of another key store, or they were lost: set AGENT_MEMORY_KEYS "
                "to the one it was made with, or restore that from a backup"
            ) from error

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies each batch as a whole or not at all.

        What is written while its key is being destroyed counts as written before that. A write that took so long that a
        rotation may have ended meanwhile is a StoreError if its key is gone.
        """
        encrypting = _Encrypting(self._cipher)
        ciphers = encrypting.writing
        started = time.monotonic()
        refused: dict[int, StoreError] = {}
        sound: list[list[Write | WriteRule]] = []
        for at, batch in enumerate(batches):
            try:
                sound.append(
                    [
                        _EncryptedRule(one, encrypting) if isinstance(one, WriteRule) else encrypting.encrypt(one)
                        for one in batch
                    ]
                )
            except UnicodeError as error:
                refused[at] = StoreError(f"{self.name} cannot hold this: {in_one_line(error)}")
        outcomes = iter(self.inner.apply(sound) if sound else [])
        found = [refused.get(at) or next(outcomes) for at in range(len(batches))]
        if time.monotonic() - started < GRACE_S / 2:
            return found
        lost: dict[str, StoreError] = {}
        for root, cipher in ciphers.items():
            try:
                if not any(key.id == cipher.current and key.secret for key in self.keyring.get(root)):
                    lost[root] = StoreError("The key was replaced while this was being saved; save it again")
            except StoreError as error:
                lost[root] = WriteUnknown(f"Whether its key was replaced is unknown: {error}; retry under the same id")
        return [
            next(
                (lost[root] for write in batch if isinstance(write, Put) and (root := write.namespace[0]) in lost), one
            )
            for batch, one in zip(batches, found, strict=True)
        ]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        ciphers = self._ciphers(keys)
        return [row and ciphers[row.namespace[0]].row(row) for row in self.inner.get(keys)]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        ciphers = self._ciphers(keys)
        found = zip(self.inner.tokens(keys), keys, strict=True)
        return [blob and ciphers[key[0][0]].decrypt(blob, key, "tokens") for blob, key in found]

    def page(self, request: PageRequest) -> list[Row]:
        ciphers = self._ciphers((namespace, "") for namespace in request.scopes)
        found: list[Row] = []
        left, behind = request.limit, request
        while True:
            rows = self.inner.page(behind)
            found += filter(None, (ciphers[row.namespace[0]].row(row) for row in rows))
            if len(rows) < left or len(found) == request.limit:
                return found
            # More rows, in place of those whose keys were destroyed: a short page would be taken for the last.
            left = request.limit - len(found)
            behind = replace(request, after=Cursor.of(rows[-1]), offset=0, limit=left)

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        return self.inner.count(self._held(namespaces), kinds=kinds)

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        return self.inner.tally(self._held(namespaces))

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        return self.inner.namespaces(prefix)

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        """The number of each scope's last write; 0 if its keys were destroyed, so that no index keeps its texts."""
        held = set(self._held(namespaces))
        heads = zip(namespaces, self.inner.heads(namespaces), strict=True)
        return [head if namespace in held else Head(0) for namespace, head in heads]

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        return self._changes(namespace, since, with_vectors=True)

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``, counted here: the database cannot read them."""
        return holding_most(self._changes(namespace, since, with_vectors=False), words, limit)

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        size = limit
        while True:
            rows = self.inner.pending(model, size, keys)
            ciphers = self._ciphers((row.namespace, row.key) for row in rows)
            texts = [
                ciphers[row.namespace[0]].document(Document(row.text, "", ""), (row.namespace, row.key)) for row in rows
            ]
            opened = [replace(row, text=text.text) for row, text in zip(rows, texts, strict=True) if text]
            if len(opened) >= limit or len(rows) < size:
                return opened[:limit]
            size *= 2  # more, in place of those whose keys were destroyed

    def expired(self, limit: int) -> list[Key]:
        return self.inner.expired(limit)

    def get_meta(self, name: str) -> str | None:
        return self._get_encrypted(name) if name == CONTENT_KEY_META else self.inner.get_meta(name)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        (self._set_encrypted if name == CONTENT_KEY_META else self.inner.set_meta)(name, value, is_first=is_first)

    def forget(self, user: str) -> None:
        self.inner.forget(user)

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        # Before any row is read: a rotation may destroy the keys with which rows were encrypted when they were read.
        ciphers = self._ciphers((namespace, "") for namespace in self.inner.namespaces((root,) if root else ()))
        read: dict[Namespace, set[str]] = {}
        for found in self.inner.inspect(root):
            if isinstance(found, Unreadable):
                yield found
                continue
            label = found.namespace[0]
            cipher = ciphers[label] = ciphers.get(label) or self._cipher(label)
            row = _or_reason(partial(cipher.row, found))
            if isinstance(row, Row):
                read.setdefault(found.namespace, set()).add(found.key)
                yield row
            else:
                yield _unreadable(found.namespace, found.key, row, found.version)
        for namespace, names in read.items():
            cipher = ciphers[namespace[0]]
            texts = {change.key: change.document for change in self.inner.changes(namespace, 0) if change.key in names}
            for (key, document), tokens in zip(
                texts.items(), self.inner.tokens([(namespace, key) for key in texts]), strict=True
            ):
                if document is None:
                    continue
                opened = _or_reason(partial(cipher.document, document, (namespace, key)))
                if not isinstance(opened, str) and tokens:
                    opened = _or_reason(partial(cipher.decrypt, tokens, (namespace, key), "tokens"))
                if isinstance(opened, str):
                    yield _unreadable(namespace, key, opened)

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        own = [damaged.place for damaged in unreadable if isinstance(damaged.place, Remove)]
        others = [damaged for damaged in unreadable if not isinstance(damaged.place, Remove)]
        # A row that is encrypted anew keeps its version, so each is tried once more, with the present keys.
        keys = [(delete.namespace, delete.key) for delete in own]
        ciphers = self._ciphers(keys)
        rows = zip(own, self.inner.get(keys), strict=True)
        own = [
            removal
            for removal, row in rows
            if row is None or isinstance(_or_reason(partial(ciphers[row.namespace[0]].row, row)), str)
        ]
        removed = sum(isinstance(outcome, list) for outcome in self.inner.apply([[delete] for delete in own]))
        return removed + (self.inner.discard(others) if others else 0)

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        """Also destroys the keys of ``root``, so that no backup of the database can be read any more."""
        self.inner.erase(root, also)
        self.keyring.destroy(root)

    def destroy_keys_of_rows(self, root: str) -> None:
        """Destroys the keys of the rows under ``root``, and older ones; newer keys are of rows in other databases."""
        cipher = self._cipher(root)
        used = {cipher.key_id_of(row) for row in self.inner.inspect(root) if isinstance(row, Row)}
        live = [key.id for key in self.keyring.get(root) if key.secret]
        self.keyring.destroy(root, keep=next((at for at, key in enumerate(live) if key in used), len(live)))

    def reclaim(self, *, fully: bool = False) -> list[str]:
        return self.inner.reclaim(fully=fully)

    def files(self) -> list[Path]:
        return self.inner.files()

    def close(self) -> None:
        self.inner.close()
        if self._closes_keys:
            self.keyring.close()

    def with_ended(self) -> EncryptedBackend:
        """The same rows, read as if none had expired."""
        found = copy.copy(self)
        found.inner = with_ended(self.inner)
        return found

    def encrypt_anew(self, label: str, advance: Callable[[int], None] = lambda _: None) -> int:
        """Encrypts anew the rows under ``label`` that are not encrypted with the newest key. Returns how many.

        Calls ``advance`` with the number of rows that were checked since its last call.
        Rows change neither version nor times. May be interrupted, and run beside writers. Raises SealError.
        """
        if label == OF_STORE:
            for name in (ENCRYPTED_META, CONTENT_KEY_META):
                if (value := self._get_encrypted(name)) is not None:
                    self._set_encrypted(name, value)
        inner, done = with_ended(self.inner), 0  # a hold may keep expired rows, and the old key is destroyed
        for namespace in inner.namespaces((label,)):
            cipher = self._cipher(namespace[0])
            changes = iter(inner.changes(namespace, 0))
            while portion := list(islice(changes, _PORTION)):
                keys = [(namespace, change.key) for change in portion]
                writes: list[Rewrite] = []
                for row, change, tokens in zip(inner.get(keys), portion, inner.tokens(keys), strict=True):
                    document = row and change_of(row, change, inner).document
                    if row is None or cipher.is_current(row, document, tokens):
                        continue
                    opened, place = cipher.row(row), (namespace, row.key)
                    document = document and cipher.document(document, place)
                    if document and tokens:
                        document = document._replace(tokens=cipher.decrypt(tokens, place, "tokens"))
                    if opened is not None:
                        value = COMPACT.encode(opened.value)
                        writes.append(
                            Rewrite(
                                namespace=namespace, key=row.key, version=row.version, value=value, document=document
                            )
                        )
                done += sum(isinstance(outcome, list) for outcome in self.apply([[write] for write in writes]))
                advance(len(portion))
        return done

    def _changes(self, namespace: Namespace, since: int, *, with_vectors: bool) -> Iterator[Change]:
        cipher = self._cipher(namespace[0])
        for change in self.inner.changes(namespace, since):
            document = change.document
            if document is None:
                yield change
                continue
            opened = cipher.document(document, (namespace, change.key), with_vector=with_vectors)
            yield change._replace(document=opened, is_there=opened is not None)

    def _cipher(self, label: str, *, makes: bool = False) -> RowCipher:
        return RowCipher(self.keyring.get(label, makes=makes), self.name, partial(self.keyring.get, label))

    def _ciphers(self, keys: Iterable[Key]) -> dict[str, RowCipher]:
        return {label: self._cipher(label) for label in {namespace[0] for namespace, _ in keys}}

    def _held(self, namespaces: Sequence[Namespace]) -> list[Namespace]:
        """Those of ``namespaces`` that still have a key, or never had one."""
        ciphers = self._ciphers((namespace, "") for namespace in namespaces)
        return [namespace for namespace in namespaces if not ciphers[namespace[0]].is_destroyed]

    def _get_encrypted(self, name: str) -> str | None:
        stored = self.inner.get_meta(name)
        opened = self._cipher(OF_STORE).decrypt_text(stored, ((OF_STORE,), name), "setting") if stored else None
        return None if opened is None else opened.decode()

    def _set_encrypted(self, name: str, value: str, *, is_first: bool = False) -> None:
        cipher = self._cipher(OF_STORE, makes=True)
        self.inner.set_meta(
            name, cipher.encrypt_text(value.encode(), ((OF_STORE,), name), "setting"), is_first=is_first
        )


class _Encrypting:
    """The ciphers of the users in a transaction, fetched as they are needed, and the values that were opened in it."""

    def __init__(self, cipher: Callable[..., RowCipher]) -> None:
        self._cipher = cipher
        self.writing: dict[str, RowCipher] = {}
        self._reading: dict[str, RowCipher] = {}
        self._opened: dict[str, str | None] = {}

    def encrypt(self, write: Write) -> Write:
        """``write`` with its fields encrypted."""
        if not isinstance(write, Put | SetVector | Rewrite):
            return write
        root = write.namespace[0]
        if root not in self.writing:
            self.writing[root] = self._cipher(root, makes=True)
        return self.writing[root].encrypted_write(write)

    def value(self, key: Key, stored: str) -> str | None:
        """The value that ``stored`` holds; None if its key was destroyed, `LOST` if it is no JSON. Raises SealError."""
        if stored not in self._opened:
            root = key[0][0]
            if root not in self._reading:
                self._reading[root] = self.writing.get(root) or self._cipher(root)
            try:
                field = unpack_value(stored).get(_FIELD)
            except UNREADABLE:
                return LOST
            opened = self._reading[root].decrypt_text(field, key, "value")
            self._opened[stored] = None if opened is None else opened.decode()
        return self._opened[stored]


class _OpenStates(Mapping[Key, RowState]):
    """Rows as they are stored, whose values are opened when they are looked at."""

    def __init__(self, stored: States, encrypting: _Encrypting) -> None:
        self._stored = stored
        self._encrypting = encrypting

    def __getitem__(self, key: Key) -> RowState:
        state = self._stored[key]
        # An unreadable value stays one, and one whose key was destroyed is not there.
        return replace(state, value=self._encrypting.value(key, state.value)) if state.value else state

    def __iter__(self) -> Iterator[Key]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _EncryptedRule(WriteRule):
    """Shows ``rule`` the rows opened, and encrypts what it adds."""

    def __init__(self, rule: WriteRule, encrypting: _Encrypting) -> None:
        self.reads, self.makes = rule.reads, rule.makes
        self._rule = rule
        self._encrypting = encrypting

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        opened = _OpenStates(before, self._encrypting), _OpenStates(after, self._encrypting)
        return [self._encrypting.encrypt(write) for write in self._rule.check(*opened, now)]


def _or_reason(opening: Callable[[], T | None]) -> T | str:
    """What ``opening`` returns, or in words why it cannot be read."""
    try:
        opened = opening()
    except SealError as error:
        return error.reason
    return "its key was destroyed" if opened is None else opened


def _unreadable(namespace: Namespace, key: str, reason: str, version: int | None = None) -> Unreadable:
    """With ``version``, the row itself cannot be read; with None, only what indexes know of it."""
    return Unreadable(
        root=namespace[0],
        namespace=namespace,
        key=key,
        reason=reason,
        only_index=version is None,
        place=Remove(namespace=namespace, key=key, expected=version),
    )
