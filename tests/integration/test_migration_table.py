"""The table in docs/migration.md, row by row: what is moved, what changes in code, and what has no counterpart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, answer
from databases import database
from deepagents.backends.store import StoreBackend
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStoreDocument, migrate_memories, open_store

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
Row = Callable[[Path, Capture], None]
VALUE: dict[str, Any] = {"content": "Ada lives in Lisbon", "created_at": "2025-01-15T10:30:00+00:00", "mood": "calm"}


def only(url: str, agent: str | None = None) -> MemoryStoreDocument:
    """The one memory of Ada in the store, which the agent reads."""
    with open_store(url, embeddings=None) as store:
        (found,), _ = AgentMemoryStoreService(store, agent_name=agent).sync.list_memories("ada")
    return found


def check(found: MemoryStoreDocument) -> None:
    assert (found.id, found.content, found.created_at_iso) == ("m1", VALUE["content"], VALUE["created_at"])
    assert found.metadata["legacy"]["mood"] == "calm"


def in_sqlite(folder: Path, fill: Callable[[BaseStore], Any]) -> str:
    with SqliteStore.from_conn_string(str(folder / "app.db")) as theirs:
        theirs.setup()
        fill(theirs)
    return f"sqlite:///{folder / 'app.db'}"


def flat(folder: Path, capsys: Capture) -> None:
    url = in_sqlite(folder, lambda store: store.put(("ada", "memories"), "m1", VALUE | {"memory_type": "fact"}))
    assert answer(capsys, "migrate", "--url", url)["by_layout"] == {"flat": 1}
    check(only(url))
    assert only(url).memory_type == "facts"


def documented(store: BaseStore) -> None:
    store.put(("ada", "procedural", "planner"), "m1", VALUE | {"memory_type": "skill"})


def documented_in_sqlite(folder: Path, capsys: Capture) -> None:
    url = in_sqlite(folder, documented)
    assert answer(capsys, "migrate", "--url", url)["by_category"]["procedural"] == 1
    check(only(url, "planner"))


def documented_in_postgres(folder: Path, capsys: Capture) -> None:
    with database("postgres", folder, is_new=True) as url:
        with PostgresStore.from_conn_string(url) as theirs:
            theirs.setup()
            documented(theirs)
        assert answer(capsys, "migrate", "--url", url)["written"] == 1
        check(only(url, "planner"))


def in_memory(folder: Path, capsys: Capture) -> None:
    index: Any = {"embed": HashingEmbeddings(), "dims": 64, "fields": ["content"]}
    old = InMemoryStore(index=index)
    old.put(("ada", "semantic"), "m1", VALUE)
    with open_store("memory://", index=index) as store:
        assert migrate_memories(store, source=old).written == 1
        (found,), _ = AgentMemoryStoreService(store).sync.list_memories("ada")
    check(found)


def langmem(folder: Path, capsys: Capture) -> None:
    value = {"kind": "Fact", "content": {"content": VALUE["content"], "mood": "calm"}}
    url = in_sqlite(folder, lambda store: store.put(("memories", "ada"), "m1", value))
    assert answer(capsys, "migrate", "--url", url)["by_layout"] == {"langmem": 1}
    found = only(url)
    assert (found.id, found.content, found.memory_type) == ("m1", VALUE["content"], "general")
    assert found.metadata["legacy"] == {"kind": "Fact", "mood": "calm"}


def mem0(folder: Path, capsys: Capture) -> None:
    row = {"id": "m1", "memory": VALUE["content"], "user_id": "ada", "run_id": "r", "created_at": VALUE["created_at"]}
    rows = [row | {"metadata": {"a": 1}, "mood": "calm"}, {"id": "m2", "memory": "x", "agent_id": "planner"}]
    (folder / "mem0.json").write_text(json.dumps({"results": rows}), encoding="utf-8")
    url = f"sqlite:///{folder / 'app.db'}"
    assert answer(capsys, "import", str(folder / "mem0.json"), "--url", url)["skipped"] == 1
    check(only(url))
    assert (only(url).value["session_id"], only(url).metadata["a"]) == ("r", 1)
    with open_store(url, embeddings=None) as store:
        memory = store.memory("ada")
        assert [one.id for one in memory.all()] == ["m1"]


def deepagents(folder: Path, capsys: Capture) -> None:
    def write(store: BaseStore) -> None:
        files = StoreBackend(store=store, namespace=lambda _: ("ada", "filesystem"))
        assert files.write("/memories/AGENTS.md", VALUE["content"]).error is None

    url = in_sqlite(folder, write)
    assert answer(capsys, "migrate", "--url", url)["found"] == 0
    assert answer(capsys, "migrate", "--url", url, "--layout", "files")["written"] == 1
    found = only(url)
    assert (found.id, found.content, found.topic) == ("/memories/AGENTS.md", VALUE["content"], "/memories/AGENTS.md")
    with open_store(url, embeddings=None) as store:
        write(store)
        assert store.get(("ada", "filesystem"), "/memories/AGENTS.md") is not None


ROWS: dict[str, Row] = {
    'the flat layout: `(user, "memories")`': flat,
    "the CoALA document's layout in `SqliteStore`": documented_in_sqlite,
    "the CoALA document's layout in `PostgresStore`": documented_in_postgres,
    "`InMemoryStore` with `index=`": in_memory,
    "langmem": langmem,
    "mem0": mem0,
    "deepagents": deepagents,
}


def test_the_table_has_these_rows_and_no_others():
    lines = PAGE.read_text(encoding="utf-8").partition("\n\n|")[2].partition("\n\n")[0].splitlines()
    assert [line.strip("| ").partition(" | ")[0] for line in lines[2:]] == list(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_says_happens(row: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    ROWS[row](tmp_path, capsys)
