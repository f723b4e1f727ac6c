"""Reading of statements, whatever the text."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.ingestion.extraction.rules import extract_by_rules
from inference_core.outbox.messages import Action, ConversationMessage, KnownMemory, Role
from inference_core.slots import Comparison, compare, slots_of
from inference_core.slots.reading import expanded
from inference_core.slots.slot import entries, pattern, rows, uncased

MANY = examples(200)
NOW = datetime(2026, 6, 15, tzinfo=UTC)
WHO = "I my we the user's brother Anna's Anna and I's it is deadline of office"
WHAT = "live lives in at Berlin work works for Siemens as nurse am not no longer used to have been favourite colour"
CHANGE = (
    "now new moved switched changed from to left quit stopped gave up sold retired married instead but actually sorry"
)
TIME = (
    "since until May 2019 last year , . ; : ! ? \n 'quoted' always never please answer call me short answers 34 (cm) m"
)
WORDS = st.lists(st.sampled_from(f"{WHO} {WHAT} {CHANGE} {TIME}".split(" ")), max_size=14).map(" ".join)
TEXTS = WORDS | st.text(max_size=80)
PATTERNS = [
    *map(pattern, entries("patterns")),
    *(uncased(one) for pair in entries("excluding")["pairs"] for one in pair),
]
OF_PATTERNS = st.lists(
    st.sampled_from(re.findall(r"[^\W_]+(?:'\w+)?|[^\w\s\\]", " ".join(one.text for one in PATTERNS))), max_size=6
).map(" ".join)


@MANY
@given(TEXTS)
def test_slots_are_whole_and_a_question_has_none(text: str):
    for slot in slots_of(text, NOW):
        assert slot.subject
        assert slot.attribute
        assert slot.valid_from is None or slot.valid_from.tzinfo
    assert slots_of(f"{text}?", NOW) == ()


@MANY
@given(TEXTS, TEXTS)
def test_a_relation_is_found_whatever_is_said(old: str, new: str):
    assert compare(old, new, old_at=NOW, new_at=NOW) in Comparison
    assert compare(old, old) is Comparison.SAME
    assert compare(old, f'She said "{new}"') is not Comparison.SUPERSEDES


@MANY
@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_candidates_are_the_users_words_and_aim_at_what_is_offered(said: list[str], known: list[str]):
    messages = [
        ConversationMessage(session_id=None, role=Role.USER, text=text, id=str(place))
        for place, text in enumerate(said)
    ]
    offered = [KnownMemory(f"M{place}", f"id{place}", text) for place, text in enumerate(known)]
    for candidate in extract_by_rules(messages, offered, NOW).candidates:
        assert any(candidate.content in text for text in said)
        assert (candidate.target is None) == (candidate.action is Action.ADD)
        assert candidate.target is None or candidate.target in {memory.memory_id for memory in offered}


@MANY
@given(TEXTS | OF_PATTERNS)
def test_a_search_in_lower_case_first_misses_nothing(text: str):
    for one in PATTERNS:
        for said in (text, text.upper(), text.title()):
            found, whole = one.search(said), re.search(one.text, said, re.IGNORECASE)
            assert (found and found.span()) == (whole and whole.span()), one.text


@MANY
@given(TEXTS | OF_PATTERNS)
@example("I CANNOT stand it")
@example("It\u02bcs no more")
def test_what_has_a_contraction_is_told_from_its_marks(text: str):
    whole = text
    for contracted, expansion in rows("contractions"):
        whole = contracted.sub(expansion, whole)
    assert expanded(text) == whole


@MANY
@given(TEXTS | OF_PATTERNS)
@example("not in Rome but in Oslo since May, formerly")
def test_what_is_looked_for_after_a_first_look_has_what_that_looks_for(text: str):
    for first, names in (
        ("qualified", ("former", "not_but", "change", "addition", "filler")),
        ("timed", ("past", "range", "since", "until", "at")),
    ):
        found = [name for name in names if pattern(name).is_in(text)]
        assert not found or pattern(first).is_in(text), found
