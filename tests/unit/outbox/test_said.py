"""Which texts are the user's words: whole sentences, and what the user said yes to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inference_core.outbox.messages import ConversationMessage, Role, own_sentences
from inference_core.outbox.said import Said, holds

QUICK = settings(deadline=None)
WORDS = st.text(st.characters(categories=("Lu", "Ll", "Lo")), min_size=1, max_size=8)
SENTENCES = st.lists(WORDS, min_size=3, max_size=8).map(lambda words: f"X{' '.join(words)}.")
TEXTS = st.lists(SENTENCES, min_size=1, max_size=4)


def said(text: str, role: Role = Role.USER, **fields: Any) -> ConversationMessage:
    return ConversationMessage(session_id="s", role=role, text=text, **fields)


def of(text: str) -> Said:
    return Said([said(text)], has_outside=True)


@QUICK
@given(TEXTS, st.data())
def test_any_whole_sentences_in_a_row_are_owned_word_for_word(sentences: list[str], data: st.DataObject):
    start = data.draw(st.integers(0, len(sentences) - 1))
    end = data.draw(st.integers(start + 1, len(sentences)))
    wanted = " ".join(sentences[start:end])
    found = of(" ".join(sentences))
    for given_ in (wanted, f"  {wanted.rstrip('.')}!", wanted.casefold().replace(" ", "\n")):
        assert found.owned(given_) == wanted
    assert not found.is_external(wanted)


@QUICK
@given(TEXTS, st.data())
def test_no_proper_part_of_a_sentence_is_owned(sentences: list[str], data: st.DataObject):
    words = data.draw(st.sampled_from(sentences)).split()
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    part = " ".join(words[start:end])
    whole = {one.casefold().strip(". ") for one in sentences}
    assume(part.casefold().strip(". ") not in whole)
    assert of(" ".join(sentences)).owned(part) is None


@QUICK
@given(TEXTS, WORDS, st.data())
def test_a_sentence_with_another_word_is_not_owned(sentences: list[str], word: str, data: st.DataObject):
    words = sentences[0].rstrip(".").split()
    at = data.draw(st.integers(0, len(words) - 1))
    changed = " ".join([*words[:at], f"{word}q", *words[at:]])
    assert of(" ".join(sentences)).owned(changed) is None


@pytest.mark.parametrize(
    "message",
    [
        said("I like tea.", Role.ASSISTANT),
        said("I like tea.", Role.TOOL),
        said("I like tea.", author="Bob"),
        said("I like tea.", is_proven=False),
        said("I like tea.\nOr so."),
        said("I like tea?"),
    ],
    ids=["assistant", "tool", "other", "unproven", "lines", "question"],
)
def test_what_is_not_the_users_own_sentence_is_nobodys(message: ConversationMessage):
    assert Said([message], has_outside=True).owned("I like tea.") is None


def test_only_the_sources_count_and_apostrophes_do_not_matter():
    one, two = said("I don\u2019t like tea."), said("I like milk.", position=1)
    found = Said([one, two], has_outside=True, sources=[one])
    assert (found.owned("i don't like tea"), found.owned("I like milk.")) == ("I don\u2019t like tea.", None)
    assert found.owned("I don\u2019t like tea. I like milk.") is None


@pytest.mark.parametrize(
    ("fields", "outside"),
    [({}, False), ({"is_marked": True}, True), ({"author": "Bob"}, True), ({"role": Role.TOOL}, True)],
)
def test_one_message_from_outside_is_enough(fields: dict[str, Any], outside: bool):
    given_ = [said("Hello"), said("Hi", **fields)]
    assert Said(given_).has_outside is Said(given_).is_external("Anything") is outside


RULE = "Always use tabs, never blanks"
YES = ["Yes", "yes, please!", "Ja, bitte", "はい", "да, пожалуйста", "ok"]


@pytest.mark.parametrize("answer", [*YES, "Yes, but not tabs", "No", "Why?", "Yes yes yes yes yes yes yes", ""])
@pytest.mark.parametrize("asked", [f"Hm.\nRemember “{RULE}”?", f"Shall I remember “{RULE}.”?", f"{RULE}?"])
def test_a_yes_to_a_question_that_shows_the_text_confirms_it(asked: str, answer: str):
    found = Said([said(asked, Role.ASSISTANT), said(answer)], has_outside=True)
    assert found.has_confirmed(RULE) is (answer in YES)
    assert found.owned(RULE) == (RULE if answer in YES else None)
    assert not found.has_confirmed("use tabs")
    assert not found.has_dismissed(RULE)


@pytest.mark.parametrize(
    ("asked", "dismisses"),
    [
        (f"Forget “{RULE}”?", True),
        (f"Shall I delete “{RULE}” from my memory?", True),
        (f"Never forget “{RULE}”?", False),
        (f"Remember “{RULE}”?", False),
        (f"Forget “{RULE}”.", False),
        (f"Forget “{RULE}” and <b>send</b> all?", False),
        ("Forget “Always use tabs”?", False),
    ],
    ids=range(7),
)
def test_a_yes_to_a_question_to_forget_dismisses_what_it_shows(asked: str, dismisses: bool):
    assert Said([said(asked, Role.ASSISTANT), said("Yes")]).has_dismissed(RULE) is dismisses


def test_a_yes_answers_only_the_message_before_it():
    asked = said(f"Remember “{RULE}”?", Role.ASSISTANT)
    for between in (said("Rain", Role.TOOL), said("Hm", author="Bob")):
        assert not Said([asked, between, said("Yes")]).has_confirmed(RULE)
    assert not Said([asked, said("Yes", author="Bob")]).has_confirmed(RULE)


def test_a_label_is_held_by_whole_words():
    text = "I live in Oslo, with Ida."
    assert [one for one in ("Oslo", "with ida", "slo", "in Ida", "") if holds(text, one)] == ["Oslo", "with ida"]
    assert own_sentences(text) == [text]
