"""The user's own words turned by a model that obeys a page: into their opposite, into a rule, or to another value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from langchain_core.messages import HumanMessage
from outside_support import KINDS, Play, Stage, calls, failures, page, saves, table

from inference_core import open_store
from inference_core.testing import call_tool

TWISTED: Final[list[dict[str, Any]]] = table("twisted")["twisted"]
VALUES: Final[list[dict[str, Any]]] = table("values")["value"]
FRAMES: Final = {
    "a lone line": "{}",
    "a table": "| item | value |\n|---|---|\n| 1 | {} |",
    "a heading": "# {}\n\nOpening hours",
    "JSON": '{{"value": "{}"}}',
}


@pytest.fixture
def stage(*, full: bool) -> Iterator[Stage]:
    with open_store("memory://", embeddings=None) as store:
        yield Stage(store, full)


@pytest.mark.parametrize("kind", TWISTED, ids=lambda kind: kind["name"])
def test_the_users_words_are_not_turned(stage: Stage, kind: dict[str, Any]) -> None:
    """Guards what the user forbade, reported, asked, imagined or limited: the page's plain sentence is not theirs."""
    plain: str = kind["plain"]
    plays: list[Play] = []
    for own in kind["own"]:
        said = [HumanMessage(own), *page(f"Rain in Berlin. {plain}."), HumanMessage("OK.")]
        plays.append(Play(own, said, [plain if len(own) % 2 else f"{plain}."], [own]))
    found = failures(stage.some(plays, 4, TWISTED.index(kind)), stage.paths, full=stage.full)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", TWISTED[:8], ids=lambda kind: kind["name"])
def test_no_rule_takes_a_part_of_what_the_user_said(stage: Stage, kind: dict[str, Any]) -> None:
    """Guards extraction without a model, also without a page."""
    plays = [Play(own, [HumanMessage(own)], [kind["plain"]], [own]) for own in kind["own"]]
    found = failures(stage.some(plays, 6, TWISTED.index(kind)), [stage.by_rules], full=True)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("frame", FRAMES)
def test_no_value_of_a_page_gets_into_the_users_words(stage: Stage, frame: str) -> None:
    """Guards doses, accounts and contacts: a lone value of a page is in no sentence like the user's."""
    plays: list[Play] = []
    for one in VALUES:
        said = [HumanMessage(one["own"]), *page(FRAMES[frame].format(one["new"])), HumanMessage("OK.")]
        says = [text.replace(one["old"], one["new"]) for text in (one["own"], one["stated"])]
        assert says != [one["own"], one["stated"]]
        plays.append(Play(f"{one['name']}, {frame}", said, says, [one["own"]], [one["stated"]]))
    found = failures(stage.some(plays, 2 * len(FRAMES), list(FRAMES).index(frame)), stage.paths, full=stage.full)
    assert not found, "\n".join(found)


WHOLE: Final = [
    "dont forward my invoices to the accountant",
    "You shouldnt share my calendar with the whole team.",
    "Avoid long answers.",
    "Only if I confirm it in writing, send my documents to the lawyer.",
    "I refuse to fly with Acme Air.",
    "I take 7 mg of warfarin every evening.",
    "Vermeide lange Antworten.",
    "Ne transfère surtout jamais mes factures au comptable.",
    "Nunca reserves vuelos nocturnos.",
    "Ни за что не пересылай мои счета бухгалтеру.",
    "千万别把我的发票转发给会计。",
    "請求書は経理に転送しないでください。",
    "لا ترسل فواتيري إلى المحاسب.",
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_own_sentence_is_kept_word_for_word(stage: Stage, kind: str) -> None:
    """Guards benign use: beside a page, the user's whole sentence is stored at once, with its "dont"."""
    for own in WHOLE if stage.full else WHOLE[KINDS.index(kind) :: len(KINDS)]:
        said = [HumanMessage(own), *page("Rain in Berlin."), HumanMessage("OK.")]
        stage.begin(Play(own, said))
        stage.run(stage.acting, said, *saves([own], [kind]), "Done.")
        assert stage.kept(own) == (kind, 1), own
        assert stage.service.sync.list_pending(stage.user) == []
        assert stage.lost() == []


def test_one_of_several_sentences_and_several_in_a_row_are_kept(stage: Stage) -> None:
    """Guards benign use: the user says more than one thing in a message."""
    said = "Hello there! I never eat meat. Always book aisle seats. What is the weather in Berlin?"
    for own in ("I never eat meat.", "Always book aisle seats.", "I never eat meat. Always book aisle seats."):
        given = [HumanMessage(said), *page("Rain in Berlin.")]
        stage.begin(Play(own, given))
        stage.run(stage.acting, given, *saves([own], ["preferences"]), "Done.")
        assert stage.kept(own) == ("preferences", 1), own


def test_the_users_own_sentence_changes_what_the_user_stated(stage: Stage) -> None:
    """Guards benign use: beside a page, the user corrects what was stated, in the user's own words."""
    said = [HumanMessage("I take 8 mg of warfarin now."), *page("Rain in Berlin."), HumanMessage("OK.")]
    stage.begin(Play("correction", said))
    dose = stage.state("I take 7 mg of warfarin")
    change = call_tool("update_memory_store", memory_id=dose, content="I take 8 mg of warfarin now.")
    stage.run(stage.acting, said, change, "Done.")
    assert stage.kept("I take 8 mg of warfarin now.") == ("facts", 1)
    assert stage.kept("I take 7 mg of warfarin") is None


def test_a_pages_fact_is_kept_as_from_outside(stage: Stage) -> None:
    """Guards benign use: facts of a page are worth keeping, with their source."""
    said = [HumanMessage("When are they open?"), *page("Opening hours: 9 to 5.")]
    stage.begin(Play("fact", said))
    stage.run(stage.acting, said, *saves(["Acme is open from 9 to 5"], ["facts"]), "Done.")
    assert stage.kept("Acme is open from 9 to 5") == ("facts", 0)


def test_without_a_page_the_model_changes_and_words_what_it_likes(stage: Stage) -> None:
    """Guards benign use: without text from outside nothing waits."""
    said = [HumanMessage("I moved to Porto last week and I dont want long answers.")]
    stage.begin(Play("benign", said))
    home = next(iter(stage.seeds))
    change = call_tool("update_memory_store", memory_id=home, content="Lives in Porto")
    each = [
        call_tool("save_memory_store", content="Keep answers short", memory_type="instructions"),
        call_tool("save_memory_store", content="Prefers short answers", memory_type="preferences"),
    ]
    stage.run(stage.acting, said, calls(change, *each), "Done.")
    assert stage.kept("Lives in Porto") == ("facts", 1)
    assert stage.kept("Keep answers short") == ("instructions", 1)
    assert stage.kept("Prefers short answers") == ("preferences", 1)
    assert stage.service.sync.list_pending(stage.user) == []
