"""Cells as members of a journal's lines, so that a person can read them. Vectors are base64, instants ISO 8601."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from inference_core.clock import aware
from inference_core.errors import StoreError
from inference_core.retrieval.documents import Document, Situation
from inference_core.stores.backend import Key
from inference_core.stores.cells import Cell
from inference_core.stores.codec import UNREADABLE, expiry_of, fault_of, micros_of, to_micros

_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def pack_object(value: object) -> bytes:
    """A JSON object on one line. Raises StoreError if it cannot be one."""
    try:
        return _JSON.encode(value).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"A file store cannot hold this: {error}") from error


def pack_cells(cells: Iterable[tuple[Key, Cell]]) -> bytes:
    """Cells as the body of a line. Raises StoreError if they cannot be stored."""
    return pack_object({"entries": [_entry(key, cell) for key, cell in cells]})


def unpack_cells(body: bytes) -> list[tuple[Key, Cell]]:
    """The cells of `pack_cells`. Raises ValueError."""
    try:
        return [((tuple(entry["namespace"]), entry["key"]), _cell(entry)) for entry in json.loads(body)["entries"]]
    except UNREADABLE as error:
        raise ValueError(f"it is not one of a journal: {fault_of(error)}") from None


def _entry(key: Key, cell: Cell) -> dict[str, Any]:
    namespace, name = key
    entry: dict[str, Any] = {
        "namespace": namespace,
        "key": name,
        "version": cell.version,
        "seq": cell.seq,
        "kind": cell.kind,
        "created": aware(cell.created_at).isoformat(),
        "updated": aware(cell.updated_at).isoformat(),
    }
    if cell.value is not None:
        entry["value"] = _value(cell.value)
    if cell.expiry:
        entry["expiry"] = [to_micros(cell.expiry.at), micros_of(cell.expiry.ttl)]
    if cell.document:
        entry["document"] = _fields(cell.document)
    return entry


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"The value is not JSON: {error}") from error


def _fields(document: Document) -> dict[str, Any]:
    fields = document._replace(vector=None, tokens=None)._asdict()
    return fields | {"vector": _text(document.vector), "tokens": _text(document.tokens)}


def _text(packed: bytes | None) -> str | None:
    return None if packed is None else b64encode(packed).decode()


def _cell(entry: dict[str, Any]) -> Cell:
    return Cell(
        seq=entry["seq"],
        version=entry["version"],
        kind=entry["kind"],
        created_at=datetime.fromisoformat(entry["created"]),
        updated_at=datetime.fromisoformat(entry["updated"]),
        value=_JSON.encode(entry["value"]) if "value" in entry else None,
        document=_document(entry["document"]) if "document" in entry else None,
        expiry=expiry_of(*entry["expiry"]) if "expiry" in entry else None,
    )


def _document(fields: dict[str, Any]) -> Document:
    return Document(
        text=fields["text"],
        terms=fields["terms"],
        analyzer=fields["analyzer"],
        situation=Situation(*fields["situation"]),
        model=fields["model"],
        vector=_bytes(fields["vector"]),
        tokens=_bytes(fields["tokens"]),
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
