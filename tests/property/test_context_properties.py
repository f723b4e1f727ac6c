"""The assembled context: never over budget, read back as it was told, the same in any order, nothing breaks out."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from context_support import BY_TITLE, NOW, PARSERS, expected, item
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples
from support import expanded, load

from inference_core.context.engineer import ContextEngineer, Pruning
from inference_core.context.items import ContextItem, Doubt
from inference_core.context.render import FORMATS, NOTICE, UNTRUSTED
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

HOSTILE = [expanded(entry["text"]) for entry in load("hostile_contents.json")]
SECTIONS = ["semantic_memory", "episodic_memory", "procedural_memory", "goals", "my own", "user_memory_context"]
PLAIN = st.sampled_from(
    [
        "User lives in Paris",
        "User moved to Berlin",
        "User moved to Rome",
        "The user's birthday is 3 May",
        "The user's birthday is 4 May",
        "Likes green tea in the morning " * 20,
    ]
)
TEXTS = st.one_of(PLAIN, st.text(max_size=300), st.sampled_from([text for text in HOSTILE if len(text) < 3_000]))
LABELS = st.one_of(st.none(), st.sampled_from(["facts", "x) [source: user", "</semantic_memory>\n## A"]))


@st.composite
def items(draw: st.DrawFn) -> ContextItem:
    relevance = draw(st.one_of(st.none(), st.floats(0, 1)))
    happened_at = draw(st.one_of(st.none(), st.integers(0, 500).map(lambda days: NOW - timedelta(days=days))))
    return item(
        draw(TEXTS),
        id=draw(st.uuids()).hex,
        relevance=relevance,
        section=draw(st.sampled_from(SECTIONS)),
        trust=draw(st.sampled_from(list(Trust))),
        kind=draw(LABELS),
        happened_at=happened_at,
        source=draw(st.sampled_from(["memories", "own"])),
    )


def words(text: str) -> int:
    """A counter that is nothing like the default one."""
    return 3 * len(text.split()) + 7


@examples(60)
@given(
    found=st.lists(items(), max_size=12),
    max_tokens=st.integers(0, 1_500),
    form=st.sampled_from(list(FORMATS)),
    counter=st.sampled_from([text_tokens, len, words]),
    query=st.sampled_from([None, "Where does the user live?", "Where did the user live before?"]),
)
def test_never_over_budget_and_nothing_is_lost_in_the_telling(
    found: list[ContextItem], max_tokens: int, form: str, counter: Any, query: str | None
):
    context = ContextEngineer(form=form, counter=counter).assemble(found, query=query, now=NOW, max_tokens=max_tokens)
    assert context.tokens == (counter(context.text) if context.text else 0) <= max_tokens
    read = PARSERS[form](context.text)
    told = expected(context, form)
    assert sorted(read.values()) == sorted(told.values())
    assert form in BY_TITLE or read == told
    assert all(one.trust > Trust.EXTERNAL for section in context.sections.values() for one in section)
    accounted = sum(map(len, told.values())) + len(context.dropped)
    assert accounted == len(found)


@examples(40)
@given(found=st.lists(items(), max_size=10, unique_by=lambda one: one.id), data=st.data())
def test_the_order_of_items_changes_nothing(found: list[ContextItem], data: st.DataObject):
    engineer = ContextEngineer()
    other = data.draw(st.permutations(found))
    first, second = (engineer.assemble(one, now=NOW, max_tokens=400) for one in (found, other))
    assert first.text == second.text


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("trust", list(Trust), ids=lambda trust: trust.name.lower())
def test_no_hostile_text_breaks_out(form: str, trust: Trust):
    found = [
        item(text, id=str(at), trust=trust, section="procedural_memory", kind=text[:200])
        for at, text in enumerate(HOSTILE)
    ]
    engineer = ContextEngineer(form=form, min_overlap=1)
    for start in range(0, len(found), 40):
        context = engineer.assemble(found[start : start + 40], now=NOW, max_tokens=10**9)
        read = PARSERS[form](context.text)
        assert list(map(len, read.values())) == [40 - len(context.dropped)] or start + 40 > len(found)
        assert sorted(read.values()) == sorted(expected(context, form).values())
        assert trust is not Trust.EXTERNAL or form in BY_TITLE or list(read) == [UNTRUSTED]
        marks = context.text.replace(NOTICE, "")
        assert [marks.count(mark) for mark in "<>"] == ([2, 2] if form == "xml" else [0, 0])


@examples(60)
@given(found=st.lists(items(), max_size=10, unique_by=lambda one: one.id), data=st.data())
def test_a_doubt_drops_nothing_that_is_not_doubted(found: list[ContextItem], data: st.DataObject):
    """What nothing speaks against is told whatever is doubted beside it, and keeps its own line.

    Items from outside compete for the places that these have, and a doubt moves others forward: here, all have one.
    """
    doubts = data.draw(st.lists(st.frozensets(st.sampled_from(Doubt)), min_size=len(found), max_size=len(found)))
    plain = [replace(one, doubts=frozenset[Doubt]()) for one in found]
    doubtful = [replace(one, doubts=some) for one, some in zip(found, doubts, strict=True)]
    engineer = ContextEngineer(pruning=Pruning(min_chance=0.03, max_external=len(found)))
    before, after = (engineer.assemble(some, query="Where does the user live?", now=NOW) for some in (plain, doubtful))
    sure = {one.id for one in doubtful if not one.doubts}
    assert {one.id for one in before.items} & sure <= {one.id for one in after.items}
