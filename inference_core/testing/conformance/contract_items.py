"""What LangGraph documents of items: put, get, delete, batches, values, errors."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, cast

from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

from inference_core.testing.conformance.promises import (
    Promises,
    as_json,
    expect,
    expect_equal,
    expect_invalid_namespace,
    expect_same,
    fail,
)
from inference_core.testing.conformance.subject import NS, Subject

RICH: Final[dict[str, Any]] = {
    "text": "tea, thé, 茶, \U0001f375 'quoted' \"twice\" \\ % _ ; --",
    "": "an empty name",
    "deep": {"list": [1, -2.5, True, False, None, "", [], {}], "of": {"maps": {"x": None}}},
}
INVALID: Final[tuple[Any, ...]] = (("",), ("a.b",), ("ada", ""), ("ada", 1), ("ada", None), ("a\x00b",))


class ItemContract(Promises):
    """Items one by one and in batches."""

    def test_put_get_delete(self, subject: Subject) -> None:
        """What is put is got back, replaced by the next put and gone after a delete.

        The least that a store does; RedisStore 0.5.2 gave None for every namespace of several labels.
        """
        expect_equal(subject.value(NS, "tea"), None, "a key that was never put")
        subject.put(NS, "tea", {"n": 1, "old": True})
        expect_equal(subject.value(NS, "tea"), {"n": 1, "old": True}, "the value")
        subject.put(NS, "tea", {"n": 2})
        expect_equal(subject.value(NS, "tea"), {"n": 2}, "the value after a second put")
        subject.delete(NS, "tea")
        subject.delete(NS, "tea")
        expect_equal(subject.value(NS, "tea"), None, "the value after a delete")

    def test_values_are_json(self, subject: Subject) -> None:
        """Values come back as they were: Unicode, nested maps and lists, null, booleans, numbers.

        Agents store what models and tools gave them.
        """
        subject.put(NS, "rich", RICH)
        expect_equal(as_json(subject.value(NS, "rich")), as_json(RICH), "the value")
        (found,) = subject.search(NS)
        expect_equal(as_json(found.value), as_json(RICH), "the value in a search")

    def test_items_say_where_and_when(self, subject: Subject) -> None:
        """An item has its namespace, key and times: created, and updated no earlier."""
        subject.put(NS, "tea", {"n": 1})
        item = subject.get(NS, "tea")
        for found in (item, *subject.search(NS)):
            if found is None:
                fail("the item is not there")
            expect_equal((tuple(found.namespace), found.key), (NS, "tea"), "where it is")
            times = (found.created_at, found.updated_at)
            expect(
                all(isinstance(at, datetime) for at in cast("tuple[object, ...]", times)),
                f"times are not datetimes: {times!r}",
            )
            expect(found.created_at <= found.updated_at, f"created after it was updated: {times!r}")

    def test_values_are_copies(self, subject: Subject) -> None:
        """Changing a value outside the store, before or after, changes nothing inside.

        InMemoryStore hands out its own objects: an agent that edits what it read has edited the memory of everybody.
        """
        given: dict[str, Any] = {"tags": ["x"]}
        subject.put(NS, "tea", given)
        given["tags"].append("put")
        expect_equal(subject.value(NS, "tea"), {"tags": ["x"]}, "after changing the value that was put")
        cast("dict[str, Any]", subject.value(NS, "tea"))["tags"].append("got")
        expect_equal(subject.value(NS, "tea"), {"tags": ["x"]}, "after changing the value that was got")
        subject.search(NS)[0].value["tags"].append("found")
        expect_equal(subject.value(NS, "tea"), {"tags": ["x"]}, "after changing the value that was found")

    def test_a_batch_answers_in_order(self, subject: Subject) -> None:
        """The results of a batch stand in the order of its operations, whatever their kinds."""
        subject.put(NS, "a", {"n": 1})
        ops = [
            GetOp(NS, "a"),
            PutOp(NS, "b", {"n": 2}),
            SearchOp(("nobody",)),
            GetOp(NS, "missing"),
            ListNamespacesOp(),
            GetOp(NS, "a"),
        ]
        found = subject.batch(ops)
        expect_equal(len(found), len(ops), "the number of results")
        wanted: list[Any] = [{"n": 1}, {"n": 1}]
        expect_equal([found[at] and found[at].value for at in (0, 5)], wanted, "the gets")
        others: list[Any] = [None, [], None]
        expect_equal([found[at] for at in (1, 2, 3)], others, "put, search, get of a missing key")
        expect_equal([tuple(name) for name in found[4]], [NS], "the namespaces")
        expect_equal(subject.value(NS, "b"), {"n": 2}, "what the batch put")

    def test_a_batch_of_many(self, subject: Subject) -> None:
        """All puts and deletes of a batch take effect; of two puts of one key the last counts."""
        subject.batch([PutOp(NS, f"k{n}", {"n": n}) for n in range(50)])
        subject.batch([PutOp(NS, "k0", None), PutOp(NS, "k1", {"n": -1}), PutOp(NS, "k1", {"n": -2})])
        expect_same(subject.keys(NS, limit=100), [f"k{n}" for n in range(1, 50)], "keys")
        expect_equal(subject.value(NS, "k1"), {"n": -2}, "the last put")

    def test_both_faces_are_one_store(self, subject: Subject) -> None:
        """Sync and async methods do the same on the same data.

        SqliteStore has no async methods; AsyncSqliteStore's sync ones do not work on the event loop.
        """
        other = subject.other_mode()
        subject.put(NS, "a", {"text": "tea"})
        other.put(NS, "b", {"text": "tea"})
        for one in (subject, other):
            expect_same(one.keys(NS), "ab", f"keys that {one.mode} finds")
            expect_equal(one.value(NS, "a"), {"text": "tea"}, f"what {one.mode} gets")
            expect_equal(one.list_namespaces(), [NS], f"namespaces that {one.mode} lists")
        other.delete(NS, "a")
        expect_equal(subject.value(NS, "a"), None, "what the other mode deleted")

    def test_invalid_namespaces_are_refused(self, subject: Subject) -> None:
        """Empty namespaces, empty labels, periods and what is not text are InvalidNamespaceError, and store nothing."""
        for namespace in (*INVALID, (), ("langgraph",)):
            expect_invalid_namespace(f"put into {namespace!r}", subject.put, namespace, "k", {"n": 1})
        for namespace in INVALID:
            expect_invalid_namespace(f"get from {namespace!r}", subject.get, namespace, "k")
            expect_invalid_namespace(f"delete from {namespace!r}", subject.delete, namespace, "k")
            expect_invalid_namespace(f"search of {namespace!r}", subject.search, namespace)
        expect_equal(subject.keys(()), [], "what was stored")

    def test_a_time_to_live_is_taken_or_refused(self, subject: Subject) -> None:
        """A store that cannot let items expire says so (NotImplementedError) rather than keep them for ever."""
        if subject.store.supports_ttl:
            subject.put(NS, "brief", {"n": 1}, ttl=5)
            subject.put(NS, "endless", {"n": 2}, ttl=None)
            expect_same(subject.keys(NS), ["brief", "endless"], "keys")
            return
        try:
            subject.put(NS, "brief", {"n": 1}, ttl=5)
        except NotImplementedError:
            expect_equal(subject.value(NS, "brief"), None, "what was stored")
            return
        fail("supports_ttl is False, and ttl=5 was taken without an error")
