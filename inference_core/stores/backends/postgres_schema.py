"""The tables of a PostgreSQL store, and their set-up. They lie in the first schema of the connection's search_path."""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg

from inference_core.errors import ConfigurationError
from inference_core.stores.codec import check_schema

VERSION: Final = 2
_LOCK: Final = 0x636F_616C_615F_6D65
WANTED: Final = """
unnest(%(names)b::text[], %(keys)b::text[]) AS s (namespace, key) CROSS JOIN LATERAL (
    SELECT * FROM memory_rows r
    WHERE r.scope = (SELECT id FROM memory_scopes known WHERE known.namespace = s.namespace) AND r.key = s.key OFFSET 0
) r
"""
"""Rows by their addresses, so written that they are looked up by the primary key also before there are statistics."""
SET_META: Final = "INSERT INTO memory_meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_MIGRATIONS: Final[dict[int, LiteralString]] = {
    1: """
    CREATE TABLE memory_meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    CREATE TABLE memory_scopes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        root text COLLATE "C" NOT NULL,
        namespace text COLLATE "C" NOT NULL UNIQUE,
        seq bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE INDEX memory_scopes_by_root ON memory_scopes (root);
    CREATE TABLE memory_rows (
        scope bigint NOT NULL REFERENCES memory_scopes (id),
        key text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        version bigint NOT NULL,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        kind text COLLATE "C" NOT NULL,
        value text,
        text text,
        terms text,
        analyzer text,
        session text NOT NULL DEFAULT '',
        by_assistant boolean NOT NULL DEFAULT false,
        happened double precision,
        importance double precision NOT NULL DEFAULT 0.5,
        model text COLLATE "C" NOT NULL DEFAULT '',
        vector bytea,
        tokens bytea,
        expires bigint,
        ttl bigint,
        PRIMARY KEY (scope, key)
    );
    ALTER TABLE memory_rows ALTER COLUMN vector SET STORAGE MAIN, ALTER COLUMN tokens SET STORAGE EXTERNAL;
    CREATE UNIQUE INDEX memory_rows_by_seq ON memory_rows (scope, seq);
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created DESC, key) WHERE value IS NOT NULL;
    CREATE INDEX memory_rows_by_model ON memory_rows (model) WHERE text IS NOT NULL;
    CREATE INDEX memory_rows_by_expiry ON memory_rows (expires) WHERE expires IS NOT NULL;
    """,
    2: """
    CREATE INDEX memory_rows_by_kind ON memory_rows (scope, kind, created DESC, key) INCLUDE (expires)
        WHERE value IS NOT NULL;
    """,
}


def migrate(connection: psycopg.Connection[Any]) -> None:
    """Brings the tables up to date in one transaction; processes that come at once take turns.

    Raises UnsupportedSchema if a newer version of the package wrote them, ConfigurationError if the database does not
    speak UTF-8 or does not let its user make tables.
    """
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise ConfigurationError("A store needs a PostgreSQL database with the encoding UTF8")
    if _version(connection) == VERSION:
        return
    try:
        with connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for step in range(_version(connection) + 1, VERSION + 1):
                connection.execute(_MIGRATIONS[step])
                connection.execute(SET_META, ("schema_version", str(step)))
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
        raise ConfigurationError(
            f"The tables of the store cannot be made: {error.diag.message_primary}. "
            "Grant the database's user CREATE on a schema of its search_path"
        ) from error


def has_tables(connection: psycopg.Connection[Any]) -> bool:
    """Whether the search_path leads to the tables of a store."""
    # to_regclass may not see yet what another process made while this one waited for the lock; a table's scan does.
    query = "SELECT FROM pg_catalog.pg_class WHERE relname = 'memory_meta' AND pg_table_is_visible(oid)"
    return connection.execute(query).fetchone() is not None


def _version(connection: psycopg.Connection[Any]) -> int:
    if not has_tables(connection):
        return 0
    found = connection.execute("SELECT value FROM memory_meta WHERE name = 'schema_version'").fetchone()
    version = int(found[0]) if found else 0
    check_schema(version, VERSION)
    return version
