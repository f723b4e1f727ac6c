"""What looks like a serialized object or like SQL is data: it comes back as it was, and opens nothing (T10, T14)."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest
from langgraph.store.base import BaseStore

import inference_core
from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.agents.tools import get_memory_tools
from inference_core.errors import InferenceCoreError
from inference_core.transfer.json_lines import export_store, import_store

CANARY: Final = "canary-of-the-environment"
SERIALIZED: Final[list[dict[str, Any]]] = [
    {"lc": 1, "type": "secret", "id": ["INERT_CANARY"]},
    {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "false"}},
    {"__class__": "os.system", "__reduce__": ["os.system", ["false"]]},
    {"py/object": "os.system", "$type": "System.Diagnostics.Process", "!!python/object/apply": "os.system"},
    {"pickle": "\x80\x04\x95cos\nsystem\n.".encode("latin-1").hex(), "__proto__": {"isAdmin": True}},
    {"text": "{0.__class__.__init__.__globals__} %(PATH)s ${INERT_CANARY} {{7*7}}"},
]
FIELDS: Final = [
    *("city') OR '1'='1", 'city" OR ""="', "city'; DROP TABLE memory_rows; --", "city') UNION SELECT value --"),
    *(
        "$.city",
        "$**.city",
        "{city}",
        "city->>'x'",
        "value,city",
        "city.name",
        "__proto__",
        "constructor",
        "%",
        "_",
        "*",
    ),
    *("cit_", "city%", "CITY", "city ", "[city]", "`city`", "city\x00", "city\n", "$where", "$regex", "\u202ecity"),
]
_OF_FIELDS: Final = ["{}", "{}.city", "city.{}", "city {}", "{}\n", "(({}))", "`{}`", "{}\x00"]
"""Each hostile key also inside of others."""
OPERATORS: Final = ["$where", "$regex", "$like", "$eq') OR 1=1 --", "$gt; SELECT 1", "$function", "= 1 OR 1", ""]
QUERIES: Final = [
    *("' OR '1'='1", '" OR 1=1 --', "tea* OR coffee", "NEAR(tea coffee)", "tea:*", "!tea & | <-> (", "content:tea"),
    *("%", "_", "*", "[a-z]*", "(a+)+$" * 50, "\\", "tea\x00", "{tea} - ^tea", "AND OR NOT", "-" * 200),
]


def test_serialized_objects_stay_data(own_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LangChain's loader once made objects, with secrets of the environment, of users' own dictionaries."""
    monkeypatch.setenv("INERT_CANARY", CANARY)
    service = AgentMemoryStoreService(own_store)
    said = [json.dumps(one) for one in SERIALIZED]
    ids = [
        service.sync.save_memory("ada", text, "facts", extra_metadata={"given": one})
        for text, one in zip(said, SERIALIZED, strict=True)
    ]
    with own_store_filled_from(own_store, tmp_path) as other:
        for one in (service, AgentMemoryStoreService(other)):
            found = {memory.id: memory for memory in one.sync.list_memories("ada", limit=None)[0]}
            assert [found[name].content for name in ids] == said
            assert [found[name].value["extra_metadata"]["given"] for name in ids] == SERIALIZED
    (recall,) = (one for one in get_memory_tools(service, user_id="ada") if one.name == "recall_memories_store")
    told = recall.invoke({"query": "lc type secret id INERT_CANARY", "max_results": 20})
    assert "INERT_CANARY" in told
    assert CANARY not in told


def own_store_filled_from(store: MemoryStore, folder: Path) -> MemoryStore:
    export_store(store.engine.backend, folder / "out.jsonl")
    other = open_store("memory://", embeddings=None)
    import_store(folder / "out.jsonl", other.engine.backend)
    return other


def test_no_code_is_loaded_from_data() -> None:
    """No pickle, eval, exec or unsafe YAML anywhere in the package."""
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "eval", "exec"}
    found: list[str] = []
    for path in Path(inference_core.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in forbidden):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                names.append(node.func.id)
            found += [f"{path.name}: {name}" for name in forbidden & set(names)]
    assert found == []


@pytest.fixture
def populated(own_store: BaseStore) -> BaseStore:
    own_store.put(("ada", "notes"), "1", {"city": "Oslo"})
    own_store.put(("bob", "notes"), "1", {"city": "Rome", "secret": CANARY})
    return own_store


def test_a_filter_reaches_nothing_outside(populated: BaseStore) -> None:
    """LangGraph's SQLite store once put filter keys, and later operators, into its SQL."""
    fields = [form.format(field) for form in _OF_FIELDS for field in FIELDS]
    assert len({*fields}) >= 200
    conditions: list[dict[str, Any]] = [{field: "Oslo"} for field in fields]
    conditions += [{field: {"$ne": None}} for field in fields]
    conditions += [{"city": {operator: "Oslo"}} for operator in OPERATORS]
    for condition in conditions:
        try:
            found = populated.search(("ada", "notes"), filter=condition, limit=100)
        except InferenceCoreError:
            continue
        assert {item.namespace for item in found} <= {("ada", "notes")}, condition
        (field,) = condition
        if isinstance(condition[field], str):
            assert found == [], condition
    assert [item.key for item in populated.search(("ada", "notes"), filter={"city": "Oslo"})] == ["1"]
    rome = populated.get(("bob", "notes"), "1")
    assert rome is not None
    assert rome.value["secret"] == CANARY


def test_a_query_is_text(populated: BaseStore) -> None:
    """Neither an operator of full-text search, nor a pattern, nor slow."""
    service = AgentMemoryStoreService(populated).sync
    service.save_memory("ada", "Drinks green tea")
    service.save_memory("bob", CANARY)
    started = time.perf_counter()
    for query in QUERIES:
        found = service.recall_memories("ada", query, 10)
        assert {memory.content for memory in found} <= {"Drinks green tea"}
    assert time.perf_counter() - started < 0.5 * len(QUERIES)
