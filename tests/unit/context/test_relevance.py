"""Whose a statement is, what a newer one has changed, and how likely an item is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from inference_core.context.engineer import ContextEngineer
from inference_core.context.items import ContextItem, DropReason
from inference_core.context.relevance import Pruning, answering, chances, is_likely, pruned
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


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("My brother takes the window seat.", "Which seat do I like?"),
        ("My wife's manager is Stefan.", "Who is my manager?"),
        ("Our intern Mira takes the tram.", "Do I take the tram?"),
        ("Lily's shoe size is 31.", "What is my shoe size?"),
        ("Ines has her birthday in May.", "When is my birthday?"),
    ],
    ids=["brother", "wifes", "intern", "name", "pronoun"],
)
def test_what_is_somebody_elses_is_left_out(text: str, query: str):
    (dropped,) = answering([item("a", text)], query)[1]
    assert dropped.reason is DropReason.IRRELEVANT


@pytest.mark.parametrize(
    ("text", "own", "query"),
    [
        ("Noor rides a folding bike.", "I ride a touring bike.", "What bike do I ride?"),
        ("The florist's phone number is 0511.", "My phone number is 0177.", "What is my phone number?"),
        ("Kelp's office is in Bonn.", "Our office is in Mainz.", "Where is our office?"),
    ],
    ids=["name", "possessor", "company"],
)
def test_what_may_be_somebody_elses_is_left_out_beside_what_is_the_users(text: str, own: str, query: str):
    items = [item("other", text), item("own", own)]
    assert answering(items, query)[0] == items[1:]
    assert answering(items[:1], query)[0] == items[:1]


@pytest.mark.parametrize(
    ("own", "kept"),
    [("I am allergic to penicillin.", ["own"]), ("I live in Porto.", ["other", "own"])],
    ids=["answers", "something-else"],
)
def test_what_is_a_relatives_is_left_out_beside_an_answer_of_the_users(own: str, kept: list[str]):
    """With the options of a beginner: of what others' relatives like and need, nearly all was told."""
    items = [item("other", "My brother is allergic to hazelnuts.", relevance=0.5), item("own", own, relevance=0.5)]
    context = ContextEngineer().assemble(items, query="What am I allergic to?", now=NOW)
    assert sorted(one.id for one in context.items) == kept


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("No notifications while she sleeps.", "May you send me notifications?"),
        ("My wife wishes for a telescope.", "What does my wife wish for?"),
        ("Ms. Weber does our bookkeeping.", "Who does our bookkeeping?"),
        ("Professor Lindqvist is the supervisor of my thesis.", "Who supervises my thesis?"),
        ("The user's bank is N26.", "What is my bank?"),
        ("Lily's shoe size is 31.", "What is my daughter's shoe size?"),
        ("It's a blue bike.", "What bike do I ride?"),
        ("Noor rides a folding bike.", "What bike does Noor ride?"),
        ("My brother takes the window seat.", "Which seats are taken?"),
    ],
    ids=["no-name", "asked", "ours", "mine", "user", "daughter", "it", "named", "nobodys"],
)
def test_what_may_be_meant_stays(text: str, query: str):
    """Regression: "No" was taken for the name of somebody who notifies."""
    items = [item("a", text), item("b", f"{query} I say so.")]
    assert answering(items, query) == (items, [])


@pytest.mark.parametrize(
    ("old", "new", "query"),
    [
        ("I pay 480 euros rent.", "My rent went up to 540 euros.", "What rent do I pay?"),
        ("We deploy on Fridays.", "We deploy on Tuesdays from now on.", "On which day do we deploy?"),
        ("Stock: atlas, 41 copies.", "Stock: atlas, 14 copies.", "How many copies of the atlas are in stock?"),
    ],
    ids=["changed", "from-now-on", "counted"],
)
def test_the_newer_of_two_answers_stays(old: str, new: str, query: str):
    items = [item("old", old, year=2022), item("new", new)]
    kept, dropped = answering(items, query)
    assert [one.id for one in kept] == ["new"]
    assert [(one.item.id, one.reason, one.by) for one in dropped] == [("old", DropReason.SUPERSEDED, "new")]


@pytest.mark.parametrize(
    ("old", "new", "query", "trust"),
    [
        ("I pay 480 euros rent.", "My rent went up to 540 euros.", "What rent did I pay?", Trust.STATED),
        ("I pay 480 euros rent.", "My rent went up to 540 euros.", "What rent do I pay?", Trust.EXTERNAL),
        ("I pay 480 euros rent.", "I have a new dog.", "What rent do I pay?", Trust.STATED),
        ("I like jazz.", "I like opera.", "Which music do I like?", Trust.STATED),
    ],
    ids=["asks-of-the-past", "less-trusted", "something-else", "no-change"],
)
def test_what_may_hold_as_well_stays(old: str, new: str, query: str, trust: Trust):
    items = [item("old", old, year=2022), item("new", new, trust=trust)]
    assert answering(items, query) == (items, [])


def test_without_a_question_everything_stays():
    items = [item("a", "My brother is tall.")]
    assert answering(items, None) == (items, [])


def test_regression_sources_may_use_the_same_ids():
    """What left out another source's item of that id took this one along, without a word in ``dropped``."""
    mine = replace(item("1", "I am allergic to walnuts"), source="notes")
    others = replace(item("1", "My sister is allergic to walnuts"), source="letters")
    kept, dropped = answering([mine, others], "What am I allergic to, walnuts?")
    assert (kept, [one.item for one in dropped]) == ([mine], [others])


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
        (3.0, 0.06, True),
        (3.0, 0.04, False),
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
