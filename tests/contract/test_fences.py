"""Nothing that began before an erasure lands after it, whatever the clocks say, and who comes back is remembered."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from _pytest.mark import ParameterSet
from databases import KINDS, database
from erasing_support import ADA, BOB, CANARY, left_of, pipeline_on
from outbox_support import said, word_for_word

from inference_core import AgentMemoryStoreService, open_store
from inference_core.clock import SystemClock
from inference_core.effects import Effect, Operation, run
from inference_core.errors import UserErased
from inference_core.ingestion.verbatim import hand_over, ingest
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.lifecycle.repairs import replay
from inference_core.memory.namespaces import encode_label
from inference_core.outbox.messages import Transcript
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Put
from inference_core.stores.rules import erasure_epoch as fence
from inference_core.stores.rules.erasure_epoch import Fences
from inference_core.stores.store import MemoryStore
from inference_core.transfer import json_lines, migrate
from inference_core.transfer.json_lines import export_store, import_store
from inference_core.transfer.legacy import LegacyItem
from inference_core.transfer.migrate import import_items

YEAR_S = 365 * 86_400.0
STEPS = {"30 s": -30.0, "90 s": -90.0, "a year": -YEAR_S}
"""How far clocks are set back while something waits."""


@dataclass
class Clocks:
    """The wall clocks of all machines, which may be set."""

    by: float = 0.0
    real: Callable[[], float] = field(default=time.time)

    def now(self) -> float:
        return self.real() + self.by

    def utc(self, *_: object) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.by)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(time, "time", found.now)
    monkeypatch.setattr(SystemClock, "now", found.utc)
    return found


@dataclass
class Two:
    """Two processes with the same database, as far as fences go: ``writer`` writes and ``eraser`` erases."""

    writer: MemoryStore
    eraser: MemoryStore
    ledger: Ledger
    clocks: Clocks

    def erase(self, by: float) -> None:
        """Sets the clocks by so many seconds, erases Ada, and finds nothing of her."""
        self.clocks.by = by
        assert erase([self.eraser.engine.backend], ADA, self.ledger).left == 0
        assert left_of(self.eraser.engine.backend, CANARY) == []


@contextmanager
def two_on(kind: str, folder: Path, clocks: Clocks, *, is_first: bool) -> Generator[Two]:
    """Two processes that know Ada and Bob. ``is_first``: nobody was ever erased from this database."""
    with ExitStack() as opened:
        url = opened.enter_context(database(kind, folder))
        writer = opened.enter_context(open_store(url, embeddings=None))
        eraser = writer if kind == "memory" else opened.enter_context(open_store(url, embeddings=None))
        two = Two(writer, eraser, Ledger(folder / "ledger" / "erasures.jsonl"), clocks)
        writer.memory(ADA).add(CANARY)
        writer.memory(BOB).add("likes tea")
        if not is_first:
            two.erase(0.0)
            writer.memory(ADA).search("x")  # so that this process knows of the erasure
        yield two


def put_of(text: str, user: str = ADA) -> Put:
    place = (encode_label(user), "semantic")
    value, now = f'{{"content": "{text}"}}', datetime.now(UTC)
    return Put(namespace=place, key="late", value=value, document=Document.of(text), updated_at=now)


def stopped_before_its_write(operation: Operation[Any]) -> Iterator[None]:
    """Drives ``operation`` until its write would be handed over, stops once, and then drives it to its end."""
    seen: list[Effect[Any]] = []

    async def watched() -> Any:
        step = partial(operation.send, None)
        while True:
            try:
                effect = step()
            except StopIteration as stop:
                return stop.value
            seen.append(effect)
            try:
                step = partial(operation.send, await effect)
            except BaseException as error:  # noqa: BLE001 - belongs to the operation
                step = partial(operation.throw, error)

    driven = watched()
    effect = driven.send(None)
    while "hand_over" not in getattr(effect.start, "__qualname__", ""):
        effect = driven.send(run(one(effect)))
    yield None
    try:
        answer = run(one(effect))
    except BaseException as error:  # noqa: BLE001 - belongs to the operation
        effect = driven.throw(error)
    else:
        effect = driven.send(answer)
    run(rest(driven, effect))
    pytest.fail("it was written")


async def one(effect: Effect[Any]) -> Any:
    return await effect


async def rest(operation: Operation[Any], effect: Effect[Any]) -> Any:
    while True:
        try:
            answer = await effect
        except BaseException as error:  # noqa: BLE001 - belongs to the operation
            effect = operation.throw(error)
        else:
            try:
                effect = operation.send(answer)
            except StopIteration as stop:
                return stop.value


def a_save(two: Two) -> Iterator[None]:
    """It has its vector, and waits for the writer."""
    yield from stopped_before_its_write(two.writer.engine.write([put_of(CANARY)]))


def a_save_of_the_service(two: Two) -> Iterator[None]:
    from inference_core.services.operations.save import save

    scope = AgentMemoryStoreService(two.writer, timeout=None).scope
    yield from stopped_before_its_write(save(scope, ADA, CANARY, memory_id="late"))


def a_message(two: Two) -> Iterator[None]:
    """On its way into the outbox."""
    outbox = Outbox(two.writer.engine, SystemClock())
    yield from stopped_before_its_write(outbox.put(Partition(ADA), [said(CANARY)]))


def a_note(two: Two) -> Iterator[None]:
    """Deferred: of Ada and of Bob, whose note is not lost."""
    two.writer.engine.later.put(put_of(CANARY), put_of("of Bob", BOB))
    yield None
    two.writer.engine.later.flush()
    assert [row.key for row in left_of(two.writer.engine.backend, "of Bob")] == ["late"]


def a_worker(two: Two) -> Iterator[None]:
    """It asks a model about a message of an outbox in another database."""
    with open_store("memory://", embeddings=None) as other:
        erasing = iter((None,))

        def asked(messages: Any, offered: Any) -> Any:
            for _ in erasing:
                two.erase(two.clocks.by)
            return word_for_word(messages, offered)

        worker = pipeline_on(two.writer, other, asked)
        run(worker.outbox.put(Partition(ADA), [said(CANARY)]))
        yield None
        run(worker.process(Partition(ADA)))


def an_import(two: Two, folder: Path) -> Iterator[None]:
    """Of a file whose first row is Bob's."""
    path = folder / "export.jsonl"
    with open_store("memory://", embeddings=None) as other:
        other.memory("bob").add("likes coffee")
        other.memory(ADA).add(CANARY)
        export_store(other.engine.backend, path)
    done: list[int] = []

    def progress(count: int, _: int) -> None:
        if not done:
            two.erase(two.clocks.by)
        done.append(count)

    yield None
    import_store(path, two.writer.engine.backend, progress=progress)
    pytest.fail("it was written")


def a_migration(two: Two) -> Iterator[None]:
    runs = iter(("counts", "writes"))

    def items() -> Iterator[LegacyItem]:
        run = next(runs)
        yield LegacyItem(user_id=BOB, key="b", value={"content": "likes coffee"})
        if run == "writes":
            two.erase(two.clocks.by)
        yield LegacyItem(user_id=ADA, key="a", value={"content": CANARY})

    yield None
    assert import_items(two.writer, items).failed
    raise UserErased


def of_a_transcript(function: Any, two: Two) -> Iterator[None]:
    """The next messages of a conversation that is being read."""
    scope = AgentMemoryStoreService(two.writer, timeout=None).scope
    messages = [said("hello"), said(CANARY)]
    reports = function(scope, ADA, Transcript(iter(messages), total=2))
    next(reports)
    yield None
    list(reports)
    pytest.fail("it was written")


WAITING: dict[str, Callable[..., Iterator[None]]] = {
    "save": a_save,
    "save_memory": a_save_of_the_service,
    "message": a_message,
    "note": a_note,
    "worker": a_worker,
    "import": an_import,
    "migration": a_migration,
    "ingest": partial(of_a_transcript, ingest),
    "hand over": partial(of_a_transcript, hand_over),
}
"""What is under way when Ada is erased."""


def combined() -> Iterator[ParameterSet]:
    """All stores, all that waits, all steps; the short run has each step, and one of what waits on each store."""
    steps = cycle(STEPS)
    for kind, what in product(KINDS, WAITING):
        chosen = next(steps) if kind == "sqlite" or what == "save" else None
        for step in STEPS:
            yield pytest.param(kind, what, step, marks=[] if step == chosen else pytest.mark.full)


@pytest.mark.parametrize(("kind", "what", "step"), list(combined()))
def test_nothing_lands_behind_an_erasure_with_a_clock_set_back(
    kind: str, what: str, step: str, tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which came first was told by wall clocks: set back by 30 s, or by 90 s on a server, the text was there again."""
    for module, name in ((json_lines, "PORTION"), (migrate, "BATCH")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr("inference_core.ingestion.verbatim._MESSAGES_AT_ONCE", 1)
    monkeypatch.setattr("inference_core.ingestion.verbatim._HANDED_OVER_AT_ONCE", 1)
    by = STEPS[step]
    with two_on(kind, tmp_path, clocks, is_first=by == -30.0) as two:
        given = {"folder": tmp_path} if what == "import" else {}
        under_way = WAITING[what](two, **given)
        next(under_way)
        clocks.by = by
        if what not in ("worker", "import", "migration"):  # these erase in their midst
            two.erase(by)
        try:
            list(under_way)
        except UserErased:
            pass
        else:
            assert what in ("note", "worker"), "it is told that nothing was written"
        assert left_of(two.eraser.engine.backend, CANARY) == []
        two.writer.memory(BOB).add("likes zebras")


@pytest.mark.parametrize(
    "is_first", [True, pytest.param(False, marks=pytest.mark.full)], ids=["the first erasure", "a later one"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_who_comes_back_is_remembered_though_the_clock_jumped(
    kind: str, tmp_path: Path, clocks: Clocks, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an erasure with a clock a year ahead, the first write of each other process was refused for a year."""
    monkeypatch.setattr(fence, "_MOMENT_S", 3_600.0)  # however busy this machine is, a look at the fence is in time
    monkeypatch.setattr(Fences, "is_fresh", Mock(return_value=False))
    with two_on(kind, tmp_path, clocks, is_first=is_first) as two:
        two.erase(YEAR_S)
        clocks.by = 0.0
        two.writer.put((encode_label(ADA), "notes"), "k", {"text": "a note"})
        two.erase(YEAR_S)
        clocks.by = 0.0
        two.writer.memory(ADA).add("back again")
        assert [one.content for one in two.writer.memory(ADA).all()] == ["back again"]


@pytest.mark.parametrize("by", [YEAR_S, -YEAR_S], ids=["ahead", "set back"])
def test_a_replay_tells_by_no_clock_what_a_store_knows(by: float, tmp_path: Path, clocks: Clocks) -> None:
    """A backup of between two erasures is erased again though the first was a year ahead; who came back stays."""
    path, kept, ledger = tmp_path / "memory.db", tmp_path / "kept.db", Ledger(tmp_path / "erasures.jsonl")
    clocks.by = by
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        assert erase([store.engine.backend], ADA, ledger).left == 0
    clocks.by = 0.0
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        store.memory(ADA).add(CANARY)
    shutil.copy(path, kept)
    clocks.by = -by
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        assert erase([store.engine.backend], ADA, ledger, threads=[Stepping(clocks)]).left == 0
        store.memory(ADA).add("back again")
        assert replay([store.engine.backend], ledger) == []
        assert len(store.memory(ADA).all()) == 1
    with open_store(f"sqlite:///{kept}", embeddings=None) as store:
        assert [receipt.left for receipt in replay([store.engine.backend], ledger)] == [0]
        assert left_of(store.engine.backend, CANARY) == []


class Stepping:
    """A place of no conversations, in the midst of whose erasure the clock is set back by a day."""

    name = "stepping"

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def there(self) -> dict[str, float]:
        self._clocks.by -= 86_400.0
        return {}

    def erase(self, threads: object) -> list[str]:
        del threads
        return []

    def files(self) -> list[Path]:
        return []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_writes_in_a_row_read_no_fence(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that has just been stored shows what the fence is; one more read for each would be a trip to a server."""
    with database(kind, tmp_path) as url, open_store(url, embeddings=None) as store:
        fences = store.engine.fences
        monkeypatch.setattr(fence, "_MOMENT_S", 3_600.0)
        store.memory(ADA).add("first")
        begun = Mock(side_effect=fences.begun)
        monkeypatch.setattr(fences, "begun", begun)
        for at in range(5):
            store.memory(ADA).add(f"text {at}")
        assert not begun.called
