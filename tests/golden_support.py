"""Kept files of stores on servers: how they are written, as statements and commands, and how a server takes them in.

`python tests/golden_support.py postgres` prints the file of the schema that this version of the package writes, and
`python tests/golden_support.py sqlite FILE` makes it, with audit events.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, LiteralString
from unittest.mock import patch

import psycopg
from databases import database
from psycopg import sql
from redis import Redis

from inference_core import AgentMemoryStoreService, open_store
from inference_core.stores.backends.redis import backend as redis
from inference_core.stores.backends.sql import postgres
from inference_core.testing import FrozenClock

WRITTEN: Final = datetime(2026, 1, 15, 12, tzinfo=UTC)
_ORDER: Final[dict[str, LiteralString]] = {"memory_meta": "name", "memory_scopes": "id", "memory_rows": "scope, seq"}


def write_memories(url: str, *, audit: bool = False) -> None:
    """Saves what every kept file holds: memories of two users, one of which was changed and another deleted."""
    stamps = (b"%012x" % number for number in count(1))
    clock = FrozenClock(WRITTEN)
    with (
        open_store(url, embeddings=None, clock=clock, audit=audit) as store,
        patch.object(redis, "new_stamp", stamps.__next__),
    ):
        service = AgentMemoryStoreService(store, agent_name="planner", clock=clock).sync
        metadata: dict[str, Any] = {"n": [1, None, "\u00fc"]}
        tea: dict[str, Any] = {"importance": 0.9, "tags": ["a"]}
        ada = "ada@example.com"
        service.save_memory(
            ada, "Likes green tea \u2615", "preferences", None, "drinks", metadata, memory_id="tea", **tea
        )
        service.save_memory(ada, "Answer in bullet points", "instructions", memory_id="bullets", pinned=True)
        service.save_memory(ada, "Talked about Kyoto", "interaction", "s1", memory_id="kyoto")
        service.save_memory(ada, "Soon gone", "facts", memory_id="gone")
        service.delete_memory(ada, "gone")
        service.save_memory("bob", "Likes coffee", "preferences", memory_id="coffee")
        service.update_memory("bob", "coffee", "Likes black coffee")


def postgres_dump(url: str) -> str:
    """A file that makes the tables of the store at ``url`` and fills them."""
    return "".join(f"{line}\n" for line in [*_postgres_tables(), *_postgres_rows(url)])


def _postgres_tables() -> Iterator[str]:
    for step in range(1, postgres.VERSION + 1):
        yield from postgres._MIGRATIONS[step].strip().splitlines()


def _postgres_rows(url: str) -> Iterator[str]:
    with psycopg.connect(url) as connection:
        for table, order in _ORDER.items():
            query = sql.SQL("SELECT * FROM {} ORDER BY ").format(sql.Identifier(table)) + sql.SQL(order)
            for row in connection.execute(query):
                values = sql.SQL(", ").join(map(sql.Literal, row)).as_string(connection)
                yield f"INSERT INTO {table} OVERRIDING SYSTEM VALUE VALUES ({values});"
        (last,) = connection.execute("SELECT max(id) FROM memory_scopes").fetchone() or (0,)
        yield f"ALTER TABLE memory_scopes ALTER COLUMN id RESTART WITH {last + 1};"


def postgres_load(url: str, dump: str) -> None:
    """Makes the store of ``dump`` in an empty database."""
    with psycopg.connect(url) as connection:
        connection.execute(dump.encode())


def redis_dump(url: str) -> str:
    """A file with a command for each key of the database at ``url``, as JSON."""
    return "".join(f"{json.dumps(command, ensure_ascii=False)}\n" for command in _redis_commands(url))


def _redis_commands(url: str) -> Iterator[list[str]]:
    with Redis.from_url(url) as opened:
        client: Any = opened
        for key in sorted(client.keys()):
            if client.type(key) == b"hash":
                parts = [part for field in sorted(client.hgetall(key).items()) for part in field]
                command = [b"HSET", key, *parts]
            else:
                scored = client.zrange(key, 0, -1, withscores=True)
                command = [b"ZADD", key, *(part for member, score in scored for part in (b"%d" % score, member))]
            yield [part.decode() for part in command]


def redis_load(url: str, dump: str) -> None:
    """Runs the commands of ``dump`` in an empty database."""
    with Redis.from_url(url) as client:
        for line in dump.splitlines():
            client.execute_command(*json.loads(line))


DUMPS: Final = {"postgres": postgres_dump, "redis": redis_dump}
LOADS: Final = {"postgres": postgres_load, "redis": redis_load}


def made(kind: str) -> str:
    """The file that this version of the package would keep of ``kind``."""
    with database(kind, Path(), is_new=True) as url:
        write_memories(url)
        return DUMPS[kind](url)


if __name__ == "__main__":
    if sys.argv[1] == "sqlite":
        write_memories(f"sqlite:///{sys.argv[2]}", audit=True)
    else:
        sys.stdout.write(made(sys.argv[1]))
