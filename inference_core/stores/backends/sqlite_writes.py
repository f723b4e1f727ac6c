"""What each kind of write does to the tables of a SQLite store."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, NamedTuple

from inference_core.errors import VersionConflict
from inference_core.stores.backend import Check, Delete, Expire, Put, SetVector, Unreadable, Write
from inference_core.stores.backends.sql import CLEARED, REPLACED, WRITTEN, columns_of
from inference_core.stores.codec import pack_namespace, to_micros

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
INSERT INTO memory_rows ({WRITTEN}) VALUES (?1, ?, {_NEXT.format("?1")}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET {REPLACED}
"""
_INSERT_NEW: Final = f"""
INSERT INTO memory_rows ({WRITTEN})
SELECT s.id, ?, {_NEXT.format("s.id")}, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
FROM memory_scopes s WHERE s.namespace = ?
ON CONFLICT (scope, key) DO NOTHING
"""
"""Into a scope that is there, under a key that never was."""
_CLEAR: Final = f"""
UPDATE memory_rows SET seq = {_NEXT.format("memory_rows.scope")}, version = version + 1, {CLEARED}
WHERE scope = ? AND key = ?
"""
_DISCARD: Final = f"""
UPDATE memory_rows SET seq = {_NEXT.format("memory_rows.scope")}, version = CAST(version AS INTEGER) + 1,
    key = CASE WHEN ? THEN key ELSE 'unreadable-' || id END, created = 0, updated = 0, {CLEARED}
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
    # Most writes are new: one statement stores such a one, unless something is there after all.
    if (
        isinstance(write, Put)
        and write.expected == 0
        and (write.document is None or write.document.tokens is None)
        and writer.execute(_INSERT_NEW, (write.key, *_columns(write, None), packed)).rowcount == 1
    ):
        return 1
    found = _Found(*(writer.execute(_FIND, (now, write.key, packed)).fetchone() or ()))
    if isinstance(write, Put | Delete | Check) and write.expected not in (None, found.known):
        raise VersionConflict(f"{write.key!r} is at version {found.known}, not {write.expected}")
    if isinstance(write, Put):
        return _put(writer, write, found, packed)
    if isinstance(write, Check) or not found.is_there or (isinstance(write, Expire) and not found.is_expired):
        return found.known
    address = (found.scope, write.key)
    if isinstance(write, Delete | Expire):
        writer.execute(_CLEAR, address)
        writer.execute(_CLEAR_TOKENS, address)
        return 0
    if found.version != write.version:  # it was for what was there before
        return found.known
    if isinstance(write, SetVector):
        if writer.execute(_SET_VECTOR, (write.model, write.vector, *address)).rowcount:
            _set_tokens(writer, write.tokens, address)
    elif found.known:
        writer.execute(_TOUCH, (to_micros(write.at), *address))
    return found.known


def discard(writer: sqlite3.Connection, found: Unreadable) -> bool:
    """Removes a row that cannot be read; whether it was still as it was found."""
    row, seq, is_named = found.place
    known = None if isinstance(seq, tuple) else seq  # a text that cannot be decoded cannot be compared either
    if not writer.execute(_DISCARD, (is_named, row, known)).rowcount:
        return False
    writer.execute("DELETE FROM memory_tokens WHERE row = ?", (row,))
    return True


def _put(writer: sqlite3.Connection, write: Put, found: _Found, packed: str) -> int:
    scope, version = found.scope, max(found.version or 0, write.above) + 1
    if scope is None:
        scope = writer.execute(_NEW_SCOPE, (write.namespace[0], packed)).fetchone()[0]
    columns = _columns(write, found.created if found.known else None)
    writer.execute(_UPSERT, (scope, write.key, version, *columns))
    tokens = write.document.tokens if write.document else None
    if tokens is not None or found.version is not None:
        _set_tokens(writer, tokens, (scope, write.key))
    return version


def _columns(write: Put, created: int | None) -> tuple[Any, ...]:
    first = to_micros(write.created_at or write.updated_at)
    return columns_of(write, first if write.created_at or created is None else created)


def _set_tokens(writer: sqlite3.Connection, tokens: bytes | None, address: tuple[int | None, str]) -> None:
    if tokens is None:
        writer.execute(_CLEAR_TOKENS, address)
    else:
        writer.execute(_SET_TOKENS, (tokens, *address))
