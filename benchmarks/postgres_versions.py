"""The versions of a PostgreSQL server and of its pgvector."""

from __future__ import annotations


def server_versions(address: str) -> dict[str, str]:
    """By name; "?" for pgvector if the server does not have it."""
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(address) as connection:
        server = connection.execute("SHOW server_version").fetchone() or ("?",)
        extension = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"
        vectors = connection.execute(extension).fetchone() or ("?",)
    return {"PostgreSQL": server[0], "pgvector": vectors[0]}
