"""What a transaction of many batches does to the tables of a PostgreSQL store, in two round trips.

The first locks the scopes, always in the order of their names, so that transactions queue up and never wait for each
other in a circle; then it reads the rows that the batches touch. What becomes of them is decided here, by the cells
that other backends use too. The second round trip stores the result and commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg

from inference_core.errors import StoreError, WriteUnknown
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import Key, Outcome, Put, SetVector, Unreadable, Write
from inference_core.stores.backends.postgres_connections import WANTED, Connection
from inference_core.stores.backends.rows import RowState, lost, staged
from inference_core.stores.backends.sql import CLEARED, REPLACED, WRITTEN, columns_of
from inference_core.stores.codec import (
    UNREADABLE,
    expiry_of,
    from_micros,
    pack_namespace,
    to_micros,
    unpack_namespace,
)

_NEW_SCOPES: Final = """
INSERT INTO memory_scopes (root, namespace)
SELECT root, namespace FROM unnest(%b::text[], %b::text[]) AS wanted (root, namespace)
WHERE NOT EXISTS (SELECT FROM memory_scopes s WHERE s.namespace = wanted.namespace)
ORDER BY namespace COLLATE "C" ON CONFLICT DO NOTHING
"""
_LOCK: Final = """
SELECT namespace, id, seq FROM memory_scopes WHERE namespace = ANY(%b) ORDER BY namespace FOR NO KEY UPDATE
"""
_FIND: Final = f"""
SELECT s.namespace, r.key, r.seq, r.version, r.kind, r.created, r.updated, r.value, r.expires, r.ttl, r.text, r.terms,
    r.analyzer, r.session, r.by_assistant, r.happened, r.importance, r.model
FROM {WANTED}
"""
_UPSERT: Final = f"""
INSERT INTO memory_rows ({WRITTEN}, tokens)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %b, %s, %s, %b)
ON CONFLICT (scope, key) DO UPDATE SET {REPLACED}, tokens = excluded.tokens
"""
_TOUCH: Final = "UPDATE memory_rows SET expires = %s WHERE scope = %s AND key = %s"
_DISCARD: Final = f"""
WITH head AS (UPDATE memory_scopes SET seq = seq + 1 WHERE id = %(scope)s RETURNING seq)
UPDATE memory_rows SET seq = (SELECT seq FROM head), version = version + 1, created = 0, updated = 0, {CLEARED},
    tokens = NULL
WHERE scope = %(scope)s AND key = %(key)s AND seq = %(seq)s
"""
_NEW_SEQS: Final = """
UPDATE memory_scopes s SET seq = n.seq FROM unnest(%b::bigint[], %b::bigint[]) AS n (id, seq) WHERE s.id = n.id
"""


def refusal(batch: Sequence[Write]) -> StoreError | None:
    """Why PostgreSQL could not hold ``batch``, as far as that can be told beforehand."""
    texts: list[str] = []
    for write in batch:
        texts += [write.key, pack_namespace(write.namespace)]
        if isinstance(write, SetVector):
            texts.append(write.model)
        elif isinstance(write, Put):
            texts += [write.value, write.kind]
            if write.document:
                text, terms, analyzer, situation, model, _, _ = write.document
                texts += [text, terms, analyzer, situation.session, model]
    try:
        held = "".join(texts).encode()
    except (TypeError, UnicodeEncodeError) as error:
        return StoreError(f"PostgreSQL cannot hold this: {error}")
    return StoreError("PostgreSQL cannot hold the character NUL") if b"\x00" in held else None


def apply(connection: Connection, batches: Sequence[Sequence[Write]], now: datetime) -> list[Outcome]:
    """Applies each batch as a whole or not at all, in one transaction that is durable when this returns.

    Raises WriteUnknown if the connection was lost when the commit was under way, psycopg's errors if nothing was done.
    """
    is_sent = False
    try:
        with connection.pipeline():
            heads, cells = _found(connection, batches)
            seqs = {namespace: seq for namespace, (_, seq) in heads.items()}
            outcomes = staged(batches, cells, seqs, now)
            _store(connection, heads, seqs, cells)
            is_sent = True
            connection.execute("COMMIT")
    except psycopg.Error as error:
        if is_sent and connection.broken:
            raise WriteUnknown(
                "The connection to PostgreSQL was lost during the commit; retry the write under the same id"
            ) from error
        raise
    return outcomes


def discard(connection: Connection, found: Sequence[Unreadable]) -> int:
    """Removes rows that cannot be read; how many were still as they were found."""
    with connection.transaction():
        return sum(connection.execute(_DISCARD, one.place._asdict()).rowcount for one in found)


class Place(NamedTuple):
    """The address of a row, and the number of the write that was found there."""

    scope: int
    key: str
    seq: int


_Heads = dict[Namespace, tuple[int, int]]
"""The id and the sequence number of each scope that is there."""


def _found(connection: Connection, batches: Sequence[Sequence[Write]]) -> tuple[_Heads, dict[Key, RowState]]:
    """Locks the scopes, and makes those that are missing; gives their heads and the cells of the keys."""
    writes = [write for batch in batches for write in batch]
    keys = list(dict.fromkeys((pack_namespace(write.namespace), write.key) for write in writes))
    made = {write.namespace for write in writes if isinstance(write, Put)}
    connection.execute("BEGIN")
    if made:
        connection.execute(_NEW_SCOPES, ([pack_namespace(name[:1]) for name in made], [*map(pack_namespace, made)]))
    scopes = connection.execute(_LOCK, ([*{name for name, _ in keys}],), binary=True)
    wanted = {"names": [name for name, _ in keys], "keys": [key for _, key in keys]}
    rows = connection.execute(_FIND, wanted, binary=True)
    heads = {unpack_namespace(name): (scope, seq) for name, scope, seq in scopes.fetchall()}
    return heads, {(unpack_namespace(name), key): _cell(found) for name, key, *found in rows.fetchall()}


def _store(connection: Connection, heads: _Heads, seqs: dict[Namespace, int], cells: dict[Key, RowState]) -> None:
    """Stores the cells with a new sequence number, and of the others the expiry, which a Touch may have moved."""
    changed: list[tuple[Any, ...]] = []
    touched: list[tuple[Any, ...]] = []
    for (namespace, key), cell in cells.items():
        scope, seq = heads[namespace]
        if cell.seq > seq:
            columns = columns_of(cell, to_micros(cell.created_at))
            changed.append((scope, key, cell.seq, cell.version, *columns, cell.document and cell.document.tokens))
        elif cell.expiry:
            touched.append((to_micros(cell.expiry.at), scope, key))
    with connection.cursor() as cursor:
        if changed:
            cursor.executemany(_UPSERT, changed)
        if touched:
            cursor.executemany(_TOUCH, touched)
    if moved := {heads[name][0]: seq for name, seq in seqs.items() if seq > heads[name][1]}:
        connection.execute(_NEW_SEQS, ([*moved], [*moved.values()]))


def _cell(found: Sequence[Any]) -> RowState:
    """The cell whose columns are those of ``_FIND`` behind the address."""
    seq, version, kind, created, updated, value, expires, ttl, text, terms, analyzer, *of_text, model = found
    document = None if text is None else Document(text, terms, analyzer, DocumentMetadata(*of_text), model)
    try:
        times = from_micros(created), from_micros(updated)
        return RowState(seq, version, kind, *times, value, document, expiry_of(expires, ttl))
    except UNREADABLE:
        return lost(seq, version)
