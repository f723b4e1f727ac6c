"""Memories from the user's plain statements, found by rules: no model, no network, bounded time.

Precision comes first: questions, guesses, plans, quotations, pasted text, code and chatter are skipped, and so is
everything that others say. A memory is the user's own sentence, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from inference_core.clock import in_zone
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.types import IDEA, MemoryType
from inference_core.outbox.messages import (
    Action,
    Candidate,
    ConversationMessage,
    Extraction,
    KnownMemory,
    any_outside,
    own_sentences,
)
from inference_core.slots.reading import MAX_STATEMENT, Said, compare_said, expanded, is_labelled, said_of
from inference_core.slots.slot import ANY, USER, Comparison, Holds, Slot, key_of, kind_of, pattern, rows, words

MAX_OFFERED: Final = 200
_MIN_WORDS: Final = 3
_FEW_WORDS: Final = 3
_MAX_WORDS: Final = 8
_MAX_OWN_WORDS: Final = 25
_LINK: Final = re.compile(r"\b(?:and|of|for|to|in|thing|goal|one|top)\b")
_IMPORTANCE: Final = dict.fromkeys(("residence", "employer", "partner", "diet", "birthday", "job"), 0.8) | {
    "name": 0.9,
    "allergy": 0.9,
}
_ENDING: Final = ("residence", "employer", "job", "partner")
"""Attributes whose negation says only that something has ended."""
_GUIDING: Final = 0.8
_PREFERENCES: Final = ("favourite", "prefer", "like", "diet", "length of", "tone of", "language of", "units")


def _plain(text: str) -> str:
    return expanded(text).rstrip(".! ")


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence of the user: ``text`` as written, ``plain`` expanded, ``said`` prepared for comparison."""

    text: str
    plain: str
    said: Said
    message: ConversationMessage

    @classmethod
    def of(cls, text: str, message: ConversationMessage, now: datetime) -> _Sentence:
        at = now if message.at is None else in_zone(message.at, now.tzinfo or UTC)  # the user's day, not the clock's
        return cls(text, _plain(text), said_of(text, at), message)

    def candidate(self, memory_type: MemoryType, importance: float = DEFAULT_IMPORTANCE, **more: Any) -> Candidate:
        """The sentence as a memory."""
        ids = () if self.message.id is None else (self.message.id,)
        return Candidate(content=self.text, memory_type=memory_type, importance=importance, message_ids=ids, **more)


def extract_by_rules(
    messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, *, is_marked: bool = False
) -> Extraction:
    """The candidates in the user's plain statements, in order; ``now``, aware, is the time of undated messages.

    A candidate supersedes the first of ``offered`` that it contradicts, else reinforces the first that it repeats; only
    the first MAX_OFFERED are compared. If one candidate supersedes another, the older one gets an end of validity.
    ``is_marked``: text from outside was in the conversation before. Never raises; the time for a message is bounded.
    """
    splits = not (is_marked or any_outside(messages) or any(memory.is_external for memory in offered))
    found: list[tuple[Candidate, _Sentence]] = []
    for sentence in (
        sentence for message in messages if message.is_own for sentence in _sentences(message, now, splits=splits)
    ):
        candidate = _instruction(sentence) or _goal(sentence) or _statement(sentence) or _introduction(sentence)
        if candidate is None:
            continue
        for place, (earlier, told) in enumerate(found):
            how = compare_said(told.said, sentence.said)
            if how is Comparison.SAME:  # the earlier one gets its message
                ids = tuple(dict.fromkeys(earlier.message_ids + candidate.message_ids))
                found[place] = replace(earlier, message_ids=ids), told
                break
            if how is Comparison.SUPERSEDES and told.said.clauses == 1:
                found[place] = replace(earlier, valid_to=candidate.valid_from or sentence.said.at), told
        else:
            found.append((candidate, sentence))
    known = [(memory, said_of(memory.content)) for memory in offered[:MAX_OFFERED]] if found else []
    placed: list[Candidate] = []
    for candidate, sentence in found:
        one = _placed(candidate, sentence, known)
        slots = sentence.said.slots
        is_over = slots and all(slot.is_past or (slot.is_negated and slot.attribute in _ENDING) for slot in slots)
        if one.action is not Action.ADD or not is_over:  # what has ended matters only to a known memory
            placed.append(one)
    return Extraction(placed)


def _sentences(message: ConversationMessage, now: datetime, *, splits: bool) -> Iterator[_Sentence]:
    """The user's own sentences that may state something, up to the first that names somebody else or a task first.

    With ``splits``, a sentence whose parts each make sense alone is split: superseding one part must not end the
    others. Beside text from outside, only whole sentences are the user's words.
    """
    for part in pattern("sentence_end").split(" ".join(own_sentences(message.text))):
        text = part.strip()
        if is_labelled(expanded(text)):
            return  # what follows may be somebody else's, too
        if len(text) > MAX_STATEMENT or not pattern("telling").search(text):
            continue
        sentence = _Sentence.of(text, message, now)
        if len(sentence.plain.split()) < _MIN_WORDS:
            continue
        parts = [part.strip(" ,") for part in re.split(r",? (?:and|but) (?=(?:I|my)\b)", text)] if splits else []
        is_each = 1 < len(parts) == len(sentence.said.slots) == sentence.said.clauses
        if is_each and all(map(pattern("first_person").search, parts)):
            yield from (_Sentence.of(part, message, now) for part in parts)
        else:
            yield sentence


def _instruction(sentence: _Sentence) -> Candidate | None:
    """A standing request: one that holds for all later answers."""
    plain = sentence.plain
    is_standing = pattern("request").fullmatch(plain) and pattern("standing").search(plain)
    if pattern("uncertain").search(plain) or not (is_standing or pattern("naming").fullmatch(plain)):
        return None
    slots = sentence.said.slots
    return sentence.candidate(MemoryType.INSTRUCTION, _GUIDING, topic=slots[0].attribute if slots else None)


def _goal(sentence: _Sentence) -> Candidate | None:
    """A goal with a time, or one that was reached."""
    plain = sentence.plain
    if pattern("uncertain").search(plain) or '"' in plain or len(plain.split()) > _MAX_OWN_WORDS:
        return None
    if match := pattern("goal").fullmatch(plain):
        aim = match["aim"] or match["goal"]
        is_one = not pattern("no_goal").match(aim) and (match["goal"] or pattern("by_when").search(aim))
        return sentence.candidate(MemoryType.GOALS, _GUIDING, state="open") if is_one else None
    done = pattern("done").fullmatch(plain)
    if done is None or pattern("daily").match(done["what"]) or pattern("aside").search(done["what"]):
        return None
    return sentence.candidate(MemoryType.GOALS, state="done", valid_from=sentence.message.at)


def _statement(sentence: _Sentence) -> Candidate | None:
    """A fact or preference of the user, or about people around them."""
    slots = [slot for slot in sentence.said.slots if slot.subject.startswith(USER) and _is_telling(slot)]
    if not slots or not pattern("first_person").search(sentence.text):
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


def _introduction(sentence: _Sentence) -> Candidate | None:
    """What people say when they introduce themselves or ask to be remembered, where no slot is read."""
    plain = sentence.plain
    asked = pattern("remember").match(plain)
    if (
        asked
        and not pattern("no_memory").match(plain[asked.end() :])
        and pattern("about_someone").search(plain[asked.end() :])
    ):
        return sentence.candidate(MemoryType.FACTS, _GUIDING)
    if (
        len(plain.split()) < _MIN_WORDS
        or pattern("not_told").search(sentence.text)
        or pattern("not_told").search(plain)
    ):
        return None
    for form, kind, importance in (*rows("wishes"), *rows("introductions")):
        if form.match(plain):
            if kind == IDEA:
                return sentence.candidate(MemoryType.GOALS, importance, state="open", tags=(IDEA,))
            return sentence.candidate(MemoryType(kind), importance, **({"state": "open"} if kind == "goals" else {}))
    return None


def _is_telling(slot: Slot) -> bool:
    """Whether the slot is useful in another conversation, without its context."""
    value, attribute = slot.value.casefold().split(), slot.attribute
    if len(value) > _MAX_WORDS or pattern("pointing").search(slot.value):
        return False
    if pattern("lasting").fullmatch(attribute):
        return bool(value) or slot.is_negated
    if slot.is_past or not value:
        return False
    if attribute in words("habits"):
        return len(value) <= _FEW_WORDS and not pattern("vague").search(slot.value)
    living = words("people") | words("pets")
    if attribute == "have":
        return value[-1].rstrip("s") in words("belongings") or value[-1] in living
    if len(attribute.split()) > _FEW_WORDS or _LINK.search(attribute) or kind_of(slot.value) not in ("name", "number"):
        return False
    return slot.holds is Holds.ONE or attribute in living | words("many")


def _placed(candidate: Candidate, sentence: _Sentence, known: Sequence[tuple[KnownMemory, Said]]) -> Candidate:
    """The candidate with its action and target among the known memories."""
    same: KnownMemory | None = None
    done = pattern("done").fullmatch(sentence.plain) if candidate.state == "done" else None
    reached = set(key_of(done["what"])) if done else set[str]()
    for memory, there in known:
        # A message processed late may be older than the memory; consolidation decides which of the two has ended.
        at = sentence.message.at
        is_earlier = at is not None and memory.said_at is not None and at < memory.said_at
        old, new = (sentence.said, there) if is_earlier else (there, sentence.said)
        comparison = compare_said(old, new)
        ends = comparison is Comparison.SUPERSEDES and old.clauses == 1  # else its other clauses still hold
        asks = bool(reached) and not is_earlier
        goal = pattern("goal").fullmatch(_plain(memory.content[:MAX_STATEMENT])) if asks else None
        if ends or (goal and reached <= set(key_of(goal["aim"] or goal["goal"]))):
            return replace(candidate, action=Action.SUPERSEDE, target=memory.memory_id)
        # Prefer a memory that is not from outside: one from outside would be replaced, not reinforced.
        if comparison is Comparison.SAME and (same is None or (same.is_external and not memory.is_external)):
            same = memory
    return candidate if same is None else replace(candidate, action=Action.REINFORCE, target=same.memory_id)


class RuleExtractor:
    """An extractor without a model: finds plain statements in English and German."""

    async def extract(
        self,
        messages: Sequence[ConversationMessage],
        offered: Sequence[KnownMemory],
        now: datetime,
        zone: tzinfo,
        *,
        earlier: Sequence[ConversationMessage] = (),
    ) -> Extraction:
        """The candidates of ``messages``; days are those of ``zone``. ``earlier`` messages give none."""
        return extract_by_rules(messages, offered, in_zone(now, zone), is_marked=any_outside(earlier))
