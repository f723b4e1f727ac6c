"""Rows as values of another LangGraph store: fields that it does not know are in the value, under the key ``EXTRA``."""

from __future__ import annotations

import base64
import copy
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import Item, PutOp

from inference_core.clock import aware
from inference_core.errors import VersionConflict
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import EXTRA, Check, Put, Remove, Row, SetVector, Write


def extra_of(value: dict[str, Any]) -> dict[str, Any]:
    """What this package keeps in a stored ``value`` beside the caller's fields."""
    found = value.get(EXTRA)
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON


def text_of(row: Row) -> str | None:
    """The text that queries find a row by: the one indexed with it, or else its content; None if it is blank."""
    text = extra_of(row.value).get("text") or row.value.get("content")
    return text if isinstance(text, str) and text.strip() else None


def operation_of(write: Write, row: Row | None) -> tuple[PutOp | None, int]:
    """The store's operation for ``write`` over ``row``, if any, and the version after it. Raises VersionConflict."""
    version = row.version if row else 0
    if isinstance(write, Put | Remove | Check) and write.expected not in (None, version):
        raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
    if isinstance(write, Remove):
        return PutOp(write.namespace, write.key, None) if row else None, 0
    if isinstance(write, Put):
        first = write.created_at or (row.created_at if row else write.updated_at)
        version = max(version, write.above) + 1
        extra: dict[str, Any] = {"version": version, "created_at": aware(first).isoformat()}
        if document := write.document:
            extra |= {"text": document.text, "situation": list(document.situation)}
            if document.vector:
                extra |= _vector_fields(document.model, document.vector)
        return PutOp(write.namespace, write.key, json.loads(write.value) | {EXTRA: extra}, index=False), version
    if isinstance(write, SetVector) and row and version == write.version:
        extra = row.value.get(EXTRA, {}) | _vector_fields(write.model, write.vector)
        return PutOp(write.namespace, write.key, row.value | {EXTRA: extra}, index=False), version
    return None, version


def _vector_fields(model: str, vector: bytes) -> dict[str, str]:
    return {"model": model, "vector": base64.b85encode(vector).decode()}


def row_after(op: PutOp) -> Row | None:
    """The row that ``op`` leaves."""
    if op.value is None:
        return None
    now = datetime.now(UTC)
    return row_of(Item(namespace=op.namespace, key=op.key, value=dict(op.value), created_at=now, updated_at=now))


def row_of(item: Item) -> Row:
    """The row of a stored ``item``."""
    extra = extra_of(item.value)
    created = aware(item.created_at)
    # Stores disagree about when an item was first stored, so the value says it.
    with suppress(ValueError, OverflowError):
        if isinstance(text := extra.get("created_at") or item.value.get("created_at"), str):
            created = aware(datetime.fromisoformat(text))
    return Row(
        namespace=tuple(item.namespace),
        key=item.key,
        value=copy.deepcopy(item.value),
        version=int(extra.get("version", 1)),
        seq=0,
        created_at=created,
        updated_at=aware(item.updated_at),
    )


def kind_of(row: Row) -> str:
    """The type of the memory; "" for any other value."""
    kind = row.value.get("memory_type")
    return kind if isinstance(kind, str) else ""


def document_of(row: Row) -> Document | None:
    """What an index reads of the row; None without a text."""
    text = text_of(row)
    if text is None:
        return None
    extra = extra_of(row.value)
    match extra.get("situation"):
        case [str(session), bool(by_assistant), None | int() | float() as happened, int() | float() as importance]:
            situation = DocumentMetadata(session, by_assistant, happened, importance)
        case _:
            situation = DocumentMetadata()
    document = Document.of(text, situation)
    vector = extra.get("vector")
    return document._replace(model=extra.get("model", ""), vector=base64.b85decode(vector)) if vector else document
