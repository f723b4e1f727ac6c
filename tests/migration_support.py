"""Files with memories of the flat namespace, as LangGraph's SqliteStore wrote them, and what should become of each."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.store.sqlite import SqliteStore

from inference_core.transfer.legacy import LegacyItem

ROW_TIME = datetime(2025, 6, 1, 12, tzinfo=UTC)
USERS = ("ada", "user-1", "user-12", "x@host", "~x~40host")
TYPES = (
    ("preferences", "semantic"),
    ("fact", "semantic"),
    ("instruction", "procedural"),
    ("context", "episodic"),
    ("session_summary", "episodic"),
    ("skill", "procedural"),
    ("MemoryType.GOALS", "semantic"),
    ("mood", "semantic"),
    (None, "semantic"),
)
TIMES = (
    ("2025-01-15T10:30:00+00:00", datetime(2025, 1, 15, 10, 30, tzinfo=UTC)),
    ("2025-01-15T10:30:00.123456", datetime(2025, 1, 15, 10, 30, 0, 123456, tzinfo=UTC)),
    ("2025-01-15T10:30:00Z", datetime(2025, 1, 15, 10, 30, tzinfo=UTC)),
    ("2025-01-15 10:30:00+02:00", datetime(2025, 1, 15, 8, 30, tzinfo=UTC)),
    ("2025-01-15", datetime(2025, 1, 15, tzinfo=UTC)),
    (1_736_937_000, datetime(2025, 1, 15, 10, 30, tzinfo=UTC)),
    (1_736_937_000_000, datetime(2025, 1, 15, 10, 30, tzinfo=UTC)),
    ("last week", ROW_TIME),
    (None, ROW_TIME),
)
UNUSABLE: tuple[Any, ...] = (
    {"memory_type": "facts"},
    {"content": "  "},
    {"content": "x" * 8_193},
    {"content": "with \x00"},
    {"content": "half \ud800"},
    {"content": ["a", "list"]},
    {"content": "large", "extra_metadata": {"text": "x" * 20_000}},
    "not an object",
)


class Expected(NamedTuple):
    user: str
    key: str
    category: str
    created_at: datetime


def item(value: Any, key: str = "m1", user_id: str = "ada", **fields: Any) -> LegacyItem:
    return LegacyItem(user_id=user_id, key=key, value=value, created_at=ROW_TIME, updated_at=ROW_TIME, **fields)


def legacy_file(path: Path, count: int) -> list[Expected]:
    """Makes a file of LangGraph's with ``count`` memories, a fifth of each user's keys another's too; and odd ones."""
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        store.put(("ada", "notes"), "n1", {"content": "not a memory"})
        store.put(("team", "ada", "memories"), "n2", {"content": "whose is it?"})
    rows = list(flat_rows(count))
    odd = [("odd.memories", f"odd{at}", json.dumps(value)) for at, value in enumerate(UNUSABLE)]
    odd.append(("odd.memories", "odd-json", "{"))
    with closing(sqlite3.connect(path)) as connection, connection:
        insert = "INSERT INTO store (prefix, key, value, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
        when = ROW_TIME.strftime("%Y-%m-%d %H:%M:%S")
        everything = [*((f"{one.user}.memories", one.key, value) for one, value in rows), *odd]
        connection.executemany(insert, [(*row, when, when) for row in everything])
    return [one for one, _ in rows]


def flat_rows(count: int) -> Iterator[tuple[Expected, str]]:
    """What should become of each of ``count`` flat memories, and its value."""
    for at in range(count):
        kind, category = TYPES[at % len(TYPES)]
        created, when = TIMES[at % 7 if at % 11 else 7 + at % 2]
        user = USERS[at % len(USERS)]
        key = f"id.{at // len(USERS)}"
        value = {"content": f"{user} said {at}", "memory_type": kind, "created_at": created, "topic": f"t{at % 5}"}
        yield Expected(user, key, category, when), json.dumps({k: found for k, found in value.items() if found})


def state(path: Path) -> str:
    """A hash of all that the store holds but its audit trail; the order in which it was written does not matter."""
    query = (
        "SELECT s.namespace, r.key, r.version, r.created, r.updated, r.kind, r.value, r.text, r.terms, r.session "
        "FROM memory_rows r JOIN memory_scopes s ON s.id = r.scope WHERE s.namespace NOT LIKE '%~audit%' ORDER BY 1, 2"
    )
    return _hash(path, query)


def originals(path: Path) -> str:
    """A hash of LangGraph's table."""
    return _hash(path, "SELECT * FROM store ORDER BY prefix, key")


def _hash(path: Path, query: str) -> str:
    digest = hashlib.sha256()
    with closing(sqlite3.connect(path)) as connection:
        for row in connection.execute(query):
            digest.update(repr(row).encode())
    return digest.hexdigest()
