"""MemoryStore as a LangGraph store, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from support import HashingEmbeddings, case

from inference_core import AgentMemory, AgentMemoryStoreService, MemoryStore, open_store
from inference_core.effects import run
from inference_core.errors import InvalidFilter, InvalidInput, InvalidMemory, StoreUnavailable, WriteUnknown
from inference_core.stores import store as store_module
from inference_core.stores.indexing.search import RecallMode, Search

NS = ("u", "notes")
Ask = Callable[..., Awaitable[Any]]
TEXTS = ("green tea with honey", "a bicycle for the mountains", "the opera starts at eight", "tea ceremony in Kyoto")


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, own_store: MemoryStore) -> Ask:
    """Calls a method of the store through either face."""

    async def call(name: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "async":
            return await getattr(own_store, f"a{name}")(*args, **kwargs)
        return getattr(own_store, name)(*args, **kwargs)

    return call


@pytest.fixture
def hybrid(database_url: str) -> Iterator[MemoryStore]:
    with open_store(database_url, embeddings=HashingEmbeddings()) as store:
        yield store


def keys(items: Sequence[Item]) -> list[str]:
    return [item.key for item in items]


async def test_put_get_delete(ask: Ask):
    assert await ask("get", NS, "a") is None
    await ask("put", NS, "a", {"n": [1, {"x": None}], "t": "Ü \U0001f600"})
    item = await ask("get", NS, "a")
    assert (item.namespace, item.key, item.value) == (NS, "a", {"n": [1, {"x": None}], "t": "Ü \U0001f600"})
    await ask("put", NS, "a", {"n": 2})
    assert (await ask("get", NS, "a")).value == {"n": 2}
    await ask("delete", NS, "a")
    await ask("delete", NS, "a")
    assert await ask("get", NS, "a") is None
    assert await ask("search", NS) == []
    assert await ask("search", NS, query="n") == []
    assert await ask("list_namespaces") == []


async def test_timestamps(ask: Ask):
    before = datetime.now(UTC)
    await ask("put", NS, "a", {"n": 1})
    first = await ask("get", NS, "a")
    await ask("put", NS, "a", {"n": 2})
    second = await ask("get", NS, "a")
    assert before <= first.created_at == first.updated_at == second.created_at < second.updated_at <= datetime.now(UTC)
    (found,) = await ask("search", NS)
    assert (found.created_at, found.updated_at) == (second.created_at, second.updated_at)


async def test_search_without_a_query_gives_the_newest(ask: Ask):
    for key in "cab":
        await ask("put", NS, key, {"n": key})
    await ask("put", NS, "c", {"n": "again"})
    found = await ask("search", NS)
    assert keys(found) == ["b", "a", "c"]
    assert {item.score for item in found} == {None}


async def test_search_by_words(ask: Ask):
    for key, text in enumerate(TEXTS):
        await ask("put", NS, str(key), {"text": text, "deep": [{"er": "saxophone" if key == 1 else ""}]})
    found = await ask("search", NS, query="tea from Kyoto")
    assert keys(found) == ["3", "0"]
    assert found[0].score > found[1].score > 0
    assert keys(await ask("search", NS, query="saxophones")) == ["1"]
    assert await ask("search", NS, query="zeppelin") == []
    assert len(await ask("search", NS, query="")) == 4


async def test_prefixes_match_whole_labels(ask: Ask):
    names = [("u1",), ("u1", "a"), ("u1", "a", "b"), ("u1", "ab"), ("u10", "a"), ("u", "a"), ("u_", "a"), ("u%", "a")]
    for name in names:
        await ask("put", name, "k", {"text": "tea"})
    for prefix in [(), ("u1",), ("u1", "a"), ("u",), ("u_",), ("u%",), ("u1", "a", "b"), ("U1",), ("u1", "b")]:
        wanted = {name for name in names if name[: len(prefix)] == prefix}
        for query in (None, "tea"):
            found = await ask("search", prefix, query=query, limit=99)
            assert {item.namespace for item in found} == wanted
            assert len(found) == len(wanted)
        assert await ask("list_namespaces", prefix=prefix) == sorted(wanted)


async def test_list_namespaces(ask: Ask):
    names = [("u", "a"), ("u", "a", "x"), ("u", "b", "x"), ("v", "b"), ("w", "c", "d", "x")]
    for name in names:
        await ask("put", name, "k", {})
    assert await ask("list_namespaces") == names
    assert await ask("list_namespaces", suffix=("x",)) == [names[1], names[2], names[4]]
    assert await ask("list_namespaces", prefix=("u",), suffix=("b", "x")) == [names[2]]
    assert await ask("list_namespaces", prefix=("*", "b")) == [names[2], names[3]]
    assert await ask("list_namespaces", suffix=("c", "*", "x")) == [names[4]]
    assert await ask("list_namespaces", prefix=("u", "a", "x", "y")) == []
    assert await ask("list_namespaces", max_depth=1) == [("u",), ("v",), ("w",)]
    assert await ask("list_namespaces", max_depth=2, limit=2, offset=1) == [("u", "b"), ("v", "b")]
    assert await ask("batch", [ListNamespacesOp(match_conditions=None, limit=1)]) == [[names[0]]]


async def test_paging_reaches_everything_once(ask: Ask):
    await ask("batch", [PutOp(NS, f"k{n:02}", {"text": f"tea number {n}", "odd": n % 2 == 1}) for n in range(57)])
    await ask("put", ("u", "notes2"), "stranger", {"text": "tea number 1", "odd": True})
    for options, total in (({}, 57), ({"query": "tea"}, 57), ({"filter": {"odd": True}}, 28)):
        pages = [await ask("search", NS, limit=10, offset=offset, **options) for offset in range(0, 70, 10)]
        found = [key for page in pages for key in keys(page)]
        assert (len(found), len(set(found))) == (total, total)
        assert [len(page) for page in pages] == [max(0, min(10, total - offset)) for offset in range(0, 70, 10)]
    both = {"query": "number", "filter": {"odd": False}}
    pages = [keys(await ask("search", NS, limit=7, offset=offset, **both)) for offset in range(0, 35, 7)]
    assert sorted(key for page in pages for key in page) == [f"k{n:02}" for n in range(0, 57, 2)]


async def test_a_filter_looks_at_more_than_a_page(ask: Ask):
    await ask("batch", [PutOp(NS, f"k{n:04}", {"n": n}, index=False) for n in range(1_100)])
    assert len(await ask("search", NS, filter={"n": {"$lt": 1_050}}, limit=2_000)) == 1_050
    assert keys(await ask("search", NS, filter={"n": 7})) == ["k0007"]


ITEMS: dict[str, dict[str, Any]] = {
    "a": {"n": 2, "t": "b", "x": None, "flag": True, "map": {"k": 1}, "list": [1, 2]},
    "b": {"n": 10, "t": "a", "x": 0, "flag": False},
    "c": {"n": 2.5, "t": "Z"},
    "d": {"n": "10", "t": 1, "x": ""},
    "e": {},
}
FILTERS: list[tuple[dict[str, Any] | None, str]] = [
    (None, "abcde"),
    ({}, "abcde"),
    ({"n": 2}, "a"),
    ({"n": {"$eq": 10}}, "b"),
    ({"n": {"$ne": 10}}, "acde"),
    ({"n": {"$gt": 2}}, "bc"),
    ({"n": {"$gte": 2}}, "abc"),
    ({"n": {"$lt": 10}}, "ac"),
    ({"n": {"$lte": 10}}, "abc"),
    ({"n": {"$gt": 2, "$lt": 10}}, "c"),
    ({"n": {"$gt": "1"}}, "d"),
    ({"t": {"$gt": "Z"}}, "ab"),
    ({"x": None}, "a"),
    ({"x": {"$ne": None}}, "bcde"),
    ({"flag": True}, "a"),
    ({"flag": {"$gte": 0}}, ""),
    ({"map": {"k": 1}}, "a"),
    ({"map": {}}, ""),
    ({"list": [1, 2]}, "a"),
    ({"n": 2, "t": "b"}, "a"),
    ({"n": 2, "t": "a"}, ""),
    ({"missing": {"$lt": 5}}, ""),
    ({"missing": {"$ne": 5}}, "abcde"),
    ({"map.k": 1}, ""),
    ({"' OR 1=1 --": 1}, ""),
    ({"n": {"$in": [2, "10", None]}}, "ad"),
    ({"n": {"$nin": [2, "10"]}}, "bce"),
    ({"x": {"$exists": True}}, "abd"),
    ({"list": {"$contains": 2}}, "a"),
    ({"t": {"$contains": "Z"}}, "c"),
    ({"$or": [{"n": 10}, {"t": "Z"}]}, "bc"),
    ({"$not": {"n": {"$exists": True}}}, "e"),
    ({"$and": [{"n": 2}, {"$not": {"t": "a"}}], "flag": True}, "a"),
]


async def test_filters(ask: Ask):
    for key, value in ITEMS.items():
        await ask("put", NS, key, value | {"text": "tea"})
    for conditions, wanted in FILTERS:
        for query in (None, "tea"):
            found = await ask("search", NS, filter=conditions, query=query)
            assert "".join(sorted(keys(found))) == wanted, (conditions, query)


BAD_FILTERS: list[Any] = [
    {"n": {"$regex": "."}},
    {"n": {"$gt": 1, "x": 2}},
    {"$nor": [{"n": 1}]},
    {"n": {"$or": [1]}},
    {1: 2},
    {"n": {"$gt": None}},
    {"n": {"$gt": True}},
    {"n": {"$lte": [1]}},
    ["n"],
    "n",
]


async def test_a_filter_that_cannot_be_understood_is_an_error(ask: Ask):
    await ask("put", NS, "a", {"n": 1})
    for conditions in BAD_FILTERS:
        for query in (None, "tea"):
            with case(repr(conditions)), pytest.raises(InvalidFilter):
                await ask("search", NS, filter=conditions, query=query)


@pytest.mark.parametrize("page", [{"limit": -1}, {"limit": 10_001}, {"offset": -1}])
async def test_pages_have_bounds(ask: Ask, page: dict[str, int]):
    with pytest.raises(InvalidFilter, match="limit"):
        await ask("search", NS, **page)
    with pytest.raises(InvalidFilter, match="limit"):
        await ask("list_namespaces", **page)


@pytest.mark.parametrize("options", [{}, {"query": "tea"}, {"filter": {"t": "tea"}}])
async def test_a_page_far_behind_the_end_is_empty_or_refused(ask: Ask, options: dict[str, Any]):
    await ask("put", NS, "a", {"t": "tea"})
    assert await ask("search", NS, offset=10_000, **options) == []
    with contextlib.suppress(InvalidFilter):
        assert await ask("search", NS, offset=10**30, **options) == []


async def test_a_limit_of_nothing(ask: Ask):
    await ask("put", NS, "a", {"t": "tea"})
    for options in ({}, {"query": "tea"}, {"filter": {"t": "tea"}}):
        assert await ask("search", NS, limit=0, **options) == []


async def test_no_stale_hits(ask: Ask):
    await ask("put", NS, "a", {"t": "secret saxophone"})
    assert keys(await ask("search", NS, query="saxophone")) == ["a"]
    await ask("put", NS, "a", {"t": "plain piano"})
    assert await ask("search", NS, query="saxophone") == []
    assert keys(await ask("search", NS, query="piano")) == ["a"]
    await ask("put", NS, "a", {"t": "hidden harp"}, index=False)
    assert await ask("search", NS, query="piano harp hidden") == []
    assert keys(await ask("search", NS)) == ["a"]
    await ask("put", NS, "a", {"t": "loud lute"})
    await ask("delete", NS, "a")
    assert await ask("search", NS, query="lute") == []
    await ask("put", NS, "a", {"t": "back"}, index=False)
    assert await ask("search", NS, query="lute back") == []


async def test_index_names_the_fields_to_search(ask: Ask):
    value = {"title": "sonata", "body": "cello", "parts": [{"name": "largo"}, {"name": "presto"}]}
    await ask("put", NS, "a", value, index=["title", "parts[*].name"])
    assert keys(await ask("search", NS, query="sonata")) == keys(await ask("search", NS, query="presto")) == ["a"]
    assert await ask("search", NS, query="cello") == []
    await ask("put", NS, "b", value, index=["none"])
    assert keys(await ask("search", NS, query="sonata")) == ["a"]


async def test_values_are_copies(ask: Ask):
    value = {"tags": ["x"]}
    await ask("put", NS, "a", value)
    value["tags"].append("y")
    (await ask("get", NS, "a")).value["tags"].append("z")
    (await ask("search", NS))[0].value["tags"].append("z")
    (await ask("search", NS, query="x"))[0].value["tags"].append("z")
    assert (await ask("get", NS, "a")).value == {"tags": ["x"]}


async def test_a_batch_keeps_its_order_and_reads_its_own_writes(ask: Ask):
    results = await ask(
        "batch",
        [
            GetOp(NS, "a"),
            PutOp(NS, "a", {"t": "tea 1"}),
            PutOp(NS, "b", {"t": "tea 2"}),
            GetOp(NS, "a"),
            SearchOp(NS, query="tea"),
            PutOp(NS, "a", {"t": "mate"}),
            PutOp(NS, "a", None),
            PutOp(NS, "c", {"t": "tea 3"}),
            GetOp(NS, "a"),
            SearchOp(NS),
            ListNamespacesOp(match_conditions=(MatchCondition("prefix", ("u",)),)),
        ],
    )
    assert [results[at] for at in (0, 1, 2, 5, 6, 7, 8)] == [None] * 7
    assert results[3].value == {"t": "tea 1"}
    assert (set(keys(results[4])), keys(results[9]), results[10]) == ({"a", "b"}, ["c", "b"], [NS])
    assert await ask("batch", []) == []


async def test_puts_that_stand_together_are_stored_together(ask: Ask):
    with pytest.raises(InvalidMemory):
        await ask("batch", [PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", {"n": float("nan")})])
    assert await ask("search", NS) == []


async def test_equal_texts_in_one_batch(ask: Ask):
    await ask("batch", [PutOp(NS, key, {"t": "same tea"}) for key in "abc"])
    assert set(keys(await ask("search", NS, query="tea"))) == {"a", "b", "c"}


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


BAD_VALUES: dict[str, Any] = {
    "nan": {"n": float("nan")},
    "infinity": {"n": [float("-inf")]},
    "surrogate": {"t": "\ud800"},
    "surrogate name": {"\udfff": 1},
    "nul": {"t": ["x", {"y": "a\x00b"}]},
    "nul name": {"a\x00": 1},
    "too large": {"t": "x" * 1024 * 1024},
    "too large in bytes": {"t": "\u20ac" * 400_000},
    "cyclic": cyclic(),
    "object": {"o": object()},
    "bytes": {"b": b"x"},
    "set": {"s": {1}},
    "date": {"d": datetime(2026, 1, 1, tzinfo=UTC)},
    "tuple name": {(1, 2): 1},
    "list": [1],
    "text": "tea",
    "number": 1,
}


async def test_a_value_that_cannot_be_stored_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "MAX_VALUE_BYTES", 1024 * 1024)
    await ask("put", NS, "kept", {"n": 1})
    for name, value in BAD_VALUES.items():
        for key in ("bad", "kept"):
            with case(f"{name}, {key}"):
                with pytest.raises(InvalidMemory):
                    await ask("put", NS, key, value)
                assert [(item.key, item.value) for item in await ask("search", NS)] == [("kept", {"n": 1})]


async def test_regression_keys_of_several_types_in_a_value_are_stored_as_text(ask: Ask):
    """It raised TypeError, but only where the value was indexed."""
    await ask("put", NS, "scores", {"scores": {1: "tea", "total": 3}})
    assert (await ask("get", NS, "scores")).value == {"scores": {"1": "tea", "total": 3}}
    assert [one.key for one in await ask("search", NS, query="tea")] == ["scores"]


async def test_a_namespace_may_be_a_list(ask: Ask):
    """Regression: a search with a list, which LangGraph's stores take, found nothing, and a get raised TypeError."""
    await ask("put", ["u", "a"], "k", {"text": "green tea"})
    assert (await ask("get", ["u", "a"], "k")).namespace == ("u", "a")
    assert [one.key for one in await ask("search", ["u"])] == ["k"]
    assert [one.key for one in await ask("search", ["u", "a"], query="tea")] == ["k"]
    await ask("delete", ["u", "a"], "k")
    assert await ask("get", ("u", "a"), "k") is None


async def test_a_large_result_of_a_tool_is_kept_and_found_by_its_beginning(ask: Ask):
    """Regression: agents that store results of tools ended at values above one megabyte."""
    value = {"text": "quarterly figures " + "line\n" * 300_000}
    await ask("put", NS, "large", value)
    assert (await ask("get", NS, "large")).value == value
    assert [one.key for one in await ask("search", NS, query="quarterly figures")] == ["large"]


@pytest.mark.parametrize("depth", [60, 900])
async def test_what_was_stored_can_be_read_from_anywhere(ask: Ask, depth: int):
    value: dict[str, Any] = {"leaf": True}
    for _ in range(depth):
        value = {"a": value}
    try:
        await ask("put", NS, "deep", value)
    except InvalidMemory:
        assert depth > 60
        return

    async def below(frames: int) -> Any:
        return await below(frames - 1) if frames else await ask("get", NS, "deep")

    assert (await below(60)).value == value


BAD_KEYS = {"empty": "", "long": "x" * 1_025, "nul": "a\x00b", "surrogate": "\ud800"}


async def test_a_key_that_cannot_be_stored_is_refused(ask: Ask):
    for name, key in BAD_KEYS.items():
        with case(name):
            with pytest.raises((InvalidNamespaceError, InvalidInput)):
                await ask("put", NS, key, {"n": 1})
            with pytest.raises((InvalidNamespaceError, InvalidInput)):
                await ask("batch", [PutOp(NS, "good", {"n": 1}), PutOp(NS, key, {"n": 1})])
            assert await ask("search", ()) == []


async def test_nothing_is_found_under_such_a_key(ask: Ask):
    await ask("put", NS, "good", {"n": 1})
    for name, key in BAD_KEYS.items():
        with case(name):
            with contextlib.suppress(InvalidNamespaceError, InvalidInput):
                assert await ask("get", NS, key) is None
            with contextlib.suppress(InvalidNamespaceError, InvalidInput):
                await ask("delete", NS, key)
            assert keys(await ask("search", NS)) == ["good"]


async def test_a_key_that_is_not_text_in_a_raw_batch(ask: Ask):
    with pytest.raises(InvalidNamespaceError):
        await ask("batch", [PutOp(NS, cast("Any", 5), {"n": 1})])


async def test_a_namespace_that_cannot_be_stored_is_refused(ask: Ask):
    namespaces: list[Any] = [(), ("",), ("a.b",), ("u", ""), ("a\x00b",), (1,), ("u", None), ("\ud800",)]
    for namespace in namespaces:
        with case(ascii(namespace)):
            with pytest.raises((InvalidNamespaceError, InvalidInput)):
                await ask("put", namespace, "a", {"n": 1})
            with pytest.raises((InvalidNamespaceError, InvalidInput)):
                await ask("batch", [PutOp(NS, "good", {"n": 1}), PutOp(namespace, "a", {"n": 1})])
            assert await ask("search", ()) == []


async def test_reading_an_invalid_namespace_is_refused(ask: Ask):
    namespaces: list[Any] = [("",), ("a.b",), ("u", ""), ("a\x00b",), (1,)]
    for namespace in namespaces:
        for operation in (("get", namespace, "a"), ("search", namespace), ("delete", namespace, "a")):
            with case(ascii(operation)), pytest.raises(InvalidNamespaceError):
                await ask(*operation)
        with case(ascii(namespace)), pytest.raises(InvalidNamespaceError):
            await ask("list_namespaces", prefix=namespace)
    with pytest.raises(InvalidNamespaceError):
        await ask("put", ("langgraph",), "a", {"n": 1})


BAD_OPS: dict[str, tuple[Any, Any, Any]] = {
    "value": (NS, "bad", {"n": float("nan")}),
    "namespace": (("a.b",), "bad", {"n": 1}),
    "key": (NS, "", {"n": 1}),
    "unencodable key": (NS, "\ud800", {"n": 1}),
}


@pytest.mark.parametrize("name", BAD_OPS)
async def test_a_bad_write_among_concurrent_ones_fails_alone(own_store: MemoryStore, name: str):
    puts = [own_store.aput(NS, f"k{number}", {"n": number}) for number in range(40)]
    puts.insert(20, own_store.aput(*BAD_OPS[name]))
    results = await asyncio.gather(*puts, return_exceptions=True)
    failed = [at for at, result in enumerate(results) if result is not None]
    assert failed == [20]
    assert isinstance(results[20], InvalidNamespaceError | InvalidInput)
    assert len(await own_store.asearch(NS, limit=99)) == 40


async def test_a_bad_read_among_concurrent_ones_fails_alone(own_store: MemoryStore):
    own_store.put(NS, "a", {"n": 1})
    bad = own_store.asearch(NS, filter={"n": {"$bad": 1}})
    found = await asyncio.gather(own_store.aget(NS, "a"), bad, own_store.asearch(NS), return_exceptions=True)
    assert isinstance(found[0], Item)
    assert isinstance(found[1], InvalidFilter)
    assert isinstance(found[2], list)


def test_two_stores_on_one_database_see_each_other(shared_url: str):
    with open_store(shared_url, embeddings=None) as one, open_store(shared_url, embeddings=None) as two:
        for turn in range(3):
            one.put(NS, "a", {"t": f"tea {turn}"})
            (found,) = two.search(NS, query="tea")
            assert found.value == {"t": f"tea {turn}"}
            two.put(NS, "b", {"t": f"mate {turn}"})
            assert keys(one.search(NS, query="mate")) == ["b"]
            assert keys(one.search(NS)) == ["b", "a"]
            two.delete(NS, "a")
            assert one.get(NS, "a") is None
            assert one.search(NS, query="tea") == []
            one.delete(NS, "b")
            assert two.list_namespaces() == []
            assert two.search(NS, query="mate") == []


def test_hybrid_search(hybrid: MemoryStore):
    assert hybrid.wait_ready(5)
    for key, text in enumerate(TEXTS):
        hybrid.put(NS, str(key), {"text": text}, index=["text"])
    hybrid.put(NS, "unindexed", {"text": TEXTS[0]}, index=False)
    found = hybrid.search(NS, query="green tea with honey")
    assert found[0].key == "0"
    assert set(keys(found)) == {"0", "1", "2", "3"}
    scores = [item.score or 0.0 for item in found]
    assert scores == sorted(scores, reverse=True)
    hybrid.delete(NS, "0")
    hybrid.put(NS, "0", {"text": "zeppelin"}, index=False)
    assert set(keys(hybrid.search(NS, query="green tea with honey"))) == {"1", "2", "3"}


def test_hybrid_search_says_how_it_ranked(hybrid: MemoryStore):
    hybrid.batch([PutOp(NS, str(key), {"text": text}) for key, text in enumerate(TEXTS)])
    result = run(hybrid.engine.search(Search(groups=[[NS], [("v",)]], text="bicycle", limit=2)))
    assert [len(group) for group in result.groups] == [2, 0]
    assert (result.groups[0][0].row.key, result.mode, result.reason) == ("1", RecallMode.HYBRID, None)


def test_pages_of_a_hybrid_search(hybrid: MemoryStore):
    hybrid.batch([PutOp(NS, f"k{n}", {"text": f"word{n} tea"}, index=["text"]) for n in range(57)])
    pages = [keys(hybrid.search(NS, query="word7 tea", limit=10, offset=offset)) for offset in range(0, 60, 10)]
    assert pages[0][0] == "k7"
    assert sorted(key for page in pages for key in page) == sorted(f"k{n}" for n in range(57))


def test_without_a_model_recall_says_so(own_store: MemoryStore):
    own_store.put(NS, "a", {"t": "tea"})
    result = run(own_store.engine.search(Search(groups=[[NS]], text="tea", limit=2)))
    assert (result.mode, result.reason) == (RecallMode.LEXICAL, "no embedding model")
    assert not own_store.wait_ready(0)


def test_the_best_of_all_users_come_first(own_store: MemoryStore):
    for number in range(6):
        own_store.put((f"u{number}",), "k", {"t": "tea " * (number + 1) + "filler " * (6 - number)})
    found = own_store.search((), query="tea", limit=3)
    scores = [item.score or 0.0 for item in found]
    assert len(found) == 3
    assert scores == sorted(scores, reverse=True)


def test_a_small_cache_gives_the_same_answers(database_url: str):
    with open_store(database_url, embeddings=None, index_bytes=1, max_batches=1, durable=False) as small:
        for user in range(3):
            for key, text in enumerate(TEXTS):
                small.put((f"u{user}",), str(key), {"text": text})
        for user in (0, 1, 2, 0):
            assert keys(small.search((f"u{user}",), query="tea ceremony")) == ["3", "0"]


async def test_a_closed_store_refuses(own_store: MemoryStore, ask: Ask):
    await ask("put", NS, "a", {"n": 1})
    own_store.close()
    own_store.close()
    for operation in (("put", NS, "a", {}), ("get", NS, "a"), ("search", NS), ("list_namespaces",)):
        with pytest.raises(StoreUnavailable):
            await ask(*operation)


async def test_a_store_is_a_context_manager(sqlite_url: str):
    async with open_store(sqlite_url, embeddings=None) as store:
        await store.aput(NS, "a", {"n": 1})
    with pytest.raises(StoreUnavailable), store:
        store.get(NS, "a")
    with open_store(sqlite_url, embeddings=None) as store:
        assert store.get(NS, "a") is not None


async def test_the_end_of_an_async_block_leaves_the_event_loop_running():
    """Closing waited for a call in the thread of the event loop, on which the call waited: a standstill of 10 s."""
    gate = threading.Event()
    async with open_store("memory://", embeddings=None) as store:
        call = store.engine.pool.submit(gate.wait)
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert call.done()


def test_one_store_for_threads_and_event_loops(own_store: MemoryStore):
    async def asynchronous(name: str) -> None:
        async def one(number: int) -> None:
            await own_store.aput(NS, f"{name}-{number}", {"t": f"tea {name} {number}"})
            assert await own_store.aget(NS, f"{name}-{number}") is not None
            assert await own_store.asearch(NS, query=f"{name} {number}")

        await asyncio.gather(*map(one, range(20)))

    def synchronous(name: str) -> None:
        for number in range(20):
            own_store.put(NS, f"{name}-{number}", {"t": f"tea {name} {number}"})
            assert own_store.get(NS, f"{name}-{number}") is not None
            assert own_store.search(NS, query=f"{name} {number}")

    with ThreadPoolExecutor(6) as pool:
        loops = [pool.submit(asyncio.run, asynchronous(f"loop{number}")) for number in range(2)]
        threads = [pool.submit(synchronous, f"thread{number}") for number in range(4)]
        for task in [*loops, *threads]:
            task.result(30)
    assert len(own_store.search(NS, limit=999)) == 120
    assert len(own_store.search(NS, query="tea", limit=999)) == 120


def test_a_write_that_is_not_confirmed_in_time_is_unknown(tmp_path: Path):
    path = tmp_path / "memory.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        batch = [store._write(PutOp(NS, "a", {"n": 1}))]
        store.engine.audit_log.chain_key()  # which the first write of a process reads before it is handed over
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(WriteUnknown, match="retry it under the same id"):
            run(store.engine.write(batch), timeout=1.0)
        with pytest.raises(StoreUnavailable, match="it is not made"):
            run(store.engine.write(batch), timeout=0.2)
        assert store.get(NS, "a") is None
        blocker.execute("ROLLBACK")
        blocker.close()
        end = time.monotonic() + 60
        while store.get(NS, "a") is None and time.monotonic() < end:
            time.sleep(0.02)
        run(store.engine.write(batch), timeout=60)
        assert keys(store.search(NS)) == ["a"]


def test_reads_do_not_wait_for_a_writer(tmp_path: Path):
    path = tmp_path / "memory.db"
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        store.put(NS, "a", {"t": "tea"})
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        assert store.get(NS, "a") is not None
        assert store.search(NS, query="tea")
        assert time.monotonic() - started < 3
        blocker.close()


def test_writes_in_hand_are_finished_by_close(shared_url: str):
    store = open_store(shared_url, embeddings=None)
    start = threading.Barrier(9)
    stored: list[str] = []

    def write(number: int) -> None:
        start.wait()
        for turn in range(50):
            try:
                store.put(NS, f"{number}-{turn}", {"n": turn})
            except StoreUnavailable:
                return
            stored.append(f"{number}-{turn}")

    with ThreadPoolExecutor(8) as pool:
        for number in range(8):
            pool.submit(write, number)
        start.wait()
        time.sleep(0.02)
        store.close()
    with open_store(shared_url, embeddings=None) as again:
        assert set(stored) <= set(keys(again.search(NS, limit=999)))


def test_regression_an_empty_list_of_fields_indexes_nothing(own_store: MemoryStore):
    """As in InMemoryStore; all of the value was indexed, and went to the model."""
    own_store.put(NS, "a", {"t": "tea"}, index=[])
    own_store.put(NS, "b", {"t": "tea"})
    assert keys(own_store.search(NS, query="tea")) == ["b"]


def test_a_search_of_a_users_items_finds_no_rows_of_the_package(own_store: MemoryStore):
    """An application that listed a user's items met chat texts of the outbox, receipts, and conversations."""
    memory = AgentMemoryStoreService(own_store).sync
    own_store.put(("ada", "drafts"), "d1", {"text": "kiln, my own item"})
    own_store.put(("ada", "messages"), "m1", {"text": "kiln, my own message"})
    memory.update_memory("ada", memory.save_memory("ada", "Has a kiln", "facts"), "Has two kilns")
    memory.delete_memory("ada", memory.save_memory("ada", "Kiln gone", "facts"))
    memory.add_messages("ada", [("user", "kiln hello")])
    conversation = AgentMemory(own_store, user_id="ada")
    conversation.update("s1", ("user", "kiln secret"))
    own_store.engine.flush()
    own = [("ada", "drafts"), ("ada", "messages"), ("ada", "semantic")]
    for prefix in (("ada",), ()):
        every: list[dict[str, Any]] = [{}, {"query": "kiln"}, {"filter": {"$not": {"text": "none"}}}]
        for options in every:
            found: Any = own_store.search(prefix, limit=100, **options)
            assert sorted({item.namespace for item in found}) == own
        assert own_store.list_namespaces(prefix=prefix or None) == own
    assert own_store.list_namespaces(suffix=("~shared",)) == []
    assert own_store.list_namespaces(max_depth=1) == [("ada",)]
    for place in (("ada", "short_term", "s1"), ("ada", "forgotten"), ("ada", "outbox"), ("~outbox",)):
        assert own_store.search(place, limit=100)
        assert own_store.list_namespaces(prefix=place)
    assert ("ada", "outbox", "~shared") in own_store.list_namespaces(prefix=("*", "outbox"))
