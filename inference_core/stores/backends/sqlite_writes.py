"""What each kind of write does to the tables of a SQLite store."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, NamedTuple

from inference_core.errors import VersionConflict
from inference_core.retrieval.documents import Situation
from inference_core.stores.backend import Check, Delete, Expire, Put, SetVector, Touch, Unreadable, Write
from inference_core.stores.codec import micros_of, pack_namespace, to_micros

_NEXT: Final = (
    "(SELECT coalesce(max(seq), 0) + 1 FROM memory_rows AS known "
    "WHERE known.scope = {} AND typeof(known.seq) = 'integer')"
)
"""A scope's next sequence number; no row is ever removed, so that none comes twice. A damaged number does not count."""
_SET_VECTOR: Final = f"""
UPDATE memory_rows SET seq = {_NEXT.format("memory_rows.scope")}, model = ?, vector = ?
WHERE scope = ? AND key = ? AND text IS NOT NULL
"""
_SET_TOKENS: Final = """
INSERT OR REPLACE INTO memory_tokens (row, tokens) SELECT id, ? FROM memory_rows WHERE scope = ? AND key = ?
"""
_CLEAR_TOKENS: Final = "DELETE FROM memory_tokens WHERE row = (SELECT id FROM memory_rows WHERE scope = ? AND key = ?)"
_FIND: Final = """
SELECT s.id, r.version, r.created, r.value IS NOT NULL, r.expires <= ?
FROM memory_scopes s LEFT JOIN memory_rows r ON r.scope = s.id AND r.key = ? WHERE s.namespace = ?
"""
_TOUCH: Final = "UPDATE memory_rows SET expires = ? WHERE scope = ? AND key = ? AND expires IS NOT NULL"
_NEW_SCOPE: Final = "INSERT INTO memory_scopes (root, namespace) VALUES (?, ?) RETURNING id"
_UPSERT: Final = f"""
INSERT INTO memory_rows (scope, key, seq, version, created, updated, kind, value, text, terms, analyzer,
    session, by_assistant, happened, importance, model, vector, expires, ttl)
VALUES (?1, ?, {_NEXT.format("?1")}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET seq = excluded.seq, version = excluded.version, created = excluded.created,
    updated = excluded.updated, kind = excluded.kind, value = excluded.value, text = excluded.text,
    terms = excluded.terms, analyzer = excluded.analyzer, session = excluded.session,
    by_assistant = excluded.by_assistant, happened = excluded.happened, importance = excluded.importance,
    model = excluded.model, vector = excluded.vector, expires = excluded.expires, ttl = excluded.ttl
"""
_INSERT_NEW: Final = f"""
INSERT INTO memory_rows (scope, key, seq, version, created, updated, kind, value, text, terms, analyzer,
    session, by_assistant, happened, importance, model, vector, expires, ttl)
SELECT s.id, ?, {_NEXT.format("s.id")}, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
FROM memory_scopes s WHERE s.namespace = ?
ON CONFLICT (scope, key) DO NOTHING
"""
"""Into a scope that is there, under a key that never was."""
_CLEAR: Final = f"""
UPDATE memory_rows SET seq = {_NEXT.format("memory_rows.scope")}, version = version + 1, kind = '', value = NULL,
    text = NULL, terms = NULL, analyzer = NULL, model = '', vector = NULL, expires = NULL, ttl = NULL
WHERE scope = ? AND key = ?
"""
_DISCARD: Final = f"""
UPDATE memory_rows SET seq = {_NEXT.format("memory_rows.scope")}, version = CAST(version AS INTEGER) + 1,
    key = CASE WHEN ? THEN key ELSE 'unreadable-' || id END, created = 0, updated = 0, kind = '', value = NULL,
    text = NULL, terms = NULL, analyzer = NULL, session = '', by_assistant = 0, happened = NULL, importance = 0.5,
    model = '', vector = NULL, expires = NULL, ttl = NULL
WHERE id = ? AND seq IS coalesce(?, seq) AND value IS NOT NULL
"""
"""A row is kept without its content, under another key if its own cannot be written: its number must not come again."""


class Place(NamedTuple):
    """Which row it is, its sequence number, which may be damaged, and whether its key can be read."""

    row: int
    seq: object
    is_named: bool


class _Found(NamedTuple):
    """What is known of a key before a write; ``version`` and ``created`` also of one that was deleted."""

    scope: int | None = None
    version: int | None = None
    created: int | None = None
    is_there: bool = False
    is_expired: bool = False

    @property
    def known(self) -> int:
        """The version that a writer may expect: 0 if nothing is there."""
        return (self.version or 0) if self.is_there and not self.is_expired else 0


def apply_write(writer: sqlite3.Connection, write: Write, now: int) -> int:
    """Does ``write`` inside the open transaction at ``now``; the row's version after it, 0 if there is none.

    Raises VersionConflict if the row is not at the expected version.
    """
    packed = pack_namespace(write.namespace)
    if isinstance(write, Put) and write.expected == 0 and _insert(writer, write, packed):
        return 1
    found = _Found(*(writer.execute(_FIND, (now, write.key, packed)).fetchone() or ()))
    if isinstance(write, Put | Delete | Check) and write.expected not in (None, found.known):
        raise VersionConflict(f"{write.key!r} is at version {found.known}, not {write.expected}")
    if isinstance(write, Put):
        return _put(writer, write, found, packed)
    if isinstance(write, Check) or not found.is_there or (isinstance(write, Expire) and not found.is_expired):
        return found.known
    if isinstance(write, Delete | Expire):
        writer.execute(_CLEAR, (found.scope, write.key))
        _set_tokens(writer, None, found.scope, write.key, is_new=False)
        return 0
    if found.version == write.version and (found.known or isinstance(write, SetVector)):
        _amend(writer, write, found)
    return found.known


def discard(writer: sqlite3.Connection, found: Unreadable) -> bool:
    """Removes a row that cannot be read; whether it was still as it was found."""
    row, seq, is_named = found.place
    known = None if isinstance(seq, tuple) else seq  # a text that cannot be decoded cannot be compared either
    if not writer.execute(_DISCARD, (is_named, row, known)).rowcount:
        return False
    writer.execute("DELETE FROM memory_tokens WHERE row = ?", (row,))
    return True


def _insert(writer: sqlite3.Connection, write: Put, packed: str) -> bool:
    """Stores what is new, as most writes are, by one statement; False if it has to be looked at."""
    if write.document is not None and write.document.tokens is not None:
        return False
    return writer.execute(_INSERT_NEW, (write.key, *_columns(write, None), packed)).rowcount == 1


def _put(writer: sqlite3.Connection, write: Put, found: _Found, packed: str) -> int:
    scope, version = found.scope, max(found.version or 0, write.above) + 1
    if scope is None:
        scope = writer.execute(_NEW_SCOPE, (write.namespace[0], packed)).fetchone()[0]
    columns = _columns(write, found.created if found.known else None)
    writer.execute(_UPSERT, (scope, write.key, version, *columns))
    tokens = write.document.tokens if write.document else None
    _set_tokens(writer, tokens, scope, write.key, is_new=found.version is None)
    return version


def _amend(writer: sqlite3.Connection, write: SetVector | Touch, found: _Found) -> None:
    address = (found.scope, write.key)
    if isinstance(write, Touch):
        writer.execute(_TOUCH, (to_micros(write.at), *address))
    elif writer.execute(_SET_VECTOR, (write.model, write.vector, *address)).rowcount:
        _set_tokens(writer, write.tokens, *address, is_new=False)


def _set_tokens(writer: sqlite3.Connection, tokens: bytes | None, scope: int | None, key: str, *, is_new: bool) -> None:
    if tokens is not None:
        writer.execute(_SET_TOKENS, (tokens, scope, key))
    elif not is_new:
        writer.execute(_CLEAR_TOKENS, (scope, key))


def _columns(write: Put, created: int | None) -> tuple[Any, ...]:
    updated = to_micros(write.updated_at)
    first = to_micros(write.created_at) if write.created_at else created
    times = (updated if first is None else first, updated)
    expiry = (to_micros(write.expiry.at), micros_of(write.expiry.ttl)) if write.expiry else (None, None)
    if write.document is None:
        return (*times, write.kind, write.value, None, None, None, *Situation(), "", None, *expiry)
    text, terms, analyzer, situation, model, vector, _ = write.document
    return (*times, write.kind, write.value, text, terms, analyzer, *situation, model, vector, *expiry)
