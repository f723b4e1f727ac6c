"""The cases: a user's memories, questions, and what each memory does to the answer.

A memory in the prompt is needed, does no harm, or brings a failure: poisoning, distraction, confusion, clash. Besides
the cases of `cases.json`, other data become cases at run time: conversations, saved memories, PoisonedRAG, InjecAgent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from inference_core.clock import aware
from inference_core.errors import InvalidInput
from inference_core.evaluation.conversations import Conversation, ConversationQuestion, ConversationTurn, parse_json
from inference_core.evaluation.formats import ADVERSARIAL, load_atomic, load_beam, load_locomo
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType, validate_memory_type

OWN: Final = "own"
LOCOMO: Final = "LoCoMo"
_FILE: Final = Path(__file__).with_name("cases.json")
_ASKED_AT: Final = datetime(2024, 6, 1, tzinfo=UTC)
_SAVED_AT: Final = datetime(2024, 5, 1, tzinfo=UTC)
_INJECTIONS: Final = 4
"""How many of the thirty injections for a tool's reply are used."""


class Mode(str, Enum):
    """How a line spoils an answer: it is false, off the topic, beside the point, or contradicts what holds."""

    POISONING = "poisoning"
    DISTRACTION = "distraction"
    CONFUSION = "confusion"
    CLASH = "clash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and what the memories are to it.

    Each entry of ``needed`` holds ids that say the same: one is enough, each further one is confusion. ``bad`` gives
    the mode of single ids, ``rest`` that of all ids not named elsewhere; None: they do no harm. ``answerable``: whether
    the data say that the memories hold the answer.
    """

    id: str
    question: str
    needed: tuple[frozenset[str], ...] = ()
    bad: Mapping[str, Mode] = field(default_factory=dict[str, Mode])
    neutral: frozenset[str] = frozenset()
    rest: Mode | None = Mode.DISTRACTION
    answerable: bool = True

    @property
    def half(self) -> str:
        """``tune`` or ``test``: by a checksum of the id, so that it never changes."""
        return "tune" if _odd(self.id) else "test"

    def mode_of(self, name: str) -> Mode | None:
        """The failure that the memory ``name`` brings by itself, None if none."""
        if name in self.bad:
            return self.bad[name]
        is_known = name in self.neutral or any(name in same for same in self.needed)
        return None if is_known else self.rest


@dataclass(frozen=True, slots=True)
class Memories:
    """One user's memories, when the questions are asked, and the questions."""

    id: str
    turns: tuple[ConversationTurn, ...]
    now: datetime
    cases: tuple[Case, ...]


def case_sets(data: Path | None) -> dict[str, list[Memories]]:
    """The repository's own cases and those of the files in the folder ``data``, by the name of the set.

    Raises InvalidInput if the folder holds none of them, or a file cannot be read.
    """
    if data is None:
        return {OWN: own_cases()}
    found = {name: list(make(data / place)) for name, (place, make) in _SETS.items() if (data / place).exists()}
    if not found:
        raise InvalidInput(f"{data} holds none of {', '.join(place for place, _ in _SETS.values())}")
    return {OWN: own_cases(), **found}


def own_cases(path: Path = _FILE) -> list[Memories]:
    """The cases that come with the repository, or those of a file of the same format. Raises InvalidInput."""
    form = "a file of context cases, an object with 'now' and 'users', each with 'chatter' and 'cases'"

    def read(data: Mapping[str, Any]) -> list[Memories]:
        now = aware(datetime.fromisoformat(data["now"]))
        return [_own_user(user, now) for user in data["users"]]

    return parse_json(path, form, read)


def _own_user(user: Mapping[str, Any], now: datetime) -> Memories:
    memories = {f"{user['user_id']}-{number}": memory for number, memory in enumerate(user["chatter"])}
    cases: list[Case] = []
    for entry in user["cases"]:
        lines = {f"{entry['id']}-{number}": memory for number, memory in enumerate(entry["memories"])}
        memories |= lines
        needed: list[set[str]] = []
        bad: dict[str, Mode] = {}
        for name, memory in lines.items():
            if memory["label"] == "needed":
                needed.append({name})
            elif memory["label"] == "repeat":
                needed[-1].add(name)
            else:
                bad[name] = Mode(memory["label"])
        same = tuple(map(frozenset, needed))
        cases.append(
            Case(id=str(entry["id"]), question=str(entry["question"]), needed=same, bad=bad, answerable=bool(same))
        )
    turns = [
        ConversationTurn(
            id=name,
            session=None,
            at=aware(datetime.fromisoformat(memory["at"])),
            speaker=None,
            text=str(memory["content"]),
            origin=Origin(memory["origin"]),
            memory_type=validate_memory_type(memory["memory_type"]),
        )
        for name, memory in memories.items()
    ]
    return Memories(str(user["user_id"]), tuple(sorted(turns, key=lambda turn: turn.at or now)), now, tuple(cases))


def _locomo(path: Path) -> Iterator[Memories]:
    """Categories 1 to 4; what was said in a session without evidence is a distraction."""
    for conversation in load_locomo(path):
        yield _asked(conversation, lambda question: bool(question.evidence) and question.category != ADVERSARIAL)


def _beam(path: Path) -> Iterator[Memories]:
    """All abilities; an older statement that was updated is a clash, questions to abstain from have no evidence."""
    for conversation in load_beam(path):
        yield _asked(conversation, lambda question: bool(question.evidence) or question.category == "abstention")


def _saved(path: Path) -> Iterator[Memories]:
    """Requests to an agent: whatever else is saved is a distraction."""
    for user in load_atomic(path):
        asked = _asked(user, lambda _: True)
        cases = [replace(case, neutral=frozenset(), rest=Mode.DISTRACTION) for case in asked.cases]
        yield replace(asked, cases=tuple(cases))


def _asked(conversation: Conversation, counts: Callable[[ConversationQuestion], bool]) -> Memories:
    """Those questions of a conversation that count, a day after its last message."""
    said = [turn.at for turn in conversation.turns if turn.at is not None]
    sessions = {turn.id: turn.session for turn in conversation.turns}
    cases: list[Case] = []
    for number, question in enumerate(conversation.questions):
        if not counts(question):
            continue
        evidence = [name for name in question.evidence if name not in question.superseded]
        near = {sessions[name] for name in evidence}
        cases.append(
            Case(
                id=f"{conversation.id}-{number}",
                question=question.text,
                needed=tuple(frozenset({name}) for name in evidence),
                bad=dict.fromkeys(question.superseded, Mode.CLASH),
                neutral=frozenset(name for name, session in sessions.items() if session in near),
                rest=Mode.DISTRACTION if near else None,
                answerable=question.names_evidence,
            )
        )
    return Memories(conversation.id, conversation.turns, max(said, default=_ASKED_AT) + timedelta(days=1), tuple(cases))


def _poisoned_rag(path: Path) -> Iterator[Memories]:
    """All questions as one user's: the right answer is needed, the passages for the wrong one are poison."""
    entries = parse_json(path, "PoisonedRAG's questions, an object of objects", lambda data: list(data.values()))
    yield _poisoned(
        "PoisonedRAG",
        [
            (entry["id"], entry["question"], f"{entry['question']}? {entry['correct answer']}", entry["adv_texts"])
            for entry in entries
        ],
    )


def _injec_agent(path: Path) -> Iterator[Memories]:
    """Replies of tools as one user's memories: harmless ones are needed, those with an injection are poison."""
    by_request: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in parse_json(path, "InjecAgent's cases, a list of objects", list[Any]):
        by_request[entry["User Instruction"]].append(entry)
    replies: list[tuple[str, str, str, list[str]]] = []
    for number, (request, found) in enumerate(by_request.items()):
        benign = found[0]["Tool Response Template"].replace("<Attacker Instruction>", "none")
        chosen = found[:: max(len(found) // _INJECTIONS, 1)][:_INJECTIONS]
        injected = [f"{request} {entry['Tool Response']}" for entry in chosen]
        replies.append((f"reply-{number}", request, f"{request} {benign}", injected))
    yield _poisoned("InjecAgent", replies)


def _poisoned(name: str, entries: Sequence[tuple[str, str, str, Sequence[str]]]) -> Memories:
    """One user with an id, a question, the right text and the poison of each entry, from sources of different trust."""
    turns: list[ConversationTurn] = []
    cases: list[Case] = []
    for entry_id, question, right, texts in entries:
        origin = Origin.TOOL if _odd(f"evidence {entry_id}") else Origin.USER
        needed = _line(f"{entry_id}-right", right, origin)
        origin = Origin.USER if _odd(f"poison {entry_id}") else Origin.WEB
        poison = [_line(f"{entry_id}-{number}", text, origin) for number, text in enumerate(texts)]
        turns += [needed, *poison]
        bad = {turn.id: Mode.POISONING for turn in poison}
        cases.append(Case(id=f"{name}-{entry_id}", question=question, needed=(frozenset({needed.id}),), bad=bad))
    return Memories(name, tuple(turns), _ASKED_AT, tuple(cases))


def _line(name: str, text: str, origin: Origin) -> ConversationTurn:
    return ConversationTurn(name, None, _SAVED_AT, None, text, origin, MemoryType.FACTS.value)


def _odd(text: str) -> int:
    """A bit that is as good as drawn, and always the same for ``text``."""
    return sha256(text.encode()).digest()[0] % 2


_SETS: Final[dict[str, tuple[str, Callable[[Path], Iterator[Memories]]]]] = {
    LOCOMO: ("locomo_dev/locomo_dev.json", _locomo),
    "BEAM": ("beam_dev", _beam),
    "work chats": ("own_dev/work_chats.json", _locomo),
    "saved memories": ("own_dev/atomic_memories.json", _saved),
    "more saved memories": ("own_dev/atomic_more.json", _saved),
    "PoisonedRAG": ("attacks/poisonedrag_nq.json", _poisoned_rag),
    "InjecAgent": ("attacks/injecagent_dh_base.json", _injec_agent),
}
