"""What each kind of write does to the tables of a SQLite store."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from inference_core.errors import VersionConflict
from inference_core.retrieval.documents import Situation
from inference_core.stores.backend import Delete, Put, SetVector, Write
from inference_core.stores.codec import pack_namespace, to_micros

_SET_VECTOR: Final = """
UPDATE memory_rows SET seq = ?, model = ?, vector = ? WHERE scope = ? AND key = ? AND text IS NOT NULL
"""
_SET_TOKENS: Final = """
INSERT OR REPLACE INTO memory_tokens (row, tokens) SELECT id, ? FROM memory_rows WHERE scope = ? AND key = ?
"""
_CLEAR_TOKENS: Final = "DELETE FROM memory_tokens WHERE row = (SELECT id FROM memory_rows WHERE scope = ? AND key = ?)"
_FIND: Final = """
SELECT s.id, s.seq, r.version, r.created, r.value IS NOT NULL
FROM memory_scopes s LEFT JOIN memory_rows r ON r.scope = s.id AND r.key = ? WHERE s.namespace = ?
"""
_NEW_SCOPE: Final = "INSERT INTO memory_scopes (root, namespace) VALUES (?, ?) RETURNING id"
_NEW_SEQ: Final = "UPDATE memory_scopes SET seq = ? WHERE id = ?"
_UPSERT: Final = """
INSERT INTO memory_rows (scope, key, seq, version, created, updated, kind, value, text, terms, analyzer,
    session, by_assistant, happened, importance, model, vector)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET seq = excluded.seq, version = excluded.version, created = excluded.created,
    updated = excluded.updated, kind = excluded.kind, value = excluded.value, text = excluded.text,
    terms = excluded.terms, analyzer = excluded.analyzer, session = excluded.session,
    by_assistant = excluded.by_assistant, happened = excluded.happened, importance = excluded.importance,
    model = excluded.model, vector = excluded.vector
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
        done = writer.execute(_SET_VECTOR, (seq + 1, write.model, write.vector, scope, write.key))
        if not done.rowcount:
            return known
        _set_tokens(writer, write.tokens, scope, write.key, is_new=False)
    elif isinstance(write, Delete):
        if not alive:
            return 0
        writer.execute(_CLEAR, (seq + 1, scope, write.key))
        _set_tokens(writer, None, scope, write.key, is_new=False)
        known = 0
    else:
        if scope is None:
            scope = writer.execute(_NEW_SCOPE, (write.namespace[0], packed)).fetchone()[0]
        known = (version or 0) + 1
        writer.execute(_UPSERT, (scope, write.key, seq + 1, known, *_columns(write, created if alive else None)))
        tokens = write.document.tokens if write.document else None
        _set_tokens(writer, tokens, scope, write.key, is_new=version is None)
    writer.execute(_NEW_SEQ, (seq + 1, scope))
    return known


def _set_tokens(writer: sqlite3.Connection, tokens: bytes | None, scope: int, key: str, *, is_new: bool) -> None:
    if tokens is not None:
        writer.execute(_SET_TOKENS, (tokens, scope, key))
    elif not is_new:
        writer.execute(_CLEAR_TOKENS, (scope, key))


def _columns(write: Put, created: int | None) -> tuple[Any, ...]:
    updated = to_micros(write.updated_at)
    first = to_micros(write.created_at) if write.created_at else created
    times = (updated if first is None else first, updated)
    if write.document is None:
        return (*times, write.kind, write.value, None, None, None, *Situation(), "", None)
    text, terms, analyzer, situation, model, vector, _ = write.document
    return (*times, write.kind, write.value, text, terms, analyzer, *situation, model, vector)
