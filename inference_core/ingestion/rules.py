"""Memories of plain statements of the user, found by rules: no model, no network, bounded time.

Precision goes first: questions, guesses, plans, quotations, pasted text, code and chatter give nothing, and neither does
what the assistant or a tool says. A memory is the user's own sentence, whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from inference_core.ingestion.candidates import Action, Candidate, Extraction, Offered
from inference_core.ingestion.messages import Message, Role
from inference_core.ingestion.slots.comparing import Said, relation_of
from inference_core.ingestion.slots.plainness import expanded
from inference_core.ingestion.slots.slot import Relation, Slot
from inference_core.ingestion.slots.values import key_of
from inference_core.memory.types import MemoryType

MAX_CHARACTERS: Final = 4_000
"""A message beyond this many characters is pasted, and what follows them is not looked at."""
MAX_SENTENCES: Final = 60
MAX_OFFERED: Final = 200
_MIN_WORDS: Final = 3
_FENCE: Final = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_PASTED: Final = re.compile(
    r"^\s*(?:[>|#$]|(?:from|to|subject|date|sent|cc):\s|-{3,}|={3,}|_{3,}|(?:dear|hi|hello) [^\n]{1,40},\s*$|\[?\d\d:\d\d)"
    r"|^[^\n]{0,200}:[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_END: Final = re.compile(r"(?<!\bDr)(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bSt)(?<=[.!?])[)\s]+|\n+")
_FIRST_PERSON: Final = re.compile(r"\b(?:i|my|we|our|ich|meine?)\b", re.IGNORECASE)
_LEAD: Final = r"(?:(?:please|from now on|in future|in the future|and|also|ok|okay|so|actually|,)[,:]?\s+)*"
_ASK: Final = (
    "answer|reply|respond|write|use|call|keep|format|include|add|cite|show|explain|make|put|give|sign|translate|speak|talk|"
    "address|avoid|start|end|begin|run|check|ask|tell|send|round|convert|spell|mention|be|say|remind|suggest|read|stop"
)
_STANDING: Final = re.compile(
    r"\b(?:always|never|from now on|in future|in the future|any ?more|every time|whenever)\b", re.IGNORECASE
)
_REQUEST: Final = re.compile(
    rf"{_LEAD}(?:please )?(?:(?:always|never|do not|do not ever)\s+)*(?:please )?(?:always |never )?(?:{_ASK})\b.+",
    re.IGNORECASE,
)
_NAMING: Final = re.compile(r"(?:please )?(?:call me|keep your (?:answers|replies|responses)) \S.*", re.IGNORECASE)
_UNCERTAIN: Final = re.compile(
    r"\?|\b(?:this time|this once|just once|if you|could you|can you|would you|i guess|maybe|haha|lol)\b", re.IGNORECASE
)
_WANT: Final = (
    r"(?:i|we) (?:want|plan|intend|aim|am planning|am aiming|am trying|am going|are planning|would like|hope|need) to "
    r"(?P<aim>.+)|my goal (?:is|for [\w ]{1,30} is)(?: to)? (?P<goal>.+)"
)
_GOAL: Final = re.compile(_WANT, re.IGNORECASE)
_BY_WHEN: Final = re.compile(
    r"\b(?:by|before|until|within|this year|next year|this summer|next summer|next month|in (?:january|february|march|april|may"
    r"|june|july|august|september|october|november|december|(?:19|20)\d\d))\b",
    re.IGNORECASE,
)
_NO_GOAL: Final = re.compile(
    r"(?:know|ask|see|understand|say|hear|talk|check|mention|thank|add|be clear|go to bed|eat|sleep)\b", re.IGNORECASE
)
_DONE: Final = re.compile(
    r"(?:i|we) (?:have )?(?:just |finally |now )*(?:finished|completed|achieved|submitted|handed in|passed)"
    r" (?:with )?(?P<what>.+)",
    re.IGNORECASE,
)
_DAILY: Final = re.compile(
    r"(?:(?:my|the|a) )?(?:work|lunch|dinner|breakfast|coffee|tea|meeting|call|it|that|this|eating)\b", re.IGNORECASE
)
_IMPORTANCE: Final = {
    "name": 0.9,
    "allergy": 0.9,
    "residence": 0.8,
    "employer": 0.8,
    "partner": 0.8,
    "diet": 0.8,
    "birthday": 0.8,
    "job": 0.8,
}
_GUIDING: Final = 0.8
_PREFERENCES: Final = ("favourite", "prefer", "like", "diet", "length of", "tone of", "language of", "units")


@dataclass(frozen=True, slots=True)
class _Sentence:
    """What a user said, and when."""

    text: str
    message: Message
    at: datetime


def extract_by_rules(messages: Sequence[Message], offered: Sequence[Offered], now: datetime) -> Extraction:
    """The candidates that plain statements of the user give, in their order; ``now``, aware, is when undated ones were said.

    Nothing is taken from messages of several authors, since who the user is cannot be told. A candidate supersedes or
    reinforces the first of ``offered`` that it takes the place of or says again. Never raises; the time is linear in the
    length of the messages, with a fixed bound for each.
    """
    theirs = [message for message in messages if message.role is Role.USER]
    if len({message.author for message in theirs}) > 1:
        return Extraction([])
    known = [(memory, Said.of(memory.content)) for memory in offered[:MAX_OFFERED]]
    found: dict[str, Candidate] = {}
    for sentence in (sentence for message in theirs for sentence in _sentences(message, now)):
        candidate = _candidate(sentence)
        if candidate is not None and _spelling(candidate.content) not in found:
            found[_spelling(candidate.content)] = _placed(candidate, sentence, known)
    return Extraction(list(found.values()))


def _spelling(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".! ")


def _sentences(message: Message, now: datetime) -> Iterator[_Sentence]:
    """The sentences that are the user's own, until the first sign of pasted text."""
    text = _FENCE.sub("\n", message.text[:MAX_CHARACTERS])
    pasted = _PASTED.search(text)
    text = text[: pasted.start()] if pasted else text
    for part in _END.split(text, maxsplit=MAX_SENTENCES)[:MAX_SENTENCES]:
        sentence = part.strip()
        if len(sentence.split(maxsplit=_MIN_WORDS)) >= _MIN_WORDS:
            yield _Sentence(sentence, message, message.at or now)


def _candidate(sentence: _Sentence) -> Candidate | None:
    """What the sentence asks to be remembered; None if that is not certain."""
    found = _instruction(sentence) or _goal(sentence) or _statement(sentence)
    if found is None or sentence.message.id is None:
        return found
    return replace(found, message_ids=(sentence.message.id,))


def _instruction(sentence: _Sentence) -> Candidate | None:
    text = expanded(sentence.text)
    if _UNCERTAIN.search(text):
        return None
    is_standing = _REQUEST.fullmatch(text.rstrip(".! ")) and _STANDING.search(text)
    if not is_standing and not _NAMING.fullmatch(text):
        return None
    slots = Said.of(sentence.text).slots
    return Candidate(
        content=sentence.text,
        memory_type=MemoryType.INSTRUCTION,
        topic=slots[0].attribute if slots else None,
        importance=_GUIDING,
    )


def _goal(sentence: _Sentence) -> Candidate | None:
    """What the user wants to reach by some time, or has reached."""
    text = expanded(sentence.text).rstrip(".! ")
    if _UNCERTAIN.search(text) or '"' in text:
        return None
    if found := _GOAL.fullmatch(text):
        aim = found["aim"] or found["goal"]
        if _NO_GOAL.match(aim) or not (found["goal"] or _BY_WHEN.search(aim)):
            return None
        return Candidate(content=sentence.text, memory_type=MemoryType.GOALS, state="open", importance=_GUIDING)
    found = _DONE.fullmatch(text)
    if found is None or _DAILY.match(found["what"]):
        return None
    return Candidate(content=sentence.text, memory_type=MemoryType.GOALS, state="done", valid_from=sentence.message.at)


def _statement(sentence: _Sentence) -> Candidate | None:
    if not _FIRST_PERSON.search(sentence.text):
        return None
    slots = [slot for slot in Said.of(sentence.text, sentence.at).slots if slot.subject.startswith("user")]
    if not slots or not _is_telling(slots[0]):
        return None
    slot = slots[-1] if slots[-1].is_change else slots[0]
    likes = slot.attribute.startswith(_PREFERENCES)
    return Candidate(
        content=sentence.text,
        memory_type=MemoryType.PREFERENCES if likes else MemoryType.FACTS,
        topic=slot.attribute if slot.attribute != "*" else None,
        importance=_IMPORTANCE.get(slot.attribute, 0.5),
        valid_from=slot.valid_from,
        valid_to=slot.valid_to,
    )


def _is_telling(slot: Slot) -> bool:
    """Whether the slot says something that another conversation may need, without what was said around it."""
    return bool(key_of(slot.value)) or slot.is_negated


def _placed(candidate: Candidate, sentence: _Sentence, known: Sequence[tuple[Offered, Said]]) -> Candidate:
    """The candidate with what it does to those that are there."""
    for action, wanted in ((Action.SUPERSEDE, Relation.SUPERSEDES), (Action.REINFORCE, Relation.SAME)):
        new = Said.of(candidate.content, sentence.at)
        for memory, old in known:
            if relation_of(old, new) is wanted or (action is Action.SUPERSEDE and _reaches(candidate, memory)):
                return replace(candidate, action=action, target=memory.memory_id)
    return candidate


def _reaches(candidate: Candidate, memory: Offered) -> bool:
    """Whether the candidate says that the goal that ``memory`` is has been reached."""
    goal = _GOAL.fullmatch(expanded(memory.content).rstrip(".! "))
    done = _DONE.fullmatch(expanded(candidate.content).rstrip(".! "))
    if candidate.state != "done" or goal is None or done is None:
        return False
    what = set(key_of(done["what"]))
    return bool(what) and what <= set(key_of(goal["aim"] or goal["goal"]))
