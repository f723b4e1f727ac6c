"""Memories that rules find in what a user says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from time import process_time
from zoneinfo import ZoneInfo

import pytest
from statement_support import MIN_PRECISION, MIN_RECALL, scored, sentences

from inference_core.effects import run
from inference_core.ingestion.extraction.rules import RuleExtractor, extract_by_rules
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import Action, Candidate, ConversationMessage, KnownMemory, Role

NOW = datetime(2026, 6, 15, tzinfo=UTC)


def _said(*texts: str, role: Role = Role.USER, author: str | None = None) -> list[ConversationMessage]:
    return [
        ConversationMessage(session_id="s", role=role, text=text, id=f"m{place}", position=place, author=author)
        for place, text in enumerate(texts)
    ]


def _found(*texts: str, offered: tuple[str, ...] = ()) -> list[Candidate]:
    known = [KnownMemory(f"M{place}", f"id{place}", content) for place, content in enumerate(offered)]
    return list(extract_by_rules(_said(*texts), known, NOW).candidates)


@pytest.mark.parametrize(
    ("text", "kind", "topic"),
    [
        ("I live in Berlin.", MemoryType.FACTS, "residence"),
        ("My boss is Karin.", MemoryType.FACTS, "boss"),
        ("I'm allergic to peanuts.", MemoryType.FACTS, "allergy"),
        ("My daughter is 4 years old.", MemoryType.FACTS, "age"),
        ("My favourite colour is blue.", MemoryType.PREFERENCES, "favourite colour"),
        ("I prefer short answers.", MemoryType.PREFERENCES, "length of answers"),
        ("I love opera.", MemoryType.PREFERENCES, "like"),
        ("Please always answer in English.", MemoryType.INSTRUCTION, "language of answers"),
        ("From now on, please use metric units.", MemoryType.INSTRUCTION, "units"),
        ("Always cite your sources.", MemoryType.INSTRUCTION, None),
        ("Please call me Tom.", MemoryType.INSTRUCTION, "form of address"),
        ("I want to run a marathon by October.", MemoryType.GOALS, None),
        ("My goal is to read 30 books this year.", MemoryType.GOALS, None),
        ("Ich arbeite bei Siemens.", MemoryType.FACTS, "employer"),
    ],
    ids=str,
)
def test_a_plain_statement_is_a_memory_in_the_users_own_words(text: str, kind: MemoryType, topic: str | None):
    (candidate,) = _found(f"Hi there! {text} Can you help me?")
    assert (candidate.content, candidate.memory_type, candidate.topic) == (text, kind, topic)
    assert candidate.message_ids == ("m0",)
    assert candidate.action is Action.ADD
    assert candidate.state == ("open" if kind is MemoryType.GOALS else None)


@pytest.mark.parametrize(
    "text",
    [
        "Do I live in Berlin?",
        "What if I lived in Berlin?",
        "I might move to Berlin.",
        "My sister says I live in Berlin.",
        'The form reads "I live in Berlin."',
        "> I live in Berlin.",
        "Here is the letter:\nI live in Berlin.",
        "Hello\nI live in Berlin.",
        "Subject: moving\nI live in Berlin.",
        "Dear Ms Hale,\nI live in Berlin.",
        "```\nI live in Berlin.\n```",
        "12:30 Ann: I live in Berlin.",
        "I had a great time last week!",
        "I love your answer so much!",
        "I want to know how this works.",
        "I'm trying to fix this bug by using a lock.",
        "I finished lunch.",
        "Please answer this one in English.",
        "Never give up!",
        "Thanks, that's great!",
        "Anna lives in Berlin.",
    ],
    ids=lambda text: text[:30].replace("\n", " "),
)
def test_chatter_questions_quotations_and_pasted_text_give_nothing(text: str):
    assert _found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "My doctor is Dr. Weber.",
        "I live in St. Gallen.",
        "My favourite fruits are citrus, e.g. oranges.",
        "My address is Bergstr. 5 in Ulm.",
        "Mein Geburtstag ist am 3. Mai.",
        "Ich wohne im 3. Stock.",
        "Meine Tochter geht in die 3. Klasse.",
    ],
    ids=str,
)
def test_regression_the_point_of_an_abbreviation_or_ordinal_ends_no_sentence(text: str):
    """The memory was "My doctor is Dr." and "Mein Geburtstag ist am 3."."""
    assert [one.content for one in _found(text)] == [text]


@pytest.mark.parametrize("text", ["I take 5 mg ramipril every morning.", "Ich nehme 5 mg Ramipril."], ids=str)
def test_a_dose_is_a_memory(text: str):
    assert [one.content for one in _found(text)] == [text]


def test_a_new_dose_supersedes_the_old_one():
    (candidate,) = _found("I take 40 mg of Lisinopril now.", offered=("I take 20 mg of Lisinopril.",))
    assert (candidate.action, candidate.target) == (Action.SUPERSEDE, "id0")


def test_a_number_ends_a_sentence():
    assert [one.content for one in _found("My son is 4. My daughter is 12. I live in Rome.")] == [
        "My son is 4.",
        "My daughter is 12.",
        "I live in Rome.",
    ]


@pytest.mark.parametrize("role", [Role.ASSISTANT, Role.TOOL], ids=str)
def test_only_the_user_is_believed(role: Role):
    assert extract_by_rules(_said("I live in Berlin.", role=role), [], NOW).candidates == []


@pytest.mark.parametrize("reversed_", [False, True])
def test_regression_what_others_say_of_themselves_is_no_fact_about_the_user(reversed_: bool):
    """A batch of one other person's messages counted as the user's, and two people's together gave nothing at all."""
    both = [*_said("I live in Ghent."), *_said("I moved to Utrecht.", author="Bob")]
    for others in ([], both[:1]):
        told = [*others, both[1]][:: -1 if reversed_ else 1]
        found = extract_by_rules(told, [KnownMemory("k1", "id0", "I live in Ghent.")], NOW).candidates
        assert [(one.content, one.action) for one in found] == [("I live in Ghent.", Action.REINFORCE)] * len(others)


def test_what_is_not_proven_to_be_typed_is_not_believed():
    (message,) = _said("I live in Berlin.")
    assert extract_by_rules([replace(message, is_proven=False)], [], NOW).candidates == []


@pytest.mark.parametrize("how", ["marked", "tool", "offered", "earlier"])
def test_beside_text_from_outside_sentences_stay_whole(how: str):
    """Only a whole sentence counts as the user's words; a part of it may say the opposite."""
    told, earlier = _said("I live in Berlin and I am allergic to peanuts."), list[ConversationMessage]()
    known = [KnownMemory("k1", "id0", "Tea is good.", is_external=True)] if how == "offered" else []
    if how == "marked":
        told = [replace(told[0], is_marked=True)]
    if how == "tool":
        told += _said("Rain", role=Role.TOOL)
    if how == "earlier":
        earlier = _said("Rain", role=Role.TOOL)
    found = run(RuleExtractor().extract(told, known, NOW, UTC, earlier=earlier)).candidates
    assert [one.content for one in found] == ["I live in Berlin and I am allergic to peanuts."]


def test_a_candidate_supersedes_or_reinforces_what_is_offered():
    known = ("My brother lives in Rome.", "The user lives in Berlin.", "I speak French.")
    moved, again, other = _found("I moved to Hamburg last month. I speak French! I speak Dutch.", offered=known)
    assert (moved.action, moved.target, moved.valid_from) == (
        Action.SUPERSEDE,
        "id1",
        datetime(2026, 5, 1, tzinfo=UTC),
    )
    assert (again.action, again.target) == (Action.REINFORCE, "id2")
    assert (other.action, other.target) == (Action.ADD, None)


def test_what_the_user_said_before_is_repeated_rather_than_what_a_page_said():
    """Guards against a second memory of the same: what a page said is not reinforced, but its place is taken."""
    known = [
        KnownMemory("k1", "page", "The user lives in Berlin.", True),
        KnownMemory("k2", "own", "I live in Berlin."),
    ]
    (found,) = extract_by_rules(_said("I live in Berlin!"), known, NOW).candidates
    assert (found.action, found.target) == (Action.REINFORCE, "own")


def test_what_was_reached_closes_the_goal():
    done, unrelated = _found(
        "I finished my thesis. I completed the tax return.", offered=("I want to finish my thesis by May.",)
    )
    assert (done.state, done.action, done.target) == ("done", Action.SUPERSEDE, "id0")
    assert (unrelated.state, unrelated.action) == ("done", Action.ADD)


def test_candidates_of_one_batch_close_and_join_each_other():
    old, new = _found("I live in Berlin.", "I live in Hamburg now.", "I live in Hamburg.")
    assert (old.content, old.valid_to) == ("I live in Berlin.", NOW)
    assert (new.content, new.valid_to, new.message_ids) == ("I live in Hamburg now.", None, ("m1", "m2"))


@pytest.mark.untraced  # the tracing takes longer than what it traces
@pytest.mark.parametrize(
    "part",
    [
        "I live in Berlin since May and I work at Siemens. ",
        "I, my, we, our, ",
        "my a's b's c of the d is ",
        "I am not not but not no longer ",
        "from 2019 to 2021 until May ",
        "I have stopped quit given up ",
        "please always never please ",
        "``` ",
        "\n",
        "I ",
        "x",
    ],
    ids=lambda part: part.strip()[:12],
)
def test_sixty_four_kilobytes_take_less_than_fifty_milliseconds(part: str):
    text = (part * (65_536 // len(part) + 1))[:65_536]
    _found(text)
    took: list[float] = []
    for _ in range(3):
        started = process_time()
        _found(text)
        took.append(process_time() - started)
    assert min(took) < 0.05


def test_what_ends_one_statement_of_a_sentence_leaves_the_others():
    texts = [one.content for one in _found("I live in Berlin and I am allergic to peanuts.")]
    assert texts == ["I live in Berlin", "I am allergic to peanuts."]
    (moved,) = _found("I moved to Hamburg.", offered=("I live in Berlin and I am allergic to peanuts",))
    assert (moved.action, moved.target) == (Action.ADD, None)
    (moved,) = _found("I moved to Hamburg.", offered=("I live in Berlin",))
    assert (moved.action, moved.target) == (Action.SUPERSEDE, "id0")


@pytest.mark.parametrize("held_out", [False, True])
def test_regression_plain_statements_of_people_who_introduce_themselves_are_found(held_out: bool):
    """Rules missed "I work in the Marketing team." and seven of ten other plain statements."""
    score = scored(one for one in sentences() if one.held_out is held_out)
    assert (score.precision >= MIN_PRECISION, score.recall >= MIN_RECALL) == (True, True), score


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Remember that I prefer Python over Ruby for data science tasks", MemoryType.FACTS),
        ("I work in the Marketing team.", MemoryType.FACTS),
        ("Hi, I'm Sarah from the Marketing team", MemoryType.FACTS),
        ("I can't eat gluten.", MemoryType.PREFERENCES),
        ("Bitte duze mich.", MemoryType.INSTRUCTION),
        ("I'm trying to quit smoking.", MemoryType.GOALS),
    ],
    ids=str,
)
def test_an_introduction_is_a_memory_of_its_type(text: str, kind: MemoryType):
    (candidate,) = _found(text)
    assert (candidate.content, candidate.memory_type) == (text, kind)


def test_an_idea_is_an_open_goal_with_its_tag():
    (idea,) = _found("I have an idea for a newsletter about forgotten vegetables.")
    assert (idea.memory_type, idea.tags, idea.state) == (MemoryType.GOALS, ("idea",), "open")


def test_what_is_over_is_no_memory_but_ends_one():
    over = "I no longer work at Nokia."
    assert _found(over) == []
    (ends,) = _found(over, offered=("I work at Nokia.",))
    assert (ends.action, ends.target) == (Action.SUPERSEDE, "id0")


@pytest.mark.parametrize(
    ("known", "text", "before", "after"),
    [
        ("I switched from Emacs to Vim.", "I use Emacs.", Action.SUPERSEDE, Action.ADD),
        ("I use Vim.", "I switched from Vim to Emacs.", Action.ADD, Action.SUPERSEDE),
        ("I want to finish my thesis by May.", "I finished my thesis.", Action.ADD, Action.SUPERSEDE),
    ],
)
def test_what_was_said_before_a_known_memory_is_compared_in_that_order(
    known: str, text: str, before: Action, after: Action
):
    """Only the later of two statements can say that the earlier one is over."""
    memory = KnownMemory("k1", "id", known, said_at=NOW)
    for year, action in ((2024, before), (2027, after)):
        message = ConversationMessage(session_id="s", role=Role.USER, text=text, id="m", at=NOW.replace(year=year))
        assert [one.action for one in extract_by_rules([message], [memory], NOW).candidates] == [action]


@pytest.mark.parametrize(
    "text",
    [
        "Translate into German: I live in Milan.",
        "Translate this: I am a clerk. I live in Milan.",
        "Correct my English: I live in Milan and I work at Bosch.",
        "Dialogue: I live in Milan. I work at Bosch.",
        "Tom: I live in Milan.",
        "My sister's bio: I work at Bosch and I live in Milan.",
    ],
)
def test_regression_a_text_to_work_on_ends_no_fact_about_the_user(text: str):
    """The clause after the colon counted as the user's own, so a translation moved the user to Milan."""
    assert _found(text, offered=("I live in Rome", "I work at Siemens")) == []


@pytest.mark.parametrize("lead", ["About me: ", "Update: ", "Just so you know: ", "Correction: ", "Fun fact: "])
def test_a_label_of_the_users_own_words_does_not_hide_them(lead: str):
    (candidate,) = _found(f"{lead}I live in Milan.", offered=("I live in Rome",))
    assert (candidate.action, candidate.target) == (Action.SUPERSEDE, "id0")


@pytest.mark.parametrize(
    "text",
    [
        "I have lived in Milan.",
        "I've worked at Bosch as an intern.",
        "I've worked as a waiter.",
        "I've been vegan.",
        "I went from Rome to Naples last weekend.",
        "I joined Discord.",
        "I joined Anna for lunch.",
        "I am a great cook.",
        "I am a terrible driver.",
        "Ich lebe in Trennung.",
        "Ich arbeite für Geld.",
    ],
)
def test_regression_what_was_once_a_trip_or_a_judgement_ends_no_fact(text: str):
    """Each superseded where the user lives, works, what they are or eat."""
    known = ("I live in Rome", "I work at Siemens", "I am a nurse", "I am vegetarian")
    assert [one for one in _found(text, offered=known) if one.action is not Action.ADD] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("I am married", "I am married to Berta."),
        ("I am married to Berta", "I got married to Carla."),
        ("I work at Siemens", "I work at Siemens as a project manager."),
        ("I live in Rome", "I live in Rome with my wife Berta and two kids."),
    ],
)
def test_regression_a_statement_that_adds_something_is_no_repetition(old: str, new: str):
    """It only reinforced the known memory, and what it added was lost."""
    (candidate,) = _found(new, offered=(old,))
    assert (candidate.content, candidate.action) == (new, Action.ADD)
    (again,) = _found(new, offered=(new,))
    assert again.action is Action.REINFORCE


def test_regression_a_day_is_the_users_not_the_clocks():
    """Ten past midnight in Tokyo is still the day before in UTC, in which captured messages are dated."""
    zone, at = ZoneInfo("Asia/Tokyo"), datetime(2026, 3, 1, 15, 10, tzinfo=UTC)
    message = ConversationMessage(session_id="s", role=Role.USER, text="I moved to Berlin yesterday.", id="m", at=at)
    (candidate,) = run(RuleExtractor().extract([message], [], at, zone)).candidates
    assert candidate.valid_from == datetime(2026, 3, 1, tzinfo=zone)
