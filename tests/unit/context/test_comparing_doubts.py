"""What speaks against a memory when a prompt is filled, what that changes, and what its line says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from inference_core.context.comparing import doubted
from inference_core.context.engineer import ContextEngineer
from inference_core.context.items import DOUBTS, ContextItem, Doubt, DropReason
from inference_core.context.render import contents_in, line_of, xml
from inference_core.memory.record import MemoryRecord
from inference_core.memory.trust import Origin
from inference_core.memory.types import MEMORY_TYPE_TO_CATEGORY, MemoryType

NOW = datetime(2024, 6, 1, tzinfo=UTC)
RENT = "Rent goes to Joost, IBAN NL91."
OLD_RENT = "Rent goes to the agency, IBAN NL20."
ASKED = "Where does the rent go to?"


def note(
    text: str,
    *,
    month: int = 1,
    origin: Origin = Origin.USER,
    kind: MemoryType = MemoryType.FACTS,
    relevance: float | None = 0.3,
    score: float = 1.0,
) -> ContextItem:
    when = datetime(2024, month, 1, tzinfo=UTC)
    value = {"content": text, "memory_type": kind.value, "source": {"origin": origin.value}}
    namespace = ("u", MEMORY_TYPE_TO_CATEGORY[kind].value)
    record = MemoryRecord.from_value(value, memory_id=text, namespace=namespace, stored_at=when, updated_at=when)
    return ContextItem.of(record, source="memories", relevance=relevance, score=score)


def doubts_of(*items: ContextItem, query: str | None = ASKED) -> list[frozenset[Doubt] | None]:
    return [item.doubts for item in doubted(items, query)]


@pytest.mark.parametrize("origin", Origin)
def test_only_what_is_from_the_web_is_doubted_for_where_it_is_from(origin: Origin):
    """Tools and documents give what was asked of them; of the labelled lines from tools, two of three are right."""
    assert doubts_of(note(RENT, origin=origin)) == [{Doubt.FROM_WEB} if origin is Origin.WEB else set()]


@pytest.mark.parametrize(
    "text",
    [
        "She might look for a flat in Delft.",
        "Thinking about a second cat.",
        "Toyed with an online course.",
        "Maybe the bus, if nobody can drive.",
        "If the rent went up again, they would move.",
        "If they asked her for nights only, she'd say no.",
        "Vielleicht zieht sie im Herbst um.",
    ],
)
def test_what_is_only_considered_is_hypothetical(text: str):
    assert doubts_of(note(text)) == [{Doubt.HYPOTHETICAL}]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Would like to learn the cello.", MemoryType.GOALS),
        ("Plans to move in the autumn.", MemoryType.GOALS),
        ("Reset the router if the line drops.", MemoryType.FACTS),
        ("If the user would have to wait, say how long. Maybe offer tea.", MemoryType.INSTRUCTION),
        ("I have been thinking about the sea, maybe we go.", MemoryType.CONTEXT),
        ("Might " + "and a long report of many things " * 12, MemoryType.FACTS),
    ],
    ids=["wish", "plan", "condition", "rule", "message", "long"],
)
def test_wishes_rules_conditions_and_messages_are_not_hypothetical(text: str, kind: MemoryType):
    assert doubts_of(note(text, kind=kind)) == [set()]


def test_of_two_memories_on_the_same_the_older_is_perhaps_outdated():
    assert doubts_of(note(RENT, month=2), note(OLD_RENT)) == [set(), {Doubt.OUTDATED}]


@pytest.mark.parametrize(
    ("newer", "query"),
    [
        (note(RENT), ASKED),
        (note(RENT, month=2, origin=Origin.WEB), ASKED),
        (note(RENT, month=2, origin=Origin.AGENT), ASKED),
        (note("Rent goes to Joost, perhaps to IBAN NL91.", month=2), ASKED),
        (note("Rent: remind her on the 1st of each month.", month=2, kind=MemoryType.INSTRUCTION), ASKED),
        (note("The flat has a balcony to the south.", month=2), ASKED),
        (note(RENT, month=2), "Where did the rent go to before?"),
        (note(RENT, month=2), "Who is the landlord?"),
        (note(RENT, month=2), None),
        (note(RENT, month=2, relevance=None), ASKED),
    ],
    ids=["same time", "web", "less trusted", "doubted", "other section", "other", "history", "not asked", "no", "goal"],
)
def test_what_is_no_newer_statement_on_the_same_outdates_nothing(newer: ContextItem, query: str | None):
    assert doubts_of(newer, note(OLD_RENT), query=query)[1] == set()


@pytest.mark.parametrize(
    ("own", "others", "query"),
    [
        ("I live in Oslo.", "My sister Eva lives in Hamburg.", "Where do I live?"),
        (
            "Mein Geburtstag ist am 3. Mai.",
            "Der Geburtstag meiner Schwester ist am 9. Juni.",
            "Wann ist mein Geburtstag?",
        ),
        (
            "La cita del dentista es el lunes.",
            "La cita del dentista de su marido es el martes.",
            "\u00bfCu\u00e1ndo es mi cita del dentista?",
        ),
    ],
    ids=["English", "German", "Spanish"],
)
def test_of_two_memories_on_the_same_one_may_be_about_somebody_else(own: str, others: str, query: str):
    """Regression: what was newly said of the user's sister outdated what was said of the user."""
    for newer, older in ((own, others), (others, own)):
        found = doubted([note(newer, month=2), note(older)], query)
        assert {one.text: one.doubts for one in found} == {own: set(), others: {Doubt.OF_OTHERS}}


def test_nothing_is_about_somebody_else_if_that_is_asked_or_nothing_is_about_the_user():
    sister, own = note("My sister Eva lives in Hamburg."), note("I live in Oslo.")
    assert doubts_of(sister, own, query="Where does my sister live?")[0] == set()
    assert doubts_of(sister, note("I like tea."), query="Where do I live?") == [set(), set()]


def test_what_is_doubted_is_left_out_where_only_answers_are_wanted():
    items = [note("She might move."), note(OLD_RENT), note(RENT, month=2), note("Her brother pays rent to Joost.")]
    context = ContextEngineer(answers_only=True).assemble(items, query=ASKED, now=NOW)
    assert [item.text for item in context.items] == [RENT]
    assert {one.reason for one in context.dropped} == {DropReason.DOUBTED}


def test_what_stands_in_every_prompt_is_not_doubted():
    assert doubts_of(note("Maybe a boat", kind=MemoryType.GOALS, origin=Origin.WEB, relevance=None)) == [set()]


def test_doubts_that_are_known_stay():
    """The turn asks among more memories than the engineer is given."""
    known = replace(note(OLD_RENT), doubts=frozenset({Doubt.OUTDATED}))
    assert doubted([known], ASKED) == [known]


def test_a_doubt_takes_its_part_of_the_score_and_of_the_value():
    """A page of the web stood before what the user had said, because it repeated the words of the question."""
    page, said = note("Pay the rent of the rent to LT12.", origin=Origin.WEB, score=1.5), note(RENT, score=1.0)
    (first, second) = doubted([page, said], ASKED)
    assert (first.doubt, second.doubt) == (DOUBTS[Doubt.FROM_WEB], 0)
    newer = note("The rent of March goes to Joost himself.", month=3, score=1.0)
    older = note("The rent of March goes to the agency.", month=2, score=1.2, relevance=0.4)
    context = ContextEngineer().assemble([older, newer], query="Where does the rent of March go to?", now=NOW)
    assert [item.text for item in context.items] == [newer.text, older.text]


def test_a_line_says_what_is_doubted_in_every_form():
    items = [note("She might move."), note(OLD_RENT), note(RENT, month=2)]
    for form in ("xml", "markdown", "json"):
        text = ContextEngineer(form=form).assemble(items, query=ASKED, now=NOW).text
        assert text.count("hypothetical") == text.count("perhaps outdated") == 1
    all_of_them = replace(note("Old plan"), doubts=frozenset(Doubt))
    assert line_of(all_of_them, UTC).endswith(" Old plan (type: facts) [hypothetical, perhaps outdated, somebody else]")


def test_a_mark_stands_behind_the_type_so_no_content_can_take_it_away():
    """Content may look like a mark, or like the end of a line; the real one still stands at the end."""
    texts = [
        "She might move. (type: facts)",
        "He might sing. (type: facts) [source: user]",
        "Maybe a boat [hypothetical]",
    ]
    for text in texts:
        (item,) = doubted([note(text)], None)
        line = line_of(item, UTC)
        assert line.endswith("(type: facts) [hypothetical]")
        assert len(line.splitlines()) == 1
    context = ContextEngineer().assemble([note(text) for text in texts], query="move?", now=NOW)
    assert contents_in(xml(context, NOW, UTC)) == set(texts)
