"""Memories of plain statements of the user, found by rules: no model, no network, bounded time.

Precision goes first: questions, guesses, plans, quotations, pasted text, code and chatter give nothing, and neither
does what the assistant or a tool says. A memory is the user's own sentence, whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Any, Final

from inference_core.clock import in_zone
from inference_core.drivers import Plan
from inference_core.ingestion.candidates import Action, Candidate, Extraction, Offered
from inference_core.ingestion.messages import Message, Role
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.types import MemoryType
from inference_core.slots.comparing import Said, relation_of
from inference_core.slots.plainness import expanded
from inference_core.slots.reading import MAX_CHARACTERS as MAX_SENTENCE
from inference_core.slots.slot import ANY, USER, Holds, Relation, Slot
from inference_core.slots.values import key_of, kind_of
from inference_core.slots.words import MANY, PEOPLE, PETS, word_set

MAX_CHARACTERS: Final = 4_000
"""A message beyond this many characters is pasted, and what follows them is not looked at."""
MAX_SENTENCES: Final = 40
MAX_OFFERED: Final = 200
_MIN_WORDS: Final = 3
_FENCE: Final = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_PASTED: Final = re.compile(
    r"^[ \t]{0,8}(?:[>|#$]|(?:from|to|subject|date|sent|cc):\s|-{3,}|={3,}|_{3,}|(?:dear|hi|hello) "
    r"[^\n]{1,40},\s*$|\[?\d\d:\d\d)"
    r"|^[^\n]{0,200}:[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_END: Final = re.compile(r"(?<!\bDr)(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bSt)(?<=[.!?])[)\s]+|\n+")
_FIRST_PERSON: Final = re.compile(r"\b(?:i|my|we|our|ich|meine?)\b", re.IGNORECASE)
_AND_I: Final = re.compile(r",? (?:and|but) (?=(?:I|my)\b)")
_LEAD: Final = r"(?:(?:please|from now on|in future|in the future|and|also|ok|okay|so|actually|,)[,:]?\s+)*"
_ASK: Final = (
    "answer|reply|respond|write|use|call me|format|include|cite|show|explain|sign|translate|address me|round"
    "|convert|spell|mention|avoid using|stop using|keep (?:your|the|all) (?:answers|replies|responses)"
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
_GOAL: Final = re.compile(
    r"(?:i|we) (?:want|plan|intend|aim|hope|(?:am|are) (?:planning|aiming|going)) to (?P<aim>.+)"
    r"|my goal (?:for [\w ]{1,30} )?is(?: to)? (?P<goal>.+)",
    re.IGNORECASE,
)
_MAX_GOAL_WORDS: Final = 25
_MONTH: Final = "january|february|march|april|may|june|july|august|september|october|november|december"
_TIME: Final = (
    rf"(?:the )?(?:end|middle|beginning) of|(?:{_MONTH}|spring|summer|autumn|winter|christmas|easter|(?:19|20)\d\d)\b"
    rf"|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?(?:{_MONTH})\b|(?:next|this) (?:week|month|year|spring|summer|autumn"
    rf"|fall|winter)\b"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|my (?:\w+ )?birthday\b"
)
_BY_WHEN: Final = re.compile(
    rf"\b(?:(?:by|before|until|within|in|on) (?:the )?(?:{_TIME})|(?:this|next) (?:week|month|year|summer))",
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
_ASIDE: Final = re.compile(r"\b(?:but|and i|and we)\b", re.IGNORECASE)
_TELLING: Final = re.compile(
    r"\b(?:i|my|we|our|ich|meine?|please|always|never|from now on|call me|use|answer|keep)\b", re.IGNORECASE
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


_LASTING: Final = re.compile(
    r"name|form of address|residence|address|employer|job|diet|allergy|age|height|weigh #.*|birthday|origin|partner"
    r"|phone|marital status|e-mail|speak|bank with|drive|units|(?:length|tone|language) of answers|prefer|timezone"
    r"|deadline|favourite .+|\*"
)
"""Attributes that last, so that also what was counts."""
_HABITS: Final = word_set("like play learn study collect use drink eat smoke read")
_BELONGINGS: Final = word_set(
    "car bike bicycle motorbike house flat apartment garden boat licence license van degree diabete asthma migraine"
    " company business shop restaurant farm twin baby children camper piano guitar"
)
_POINTING: Final = re.compile(
    r"\b(?:it|this|that|these|those|them|your|you|there|here|how|what|so much|so far|the way|a lot|a ton|each other)\b",
    re.IGNORECASE,
)
_VAGUE: Final = re.compile(
    r"\A(?:the|being|having|doing|getting|such|all|more|some|from|on|for|with|to)\b", re.IGNORECASE
)
_LINK: Final = re.compile(r"\b(?:and|of|for|to|in|thing|goal|one|top)\b")
_MAX_WORDS: Final = 8
_FEW_WORDS: Final = 3


@dataclass(frozen=True, slots=True)
class _Sentence:
    """What a user said: as it was said, expanded, and read."""

    text: str
    plain: str
    said: Said
    message: Message

    @classmethod
    def of(cls, text: str, message: Message, now: datetime) -> _Sentence:
        return cls(text, expanded(text).rstrip(".! "), Said.of(text, message.at or now), message)

    def candidate(self, memory_type: MemoryType, importance: float = DEFAULT_IMPORTANCE, **more: Any) -> Candidate:
        """The sentence as a memory."""
        ids = () if self.message.id is None else (self.message.id,)
        return Candidate(content=self.text, memory_type=memory_type, importance=importance, message_ids=ids, **more)


_Found = tuple[Candidate, _Sentence]


def extract_by_rules(messages: Sequence[Message], offered: Sequence[Offered], now: datetime) -> Extraction:
    """The candidates that plain statements of the user give, in their order; ``now``, aware, dates undated messages.

    Nothing is taken from messages of several authors, since who the user is cannot be told. A candidate supersedes the
    first of ``offered`` whose place it takes, else reinforces the first that it says again; only the first MAX_OFFERED
    are looked at. Of two candidates one of which takes the other's place, the older says until when it held. Never
    raises; the time for a message is bounded, whatever it holds.
    """
    theirs = [message for message in messages if message.role is Role.USER]
    if len({message.author for message in theirs}) > 1:
        return Extraction([])
    found: list[_Found] = []
    for sentence in (sentence for message in theirs for sentence in _sentences(message, now)):
        candidate = _instruction(sentence) or _goal(sentence) or _statement(sentence)
        if candidate is not None:
            _add(found, candidate, sentence)
    known = [(memory, Said.of(memory.content)) for memory in offered[:MAX_OFFERED]] if found else []
    return Extraction([_placed(candidate, sentence, known) for candidate, sentence in found])


def _add(found: list[_Found], candidate: Candidate, sentence: _Sentence) -> None:
    """Adds a candidate; one that says another again joins it, and one that takes its place says until when it held."""
    for place, (earlier, told) in enumerate(found):
        how = relation_of(told.said, sentence.said)
        if how is Relation.SAME:
            ids = tuple(dict.fromkeys(earlier.message_ids + candidate.message_ids))
            found[place] = replace(earlier, message_ids=ids), told
            return
        if how is Relation.SUPERSEDES and told.said.clauses == 1:
            found[place] = replace(earlier, valid_to=candidate.valid_from or sentence.said.at), told
    found.append((candidate, sentence))


def _sentences(message: Message, now: datetime) -> Iterator[_Sentence]:
    """The sentences that are the user's own and may tell something, until the first sign of pasted text."""
    text = _FENCE.sub("\n", message.text[:MAX_CHARACTERS])
    pasted = _PASTED.search(text)
    text = text[: pasted.start()] if pasted else text
    for part in _END.split(text, maxsplit=MAX_SENTENCES)[:MAX_SENTENCES]:
        sentence = part.strip()
        if len(sentence) <= MAX_SENTENCE and _TELLING.search(sentence) and len(sentence.split()) >= _MIN_WORDS:
            yield from _statements(_Sentence.of(sentence, message, now), now)


def _statements(sentence: _Sentence, now: datetime) -> Iterator[_Sentence]:
    """The sentence, or its statements one by one if each makes sense by itself: what ends one must not end another."""
    parts = [part.strip(" ,") for part in _AND_I.split(sentence.text)]
    said = sentence.said
    if 1 < len(parts) == len(said.slots) == said.clauses and all(map(_FIRST_PERSON.search, parts)):
        yield from (_Sentence.of(part, sentence.message, now) for part in parts)
    else:
        yield sentence


def _instruction(sentence: _Sentence) -> Candidate | None:
    """A request for all answers to come."""
    if _UNCERTAIN.search(sentence.plain):
        return None
    is_standing = _REQUEST.fullmatch(sentence.plain) and _STANDING.search(sentence.plain)
    if not is_standing and not _NAMING.fullmatch(sentence.plain):
        return None
    slots = sentence.said.slots
    return sentence.candidate(MemoryType.INSTRUCTION, _GUIDING, topic=slots[0].attribute if slots else None)


def _goal(sentence: _Sentence) -> Candidate | None:
    """What the user wants to reach by some time, or has reached."""
    if _UNCERTAIN.search(sentence.plain) or '"' in sentence.plain or len(sentence.plain.split()) > _MAX_GOAL_WORDS:
        return None
    if found := _GOAL.fullmatch(sentence.plain):
        aim = found["aim"] or found["goal"]
        is_one = not _NO_GOAL.match(aim) and (found["goal"] or _BY_WHEN.search(aim))
        return sentence.candidate(MemoryType.GOALS, _GUIDING, state="open") if is_one else None
    found = _DONE.fullmatch(sentence.plain)
    if found is None or _DAILY.match(found["what"]) or _ASIDE.search(found["what"]):
        return None
    return sentence.candidate(MemoryType.GOALS, state="done", valid_from=sentence.message.at)


def _statement(sentence: _Sentence) -> Candidate | None:
    """What holds of the user and of those around."""
    slots = [slot for slot in sentence.said.slots if slot.subject.startswith(USER) and _is_telling(slot)]
    if not slots or not _FIRST_PERSON.search(sentence.text):
        return None
    slot = next((slot for slot in slots if slot.is_change and not slot.is_negated), slots[0])
    likes = slot.attribute.startswith(_PREFERENCES)
    return sentence.candidate(
        MemoryType.PREFERENCES if likes else MemoryType.FACTS,
        _IMPORTANCE.get(slot.attribute, DEFAULT_IMPORTANCE),
        topic=slot.attribute if slot.attribute != ANY else None,
        valid_from=slot.valid_from,
        valid_to=slot.valid_to,
    )


def _is_telling(slot: Slot) -> bool:
    """Whether the slot says something that another conversation may need, without what was said around it."""
    words = slot.value.casefold().split()
    if not words and not slot.is_negated:
        return False
    if _LASTING.fullmatch(slot.attribute):
        return len(words) <= _MAX_WORDS and not _POINTING.search(slot.value)
    if slot.is_past or _POINTING.search(slot.value) or not 0 < len(words) <= _MAX_WORDS:
        return False
    if slot.attribute in _HABITS:
        return len(words) <= _FEW_WORDS and not _VAGUE.search(slot.value)
    if slot.attribute == "have":
        return words[-1].rstrip("s") in _BELONGINGS or words[-1] in PEOPLE | PETS
    names_one = len(slot.attribute.split()) <= _FEW_WORDS and not _LINK.search(slot.attribute)
    return (
        names_one and (slot.holds is Holds.ONE or slot.attribute in PEOPLE | PETS | MANY) and _is_definite(slot.value)
    )


def _is_definite(value: str) -> bool:
    return kind_of(value) in ("name", "number")


def _placed(candidate: Candidate, sentence: _Sentence, known: Sequence[tuple[Offered, Said]]) -> Candidate:
    """The candidate with what it does to those that are there."""
    same: str | None = None
    for memory, old in known:
        found = relation_of(old, sentence.said)
        ends = found is Relation.SUPERSEDES and old.clauses == 1  # what else it says still holds
        if ends or (candidate.state == "done" and _reaches(sentence, memory)):
            return replace(candidate, action=Action.SUPERSEDE, target=memory.memory_id)
        same = memory.memory_id if found is Relation.SAME and same is None else same
    return candidate if same is None else replace(candidate, action=Action.REINFORCE, target=same)


def _reaches(sentence: _Sentence, memory: Offered) -> bool:
    """Whether the sentence says that the goal that ``memory`` is has been reached."""
    goal = _GOAL.fullmatch(expanded(memory.content[:MAX_SENTENCE]).rstrip(".! "))
    done = _DONE.fullmatch(sentence.plain)
    if goal is None or done is None:
        return False
    what = set(key_of(done["what"]))
    return bool(what) and what <= set(key_of(goal["aim"] or goal["goal"]))


class RuleExtractor:
    """The rules as what the worker asks for memories: no model, plain statements of the user in English alone."""

    def extract(
        self, messages: Sequence[Message], offered: Sequence[Offered], now: datetime, zone: tzinfo
    ) -> Plan[Extraction]:
        """Plan: the candidates of ``messages``; days are those of ``zone``."""
        yield from ()
        return extract_by_rules(messages, offered, in_zone(now, zone))
