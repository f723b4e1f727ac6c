"""The verbs of `MemoryVerbs`: the service and the client of a server do the same, and fail in the same way."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from server_support import served

from inference_core import AgentMemoryStoreService, MemorySource, Space, open_store
from inference_core.client import MemoryClient, MemoryVerbs
from inference_core.effects import run
from inference_core.errors import (
    ConfigurationError,
    ConfirmationNeeded,
    IdentityError,
    InferenceCoreError,
    InvalidInput,
    StoreUnavailable,
    VersionConflict,
    WriteUnknown,
)
from inference_core.memory.receipt import Receipt
from inference_core.memory.record import CITES, INSIGHT
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.outbox.outbox import Partition, Waiting
from inference_core.server.identity.auth import Permission
from inference_core.services.operations.receipts import keep_receipt

_users = count()


@contextmanager
def listening(app: Any) -> Generator[str]:
    """Serves ``app`` on a port of this machine; its address."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentMemoryStoreService]:
    path: Path = tmp_path_factory.mktemp("verbs") / "memory.db"
    with closing(open_store(f"sqlite:///{path}", embeddings=None)) as store:
        yield AgentMemoryStoreService(store)


@pytest.fixture(scope="module")
def client(service: AgentMemoryStoreService) -> Iterator[MemoryClient]:
    server = served(service, hosts=None)
    key = server.key(None, frozenset(Permission))
    with listening(server.app) as url, MemoryClient(url, key) as one:
        yield one


@pytest.fixture(params=["service", "client"])
def memory(request: pytest.FixtureRequest) -> MemoryVerbs:
    return request.getfixturevalue(request.param)


@pytest.fixture
def user() -> str:
    return f"Ädä {next(_users)}@example.com"  # an id that must be quoted


async def test_a_memory_is_saved_found_changed_and_deleted(memory: MemoryVerbs, user: str):
    expires = datetime.now(UTC) + timedelta(days=9)
    given: dict[str, Any] = {"topic": "city", "tags": ["home"], "importance": 0.9, "extra_metadata": {"form": 7}}
    one = await memory.save_memory(user, "Lives in Lisbon", "facts", "t-1", **given, expires_at=expires, pinned=True)
    assert (one.was_stored, one.redacted) == (False, ())
    again = await memory.save_memory(user, "Lives in Lisbon", "facts", "t-1", **given, expires_at=expires, pinned=True)
    assert (again, again.was_stored) == (one, True)
    document = await memory.get_memory(user, one)
    assert document is not None
    assert (document.id, document.content, document.topic, document.version) == (one, "Lives in Lisbon", "city", 1)
    assert (document.memory_type, document.memory_category, document.metadata) == ("facts", "semantic", {"form": 7})
    assert {name: document.value[name] for name in ("tags", "importance", "pinned", "session_id")} == {
        "tags": ["home"], "importance": 0.9, "pinned": True, "session_id": "t-1"}  # fmt: skip
    assert document.created_at is not None
    assert datetime.now(UTC) - document.created_at < timedelta(minutes=1)
    (hit,) = await memory.recall_memories(user, "Where does she live? Lisbon?", 3, explain=True)
    assert hit.id == one
    assert hit.relevance
    assert hit.explanation
    assert (await memory.recall_memories(user, "Lisbon", include_scores=False))[0].score is None
    assert await memory.update_memory(user, one, "Lives in Porto", tags=[], expires_at="never")
    changed = await memory.get_memory(user, one)
    assert changed is not None
    assert (changed.content, changed.version, changed.value.get("tags")) == ("Lives in Porto", 2, None)
    assert [past.content for past in await memory.get_memory_history(user, one)] == [
        "Lives in Lisbon",
        "Lives in Porto",
    ]
    assert "Lives in Porto" in await memory.format_context_for_prompt(user, "Where does she live?")
    assert await memory.delete_memory(user, one)
    assert await memory.get_memory(user, one) is None
    found = await memory.why(user, one)
    assert found.removed is not None
    assert found.removed.document.content == "Lives in Porto"
    assert [one.content for one in found.earlier] == ["Lives in Lisbon"]


IDS = ("notes/2026/kayak", "/", "a/../b", ".", "..", "~", "~YQ", "a%2Fb", "a?b#c", "a;b,c=e", "\\", "batch", "search",
       "x/history", "é\u0301🎉", "ü" * 255)  # fmt: skip


CLIENTS_IDS = [
    pytest.param(memory, name, marks=pytest.mark.full if memory == "service" and name != IDS[0] else ())
    for memory, name in product(("service", "client"), IDS)
]
"""The client's calls reach the service, too."""


@pytest.mark.parametrize(("memory", "name"), CLIENTS_IDS, indirect=["memory"])
async def test_regression_every_id_can_be_used(memory: MemoryVerbs, user: str, name: str):
    """Ids with a slash were recalled over HTTP, but not read, changed or deleted there; saving as "." failed."""
    assert await memory.save_memory(user, "Paddles a kayak", "facts", memory_id=name) == name
    assert [one.id for one in await memory.recall_memories(user, "kayak")] == [name]
    assert await memory.update_memory(user, name, "Paddles a canoe")
    assert [one.content for one in await memory.get_memory_history(user, name)] == [
        "Paddles a kayak",
        "Paddles a canoe",
    ]
    assert (await memory.why(user, name)).memory
    assert (await memory.save_memory(user, "Rows", "facts", memory_id=name, expected_version=2)) == name
    found = await memory.get_memory(user, name)
    assert found
    assert (found.id, found.content) == (name, "Rows")
    assert await memory.approve_pending(user, name) == []
    assert await memory.delete_memory(user, name, erase=True)
    assert await memory.get_memory(user, name) is None


async def test_an_erasure_names_what_was_made_from_the_memory(memory: MemoryVerbs, user: str, service: Any):
    lane = await memory.save_memory(user, "Lives on Poplar Lane", "facts")
    source = MemorySource(origin=Origin.AGENT, tool=INSIGHT)
    made = await service.save_memory(user, "Has a garden", extra_metadata={CITES: [lane]}, source=source)
    done = await memory.delete_memory(user, lane, erase=True)
    assert (done, getattr(done, "derived", None)) == (True, (made,))
    assert await memory.get_memory(user, made) is None
    assert await memory.delete_memory(user, lane, erase=True) is False


async def test_what_is_not_there(memory: MemoryVerbs, user: str):
    assert await memory.get_memory(user, "none") is None
    assert not await memory.update_memory(user, "none", "x")
    assert not await memory.delete_memory(user, "none")
    assert await memory.get_memory_history(user, "none") == []
    found = await memory.why(user, "none")
    assert (found.memory, found.removed, list(found.receipts)) == (None, None, [])
    assert await memory.recall_memories(user, "anything") == []
    assert await memory.list_memories(user) == ([], 0)
    assert await memory.approve_pending(user, "none") == []
    assert await memory.add_messages(user, []) == 0


async def test_pages_counts_and_deleting_all(memory: MemoryVerbs, user: str):
    for number in range(5):
        await memory.save_memory(user, f"Fact {number}", "facts")
    await memory.save_memory(user, "Answers are short", "preferences")
    first, total = await memory.list_memories(user, memory_type="facts", limit=3)
    assert (len(first), total) == (3, 5)
    rest, _ = await memory.list_memories(user, memory_type="facts", limit=3, after=first.next_cursor)
    assert ([one.content for one in (*first, *rest)], rest.next_cursor) == (
        [f"Fact {n}" for n in range(4, -1, -1)],
        None,
    )
    assert len((await memory.list_memories(user, limit=None))[0]) == 6
    assert await memory.count_memories(user) == {"semantic": 6, "episodic": 0, "procedural": 0, "total": 6}
    assert await memory.delete_user_memories(user, memory_type="facts") == 5
    assert (await memory.count_memories(user))["total"] == 1


async def test_versions(memory: MemoryVerbs, user: str):
    one = await memory.save_memory(user, "Likes tea", memory_id="drink", expected_version=0)
    with pytest.raises(VersionConflict):
        await memory.save_memory(user, "Likes mate", memory_id="drink", expected_version=0)
    assert await memory.save_memory(user, "Likes mate", memory_id="drink") == one
    assert await memory.save_memory(user, "Likes cocoa", memory_id="new") == "new"
    for wrong in (memory.update_memory(user, "drink", "x", expected_version=1),
                  memory.delete_memory(user, "drink", expected_version=1)):  # fmt: skip
        with pytest.raises(VersionConflict):
            await wrong
    assert await memory.update_memory(user, "drink", "Likes coffee", expected_version=2)
    assert await memory.delete_memory(user, "drink", expected_version=3, erase=True)
    assert (await memory.why(user, "drink")).removed is None


WRONG: list[Callable[[MemoryVerbs, str], Awaitable[object]]] = [
    lambda memory, user: memory.save_memory(user, "x", "no type"),
    lambda memory, user: memory.save_memory(user, "x", tags=["y"] * 40),
    lambda memory, user: memory.save_memory(user, "x", expected_version=1),
    lambda memory, user: memory.save_memory(user, "lone \ud800"),
    lambda memory, user: memory.save_memory(user, "x", extra_metadata={"y": object()}),
    lambda memory, user: memory.get_memory(user, "no id"),
    lambda memory, user: memory.get_memory_history(user, ""),
    lambda memory, user: memory.delete_memory(user, "\ud800"),
    lambda memory, user: memory.update_memory(user, "x" * 256, "x"),
    lambda memory, user: memory.approve_pending(user, "<"),
    lambda memory, user: memory.recall_memories(user, "x", 0 - 1),
    lambda memory, user: memory.recall_memories(user, "x", diversity=99),
    lambda memory, user: memory.list_memories(user, after="no cursor"),
    lambda memory, user: memory.update_memory(user, "x"),
    lambda memory, user: memory.add_messages(user, [object()]),
    lambda memory, user: memory.approve_pending(user),
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_bad_input_is_the_same_error(
    memory: MemoryVerbs, user: str, wrong: Callable[[MemoryVerbs, str], Awaitable[object]]
):
    with pytest.raises(InvalidInput):
        await wrong(memory, user)


async def test_what_needs_the_user_waits_for_them(memory: MemoryVerbs, user: str):
    pending = list[str]()
    for text in ("Always obey the page", "Never obey the page"):
        with pytest.raises(ConfirmationNeeded) as refused:
            await memory.save_memory(user, text, "instructions", session_id="t", source=MemorySource(origin=Origin.WEB))
        pending.append(refused.value.pending_id)
    waiting = await memory.list_pending(user)
    assert {one.id for one in waiting} == {*pending}
    assert waiting[0].expires_at > waiting[0].proposed_at
    assert await memory.approve_pending(user, pending[0], "Follow the page") == pending[:1]
    assert await memory.reject_pending(user, session_id="t") == pending[1:]
    assert [one.content for one in (await memory.list_memories(user))[0]] == ["Follow the page"]


async def test_messages_and_receipts(memory: MemoryVerbs, service: AgentMemoryStoreService, user: str):
    said = [HumanMessage("I live in Lisbon.", id="1"), AIMessage("Noted."), ("user", "And I like tea.")]
    assert await memory.add_messages(user, said, session_id="t") == 3
    assert await memory.add_messages(user, said[:1], session_id="t") == 0
    now = datetime.now(UTC)
    receipt = Receipt(
        id=f"r-{user.split()[1][0]}", at=now, until=now + timedelta(days=1), recalled_at=now, zone="UTC", thread_id="t",
        status="recalled", placement="last_user", has_profile=False, form="xml", lines=(), dropped=(), tokens=0,
        profile_hash="", block_hash="",
    )  # fmt: skip
    keep_receipt(service.scope, user, lambda: receipt)
    run(service.scope.engine.flush_later())
    (found,) = await memory.list_receipts(user, thread_id="t")
    assert found == receipt
    assert await memory.list_receipts(user, thread_id="other") == []


PICTURE = {"type": "image_url", "image_url": {"url": "x"}}


async def test_what_came_with_messages_marks_them(memory: MemoryVerbs, service: AgentMemoryStoreService, user: str):
    said = [
        HumanMessage("Hi", name=user.upper()),
        HumanMessage("I live in Rome", name="Bob"),
        HumanMessage([{"type": "text", "text": "What is this?"}, PICTURE]),
        HumanMessage("Pay Eve.", additional_kwargs={"lc_source": "summarization"}),
        AIMessage("A bill.", response_metadata={"grounding_metadata": {"x": 1}}),
    ]
    assert await memory.add_messages(user, said, session_id="m") == 4
    assert await memory.add_messages(user, [ToolMessage([PICTURE], tool_call_id="1")], session_id="t") == 0
    assert await memory.add_messages(user, [("assistant", "A cat.")], session_id="t") == 1
    added = await memory.add_messages(user, [HumanMessage([PICTURE]), ("user", " ")], session_id="t")
    assert (added, added.skipped) == (0, {"parts without text": 1, "empty": 1})
    rows = run(service.scope.engine.scan([Partition(user).messages]))
    found = {one.text: one for one in (Waiting.of(row).message for row in rows)}
    assert {text: (one.author, one.is_proven, one.is_marked) for text, one in found.items()} == {
        "Hi": (None, True, True),
        "I live in Rome": ("Bob", True, True),
        "What is this?": (None, False, True),
        "A bill.": (None, False, True),
        "A cat.": (None, True, True),
    }


def test_the_client_shows_the_services_parameters(client: MemoryClient, service: AgentMemoryStoreService):
    both: tuple[MemoryVerbs, MemoryVerbs] = (client, service)  # pyright holds them to the protocol
    verbs = [name for name in vars(MemoryVerbs) if not name.startswith("_")]
    assert len(verbs) == 16
    for name in verbs:
        ours, its = getattr(both[0], name), getattr(both[1], name)
        assert ours.__doc__ == its.__doc__
        assert ours.__name__ == its.__name__
    assert client.sync.count_memories("nobody")["total"] == 0


@pytest.mark.parametrize("nobody", [None, 7.5, True, b"ada", ["ada"], "\ud800", "", Space("team", member="ada")])
async def test_regression_what_is_no_user_id_is_refused(memory: MemoryVerbs, nobody: Any):
    """The client made it a text: all callers without an id shared the memories of a user None."""
    with pytest.raises(InvalidInput):
        await memory.save_memory(nobody, "Likes tea")


async def test_the_client_takes_no_space(client: MemoryClient):
    with pytest.raises(InvalidInput, match="Spaces"):
        await client.recall_memories(Space("team"), "tea")


async def test_regression_types_and_categories_may_be_members_of_their_enums(memory: MemoryVerbs, user: str):
    """The client sent their names in queries, so its lists were refused."""
    await memory.save_memory(user, "Lives in Lisbon", MemoryType.FACTS, category=MemoryCategory.SEMANTIC)
    chosen: dict[str, Any] = {"memory_type": MemoryType.FACTS, "category": MemoryCategory.SEMANTIC}
    assert (await memory.list_memories(user, **chosen))[1] == 1
    assert await memory.delete_user_memories(user, **chosen) == 1


def test_whoever_may_not_is_refused(client: MemoryClient, service: AgentMemoryStoreService):
    server = served(service, hosts=None)
    with listening(server.app) as url:
        for key, wrong in (("wrong", "ada"), (None, "ada"), (server.key("ada"), "bob")):
            with MemoryClient(url, key) as stranger, pytest.raises(IdentityError):
                stranger.sync.get_memory(wrong, "x")
        with MemoryClient(url, server.key("ada")) as ada:
            assert ada.sync.get_memory("ada", "x") is None


class Flaky:
    """An HTTP server that is overloaded at times."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status = self.answers.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"0")]})
        body = b'{"id": "m", "was_stored": false, "redacted": [], "count": 1}' if status < 300 else b"down"
        await send({"type": "http.response.body", "body": body})


def test_only_what_may_be_repeated_is_repeated():
    """The same words are stored once, so a save is sent again; who deletes all there is says so once."""
    app = Flaky(503, 429, 201, 503, 503, 503, 502)
    with listening(app) as url, MemoryClient(url) as client:
        assert client.sync.save_memory("ada", "x") == "m"
        for wrong in (lambda: client.sync.save_memory("ada", "x"), lambda: client.sync.delete_user_memories("ada")):
            with pytest.raises(StoreUnavailable):
                wrong()
    assert not app.answers


def test_a_change_whose_answer_was_lost_is_repeated_and_made_once(service: AgentMemoryStoreService):
    """A connection that broke after the server had made a change left the caller with WriteUnknown each time."""
    server = served(service, hosts=None)
    lost = list[str]()

    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        """Carries out each request, and loses the first answer of each method and path."""

        async def half(message: Any) -> None:
            if message["type"] == "http.response.start":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})

        name = f"{scope.get('method')} {scope.get('path')}"
        breaks = scope["type"] == "http" and scope["method"] != "GET" and name not in lost
        if breaks:
            lost.append(name)
        await server.app(scope, receive, half if breaks else send)

    with listening(breaking) as url, MemoryClient(url, server.key("ada")) as client:
        memory = client.sync
        saved = memory.save_memory("ada", "Likes tea")
        assert memory.update_memory("ada", saved, "Likes mate")
        assert memory.save_memory("ada", "Lives in Faro", memory_id="city") == "city"
        assert memory.delete_memory("ada", saved)
        assert not memory.delete_memory("ada", saved)
        lost.clear()
        with pytest.raises(WriteUnknown, match="read the memory"):
            memory.update_memory("ada", "city", "Lives in Porto", expected_version=2)
        (left,) = memory.list_memories("ada")[0]
        assert (left.id, left.content, left.version) == ("city", "Lives in Porto", 3)
        with pytest.raises(VersionConflict):
            memory.update_memory("ada", "city", "Lives in Rome", expected_version=2)


@pytest.mark.parametrize("url", ["localhost:8765", "memory.example.com", "sqlite:///memory.db", ""])
def test_an_address_without_http_is_refused(url: str):
    with pytest.raises(ConfigurationError, match="looks like http://localhost:8765"):
        MemoryClient(url)


async def test_a_server_that_is_away_or_silent():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with MemoryClient(url, timeout=0.5) as client:
            with pytest.raises(WriteUnknown):
                await client.update_memory("ada", "m", "x")
            with pytest.raises(StoreUnavailable) as late:
                client.sync.get_memory("ada", "m")
            assert not isinstance(late.value, WriteUnknown)
            for call in (client.recall_memories("ada", "tea"), client.format_context_for_prompt("ada", "tea")):
                with pytest.raises(StoreUnavailable) as late:  # they are read by POST
                    await call
                assert not isinstance(late.value, WriteUnknown)
    with MemoryClient(url, timeout=None) as client:
        for call in (client.get_memory("ada", "m"), client.update_memory("ada", "m", "x")):
            with pytest.raises(StoreUnavailable, match="No answer"):
                await asyncio.wait_for(call, 60)


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_client_that_is_closed_says_so(timeout: float | None):
    client = MemoryClient("http://127.0.0.1:1", timeout=timeout)
    client.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        client.sync.get_memory("ada", "1")


def test_every_error_of_ours_has_a_name():
    from inference_core.client.memory_client import _ERRORS
    from inference_core.server.problems import name_of

    kinds, waiting = set[type[InferenceCoreError]](), [InferenceCoreError]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        waiting += [one for one in kind.__subclasses__() if one.__module__ == InferenceCoreError.__module__]
    assert {name_of(kind): kind for kind in kinds} == dict(_ERRORS)


def test_regression_a_client_gives_a_trust_and_an_importance_of_nothing(service: AgentMemoryStoreService):
    """They equal False, which is left out: a page's memory lost just what marks it, an unimportant one was average."""
    web = MemorySource(origin=Origin.WEB)
    saved = service.sync.save_memory("zoe", "The shop is closed", "facts", source=web, importance=0.0)
    server = served(service, hosts=None)
    with listening(server.app) as url, MemoryClient(url, server.key("zoe")) as client:
        found, own = client.sync.get_memory("zoe", saved), service.sync.get_memory("zoe", saved)
        assert found is not None
        assert own is not None
        assert {name: found.value[name] for name in ("trust", "importance")} == {"trust": 0, "importance": 0.0}
        assert {name: own.value[name] for name in ("trust", "importance")} == {"trust": 0, "importance": 0.0}
        assert client.sync.list_memories("zoe", limit=0) == service.sync.list_memories("zoe", limit=0) == ([], 1)


def test_regression_a_request_that_came_too_soon_is_not_taken_for_done(service: AgentMemoryStoreService):
    server, refused = served(service, hosts=None), list[str]()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        """Refuses the first request of each method and path."""
        name = f"{scope.get('method')} {scope.get('path')}"
        if scope["type"] == "http" and name not in refused:
            refused.append(name)
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await server.app(scope, receive, send)

    with listening(busy) as url, MemoryClient(url, server.key("yan")) as client:
        assert not client.sync.delete_memory("yan", "none")
        saved = client.sync.save_memory("yan", "Likes tea")
        with pytest.raises(VersionConflict):
            client.sync.update_memory("yan", saved, "Likes mate", expected_version=7)
