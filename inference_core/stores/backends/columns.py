"""What the SQL databases say of a row, and of a change: the columns, in the order in which they are read."""

from __future__ import annotations

from typing import Any, Final

from inference_core.retrieval.documents import Change, Document, Situation
from inference_core.stores.backend import Row
from inference_core.stores.codec import expiry_of, from_micros, unpack_namespace, unpack_value

ROW: Final = "s.namespace, r.key, r.value, r.version, r.seq, r.created, r.updated, r.expires, r.ttl"
CHANGE: Final = (
    "r.seq, r.key, r.kind, r.created, r.value IS NOT NULL, r.text, r.terms, r.analyzer, r.session, r.by_assistant, "
    "r.happened, r.importance"
)
"""What is followed by the model and the vector, or by an empty model and NULL."""


def row_of(found: tuple[Any, ...]) -> Row:
    """The row whose columns are ``ROW``."""
    namespace, key, value, version, seq, created, updated, expires, ttl = found
    return Row(
        namespace=unpack_namespace(namespace),
        key=key,
        value=unpack_value(value),
        version=version,
        seq=seq,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        expiry=expiry_of(expires, ttl),
    )


def change_of(found: tuple[Any, ...]) -> Change:
    """The change whose columns are ``CHANGE``, model and vector."""
    seq, key, kind, created, is_there, text, *of_text, model, vector = found
    if text is None:
        return Change(seq, key, kind, created / 1e6, None, bool(is_there))
    terms, analyzer, session, by_assistant, happened, importance = of_text
    situation = Situation(session, bool(by_assistant), happened, importance)
    return Change(seq, key, kind, created / 1e6, Document(text, terms, analyzer, situation, model, vector))
