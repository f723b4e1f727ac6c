"""Every way into memory obeys `AGENT_MEMORY_CONFIRM`: a setting that one path does not know protects nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.store.memory import InMemoryStore
from outbox_support import pipeline_on, put, said, step, undone
from periodic_support import DAY, QUIET, Life, citing_all, insight, summarizer

from inference_core import (
    AgentMemory,
    AgentMemoryStoreService,
    ExtractiveMemory,
    FlushToLongTerm,
    MemoryContext,
    MemoryMiddleware,
    MemorySource,
    MemoryStore,
    Origin,
    VectorMemory,
    get_memory_tools,
    migrate_memories,
    open_store,
)
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded
from inference_core.ingestion.verbatim import NOT_OFFERED, ingest
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.outbox.messages import Action, Candidate, ConversationMessage, Extraction, Role, Transcript
from inference_core.short_term.blocks.memory import UserSession
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool
from inference_core.transfer.migrate import import_items
from inference_core.transfer.sources import mem0_items

TEXT = "Ada climbs whenever she can"
BY_USER = MemorySource(origin=Origin.USER)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def store(clock: FrozenClock) -> Iterator[MemoryStore]:
    with open_store("memory://", embeddings=None, clock=clock) as found:
        yield found


def strict(store: MemoryStore, clock: FrozenClock) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(store, clock=clock, timeout=None, confirm=MEMORY_CATEGORIES)


def by_service(store: MemoryStore, clock: FrozenClock) -> None:
    with pytest.raises(ConfirmationNeeded):
        strict(store, clock).sync.save_memory("ada", TEXT, source=MemorySource(origin=Origin.AGENT))


def by_tool(store: MemoryStore, clock: FrozenClock) -> None:
    tools = {one.name: one for one in get_memory_tools(strict(store, clock), user_id="ada")}
    assert "It waits until the user confirms it" in tools["save_memory_store"].invoke({"content": TEXT})


def by_update_tool(store: MemoryStore, clock: FrozenClock) -> None:
    tools = {one.name: one for one in get_memory_tools(strict(store, clock), user_id="ada")}
    assert "It waits" in tools["update_memory_store"].invoke({"memory_id": "m1", "content": TEXT})


def by_middleware(store: MemoryStore, clock: FrozenClock) -> None:
    memory: Any = MemoryMiddleware(confirm=MEMORY_CATEGORIES, clock=clock)
    turns = [call_tool("save_memory_store", content=TEXT, memory_type="context"), "done"]
    agent: Any = create_agent(
        ScriptedChatModel(turns=turns), store=store, middleware=[memory], context_schema=MemoryContext
    )
    agent.invoke({"messages": [("user", TEXT)]}, context={"user_id": "ada"})


def by_extraction(store: MemoryStore, clock: FrozenClock, **options: Any) -> None:
    def answer(*_: object) -> Extraction:
        return Extraction([Candidate(content=TEXT, **options)])

    pipeline = pipeline_on(store, answer, clock)
    pipeline.scope = strict(store, clock).scope
    put(pipeline.outbox, said(TEXT))
    step(pipeline)


def by_supersession(store: MemoryStore, clock: FrozenClock) -> None:
    by_extraction(store, clock, action=Action.SUPERSEDE, target="m1")


def by_summary(store: MemoryStore, clock: FrozenClock) -> None:
    life = Life(store, clock, summarizer=summarizer(citing_all(TEXT)))
    life.pipeline.scope = strict(store, clock).scope
    life.says("hello")
    life.works(QUIET)


def by_insight(store: MemoryStore, clock: FrozenClock) -> None:
    life = Life(store, clock, insights=[insight(TEXT)])
    life.pipeline.scope = strict(store, clock).scope
    life.says("hello")
    life.works(DAY)


def by_block(store: MemoryStore, clock: FrozenClock) -> None:
    answer = call_tool("ExtractedFacts", facts=[{"content": TEXT}, {"content": f"{TEXT}."}])
    block = ExtractiveMemory(ScriptedChatModel(turns=[answer]), store, user_id="ada")
    run(block.absorb(strict(store, clock).scope, UserSession("ada", "s"), [HumanMessage(TEXT)]))


def by_transcript(store: MemoryStore, clock: FrozenClock) -> None:
    """Cause: word for word, what an assistant had said became episodic memory, whatever was to be confirmed."""
    messages = [ConversationMessage(session_id="s", role=Role.ASSISTANT, text=TEXT, id=str(at)) for at in range(2)]
    for report in ingest(strict(store, clock).scope, "ada", Transcript(messages, 2)):
        assert (report.written, report.waiting) in ((0, 2), (0, 1))
    (again,) = list(ingest(strict(store, clock).scope, "ada", Transcript(messages, 2)))[-1:]
    assert again.already_there == 2


def by_passages(store: MemoryStore, clock: FrozenClock) -> None:
    block = VectorMemory(store, user_id="ada")
    run(block.absorb(strict(store, clock).scope, UserSession("ada", "s"), [AIMessage(TEXT, id="1")]))


def by_vector_store(store: MemoryStore, clock: FrozenClock) -> None:
    vectors = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    block = VectorMemory(store, user_id="ada", vector_store=vectors)
    run(block.absorb(strict(store, clock).scope, UserSession("ada", "s"), [AIMessage(TEXT, id="1")]))
    assert vectors.store == {}


def by_flush(store: MemoryStore, clock: FrozenClock) -> None:
    answer = call_tool("ExtractedFacts", facts=[{"content": TEXT}])
    service = strict(store, clock)
    block = ExtractiveMemory(ScriptedChatModel(turns=[answer]), service, user_id="ada")
    memory = AgentMemory(service, overflow=FlushToLongTerm([block]), max_tokens=1, user_id="ada")
    memory.update("s", ("user", "word " * 50))
    memory.update("s", ("user", "more"))


def by_migration(store: MemoryStore, clock: FrozenClock) -> None:
    del clock
    source = InMemoryStore()
    source.put(("memories", "ada"), "k", {"content": TEXT})
    assert migrate_memories(store, source=source, confirm=MEMORY_CATEGORIES).waiting == 1


def by_import(store: MemoryStore, clock: FrozenClock) -> None:
    del clock
    rows = {"results": [{"id": "1", "memory": TEXT, "user_id": "ada"}]}
    assert import_items(store, lambda: mem0_items([("f", rows)]), confirm=MEMORY_CATEGORIES).waiting == 1


PATHS: dict[str, Callable[[MemoryStore, FrozenClock], None]] = {
    "service": by_service,
    "save tool": by_tool,
    "update tool": by_update_tool,
    "middleware": by_middleware,
    "extraction": by_extraction,
    "supersession": by_supersession,
    "summary": by_summary,
    "insight": by_insight,
    "short-term block": by_block,
    "transcript word for word": by_transcript,
    "passages word for word": by_passages,
    "passages in a vector store": by_vector_store,
    "flush to long-term memory": by_flush,
    "migration": by_migration,
    "import": by_import,
}


@pytest.mark.parametrize("write", PATHS.values(), ids=PATHS)
def test_every_path_waits_for_the_user(
    store: MemoryStore, clock: FrozenClock, write: Callable[[MemoryStore, FrozenClock], None]
) -> None:
    service = strict(store, clock).sync
    stated = [f"Ada climbed in week {number}" for number in range(3)]
    for number, text in enumerate(stated):
        service.save_memory("ada", text, "facts", memory_id=f"m{number}", topic="sport", source=BY_USER)
    write(store, clock)
    waiting = [one for one in service.list_pending("ada") if one.document.content == TEXT]
    assert len(waiting) == 1
    memories = service.list_memories("ada", limit=None)[0]
    assert sorted(one.content for one in memories) == stated
    assert not any("superseded_by" in one.value for one in memories)
    assert TEXT not in service.format_context_for_prompt("ada", TEXT)
    assert service.approve_pending("ada", waiting[0].id) == [waiting[0].id]
    assert TEXT in [one.content for one in service.recall_memories("ada", TEXT)]
    assert [one.id for one in waiting[0].ends] == (["m1"] if write in (by_update_tool, by_supersession) else [])


def test_what_cannot_be_offered_is_read_again_later(store: MemoryStore, clock: FrozenClock) -> None:
    """Guards transcripts: a message that the user has rejected is not stored, and not counted as done."""
    service = strict(store, clock)
    transcript = Transcript([ConversationMessage(session_id="s", role=Role.ASSISTANT, text=TEXT, id="1")], 1)
    list(ingest(service.scope, "ada", transcript))
    service.sync.reject_pending("ada", service.sync.list_pending("ada")[0].id)
    other = Transcript([ConversationMessage(session_id="t", role=Role.ASSISTANT, text=TEXT, id="2")], 1)
    (report,) = list(ingest(service.scope, "ada", other))[-1:]
    assert (report.written, report.waiting, dict(report.skipped)) == (0, 0, {NOT_OFFERED: 1})
    assert service.sync.list_memories("ada")[0] == []
    plain = AgentMemoryStoreService(store, clock=clock, timeout=None)
    (report,) = list(ingest(plain.scope, "ada", other))[-1:]
    assert report.written == 1


def test_undo_takes_back_what_a_job_has_offered(store: MemoryStore, clock: FrozenClock) -> None:
    by_extraction(store, clock)
    service = strict(store, clock)
    (waiting,) = service.sync.list_pending("ada")
    assert undone(service.scope, "ada", job_id=waiting.document.metadata["job"]) == 0
    assert service.sync.list_pending("ada") == []
