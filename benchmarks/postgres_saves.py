"""Durable saves per second of 8 processes x 20 savers on PostgreSQL: lost writes, failures and speed.

The server is PostgreSQL from a wheel, with fsync, on the same machine. First all processes save for the same 20 users,
so that every transaction waits for those of the others; then each process for 20 users of its own.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from command import Result, bar, plain
from group_commit import PROCESSES, SAVERS, SAVES, joined, rate
from report import Row, publish

from inference_core.memory.namespaces import holds_memories
from inference_core.stores.factory import open_backend

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from postgres_server import PostgresServer, new_server

BAR: Final = 800
_FACTS: Final = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
_WAYS: Final = {f"{SAVERS} users of all processes": False, f"{PROCESSES * SAVERS} users": True}


def measured(saves: int = SAVES) -> Result:
    """Both ways, with ``saves`` of each saver, on a server of their own."""
    with closing(new_server("postgres", durable=True)) as server:
        found: Result = {"saves": PROCESSES * SAVERS * saves, "server": _facts(server)}
        found["ways"] = {name: _way(server, saves, own_users=own_users) for name, own_users in _WAYS.items()}
    return found


def _way(server: PostgresServer, saves: int, *, own_users: bool) -> Result:
    url = server.url(server.schema(is_new=True))
    made = rate(partial(joined, own_users=own_users), saves, url)
    with closing(open_backend(url)) as backend:
        stored = backend.count([one for one in backend.namespaces() if holds_memories(one)])  # not their audit events
    return {"a_second": made.a_second, "errors": made.errors, "lost": PROCESSES * SAVERS * saves - stored}


def _facts(server: PostgresServer) -> dict[str, str]:
    with psycopg.connect(server.url()) as connection:
        query = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s) ORDER BY name"
        return dict(connection.execute(query, (list(_FACTS),)).fetchall())


def table(result: Result) -> list[Row]:
    """The report's rows."""
    server = result["server"]
    found = [plain("PostgreSQL", f"{server['server_version']}, fsync {server['fsync']}", "")]
    for name, way in result["ways"].items():
        what = f"{result['saves']:,} saves for {name}"
        found.append(bar(f"{what}, a second", way["a_second"], BAR, "", least=True))
        found += [(f"{what}, {fault}", str(way[fault]), "0", way[fault] == 0) for fault in ("lost", "errors")]
    return found


def main() -> int:
    """Measures and publishes; exit code 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="sh scripts/bench postgres_saves", description=__doc__)
    parser.add_argument("--saves", type=int, default=SAVES, help="saves of each saver (default: %(default)s)")
    parser.add_argument("--unpublished", action="store_true", help="leave benchmarks/results as it is")
    arguments = parser.parse_args()
    result = measured(arguments.saves)
    return int(not publish("postgres_saves", table(result), result, written=not arguments.unpublished))


if __name__ == "__main__":
    sys.exit(main())
