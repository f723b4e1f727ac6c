"""What a call costs, counted among few and among many on SQLite: a page costs a page, however much there is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from langgraph.store.base import PutOp
from outbox_support import put, said
from work import TaskHandler, watched_connect

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.memory.receipt import Receipt, ReceiptLine, ReceiptPlace
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryType, get_category_for_type
from inference_core.outbox import outbox as queue
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.services.operations.receipts import keep_receipt
from inference_core.services.operations.scope import put_of
from inference_core.stores.backend import PageRequest
from inference_core.testing import FrozenClock

USER = "ada"
FEW, MANY = 200, 1_500
GROWTH = 1.3
"""What a call among many may cost at most, if it costs the same: steps of the database are counted in hundreds."""
KINDS = (MemoryType.FACTS, MemoryType.INTERACTION, MemoryType.WORKFLOW)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Costly:
    """A store with its service, and what counts their work."""

    def __init__(self, folder: Path, work: TaskHandler, opened: ExitStack) -> None:
        self.work = work
        self.clock = FrozenClock(START)
        self.store = opened.enter_context(open_store(f"sqlite:///{folder}", embeddings=None, clock=self.clock))
        self.service = AgentMemoryStoreService(self.store, timeout=None, clock=self.clock).sync

    def remember(self, count: int) -> None:
        """Stores memories of three categories."""
        run(self.store.engine.write([put_of(memory(number)) for number in range(count)]))

    def note_receipts(self, count: int) -> None:
        """Keeps receipts of calls that were all told one memory."""
        for number in range(count):
            keep_receipt(self.service.scope, USER, partial(receipt, number))
        self.service.list_receipts(USER, limit=1)

    def cost(self, call: Callable[[], object]) -> TaskHandler:
        """What ``call`` costs when all that can be known beforehand is."""
        call()
        with self.work.counting():
            call()
        return replace(self.work)


def memory(number: int) -> MemoryRecord:
    kind = KINDS[number % len(KINDS)]
    at = START - timedelta(minutes=number)
    category = get_category_for_type(kind.value)
    return MemoryRecord(
        id=f"m{number}",
        content=f"note {number} about w{number % 97}",
        memory_type=kind,
        category=category,
        namespace=MemoryNamespaceBuilder().namespace_for(USER, category),
        created_at=at,
        updated_at=at,
        session_id=f"s{number // 20}",
    )


def receipt(number: int) -> Receipt:
    line = ReceiptLine(id="m0", version=1, place=ReceiptPlace.RECALLED, rank=1, score=0.5)
    others = [replace(line, id=f"m{at}", rank=at + 1) for at in range(1, 4)]
    return Receipt(
        id=f"r{number}",
        at=START - timedelta(seconds=number),
        until=START + timedelta(days=30),
        recalled_at=START,
        zone="UTC",
        status="recalled",
        placement="last_user",
        has_profile=False,
        form="memories",
        lines=(line, *others),
        dropped=(),
        tokens=100,
        profile_hash="",
        block_hash="a" * 64,
    )


Two = tuple[Costly, Costly]
Fill = Callable[[Costly, int], object]
Call = Callable[[Costly], object]


@contextmanager
def filled(folder: Path, fill: Fill) -> Generator[Two]:
    """Two stores, with few and with many of what ``fill`` stores."""
    work = TaskHandler()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setattr(sqlite3, "connect", watched_connect(work, sqlite3.connect))
        two = Costly(folder / "few.db", work, opened), Costly(folder / "many.db", work, opened)
        for one, count in zip(two, (FEW, MANY), strict=True):
            fill(one, count)
            one.store.engine.maintenance.close()  # indexes that follow in the background read as well
        yield two


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with filled(tmp_path_factory.mktemp("memories"), Costly.remember) as two:
        yield two


def costs(two: Two, call: Call) -> list[TaskHandler]:
    """What ``call`` costs among few and among many."""
    return [one.cost(lambda one=one: call(one)) for one in two]


PAGES: dict[str, Call] = {
    "the first page": lambda one: one.service.list_memories(USER, limit=50),
    "a page of one type": lambda one: one.service.list_memories(USER, memory_type="facts", limit=50),
    "a page of one category": lambda one: one.service.list_memories(USER, category="episodic", limit=50),
    "the newest items": lambda one: one.store.search((USER,), limit=10),
    "the newest of each type": lambda one: one.service.get_user_context(USER, ["facts", "interaction"]),
    "the newest for a prompt": lambda one: one.service.format_context_for_prompt(USER),
}


@pytest.mark.parametrize("what", PAGES)
def test_a_page_costs_the_same_among_many(memories: Two, what: str):
    """`list_memories(limit=50)` read and parsed every row of the user: 512 ms at 20,000."""
    few, many = costs(memories, PAGES[what])
    assert many.calls <= GROWTH * few.calls
    assert many.statements == few.statements


def test_the_newest_rows_of_several_scopes_are_not_sorted_out_of_all(memories: Two):
    """Over three scopes SQLite sorted every row of the user, each turn: 18 ms of it among 10,000."""
    namespaces = MemoryNamespaceBuilder().read_scopes(USER)
    for kinds in (None, frozenset([MemoryType.WORKFLOW.value])):
        request = PageRequest(namespaces, kinds=kinds, limit=32)
        few, many = costs(memories, lambda one, request=request: one.store.engine.backend.page(request))
        assert many.steps <= GROWTH * few.steps + 1


def test_a_later_page_costs_what_the_first_costs(memories: Two):
    """Pages began at an offset, before which all was read."""
    _, many = memories
    page, _ = many.service.list_memories(USER, limit=50)
    first = many.cost(lambda: many.service.list_memories(USER, limit=50))
    for _ in range(20):
        page, _ = many.service.list_memories(USER, limit=50, after=page.next_cursor)
    later = many.cost(lambda: many.service.list_memories(USER, limit=50, after=page.next_cursor))
    assert later.calls <= GROWTH * first.calls
    assert later.steps <= GROWTH * first.steps + 5


RECEIPTS: dict[str, Call] = {
    "list": lambda one: one.service.list_receipts(USER, limit=50),
    "why": lambda one: one.service.why(USER, "m0"),
}


def test_receipts_cost_the_same_among_many(tmp_path: Path):
    """`list_receipts(limit=50)` and `why` read all receipts: 914 and 805 ms at 5,000."""
    with filled(tmp_path, Costly.note_receipts) as two:
        for what, call in RECEIPTS.items():
            few, many = costs(two, call)
            assert many.calls <= GROWTH * few.calls, what
            assert many.steps <= GROWTH * few.steps + 5, what


def test_what_waits_is_counted_at_once(tmp_path: Path):
    """`queue status` took two statements a partition: 200 ms at 2,000."""

    def fill(one: Costly, count: int) -> None:
        outbox = Outbox(one.store.engine, one.clock)
        for number in range(count // 10):
            put(outbox, said(f"I live in town {number}"), partition=Partition(f"user{number}"))

    with filled(tmp_path, fill) as two:
        few, many = costs(two, lambda one: run(queue.status(one.store.engine, one.clock)))
    assert many.statements == few.statements


def test_a_filtered_search_is_linear(tmp_path: Path):
    """A filter paged by offset, so that each page read all before it: 83 ms at 5,000 items, 1,595 at 20,000."""

    def fill(one: Costly, count: int) -> None:
        one.store.batch([PutOp(("notes",), f"{number}", {"number": number}) for number in range(count)])

    with filled(tmp_path, fill) as two:
        few, many = costs(two, lambda one: one.store.search(("notes",), filter={"number": 3}, limit=10))
    assert many.calls <= GROWTH * few.calls * MANY / FEW
    assert many.steps <= GROWTH * few.steps * MANY / FEW
