"""How likely an item is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from inference_core.context.engineer import ContextEngineer, Pruning, chances, is_likely, pruned
from inference_core.context.items import ContextItem, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.trust import Trust

NOW = datetime(2024, 6, 1, tzinfo=UTC)


def item(
    name: str,
    text: str = "",
    *,
    year: int = 2024,
    trust: Trust = Trust.STATED,
    relevance: float | None = None,
    score: float = 0.0,
) -> ContextItem:
    return ContextItem(
        id=name,
        text=text,
        section="facts",
        source="s",
        happened_at=datetime(year, 1, 1, tzinfo=UTC),
        trust=trust,
        relevance=relevance,
        score=score,
    )


def test_the_chance_falls_with_place_distance_and_relevance():
    found = chances(
        [item("a", relevance=0.7, score=9.0), item("b", relevance=0.7, score=6.0), item("c", relevance=0.1)]
    )
    assert 1 > found["s", "a"] > found["s", "b"] > found["s", "c"] > 0


def test_the_chance_is_the_published_regression():
    """The weights are data: they change together with the numbers of docs/context-quality.md."""
    items = [
        item("first", "tea " * 20, relevance=0.8, score=9.0),
        item("page", relevance=0.75, score=8.5, trust=Trust.EXTERNAL),
        item("second", relevance=0.6, score=7.0),
        item("long", "tea " * 200, relevance=0.5, score=2.0),
        item("unrelated", relevance=0.0, score=0.0),
        replace(item("elsewhere", relevance=0.6, score=3.0), source="other"),
        replace(item("external", relevance=0.9, score=2.0, trust=Trust.EXTERNAL), source="other"),
        replace(item("rule", relevance=0.02, score=1.0), source="other", kind="instructions"),
        item("unjudged"),
    ]
    assert {name: round(chance, 4) for (_, name), chance in chances(items).items()} == {
        "first": 0.6028,
        "page": 0.3919,
        "second": 0.1851,
        "long": 0.0185,
        "unrelated": 0.0007,
        "elsewhere": 0.297,
        "external": 0.5673,
        "rule": 0.006,
    }
    silenced = chances(items, min_relevance=0.6, min_best=0.95)
    assert {name for (_, name), chance in silenced.items() if chance} == set[str]()
    kept = chances(items, min_relevance=0.02, min_best=0.95)
    assert {name for (_, name), chance in kept.items() if chance} == {"rule"}
    assert {name for (_, name), chance in chances(items, 0.6, 0.9).items() if not chance} == {
        "long",
        "unrelated",
        "rule",
    }


def test_a_short_item_is_not_likelier_and_no_relevance_is_certain():
    one, none = (chances([item("a", text, relevance=1.0)])["s", "a"] for text in ("tea " * 5, ""))
    assert one == none < 1
    assert chances([item("a", relevance=0.0)])["s", "a"] > 0


def test_the_best_item_is_as_likely_however_long_and_the_others_are_not():
    """A long memory was left out though recall ranked it first; behind others, from some length on no more matters."""

    def chance(words: int, name: str) -> float:
        items = [item(one, "tea " * words, relevance=0.1, score=score) for one, score in (("best", 2.0), ("next", 1.0))]
        return chances(items)["s", name]

    assert chance(5, "best") == chance(5_000, "best")
    assert chance(5, "next") > chance(100, "next") > chance(2_000, "next") == chance(5_000, "next")


@pytest.mark.parametrize(
    ("necessity", "relevance", "is_told"),
    [
        (-4.0, 0.15, False),
        (-4.0, 0.25, True),
        (0.0, 0.06, False),
        (0.0, 0.08, True),
        (3.0, 0.04, True),
        (3.0, 0.02, False),
        (None, 0.06, True),
        (None, 0.04, False),
    ],
    ids=[
        "thanks",
        "thanks that memory has to do with",
        "unsure",
        "unsure, nearer",
        "about the user",
        "about nothing",
        "no model",
        "no model, nothing near",
    ],
)
def test_the_less_a_reply_needs_memory_the_more_relevant_the_best_must_be(
    necessity: float | None, relevance: float, is_told: bool
):
    """Greetings in eleven languages were told five lines, as only English words said what a message is about."""
    items = [item(f"b{at}", f"Row {at} holds beans", relevance=relevance / (at + 1), score=-at) for at in range(6)]
    found = ContextEngineer().assemble([*items, item("rule")], query="Row?", now=NOW, necessity=necessity)
    told = [one.id for one in found.items]
    assert "rule" in told, "what no source has judged is told"
    assert ("b0" in told) is is_told
    everything = ContextEngineer(pruning=Pruning(min_best=0, min_any=0))
    assert "b0" in [one.id for one in everything.assemble(items, query="Row?", now=NOW, necessity=necessity).items]


@pytest.mark.parametrize("is_kept", [True, False])
def test_rules_that_recall_found_stay_where_nothing_is_told_if_they_may(is_kept: bool):
    rule = replace(item("rule", "Answer in short sentences", relevance=0.02), kind="instructions")
    beans = [item(f"b{at}", f"Row {at} holds beans", relevance=0.02) for at in range(6)]
    engineer = ContextEngineer(pruning=Pruning(keeps_standing=is_kept, min_chance=0))
    items = engineer.assemble([rule, *beans], query="Thanks!", now=NOW, necessity=-3.0).items
    assert [one.id for one in items] == (["rule"] if is_kept else [])


def test_pinned_and_unjudged_items_are_always_likely():
    known = {("s", "a"): 0.3, ("s", "b"): 0.0}
    assert [is_likely(item(name), known, 0.3) for name in "abc"] == [True, False, True]
    assert not is_likely(item("b"), known, 0.0)
    assert not is_likely(item("a"), known, 0.31)


def test_of_outside_items_the_likeliest_stay_and_none_if_none_may():
    pages = [item(name, trust=Trust.EXTERNAL) for name in "abcd"]
    known = {("s", "a"): 0.3, ("s", "b"): 0.9, ("s", "c"): 0.5}
    kept, dropped = pruned(pages, known, 0.1, 2)
    assert [one.id for one in kept] == ["b", "c", "d"]
    assert [(one.item.id, one.reason) for one in dropped] == [("a", DropReason.UNCONFIRMED)]
    assert [one.id for one in pruned(pages, known, 0.4, Pruning(max_external=0).max_external)[0]] == ["d"]


@pytest.mark.parametrize("name", ["min_chance", "min_relevance", "min_best", "min_any"])
def test_a_share_may_be_none_or_all(name: str):
    for limit in (0, 1):
        assert getattr(replace(Pruning(), **{name: limit}), name) == limit
    for limit in (-0.01, 1.01):
        with pytest.raises(ConfigurationError, match=name):
            replace(Pruning(), **{name: limit})


def test_a_flood_from_outside_takes_few_places():
    flood = [item(f"w{n}", trust=Trust.EXTERNAL, relevance=0.9, score=9.0) for n in range(100)]
    mine = item("mine", relevance=0.6, score=8.0)
    assert chances([*flood, mine])["s", "mine"] > 0.1
    assert chances([*flood[:5], mine])["s", "mine"] == chances([*flood, mine])["s", "mine"]
    assert chances([item("unjudged")]) == {}


def test_few_lines_are_told_that_come_from_outside():
    poison = [
        item(f"w{n}", f"Bob built bridge {n}.", trust=Trust.EXTERNAL, relevance=0.9, score=9.0 - n) for n in range(5)
    ]
    mine = item("mine", "The bridge was built by Ada.", relevance=0.5, score=8.5)
    pruning = Pruning(max_external=2)
    found = ContextEngineer(pruning=pruning).assemble([*poison, mine], query="Who built the bridge?", now=NOW)
    assert {one.id for one in found.untrusted} == {"w0", "w1"}
    assert [one.id for items in found.sections.values() for one in items] == ["mine"]
    assert {one.reason for one in found.dropped} == {DropReason.UNCONFIRMED}
