"""Candidates from what a language model says of memories: what can be used of each, and what cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, cast

from inference_core.errors import InvalidMemory
from inference_core.ingestion.candidates import Action, Candidate, Entity, Relation
from inference_core.ingestion.extraction_parsing import CONTENT, Entry, first_of, texts_of
from inference_core.ingestion.extraction_prompt import Batch
from inference_core.ingestion.extraction_schema import (
    MAX_CONTENT,
    MAX_ENTITIES,
    MAX_LABEL,
    MAX_RELATIONS,
    MAX_SOURCES,
    MAX_TAGS,
)
from inference_core.ingestion.extraction_values import (
    ACTIONS,
    KIND_NAMES,
    REFUSED_ACTIONS,
    STATE_NAMES,
    TYPES,
    end_of,
    folded,
    plain_text,
    share_of,
    start_of,
)
from inference_core.ingestion.grounding import Grounding
from inference_core.ingestion.messages import Message, Role, mended
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.text import canonical_text
from inference_core.memory.trust import Origin
from inference_core.memory.types import GUIDING_TYPES, MemoryType

_TYPE: Final = ("type", "memorytype", "kind", "category", "memorycategory")
_SOURCES: Final = ("sources", "source", "sourcemessages", "sourcemessageids", "sourceids", "messageids", "messages")
_START: Final = ("happenedat", "validfrom", "when", "date", "time", "timestamp", "start", "since", "eventdate")
_END: Final = ("holdsuntil", "validto", "validuntil", "until", "end", "expires", "expiresat")
_ACTION: Final = ("action", "event", "operation", "op")
_TARGET: Final = ("target", "targetid", "targetname", "memoryid", "supersedes", "replaces", "reinforces", "id")
_IMPORTANCE: Final = ("importance", "importancescore", "priority", "salience", "score", "weight")
_STATE: Final = ("state", "status")
_RELATION: Final = (
    ("source", "subject", "from", "head"),
    ("name", "relation", "predicate", "type", "rel", "label"),
    ("target", "object", "to", "tail"),
)
_NO_ENDS: Final = (None,) * len(_RELATION)
_ENTITY_KIND: Final = ("kind", "type", "entitytype", "label", "category")
_MESSAGE_NAME: Final = re.compile(r"[\[<]?(?:(?:m|msg|message)[ _#-]*)?([0-9]{1,6})[\]>]?", re.IGNORECASE | re.ASCII)
_MAX_SHOWN: Final = 60
_NOTHING: Final = frozenset({"none", "null", "n/a", "nothing", "no memories", "no facts", "..."})


@dataclass(slots=True)
class Reading:
    """``candidates`` of an answer; ``understood`` counts also the memories that were refused."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    problems: list[str] = field(default_factory=list[str])
    understood: int = 0


def read_candidates(entries: Iterable[Entry], batch: Batch, most: int) -> Reading:
    """The first ``most`` different candidates that ``entries`` hold. Never raises."""
    reading = Reading()
    seen: set[str] = set()
    left_out = 0
    for number, entry in enumerate(entries, 1):
        if len(reading.candidates) >= most:
            left_out += 1
            continue
        candidate = _Reader(entry, batch, number, reading).candidate()
        key = "" if candidate is None else candidate.content.casefold()
        if candidate is not None and key not in seen:
            reading.candidates.append(candidate)
        seen.add(key)
    if left_out:
        reading.problems.append(f"{left_out} memories beyond the first {most} were left out")
    return reading


class _Reader:
    """Reads one entry; what it cannot use of it becomes a problem."""

    def __init__(self, entry: Entry, batch: Batch, number: int, reading: Reading) -> None:
        self._entry = entry
        self._batch = batch
        self._number = number
        self._reading = reading

    def candidate(self) -> Candidate | None:
        """The candidate; None if there is none in the entry or if it is refused."""
        content = self._content()
        if content is None:
            return None
        self._reading.understood += 1
        sources = self._sources()
        said = list(sources.values()) or list(self._batch.messages.values())
        grounding = self._batch.grounding(said)
        is_named = any(map(_is_users, said)) if sources else all(map(_is_users, said))
        is_stated = is_named and not grounding.is_external(content)
        action, target = self._action(is_stated=is_stated)
        kind = self._type()
        if action is None or not self._is_allowed(kind, is_stated=is_stated):
            return None
        is_told = not is_stated and (is_named or any(one.origin is Origin.TOOL for one in said))
        found = replace(
            self._described(content, kind, grounding),
            message_ids=tuple(dict.fromkeys(one.id for one in sources.values() if one.id is not None)),
            origin=Origin.TOOL if is_told else Origin.AGENT,
            action=action,
            target=target,
        )
        return self._with_times(found, next((one.at for one in said if one.at is not None), self._batch.now))

    def _described(self, content: str, kind: MemoryType, grounding: Grounding) -> Candidate:
        """The candidate with what describes it; of that, nothing that only a tool said stands beside a user's words."""
        is_left_out: Callable[[str], bool] = _never if grounding.is_external(content) else grounding.is_external
        topic = _label(self._entry.get("topic"))
        return Candidate(
            content=content,
            memory_type=kind,
            topic=None if topic is None or is_left_out(topic) else topic,
            tags=tuple(tag for tag in _labels(self._entry.get("tags"), MAX_TAGS) if not is_left_out(tag)),
            importance=self._importance(),
            state=STATE_NAMES.get(folded(first_of(self._entry, _STATE) or "")),
            **self._graph(is_left_out),
        )

    def _content(self) -> str | None:
        given = first_of(self._entry, CONTENT)
        text = _without_quotes(" ".join(mended(given[: MAX_CONTENT + 1]).split()))
        if len(given) > MAX_CONTENT:
            return self._note(f"has {len(given)} characters and was left out: {text[:_MAX_SHOWN]}…")
        if text.casefold() in _NOTHING:
            return self._note("says nothing")
        try:
            return canonical_text(text, max_bytes=MAX_CONTENT * 4)
        except InvalidMemory as error:
            return self._note(str(error))

    def _type(self) -> MemoryType:
        given = [self._entry[name] for name in _TYPE if isinstance(self._entry.get(name), str)]
        kind = next((TYPES[folded(name)] for name in given if folded(name) in TYPES), None)
        if kind is None and given:
            self._note(f"has the unknown type {_shown(given[0])}")
        return kind or (MemoryType.GENERAL if given else MemoryType.FACTS)

    def _importance(self) -> float:
        given = first_of(self._entry, _IMPORTANCE)
        share = share_of(given)
        if share is None and given is not None:
            self._note(f"has no readable importance: {_shown(given)}")
        return DEFAULT_IMPORTANCE if share is None else share

    def _sources(self) -> dict[str, Message]:
        """The messages that it names."""
        given = first_of(self._entry, _SOURCES)
        found: dict[str, Message] = {}
        for text in islice(texts_of(given), MAX_SOURCES):
            number = _MESSAGE_NAME.fullmatch(text)
            name = f"m{int(number[1])}" if number else text
            if name in self._batch.messages:
                found[name] = self._batch.messages[name]
            else:
                self._note(f"names a message that is not there: {_shown(text)}")
        return found

    def _action(self, *, is_stated: bool) -> tuple[Action | None, str | None]:
        """What it does and to which memory; None if it does nothing that may be done."""
        name = folded(first_of(self._entry, _ACTION) or "add")
        if name in REFUSED_ACTIONS:
            return self._refused(f"asks to {name}, which is not done")
        action = ACTIONS.get(name)
        if action is None:
            self._note(f"has the unknown action {_shown(name)}")
        if action is None or action is Action.ADD:
            return Action.ADD, None
        given = next((text.strip("[]<>\"' ") for text in texts_of(first_of(self._entry, _TARGET))), "")
        offered = self._batch.offered.get(given.casefold())
        if offered is None:
            self._note(f"is added, since it would {action.value} {_shown(given)}, which was not offered")
            return Action.ADD, None
        if is_stated:
            return action, offered.memory_id
        if action is Action.REINFORCE:
            return self._refused(f"would reinforce {given} without a word of the user")
        self._note(f"is added, since it would supersede {given} without a word of the user")
        return Action.ADD, None

    def _refused(self, problem: str) -> tuple[None, None]:
        self._note(problem)
        return None, None

    def _is_allowed(self, kind: MemoryType, *, is_stated: bool) -> bool:
        """What guides the agent follows from words of the user alone."""
        if is_stated or kind.value not in GUIDING_TYPES:
            return True
        self._note(f"was left out: {kind.value} without a word of the user")
        return False

    def _with_times(self, candidate: Candidate, said_at: datetime) -> Candidate:
        start = self._moment(start_of, _START, said_at)
        end = self._moment(end_of, _END, said_at)
        if start and end and end <= start:
            self._note("ends before it begins")
            end = None
        return replace(candidate, valid_from=start, valid_to=end)

    def _moment(self, read: Any, names: Sequence[str], said_at: datetime) -> datetime | None:
        given = first_of(self._entry, names)
        moment: datetime | None = read(given, said_at, self._batch.zone)
        if moment is None and given and folded(given) not in ("null", "none", "unknown"):
            self._note(f"has no readable time: {_shown(given)}")
        return moment

    def _graph(self, is_left_out: Callable[[str], bool]) -> dict[str, Any]:
        """The entities and relations; the ends of a relation are entities too, if there is room for them."""
        named = [(name, kind) for name, kind in _entities(self._entry.get("entities")) if not is_left_out(name)]
        entities = {name.casefold(): Entity(name, kind) for name, kind in named}
        told = [ends for ends in _relations(self._entry.get("relations")) if not any(map(is_left_out, ends))]
        relations = [Relation(*ends) for ends in told]
        for name in [end for relation in relations for end in (relation.source, relation.target)]:
            entities.setdefault(name.casefold(), Entity(name))
        kept = dict(islice(entities.items(), MAX_ENTITIES))
        known = [one for one in relations if {one.source.casefold(), one.target.casefold()} <= kept.keys()]
        return {"entities": tuple(kept.values()), "relations": tuple(dict.fromkeys(known))}

    def _note(self, problem: str) -> None:
        self._reading.problems.append(f"memory {self._number} {problem}")


def _without_quotes(text: str) -> str:
    while len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    return text


def _never(_text: str) -> bool:
    return False


def _is_users(message: Message) -> bool:
    return message.role is Role.USER


def _shown(value: object) -> str:
    return repr(mended(plain_text(value)[:_MAX_SHOWN]))


def _label(value: Any) -> str | None:
    """``value`` as a short text; None if it is none or too long."""
    if not isinstance(value, str) or len(value) > MAX_LABEL:
        return None
    try:
        return canonical_text(" ".join(mended(value).split()), max_bytes=MAX_LABEL * 4)
    except InvalidMemory:
        return None


def _labels(value: Any, most: int) -> tuple[str, ...]:
    """Different labels among the first few of ``value``."""
    labels = (label for text in islice(texts_of(value), 4 * most) if (label := _label(text)))
    return tuple({label.casefold(): label for label in labels}.values())[:most]


def _entities(value: Any) -> list[tuple[str, str]]:
    """Names and kinds."""
    found: list[tuple[str, str]] = []
    for part in _few(value, MAX_ENTITIES):
        given = _folded_keys(part)
        name = _label(first_of(given, ("name", "entity", "text", "value")) if given else part)
        if name:
            found.append((name, KIND_NAMES.get(folded(first_of(given, _ENTITY_KIND) or ""), "thing")))
    return found


def _relations(value: Any) -> list[tuple[str, str, str]]:
    """Source, name and target of each that has all three, as objects or as lists of three."""
    found: list[tuple[str, str, str]] = []
    for part in _few(value, MAX_RELATIONS):
        given = _folded_keys(part)
        ends = [first_of(given, names) for names in _RELATION] if given else [*_few(part, len(_RELATION)), *_NO_ENDS]
        source, name, target = map(_label, ends[: len(_RELATION)])
        if source and name and target:
            found.append((source, name, target))
    return found


def _few(value: Any, most: int) -> list[Any]:
    return list(islice(cast("Sequence[Any]", value), most)) if isinstance(value, list) else []


def _folded_keys(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    return {folded(name): part for name, part in cast("Mapping[Any, Any]", value).items()}
