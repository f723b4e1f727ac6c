"""RowCipher: seals and opens the fields of a user's rows, each bound to its namespace, key and field."""

from __future__ import annotations

import json
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from inference_core.errors import SealError
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import Key, Put, Rewrite, Row, SetVector
from inference_core.stores.codec import SEALED, pack_namespace
from inference_core.stores.encryption.keyring import ID_BYTES, DataKey, sealed, unsealed

_FIELD: Final = "sealed"
_HEADER: Final = len(SEALED) + ID_BYTES
COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Writes JSON without spaces."""


class RowCipher:
    """Seals and opens the fields of rows whose namespaces have the same first label.

    Methods that open a field return None if its key was destroyed, and raise a SealError that names the row. ``again``
    gives the present keys: a rotation may have made one since.
    """

    def __init__(self, keys: Sequence[DataKey], store: str, again: Callable[[], Sequence[DataKey]]) -> None:
        self._secrets = {SEALED + key.id: key.secret for key in keys}
        self._store = store
        self._again = again
        self.current = next((key.id for key in keys if key.secret), b"")
        self.is_destroyed = bool(keys) and not self.current

    def seal(self, body: bytes, place: Key, field: str) -> bytes:
        """``body`` encrypted with the newest key, for this field of this row."""
        header = SEALED + self.current
        return header + sealed(self._secrets[header] or b"", body, _place(place, field))

    def seal_text(self, body: bytes, place: Key, field: str) -> str:
        """The same as text, in base 64."""
        return b64encode(self.seal(body, place, field)).decode()

    def sealed_write(self, write: Put | SetVector | Rewrite) -> Put | SetVector | Rewrite:
        """``write`` with its value, document and vectors sealed. Raises UnicodeError."""
        place = write.namespace, write.key
        if isinstance(write, SetVector):
            tokens = None if write.tokens is None else self.seal(write.tokens, place, "tokens")
            return replace(write, vector=self.seal(write.vector, place, "vector"), tokens=tokens)
        value = f'{{"{_FIELD}":"{self.seal_text(write.value.encode(), place, "value")}"}}'
        document = write.document
        if document is not None:
            text, terms, analyzer, situation, model, vector, tokens = document
            known = COMPACT.encode([text, terms, analyzer, *situation]).encode()
            document = Document(
                text=self.seal_text(known, place, "text"),
                terms="",
                analyzer="",
                model=model,
                vector=None if vector is None else self.seal(vector, place, "vector"),
                tokens=None if tokens is None else self.seal(tokens, place, "tokens"),
            )
        return replace(write, value=value, document=document)

    def open(self, blob: bytes, place: Key, field: str) -> bytes | None:
        """The body that ``blob`` seals."""
        header = blob[:_HEADER]
        if header not in self._secrets and header.startswith(SEALED):
            known = {one: secret for one, secret in self._secrets.items() if secret}
            # Known keys stay: the row may have been read before it was sealed anew.
            self._secrets = {SEALED + key.id: key.secret for key in self._again()} | known
        try:
            secret = self._secrets[header]
            return None if secret is None else unsealed(secret, blob[_HEADER:], _place(place, field))
        except KeyError:
            reason = "it is not sealed"
            if header.startswith(SEALED):
                reason = "the key store does not have its key; is it the right one?"
        except SealError:
            reason = "it was changed, cut or swapped, or belongs to another row"
        namespace, key = place
        raise SealError(
            f"The {field} of {key!r} in {'/'.join(namespace[1:])!r} of {self._store} cannot be opened: {reason}. "
            "Nothing of it was read. Restore a backup, or remove the row with inference-core repair",
            f"its {field} cannot be opened: {reason}",
        )

    def open_text(self, text: object, place: Key, field: str) -> bytes | None:
        """The body that a text seals."""
        return self.open(_decoded(text), place, field)

    def row(self, row: Row) -> Row | None:
        """``row`` with its value open."""
        place = row.namespace, row.key
        opened = self.open_text(row.value.get(_FIELD), place, "value")
        return None if opened is None else replace(row, value=json.loads(opened))

    def document(self, document: Document, place: Key, *, with_vector: bool = True) -> Document | None:
        """``document`` with its text, terms and vector open; token vectors are read separately."""
        opened = self.open_text(document.text, place, "text")
        vector = document.vector if with_vector else None
        opened_vector = None if vector is None else self.open(vector, place, "vector")
        if opened is None or (vector is not None and opened_vector is None):
            return None
        text, terms, analyzer, *situation = json.loads(opened.decode())
        model = document.model if with_vector else ""
        return Document(text, terms, analyzer, DocumentMetadata(*situation), model, opened_vector)

    def sealing_key(self, row: Row) -> bytes:
        """The id of the key that the value of ``row`` is sealed with."""
        return _decoded(row.value.get(_FIELD))[len(SEALED) : _HEADER]

    def is_current(self, row: Row, document: Document | None, tokens: bytes | None) -> bool:
        """Whether the row is sealed with the newest key, in all of its fields."""
        blobs = [_decoded(row.value.get(_FIELD)), tokens]
        if document is not None:
            blobs += [_decoded(document.text), document.vector]
        return all(blob is None or blob.startswith(SEALED + self.current) for blob in blobs)


def _decoded(text: object) -> bytes:
    """The bytes of a sealed text; empty if it is anything else."""
    try:
        return a2b_base64(text, strict_mode=True) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _place(place: Key, field: str) -> bytes:
    return f"{_packed(place[0])}\n{place[1]}\n{field}".encode()


_packed = lru_cache(maxsize=4_096)(pack_namespace)
