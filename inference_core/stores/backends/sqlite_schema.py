"""The tables of a SQLite store, and their set-up. They may share a file with other tables, such as a checkpointer's."""

from __future__ import annotations

import sqlite3
from typing import Final

from inference_core.stores.codec import check_schema

VERSION: Final = 4
READABLE: Final = 3
"""A file that cannot be written is read if it has this version or a later one: what came after are indexes alone."""
_MIGRATIONS: Final = {
    1: """
    CREATE TABLE memory_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE memory_scopes (
        id INTEGER PRIMARY KEY,
        root TEXT NOT NULL,
        namespace TEXT NOT NULL UNIQUE,
        seq INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX memory_scopes_by_root ON memory_scopes (root);
    CREATE TABLE memory_rows (
        id INTEGER PRIMARY KEY,
        scope INTEGER NOT NULL REFERENCES memory_scopes (id),
        key TEXT NOT NULL,
        seq INTEGER NOT NULL,
        version INTEGER NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        kind TEXT NOT NULL,
        value TEXT,
        text TEXT,
        terms TEXT,
        analyzer TEXT,
        session TEXT NOT NULL DEFAULT '',
        by_assistant INTEGER NOT NULL DEFAULT 0,
        happened REAL,
        importance REAL NOT NULL DEFAULT 0.5,
        model TEXT NOT NULL DEFAULT '',
        vector BLOB,
        UNIQUE (scope, key)
    );
    CREATE TABLE memory_tokens (
        row INTEGER PRIMARY KEY REFERENCES memory_rows (id) ON DELETE CASCADE,
        tokens BLOB NOT NULL
    );
    CREATE UNIQUE INDEX memory_rows_by_seq ON memory_rows (scope, seq);
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created DESC, key) WHERE value IS NOT NULL;
    CREATE INDEX memory_rows_by_model ON memory_rows (model) WHERE text IS NOT NULL;
    """,
    2: """
    ALTER TABLE memory_rows ADD COLUMN expires INTEGER;
    ALTER TABLE memory_rows ADD COLUMN ttl INTEGER;
    CREATE INDEX memory_rows_by_expiry ON memory_rows (expires) WHERE expires IS NOT NULL;
    """,
    3: """
    DROP INDEX memory_rows_by_age;
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created, key DESC) WHERE value IS NOT NULL;
    ALTER TABLE memory_scopes DROP COLUMN seq;
    """,
    4: """
    CREATE INDEX memory_rows_by_kind ON memory_rows (scope, kind, created, key DESC, expires) WHERE value IS NOT NULL;
    """,
}


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the tables up to date, each step in one transaction. Call it while holding the store's set-up lock.

    Raises UnsupportedSchema if a newer version of the package wrote the file.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    for step in range(checked_version(connection) + 1, VERSION + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE;{_MIGRATIONS[step]};"
            f"INSERT OR REPLACE INTO memory_meta VALUES ('schema_version', '{step}');COMMIT;"
        )


def checked_version(connection: sqlite3.Connection) -> int:
    """The version of the tables, 0 if there are none. Raises UnsupportedSchema if this package does not know it."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'memory_meta'"
    if connection.execute(query).fetchone() is None:
        return 0
    version = int(connection.execute("SELECT value FROM memory_meta WHERE name = 'schema_version'").fetchone()[0])
    check_schema(version, VERSION)
    return version
