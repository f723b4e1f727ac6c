"""PgBouncer in transaction mode, before a PostgreSQL server of the tests."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from urllib.parse import quote

import psycopg
import pytest
from postgres_server import PostgresServer

POOL = 2
_START_S = 20.0
_SETTINGS = """
[databases]
* = host={folder} user=postgres
[pgbouncer]
unix_socket_dir = {folder}
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 200
"""
_ports = count(6432)  # it listens on no port, but names its socket by one


@contextmanager
def pooled_database(server: PostgresServer) -> Generator[str]:
    """The URL of an empty database of ``server`` through a pooler whose clients share `POOL` connections."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    port = next(_ports)
    name = f"pooled{port}"
    server.execute(f"CREATE DATABASE {name}")
    settings = server.folder / f"{name}.ini"
    settings.write_text(_SETTINGS.format(folder=server.folder, port=port, pool=POOL))
    url = f"postgresql://postgres@:{port}/{name}?host={quote(str(server.folder), safe='')}"
    process = server.run(program, str(settings))
    try:
        end = time.monotonic() + _START_S
        while not _answers(url):
            assert time.monotonic() < end, (server.folder / "log").read_text()[-500:]
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait()
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.Error:
        return False
    return True
