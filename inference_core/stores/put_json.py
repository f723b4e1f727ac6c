"""A Put as JSON data: what exports hold."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from typing import Any, Final, cast

from inference_core.errors import InvalidInput, without_quotes
from inference_core.memory.text import encode_json, is_encodable
from inference_core.retrieval.documents import Document, Situation
from inference_core.stores.backend import MAX_KEY_LENGTH, MAX_VALUE_BYTES, Expiry, Put
from inference_core.stores.codec import from_micros, micros_of, to_micros, unpack_value

_MAX_LABELS: Final = 32


def put_to_json(put: Put, *, with_vectors: bool = False) -> dict[str, Any]:
    """``put`` without what it expects; its text is analysed anew when it is read. Instants are microseconds."""
    found = put.document
    made: dict[str, Any] = {
        "namespace": list(put.namespace),
        "key": put.key,
        "kind": put.kind,
        "value": unpack_value(put.value),
        "created_at": None if put.created_at is None else to_micros(put.created_at),
        "updated_at": to_micros(put.updated_at),
    }
    if found:
        made |= {"text": found.text, "situation": list(found.situation)}
    if put.expiry:
        made["expiry"] = [to_micros(put.expiry.at), micros_of(put.expiry.ttl)]
    if with_vectors and found and found.vector:
        tokens = base64.b85encode(found.tokens).decode() if found.tokens else None
        made["vector"] = [found.model, base64.b85encode(found.vector).decode(), tokens]
    return made


def put_from_json(stored: Any) -> Put:
    """The put that `put_to_json` wrote. Raises InvalidInput for anything else."""
    try:
        created = stored["created_at"]
        put = Put(
            namespace=tuple(_label(label) for label in stored["namespace"][: _MAX_LABELS + 1]),
            key=_label(stored["key"]),
            value=_value(stored["value"]),
            document=_document(stored),
            kind=_text(stored["kind"]),
            created_at=None if created is None else from_micros(created),
            updated_at=from_micros(stored["updated_at"]),
            expiry=_expiry(stored.get("expiry")),
        )
        if not 0 < len(put.namespace) <= _MAX_LABELS:
            raise InvalidInput(f"a namespace must have 1 to {_MAX_LABELS} labels")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, binascii.Error) as error:
        raise InvalidInput(f"Not a stored memory: {without_quotes(error)}") from error
    return put


def _value(value: Any) -> str:
    if type(value) is not dict:
        raise TypeError("a value must be an object")
    encoded = encode_json(cast("dict[str, Any]", value), what="value")
    if len(encoded.encode()) > MAX_VALUE_BYTES:
        raise ValueError(f"a value may take {MAX_VALUE_BYTES} bytes")
    return encoded


def _document(stored: dict[str, Any]) -> Document | None:
    if "text" not in stored:
        return None
    session, by_assistant, happened, importance = stored["situation"]
    situation = Situation(
        _text(session), bool(by_assistant), None if happened is None else float(happened), float(importance)
    )
    document = Document.of(_text(stored["text"]), situation)
    if "vector" not in stored:
        return document
    model, vector, tokens = stored["vector"]
    packed = None if tokens is None else base64.b85decode(tokens)
    return document._replace(model=_text(model), vector=base64.b85decode(vector), tokens=packed)


def _expiry(stored: Any) -> Expiry | None:
    return None if stored is None else Expiry(from_micros(stored[0]), timedelta(microseconds=stored[1]))


def _label(value: Any) -> str:
    if not _text(value) or len(value) > MAX_KEY_LENGTH or "\x00" in value:
        raise ValueError(f"a label or key must have 1 to {MAX_KEY_LENGTH} characters without NUL")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not is_encodable(value):
        raise TypeError("text must be valid Unicode")
    return value
