"""Cells as documents of MongoDB.

Instants are microseconds since 1970; a value is JSON text, because BSON has no big numbers and forbids some names.
"""

from __future__ import annotations

from typing import Any, Final

from inference_core.retrieval.documents import Document, Situation
from inference_core.stores.backend import Key
from inference_core.stores.cells import Cell
from inference_core.stores.codec import expiry_of, from_micros, micros_of, pack_namespace, to_micros, unpack_namespace

Fields = dict[str, Any]
WITHOUT_TEXT: Final = {"terms": 0, "text": 0, "vector": 0, "tokens": 0}
"""A projection for whoever needs the row alone."""


def id_of(key: Key) -> str:
    """The ``_id`` of a key's document; different keys have different ones."""
    namespace, name = key
    return pack_namespace((*namespace, name))


def key_of(fields: Fields) -> Key:
    """The key of a document."""
    *namespace, name = unpack_namespace(fields["_id"])
    return tuple(namespace), name


def fields_of(key: Key, cell: Cell) -> Fields:
    """``cell`` as a document."""
    namespace, name = key
    return {
        "_id": id_of(key),
        "root": namespace[0],
        "scope": pack_namespace(namespace),
        "key": name,
        "seq": cell.seq,
        "version": cell.version,
        "kind": cell.kind,
        "created": to_micros(cell.created_at),
        "updated": to_micros(cell.updated_at),
        "value": cell.value,
        "expires": to_micros(cell.expiry.at) if cell.expiry else None,
        "ttl": micros_of(cell.expiry.ttl) if cell.expiry else None,
        **_document_fields(cell.document),
    }


def cell_of(fields: Fields) -> Cell:
    """The cell of a document; without its text if that was not asked for."""
    return Cell(
        seq=fields["seq"],
        version=fields["version"],
        kind=fields["kind"],
        created_at=from_micros(fields["created"]),
        updated_at=from_micros(fields["updated"]),
        value=fields["value"],
        document=_document(fields),
        expiry=expiry_of(fields["expires"], fields["ttl"]),
    )


def is_alive(now: int) -> Fields:
    """The condition that there is a value, and its time has not come."""
    return {"value": {"$ne": None}, "$or": [{"expires": None}, {"expires": {"$gt": now}}]}


def _document_fields(document: Document | None) -> Fields:
    if document is None:
        return {"text": None}
    return document._asdict() | {"situation": list(document.situation)}


def _document(fields: Fields) -> Document | None:
    if fields.get("text") is None:
        return None
    return Document(
        text=fields["text"],
        terms=fields["terms"],
        analyzer=fields["analyzer"],
        situation=Situation(*fields["situation"]),
        model=fields["model"],
        vector=fields.get("vector"),
        tokens=fields.get("tokens"),
    )
