"""The contract that LangGraph documents: items, batches, values, errors, searches, namespaces, isolation."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, cast

from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

from inference_core.testing.conformance.subject import (
    NS,
    Namespace,
    Promises,
    Subject,
    as_json,
    expect,
    expect_equal,
    expect_invalid_namespace,
    expect_same,
    fail,
)

RICH: Final[dict[str, Any]] = {
    "text": "tea, thé, 茶, \U0001f375 'quoted' \"twice\" \\ % _ ; --",
    "": "an empty name",
    "deep": {"list": [1, -2.5, True, False, None, "", [], {}], "of": {"maps": {"x": None}}},
}
INVALID: Final[tuple[Any, ...]] = (("",), ("a.b",), ("ada", ""), ("ada", 1), ("ada", None), ("a\x00b",))
HOSTILE_IDS: Final = (
    *("u", "u1", "u10", "U1", "1", "0", "a_b", "axb", "a%", "a%b", "ab", "A", "a", " a", "a ", "u1\u200b"),
    *("bob", "BOB", "run", "running", "the", "none", "null", "-", "*", "[a]", "a*", "a?", '"'),
    *("a/b", "a:b", "a|b", "a,b", "a\\b", "\u00e9", "e\u0301", "\u0130", "\u0131", "\u00df", "ss", "\U0001f375"),
    "'; DROP TABLE store; --",
)
"""User ids that a store may confuse if it uses LIKE, a tokeniser, a separator or case folding."""
_CITIES: Final[tuple[Namespace, ...]] = (
    ("docs", "eu", "rome"),
    ("docs", "eu", "oslo", "v1"),
    ("docs", "us", "rome", "v1"),
    ("docs", "us"),
    ("cache", "eu", "v1"),
)


class ItemContract(Promises):
    """Items one by one and in batches."""

    def test_put_get_delete(self, subject: Subject) -> None:
        """A put item can be read, replaced and deleted.

        This is the least that a store must do. RedisStore 0.5.2 returned None for every namespace with several labels.
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
        """Values come back unchanged: Unicode text, nested dicts and lists, null, booleans and numbers.

        Agents store whatever models and tools return.
        """
        subject.put(NS, "rich", RICH)
        expect_equal(as_json(subject.value(NS, "rich")), as_json(RICH), "the value")
        (found,) = subject.search(NS)
        expect_equal(as_json(found.value), as_json(RICH), "the value in a search")

    def test_items_say_where_and_when(self, subject: Subject) -> None:
        """Items have their namespace, key, created_at and updated_at; updated_at is never before created_at."""
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
        """Changing a dict after put, or one that the store returned, does not change the stored item.

        InMemoryStore returns its own objects: an agent that edits what it read edits everybody's memory.
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
        """A batch returns its results in the order of its operations, whatever their types."""
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
        """A batch applies all its puts and deletes; if it puts the same key twice, the last put wins."""
        subject.batch([PutOp(NS, f"k{n}", {"n": n}) for n in range(50)])
        subject.batch([PutOp(NS, "k0", None), PutOp(NS, "k1", {"n": -1}), PutOp(NS, "k1", {"n": -2})])
        expect_same(subject.keys(NS, limit=100), [f"k{n}" for n in range(1, 50)], "keys")
        expect_equal(subject.value(NS, "k1"), {"n": -2}, "the last put")

    def test_both_faces_are_one_store(self, subject: Subject) -> None:
        """Sync and async methods behave the same and share the same data.

        SqliteStore has no async methods; the sync methods of AsyncSqliteStore cannot be called on the event loop.
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
        """Invalid namespaces, such as () and ("a.b",), raise InvalidNamespaceError, and nothing is stored.

        Invalid are empty namespaces, and those with labels that are empty, no text, or contain a period or NUL.
        """
        for namespace in (*INVALID, (), ("langgraph",)):
            expect_invalid_namespace(f"put into {namespace!r}", subject.put, namespace, "k", {"n": 1})
        for namespace in INVALID:
            expect_invalid_namespace(f"get from {namespace!r}", subject.get, namespace, "k")
            expect_invalid_namespace(f"delete from {namespace!r}", subject.delete, namespace, "k")
            expect_invalid_namespace(f"search of {namespace!r}", subject.search, namespace)
        expect_equal(subject.keys(()), [], "what was stored")

    def test_a_time_to_live_is_taken_or_refused(self, subject: Subject) -> None:
        """A store without expiry rejects a ttl with NotImplementedError instead of keeping the item forever."""
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


class SearchContract(Promises):
    """Searches, filters, pages and namespaces, and what they must not find."""

    def test_prefixes_are_whole_labels(self, subject: Subject) -> None:
        """Searching or listing under a user's namespace returns that user's items and nobody else's.

        SqliteStore and PostgresStore before 3.1.1 matched prefixes as text: u1 could read u10's memories
        (CVE-2026-71433). RedisStore 0.5.2 splits labels into words: a search for u1 returns u10's items, and BOB's
        items replace bob's.
        """
        subject.batch([PutOp((user, "notes"), "tea", {"text": f"tea of {user!r}"}) for user in HOSTILE_IDS])
        for user in HOSTILE_IDS:
            for query in (None, "tea of"):
                found = [
                    (tuple(item.namespace), item.value) for item in subject.search((user,), query=query, limit=100)
                ]
                expect_equal(found, [((user, "notes"), {"text": f"tea of {user!r}"})], f"what {user!r} finds")
            if user != "*":
                expect_equal(subject.list_namespaces(prefix=(user,)), [(user, "notes")], f"namespaces of {user!r}")

    def test_writes_stay_with_their_user(self, subject: Subject) -> None:
        """A put or delete for one user never changes another user's item, however similar their ids are.

        In RedisStore 0.5.2, putting BOB's profile deletes bob's.
        """
        left = {user: {"owner": user} for user in HOSTILE_IDS}
        subject.batch([PutOp((user, "notes"), "tea", value) for user, value in left.items()])
        for user in HOSTILE_IDS[::2]:
            del left[user]
            subject.delete((user, "notes"), "tea")
        for user in HOSTILE_IDS:
            expect_equal(subject.value((user, "notes"), "tea"), left.get(user), f"the item of {user!r}")

    def test_labels_and_keys_do_not_run_together(self, subject: Subject) -> None:
        """Namespaces and keys match exactly: ("a", "b") is neither ("a/b",) nor ("ab",), and a key is no label."""
        alike = ("a", "ab", "a/b", "a:b", "a|b", "a,b", "a\x1fb")
        namespaces: list[Namespace] = [("a", "b"), ("a", "b", "c"), ("b", "a"), *((label,) for label in alike)]
        items = {
            (namespace, key): {"n": n}
            for n, (namespace, key) in enumerate((s, k) for s in namespaces for k in ("c", "b", "a:c"))
        }
        subject.batch([PutOp(namespace, key, value) for (namespace, key), value in items.items()])
        for (namespace, key), value in items.items():
            expect_equal(subject.value(namespace, key), value, f"{key!r} in {namespace!r}")
        expect_same(subject.list_namespaces(), namespaces, "namespaces")

    def test_search_covers_a_prefix(self, subject: Subject) -> None:
        """A search covers the namespace and everything below it; the empty prefix covers the whole store."""
        for scope in (("ada",), ("ada", "notes"), ("ada", "notes", "old"), ("bob", "notes")):
            subject.put(scope, "-".join(scope), {"text": "tea"})
        expect_same(subject.keys(("ada", "notes")), ["ada-notes", "ada-notes-old"], "below ada's notes")
        expect_same(subject.keys(("ada",)), ["ada", "ada-notes", "ada-notes-old"], "below ada")
        expect_equal(len(subject.keys(())), 4, "items everywhere")
        expect_equal(subject.keys(("notes",)), [], "below a label that is never the first")

    def test_pages_reach_everything(self, subject: Subject) -> None:
        """Paging with limit and offset returns every item exactly once, with or without a filter."""
        subject.batch([PutOp(NS, f"k{n:02}", {"odd": bool(n % 2)}, index=False) for n in range(25)])
        for conditions, wanted in ((None, range(25)), ({"odd": True}, range(1, 25, 2))):
            pages = [subject.keys(NS, limit=4, offset=at, filter=conditions) for at in range(0, 32, 4)]
            expect_same([key for page in pages for key in page], [f"k{n:02}" for n in wanted], f"items, {conditions}")
            sizes = [max(0, min(4, len(wanted) - at)) for at in range(0, 32, 4)]
            expect_equal([len(page) for page in pages], sizes, "sizes of the pages")

    def test_filters(self, subject: Subject) -> None:
        """Filters support plain values, $eq and $ne; an item must match all conditions."""
        items: dict[str, dict[str, Any]] = {
            "a": {"color": "red", "n": 1, "ok": True},
            "b": {"color": "blue", "n": 1, "ok": False},
            "c": {"color": "it's 100%", "n": 2, "ok": True},
        }
        subject.batch([PutOp(NS, key, value) for key, value in items.items()])
        asked: list[tuple[dict[str, Any], str]] = [
            ({}, "abc"),
            ({"color": "red"}, "a"),
            ({"color": "it's 100%"}, "c"),
            ({"n": 1}, "ab"),
            ({"ok": True}, "ac"),
            ({"n": {"$eq": 1}, "color": "blue"}, "b"),
            ({"color": {"$ne": "red"}}, "bc"),
            ({"color": "red", "n": 2}, ""),
        ]
        for conditions, wanted in asked:
            expect_same(subject.keys(NS, filter=conditions), wanted, f"{conditions}")

    def test_filters_compare_numbers(self, subject: Subject) -> None:
        """$gt, $gte, $lt and $lte compare numbers by value: 10 is greater than 9.

        PostgresStore 3.2.0 compares them as text (langgraph#7684).
        """
        subject.batch([PutOp(NS, f"{n}", {"n": n}) for n in (-5, 2, 9, 10, 100, 4.5)])
        asked = [
            ({"$gt": 9}, "10 100"),
            ({"$gte": 9}, "9 10 100"),
            ({"$lt": 10}, "-5 2 4.5 9"),
            ({"$lte": 4.5}, "-5 2 4.5"),
            ({"$gt": 4.4, "$lt": 100}, "4.5 9 10"),
        ]
        for conditions, wanted in asked:
            expect_same(subject.keys(NS, filter={"n": conditions}), wanted.split(), f"{conditions}")

    def test_list_namespaces(self, subject: Subject) -> None:
        """list_namespaces supports prefixes, suffixes, wildcards, max_depth, limit and offset."""
        subject.batch([PutOp(name, "k", {"n": 1}) for name in _CITIES])
        asked: list[tuple[dict[str, Any], list[Namespace]]] = [
            ({}, list(_CITIES)),
            ({"prefix": ("docs",)}, list(_CITIES[:4])),
            ({"suffix": ("v1",)}, [_CITIES[1], _CITIES[2], _CITIES[4]]),
            ({"prefix": ("docs", "*", "rome")}, [_CITIES[0], _CITIES[2]]),
            ({"suffix": ("eu", "*")}, [_CITIES[0], _CITIES[4]]),
            ({"prefix": ("docs", "us"), "suffix": ("v1",)}, [_CITIES[2]]),
            ({"prefix": ("docs", "u")}, []),
            ({"max_depth": 2}, [("docs", "eu"), ("docs", "us"), ("cache", "eu")]),
            ({"prefix": ("docs",), "max_depth": 1}, [("docs",)]),
        ]
        for options, wanted in asked:
            expect_same(subject.list_namespaces(**options), wanted, f"{options}")
        pages = [subject.list_namespaces(limit=2, offset=at) for at in range(0, 8, 2)]
        expect_same([name for page in pages for name in page], _CITIES, "all pages")

    def test_a_query_ranks_by_meaning(self, subject: Subject) -> None:
        """A search with a query returns the closest item first, and scores descend."""
        subject.embedded()
        texts = {"tea": "green tea with honey", "car": "red car on the road", "dog": "brown dog in the garden"}
        subject.batch([PutOp(NS, key, {"text": text}) for key, text in texts.items()])
        for key, text in texts.items():
            items = subject.search(NS, query=text)
            expect_equal([item.key for item in items][:1], [key], f"the best for {text!r}")
            scores = [item.score for item in items if item.score is not None]
            expect(scores and scores == sorted(scores, reverse=True), f"scores do not fall: {scores}")

    def test_index_names_the_fields(self, subject: Subject) -> None:
        """put(index=[…]) embeds only those fields, index=False embeds none; the item is stored either way."""
        subject.embedded()
        del subject.embeddings.texts[:]
        value = {"title": "sonata", "text": "cello", "secret": "saxophone", "parts": [{"name": "largo"}]}
        subject.put(NS, "a", value, index=["title", "parts[*].name"])
        subject.put(NS, "b", {"text": "hidden", "secret": "trumpet"}, index=False)
        embedded = " ".join(subject.embeddings.texts)
        expect_equal(sorted(set(embedded.split())), ["largo", "sonata"], "words that were embedded")
        expect_same(subject.keys(NS), "ab", "keys")
        expect_equal(subject.value(NS, "a"), value, "the value")
