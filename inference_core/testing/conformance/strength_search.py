"""Beyond the contract: searches that find all and only what there is, also in large tables and with odd filters."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from langgraph.store.base import PutOp

from inference_core.testing.conformance.promises import (
    Promises,
    expect,
    expect_equal,
    expect_same,
    is_refused,
    strength,
)
from inference_core.testing.conformance.subject import NS, Subject

_BATCH: Final = 500


class SearchStrength(Promises):
    """Searches where stores are known to come short."""

    crowd: ClassVar[int] = 2_000
    """Items of the other users in the table where a small user, with a tenth as many, must still find its own."""

    def settle(self, subject: Subject) -> None:
        """Called when the crowd is in: a database may gather here the statistics by which it plans."""

    @strength
    def test_pages_with_a_query_reach_everything(self, subject: Subject) -> None:
        """Pages of a search with a query give every item once.

        SqliteStore 3.1.2 reaches 20 of 50 items in pages of 10, PostgresStore 3.2.0 21; Redis repeats the first page.
        """
        subject.ranking().batch([PutOp(NS, f"k{n:02}", {"text": f"tea number {n}"}) for n in range(50)])
        pages = [subject.keys(NS, query="tea number", limit=10, offset=at) for at in range(0, 60, 10)]
        found = [key for page in pages for key in page]
        expect_equal((len(set(found)), len(found)), (50, 50), f"reached, and given, in pages of {[*map(len, pages)]}")

    @strength
    def test_a_query_with_a_filter_fills_the_page(self, subject: Subject) -> None:
        """A search with a query and a filter gives as many items as there are, up to the limit.

        A store that filters the best few after ranking loses the rest.
        """
        values = [{"text": f"tea number {n}", "rare": n % 10 == 0} for n in range(60)]
        subject.ranking().batch([PutOp(NS, f"k{n:02}", value) for n, value in enumerate(values)])
        found = subject.keys(NS, query="tea number 7", filter={"rare": True}, limit=10)
        expect_same(found, [f"k{n:02}" for n in range(0, 60, 10)], "the rare ones")

    @strength
    def test_a_small_user_is_not_starved(self, subject: Subject) -> None:
        """A user with few items in a large table finds them, also with a query that fits others' items better.

        PostgresStore's default HNSW index looks at the 40 nearest of all users and drops the strangers afterwards: a
        user with 3 to 30 % of the table gets few results or none, without an error, once the table has statistics.
        """
        share = self.crowd // 10
        subject.ranking()
        _fill(
            subject,
            [PutOp((f"big{n % 4}",), f"k{n}", {"text": f"tea ceremony in kyoto {n}"}) for n in range(self.crowd)],
        )
        _fill(subject, [PutOp(("small",), f"k{n}", {"text": f"tea bicycle mountain {n}"}) for n in range(share)])
        self.settle(subject)
        found = subject.search(("small",), query="tea ceremony in kyoto", limit=10)
        expect_equal(len(found), 10, f"results for a user with {share} items beside {self.crowd}")
        expect({item.namespace[0] for item in found} == {"small"}, "items of other users among them")

    @strength
    def test_identical_texts_in_one_batch(self, subject: Subject) -> None:
        """A batch may hold the same text several times.

        InMemoryStore raises ValueError (langgraph#8822).
        """
        subject.ranking().batch([PutOp(NS, key, {"text": "the same tea"}) for key in "abc"])
        expect_same(subject.keys(NS, query="tea"), "abc", "keys")

    @strength
    def test_filters_with_missing_fields(self, subject: Subject) -> None:
        """A missing field meets no comparison, and is no error.

        InMemoryStore 4.3.2 raises TypeError when one item lacks the field.
        """
        subject.put(NS, "with", {"n": 5, "x": None})
        subject.put(NS, "without", {"m": 5})
        for conditions, wanted in (
            ({"$gt": 1}, ["with"]),
            ({"$lte": 9}, ["with"]),
            (5, ["with"]),
            ({"$eq": 5}, ["with"]),
        ):
            expect_same(subject.keys(NS, filter={"n": conditions}), wanted, f"n: {conditions}")

    @strength
    def test_what_is_missing_is_not_equal(self, subject: Subject) -> None:
        """$ne finds the items that lack the field too.

        SqliteStore and PostgresStore leave them out, as SQL does with NULL; InMemoryStore finds them.
        """
        subject.put(NS, "five", {"n": 5})
        subject.put(NS, "six", {"n": 6})
        subject.put(NS, "none", {"m": 5})
        expect_same(subject.keys(NS, filter={"n": {"$ne": 5}}), ["six", "none"], "n: {'$ne': 5}")

    @strength
    def test_filters_know_null(self, subject: Subject) -> None:
        """A filter for null finds the items that hold null.

        Whether a missing field is null differs between LangGraph's stores and is left open here.
        """
        subject.put(NS, "null", {"x": None})
        subject.put(NS, "zero", {"x": 0})
        subject.put(NS, "empty", {"x": ""})
        expect_equal(subject.keys(NS, filter={"x": None}), ["null"], "x: None")

    @strength
    def test_filters_keep_types_apart(self, subject: Subject) -> None:
        """In a filter true is not 1, and "10" is not 10."""
        for key, value in {"true": True, "one": 1, "text": "1", "yes": "true"}.items():
            subject.put(NS, key, {"x": value})
        for value, wanted in ((True, "true"), (1, "one"), ("1", "text"), ("true", "yes")):
            expect_equal(subject.keys(NS, filter={"x": value}), [wanted], f"x: {value!r}")

    @strength
    def test_filters_compare_whole_values(self, subject: Subject) -> None:
        """A map or list in a filter is compared as a whole.

        SqliteStore and PostgresStore raise ValueError for a map.
        """
        subject.put(NS, "a", {"place": {"city": "Oslo"}, "tags": ["x", "y"]})
        subject.put(NS, "b", {"place": {"city": "Rome"}, "tags": ["x"]})
        expect_equal(subject.keys(NS, filter={"place": {"city": "Oslo"}}), ["a"], "a map")
        expect_equal(subject.keys(NS, filter={"tags": ["x"]}), ["b"], "a list")

    @strength
    def test_unknown_operators_are_refused(self, subject: Subject) -> None:
        """A filter that the store does not understand is an error, not an empty result.

        A misspelt operator must not look like an empty memory.
        """
        subject.put(NS, "a", {"n": 1})
        questions: list[dict[str, Any]] = [{"n": {"$regex": "."}}, {"n": {"$gtt": 0}}, {"$nor": [{"n": 1}]}]
        for conditions in questions:
            expect(is_refused(subject.keys, NS, filter=conditions), f"{conditions} was not refused")


def _fill(subject: Subject, ops: list[PutOp]) -> None:
    for at in range(0, len(ops), _BATCH):
        subject.batch(ops[at : at + _BATCH])
