"""A secret that comes in on any path is nowhere afterwards: not in files, logs, errors, prompts and embeddings."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flaky import crossed
from langchain.agents import create_agent
from langgraph.store.memory import InMemoryStore
from outbox_support import Scripted
from periodic_support import DAY, QUIET, Life, citing_all, insight, summarizer
from short_term_support import USER, extracting, model_of
from support import HashingEmbeddings

from inference_core import (
    AgentMemory,
    AgentMemoryStoreService,
    ExtractiveMemory,
    FlushToLongTerm,
    Guard,
    MemoryContext,
    MemoryMiddleware,
    MemorySource,
    MemoryStore,
    Origin,
    StaticMemory,
    VectorMemory,
    Worker,
    get_memory_tools,
    migrate_memories,
    open_store,
)
from inference_core.asking import ask
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded, ModelError, SecretFound, UntrustedWrite
from inference_core.ingestion.verbatim import hand_over, ingest
from inference_core.ingestion.worker import Pipeline
from inference_core.memory.redaction import told_error
from inference_core.outbox.messages import ConversationMessage, Extraction, Role, Transcript
from inference_core.outbox.outbox import Limits, Outbox, dead_letters
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool
from inference_core.transfer.copying import copy_store
from inference_core.transfer.json_lines import export_store, import_store
from inference_core.transfer.migrate import import_items
from inference_core.transfer.sources import mem0_items

CANARY = "AKIA" + "CANARY7CANARY7CA"
PASSWORD = "c4nary-" + "Pa55word"
SAID = f"Deploy with {CANARY}; my password is {PASSWORD}."
CANARIES = (CANARY.encode(), PASSWORD.encode(), CANARY.lower().encode(), PASSWORD.lower().encode())
GONE = "Deploy with [redacted: aws_access_key]; my password is [redacted: password]."


class Listening(HashingEmbeddings):
    """Keeps what it was given."""

    heard: list[str]

    def __init__(self) -> None:
        self.heard = []

    def embed_query(self, text: str) -> list[float]:
        self.heard.append(text)
        return super().embed_query(text)


def transcript() -> Transcript:
    return Transcript(
        [ConversationMessage(session_id="t", role=Role.USER, text=SAID, id=f"m1 {CANARY}", author=f"Ada {CANARY}")], 1
    )


def saved(service: AgentMemoryStoreService, folder: Path) -> None:
    del folder
    memory_id = service.sync.save_memory(
        "ada",
        SAID,
        topic=f"keys {CANARY}",
        tags=[CANARY],
        extra_metadata={"entities": [{"name": CANARY}], "password": PASSWORD, CANARY: 1},
        source=MemorySource(tool=CANARY, thread_id=CANARY, message_ids=(CANARY,)),
    )
    service.sync.save_memory("ada", SAID, tags=[CANARY])
    service.sync.save_memory("ada", f"{SAID} Bis.", memory_id="given")
    service.sync.update_memory("ada", "given", f"{SAID} Ter.", topic=CANARY, tags=[CANARY])
    service.sync.delete_memory("ada", memory_id)


def used_as_tool(service: AgentMemoryStoreService, folder: Path) -> None:
    del folder
    tools = {one.name: one for one in get_memory_tools(service, "ada")}
    answer = tools["save_memory_store"].invoke({"content": SAID, "topic": CANARY})
    assert "redacted: aws_access_key, password" in answer
    memory_id = re.findall(r"id: (\w+)", answer)[0]
    again = tools["update_memory_store"].invoke({"memory_id": memory_id, "content": f"Still: {SAID}"})
    assert "redacted: aws_access_key, password" in again


def put_as_item(service: AgentMemoryStoreService, folder: Path) -> None:
    del folder
    service.store.put(("ada", "semantic"), "m2", {"content": SAID, "memory_type": "facts"})


def captured(service: AgentMemoryStoreService, folder: Path) -> None:
    del folder
    service.sync.add_messages("ada", [("user", SAID), ("assistant", f"I keep {CANARY}")], session_id="s")
    extractor = Scripted()
    Worker.of(service, extractor).drain()
    assert CANARY not in repr(extractor.asked)
    assert extractor.asked


def ingested(service: AgentMemoryStoreService, folder: Path) -> None:
    del folder
    for walk in (ingest, hand_over):
        for _ in walk(service.scope, "ada", transcript()):
            pass


def imported(service: AgentMemoryStoreService, folder: Path) -> None:
    store = service.store
    assert isinstance(store, MemoryStore)
    import_items(
        store, lambda: mem0_items([("1", {"id": "x1", "memory": SAID, "user_id": "ada", "metadata": {CANARY: CANARY}})])
    )
    other = InMemoryStore()
    other.put(("ada", "memories"), "x2", {"content": SAID, "topic": CANARY})
    other.put(("memories", "ada"), "x3", {"kind": "Memory", "content": {"content": SAID}})
    other.put(
        ("ada", "filesystem"), "notes.md", {"content": [SAID], "created_at": "2026-01-01", "modified_at": "2026-01-01"}
    )
    migrate_memories(store, source=other, layouts=["flat", "langmem", "files"])
    with open_store("memory://", embeddings=None, secrets="off") as full:
        AgentMemoryStoreService(full).sync.save_memory("ada", SAID, memory_id="x4", topic=CANARY)
        AgentMemoryStoreService(full).sync.add_messages("ada", [SAID])
        export_store(full.engine.backend, folder.parent / "full.jsonl")
        import_store(folder.parent / "full.jsonl", store.engine.backend)
        copy_store(full.engine.backend, store.engine.backend)


def kept_short(service: AgentMemoryStoreService, folder: Path) -> None:
    del folder
    model = model_of(extracting)
    blocks = [ExtractiveMemory(model, service, user_id=USER), VectorMemory(service, user_id=USER)]
    memory = AgentMemory(service, overflow=FlushToLongTerm(blocks), max_tokens=40, user_id=USER)
    for _ in range(3):
        memory.update("s1", ("user", f"{SAID} {'word ' * 20}"))
    StaticMemory([SAID, f"{SAID} Bis.", {"key": "k", "value": SAID}], service).load()
    assert not any(CANARY in str(one.content) for request in model.requests for one in request)


def looked_after(service: AgentMemoryStoreService, folder: Path) -> None:
    """Summaries and insights, whose models repeat the secret in all that they write."""
    del folder
    told = citing_all(SAID)

    def sums_up(request: list[Any]) -> Any:
        (call,) = told(request).tool_calls
        return call_tool(
            call["name"], **{**call["args"], "title": CANARY, "participants": [CANARY], "topics": [CANARY]}
        )

    life = Life(service.store, FrozenClock(), summarizer=summarizer(sums_up), insights=[insight(SAID)])
    for number in range(3):
        life.service.sync.save_memory("ada", f"Climbed in week {number} with {CANARY}", "facts", topic=f"key {CANARY}")
    life.says(SAID)
    life.works(QUIET)
    life.works(DAY)
    assert life.summaries()
    assert CANARY not in repr(life.model.requests)


def given_up(service: AgentMemoryStoreService, folder: Path) -> None:
    """Dead letters: the error that a provider gives names the key, and so does the message."""
    del folder

    def fails(*_: Any) -> Extraction:
        raise ModelError(f"Incorrect API key provided: {CANARY}; the password is {PASSWORD}")

    service.sync.add_messages("ada", [("user", SAID)], session_id="s")
    store, clock = service.store, FrozenClock()
    assert isinstance(store, MemoryStore)
    outbox = Outbox(store.engine, clock, Limits(max_tries=1))
    Worker(Pipeline(service.scope, Scripted(fails), outbox=outbox)).drain()
    (letter,) = run(dead_letters(store.engine))
    assert CANARY not in repr(letter)


def reviewed(service: AgentMemoryStoreService, folder: Path) -> None:
    """What waits, the reasons and names of reviewers, and what they make of it; the audit trail names all of them."""
    del folder
    ids: list[str] = []
    for text in (SAID, f"{SAID} Bis.", f"{SAID} Ter."):
        source = MemorySource(origin=Origin.WEB, tool=CANARY)
        with pytest.raises(ConfirmationNeeded) as waits:
            service.sync.save_memory("ada", text, "instructions", topic=CANARY, tags=[CANARY], source=source)
        assert CANARY not in repr(waits.value)
        ids.append(waits.value.pending_id)
    assert CANARY not in repr(service.sync.list_pending("ada"))
    assert service.sync.reject_pending("ada", ids[0], f"It holds {CANARY}", by=f"bob {CANARY}") == [ids[0]]
    service.sync.approve_pending("ada", ids[1], f"Now {SAID}", by=CANARY)
    with pytest.raises(UntrustedWrite) as refused:
        service.sync.save_memory("ada", SAID, "instructions", source=MemorySource(origin=Origin.WEB))
    assert CANARY not in repr(refused.value)


def run_by_an_agent(service: AgentMemoryStoreService, folder: Path) -> None:
    """Receipts of prompts, and what a tool of an agent answers."""
    del folder
    save = call_tool("save_memory_store", content=SAID, memory_type="facts", topic=CANARY)
    agent: Any = create_agent(
        ScriptedChatModel(turns=[save, "done"], record=False),
        store=service.store,
        middleware=[MemoryMiddleware(recall_timeout=60, receipts=True)],
        context_schema=MemoryContext,
    )
    for _ in range(2):
        asked = {"messages": [("user", f"What of {SAID}")]}
        agent.invoke(asked, {"configurable": {"thread_id": "t"}}, context={"user_id": "ada"})


PATHS: tuple[Callable[[AgentMemoryStoreService, Path], None], ...] = (
    *(saved, used_as_tool, put_as_item, captured, ingested, imported, kept_short),
    *(looked_after, given_up, reviewed, run_by_an_agent),
)


def contents(service: AgentMemoryStoreService) -> list[str]:
    return [one.content for one in service.sync.list_memories("ada")[0]]


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("scheme", "path"), crossed(["sqlite", "file"], {path.__name__: path for path in PATHS}))
def test_no_canary_is_left_anywhere(
    path: Callable[..., None], scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An access key and a password were stored verbatim, sent to the embedder, and hashed into ids."""
    caplog.set_level(logging.DEBUG)
    folder, embeddings = tmp_path / "db", Listening()
    folder.mkdir()
    url = f"{scheme}:///{folder / 'memories'}"
    with open_store(url, embeddings=embeddings) as store:
        service = AgentMemoryStoreService(store)
        path(service, folder)
        assert store.wait_ready(10)
        service.sync.recall_memories("ada", SAID)
        store.engine.flush()
        told = repr(service.sync.list_memories("ada"))
    found = bytes_in(folder)
    assert b"redacted: aws_access_key" in found
    assert [one for one in CANARIES if one in found] == []
    assert [text for text in embeddings.heard if CANARY in text or PASSWORD in text] == []
    assert CANARY not in caplog.text + told


def test_an_error_of_a_provider_is_told_without_the_key_that_it_quotes() -> None:
    """Cause: "Incorrect API key provided: …" stood in logs and in the errors of models and embeddings."""
    error = ValueError(f"Incorrect API key\nprovided: {CANARY}")
    assert told_error(error) == "Incorrect API key provided: [redacted: aws_access_key]"
    assert CANARY[:12] not in told_error(ValueError(f"{'word ' * 38}{CANARY}")), "it is cut after it is redacted"
    model = ScriptedChatModel(turns=[error], record=False)
    with pytest.raises(ModelError) as raised:
        run(ask(model, [], None))
    assert CANARY not in repr(raised.value)


def test_what_is_off_is_stored_as_it_comes(tmp_path: Path) -> None:
    """The test above sees what is there."""
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None, secrets="off") as store:
        service = AgentMemoryStoreService(store).sync
        assert service.get_memory("ada", service.save_memory("ada", SAID)).content == SAID  # pyright: ignore[reportOptionalMemberAccess]
    assert CANARY.encode() in bytes_in(tmp_path)


def test_rejected_is_refused_by_kind_and_nothing_is_stored(tmp_path: Path) -> None:
    with open_store("memory://", embeddings=None, secrets="reject") as store:
        service = AgentMemoryStoreService(store)
        service.sync.save_memory("ada", "Lives in Rome", memory_id="m1")
        calls: list[Callable[[], Any]] = [
            lambda: service.sync.save_memory("ada", SAID),
            lambda: service.sync.save_memory("ada", "x", tags=[CANARY]),
            lambda: service.sync.update_memory("ada", "m1", SAID),
            lambda: service.sync.update_memory("ada", "m1", extra_metadata={"a": CANARY}),
            lambda: store.put(("ada", "semantic"), "m2", {"content": SAID}),
        ]
        for call in calls:
            with pytest.raises(SecretFound, match="aws_access_key") as caught:
                call()
            assert CANARY not in repr(caught.value)
        answer = get_memory_tools(service, "ada")[0].invoke({"content": SAID})
        assert answer == "✗ Not stored: it contains a secret (aws_access_key, password); leave that out"
        items = [("1", {"id": "x1", "memory": SAID, "user_id": "ada"})]
        report = import_items(store, lambda: mem0_items(items))
        assert (report.written, dict(report.skipped)) == (0, {"contains a secret": 1})
        assert CANARY not in report.to_text()
        with open_store("memory://", embeddings=None, secrets="off") as full:
            AgentMemoryStoreService(full).sync.save_memory("ada", SAID, memory_id="x4")
            with pytest.raises(SecretFound, match="the memory 'x4' contains a secret"):
                copy_store(full.engine.backend, store.engine.backend, secrets="reject")
        assert contents(service) == ["Lives in Rome"]
        service.sync.add_messages("ada", [SAID])
        Worker.of(service, Scripted()).drain()
        assert GONE in contents(service), "a conversation is kept, redacted"
        del tmp_path


def test_an_items_value_is_the_applications_and_comes_back_as_it_was_put() -> None:
    with open_store("memory://", embeddings=None) as store:
        store.put(("ada", "tokens"), "aws", {"key": CANARY})
        item = store.get(("ada", "tokens"), "aws")
        assert item is not None
        assert item.value == {"key": CANARY}


def test_saved_again_it_is_the_same_memory_and_keeps_its_tags() -> None:
    """Repetitions with a secret among the tags wrote the memory anew each time."""
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        first = service.save_memory("ada", SAID, tags=[CANARY])
        again = service.save_memory("ada", SAID, tags=[CANARY])
        assert (again, again.was_stored, again.redacted) == (first, True, ("aws_access_key", "password"))
        (found,) = service.list_memories("ada")[0]
        assert (found.content, found.version) == (GONE, 1)


@pytest.mark.parametrize("secrets", ["off", None])
def test_a_store_of_another_library_has_a_guard_too(secrets: Any) -> None:
    store = InMemoryStore()
    service = AgentMemoryStoreService(store, secrets=secrets)
    service.sync.save_memory("ada", SAID)
    assert contents(service) == [SAID if secrets else GONE]


class Names:
    """Finds a name, on a worker."""

    def find(self, text: str) -> list[tuple[int, int, str]]:
        at = text.find("Grace")
        return [(at, at + 5, "person")] if at >= 0 else []


async def test_an_applications_redactor_takes_part() -> None:
    with open_store("memory://", embeddings=None, secrets=Guard(redactor=Names())) as store:
        service = AgentMemoryStoreService(store)
        memory_id = await service.save_memory("ada", "Met Grace in Rome")
        assert memory_id.redacted == ("person",)
        await service.update_memory("ada", memory_id, "Met Grace in Oslo")
        (found,) = (await service.list_memories("ada"))[0]
        assert found.content == "Met [redacted: person] in Oslo"


async def test_long_texts_are_searched_off_the_event_loop() -> None:
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        await service.add_messages("ada", [f"{'word ' * 8_000}{SAID}"])
        (row,) = [row for row in store.engine.backend.inspect() if "text" in getattr(row, "value", {})][:1]
        assert GONE in row.value["text"]  # pyright: ignore[reportAttributeAccessIssue]


def test_the_backend_alone_is_guarded_by_whoever_writes_to_it(tmp_path: Path) -> None:
    """Imports write to the database without a store around it."""
    source, target = open_backend("memory://"), open_backend(f"sqlite:///{tmp_path / 't.db'}")
    with open_store("memory://", embeddings=None, secrets="off") as full:
        AgentMemoryStoreService(full).sync.save_memory("ada", SAID)
        full.put(("ada", "tokens"), "aws", {"key": CANARY})
        copy_store(full.engine.backend, target, secrets="off")
    values = [repr(row) for row in target.inspect()]
    assert sum(CANARY in one for one in values) == 2
    source.close()
    target.close()
