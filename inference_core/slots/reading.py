"""Statements read as slots."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from inference_core.slots.clauses import Clause, bare, clauses_of
from inference_core.slots.forms import Reading, imperative_of, reading_of
from inference_core.slots.german import german_reading
from inference_core.slots.plainness import expanded, is_plain
from inference_core.slots.predicates import Predicate, owner_of, predicate_of
from inference_core.slots.slot import USER, Holds, Slot
from inference_core.slots.words import DATED, EVENTS

MAX_CHARACTERS: Final = 300
"""A longer text is no plain statement."""
_CALLED: Final = re.compile(
    r"(?P<who>(?:I|we|the user) (?:have|has|own|owns)) an? (?:new )?(?P<what>[\w-]+(?: [\w-]+)?) (?:called|named) "
    r"(?P<name>.+)",
    re.IGNORECASE,
)
_ONE_OF: Final = re.compile(
    r"(?:one|some|two|three) of (?:my|the user's|our) (?P<what>[\w ]+?) (?:is|are) (?P<value>.+)", re.IGNORECASE
)
_TURNED: Final = re.compile(
    r"(?!(?:it|this|that|these|those|they|he|she|here|there|which|what)\b)(?P<value>[^ ].{0,60}?) (?:is|are) "
    r"(?P<whose>(?:my|our|the user's) [\w' -]+|[A-Z]\w+'s [\w' -]+)",
    re.IGNORECASE,
)
_BROKE_UP: Final = re.compile(r"(?P<name>[\w-]+) & I (?:have )?(?:broke|broken|split|separated)(?: up)?", re.IGNORECASE)
_MARRIED: Final = re.compile(
    r"(?:[\w-]+ & I|we) (?:are|got|have got) (?P<value>married|engaged|divorced)", re.IGNORECASE
)
_HAS_CHANGED: Final = re.compile(r"(?P<topic>(?:my|our|the user's) .+?) (?:has |was |is )?changed", re.IGNORECASE)
_HAS_NEW: Final = re.compile(r"(?:I|we) (?:have|got|have got) an? new (?P<topic>[\w -]+)", re.IGNORECASE)
_MOVED_TO: Final = re.compile(
    r"(?P<topic>.+?) (?:has been |was |is )?(?:moved|postponed|pushed back|extended|shifted|rescheduled|rebooked"
    r"|changed) to (?P<value>.+)"
)
_BARE: Final = re.compile(r"(?:it is )?(?P<value>\S+(?: \S+){0,4})")


def slots_of(text: str, said_at: datetime | None = None) -> tuple[Slot, ...]:
    """What a plain statement says, clause by clause; nothing if it is not plain or not understood. Never raises.

    ``said_at``, aware, is what "last year" is counted from.
    """
    return read(text, said_at)[0]


def slot_of(sentence: str, said_at: datetime | None = None) -> Slot | None:
    """The first thing that a plain statement says; None if it is not plain or not understood. Never raises."""
    return next(iter(slots_of(sentence, said_at)), None)


def read(text: str, said_at: datetime | None = None) -> tuple[tuple[Slot, ...], int]:
    """The slots of a statement, and how many clauses it has; nothing and none if it is not plain. Never raises."""
    text = text.strip()
    if not text or len(text) > MAX_CHARACTERS or not is_plain(text := expanded(text)):
        return (), 0
    clauses = _resolved(clauses_of(text, said_at))
    return tuple(slot for clause in clauses if (slot := _slot(clause))), len(clauses)


def _resolved(clauses: list[Clause]) -> list[Clause]:
    """The clauses, with "it" and bare values as what the clause before speaks of."""
    found: list[Clause] = []
    topic = ""
    for clause in clauses:
        if topic and (value := _BARE.fullmatch(clause.text)):
            found.append(_changed(clause, f"{topic} is {value['value']}"))
        else:
            found.append(clause)
        told = _HAS_CHANGED.fullmatch(clause.text)
        new = _HAS_NEW.fullmatch(clause.text)
        topic = told["topic"] if told else f"my {new['topic']}" if new else ""
    return found


def _changed(clause: Clause, text: str) -> Clause:
    return Clause(text, clause.period, clause.replaced, True, clause.is_correction, clause.is_addition)


def _slot(clause: Clause) -> Slot | None:
    if moved := _MOVED_TO.fullmatch(clause.text):
        owner = owner_of(moved["topic"])
        if owner and (owner[-1].rsplit(" ", maxsplit=1)[-1] in DATED):
            return _slot(_changed(clause, f"{moved['topic']} is {moved['value']}"))
    reading = _special(clause.text) or imperative_of(clause.text) or german_reading(clause.text)
    predicate = None
    if reading is None:
        predicate = predicate_of(clause.text)
        reading = reading_of(predicate) if predicate else None
    return _joined(clause, reading, predicate) if reading else None


def _special(text: str) -> Reading | None:
    """Clauses whose subject is not what they are about."""
    if found := _CALLED.fullmatch(text):
        return Reading((USER,), found["what"].casefold().rsplit(" ", maxsplit=1)[-1], found["name"])
    if found := _ONE_OF.fullmatch(text):
        return Reading((USER,), f"some {found['what'].casefold()}", found["value"])
    if found := _BROKE_UP.fullmatch(text):
        return Reading((USER,), "partner", found["name"], Holds.ONE, ends=True, is_change=True)
    if found := _MARRIED.fullmatch(text):
        return Reading((USER,), "marital status", found["value"], Holds.ONE, is_change=True)
    found = _TURNED.fullmatch(text)
    if found and (owner := owner_of(found["whose"])):
        return reading_of(Predicate(owner, "be", found["value"]))
    return None


def _joined(clause: Clause, reading: Reading, predicate: Predicate | None) -> Slot | None:
    """The slot of a clause, with what its words, its verb and its subject each say about time and change.

    None for what holds at times only: "in August I don't like Paris".
    """
    period = clause.period
    has_past = predicate is not None and predicate.is_past
    has_happened = reading.is_change or (predicate is not None and (predicate.is_change or predicate.verb in EVENTS))
    if period.kind == "at" and not (has_past or has_happened or clause.is_change or clause.is_correction):
        return None
    is_over = has_past or period.kind in ("past", "range", "until")
    return Slot(
        subject="/".join(reading.owner),
        attribute=reading.attribute,
        value=reading.value if reading.attribute == "prefer" else bare(reading.value),
        holds=reading.holds,
        is_negated=(predicate is not None and predicate.is_negated) != reading.ends,
        is_past=is_over and not reading.is_change,
        valid_from=period.start,
        valid_to=period.end,
        replaced=clause.replaced or reading.replaced,
        is_change=clause.is_change or reading.is_change or (predicate is not None and predicate.is_change),
        is_correction=clause.is_correction,
        is_addition=clause.is_addition,
    )
