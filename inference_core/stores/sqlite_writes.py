"""What each kind of write does to the tables of a SQLite store."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from inference_core.errors import VersionConflict
from inference_core.stores.backend import Delete, Put, SetVector, Write
from inference_core.stores.codec import pack_namespace, to_micros

_SET_VECTOR: Final = """
UPDATE memory_rows SET seq = ?, model = ?, vector = ? WHERE scope = ? AND key = ? AND text IS NOT NULL
"""
_FIND: Final = """
SELECT s.id, s.seq, r.version, r.created, r.value IS NOT NULL
FROM memory_scopes s LEFT JOIN memory_rows r ON r.scope = s.id AND r.key = ? WHERE s.namespace = ?
"""
_NEW_SCOPE: Final = "INSERT INTO memory_scopes (root, namespace) VALUES (?, ?) RETURNING id"
_NEW_SEQ: Final = "UPDATE memory_scopes SET seq = ? WHERE id = ?"
_UPSERT: Final = """
INSERT INTO memory_rows (scope, key, seq, version, created, updated, kind, value, text, terms, analyzer, model, vector)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET seq = excluded.seq, version = excluded.version, created = excluded.created,
    updated = excluded.updated, kind = excluded.kind, value = excluded.value, text = excluded.text,
    terms = excluded.terms, analyzer = excluded.analyzer, model = excluded.model, vector = excluded.vector
"""
_CLEAR: Final = """
UPDATE memory_rows SET seq = ?, version = version + 1, kind = '', value = NULL, text = NULL, terms = NULL,
    analyzer = NULL, model = '', vector = NULL
WHERE scope = ? AND key = ?
"""


def apply_write(writer: sqlite3.Connection, write: Write) -> int:
    """Does ``write`` inside the open transaction; the row's version after it, 0 if there is none.

    Raises VersionConflict if the row is not at the expected version.
    """
    packed = pack_namespace(write.namespace)
    absent = (None, 0, None, None, False)
    found: tuple[Any, ...] = writer.execute(_FIND, (write.key, packed)).fetchone() or absent
    scope, seq, version, created, alive = found
    known: int = version if alive else 0
    if not isinstance(write, SetVector) and write.expected not in (None, known):
        raise VersionConflict(f"{write.key!r} is at version {known}, not {write.expected}")
    if isinstance(write, SetVector):
        if not alive or known != write.version:
            return known
        writer.execute(_SET_VECTOR, (seq + 1, write.model, write.vector, scope, write.key))
    elif isinstance(write, Delete):
        if not alive:
            return 0
        writer.execute(_CLEAR, (seq + 1, scope, write.key))
        known = 0
    else:
        if scope is None:
            scope = writer.execute(_NEW_SCOPE, (write.namespace[0], packed)).fetchone()[0]
        known = (version or 0) + 1
        writer.execute(_UPSERT, (scope, write.key, seq + 1, known, *_columns(write, created if alive else None)))
    writer.execute(_NEW_SEQ, (seq + 1, scope))
    return known


def _columns(write: Put, created: int | None) -> tuple[Any, ...]:
    updated = to_micros(write.updated_at)
    first = to_micros(write.created_at) if write.created_at else created
    document = write.document or (None, None, None, "", None)
    return (updated if first is None else first, updated, write.kind, write.value, *document)
