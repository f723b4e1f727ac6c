"""Whom a clause is about and what it says of them: its predicate, read as an attribute and a value."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

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
    Holds,
    entries,
    holds_of,
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
    if found := pattern("user").match(text):
        return _verbal((USER,), text[found.end() :])
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
                is_past=made.is_past or pattern("old").search(f"{subject} ") is not None,
                is_change=made.is_change or pattern("new").search(f"{subject} ") is not None,
            )
    return None


def owner_of(phrase: str) -> tuple[str, ...] | None:
    """The path that a noun phrase names: "my brother's phone number" is user, brother, phone. None if it names none."""
    if (found := pattern("of").fullmatch(phrase)) and not pattern("owned_by_user").match(phrase):
        whose = owner_of(found["whose"])
        return None if whose is None else (*whose, _noun(found["what"]))
    path: tuple[str, ...] = ()
    if found := pattern("owned_by_user").match(phrase):
        path, phrase = (USER,), phrase[found.end() :]
    elif not (phrase.lower().startswith(("the ", "project ", "our ")) or _NAME.match(phrase)):
        return None
    parts = [_noun(part) for part in re.split(r"['\u2019]s? ", phrase) if part]
    return (*path, *parts) if parts and all(parts) else None


def reading_of(predicate: Predicate) -> Reading | None:
    """The predicate as an attribute and a value; None if any of it is not understood."""
    owner, verb, rest = predicate.owner, predicate.verb, predicate.rest
    if verb == "":
        return Reading(owner, ANY, re.sub(r"\A(?:on |the |my |a |an )+", "", rest))
    if pattern("linked").search(rest) or len(rest.split()) > MAX_VALUE_WORDS:
        return None
    for form, attribute, holds in rows(verb):
        if (found := form.fullmatch(rest)) and _can_be(attribute, found["value"]):
            return Reading(owner, attribute, found["value"], Holds(holds), more=found.groupdict().get("more") or "")
    if verb == "be":
        return _being(owner, rest)
    said = f"{verb} {rest}".rstrip()
    for form, attribute, ends in rows("events"):  # an event, and what holds or no longer holds since
        found = form.fullmatch(said)
        groups = found.groupdict() if found else {}
        value = groups.get("value")
        if found is None or (value and not _can_be(attribute, value)):
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
        if found := form.fullmatch(text):
            if attribute == "style":
                return _style((USER,), found["value"])
            holds = Holds.SEVERAL if attribute == "prefer" else Holds.ONE
            return Reading((USER,), attribute, found["value"], holds, ends=ends)
    return None


def german_reading(text: str) -> Reading | None:
    """A German clause of one of the most frequent forms."""
    if not pattern("german_start").match(text):
        return None
    for form, attribute, holds in rows("german"):
        found = form.fullmatch(text)
        if found and found["value"].casefold() not in words("no_name_in_german"):
            who = found["who"].casefold()
            owner = (USER,) if who == "ich" else (who,)
            if who.startswith(("mein ", "meine ")):
                owner = (USER, who.split()[1])
            return Reading(owner, attribute, found["value"], Holds(holds), bool(found["not"]), "gezogen" in text)
    if found := pattern("german_is").fullmatch(text):
        what, value = found["what"].casefold(), found["value"]
        attribute = f"favourite {what.removeprefix('lieblings')}" if what.startswith("lieblings") else _noun(what)
        return Reading((USER,), attribute, value, holds_of(attribute, value), is_change=bool(found["new"]))
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
        has_ceased = pattern("ceased").search(found["never"]) is not None
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
    if kind in ("be", "have") and (found := re.match(r"(?:not|no longer)(?: |\Z)", rest)):
        inner = _verbal(owner, f"{first} {rest[found.end() :]}")
        return inner and replace(inner, is_negated=True, is_change="longer" in found[0])
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
    if verb in ("prefer", "like") and (found := pattern("styled").fullmatch(rest)):
        return _style(owner, found["style"])
    if verb in words("measured") and (found := re.search(r"\d[\d.,:]*", rest)):
        attribute = f"{verb} {rest[: found.start()]}#{rest[found.end() :]}"
        return Reading(owner, attribute, found[0], Holds.ONE if verb == "weigh" else Holds.USUALLY_ONE)
    for preposition in ("for", "to", "at", "with") if verb in ("use", "take") else ():
        before, link, after = rest.partition(f" {preposition} ")
        if link:
            return Reading(owner, f"{verb} {preposition} {after.casefold()}", before, Holds.USUALLY_ONE)
    if found := re.fullmatch(r"(?P<link>with|to|for|at|on) (?P<value>.+)", rest):
        attribute, value = f"{verb} {found['link']}", found["value"]
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
