"""Who a clause is about, and its predicate with the verb in its base form."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from inference_core.slots.slot import USER
from inference_core.slots.words import EVENTS, GERUNDS, PAST_FORMS, PRESENT_FORMS, SYNONYMS, VERBS

MAX_SUBJECT_WORDS: Final = 8
_USER: Final = re.compile(r"(?:(?:(?:my|our) )?[\w-]+ & I|I|we|the user|user)\s+", re.IGNORECASE)
_OWNED_BY_USER: Final = re.compile(r"(?:my|our|the user's|user's|mein|meine)\s+", re.IGNORECASE)
_OF: Final = re.compile(r"(?:the )?(?P<what>[\w-]+(?: [\w-]+)?) (?:of|for) (?P<whose>.+)\Z", re.IGNORECASE)
_NEW: Final = re.compile(r"\b(?:new|current|latest|neue[rs]?)\s+", re.IGNORECASE)
_OLD: Final = re.compile(r"\b(?:old|former|previous|late|ex|alte[rs]?|fr\u00fchere[rs]?)[ -]", re.IGNORECASE)
_NAME: Final = re.compile(
    r"(?:[A-Z\u00c0-\u00de][\w'.-]*|of|de|von|van|the)(?: (?:[A-Z\u00c0-\u00de0-9][\w'.-]*|[a-z]+|\d+)){0,5}\Z"
)
_ARTICLE: Final = re.compile(r"\A(?:the|a|an|my|our)\s+", re.IGNORECASE)
_NOT_VERB: Final = re.compile(
    r"(?P<never>(?:do|does) not|no longer|not|never|(?:have |has )?(?:stopped|quit(?= \w+ing\b)|given up|gave "
    r"up)(?: on)?)\s+(?P<rest>.+)",
    re.IGNORECASE,
)
_CEASED: Final = re.compile(r"no longer|stopped|quit|g[ia]ve", re.IGNORECASE)
_USED_TO: Final = re.compile(r"used to\s+(?P<rest>.+)", re.IGNORECASE)
_ALL_VERBS: Final = frozenset([*PRESENT_FORMS, *PAST_FORMS, "used", "no", "does", "never", *EVENTS])


_STARTS: Final = frozenset(form for form in PRESENT_FORMS if form.endswith("s")) - {"is", "reports", "calls", "opens"}
"""With these, notes leave out the user: "Lives in Lisbon"."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """``owner`` leads from somebody to what is spoken of: ("user", "brother"). ``verb`` is in its base form.

    The verb of something that happened stays in its past form; it is "" if the clause gives up what follows.
    """

    owner: tuple[str, ...]
    verb: str
    rest: str
    is_negated: bool = False
    is_past: bool = False
    is_change: bool = False


def predicate_of(text: str) -> Predicate | None:
    """The predicate of a clause; None without a subject and a verb that are known."""
    if found := _USER.match(text):
        return _verbal((USER,), text[found.end() :])
    words = text.split(" ")
    if words[0].lower() in _STARTS:
        return _verbal((USER,), text)
    for position, word in enumerate(words[1 : MAX_SUBJECT_WORDS + 1], 1):
        if word in _ALL_VERBS:
            owner = owner_of(" ".join(words[:position]))
            found = _verbal(owner, " ".join(words[position:])) if owner else None
            return _of_old_or_new(found, " ".join(words[:position])) if found else None
    return None


def owner_of(phrase: str) -> tuple[str, ...] | None:
    """The way to what a noun phrase names: "my brother's phone number" is user, brother, phone."""
    if (found := _OF.fullmatch(phrase)) and not _OWNED_BY_USER.match(phrase):
        whose = owner_of(found["whose"])
        return None if whose is None else (*whose, noun(found["what"]))
    path: tuple[str, ...] = ()
    if found := _OWNED_BY_USER.match(phrase):
        path, phrase = (USER,), phrase[found.end() :]
    elif not (phrase.lower().startswith(("the ", "project ", "our ")) or _NAME.match(phrase)):
        return None
    parts = [noun(part) for part in re.split(r"['\u2019]s? ", phrase) if part]
    return (*path, *parts) if parts and all(parts) else None


def noun(phrase: str) -> str:
    """A noun phrase as one form of all its spellings."""
    phrase = _ARTICLE.sub("", _OLD.sub("", _NEW.sub("", phrase.casefold()))).strip()
    joined = phrase.replace(" ", "")
    if joined in SYNONYMS:
        return SYNONYMS[joined]
    return " ".join(SYNONYMS[word] if word in ("favorite", "color", "movie") else word for word in phrase.split())


def _of_old_or_new(found: Predicate, subject: str) -> Predicate:
    return replace(
        found,
        is_past=found.is_past or _OLD.search(f"{subject} ") is not None,
        is_change=found.is_change or _NEW.search(f"{subject} ") is not None,
    )


def _verbal(owner: tuple[str, ...], text: str) -> Predicate | None:
    """The predicate that ``text``, which begins with a verb, makes of the subject."""
    if found := _USED_TO.fullmatch(text):
        inner = _verbal(owner, found["rest"])
        return inner and replace(inner, is_past=True)
    if found := _NOT_VERB.fullmatch(text):
        inner = _verbal(owner, found["rest"]) or Predicate(owner, "", found["rest"])
        has_ceased = _CEASED.search(found["never"]) is not None
        is_plain = inner.verb or has_ceased
        return replace(inner, is_negated=not inner.is_negated, is_change=has_ceased) if is_plain else None
    first, _, rest = text.partition(" ")
    return _auxiliary(owner, first.lower(), rest) or _simple(owner, first.lower(), rest)


def _auxiliary(owner: tuple[str, ...], first: str, rest: str) -> Predicate | None:
    """Perfect and progressive forms, and negated forms of "to be" and "to have"."""
    word, _, after = rest.partition(" ")
    kind = PRESENT_FORMS.get(first, PAST_FORMS.get(first, first))
    is_past = first in PAST_FORMS
    if kind == "have" and word in ("stopped", "given", "quit"):
        return _verbal(owner, rest)
    if kind == "have" and word in EVENTS:
        return Predicate(owner, word, after, is_past=is_past)
    if kind == "have" and word == "been" and (going := after.partition(" "))[0] in GERUNDS:
        return Predicate(owner, GERUNDS[going[0]], going[2], is_past=is_past)
    if kind == "have" and word in PAST_FORMS:
        return Predicate(owner, PAST_FORMS[word], after, is_past=is_past)
    if kind == "be" and word in GERUNDS and GERUNDS[word] != "be":
        return Predicate(owner, GERUNDS[word], after, is_past=is_past)
    if kind in ("be", "have") and (found := re.match(r"(?:not|no longer)(?: |\Z)", rest)):
        inner = _verbal(owner, f"{first} {rest[found.end() :]}")
        return inner and replace(inner, is_negated=True, is_change="longer" in found[0])
    return None


def _simple(owner: tuple[str, ...], first: str, rest: str) -> Predicate | None:
    if first in EVENTS:
        return Predicate(owner, first, rest)
    verb = first if first in VERBS else PRESENT_FORMS.get(first, GERUNDS.get(first))
    if verb is not None:
        return Predicate(owner, verb, rest)
    return Predicate(owner, PAST_FORMS[first], rest, is_past=True) if first in PAST_FORMS else None
