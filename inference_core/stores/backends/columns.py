"""What the SQL databases say of a row, and of a change: the columns, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, Situation
from inference_core.stores.backend import Pending, Row, Unreadable
from inference_core.stores.codec import (
    MAX_MICROS,
    MAX_SECONDS,
    MIN_MICROS,
    MIN_SECONDS,
    UNREADABLE,
    WrongType,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    unpack_namespace,
    unpack_value,
)
from inference_core.stores.cursor import Cursor

ROW: Final = "s.namespace, r.key, r.value, r.version, r.seq, r.created, r.updated, r.expires, r.ttl"
CHANGE: Final = (
    "r.seq, r.key, r.kind, r.created, r.value IS NOT NULL, r.text, r.terms, r.analyzer, r.session, r.by_assistant, "
    "r.happened, r.importance"
)
"""What is followed by the model and the vector, or by an empty model and NULL."""
KEY: Final = 1
SEQ: Final = 4
CREATED: Final = 5
"""Where these stand in ``ROW``."""
_BYTES: Final = (bytes, type(None))
_ROW_COLUMNS: Final = ROW.count(",") + 1


class Undecodable(NamedTuple):
    """A text that is not UTF-8, in place of the text."""

    raw: bytes


def row_of(found: tuple[Any, ...], *, strictly: bool = False) -> Row | None:
    """The row whose columns are ``ROW``; None if it cannot be read. ``strictly``: raises one of ``UNREADABLE`` then."""
    try:
        namespace, key, value, version, seq, created, updated, expires, ttl = found
        # SQLite stores whatever comes in whatever column, so that a damaged row may have a number for a text.
        if type(key) is not str or not type(version) is type(seq) is int:
            raise WrongType
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
    except UNREADABLE:
        if strictly:
            raise
        return None


def cursor_of(found: tuple[Any, ...]) -> Cursor:
    """The cursor behind the row whose columns are ``ROW``, of which namespace, key and creation can be read."""
    return Cursor(from_micros(found[CREATED]), found[KEY], unpack_namespace(found[0]))


def change_of(found: tuple[Any, ...], *, strictly: bool = False) -> Change | None:
    """The change whose columns are ``CHANGE``, model and vector: of a row that cannot be read, as of a deleted one.

    None if not even its address can be read. ``strictly``: raises one of ``UNREADABLE`` instead of either.
    """
    seq, key, kind, created, is_there, text, terms, analyzer, session, reply, happened, weight, model, vector = found
    try:
        if not type(key) is type(kind) is type(session) is str or type(seq) is not int:
            raise WrongType
        if not MIN_MICROS <= created <= MAX_MICROS:
            raise OverflowError
        if text is None:
            return Change(seq, key, kind, created / 1e6, None, bool(is_there))
        if not type(text) is type(terms) is type(analyzer) is type(model) is str or type(vector) not in _BYTES:
            raise WrongType
        if happened is not None and not MIN_SECONDS <= happened <= MAX_SECONDS:  # also if it is NaN
            raise OverflowError
        situation = Situation(session, bool(reply), happened, weight + 0.0)
        return Change(seq, key, kind, created / 1e6, Document(text, terms, analyzer, situation, model, vector))
    except UNREADABLE:
        if strictly:
            raise
        return Change(seq, key, "", 0.0, None) if type(seq) is int and type(key) is str else None


def pending_of(found: tuple[Any, ...]) -> Pending | None:
    """The text that waits for its vector, of the columns namespace, key, version and text; None if it is damaged."""
    namespace = namespace_of(found[0])
    _, key, version, text = found
    is_sound = namespace and (type(key), type(version), type(text)) == (str, int, str)
    return Pending(namespace, key, version, text) if namespace and is_sound else None


def inspected(root: object, found: Sequence[Any], place: Any) -> Row | Unreadable:
    """The row whose columns are ``ROW``, ``CHANGE``, model and vector, if all of them can be read.

    ``root`` is the label of its scope; ``place`` is how its backend finds it again.
    """
    of_row, of_change = tuple(found[:_ROW_COLUMNS]), tuple(found[_ROW_COLUMNS:])
    namespace, key = namespace_of(of_row[0]), of_row[1]
    label = root if type(root) is str else namespace[0] if namespace else None
    row = None
    try:
        row = row_of(of_row, strictly=True)
        change = change_of(of_change, strictly=True)
        vector = change.document.vector if change and change.document else None
        if row and (vector is None or is_vector(vector)):
            return row
        reason = "its vector cannot be unpacked"
    except UNREADABLE as error:
        is_text = any(type(column) is Undecodable for column in found)
        reason = fault_of(UnicodeError() if is_text else error)
    is_read = row is not None
    return Unreadable(root=label, namespace=namespace, key=_shown(key), reason=reason, only_index=is_read, place=place)


def namespace_of(packed: object) -> Namespace | None:
    """The namespace of a packed one; None if it cannot be read."""
    try:
        return unpack_namespace(packed) if type(packed) is str else None
    except UNREADABLE:
        return None


def _shown(key: object) -> str:
    if type(key) is str:
        return key
    if isinstance(key, Undecodable):
        return key.raw.decode(errors="backslashreplace")
    return f"({type(key).__name__})"
