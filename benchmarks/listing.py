"""Pages of memories, receipts, waiting messages and filtered items, from small and large stores on SQLite.

A page should cost the same in both; a filter that the database cannot apply reads all items once. Small and large
stores take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import ours
from command import Options, Result, bar, plain, run
from corpus import ASKER, turns
from langgraph.store.base import PutOp
from report import Row
from timing import by_turns, quantile, scratch, watched

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.clock import SystemClock
from inference_core.effects import run as run_plan
from inference_core.memory.receipt import Receipt, ReceiptLine, ReceiptPlace
from inference_core.outbox import outbox as queue
from inference_core.outbox.messages import ConversationMessage, Role
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.services.operations.receipts import keep_receipt

CALLS: Final = 30
PAGE: Final = 50
LINES: Final = 10
SAME: Final = 2.0
LINEAR: Final = 5.0
_NOW: Final = datetime.now(UTC)
Call = Callable[[MemoryStore], object]


class Listing(NamedTuple):
    """What is asked, of how few and how many, and how much more the many may cost."""

    what: str
    few: int
    many: int
    fill: Callable[[MemoryStore, int], None]
    call: Call
    growth: float = SAME


def _remember(store: MemoryStore, count: int) -> None:
    ours.fill(store, turns(count), count)


def _keep_receipts(store: MemoryStore, count: int) -> None:
    scope = AgentMemoryStoreService(store).scope
    for number in watched(range(count), f"keeping {count} receipts"):
        keep_receipt(scope, ASKER, partial(_receipt, number))
        if number % ours.BATCH == 0:
            run_plan(scope.engine.flush_later())
    run_plan(scope.engine.flush_later())


def _receipt(number: int) -> Receipt:
    def line(at: int) -> ReceiptLine:
        signals = {"words": 0.2, "meaning": 0.3}
        return ReceiptLine(id=f"m{at}", version=1, place=ReceiptPlace.RECALLED, rank=at + 1, score=0.5, signals=signals)

    return Receipt(
        id=f"r{number}",
        at=_NOW - timedelta(seconds=number),
        until=_NOW + timedelta(days=30),
        recalled_at=_NOW,
        zone="UTC",
        status="recalled",
        placement="last_user",
        has_profile=False,
        form="memories",
        lines=tuple(map(line, range(LINES))),
        dropped=(),
        tokens=100,
        profile_hash="",
        block_hash="a" * 64,
    )


def _wait(store: MemoryStore, count: int) -> None:
    outbox = Outbox(store.engine, SystemClock())
    for number in watched(range(count), f"{count} partitions"):
        message = ConversationMessage(session_id="s", role=Role.USER, text=f"I live in town {number}", id=f"t{number}")
        run_plan(outbox.put(Partition(f"user{number}"), [message]))


def _status(store: MemoryStore) -> object:
    return run_plan(queue.status(store.engine, SystemClock()))


def _put_items(store: MemoryStore, count: int) -> None:
    for items in ours.portioned(range(count), ours.BATCH):
        store.batch([PutOp(("notes",), f"{number}", {"number": number, "text": "x"}) for number in items])


def _list_memories(store: MemoryStore) -> object:
    return AgentMemoryStoreService(store, timeout=None).sync.list_memories(ASKER, limit=PAGE)


def _list_receipts(store: MemoryStore) -> object:
    return AgentMemoryStoreService(store, timeout=None).sync.list_receipts(ASKER, limit=PAGE)


def _why(store: MemoryStore) -> object:
    return AgentMemoryStoreService(store, timeout=None).sync.why(ASKER, "m0")


def _search_filtered(store: MemoryStore) -> object:
    return store.search(("notes",), filter={"number": 3}, limit=10)


LISTINGS: Final = {
    "memories": Listing(f"list_memories(limit={PAGE})", 1_000, 20_000, _remember, _list_memories),
    "receipts": Listing(f"list_receipts(limit={PAGE})", 1_000, 5_000, _keep_receipts, _list_receipts),
    "why": Listing("why", 1_000, 5_000, _keep_receipts, _why),
    "queue": Listing("queue status", 1_000, 2_000, _wait, _status),
    "filtered": Listing("filtered store.search", 5_000, 20_000, _put_items, _search_filtered, LINEAR),
}


def measured(options: Options) -> Result:
    """Medians in milliseconds among few and among many; the sizes are their own."""
    del options
    with scratch() as folder:
        return {name: _measured(folder / name, listing) for name, listing in LISTINGS.items()}


def _measured(folder: Path, listing: Listing) -> Mapping[str, float]:
    folder.mkdir()
    with ExitStack() as opened:
        calls: dict[str, Callable[[int], object]] = {}
        for name, count in (("few", listing.few), ("many", listing.many)):
            store = opened.enter_context(open_store(f"sqlite:///{folder / name}.db", embeddings=None))
            listing.fill(store, count)
            calls[name] = partial(_called, listing.call, store)
        taken = by_turns(calls, range(CALLS), listing.what)
    return {f"{name}_ms": quantile(times) for name, times in taken.items()}


def _called(call: Call, store: MemoryStore, _: int) -> object:
    return call(store)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    return [row for name, listing in LISTINGS.items() for row in _rows(listing, result[name])]


def _rows(listing: Listing, found: Mapping[str, float]) -> list[Row]:
    growth = found["many_ms"] / found["few_ms"]
    return [
        plain(f"{listing.what}, {listing.few:,}", found["few_ms"]),
        plain(f"{listing.what}, {listing.many:,}", found["many_ms"]),
        bar(f"{listing.what}, {listing.many:,} over {listing.few:,}", growth, listing.growth, ""),
    ]


if __name__ == "__main__":
    sys.exit(run("listing", measured, table, __doc__))
