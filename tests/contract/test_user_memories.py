"""What an application does with all of a user's memories, on every store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService, MemoryRecord, MemoryStore, open_store
from inference_core.effects import run
from inference_core.errors import InvalidCategory, InvalidId, InvalidInput, InvalidMemoryType, StoreUnavailable
from inference_core.memory.namespaces import encode_label
from inference_core.memory.types import MemoryCategory, MemoryType, get_category_for_type
from inference_core.services import agent_memory_service
from inference_core.services.agent_memory_service import (
    count_user_long_term_memory,
    count_user_memories,
    delete_user_long_term_memory_entries,
    delete_user_long_term_memory_entry,
    delete_user_memory_entries,
    delete_user_memory_entry,
    list_user_long_term_memory,
    list_user_memories,
    list_users,
    open_memory_store,
    purge_user_long_term_memory,
    purge_user_memories,
)
from inference_core.services.operations import delete
from inference_core.services.operations.scope import put_of
from inference_core.services.user_memories import UserEntry, UserMemoryEntry
from inference_core.testing import FrozenClock

U = "ada@example.com"
U_LABEL = encode_label(U)
OTHER = "bob"
AGENTS = ("planner", "coder", None)
KINDS = ("facts", "context", "instructions")
Entry = tuple[Sequence[str], str]


def fill(store: BaseStore, user: str, number: int, clock: FrozenClock | None = None) -> None:
    """``number`` memories of ``user``, in turn of each agent and of each kind of the agent."""
    now = (clock or FrozenClock()).now()
    services = [AgentMemoryStoreService(store=store, agent_name=name) for name in AGENTS]
    records = [
        MemoryRecord(
            id=f"m{at:04}",
            content=f"tea {at}",
            memory_type=MemoryType(KINDS[at // 3 % 3]),
            category=get_category_for_type(KINDS[at // 3 % 3]),
            namespace=services[at % 3].ns_builder.namespace_for_type(user, KINDS[at // 3 % 3]),
            created_at=now.replace(year=2000 + at % 20, microsecond=at),
            updated_at=now,
            agent_name=AGENTS[at % 3],
            topic=f"Topic {at}" if at % 2 else None,
            session_id="s",
        )
        for at in range(number)
    ]
    run(services[0].scope.engine.write([put_of(record) for record in records]))


def seen(store: BaseStore, user: str, **options: Any) -> list[str]:
    found, total = list_user_memories(store, user, limit=None, **options)
    assert len(found) == total
    return [entry["content"] for entry in found]


def address(entry: UserMemoryEntry) -> Entry:
    return entry["namespace"], entry["key"]


def test_more_memories_than_a_page(any_store: BaseStore, monkeypatch: pytest.MonkeyPatch):
    for page in (
        "stores.engine._FIRST_PAGE",
        "services.operations.delete.PORTION",
        "stores.backends.foreign._PAGE",
    ):
        monkeypatch.setattr(f"inference_core.{page}", 50)
    fill(any_store, U, 117)
    fill(any_store, OTHER, 9)
    assert count_user_memories(any_store, U) == {"semantic": 39, "episodic": 39, "procedural": 39, "total": 117}
    everything = seen(any_store, U)
    assert sorted(everything) == sorted(f"tea {at}" for at in range(117))
    pages = [list_user_memories(any_store, U, limit=60, offset=offset) for offset in (0, 60, 120)]
    assert [(len(page), total) for page, total in pages] == [(60, 117), (57, 117), (0, 117)]
    assert [entry["content"] for page, _ in pages for entry in page] == everything
    assert purge_user_memories(any_store, U) == 117
    assert count_user_memories(any_store, U)["total"] == purge_user_memories(any_store, U) == 0
    assert len(seen(any_store, OTHER)) == 9
    assert AgentMemoryStoreService(store=any_store).sync.recall_memories(U, "tea") == []


def test_purge_one_category(any_store: BaseStore):
    fill(any_store, U, 60)
    assert len(list_user_memories(any_store, U)[0]) == 50
    assert purge_user_memories(any_store, U, "episodic") == 21
    assert count_user_memories(any_store, U) == {"semantic": 21, "episodic": 0, "procedural": 18, "total": 39}


def test_entries(any_store: BaseStore, clock: FrozenClock):
    service = AgentMemoryStoreService(store=any_store, agent_name="planner", clock=clock)
    service.sync.save_memory(U, "Likes tea", "preferences", "session", "drinks", memory_id="m-1", category="episodic")
    ((found,), total) = list_user_memories(any_store, U)
    entry: dict[str, Any] = {**found}
    assert entry.pop("updated_at").endswith("+00:00")
    assert total == 1
    assert entry == {
        "namespace": ["~ada~40example~2ecom", "episodic", "planner"],
        "key": "m-1",
        "version": 1,
        "content": "Likes tea",
        "memory_type": "preferences",
        "memory_category": "episodic",
        "topic": "drinks",
        "agent_name": "planner",
        "session_id": "session",
        "created_at": clock.now().isoformat(),
    }


def test_an_agent_is_known_by_the_namespace_that_another_program_wrote_to(any_store: BaseStore):
    any_store.put((U_LABEL, "episodic", "assistant"), "e", {"content": "Spoke of Q1", "memory_type": "interaction"})
    any_store.put((U_LABEL, "procedural", "~no label"), "p", {"content": "Be brief", "memory_type": "skill"})
    found, _ = list_user_memories(any_store, U)
    assert {one["key"]: one["agent_name"] for one in found} == {"e": "assistant", "p": "~no label"}


def test_the_newest_come_first(any_store: BaseStore):
    fill(any_store, U, 45)
    found, _ = list_user_memories(any_store, U, limit=None)
    assert [entry["created_at"] for entry in found] == sorted((entry["created_at"] for entry in found), reverse=True)


def test_filters(any_store: BaseStore):
    fill(any_store, U, 45)
    for options in ({"category": "semantic"}, {"memory_type": "facts"}, {"category": MemoryCategory.SEMANTIC}):
        assert sorted(seen(any_store, U, **options)) == sorted(f"tea {at}" for at in range(45) if at // 3 % 3 == 0)
    assert seen(any_store, U, category="semantic", memory_type="context") == []
    assert sorted(seen(any_store, U, search="TEA 1")) == sorted(["tea 1", *(f"tea 1{digit}" for digit in range(10))])
    assert seen(any_store, U, search="topic 41") == ["tea 41"]
    assert seen(any_store, U, search="%") == []
    found, total = list_user_memories(any_store, U, search="tea 1", limit=3, offset=9)
    assert (len(found), total) == (2, 11)


def test_a_user_is_not_the_prefix_of_another(any_store: BaseStore):
    users = ["user-1", "user_1", "user%", "User-1", "a", "user-12", "userx1", "ab"]
    for user in users:
        fill(any_store, user, 9)
    for done, user in enumerate(users):
        left = [count_user_memories(any_store, other)["total"] for other in users]
        assert left == [0] * done + [9] * (len(users) - done)
        assert purge_user_memories(any_store, user) == 9


def test_delete_one_entry(any_store: BaseStore):
    fill(any_store, U, 9)
    fill(any_store, OTHER, 9)
    for entry in list_user_memories(any_store, U)[0][:4]:
        assert delete_user_memory_entry(any_store, U, *address(entry)) is True
        assert delete_user_memory_entry(any_store, U, *address(entry)) is False
    assert count_user_memories(any_store, U)["total"] == 5
    theirs = list_user_memories(any_store, OTHER)[0][0]
    assert delete_user_memory_entry(any_store, U, *address(theirs)) is False
    assert delete_user_memory_entry(any_store, U, (), "m0000") is False
    assert count_user_memories(any_store, OTHER)["total"] == 9


def test_delete_entries(any_store: BaseStore):
    fill(any_store, U, 30)
    fill(any_store, OTHER, 30)
    mine = [address(entry) for entry in list_user_memories(any_store, U)[0]]
    theirs = [address(entry) for entry in list_user_memories(any_store, OTHER)[0]]
    wanted = [*mine[:12], *theirs, (mine[0][0], "none"), ((OTHER,), "x"), ((), "x")]
    assert delete_user_memory_entries(any_store, U, wanted) == 12
    assert delete_user_memory_entries(any_store, U, wanted) == 0
    assert delete_user_memory_entries(any_store, U, []) == 0
    assert count_user_memories(any_store, U)["total"] == 18
    assert count_user_memories(any_store, OTHER)["total"] == 30


def test_an_entry_that_is_named_twice_counts_once(any_store: BaseStore):
    fill(any_store, U, 9)
    mine = [address(entry) for entry in list_user_memories(any_store, U)[0]]
    assert delete_user_memory_entries(any_store, U, [mine[0], mine[0], mine[1]]) == 2
    assert count_user_memories(any_store, U)["total"] == 7


def test_many_entries(own_store: BaseStore):
    fill(own_store, U, 1_100)
    mine = [address(entry) for entry in list_user_memories(own_store, U, limit=None)[0]]
    assert delete_user_memory_entries(own_store, U, mine) == 1_100
    assert count_user_memories(own_store, U)["total"] == 0


@pytest.mark.parametrize("deletes", [False, True], ids=["purge", "delete"])
def test_a_removal_of_all_ends_beside_callers_who_save_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: bool
):
    """Whatever it removed was replaced by the time it looked again, so that it never ended."""
    monkeypatch.setattr(delete, "PORTION", 4)
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for number in range(10):
            service.save_memory(U, f"before {number}", "facts")
        write, saved = store.engine.write, 0

        def write_beside(*args: Any, **options: Any) -> Any:
            nonlocal saved
            if (saved := saved + 1) < 50:  # as many as the removal, after each of its portions
                for number in range(4):
                    run(write([put_of(record_of_fact(f"meanwhile {saved} {number}"))]))
            return write(*args, **options)

        monkeypatch.setattr(store.engine, "write", write_beside)
        removed = service.delete_user_memories(U) if deletes else purge_user_memories(store, U)
        assert removed == 10
        assert saved < 50
        left = [entry["content"] for entry in list_user_memories(store, U, limit=None)[0]]
        assert left
        assert all(content.startswith("meanwhile") for content in left)


def record_of_fact(content: str) -> MemoryRecord:
    now = FrozenClock().now().replace(year=2100)
    return MemoryRecord(
        id=content.replace(" ", "-"),
        content=content,
        memory_type=MemoryType.FACTS,
        category=MemoryCategory.SEMANTIC,
        namespace=(U_LABEL, "semantic"),
        created_at=now,
        updated_at=now,
    )


def test_purge_also_takes_what_is_of_no_category(any_store: BaseStore):
    fill(any_store, U, 9)
    label = "~ada~40example~2ecom"
    for namespace in ((label,), (label, "memories"), (label, "notes", "deep")):
        any_store.put(namespace, "k", {"content": "old"})
    any_store.put((OTHER, "memories"), "k", {"content": "old"})
    assert count_user_memories(any_store, U)["total"] == 9
    assert purge_user_memories(any_store, U, "semantic") == 3
    assert purge_user_memories(any_store, U) == 9
    assert any_store.search((label,)) == []
    assert len(any_store.search((OTHER,))) == 1


def test_bad_arguments(any_store: BaseStore):
    fill(any_store, U, 9)
    with pytest.raises(InvalidCategory):
        purge_user_memories(any_store, U, "x")
    with pytest.raises(InvalidCategory):
        list_user_memories(any_store, U, category="x")
    with pytest.raises(InvalidMemoryType):
        list_user_memories(any_store, U, memory_type="x")
    pages: list[dict[str, Any]] = [{"limit": -1}, {"offset": -1}]
    for page in pages:
        with pytest.raises(InvalidInput, match="negative"):
            list_user_memories(any_store, U, **page)
    for user in ("", None, True, 5.5):
        bad: Any = user
        for call in (purge_user_memories, count_user_memories, list_user_memories):
            with pytest.raises(InvalidId):
                call(any_store, bad)
        with pytest.raises(InvalidId):
            delete_user_memory_entries(any_store, bad, [((U,), "m0000")])
    assert count_user_memories(any_store, U)["total"] == 9


@pytest.mark.parametrize("key", ["", "a\x00b", "\ud800", 5])
def test_no_entry_has_such_a_key(any_store: BaseStore, key: Any):
    fill(any_store, U, 1)
    ((entry,), _) = list_user_memories(any_store, U)
    with contextlib.suppress(InvalidInput):
        assert delete_user_memory_entry(any_store, U, entry["namespace"], key) is False
    assert count_user_memories(any_store, U)["total"] == 1


HELPERS = (
    *(purge_user_memories, count_user_memories, list_user_memories, delete_user_memory_entry),
    *(delete_user_memory_entries, purge_user_long_term_memory, count_user_long_term_memory),
    *(list_user_long_term_memory, delete_user_long_term_memory_entry, delete_user_long_term_memory_entries),
)


@pytest.mark.parametrize("helper", HELPERS, ids=lambda one: one.__name__)
def test_a_tool_can_be_made_of_it(helper: Any):
    """Guards the schema, which a store cannot be part of, and the name, which was another helper's."""
    described = convert_to_openai_tool(StructuredTool.from_function(helper))["function"]
    assert getattr(agent_memory_service, described["name"]) is helper
    assert "user_id" in described["parameters"]["properties"]
    assert "store" not in described["parameters"]["properties"]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite+aiosqlite:///{tmp_path / 'configured' / 'memory.db'}"
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", url)
    return url


def test_the_configured_store(configured: str):
    with open_memory_store() as store:
        assert isinstance(store, MemoryStore)
        fill(store, U, 510)
        fill(store, OTHER, 9)
    assert count_user_long_term_memory(U) == {"semantic": 171, "episodic": 171, "procedural": 168, "total": 510}
    found, total = list_user_long_term_memory(U, category="episodic", memory_type="context", search="TEA", limit=7)
    assert (len(found), total) == (7, 171)
    assert delete_user_long_term_memory_entry(U, *address(found[0])) is True
    assert delete_user_long_term_memory_entry(OTHER, *address(found[1])) is False
    assert delete_user_long_term_memory_entries(U, [address(entry) for entry in found]) == 6
    assert purge_user_long_term_memory(U, "procedural") == 168
    assert purge_user_long_term_memory(U) == 510 - 7 - 168
    assert count_user_long_term_memory(OTHER)["total"] == 9
    with open_store(configured, embeddings=None) as store:
        assert AgentMemoryStoreService(store=store, agent_name="coder").sync.count_memories(OTHER)["total"] == 7


def test_the_configured_store_is_closed_after_an_error(configured: str):
    def fail() -> None:
        with open_memory_store() as store:
            store.put((U.partition("@")[0],), "k", {"n": 1})
            opened.append(store)
            raise KeyError("x")

    opened: list[Any] = []
    with pytest.raises(KeyError):
        fail()
    with pytest.raises(StoreUnavailable, match="closed"):
        opened[0].get(("ada",), "k")
    assert Path(configured.partition("///")[2]).exists()


def test_users_by_pages(any_store: BaseStore):
    names = ["ada@example.com", "bob", "Carl", "~dora", "eve"]
    for number, name in enumerate(names, 1):
        fill(any_store, name, number)
    any_store.put(("frank", "notes"), "k", {"text": "not a memory"})
    any_store.put(("~global", "semantic", "faq"), "k", {"content": "for all"})
    found: list[UserEntry] = []
    after: str | None = None
    while True:
        page = list_users(any_store, limit=2, after=after)
        found += page
        after = page.next_cursor
        if after is None:
            break
    assert {one["user_id"]: one["memories"] for one in found} == {name: at for at, name in enumerate(names, 1)}
    assert len(found) == len(names)
    with pytest.raises(InvalidInput):
        list_users(any_store, limit=0)
