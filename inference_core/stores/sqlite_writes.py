"""What each kind of write does to the tables of a SQLite store."""

from __future__ import annotations

import sqlite3
from typing import Final

from inference_core.errors import VersionConflict
from inference_core.stores.backend import Delete, Put, SetVector, Write
from inference_core.stores.codec import pack_namespace, to_micros

_FIND: Final = """
SELECT s.id, r.version, r.created, r.value IS NOT NULL
FROM memory_scopes s LEFT JOIN memory_rows r ON r.scope = s.id AND r.key = ? WHERE s.namespace = ?
"""
_NEW_SCOPE: Final = "INSERT INTO memory_scopes (root, namespace) VALUES (?, ?) RETURNING id"
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
    scope, version, created, alive = writer.execute(_FIND, (write.key, packed)).fetchone() or (None, None, None, False)
    if scope is None:
        scope = writer.execute(_NEW_SCOPE, (write.namespace[0], packed)).fetchone()[0]
    version = version or 0
    if isinstance(write, SetVector):
        return _set_vector(writer, write, scope, version if alive else 0)
    if write.expected is not None and write.expected != (version if alive else 0):
        raise VersionConflict(f"{write.key!r} is at version {version if alive else 0}, not {write.expected}")
    if isinstance(write, Delete):
        if alive:
            writer.execute(_CLEAR, (_next_seq(writer, scope), scope, write.key))
        return 0
    return _put(writer, write, scope, version + 1, created if alive else None)


def _put(writer: sqlite3.Connection, write: Put, scope: int, version: int, created: int | None) -> int:
    updated = to_micros(write.updated_at)
    first = to_micros(write.created_at) if write.created_at else created
    document = write.document
    writer.execute(
        _UPSERT,
        (
            scope,
            write.key,
            _next_seq(writer, scope),
            version,
            updated if first is None else first,
            updated,
            write.kind,
            write.value,
            document and document.text,
            document and document.terms,
            document and document.analyzer,
            document.model if document else "",
            document and document.vector,
        ),
    )
    return version


def _set_vector(writer: sqlite3.Connection, write: SetVector, scope: int, version: int) -> int:
    if version == write.version:
        writer.execute(
            "UPDATE memory_rows SET seq = ?, model = ?, vector = ? WHERE scope = ? AND key = ? AND text IS NOT NULL",
            (_next_seq(writer, scope), write.model, write.vector, scope, write.key),
        )
    return version


def _next_seq(writer: sqlite3.Connection, scope: int) -> int:
    found = writer.execute("UPDATE memory_scopes SET seq = seq + 1 WHERE id = ? RETURNING seq", (scope,))
    return found.fetchone()[0]
