"""Receipts: what each call of a model was told, and why; kept under the user, without a word of the memories."""

from __future__ import annotations

import json
import math
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from agent_support import FACES, ask, blocks, make_agent, memory_lines, patient_memory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langsmith import RunTree
from langsmith.run_helpers import tracing_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext
from support import HashingEmbeddings
from test_profile import profiles

from inference_core import AgentMemoryStoreService, ContextEngineer, MemoryMiddleware, MemorySource, open_store
from inference_core.agents.middleware.calls import annotate
from inference_core.cli import main
from inference_core.context.items import AssembledContext
from inference_core.context.render import xml
from inference_core.effects import run
from inference_core.errors import ConfigurationError, InvalidInput
from inference_core.memory.receipt import Receipt, ReceiptDrop, ReceiptLine, ReceiptPlace, text_hash
from inference_core.memory.trust import Origin
from inference_core.services.agent_memory_service import purge_user_memories
from inference_core.services.operations.receipts import keep_receipt
from inference_core.stores import maintenance
from inference_core.stores.backend import Expiry, Put
from inference_core.stores.maintenance import MOST_DEFERRED, DeferredWriter
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

U = "ada"
THREAD = {"configurable": {"thread_id": "t-1"}}
SECRET = "zanzibar"
WAYS: dict[str, dict[str, Any]] = {
    "default": {"placement": "last_user", "profile": True},
    "system alone": {},
    "profile and system": {"profile": True},
}
SAID = (
    ("instructions", f"Never book flights to {SECRET}"),
    ("preferences", "Prefers bullet points"),
    ("facts", "Keeps falcons in the barn"),
    ("facts", "Keeps the falcons in the barn"),
    ("context", "Is in the barn today"),
    ("skill", "Falcons come back for meat"),
)


def remembered(store: BaseStore, clock: FrozenClock | None = None) -> AgentMemoryStoreService:
    service = AgentMemoryStoreService(store, clock=clock)
    source = MemorySource(origin=Origin.USER, thread_id="t-0", message_ids=("m-7",))
    for kind, content in SAID:
        service.sync.save_memory(U, content, kind, source=source)
    return service


def conversation(service: AgentMemoryStoreService, **options: Any) -> tuple[Any, ScriptedChatModel]:
    model = ScriptedChatModel(turns=[call_tool("list_memories_store"), "Noted.", "Indeed."])
    tools = ["list_memories_store"]
    middleware = patient_memory(service, user_id=U, include_tools=tools, **options)
    return make_agent(model, middleware=[middleware], checkpointer=InMemorySaver()), model


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime.now(UTC))  # the stores expire their rows by the clock of the machine


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_receipt_explains_every_line_of_every_block(any_store: BaseStore, way: str, face: str) -> None:
    service = remembered(any_store)
    agent, model = conversation(service, **WAYS[way])
    await ask(agent, face, "Where do I keep falcons?", THREAD)
    service.sync.save_memory(U, "Prefers tables", "preferences")
    await ask(agent, face, "And what is in the barn?", THREAD)
    receipts = service.sync.list_receipts(U, thread_id="t-1")[::-1]
    assert len(receipts) == len(model.requests) == 3
    for request, receipt in zip(model.requests, receipts, strict=True):
        told = [*profiles(request), *blocks(request)]
        lines = [line for text in told for line in memory_lines(text)]
        explained: list[str] = []
        for line in receipt.lines:
            memory = service.sync.get_memory(U, line.id)
            assert memory is not None
            kind = f" (type: {memory.value['memory_type']})" if receipt.form == "xml" else ""
            explained.append(f" {memory.content}{kind}")
        assert len(lines) == len(explained)
        assert all(any(text in line for line in lines) for text in explained)
        assert all(any(text in line for text in explained) for line in lines)
        rebuilt = service.sync.rebuild_receipt(U, receipt)
        assert (rebuilt.is_same, rebuilt.gone) == (True, [])
        assert [one for one in (rebuilt.profile, rebuilt.block) if one] == told
        assert SECRET not in repr(receipt)


def test_scores_and_what_was_dropped(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=HashingEmbeddings()) as store:
        service = remembered(store, clock)
        agent, _ = conversation(service, profile=True)
        agent.invoke({"messages": [("user", "Where do I keep falcons?")]}, THREAD)
        receipt = service.sync.list_receipts(U)[-1]
    ((found, *_),) = [receipt.of(ReceiptPlace.RECALLED)]
    assert (found.rank, receipt.thread_id, receipt.model, receipt.status) == (1, "t-1", "ScriptedChatModel", "recalled")
    assert found.score
    assert found.relevance
    assert sum(found.signals.values()) == pytest.approx(found.score, abs=0.01)
    assert "duplicate" in {drop.reason.split()[0] for drop in receipt.dropped}
    assert receipt.tokens > 100
    assert receipt.until - receipt.at == timedelta(days=30)


def test_it_says_what_is_gone(own_store: BaseStore) -> None:
    service = remembered(own_store)
    agent, _ = conversation(service, profile=True)
    agent.invoke({"messages": [("user", "Where do I keep falcons?")]}, THREAD)
    receipt = service.sync.list_receipts(U)[0]
    deleted, changed = receipt.of(ReceiptPlace.RECALLED)[0].id, receipt.of(ReceiptPlace.PROFILE)[0].id
    service.sync.delete_memory(U, deleted)
    service.sync.update_memory(U, changed, "Always book flights")
    rebuilt = service.sync.rebuild_receipt(U, receipt)
    assert (rebuilt.is_same, set(rebuilt.gone)) == (False, {deleted, changed})
    why = service.sync.why(U, deleted)
    assert why.memory is None
    assert receipt.id in [one.id for one in why.receipts]


def as_own(context: AssembledContext, now: datetime, zone: tzinfo, preamble: bool) -> str:
    return xml(context, now, zone, preamble)


def test_a_block_of_an_engineers_own_form_is_explained_and_not_rebuilt(own_store: BaseStore) -> None:
    service = remembered(own_store)
    agent, model = conversation(service, profile=True, engineer=ContextEngineer(form=as_own))
    agent.invoke({"messages": [("user", "Where do I keep falcons?")]}, THREAD)
    receipt = service.sync.list_receipts(U)[-1]
    (told,) = blocks(model.requests[0])
    assert len(memory_lines(told)) == len(receipt.of(ReceiptPlace.RECALLED))
    assert "duplicate" in {drop.reason.split()[0] for drop in receipt.dropped}
    rebuilt = service.sync.rebuild_receipt(U, receipt)
    assert (rebuilt.is_same, rebuilt.problem) == (False, "A block of the form 'own' cannot be rebuilt")


def test_they_are_the_users_and_go_with_them(any_store: BaseStore) -> None:
    service = remembered(any_store)
    agent, _ = conversation(service)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    before = service.sync.count_memories(U)["total"]
    assert len(service.sync.list_receipts(U)) == 2
    assert service.sync.list_receipts(U, thread_id="other") == service.sync.list_receipts("bob") == []
    assert service.sync.count_memories(U)["total"] == before == len(SAID)
    assert len(service.sync.recall_memories(U, "ada t-1 recalled falcons", 50)) <= len(SAID)
    assert purge_user_memories(any_store, U) == len(SAID) + 2
    assert service.sync.list_receipts(U) == []
    with pytest.raises(InvalidInput):
        service.sync.list_receipts(U, limit=-1)


def test_their_time_ends(any_store: BaseStore, clock: FrozenClock) -> None:
    service = remembered(any_store, clock)
    agent, _ = conversation(service, receipt_days=7)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    assert len(service.sync.list_receipts(U)) == 2
    clock.advance(timedelta(days=7))
    for _ in range(2):
        assert service.sync.list_receipts(U) == []


def test_none_are_kept_if_nobody_wants_them(own_store: BaseStore) -> None:
    service = remembered(own_store)
    agent, _ = conversation(service, receipts=False)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    assert service.sync.list_receipts(U) == []
    for days in (0, 1e7, math.inf):  # a receipt that is to be kept past the end of the calendar could not be written
        with pytest.raises(ConfigurationError):
            MemoryMiddleware(receipt_days=days)


def test_closing_the_store_writes_what_waits(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(sqlite_url, embeddings=None) as store:
        service = remembered(store)
        agent, _ = conversation(service)
        agent.invoke({"messages": [("user", "Where do I keep falcons?")]}, THREAD)
    with open_store(sqlite_url, embeddings=None) as store:
        receipts = AgentMemoryStoreService(store).sync.list_receipts(U)
        memory_id = receipts[0].lines[0].id
        run(store.engine.write([replace(put_of_nothing(store), namespace=(U, "~receipts"))]))
        assert len(AgentMemoryStoreService(store).sync.list_receipts(U)) == len(receipts) == 2
    assert main(["why", memory_id, "--user", U, "--url", sqlite_url, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["memory"]["source"] == {"origin": "user", "thread_id": "t-0", "message_ids": ["m-7"]}
    assert [one["thread_id"] for one in said["told"]] == ["t-1", "t-1"]
    assert said["told"][0]["line"]["rank"] == 1
    assert main(["why", memory_id, "--user", U, "--url", sqlite_url]) == 0
    printed = capsys.readouterr().out
    assert "m-7" in printed
    assert printed.count("thread t-1") == 2
    assert main(["why", "nothing", "--user", U, "--url", sqlite_url]) == 3


def put_of_nothing(store: Any) -> Any:
    """A row that is no receipt, as a later version might write it."""

    del store
    return Put(namespace=(U,), key="later", value='{"version": 9}', updated_at=datetime.now(UTC))


def test_what_cannot_be_written_is_lost_and_said(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store("memory://", embeddings=None)
    later = store.engine.later
    with closing(store):
        store.engine._writer.close()
        later.put(put_of_nothing(store))
        later.flush()
        assert "Dropped 1 deferred writes (access counts, receipts)" in caplog.text


def test_the_log_says_why_notes_were_not_written_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: nothing stood behind the colon when the database did not answer."""
    monkeypatch.setattr(maintenance, "_TIMEOUT_S", 0.001)
    with open_store("memory://", embeddings=None) as store:
        monkeypatch.setattr(store.engine._writer, "submit", Mock(return_value=Future[list[int]]()))
        store.engine.later.put(put_of_nothing(store))
        store.engine.later.flush()
        assert "Dropped 1 deferred writes (access counts, receipts): not written within 0.001 s" in caplog.text
        monkeypatch.undo()


def test_a_receipt_that_cannot_be_made_is_lost_and_said_and_the_others_are_kept(
    own_store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Receipts are made in the background, just before they are written."""
    service = remembered(own_store)
    agent, _ = conversation(service)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    (first, *_) = receipts = service.sync.list_receipts(U)
    for thread in ("t", "\ud800", "u"):
        keep_receipt(service.scope, U, partial(replace, first, id=thread, thread_id=thread))
    assert {one.id for one in service.sync.list_receipts(U)} == {"t", "u", *(one.id for one in receipts)}
    assert "Dropped a deferred write (access counts, receipts): " in caplog.text


def test_only_so_many_wait() -> None:
    with open_store("memory://", embeddings=None) as store:
        woken: list[int] = []
        later = DeferredWriter(store.engine._writer, lambda: woken.append(1), store.engine.fences)
        for _ in range(MOST_DEFERRED + 5):
            later.put(put_of_nothing(store))
        assert len(later._waiting) == MOST_DEFERRED
        assert len(woken) == MOST_DEFERRED + 5
        later.flush()
        assert not later._waiting


def test_flushes_of_two_threads_take_each_write_once() -> None:
    """Counting what waits and taking it were two steps that two threads could mix up: one of them ended."""
    with open_store("memory://", embeddings=None) as store:
        later = DeferredWriter(store.engine._writer, lambda: None, store.engine.fences)
        with ThreadPoolExecutor(8) as pool:
            for _ in range(200):
                later.put(put_of_nothing(store))
                for done in [pool.submit(later.flush) for _ in range(4)]:
                    done.result()
        assert [row.version for row in store.engine.backend.get([((U,), "later")]) if row] == [200]


def test_what_waits_is_written_when_the_store_is_closed(sqlite_url: str) -> None:
    with open_store(sqlite_url, embeddings=None) as store:
        store.engine.later.put(put_of_nothing(store))
    with open_store(sqlite_url, embeddings=None) as store:
        assert store.engine.backend.get([((U,), "later")]) != [None]


class Span(NonRecordingSpan):
    """A span that notes its attributes."""

    def __init__(self) -> None:
        super().__init__(SpanContext(1, 1, is_remote=False))
        self.seen: dict[str, Any] = {}

    def is_recording(self) -> bool:
        return True

    def set_attributes(self, attributes: Any) -> None:
        self.seen.update(attributes)


def test_traces_say_which_and_not_what(own_store: BaseStore) -> None:
    service = remembered(own_store)
    agent, _ = conversation(service)
    span, tree = Span(), RunTree(name="turn")
    with trace.use_span(span):
        agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    receipt = service.sync.list_receipts(U)[0]
    with tracing_context(parent=tree, enabled="local"):
        annotate(lambda: receipt)
    name = "inference_core.memory."
    assert span.seen[f"{name}block_hash"] == tree.metadata[f"{name}block_hash"] == receipt.block_hash
    assert receipt.lines[0].id in span.seen[f"{name}ids"]
    assert SECRET not in repr(span.seen) + repr(tree.metadata)


def test_a_note_never_breaks_a_run(own_store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("inference_core.agents.middleware.calls.keep_receipt", failing)
    agent, model = conversation(remembered(own_store))
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    assert len(model.requests) == 2


def test_a_receipt_is_json_and_back(own_store: BaseStore) -> None:
    service = remembered(own_store)
    agent, _ = conversation(service)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    receipt = service.sync.list_receipts(U)[0]
    again = Receipt.from_value(json.loads(json.dumps(receipt.to_value())))
    assert again == receipt
    keep_receipt(service.scope, U, lambda: replace(receipt, id="again"))
    assert "again" in [one.id for one in service.sync.list_receipts(U, limit=None)]
    assert text_hash("") == ""


def kept(service: AgentMemoryStoreService, number: int, thread: str | None, ids: list[str], **more: Any) -> Receipt:
    at = datetime.now(UTC) - timedelta(minutes=60 - number)
    lines = tuple(
        ReceiptLine(
            id=name,
            version=1,
            place=ReceiptPlace.RECALLED,
            rank=rank,
            score=1.23456,
            relevance=0.5,
            signals={"lexical": 0.25, "dense": 0.0},
        )
        for rank, name in enumerate(ids, 1)
    )
    receipt = Receipt(
        id=f"r{number}",
        at=at,
        until=at + timedelta(days=30),
        recalled_at=at,
        zone="UTC",
        status="recalled",
        placement="last_user",
        has_profile=True,
        form="memories",
        lines=(ReceiptLine(id="p", version=2, place=ReceiptPlace.PROFILE, rank=1), *lines),
        dropped=(ReceiptDrop(id="d", version=1, reason="profile", by="p"),),
        tokens=7,
        profile_hash="",
        block_hash="b",
        thread_id=thread,
        **more,
    )
    keep_receipt(service.scope, U, partial(replace, receipt))
    return receipt


def test_receipts_by_pages(any_store: BaseStore):
    """Regression: a page of receipts, and why, read and parsed all that were kept."""
    service = AgentMemoryStoreService(any_store)
    for number in range(12):
        kept(service, number, f"t-{number % 2}" if number % 3 else None, ["m1"] if number % 4 else ["m2"])
    wanted = [f"r{number}" for number in reversed(range(12))]
    for thread in (None, "t-0", "t-1", "t-9"):
        found: list[str] = []
        after: str | None = None
        while True:
            page = service.sync.list_receipts(U, thread_id=thread, limit=2, after=after)
            found += [one.id for one in page]
            after = page.next_cursor
            if after is None:
                break
        assert found == [one.id for one in service.sync.list_receipts(U, thread_id=thread, limit=None)]
        assert found == [
            name for name in wanted if thread is None or (int(name[1:]) % 3 and thread == f"t-{int(name[1:]) % 2}")
        ]
    told = service.sync.why(U, "m2", limit=2).receipts
    assert [one.id for one in told] == ["r8", "r4"]
    rest = service.sync.why(U, "m2", limit=2, after=told.next_cursor).receipts
    assert ([one.id for one in rest], rest.next_cursor) == (["r0"], None)


def test_a_receipt_is_small_and_comes_back(any_store: BaseStore):
    service = AgentMemoryStoreService(any_store)
    receipt = kept(service, 1, "t", [f"{number:032x}" for number in range(15)], model="m", agent_name="planner")
    (found,) = service.sync.list_receipts(U)
    assert replace(found, lines=()) == replace(receipt, lines=())
    assert [(line.id, line.version, line.place, line.rank) for line in found.lines] == [
        (line.id, line.version, line.place, line.rank) for line in receipt.lines
    ]
    assert (found.lines[1].score, found.lines[1].relevance, found.lines[1].signals) == (1.235, 0.5, {"lexical": 0.25})
    assert len(json.dumps(receipt.to_value())) < 100 * len(receipt.lines)


def test_receipts_of_older_versions_are_read(any_store: BaseStore):
    service = AgentMemoryStoreService(any_store)
    receipt = kept(service, 1, "t", ["m1"])
    lines = [{name: one for name, one in asdict(line).items() if one not in (None, {})} for line in receipt.lines]
    older = {name: value for name, value in receipt.to_value().items() if name not in ("told", "signals")}
    put = Put(
        namespace=("ada", "~receipts"),
        key="r0",
        value=json.dumps(older | {"id": "r0", "lines": lines, "profile_hash": ""}),
        kind="receipt",
        created_at=receipt.at,
        updated_at=receipt.at,
        expiry=Expiry(receipt.until, timedelta(days=30)),
    )
    run(service.scope.engine.write([put]))
    assert {one.id: one.lines[1].score for one in service.sync.list_receipts(U, thread_id="t")} == {
        "r0": 1.23456,
        "r1": 1.235,
    }
    assert len(service.sync.why(U, "m1").receipts) == len(service.sync.why(U, "p").receipts) == 2
