"""What plain statements say, and what a newer one does to an older one."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pytest
from supersession_support import DATA, Score, pairs, scored
from support import load

from inference_core.slots import Comparison, Holds, Slot, compare, slots_of

SAID = datetime(2026, 6, 15, tzinfo=UTC)
READ = DATA.with_name("statements_read.json")


def _told(text: str) -> str:
    return "; ".join(_line(slot) for slot in slots_of(text, SAID))


def _told_with_dates(text: str) -> str:
    return "; ".join(
        f"{_line(slot)} | {slot.holds.value} | {slot.valid_from or ''}..{slot.valid_to or ''}".replace(
            " 00:00:00+00:00", ""
        )
        for slot in slots_of(text, SAID)
    )


def _line(slot: Slot) -> str:
    marks = {
        "not": slot.is_negated,
        "past": slot.is_past,
        "change": slot.is_change,
        "correction": slot.is_correction,
        "too": slot.is_addition,
        f"instead of {slot.replaced}": slot.replaced,
    }
    return " | ".join([slot.subject, slot.attribute, slot.value, *(mark for mark, holds in marks.items() if holds)])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("I live in Berlin.", "user | residence | Berlin"),
        ("The user lives in Berlin", "user | residence | Berlin"),
        ("Lives in Lisbon with her wife.", "user | residence | Lisbon with her wife"),
        ("We've just moved to Porto!", "user | residence | Porto | change"),
        ("I used to live in Rome", "user | residence | Rome | past"),
        ("I no longer work at Nokia.", "user | employer | Nokia | not | change"),
        (
            "I've left Acme and joined Globex",
            "user | employer | Acme | not | change; user | employer | Globex | change",
        ),
        ("I work as a teacher", "user | job | teacher"),
        ("I'm a senior developer now", "user | job | senior developer | change"),
        ("My brother's wife's phone number is 555-0108", "user/brother/partner | phone | 555-0108"),
        ("The deadline of the Nile report is 3 March", "nile report | deadline | 3 March"),
        ("The Berlin office opens at 8", "berlin office | open at | 8"),
        ("Blue is my favorite color", "user | favourite colour | Blue"),
        ("My new doctor is Dr. Braun", "user | doctor | Dr. Braun | change"),
        ("Sorry, my meeting is at 4 pm.", "user | meeting | 4 pm | correction"),
        ("I'm not from Austria but from Australia", "user | origin | Australia | instead of Austria"),
        ("I switched from Vim to Helix", "user | * | Helix | change | instead of Vim"),
        ("I use Kate for writing notes", "user | use for writing notes | Kate"),
        ("I gave up learning Japanese", "user | learn | Japanese | not | change"),
        ("I also speak Dutch", "user | speak | Dutch | too"),
        ("I hate coriander", "user | like | coriander | not"),
        ("My wife and I moved to Leiden", "user | residence | Leiden | change"),
        ("Kim and I split up", "user | partner | Kim | not | change"),
        ("Kim and I got engaged", "user | marital status | engaged | change"),
        ("I prefer German answers", "user | language of answers | German"),
        ("I prefer rhyming answers", "user | prefer | rhyming answers"),
        ("The migration is finished", "migration | status | finished"),
        ("I'm called Jon", "user | name | Jon"),
        ("I gave up keto in May", "user | * | keto | not | change"),
        ("I've retired", "user | job | * | not | change"),
        ("My flight has been rebooked to 5 May", "user | flight | 5 May | change"),
        ("Please always answer in English", "user | language of answers | English"),
        ("I prefer short answers", "user | length of answers | short"),
        ("Mein Bruder wohnt in Ulm", "user/bruder | residence | Ulm"),
        ("Meine neue Lieblingsband ist Blur", "user | favourite band | Blur | change"),
        ("Ich wohne nicht mehr in Berlin", "user | residence | Berlin | not"),
    ],
    ids=str,
)
def test_a_plain_statement_has_subject_attribute_and_value(text: str, told: str):
    assert _told(text) == told


def test_regression_a_gerund_doubles_its_consonant():
    assert _told("I have been getting 8 hours of sleep") == "user | get # hours of sleep | 8"


@pytest.mark.parametrize(
    "text",
    [
        "Do I live in Hamburg?",
        "I might move to Hamburg",
        "I'll move to Hamburg next year",
        "I'm starting a new job at Bosch in September",
        'Marta said, "I live in Madrid."',
        "> I live in Lisbon",
        "My aunt says that I eat meat",
        "Yeah right, I live in a castle now /s",
        "I'm staying in Lisbon until Friday",
        "I don't like Paris in August",
        "Today I'm working at the library",
        "I'm a bit tired",
        "I work at night",
        "I live in fear",
        "Hello there",
        "",
        "I live in Berlin. " * 40,
    ],
    ids=lambda text: text[:30],
)
def test_what_is_not_plain_says_nothing(text: str):
    assert slots_of(text, SAID) == ()


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("I have worked at Globex since 2022", date(2022, 1, 1), None),
        ("From 2019 to 2021 I worked at Acme", date(2019, 1, 1), date(2022, 1, 1)),
        ("I lived in Rome until last year", None, date(2026, 1, 1)),
        ("I moved to Hamburg last month", date(2026, 5, 1), None),
        ("I live in Rome", None, None),
    ],
    ids=str,
)
def test_a_statement_may_say_when_it_holds(text: str, first: date | None, last: date | None):
    slot = slots_of(text, SAID)[0]
    assert (slot.valid_from and slot.valid_from.date(), slot.valid_to and slot.valid_to.date()) == (first, last)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("I live in Rome", Holds.ONE),
        ("I speak French", Holds.SEVERAL),
        ("My hobby is chess", Holds.SEVERAL),
        ("My dog is called Pip", Holds.SEVERAL),
        ("My favourite film is Heat", Holds.ONE),
        ("My office is in room 12", Holds.USUALLY_ONE),
    ],
    ids=str,
)
def test_some_attributes_hold_one_value_at_a_time(text: str, holds: Holds):
    assert slots_of(text)[0].holds is holds


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("I live in Berlin.", "I moved to Hamburg.", Comparison.SUPERSEDES),
        ("I live in Berlin.", "My home is in Berlin.", Comparison.SAME),
        ("I live in Berlin.", "My brother lives in Hamburg.", Comparison.BOTH),
        ("My brother lives in Rome.", "My brother lives in Milan.", Comparison.BOTH),
        ("My brother lives in Rome.", "My brother lives in Milan now.", Comparison.SUPERSEDES),
        ("Alice uses the billing service.", "The billing service uses Stripe.", Comparison.BOTH),
        ("I worked at Acme until 2021.", "I work at Globex.", Comparison.BOTH),
        ("I live in Rome.", "I used to live in Rome.", Comparison.SUPERSEDES),
        ("I have lived in Rome since 2019.", "I have lived in Italy since 2010.", Comparison.BOTH),
        ("I live in Berlin.", "I live in Berlin since May.", Comparison.BOTH),
        ("I have lived in Rome since 2019.", "I've been living in Rome since 2019.", Comparison.SAME),
        ("I'm 180 cm tall.", "I'm 1.80 m tall.", Comparison.SAME),
        ("My dog is called Pip.", "My dog is ill.", Comparison.BOTH),
        ("My dog's name is Rex.", "My dog's name is Luna.", Comparison.BOTH),
        ("Mein Hund heißt Rex.", "Mein Hund heißt Luna.", Comparison.BOTH),
        ("My dog's name is Rex.", "My dog's name is Luna now.", Comparison.SUPERSEDES),
        ("I work at Acme.", "I started working with Kubernetes.", Comparison.BOTH),
        ("I work at Acme.", "I started work at 7.", Comparison.BOTH),
        ("I work at Acme.", "I started working for Globex.", Comparison.SUPERSEDES),
        ("My boss is Karin.", "My boss is Swedish.", Comparison.BOTH),
        ("My wife is Anna.", "My wife is Italian.", Comparison.BOTH),
        ("My boss is Karin.", "My boss is Peter.", Comparison.SUPERSEDES),
        ("I'm vegetarian.", "I'm on a keto diet.", Comparison.BOTH),
        ("I'm on a keto diet.", "I'm on a Mediterranean diet now.", Comparison.SUPERSEDES),
        ("My birthday is May 3.", "My birthday is on 4 May.", Comparison.SUPERSEDES),
        ("Mein Geburtstag ist am 3. Mai.", "Mein Geburtstag ist der 4. Mai.", Comparison.SUPERSEDES),
        ("Mein Geburtstag ist am 3. Mai.", "Mein Geburtstag ist der 3. Mai.", Comparison.SAME),
    ],
    ids=str,
)
def test_a_newer_statement_supersedes_repeats_or_leaves(old: str, new: str, expected: Comparison):
    assert compare(old, new, new_at=SAID) is expected


def test_what_was_said_earlier_supersedes_nothing():
    earlier, later = datetime(2026, 1, 1, tzinfo=UTC), SAID
    assert compare("I live in Rome", "I live in Oslo", old_at=earlier, new_at=later) is Comparison.SUPERSEDES
    assert compare("I live in Rome", "I live in Oslo", old_at=later, new_at=earlier) is Comparison.BOTH


def test_the_bars_hold_on_all_labelled_pairs():
    labelled = pairs()
    phenomena = {pair.phenomenon for pair in labelled}
    assert len(labelled) >= 300
    assert len(phenomena) >= 20
    score = scored(labelled)
    assert score.holds
    assert score == Score(pairs=527, superseding=161, found=138, right=137, agreed=499)


def test_every_labelled_statement_is_read_as_before():
    """What is read decides what is kept, so every change is looked at; this file, run as a script, writes it down."""
    assert {text: _told_with_dates(text) for text in _texts()} == load(READ.name)


def _texts() -> list[str]:
    return sorted({text for pair in pairs() for text in (pair.old, pair.new)})


if __name__ == "__main__":
    told = {text: _told_with_dates(text) for text in _texts()}
    READ.write_text(json.dumps(told, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
