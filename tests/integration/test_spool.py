"""Saves while the database is away: kept on this machine, found meanwhile, stored once and in order afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flaky import FlakyBackend
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore
from inference_core.agents.tools import memory_tools
from inference_core.errors import ConfigurationError, InvalidMemory, StoreUnavailable
from inference_core.stores import spool as spool_module
from inference_core.stores.backend import Expiry, Put
from inference_core.stores.engine import StoreEngine
from inference_core.stores.spool import Spool, look_into
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

ANN = ("ann", "semantic")


@pytest.fixture
def backend() -> FlakyBackend:
    return FlakyBackend()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def opened(backend: FlakyBackend, folder: Path) -> Iterator[Callable[[], MemoryStore]]:
    """Opens the store as another process would; the database outlives it."""
    backend.close = lambda: None
    stores: list[MemoryStore] = []

    def open_again() -> MemoryStore:
        for store in stores:
            store.close()
        stores.append(MemoryStore(StoreEngine(backend, spool=folder)))
        return stores[-1]

    yield open_again
    backend.heal()
    for store in stores:
        store.close()


def service_on(store: MemoryStore, **options: Any) -> Any:
    return AgentMemoryStoreService(store, **options).sync


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def drained(store: MemoryStore) -> None:
    queued = store.engine.queued
    assert queued is not None
    until(lambda: not queued.waiting)


def contents(backend: FlakyBackend) -> list[str]:
    """In the order of the writes."""
    return [change.document.text for change in backend.changes(ANN, 0) if change.document]


@pytest.mark.parametrize("fault", ["down", "hang"])
def test_saves_wait_and_are_stored_once_and_in_order(
    opened: Any, backend: FlakyBackend, folder: Path, fault: str
) -> None:
    store = opened()
    before = service_on(store).save_memory("ann", "likes tea")
    service = service_on(store, timeout=0.3)
    backend.fault = fault
    texts = [f"fact number {n}" for n in range(40)]
    ids = [service.save_memory("ann", text) for text in texts]
    assert (before.is_queued, {one.is_queued for one in ids}) == (False, {True})
    backend.heal()
    drained(store)
    assert contents(backend) == ["likes tea", *texts]
    assert [service.get_memory("ann", one).content for one in ids] == texts
    until(lambda: all(not path.stat().st_size for path in folder.iterdir()))
    store.close()
    assert list(folder.iterdir()) == []


def test_what_waits_is_found_by_this_process_and_only_for_its_user(opened: Any, backend: FlakyBackend) -> None:
    service = service_on(opened())
    stored = service.save_memory("ann", "She likes green tea")
    backend.fault = "down"
    queued = service.save_memory("ann", "She likes black coffee", topic="drinks")
    hits = service.recall_memories("ann", "what does she like to drink, tea or coffee?")
    assert [(hit.id, hit.content, hit.is_queued) for hit in hits] == [(queued, "She likes black coffee", True)]
    assert service.get_memory("ann", queued).is_queued
    for ask in (
        lambda: service.recall_memories("bob", "coffee"),
        lambda: service.get_memory("bob", queued),
        lambda: service.get_memory("ann", stored),
        lambda: service.list_memories("ann"),
        lambda: service.count_memories("ann"),
    ):
        with pytest.raises(StoreUnavailable):
            ask()


def test_what_waits_stands_beside_what_is_stored(opened: Any, backend: FlakyBackend) -> None:
    store = opened()
    service = service_on(store)
    first = service.save_memory("ann", "She likes green tea")
    apply = backend.apply
    backend.apply = lambda _: (_ for _ in ()).throw(StoreUnavailable("read only"))  # type: ignore[method-assign]
    second = service.save_memory("ann", "She likes black tea")
    hits = service.recall_memories("ann", "tea")
    assert {hit.id: hit.is_queued for hit in hits} == {first: False, second: True}
    assert len(service.recall_memories("ann", "tea", 1)) == 1
    documents, total = service.list_memories("ann")
    assert ([one.id for one in documents], total) == ([second, first], 2)
    assert service.count_memories("ann")["semantic"] == 2
    assert [one.id for one in service.list_memories("ann", limit=1, offset=1)[0]] == [first]
    backend.apply = apply  # type: ignore[method-assign]
    drained(store)
    assert {hit.id: hit.is_queued for hit in service.recall_memories("ann", "tea")} == {first: False, second: False}


def test_what_waits_survives_the_process(opened: Any, backend: FlakyBackend, folder: Path) -> None:
    service = service_on(opened(), clock=FrozenClock())
    backend.fault = "down"
    ids = [service.save_memory("ann", text, topic="drinks") for text in ("tea", "coffee")]
    (file,) = folder.iterdir()
    assert look_into(folder, "memory://") == (2, [])
    with file.open("ab") as torn:
        torn.write(b'{"put": {"namespace": ["ann"')
    backend.heal()
    store = opened()
    drained(store)
    assert contents(backend) == ["drinks: tea", "drinks: coffee"]
    assert [service_on(store).get_memory("ann", one).created_at for one in ids] == [FrozenClock().now()] * 2


def test_a_file_of_a_living_process_is_left_alone(folder: Path) -> None:
    one = Spool(folder, "memory://")
    one.add([Put(namespace=ANN, key="a", value="{}", updated_at=FrozenClock().now())])
    other, stranger = Spool(folder, "memory://"), Spool(folder, "sqlite:///x")
    assert (len(other), len(stranger)) == (0, 0)
    one.close()
    heir = Spool(folder, "memory://")
    assert (len(heir), len(other), len(stranger)) == (1, 0, 0)
    for spool in (heir, other, stranger):
        spool.close()


def test_an_id_that_was_taken_meanwhile_is_a_conflict_and_loses_nothing(
    opened: Any, backend: FlakyBackend, folder: Path
) -> None:
    store = opened()
    service = service_on(store)
    backend.fault = "down"
    assert service.save_memory("ann", "mine", memory_id="m1").is_queued
    service.save_memory("ann", "next")
    other = FlakyBackend()
    with MemoryStore(StoreEngine(other)) as another:
        service_on(another).save_memory("ann", "theirs", memory_id="m1")
        backend._table = other._table
        backend.heal()
        drained(store)
    assert contents(backend) == ["theirs", "next"]
    for again in (store, opened()):
        (conflict,) = again.engine.queued.conflicts()
        assert conflict.key == (ANN, "m1")
        assert "mine" in conflict.file.read_text()
    assert look_into(folder, "memory://") == (0, [conflict])


def test_a_write_that_was_made_and_not_confirmed_is_stored_once(opened: Any, backend: FlakyBackend) -> None:
    store = opened()
    service = service_on(store)
    apply = backend.apply

    def lost(batches: Any) -> Any:
        apply(batches)
        raise StoreUnavailable("the connection broke")

    backend.apply = lost  # type: ignore[method-assign]
    saved = service.save_memory("ann", "likes tea")
    backend.apply = apply  # type: ignore[method-assign]
    drained(store)
    assert saved.is_queued
    assert (contents(backend), store.engine.queued.conflicts()) == (["likes tea"], [])


@pytest.mark.parametrize("verb", ["update", "delete", "purge"])
def test_a_later_write_goes_before_what_waits(opened: Any, backend: FlakyBackend, verb: str) -> None:
    store = opened()
    service = service_on(store)
    replay = store.engine.queued._replay
    replay.close()
    backend.fault = "down"
    saved = service.save_memory("ann", "likes tea")
    backend.heal()
    if verb == "update":
        assert service.update_memory("ann", saved, "likes coffee")
    elif verb == "delete":
        assert service.delete_memory("ann", saved)
    else:
        assert service.delete_user_memories("ann") == 1
    assert store.engine.queued.waiting == 0
    assert contents(backend) == (["likes coffee"] if verb == "update" else [])
    store = opened()
    drained(store)
    assert contents(backend) == (["likes coffee"] if verb == "update" else [])


def test_a_memory_that_is_deleted_while_it_is_stored_stays_deleted(opened: Any, backend: FlakyBackend) -> None:
    store = opened()
    service = service_on(store)
    backend.fault = "down"
    saved = service.save_memory("ann", "likes tea")
    apply = backend.apply

    def raced(batches: Any) -> Any:
        outcome = apply(batches)
        store.engine.queued._spool.remove([(ANN, saved)])
        return outcome

    backend.apply = raced  # type: ignore[method-assign]
    backend.heal()
    drained(store)
    until(lambda: not contents(backend))


def test_updates_deletes_and_bad_input_do_not_wait(opened: Any, backend: FlakyBackend) -> None:
    store = opened()
    service = service_on(store)
    saved = service.save_memory("ann", "likes tea")
    backend.fault = "down"
    with pytest.raises(StoreUnavailable):
        service.update_memory("ann", saved, "likes coffee")
    with pytest.raises(StoreUnavailable):
        service.delete_memory("ann", saved)
    with pytest.raises(InvalidMemory):
        service.save_memory("ann", " ")
    with pytest.raises(StoreUnavailable):
        store.put(ANN, "k", {"n": 1})
    assert store.engine.queued.waiting == 0


def test_without_a_spool_nothing_waits(backend: FlakyBackend) -> None:
    with MemoryStore(StoreEngine(backend)) as store:
        backend.fault = "down"
        for memory_id in (None, "tea"):
            with pytest.raises(StoreUnavailable, match="the database is down"):
                service_on(store).save_memory("ann", "likes tea", memory_id=memory_id)
        backend.heal()


def test_a_full_or_broken_spool_takes_nothing(
    opened: Any, backend: FlakyBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    service = service_on(store)
    backend.fault = "down"
    assert service.save_memory("ann", "likes tea").is_queued
    monkeypatch.setattr(spool_module, "MAX_BYTES", 10)
    with pytest.raises(StoreUnavailable, match=r"Neither the store nor the spool.*reached 10 bytes"):
        service.save_memory("ann", "likes coffee")
    monkeypatch.undo()

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StoreUnavailable, match="no space left"):
        service.save_memory("ann", "likes cocoa")
    monkeypatch.undo()
    backend.heal()
    drained(store)
    assert contents(backend) == ["likes tea"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Cannot write the spool"):
        StoreEngine(FlakyBackend(), spool=tmp_path / "file")


def test_a_put_comes_back_as_it_was(folder: Path) -> None:
    now = FrozenClock().now()
    put = Put(
        namespace=("u\n", "x"),
        key="\U0001f600",
        value='{"a":1}',
        created_at=now,
        updated_at=now,
        expected=0,
        expiry=Expiry(now, timedelta(minutes=5)),
    )
    spool = Spool(folder, "s")
    spool.add([put])
    spool.close()
    again = Spool(folder, "s")
    assert again.first(5) == [put]
    again.close()


async def test_an_agent_says_queued_and_answers_every_turn(
    opened: Any, backend: FlakyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_tools, "TIMEOUT_S", 0.1)

    def save_then_answer(messages: list[BaseMessage]) -> AIMessage | str:
        if isinstance(messages[-1], HumanMessage):
            return call_tool(
                "save_memory_store", content=f"likes {messages[-1].text.splitlines()[0]}", memory_type="preferences"
            )
        return "answered"

    store = opened()
    model = ScriptedChatModel(turns=[save_then_answer], record=False)
    agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware(recall_timeout=0.1)])
    backend.fault = "down"
    results = [await agent.ainvoke({"messages": [("user", f"tea {n}")]}, context={"user_id": "ann"}) for n in range(50)]
    replies = [one.text for result in results for one in result["messages"] if isinstance(one, ToolMessage)]
    assert {reply.split(",")[0] for reply in replies} == {"✓ Memory queued"}
    assert [result["messages"][-1].text for result in results] == ["answered"] * 50
    assert results[9]["memory_status"] == "lexical"
    assert "only what waits" in results[9]["memory_status_reason"]
    backend.heal()
    await asyncio.to_thread(drained, store)
    assert contents(backend) == [f"likes tea {n}" for n in range(50)]


def put(key: str) -> Put:
    return Put(namespace=ANN, key=key, value="{}", updated_at=FrozenClock().now(), expected=0)


def test_a_torn_line_is_cut_so_that_the_next_heir_can_read_on(folder: Path) -> None:
    first = Spool(folder, "s")
    first.add([put("a"), put("b")])
    (path,) = [one for one in folder.iterdir() if one.stat().st_size]
    first.close()
    with path.open("ab") as torn:
        torn.write(b'{"put": {"names')
    second = Spool(folder, "s")
    assert second.remove([(ANN, "a")])
    second.close()
    third = Spool(folder, "s")
    assert [one.key for one in third.first(5)] == ["b"]
    third.close()


@pytest.mark.parametrize("line", ["{", "[]", '{"put": 5}', '{"put": {"key": 1}}', '{"done": 7}', '"text"'])
def test_a_damaged_file_is_named_and_kept(folder: Path, line: str) -> None:
    spool = Spool(folder, "s")
    spool.add([put("a")])
    (path,) = folder.iterdir()
    spool.close()
    content = f"{line}\n{path.read_text()}"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"{path.name} is damaged"):
        Spool(folder, "s")
    assert path.read_text() == content


def test_a_full_disk_stops_neither_the_replay_nor_later_saves(
    opened: Any, backend: FlakyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    service = service_on(store)
    backend.fault = "down"
    service.save_memory("ann", "likes tea")

    class Full:
        def __getattr__(self, _: str) -> Any:
            raise OSError("no space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(store.engine.queued._spool._own, "_file", Full())
    backend.heal()
    drained(store)
    until(lambda: not service.save_memory("ann", "likes coffee").is_queued)
    assert contents(backend)[0] == "likes tea"
    monkeypatch.undo()


def test_writes_without_anything_waiting_do_not_touch_the_spool(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    touched: list[str] = []
    monkeypatch.setattr(store.engine.queued._spool._own, "empty", lambda: touched.append("empty"))
    service_on(store).save_memory("ann", "likes tea")
    assert touched == []
