"""Rows of the SQL databases: the order of their columns, parsing them, and what a transaction stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from inference_core.errors import StoreError
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import NO_EPOCH, Change, Document, DocumentMetadata
from inference_core.stores.backend import Key, Outcome, Row, UnembeddedRow, Unreadable, Write
from inference_core.stores.backends.rows import RowState, WriteSet, lost
from inference_core.stores.codec import (
    MAX_MICROS,
    MAX_SECONDS,
    MIN_MICROS,
    MIN_SECONDS,
    UNREADABLE,
    Cursor,
    WrongType,
    expiry_micros,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    namespace_of,
    to_micros,
    unpack_namespace,
    unpack_value,
)

ROW: Final = "s.namespace, r.key, r.value, r.version, r.seq, r.created, r.updated, r.expires, r.ttl"
CHANGE: Final = (
    "r.seq, r.key, r.kind, r.created, r.value IS NOT NULL, r.text, r.terms, r.analyzer, r.session, r.by_assistant, "
    "r.happened, r.importance"
)
"""Followed by the model and the vector, or by '' and NULL."""
KEY: Final = 1
SEQ: Final = 4
CREATED: Final = 5
"""The places of these columns in ``ROW``."""
ALIVE: Final = "r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > :now)"
ROWS: Final = "memory_rows r JOIN memory_scopes s ON s.id = r.scope"
WRITTEN: Final = (
    "scope, key, seq, version, created, updated, kind, value, text, terms, analyzer, session, by_assistant, happened, "
    "importance, model, vector, expires, ttl"
)
"""The columns of a write: the key, the numbers, then `columns_of` it."""
REPLACED: Final = ", ".join(f"{name} = excluded.{name}" for name in WRITTEN.split(", ")[2:])
CLEARED: Final = (
    "kind = '', value = NULL, text = NULL, terms = NULL, analyzer = NULL, session = '', by_assistant = FALSE, "
    "happened = NULL, importance = 0.5, model = '', vector = NULL, expires = NULL, ttl = NULL"
)
"""A delete keeps the key, the numbers and the times of a row."""
STATE: Final = (
    "r.seq, r.version, r.kind, r.created, r.updated, r.value, r.expires, r.ttl, r.text, r.terms, r.analyzer, "
    "r.session, r.by_assistant, r.happened, r.importance, r.model"
)
_BYTES: Final = (bytes, type(None))
_ROW_COLUMNS: Final = ROW.count(",") + 1
Heads = dict[Namespace, tuple[int, int]]
"""The id of each scope that exists, and the sequence number of its last write."""


def row_of(found: tuple[Any, ...], *, strictly: bool = False) -> Row | None:
    """The row in the columns ``ROW`` and, if it is there, epoch; None if they cannot be parsed.

    ``strictly``: raises one of ``UNREADABLE`` instead.
    """
    try:
        namespace, key, value, version, seq, created, updated, expires, ttl, *epoch = found
        # SQLite stores any type in any column, so a damaged row may have a number for a text.
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
            epoch=epoch[0] if epoch else NO_EPOCH,
        )
    except UNREADABLE:
        if strictly:
            raise
        return None


def change_of(found: tuple[Any, ...], *, strictly: bool = False) -> Change | None:
    """The change in the columns ``CHANGE``, model, vector and, if it is there, epoch.

    A row that cannot be parsed counts as deleted; None if not even its key can be. ``strictly``: raises one of
    ``UNREADABLE`` instead.
    """
    seq, key, kind, created, is_there, text, terms, analyzer, session, reply, happened, weight, *others = found
    model, vector, *epoch = others
    try:
        if not type(key) is type(kind) is type(session) is str or type(seq) is not int:
            raise WrongType
        if not MIN_MICROS <= created <= MAX_MICROS:
            raise OverflowError
        if text is None:
            return Change(seq, key, kind, created / 1e6, None, bool(is_there), *epoch)
        if not type(text) is type(terms) is type(analyzer) is type(model) is str or type(vector) not in _BYTES:
            raise WrongType
        if happened is not None and not MIN_SECONDS <= happened <= MAX_SECONDS:  # also if it is NaN
            raise OverflowError
        metadata = DocumentMetadata(session, bool(reply), happened, weight + 0.0)
        document = Document(text, terms, analyzer, metadata, model, vector)
        return Change(seq, key, kind, created / 1e6, document, True, *epoch)
    except UNREADABLE:
        if strictly:
            raise
        return Change(seq, key, "", 0.0, None, True, *epoch) if type(seq) is int and type(key) is str else None


def cursor_of(found: tuple[Any, ...]) -> Cursor:
    """The cursor behind the row in the columns ``ROW``, whose namespace, key and creation can be parsed."""
    return Cursor(from_micros(found[CREATED]), found[KEY], unpack_namespace(found[0]))


def pending_of(found: tuple[Any, ...]) -> UnembeddedRow | None:
    """The pending text in the columns namespace, key, version and text; None if they are damaged."""
    namespace = namespace_of(found[0])
    _, key, version, text = found
    is_sound = namespace and (type(key), type(version), type(text)) == (str, int, str)
    return UnembeddedRow(namespace, key, version, text) if namespace and is_sound else None


def address_of(found: tuple[Any, ...]) -> Key | None:
    """The key in the columns namespace and key; None if they are damaged."""
    namespace, key = namespace_of(found[0]), found[1]
    return (namespace, key) if namespace and type(key) is str else None


def state_of(found: Sequence[Any]) -> RowState:
    """The state in the columns ``STATE``; a `lost` one if they cannot be parsed."""
    # A damaged column is written back as it was read, as bytes if need be: SQLite takes it in no other form.
    columns: list[Any] = [column.raw if type(column) is Undecodable else column for column in found]
    seq, version, kind, created, updated, value, expires, ttl, text, terms, analyzer, *metadata, model = columns
    try:
        if not type(seq) is type(version) is int:
            raise WrongType
        document = None if text is None else Document(text, terms, analyzer, DocumentMetadata(*metadata), model)
        times = from_micros(created), from_micros(updated)
        return RowState(seq, version, kind, *times, value, document, expiry_of(expires, ttl))
    except UNREADABLE:
        return lost(seq, version)


def columns_of(state: RowState) -> tuple[Any, ...]:
    """The columns ``WRITTEN`` behind the key and the numbers."""
    of_text: tuple[Any, ...] = (None, None, None, *DocumentMetadata(), "", None)
    if state.document is not None:
        text, terms, analyzer, metadata, model, vector, _ = state.document
        of_text = (text, terms, analyzer, *metadata, model, vector)
    times = to_micros(state.created_at), to_micros(state.updated_at)
    return (*times, state.kind, state.value, *of_text, *expiry_micros(state.expiry))


class BatchDecision(NamedTuple):
    """What a transaction stores and tells its callers.

    ``changed`` holds the columns ``WRITTEN`` and the packed token vectors; ``touched`` the expiry, scope and key of
    rows of which nothing else changes; ``heads`` the last sequence number of each changed scope, by its id.
    """

    outcomes: list[Outcome]
    changed: list[tuple[Any, ...]]
    touched: list[tuple[int, int, str]]
    heads: dict[int, int]


def decide(
    batches: Sequence[Sequence[Write]], heads: Heads, states: Mapping[Key, RowState], now: datetime
) -> BatchDecision:
    """Applies ``batches`` in turn to the rows in ``states``, in memory; one that is refused changes nothing."""
    seqs, after = {namespace: seq for namespace, (_, seq) in heads.items()}, dict(states)
    decision = BatchDecision([], [], [], {})
    for batch in batches:
        writes = WriteSet(after.get, lambda scope: seqs.get(scope, 0), now)
        try:
            decision.outcomes.append(writes.apply(batch))
        except StoreError as error:
            decision.outcomes.append(error)
        else:
            after.update(writes.states)
            seqs.update(writes.heads)
    for (namespace, key), state in after.items():
        if state is states.get((namespace, key)):
            continue
        scope, head = heads[namespace]
        if state.seq > head:
            columns = columns_of(state)
            tokens = state.document and state.document.tokens
            decision.changed.append((scope, key, state.seq, state.version, *columns, tokens))
            decision.heads[scope] = seqs[namespace]
        elif state.expiry:
            decision.touched.append((to_micros(state.expiry.at), scope, key))
    return decision


class Undecodable(NamedTuple):
    """Stands for a text that is not UTF-8."""

    raw: bytes


class DamagedRow(NamedTuple):
    """How to find an unreadable row again: its id (in PostgreSQL its scope's), its key and its sequence number.

    ``key`` is None if it cannot be read. ``seq``, which shows that nobody has written the row since, may be damaged.
    """

    id: int
    key: str | None
    seq: object


def inspected(root: object, row_id: int, found: Sequence[Any]) -> Row | Unreadable:
    """The row in the columns ``ROW``, ``CHANGE``, model and vector; `Unreadable` if one of them cannot be parsed."""
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
    place = DamagedRow(row_id, key if type(key) is str else None, found[SEQ])
    if isinstance(key, Undecodable):
        key = key.raw.decode(errors="backslashreplace")
    shown = key if type(key) is str else f"({type(key).__name__})"
    is_read = row is not None
    return Unreadable(root=label, namespace=namespace, key=shown, reason=reason, only_index=is_read, place=place)
