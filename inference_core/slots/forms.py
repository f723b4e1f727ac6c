"""What verbs say: readings of predicates as attribute and value, each of the whole predicate or of none of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from inference_core.slots.patterns import (
    AMOUNT,
    ANSWERS,
    EVENTS,
    FORMS,
    GENERIC,
    LANGUAGES,
    LIKES,
    LINKED,
    LINKS,
    MEASURED,
    REQUESTS,
    STYLES,
    VERBS_HOLD,
)
from inference_core.slots.predicates import Predicate, noun
from inference_core.slots.slot import ANY, USER, Holds
from inference_core.slots.values import holds_of, kind_of
from inference_core.slots.words import (
    JOBS,
    NO_EMPLOYER,
    NO_PLACE,
    PEOPLE,
    STATES,
)

MAX_VALUE_WORDS: Final = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """An attribute of ``owner`` and its value; ``ends`` says that the value holds no longer."""

    owner: tuple[str, ...]
    attribute: str
    value: str
    holds: Holds = Holds.SEVERAL
    ends: bool = False
    is_change: bool = False
    replaced: str | None = None


def reading_of(predicate: Predicate) -> Reading | None:
    """What the predicate says; None if that is not certain."""
    if predicate.verb == "":
        return Reading(predicate.owner, ANY, _gone(predicate.rest))
    if LINKED.search(predicate.rest) or len(predicate.rest.split()) > MAX_VALUE_WORDS:
        return None
    for pattern, attribute, holds in FORMS.get(predicate.verb, ()):
        found = pattern.fullmatch(predicate.rest)
        if found and (value := _accepted(attribute, found["value"] or "")) is not None:
            return Reading(predicate.owner, attribute, value, holds)
    if predicate.verb == "be":
        return _being(predicate)
    if found := _event(predicate):
        return found
    return _generic(predicate) if predicate.verb in GENERIC else None


def imperative_of(text: str) -> Reading | None:
    """What a request for all answers says: "keep your answers short", "call me Tom", "never use emojis"."""
    for pattern, attribute, ends in REQUESTS:
        if found := pattern.fullmatch(text):
            value = found["value"]
            if attribute == "style":
                return _style((USER,), value)
            holds = Holds.SEVERAL if attribute == "prefer" else Holds.ONE
            return Reading((USER,), attribute, value, holds, ends=ends)
    return None


def _accepted(attribute: str, value: str) -> str | None:
    """``value`` if it can be one of ``attribute``."""
    words = value.casefold().split() or [""]
    if attribute == "residence":
        return None if words[0] in NO_PLACE or {"my", "our", "for"} & set(words) else value
    if attribute == "employer":
        return value if _is_employer(value, words) else None
    if attribute == "job":
        return value if _is_job(words) else None
    return value


def _is_employer(value: str, words: list[str]) -> bool:
    if not {"on", "from", "until", "every", "during"}.isdisjoint(words):
        return False
    if words[0] in ("a", "an", "the"):
        return len(words) > 1 and words[1] not in NO_EMPLOYER
    return words[0] not in NO_EMPLOYER and (value[0].isupper() or value[0].isdigit())


def _is_job(words: list[str]) -> bool:
    """Whether the words before the first preposition end in the name of a job."""
    head: list[str] = []
    for word in words:
        if word in ("in", "at", "for", "with", "on", "and", "of"):
            break
        head.append(word)
    last = head[-1] if head and "heart" not in words else ""
    return last in JOBS or last.endswith(("ologist", "maker", "smith"))


def _being(predicate: Predicate) -> Reading | None:
    """What somebody or something is."""
    owner, rest = predicate.owner, predicate.rest
    if (called := re.fullmatch(r"(?:called|named) (?P<name>.+)", rest)) and owner == (USER,):
        return Reading(owner, "name", called["name"], Holds.ONE)
    if re.fullmatch(r"\d{1,3}", rest) and _is_person(owner):
        return Reading(owner, "age", rest, Holds.ONE)
    if rest.casefold() in STATES or rest.startswith(("in progress", "on hold")):
        return None if owner == (USER,) else Reading(_whole(owner), "status", rest, Holds.ONE)
    if len(owner) < 2:  # noqa: PLR2004 - somebody and what is theirs
        return None
    return _attribute(owner, called["name"] if called else rest)


def _whole(owner: tuple[str, ...]) -> tuple[str, ...]:
    return owner[:-1] if owner[-1] == "status" else owner


def _is_person(owner: tuple[str, ...]) -> bool:
    return owner == (USER,) or owner[-1] in PEOPLE or owner[-1] in ("partner", "mother", "father", "mum", "mom", "dad")


def _attribute(owner: tuple[str, ...], value: str) -> Reading | None:
    """The last of ``owner`` is what the value is of."""
    attribute = owner[-1]
    if attribute == "residence":
        value = value.removeprefix("in ") if value.startswith("in ") else ""
    if attribute == "job" and not _is_job(value.casefold().split()):
        attribute = "nature of work"
    if not value or re.search(r"\bto\b", value):
        return None
    return Reading(owner[:-1], attribute, value, holds_of(attribute, value))


def _event(predicate: Predicate) -> Reading | None:
    """What has happened, and what holds since or no longer."""
    for verb, pattern, attribute, ends in EVENTS:
        found = pattern.fullmatch(predicate.rest) if predicate.verb == verb else None
        if found is None:
            continue
        groups = found.groupdict()
        value = _accepted(attribute, groups["value"]) if groups.get("value") else ANY
        if value is not None:
            holds = Holds.SEVERAL if attribute in (ANY, "have") else Holds.ONE
            replaced = groups.get("former")
            owner = predicate.owner
            if groups.get("what"):
                return Reading(owner, noun(groups["what"]), value, Holds.ONE, is_change=True)
            return Reading(owner, attribute, value, holds, ends, True, replaced)
    return None


def _generic(predicate: Predicate) -> Reading | None:
    """Attribute and value of a verb that is not particular: what is used, liked, played."""
    owner, rest = predicate.owner, AMOUNT.sub("", predicate.rest)
    verb, is_dislike = LIKES.get(predicate.verb, (predicate.verb, False))
    if verb in ("prefer", "like") and (found := re.fullmatch(rf"(?P<style>\w+) {ANSWERS}", rest)):
        return _style(owner, found["style"])
    if verb in MEASURED and (found := re.search(r"\d[\d.,:]*", rest)):
        attribute = f"{verb} {rest[: found.start()]}#{rest[found.end() :]}"
        return Reading(owner, attribute, found[0], Holds.ONE if verb == "weigh" else Holds.USUALLY_ONE)
    for preposition in ("for", "to", "at", "with"):
        before, link, after = rest.partition(f" {preposition} ")
        if link and verb in ("use", "take"):
            return Reading(owner, f"{verb} {preposition} {after.casefold()}", before, Holds.USUALLY_ONE)
    if found := re.fullmatch(r"(?P<link>with|to|for|at|on) (?P<value>.+)", rest):
        attribute, value = f"{verb} {found['link']}", found["value"]
        is_name = kind_of(value) == "name"
        return Reading(owner, attribute, value, LINKS.get(attribute, Holds.SEVERAL) if is_name else Holds.SEVERAL)
    holds = Holds.ONE if verb == "drive" and kind_of(rest) == "name" else VERBS_HOLD.get(verb, Holds.SEVERAL)
    return Reading(owner, verb, rest, holds, ends=is_dislike)


def _style(owner: tuple[str, ...], word: str) -> Reading | None:
    axis, side = STYLES.get(word.casefold(), ("", ""))
    if axis:
        return Reading(owner, axis, side, Holds.ONE)
    if re.fullmatch(LANGUAGES, word, re.IGNORECASE):
        return Reading(owner, "language of answers", word, Holds.ONE)
    return Reading(owner, "prefer", f"{word} answers")


def _gone(rest: str) -> str:
    return re.sub(r"\A(?:on |the |my |a |an )+", "", rest)
