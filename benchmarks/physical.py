"""What a save costs above SQLite's own work: the same rows once more, in the same tables, by bare sqlite3.

Times are of the processor, of all threads of this process, as the disk's differ from run to run.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from inference_core import MemoryStore

T = TypeVar("T")
_PORTION: Final = 20
"""Few enough that SQLite does not move their journal to the file, which it does after 1,000 pages."""
_TABLES: Final = ("memory_rows", "memory_log")
_PRAGMAS: Final = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON")
"""As our own connections have them."""


class Cost(NamedTuple):
    """Of one save: milliseconds of the processor and bytes of the journal, of ours and of bare sqlite3."""

    ours_ms: float
    bare_ms: float
    ours_wal: float
    bare_wal: float


def cost(
    store: MemoryStore, path: Path, save: Callable[[Sequence[T]], object], items: Sequence[T], *, at_once: int = 1
) -> Cost:
    """What it costs to ``save`` portions of ``items`` in ``store``, the file at ``path``; the least of all portions.

    Then their rows are written into a copy of the file, ``at_once`` saves in a transaction.
    """
    portions = iter(items)
    copy = path.with_name(f"copy-of-{path.name}")
    store.engine.backend.copy_into(copy)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - SQLite's
    costs: list[Cost] = []
    with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(copy, isolation_level=None)) as bare:
        for pragma in _PRAGMAS:
            bare.execute(f"PRAGMA {pragma}")
        while portion := list(islice(portions, _PORTION)):
            seen = [_last(reader, table) for table in _TABLES]
            _emptied(reader)
            ours_ms = _processor_ms(lambda portion=portion: save(portion))
            rows = [_behind(reader, table, last) for table, last in zip(_TABLES, seen, strict=True)]
            ours_wal = _journal(path)
            _emptied(bare)
            bare_ms = _processor_ms(lambda rows=rows: _written(bare, rows, at_once))
            costs.append(Cost(*(one / len(portion) for one in (ours_ms, bare_ms, ours_wal, _journal(copy)))))
    return Cost(
        min(one.ours_ms for one in costs),
        min(one.bare_ms for one in costs),
        sum(one.ours_wal for one in costs) / len(costs),
        sum(one.bare_wal for one in costs) / len(costs),
    )


def _written(bare: sqlite3.Connection, rows: Sequence[Sequence[tuple[Any, ...]]], at_once: int) -> None:
    count = max(map(len, rows))
    for start, end in pairwise([*range(0, count, at_once), count]):
        bare.execute("BEGIN IMMEDIATE")
        for table, found in zip(_TABLES, rows, strict=True):
            some = found[start:end]
            if some:
                bare.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(some[0]))})", some)
        bare.execute("COMMIT")


def _last(reader: sqlite3.Connection, table: str) -> int:
    return reader.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0]


def _behind(reader: sqlite3.Connection, table: str, last: int) -> list[tuple[Any, ...]]:
    return reader.execute(f"SELECT * FROM {table} WHERE id > ? ORDER BY id", (last,)).fetchall()


def _emptied(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _journal(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


def _processor_ms(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1000
