"""Reads plain statements as slots, clause by clause, and decides what a newer statement does to an older one.

Phrases about time and change are taken out of a clause's words and kept as fields. Its predicate, whom it is about and
what it says of them, is read as an attribute and a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import takewhile
from typing import Final

from inference_core.retrieval.query import interval_of
from inference_core.slots.slot import (
    ANY,
    EVENTS,
    GERUNDS,
    PAST_FORMS,
    PEOPLE,
    PRESENT_FORMS,
    SPELLINGS,
    SYNONYMS,
    USER,
    VERBS,
    Comparison,
    Holds,
    Slot,
    entries,
    holds_of,
    key_of,
    kind_of,
    pattern,
    rows,
    words,
)

MAX_SUBJECT_WORDS: Final = 8
MAX_VALUE_WORDS: Final = 10
_NAME: Final = re.compile(
    r"(?:[A-Z\u00c0-\u00de][\w'.-]*|of|de|von|van|the)(?: (?:[A-Z\u00c0-\u00de0-9][\w'.-]*|[a-z]+|\d+)){0,5}\Z"
)
_USED_TO: Final = re.compile(r"used to\s+(?P<rest>.+)", re.IGNORECASE)
_ALL_VERBS: Final = frozenset([*PRESENT_FORMS, *PAST_FORMS, "used", "no", "does", "never", *EVENTS])
_STARTS: Final = frozenset(form for form in PRESENT_FORMS if form.endswith("s")) - {"is", "reports", "calls", "opens"}
"""Verbs with which a note about the user may begin, without naming the user: "Lives in Lisbon"."""
_STYLES: Final = {
    word: (axis, side.split()[0])
    for axis, sides in entries("styles").items()
    for side in sides
    for word in side.split()
}


@dataclass(frozen=True, slots=True)
class Predicate:
    """What a clause says of ``owner``, a path from somebody to something of theirs: ("user", "brother").

    ``verb`` is in its base form, except for events ("moved"); it is "" if ``rest`` was given up. ``is_perfect``: "have
    lived", which may be over.
    """

    owner: tuple[str, ...]
    verb: str
    rest: str
    is_negated: bool = False
    is_past: bool = False
    is_change: bool = False
    is_perfect: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """An attribute of ``owner`` and its value; ``ends`` means that the value no longer holds.

    ``more`` is what the clause adds to the value: to whom somebody is married.
    """

    owner: tuple[str, ...]
    attribute: str
    value: str
    holds: Holds = Holds.SEVERAL
    ends: bool = False
    is_change: bool = False
    replaced: str | None = None
    more: str = ""


def predicate_of(text: str) -> Predicate | None:
    """The predicate of a clause; None unless its subject and verb are recognised."""
    if match := pattern("user").match(text):
        return _verbal((USER,), text[match.end() :])
    parts = text.split(" ")
    if parts[0].lower() in _STARTS:
        return _verbal((USER,), text)
    for position, word in enumerate(parts[1 : MAX_SUBJECT_WORDS + 1], 1):
        if word in _ALL_VERBS:
            subject = " ".join(parts[:position])
            owner = owner_of(subject)
            made = _verbal(owner, " ".join(parts[position:])) if owner else None
            return made and replace(
                made,
                is_past=made.is_past or pattern("old").is_in(f"{subject} "),
                is_change=made.is_change or pattern("new").is_in(f"{subject} "),
            )
    return None


def owner_of(phrase: str) -> tuple[str, ...] | None:
    """The path that a noun phrase names: "my brother's phone number" is user, brother, phone. None if it names none."""
    if (match := pattern("of").fullmatch(phrase)) and not pattern("owned_by_user").match(phrase):
        whose = owner_of(match["whose"])
        return None if whose is None else (*whose, _noun(match["what"]))
    path: tuple[str, ...] = ()
    if match := pattern("owned_by_user").match(phrase):
        path, phrase = (USER,), phrase[match.end() :]
    elif not (phrase.lower().startswith(("the ", "project ", "our ")) or _NAME.match(phrase)):
        return None
    parts = [_noun(part) for part in re.split(r"['\u2019]s? ", phrase) if part]
    return (*path, *parts) if parts and all(parts) else None


def reading_of(predicate: Predicate) -> Reading | None:
    """The predicate as an attribute and a value; None if any of it is not understood."""
    owner, verb, rest = predicate.owner, predicate.verb, predicate.rest
    if verb == "":
        return Reading(owner, ANY, re.sub(r"\A(?:on |the |my |a |an )+", "", rest))
    if pattern("linked").is_in(rest) or len(rest.split()) > MAX_VALUE_WORDS:
        return None
    for form, attribute, holds in rows(verb):
        if (match := form.fullmatch(rest)) and _can_be(attribute, match["value"]):
            return Reading(owner, attribute, match["value"], Holds(holds), more=match.groupdict().get("more") or "")
    if verb == "be":
        return _being(owner, rest)
    said = f"{verb} {rest}".rstrip()
    for form, attribute, ends in rows("events"):  # an event, and what holds or no longer holds since
        match = form.fullmatch(said)
        groups = match.groupdict() if match else {}
        value = groups.get("value")
        if match is None or (value and not _can_be(attribute, value)):
            continue
        value = value or ANY
        if groups.get("what"):
            return Reading(owner, _noun(groups["what"]), value, Holds.ONE, is_change=True)
        holds = Holds.SEVERAL if attribute == ANY else Holds.ONE
        former, more = groups.get("former"), groups.get("more") or ""
        return Reading(owner, attribute, value, holds, ends, is_change=True, replaced=former, more=more)
    return _generic(owner, verb, rest) if verb in words("generic") else None


def request_of(text: str) -> Reading | None:
    """A standing request: "keep your answers short", "call me Tom", "never use emojis"."""
    for form, attribute, ends in rows("requests"):
        if match := form.fullmatch(text):
            if attribute == "style":
                return _style((USER,), match["value"])
            holds = Holds.SEVERAL if attribute == "prefer" else Holds.ONE
            return Reading((USER,), attribute, match["value"], holds, ends=ends)
    return None


def german_reading(text: str) -> Reading | None:
    """A German clause of one of the most frequent forms."""
    if not pattern("german_start").match(text):
        return None
    for form, attribute, holds in rows("german"):
        match = form.fullmatch(text)
        if match and match["value"].casefold() not in words("no_name_in_german"):
            who = match["who"].casefold()
            owner = (USER,) if who == "ich" else (who,)
            if who.startswith(("mein ", "meine ")):
                owner = (USER, who.split()[1])
            return Reading(owner, attribute, match["value"], Holds(holds), bool(match["not"]), "gezogen" in text)
    if match := pattern("german_is").fullmatch(text):
        what, value = match["what"].casefold(), match["value"]
        attribute = f"favourite {what.removeprefix('lieblings')}" if what.startswith("lieblings") else _noun(what)
        return Reading((USER,), attribute, value, holds_of(attribute, value), is_change=bool(match["new"]))
    return None


def _noun(phrase: str) -> str:
    """A noun phrase in canonical form: without its article and words such as "old" or "new", synonyms replaced."""
    phrase = pattern("article").sub("", pattern("old").sub("", pattern("new").sub("", phrase.casefold()))).strip()
    spelled = " ".join(SPELLINGS.get(word, word) for word in phrase.split())
    return SYNONYMS.get(phrase.replace(" ", ""), spelled)


def _verbal(owner: tuple[str, ...], text: str) -> Predicate | None:
    """The predicate in ``text``, which begins with a verb."""
    if found := _USED_TO.fullmatch(text):
        inner = _verbal(owner, found["rest"])
        return inner and replace(inner, is_past=True)
    if found := pattern("not_verb").fullmatch(text):
        inner = _verbal(owner, found["rest"]) or Predicate(owner, "", found["rest"])
        has_ceased = pattern("ceased").is_in(found["never"])
        is_plain = inner.verb or has_ceased
        return replace(inner, is_negated=not inner.is_negated, is_change=has_ceased) if is_plain else None
    first, _, rest = text.partition(" ")
    first = first.lower()
    if found := _auxiliary(owner, first, rest):
        return found
    if first in EVENTS or first in VERBS:
        return Predicate(owner, first, rest)
    if verb := PRESENT_FORMS.get(first, GERUNDS.get(first)):
        return Predicate(owner, verb, rest)
    return Predicate(owner, PAST_FORMS[first], rest, is_past=True) if first in PAST_FORMS else None


def _auxiliary(owner: tuple[str, ...], first: str, rest: str) -> Predicate | None:
    """Perfect and progressive forms, and negated forms of "to be" and "to have"."""
    word, _, after = rest.partition(" ")
    kind = PRESENT_FORMS.get(first, PAST_FORMS.get(first, first))
    is_past = first in PAST_FORMS
    if kind == "have":
        if word in ("stopped", "given", "quit"):
            return _verbal(owner, rest)
        if word in EVENTS:
            return Predicate(owner, word, after, is_past=is_past)
        gerund, _, behind = after.partition(" ")
        if word == "been" and gerund in GERUNDS:
            return Predicate(owner, GERUNDS[gerund], behind, is_past=is_past)
        if word in PAST_FORMS:
            return Predicate(owner, PAST_FORMS[word], after, is_past=is_past, is_perfect=not is_past)
    if kind == "be" and word in GERUNDS and GERUNDS[word] != "be":
        return Predicate(owner, GERUNDS[word], after, is_past=is_past)
    if kind in ("be", "have") and (match := re.match(r"(?:not|no longer)(?: |\Z)", rest)):
        inner = _verbal(owner, f"{first} {rest[match.end() :]}")
        return inner and replace(inner, is_negated=True, is_change="longer" in match[0])
    return None


def _can_be(attribute: str, value: str) -> bool:
    """Whether ``value`` is plausible for ``attribute``."""
    parts = value.casefold().split() or [""]
    if attribute == "residence":
        return parts[0] not in words("no_place") and {"my", "our", "for"}.isdisjoint(parts)
    if attribute == "job":
        return _is_job(parts)
    if attribute != "employer":
        return True
    if not {"on", "from", "until", "every", "during"}.isdisjoint(parts):
        return False
    if parts[0] in ("a", "an", "the"):
        return len(parts) > 1 and parts[1] not in words("no_employer")
    return parts[0] not in words("no_employer") and (value[0].isupper() or value[0].isdigit())


def _is_job(parts: list[str]) -> bool:
    """Whether the words before the first preposition end in the name of a job."""
    head = list(takewhile(lambda word: word not in ("in", "at", "for", "with", "on", "and", "of"), parts))
    if not head or head[0] in words("judging") or "heart" in parts:
        return False
    return head[-1] in words("jobs") or head[-1].endswith(("ologist", "maker", "smith"))


def _being(owner: tuple[str, ...], rest: str) -> Reading | None:
    """The reading of "to be": what somebody or something is."""
    called = re.fullmatch(r"(?:called|named) (?P<name>.+)", rest)
    if called and owner == (USER,):
        return Reading(owner, "name", called["name"], Holds.ONE)
    is_person = owner == (USER,) or owner[-1] in PEOPLE or owner[-1] in words("only_people")
    if is_person and re.fullmatch(r"\d{1,3}", rest):
        return Reading(owner, "age", rest, Holds.ONE)
    if rest.casefold() in words("states") or rest.startswith(("in progress", "on hold")):
        what = owner[:-1] if owner[-1] == "status" else owner
        return None if owner == (USER,) else Reading(what, "status", rest, Holds.ONE)
    if len(owner) == 1:
        return None
    if is_person and rest.casefold() in words("origins"):  # not who it is: "my boss is Swedish"
        return Reading(owner, "nationality", rest)
    *whose, attribute = owner
    value = called["name"] if called else rest
    if attribute == "residence":
        value = value.removeprefix("in ") if value.startswith("in ") else ""
    if attribute == "job" and not _is_job(value.casefold().split()):
        attribute = "nature of work"
    if not value or re.search(r"\bto\b", value):
        return None
    return Reading(tuple(whose), attribute, value, holds_of(attribute, value))


def _generic(owner: tuple[str, ...], verb: str, rest: str) -> Reading:
    """The reading of a verb whose object is the value: what somebody uses, likes or plays."""
    rest = pattern("amount").sub("", rest)
    verb, is_dislike = entries("likes").get(verb, (verb, False))
    if verb in ("prefer", "like") and (match := pattern("styled").fullmatch(rest)):
        return _style(owner, match["style"])
    if verb in words("measured") and (match := re.search(r"\d[\d.,:]*", rest)):
        attribute = f"{verb} {rest[: match.start()]}#{rest[match.end() :]}"
        return Reading(owner, attribute, match[0], Holds.ONE if verb == "weigh" else Holds.USUALLY_ONE)
    for preposition in ("for", "to", "at", "with") if verb in ("use", "take") else ():
        before, link, after = rest.partition(f" {preposition} ")
        if link:
            return Reading(owner, f"{verb} {preposition} {after.casefold()}", before, Holds.USUALLY_ONE)
    if match := re.fullmatch(r"(?P<link>with|to|for|at|on) (?P<value>.+)", rest):
        attribute, value = f"{verb} {match['link']}", match["value"]
        return Reading(owner, attribute, value, _holds(attribute) if kind_of(value) == "name" else Holds.SEVERAL)
    is_one = verb == "drive" and kind_of(rest) == "name"
    return Reading(owner, verb, rest, Holds.ONE if is_one else _holds(verb), ends=is_dislike)


def _holds(attribute: str) -> Holds:
    return Holds(entries("holds").get(attribute, "several"))


def _style(owner: tuple[str, ...], word: str) -> Reading:
    """The reading of a wish for answers in the style ``word``, such as "short" or "French"."""
    if word.casefold() in _STYLES:
        return Reading(owner, *_STYLES[word.casefold()], Holds.ONE)
    if pattern("language").fullmatch(word):
        return Reading(owner, "language of answers", word, Holds.ONE)
    return Reading(owner, "prefer", f"{word} answers")


MAX_CLAUSES: Final = 6
_SPACES: Final = re.compile(r"\s+")
_BEFORE_VALUE: Final = re.compile(
    r"(?:from )?(?:in )?(?:at )?(?:for )?(?:on )?(?:the )?(?:an )?(?:a )?(?:(?:am|der) (?=\d))?", re.IGNORECASE
)
_YEAR: Final = re.compile(r"(?:19|20)\d\d\b")
_ANY_DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""A reference day for dates that do not depend on one."""
MAX_STATEMENT: Final = 300
"""A text with more characters is no plain statement."""
_MOVED_TO: Final = re.compile(
    r"(?P<topic>.+?) (?:has been |was |is )?(?:moved|postponed|pushed back|extended|shifted|rescheduled|rebooked"
    r"|changed) to (?P<value>.+)"
)
_BARE: Final = re.compile(r"(?:it is )?(?P<value>\S+(?: \S+){0,4})")


@dataclass(frozen=True, slots=True)
class Period:
    """When a clause holds. ``kind`` is the form it was said in: past, range, since, until, at, or "" if unsaid."""

    kind: str = ""
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class Clause:
    """The words of a clause, without the phrases whose meaning the other fields hold."""

    text: str
    period: Period = Period()
    replaced: str | None = None
    is_change: bool = False
    is_correction: bool = False
    is_addition: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """A statement prepared for comparison: its words, its slots, and when it was said (aware), if known."""

    words: tuple[str, ...]
    slots: tuple[Slot, ...]
    clauses: int
    at: datetime | None = None


@lru_cache(maxsize=4_096)  # the same memories are compared turn after turn
def said_of(text: str, at: datetime | None = None) -> Said:
    """The statement ``text``, said at ``at``, prepared for comparison. Never raises."""
    parts = (part.strip(".,!;:") for part in text.casefold().split())
    return Said(tuple(filter(None, parts)), *_read(text, at), at)


def slots_of(text: str, said_at: datetime | None = None) -> tuple[Slot, ...]:
    """The slots of a plain statement, clause by clause; none if it is not plain or not understood. Never raises.

    ``said_at``, aware, is the time that phrases like "last year" refer to.
    """
    return _read(text, said_at)[0]


def compare(old: str, new: str, *, old_at: datetime | None = None, new_at: datetime | None = None) -> Comparison:
    """What ``new`` does to ``old``; ``old_at`` and ``new_at``, aware, are when they were said.

    SUPERSEDES only if both give the same attribute of the same subject at the same time and cannot both be true. SAME
    only if ``new`` adds nothing to ``old``. Every doubtful case is BOTH. Never raises.
    """
    return compare_said(said_of(old, old_at), said_of(new, new_at))


def compare_said(old: Said, new: Said) -> Comparison:
    """Like `compare`, for statements that `said_of` has prepared."""
    if old.words == new.words:
        return Comparison.SAME
    is_late = old.at is not None and new.at is not None and new.at < old.at
    found = [_between(first, second, new.at) for first in old.slots for second in new.slots]
    if Comparison.SUPERSEDES in found:
        return Comparison.BOTH if is_late else Comparison.SUPERSEDES
    return Comparison.SAME if found == [Comparison.SAME] and new.clauses == 1 else Comparison.BOTH


def _read(text: str, said_at: datetime | None) -> tuple[tuple[Slot, ...], int]:
    """The slots of a statement and its number of clauses; none and 0 if it is not plain."""
    text = text.strip()
    if not text or len(text) > MAX_STATEMENT or not is_plain(text := expanded(text)):
        return (), 0
    clauses: list[Clause] = []
    topic = ""
    for clause in clauses_of(text, said_at):
        is_bare = _BARE.fullmatch(clause.text) if topic else None  # "it" and bare values refer to the last clause
        clauses.append(_changed(clause, f"{topic} is {is_bare['value']}") if is_bare else clause)
        told, new = pattern("has_changed").fullmatch(clause.text), pattern("has_new").fullmatch(clause.text)
        topic = told["topic"] if told else f"my {new['topic']}" if new else ""
    return tuple(slot for clause in clauses if (slot := _slot(clause))), len(clauses)


def _changed(clause: Clause, text: str) -> Clause:
    return replace(clause, text=text, is_change=True)


def _slot(clause: Clause) -> Slot | None:
    """The slot of a clause, with the time and change that its words, verb and subject state; None without a reading."""
    if moved := _MOVED_TO.fullmatch(clause.text):
        owner = owner_of(moved["topic"])
        if owner and (owner[-1].rsplit(" ", maxsplit=1)[-1] in words("dated")):
            return _slot(_changed(clause, f"{moved['topic']} is {moved['value']}"))
    predicate = None
    reading = _special(clause.text) or request_of(clause.text) or german_reading(clause.text)
    if reading is None:
        predicate = predicate_of(clause.text)
        reading = reading_of(predicate) if predicate else None
    if reading is None:
        return None
    period = clause.period
    is_change = reading.is_change or (predicate is not None and predicate.is_change)
    has_past = predicate is not None and predicate.is_past
    has_happened = is_change or (predicate is not None and predicate.verb in EVENTS)
    if period.kind == "at" and not (has_past or has_happened or clause.is_change or clause.is_correction):
        return None  # it holds at times only: "in August I don't like Paris"
    holds = reading.holds
    if predicate and predicate.is_perfect and period.kind != "since" and not pattern("for_long").is_in(predicate.rest):
        holds = Holds.SEVERAL if holds is Holds.ONE else holds  # it may be over: "I have lived in Rome"
    return Slot(
        subject="/".join(reading.owner),
        attribute=reading.attribute,
        value=reading.value if reading.attribute == "prefer" else bare(reading.value),
        holds=holds,
        is_negated=(predicate is not None and predicate.is_negated) != reading.ends,
        is_past=(has_past or period.kind in ("past", "range", "until")) and not reading.is_change,
        valid_from=period.start,
        valid_to=period.end,
        replaced=clause.replaced or reading.replaced,
        is_change=clause.is_change or is_change,
        is_correction=clause.is_correction,
        is_addition=clause.is_addition,
        more=reading.more,
    )


def _special(text: str) -> Reading | None:
    """The reading of a clause that is not about its grammatical subject; None for any other clause."""
    if match := pattern("called").fullmatch(text):
        return Reading((USER,), match["what"].casefold().rsplit(" ", maxsplit=1)[-1], match["name"])
    if match := pattern("one_of").fullmatch(text):
        return Reading((USER,), f"some {match['what'].casefold()}", match["value"])
    if match := pattern("broke_up").fullmatch(text):
        return Reading((USER,), "partner", match["name"], Holds.ONE, ends=True, is_change=True)
    if match := pattern("married").fullmatch(text):
        return Reading((USER,), "marital status", match["value"], Holds.ONE, is_change=True)
    match = pattern("turned").fullmatch(text)
    owner = owner_of(match["whose"]) if match else None
    return reading_of(Predicate(owner, "be", match["value"])) if match and owner else None


def _between(old: Slot, new: Slot, now: datetime | None) -> Comparison:
    is_over = old.is_past or (old.valid_to is not None and now is not None and old.valid_to <= now)
    if old.subject != new.subject or is_over or new.is_addition:
        return Comparison.BOTH
    if not old.is_negated and new.attribute in (old.attribute, ANY):  # it may say that the old value no longer holds
        is_old_value = key_of(new.value) == key_of(old.value)
        ends = new.is_negated and not new.is_past and (new.value == ANY or (new.attribute == ANY and is_old_value))
        if new.replaced is not None and not new.is_negated:
            ends = key_of(new.replaced) == key_of(old.value)
        if ends:
            return Comparison.SUPERSEDES
    if old.attribute != new.attribute:
        return Comparison.BOTH
    if key_of(old.value) != key_of(new.value):
        return Comparison.SUPERSEDES if _excludes(old, new) else Comparison.BOTH
    if old.is_negated != new.is_negated:
        return Comparison.BOTH if new.is_past else Comparison.SUPERSEDES
    if new.is_past:
        return Comparison.BOTH if old.is_negated else Comparison.SUPERSEDES
    tells_when = new.valid_from is not None and new.valid_from != old.valid_from
    tells_more = not set(key_of(new.more)) <= set(key_of(old.more))
    return Comparison.BOTH if tells_when or tells_more else Comparison.SAME


def _excludes(old: Slot, new: Slot) -> bool:
    """Whether two values of one attribute cannot both be true."""
    if old.is_negated or new.is_negated or new.is_past or Holds.SEVERAL in (old.holds, new.holds):
        return False
    first, second = key_of(old.value), key_of(new.value)
    if new.is_change or new.is_correction:
        return second[: len(first)] != first
    if old.valid_from and new.valid_from and new.valid_from < old.valid_from:
        return False
    of_many = PEOPLE | words("pets")  # "my brother", "my dog": another one each time
    could_be_another = not of_many.isdisjoint(old.subject.split("/"))
    if Holds.USUALLY_ONE in (old.holds, new.holds) or could_be_another or kind_of(old.value) != kind_of(new.value):
        return False
    return not (set(first) <= set(second) or set(second) <= set(first))  # one may be the other in more words


def expanded(text: str) -> str:
    """``text`` with its contractions expanded and its apostrophes straight."""
    if not pattern("contracted").is_in(text):
        return text
    for contracted, expansion in rows("contractions"):
        text = contracted.sub(expansion, text)
    return text


def is_plain(text: str) -> bool:
    """Whether the expanded ``text`` plainly states that something is, or has become, true.

    Questions, guesses, plans, quotations, hearsay, jokes and passing states are not plain, nor is any doubtful case.
    """
    return _is_plain(text.lower() if text.isascii() else text)


@lru_cache(maxsize=4_096)  # slots and conflicts ask the same of a text
def _is_plain(text: str) -> bool:
    if pattern("question").is_in(text) or pattern("not_plain").is_in(text) or is_labelled(text):
        return False
    return not pattern("today").is_in(text) or pattern("today_event").is_in(text)


def is_labelled(text: str) -> bool:
    """Whether the expanded ``text`` names a speaker or a task first: "Tom: I live in Rome", "Translate: I am Tom"."""
    label = pattern("label").match(text)
    if label is None or pattern("own_label").is_in(label["whose"]):
        return False
    return not pattern("lead").match(text) and not pattern("correction").match(text)


def clauses_of(text: str, said_at: datetime | None) -> list[Clause]:
    """The clauses of an expanded, plain ``text``. Once one corrects something, so do all after it."""
    found: list[Clause] = []
    is_correction = False
    for part in pattern("cut").split(pattern("together").sub(r"\g<whom> & I", text), maxsplit=MAX_CLAUSES):
        left = _SPACES.sub(" ", part).strip(" ,.!;:-()")
        for _ in range(MAX_CLAUSES):  # introductory words, of which some announce a correction
            correction = pattern("correction").match(left)
            lead = correction or pattern("lead").match(left)
            if lead is None:
                break
            left, is_correction = left[lead.end() :], is_correction or correction is not None
        replaced, is_change, is_addition = None, False, False
        if pattern("qualified").is_in(left):
            if former := pattern("former").search(left) or pattern("not_but").search(left):
                left, replaced = left[: former.start()] + left[former.end() :], bare(former["former"])
            unchanged = pattern("change").sub("", left)
            alone = pattern("addition").sub("", unchanged)
            is_change, is_addition = unchanged != left, alone != unchanged
            left = pattern("filler").sub("", alone)
        left, period = _without_period(left.strip(), said_at)
        left = _SPACES.sub(" ", left).strip(" ,.!;:-")
        if found and (denied := pattern("denied").match(left)):
            found[-1] = replace(found[-1], replaced=bare(denied["former"]), is_correction=True)
        elif left:
            continues = left.split(" ", maxsplit=1)[0] in words("continuing")
            if found and continues and found[-1].text.startswith(("I ", "We ", "we ")):
                left = f"I {left}"
            kinds = {"is_change": is_change, "is_correction": is_correction, "is_addition": is_addition}
            found.append(Clause(left, period, replaced, **kinds))
    return found


def bare(value: str) -> str:
    """``value`` without leading prepositions and articles."""
    return _BEFORE_VALUE.sub("", value, count=1).strip()


def _without_period(text: str, said_at: datetime | None) -> tuple[str, Period]:
    """``text`` without its first time phrase, and that period. A date that is the value itself stays."""
    if not pattern("timed").is_in(text):
        return text, Period()
    for kind in ("past", "range", "since", "until", "at"):
        match = pattern(kind).search(text)
        dates = pattern("bare_date").whole.finditer(text) if match and kind == "at" else ()
        if match is None or any(date.start() < match.end() and match.start() < date.end() for date in dates):
            continue
        rest, phrase = f"{text[: match.start()]} {text[match.end() :]}".strip(), match["phrase"]
        counted_from = _ANY_DAY if said_at is None and _YEAR.search(phrase) else said_at
        if kind in ("since", "until"):  # the point itself, as its interval is only a bound
            phrase = pattern("before_point").sub("", phrase)
            phrase = phrase if phrase.lower().startswith(("last", "this", "yesterday")) else f"in {phrase}"
        start, end = (counted_from and interval_of(phrase, counted_from)) or (None, None)
        period = Period(kind, None if kind == "until" else start, None if kind in ("since", "at") else end)
        return (rest, period) if rest else (text, Period())
    return text, Period()
