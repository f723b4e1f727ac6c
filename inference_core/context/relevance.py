"""Leaves out what is unlikely to be needed for the question, or answers another one.

`chances` and `pruned` judge by what recall found. `answering` recognises short English statements about somebody else
or about what held before; whatever it does not recognise stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from inference_core.context.items import STANDING, ContextItem, Dropped, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.similarity import terms_of
from inference_core.slots.words import PEOPLE, word_set

Chances = Mapping[tuple[str, str], float]
"""By source and id of an item, how likely it is needed, from 0 to 1."""
_MAX_EXTERNAL: Final = 5
_SURE: Final = 0.995
_FEW: Final = 5
_NECESSITY: Final = 0.35
"""What a unit of necessity takes off the log-odds of the relevance that is asked for."""
# Logistic regression on one half of conversations and saved memories, rounded; see `docs/context-quality.md`.
_BASE: Final = 0.18
_RELEVANCE: Final = 0.37
_AMONG: Final = 0.34
_PLACE: Final = -0.84
_DISTANCE: Final = 0.14
_USUAL_TOKENS: Final = 25
"""An item of up to this size is judged by its chance alone; a longer one has to be likelier."""
_LONG_TOKENS: Final = 800
"""A longer item is cut anyway if there is no room."""
MAX_CHARACTERS: Final = 300
"""A longer text says more than one thing."""
_SHARED: Final = 0.5
_AS_RELEVANT: Final = 0.6
_ALIKE: Final = 0.3
_KIN: Final = 2
_RELATIVES: Final = PEOPLE | word_set(
    "mother father mom mum dad parent parents grandmother grandfather grandma grandpa granny wife husband partner"
    " girlfriend boyfriend fiancé fiancée boss manager director intern landlord landlady parents-in-law mother-in-law"
    " father-in-law"
)
_NOBODY: Final = word_set(
    "user it that this there here what who he she they let everything nothing something today tomorrow tonight i we you"
    " no never always all every some most any these those"
)
_FIRST_PERSON: Final = re.compile(
    r"\b(?:I|me|my|mine|we|us|our|ours|I'm|I've|we've|the user|ich|mir|mich|meine?[nmrs]?|wir|uns|unsere?[nmrs]?)\b",
    re.IGNORECASE,
)
_SOMEBODYS: Final = re.compile(r"(?:My|Our)\s+(?:[\w-]+\s+){0,2}?(?P<who>[\w-]+)(?:['\u2019]s)?\b")
_POSSESSOR: Final = re.compile(r"(?:(?:My|Our|The)\s+)?(?P<who>[\w-]+(?:\s[\w-]+)?)['\u2019]s\s")
_NAMED: Final = re.compile(r"(?P<who>[A-Z][a-z]+)(?:,[^,]+,)?\s(?:[a-z]+ly\s)?(?:[a-z]+s|has|had|was)\s")
_PERSONS: Final = re.compile(r"[A-Z][a-z]+(?:['\u2019]s\s|\s.*\b(?:he|she|his|her|him)\b)")
_ALONE: Final = re.compile(r"\b(?:I|me|my|mine)\b", re.IGNORECASE)
_ASKS: Final = re.compile(
    r"\s*(?:(?:in|on|at|to|from|above|below|for|with|by) )?(?:what|which|who|where|when|how)\b", re.IGNORECASE
)
_NOT_NOW: Final = re.compile(
    r"\b(?:did|was|were|had|ever|been|(?:have|has) (?:I|we|you|he|she|it|they|my|our))\b", re.IGNORECASE
)
_CHANGE: Final = re.compile(
    r"\b(?:now|new|anymore|any more|no longer|instead|since|as of|from now on|stopped|started|starting|switched|moved|"
    r"changed|went (?:up|down)|raised|lowered|increased|decreased|reduced|dropped|replaced|became|got|"
    r"from (?:today|January|February|March|April|May|June|July|August|September|October|November|December)|"
    r"this (?:week|month|year)|last week)\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[\w-]+")
_NUMBER: Final = re.compile(r"\d[\d.,:]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """The thresholds, from 0 to 1, below which items are left out; none of them leaves out a pinned memory.

    Args:
        min_chance: The minimum estimated chance that an item is needed (`chances`).
        min_relevance: A minimum relevance for every item; off by default, because it loses more.
        min_best: How relevant the most relevant item must be for a message of which it is as likely as not that a
            reply needs memory; else only items without a relevance are kept. The less likely it is, the more relevant
            it must be (`relevance_asked`).
        min_any: What is asked of it if no model tells how likely that is.
        max_external: At most this many items from tools, documents and the web are kept, the likeliest ones, because
            poisoned texts come in numbers.
        keeps_standing: Whether rules and preferences stay where ``min_best`` or ``min_any`` leaves items out.

    Raises:
        ConfigurationError: A threshold is not from 0 to 1, or ``max_external`` is negative.
    """

    min_chance: float = 0.01
    min_relevance: float = 0.0
    min_best: float = 0.07
    min_any: float = 0.05
    max_external: int = 2
    keeps_standing: bool = True

    def __post_init__(self) -> None:
        for name in ("min_chance", "min_relevance", "min_best", "min_any"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ConfigurationError(f"{name} must be from 0 to 1, not {value}")
        if self.max_external < 0:
            raise ConfigurationError(f"max_external must not be negative, not {self.max_external}")


def relevance_asked(items: Sequence[ContextItem], necessity: float | None, pruning: Pruning) -> float:
    """How relevant the most relevant of ``items`` must be for any to have to do with the message.

    ``necessity`` is the log-odds that a reply needs memory, by the vector of the message. It and the relevance are
    evidence of the same thing, so what the one lacks the other makes up for: thanks or a sum that memory has to do with
    are told, and so is a question about the user whose words no memory shares. Unless a reply rather needs no memory, a
    few items are shown whatever their relevance: they take little room, and "Plan my day" may draw on anything.
    """
    are_few = sum(item.relevance is not None for item in items) <= _FEW
    if are_few and (necessity is None or necessity > 0):
        return 0.0
    if necessity is None:
        return pruning.min_any
    if not pruning.min_best:
        return 0.0
    return 1 / (1 + math.exp(_NECESSITY * necessity - _logit(pruning.min_best)))


def chances(
    items: Sequence[ContextItem],
    min_relevance: float = 0.0,
    min_best: float = 0.0,
    spared: Collection[str | None] = STANDING,
) -> Chances:
    """How likely each judged item is needed; 0 for one that is less relevant than ``min_relevance``.

    If none is as relevant as ``min_best``, 0 for all but the kinds that are ``spared``: rules and preferences, which
    hold whatever is asked.

    It depends on the item's relevance, also compared with the most relevant item, on its place, and on how far its
    score is below the best of its source; a long item that is not the best is less likely. More relevant items of other
    sources go before it. Items from outside count for few places: a flood of texts that repeat the question would push
    out all others.
    """
    judged = [item for item in items if item.relevance is not None]
    best = max((item.relevance or 0.0 for item in judged), default=0.0)
    found: dict[tuple[str, str], float] = {}
    for source in dict.fromkeys(item.source for item in judged):
        own = [item for item in judged if item.source == source]
        own.sort(key=lambda item: item.score - item.doubt, reverse=True)
        first = own[0].score - own[0].doubt
        others = [item.relevance or 0.0 for item in judged if item.source != source and item.trust > Trust.EXTERNAL]
        vouched = external = 0
        for item in own:
            relevance = item.relevance or 0.0
            before = vouched + min(external, _MAX_EXTERNAL) + sum(other > relevance for other in others)
            evidence = _BASE + _RELEVANCE * _logit(relevance) + _AMONG * (_logit(relevance) - _logit(best))
            evidence += _PLACE * math.log1p(before) + _DISTANCE * (item.score - item.doubt - first)
            tokens = min(max(text_tokens(item.text), _USUAL_TOKENS), _LONG_TOKENS)
            brevity = math.sqrt(_USUAL_TOKENS / tokens) if before else 1.0
            is_silenced = best < min_best and item.kind not in spared
            is_out = relevance < min_relevance or is_silenced
            found[source, item.id] = 0.0 if is_out else brevity / (1 + math.exp(-evidence))
            vouched, external = vouched + (item.trust > Trust.EXTERNAL), external + (item.trust <= Trust.EXTERNAL)
    return found


def _logit(share: float) -> float:
    bounded = min(max(share, 1 - _SURE), _SURE)
    return math.log(bounded / (1 - bounded))


def pruned(
    items: Sequence[ContextItem], chance: Chances, least: float, max_external: int
) -> tuple[list[ContextItem], list[Dropped]]:
    """The items that are likely enough, with at most ``max_external`` judged ones from outside, and the others."""
    likely = [item for item in items if is_likely(item, chance, least)]
    dropped = [Dropped(item, DropReason.IRRELEVANT) for item in items if not is_likely(item, chance, least)]
    external = [item for item in likely if item.trust <= Trust.EXTERNAL and item.key in chance]
    external.sort(key=lambda item: chance[item.key], reverse=True)
    over = {item.key for item in external[max_external:]}
    dropped += [Dropped(item, DropReason.UNCONFIRMED) for item in likely if item.key in over]
    return [item for item in likely if item.key not in over], dropped


def is_likely(item: ContextItem, chance: Chances, least: float) -> bool:
    """Whether ``item`` is likely enough to be needed; a pinned memory, and what no source has judged, always is."""
    is_pinned = item.record is not None and item.record.pinned
    return is_pinned or 0 < chance.get(item.key, math.inf) >= least


@dataclass(frozen=True, slots=True)
class _Statement:
    """An item with its stems and numbers; whether it is about somebody else for sure, or perhaps.

    For sure: it begins with a relative or the like (``is_relatives``) whom the user, asking about what is theirs, has
    not named. Perhaps: it begins with another name or a possession, and does not mention the user as well.
    """

    item: ContextItem
    stems: frozenset[str]
    numbers: frozenset[str]
    is_relatives: bool
    is_somebodys: bool
    is_others: bool

    @classmethod
    def of(cls, item: ContextItem, query: str) -> _Statement:
        text, asked = item.text, terms_of(query)
        is_of_user = _FIRST_PERSON.search(query) is not None
        is_alone = is_of_user and _RELATIVES.isdisjoint(_WORD.findall(query.casefold()))
        found = (_POSSESSOR.match(text) or _NAMED.match(text)) if is_alone else None
        is_others = (
            found is not None
            and found["who"].casefold() not in _NOBODY
            and not _FIRST_PERSON.search(text[found.end() :])
            and not terms_of(found["who"]) & asked
        )
        found = _SOMEBODYS.match(text) if is_of_user else None
        is_relatives = False
        if found is not None and found["who"].casefold() in _RELATIVES:
            is_somebodys = is_relatives = not terms_of(found["who"]) & asked
        else:  # a name with a possession or a pronoun, if the user asks about themselves alone
            is_somebodys = is_others and bool(_PERSONS.match(text) and _ALONE.search(query))
        return cls(item, terms_of(text), frozenset(_NUMBER.findall(text)), is_relatives, is_somebodys, is_others)

    @property
    def is_users(self) -> bool:
        """Whether nothing speaks against its being about the user."""
        return not (self.is_somebodys or self.is_others)

    def is_replaced_by(self, new: _Statement, asked: frozenset[str]) -> bool:
        """Whether both answer the question, each in its own way, and ``new`` says or shows that something has changed.

        It has to be later, and about as relevant and trusted.
        """
        then, now = self.item.happened_at, new.item.happened_at
        is_later = then is not None and now is not None and then < now and new.item.trust >= self.item.trust
        if not is_later or (new.item.relevance or 0.0) < _AS_RELEVANT * (self.item.relevance or 0.0):
            return False
        if not (self.stems - new.stems - asked and new.stems - self.stems - asked):
            return False
        said, changes = self.stems & asked, _CHANGE.search(new.item.text) is not None
        counts = bool(self.numbers and new.numbers) and self.numbers != new.numbers
        if not said or len(said & new.stems) < _SHARED * len(said):
            return bool(said) and changes and counts and len(self.stems & new.stems) >= _KIN
        numbers = terms_of(" ".join(self.numbers | new.numbers))
        one, other = self.stems - numbers, new.stems - numbers
        return changes or (counts and len(one & other) >= _ALIKE * len(one | other))


def answering(
    items: Sequence[ContextItem], query: str | None, *, answers_only: bool = True
) -> tuple[list[ContextItem], list[Dropped]]:
    """Splits ``items`` into those to keep and those that answer another question; returns both.

    If users ask about themselves, a statement about a relative is dropped if one about the user has as much to do with
    the question. With ``answers_only``, statements about somebody else are always dropped, those perhaps about somebody
    else if another item says as much about the question, and, if the question is about the present, those that a newer
    statement has changed.
    """
    if not query:
        return list(items), []
    asked = terms_of(query)
    # What was said in a conversation, or at length, says more than one thing.
    short = [item for item in items if len(item.text) <= MAX_CHARACTERS]
    notes = [item for item in short if item.record is None or item.record.category is not MemoryCategory.EPISODIC]
    statements = [_Statement.of(item, query) for item in notes]
    own = [one.stems & asked for one in statements if one.is_users]
    most = max(map(len, own), default=0)

    def is_beside(one: _Statement) -> bool:
        said = one.stems & asked
        if answers_only:
            return one.is_somebodys or (one.is_others and 0 < len(said) <= most)
        return one.is_relatives and bool(said) and any(said <= users for users in own)

    dropped = {one.item.key: Dropped(one.item, DropReason.IRRELEVANT) for one in statements if is_beside(one)}
    if answers_only and _ASKS.match(query) and not _NOT_NOW.search(query):
        users = [one for one in statements if one.is_users]
        dropped |= {
            old.item.key: Dropped(old.item, DropReason.SUPERSEDED, new.item.id)
            for old, new in permutations(users, 2)
            if old.is_replaced_by(new, asked)
        }
    return [item for item in items if item.key not in dropped], list(dropped.values())
