"""What LangGraph's own tests ask of a store, asked of ours: the same answers, but for the differences that are told.

Nobody wrote the answers down: each case is put to LangGraph's InMemoryStore and to each of our stores, sync and async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from support import HashingEmbeddings

from inference_core import open_store

NS = ("u", "notes")
PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
Ask = Callable[..., Awaitable[Any]]
Case = tuple[str, tuple[Any, ...], dict[str, Any]]
ITEMS: dict[str, dict[str, Any]] = {
    "a": {"n": 2, "t": "b", "map": {"k": 1, "l": 2}, "list": [1, 2], "none": None},
    "b": {"n": 10, "t": "a", "none": 0},
    "c": {"n": 2.5, "t": "b", "none": 0},
}
NAMES = [
    *(("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"), ("a", "c", "f"), ("b", "a", "f")),
    *(("users", "123"), ("users", "456", "settings"), ("ü", "a b", "%_")),
]


def listing(**options: Any) -> Case:
    return "list_namespaces", (), options


def search(*prefix: str, **options: Any) -> Case:
    return "search", (prefix,), options


SAME: list[Case] = [
    *(search(*NS, filter=one) for one in ({}, {"n": 2}, {"n": {"$eq": 10}}, {"n": {"$ne": 10}}, {"n": 2, "t": "b"})),
    *(search(*NS, filter={"n": {name: 2.5}}) for name in ("$gt", "$gte", "$lt", "$lte")),
    *(search(*NS, filter=one) for one in ({"n": {"$gt": 2, "$lt": 10}}, {"t": "b", "n": {"$gt": 2}}, {"t": "z"})),
    *(search(*NS, filter=one) for one in ({"list": [1, 2]}, {"list": (1, 2)}, {"list": [2, 1]}, {"t": {"$eq": "b"}})),
    *(search(*NS, filter=one) for one in ({"map": {"k": 1, "l": 2}}, {"map": {"k": 2}})),
    *(search(*prefix, limit=99) for prefix in ((), ("u",), ("u", "notes", "x"), ("U",), ("not",))),
    *(search(*NS, limit=limit, offset=offset) for limit, offset in ((0, 0), (9, 3), (9, 99))),
    *(listing(prefix=one) for one in (("a",), ("a", "b"), ("a", "*", "f"), ("*", "a"), ("a", "b", "c", "d", "e"), ())),
    *(listing(suffix=one) for one in (("f",), ("*", "f"), ("d", "*"), ("x", "a", "b", "c"), ("settings",), ("%_",))),
    *(listing(**one) for one in ({}, {"prefix": ("a",), "suffix": ("f",)}, {"prefix": ("users", "*", "settings")})),
    *(listing(max_depth=depth, prefix=prefix) for depth in (1, 2, 3, 9) for prefix in ((), ("a", "b"))),
    *(listing(limit=limit, offset=offset) for limit, offset in ((2, 0), (2, 2), (4, 8), (3, 50), (0, 0))),
    *(("get", (NS, key), {}) for key in ("a", "nobody")),
    *(("get", (name, "a"), {}) for name in ((), ("u",), ("u", "notes", "x"))),
    *(("delete", (NS, key), {}) for key in ("a", "nobody")),
    *(("put", (NS, "a", value), {}) for value in ({"n": 3}, {}, {"deep": [{"x": [None, True, "\U0001f600"]}]}, None)),
    ("put", (NS, "new", {"n": 1}), {"index": False}),
    ("put", (NS, "new", {"n": 1}), {"index": ["n"]}),
    *(("put", (name, "k", {"n": 1}), {}) for name in ((), ("",), ("a", ""), ("a.b",), (1,), ("langgraph", "x"))),
    *(("put", (name, "k", {"n": 1}), {}) for name in (("x", "langgraph"), ("a b", "ü%_"), ("*",))),
    *((name, (("a.b",), *rest), {}) for name, rest in (("get", ("k",)), ("search", ()), ("delete", ("k",)))),
    ("batch", ([PutOp(NS, "k", {"n": n}) for n in range(5)],), {}),
    ("batch", ([PutOp(NS, "a", None), PutOp(NS, "b", {"n": 11}), PutOp(("v",), "k", {"n": 1})],), {}),
    ("batch", ([GetOp(NS, "a"), SearchOp(("v",)), GetOp(NS, "nobody"), GetOp(("v",), "k")],), {}),
    ("batch", ([ListNamespacesOp(match_conditions=(MatchCondition("suffix", ("f",)),), max_depth=2, limit=9)],), {}),
    ("batch", ([],), {}),
]


async def filled(store: BaseStore) -> BaseStore:
    for key, value in ITEMS.items():
        await store.aput(NS, key, value)
    for name in NAMES:
        await store.aput(name, "k", {"n": 1})
    return store


def plain(found: Any) -> Any:
    """Without times and scores; what was found in an order that is the stores' own is sorted."""
    if isinstance(found, Item):
        return found.namespace, found.key, found.value
    if isinstance(found, list):
        parts = [plain(one) for one in found]
        return sorted(parts, key=repr) if any(isinstance(one, Item) for one in found) else parts
    return found


async def answer(store: BaseStore, case: Case, face: str) -> Any:
    name, positional, options = case
    try:
        if face == "async":
            found = await getattr(store, f"a{name}")(*positional, **options)
        else:
            found = getattr(store, name)(*positional, **options)
    except InvalidNamespaceError as error:
        return str(error)
    return plain(found)


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_the_answers_are_langgraphs(own_store: BaseStore, face: str):
    """Guards every case alone, and what is in the store after all of them: each one starts where the last has left."""
    ours, theirs = await filled(own_store), await filled(InMemoryStore())
    for case in SAME:
        assert await answer(ours, case, face) == await answer(theirs, case, face), case
    everything = search(limit=999)
    assert await answer(ours, everything, face) == await answer(theirs, everything, face)


async def test_regression_nothing_has_an_empty_namespace(own_store: BaseStore):
    """`get` raised IndexError for one."""
    assert own_store.get((), "a") is None
    assert await own_store.aget((), "a") is None


async def in_order(store: BaseStore) -> Any:
    found = await store.abatch([PutOp(NS, "new", {"n": 1}), GetOp(NS, "new")])
    return plain(found[1])


async def by_words(store: BaseStore) -> Any:
    await store.aput(NS, "tea", {"t": "green tea"})
    return plain(await store.asearch(NS, query="tea"))


async def newest_first(store: BaseStore) -> Any:
    return [item.key for item in await store.asearch(NS)]


async def creation_stays(store: BaseStore) -> Any:
    before = await store.aget(NS, "a")
    await store.aput(NS, "a", {"n": 3})
    after = await store.aget(NS, "a")
    assert before is not None
    assert after is not None
    return before.created_at == after.created_at


async def copies(store: BaseStore) -> Any:
    found = await store.aget(NS, "a")
    assert found is not None
    found.value["n"] = "changed"
    again = await store.aget(NS, "a")
    assert again is not None
    return again.value["n"]


async def index_config(store: Any) -> Any:
    try:
        return store.index_config
    except AttributeError as error:
        return type(error).__name__


def asked(method: str, *positional: Any, **options: Any) -> Callable[[BaseStore], Awaitable[Any]]:
    async def one(store: BaseStore) -> Any:
        try:
            found = await getattr(store, method)(*positional, **options)
        except (ValueError, TypeError, NotImplementedError) as error:
            return type(error).__name__
        return [item.key for item in found] if isinstance(found, list) else found

    return one


A = (NS, "a", ITEMS["a"])
DIFFERENT: dict[str, tuple[Callable[[BaseStore], Awaitable[Any]], Any, Any]] = {
    "a get or search in a batch after a put": (in_order, None, (NS, "new", {"n": 1})),
    "a search without a query": (newest_first, ["a", "b", "c"], ["c", "b", "a"]),
    "a query on a store without a model": (
        by_words,
        [A, (NS, "b", ITEMS["b"]), (NS, "c", ITEMS["c"]), (NS, "tea", {"t": "green tea"})],
        [(NS, "tea", {"t": "green tea"})],
    ),
    "`created_at` after an update": (creation_stays, False, True),
    "`store.index_config`": (index_config, None, "AttributeError"),
    "a value that you change after reading it": (copies, "changed", 2),
    "a filter for None": (asked("asearch", NS, filter={"missing": None}), ["a", "b", "c"], []),
    "a filter for a part of a nested value": (asked("asearch", NS, filter={"map": {"k": 1}}), ["a"], []),
    "a comparison with a field of another kind": (asked("asearch", NS, filter={"t": {"$gt": 1}}), "ValueError", []),
    "a value that is not JSON": (asked("aput", NS, "x", {"n": float("nan")}), None, "InvalidMemory"),
    "an empty key, or one of more than 1,024 characters": (
        asked("aput", NS, "", {"n": 1}),
        None,
        "InvalidNamespaceError",
    ),
    "a negative limit or offset, or a limit above 10,000": (
        asked("asearch", NS, limit=-1),
        ["a", "b"],
        "InvalidFilter",
    ),
    "a namespace as a list": (asked("aput", ["u", "notes"], "x", {"n": 1}), "TypeError", None),
    "`put(…, ttl=5)`": (asked("aput", NS, "x", {"n": 1}, ttl=5), "NotImplementedError", None),
}


@pytest.mark.parametrize("name", DIFFERENT)
async def test_the_differences_are_those_that_the_page_tells(own_store: BaseStore, name: str):
    """Guards the page: a difference that is gone, has changed or is new fails here."""
    case, theirs, ours = DIFFERENT[name]
    assert await case(await filled(InMemoryStore())) == theirs
    assert await case(await filled(own_store)) == ours
    assert f"| {name} |" in PAGE


def test_a_score_is_no_cosine_and_a_dot_is_no_path(tmp_path: Path):
    """Guards two more differences that the page tells, which need a model, and LangGraph's SQLite store."""
    index: Any = {"embed": HashingEmbeddings(), "dims": HashingEmbeddings.dimensions, "fields": ["t"]}
    with (
        SqliteStore.from_conn_string(str(tmp_path / "langgraph.db")) as sqlite,
        open_store("memory://", index=index) as own,
    ):
        sqlite.setup()
        memory = InMemoryStore(index=index)
        for store in (sqlite, own, memory):
            store.put(NS, "tea", {"t": "green tea", "map": {"k": 1}})
        assert [len(store.search(NS, filter={"map.k": 1})) for store in (sqlite, own, memory)] == [1, 0, 0]
        ours, theirs = (store.search(NS, query="green tea")[0].score for store in (own, memory))
        assert ours is not None
        assert theirs is not None
        assert theirs <= 1.001 < ours
    assert "| `score` of a query's hit |" in PAGE
    assert '`{"map.k": 1}`' in PAGE
