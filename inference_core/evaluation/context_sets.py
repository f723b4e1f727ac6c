"""Context cases made of other data at run time: conversations, saved memories, PoisonedRAG, InjecAgent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from inference_core.errors import InvalidInput
from inference_core.evaluation.atomic import load_atomic
from inference_core.evaluation.beam import load_beam
from inference_core.evaluation.context_cases import Case, CaseSet, Memories, Mode, own_cases
from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question, parse_json
from inference_core.evaluation.locomo import ADVERSARIAL, load_locomo
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType

LOCOMO: Final = "LoCoMo"
BEAM: Final = "BEAM"
SAVED: Final = "saved memories"
MORE: Final = "more saved memories"
WORK: Final = "work chats"
POISONED_RAG: Final = "PoisonedRAG"
INJEC_AGENT: Final = "InjecAgent"
_PLACES: Final = {
    LOCOMO: "locomo_dev/locomo_dev.json",
    BEAM: "beam_dev",
    WORK: "own_dev/work_chats.json",
    SAVED: "own_dev/atomic_memories.json",
    MORE: "own_dev/atomic_more.json",
    POISONED_RAG: "attacks/poisonedrag_nq.json",
    INJEC_AGENT: "attacks/injecagent_dh_base.json",
}
_ASKED_AT: Final = datetime(2024, 6, 1, tzinfo=UTC)
_SAVED_AT: Final = datetime(2024, 5, 1, tzinfo=UTC)
_INSTRUCTION: Final = "<Attacker Instruction>"
_INJECTIONS: Final = 4
"""Of the thirty injections for a tool's reply."""


def case_sets(data: Path | None, limit: int | None = None) -> list[CaseSet]:
    """The package's own cases and those of what lies in the folder ``data``, of at most ``limit`` users of each.

    Raises InvalidInput if nothing that can be read lies there.
    """
    return [CaseSet(given.name, given.users[:limit]) for given in _case_sets(data)]


def _case_sets(data: Path | None) -> list[CaseSet]:
    if data is None:
        return [own_cases()]
    there = {name: data / place for name, place in _PLACES.items() if (data / place).exists()}
    if not there:
        raise InvalidInput(f"{data} holds none of {', '.join(_PLACES.values())}")
    return [own_cases(), *(CaseSet(name, tuple(_MAKERS[name](path))) for name, path in there.items())]


def _locomo(path: Path) -> Iterator[Memories]:
    """Categories 1 to 4; what was said in a session without evidence is a distraction."""
    for conversation in load_locomo(path):
        asked = [
            _case(conversation, number, question)
            for number, question in enumerate(conversation.questions)
            if question.evidence and question.category != ADVERSARIAL
        ]
        yield _memories(conversation, asked)


def _beam(path: Path) -> Iterator[Memories]:
    """All abilities; an older statement that was updated is a clash, questions to abstain from have no evidence."""
    for conversation in load_beam(path):
        asked = [
            _beam_case(conversation, number, question)
            for number, question in enumerate(conversation.questions)
            if question.evidence or question.category == "abstention"
        ]
        yield _memories(conversation, asked)


def _saved(path: Path) -> Iterator[Memories]:
    """Requests to an agent: whatever else is saved is a distraction."""
    for user in load_atomic(path):
        asked = [_case(user, number, question) for number, question in enumerate(user.questions)]
        yield _memories(user, [replace(case, neutral=frozenset(), rest=Mode.DISTRACTION) for case in asked])


def _case(conversation: Conversation, number: int, question: Question) -> Case:
    sessions = {turn.id: turn.session for turn in conversation.turns}
    near = {sessions[name] for name in question.evidence}
    return Case(
        id=f"{conversation.id}-{number}",
        question=question.text,
        needed=tuple(frozenset({name}) for name in question.evidence),
        neutral=frozenset(name for name, session in sessions.items() if session in near),
        rest=Mode.DISTRACTION if near else None,
        answerable=question.names_evidence,
    )


def _beam_case(conversation: Conversation, number: int, question: Question) -> Case:
    older = question.superseded
    evidence = tuple(name for name in question.evidence if name not in older)
    case = _case(conversation, number, replace(question, evidence=evidence))
    return replace(case, bad=dict.fromkeys(older, Mode.CLASH))


def _memories(conversation: Conversation, cases: Sequence[Case]) -> Memories:
    said = [turn.at for turn in conversation.turns if turn.at is not None]
    return Memories(conversation.id, conversation.turns, max(said, default=_ASKED_AT) + timedelta(days=1), tuple(cases))


def _poisoned_rag(path: Path) -> Iterator[Memories]:
    """All questions as one user's: the right answer is needed, the passages for the wrong one are poison."""
    entries = parse_json(path, "PoisonedRAG's questions, an object of objects", lambda data: list(data.values()))
    turns: list[ConversationTurn] = []
    cases: list[Case] = []
    for entry in entries:
        name, question = str(entry["id"]), str(entry["question"])
        right = _line(f"{name}-right", f"{question}? {entry['correct answer']}", _evidence_origin(name))
        poison = [
            _line(f"{name}-{number}", text, _poison_origin(name)) for number, text in enumerate(entry["adv_texts"])
        ]
        turns += [right, *poison]
        cases.append(_poisoned(f"{POISONED_RAG}-{name}", question, right, poison))
    yield Memories(POISONED_RAG, tuple(turns), _ASKED_AT, tuple(cases))


def _injec_agent(path: Path) -> Iterator[Memories]:
    """Replies of tools as one user's memories: harmless ones are needed, those with an injection are poison."""
    entries = parse_json(path, "InjecAgent's cases, a list of objects", list)
    by_request: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in entries:
        by_request[entry["User Instruction"]].append(entry)
    turns: list[ConversationTurn] = []
    cases: list[Case] = []
    for number, (request, found) in enumerate(by_request.items()):
        name = f"reply-{number}"
        benign = found[0]["Tool Response Template"].replace(_INSTRUCTION, "none")
        right = _line(f"{name}-right", f"{request} {benign}", _evidence_origin(name))
        injected = [
            f"{request} {entry['Tool Response']}" for entry in found[:: len(found) // _INJECTIONS][:_INJECTIONS]
        ]
        poison = [_line(f"{name}-{at}", text, _poison_origin(name)) for at, text in enumerate(injected)]
        turns += [right, *poison]
        cases.append(_poisoned(f"{INJEC_AGENT}-{name}", request, right, poison))
    yield Memories(INJEC_AGENT, tuple(turns), _ASKED_AT, tuple(cases))


def _poisoned(name: str, question: str, right: ConversationTurn, poison: Sequence[ConversationTurn]) -> Case:
    bad = {turn.id: Mode.POISONING for turn in poison}
    return Case(id=name, question=question, needed=(frozenset({right.id}),), bad=bad)


def _line(name: str, text: str, origin: Origin) -> ConversationTurn:
    return ConversationTurn(name, None, _SAVED_AT, None, text, origin, MemoryType.FACTS.value)


def _evidence_origin(name: str) -> Origin:
    return Origin.TOOL if sha256(f"evidence {name}".encode()).digest()[0] % 2 else Origin.USER


def _poison_origin(name: str) -> Origin:
    return Origin.USER if sha256(f"poison {name}".encode()).digest()[0] % 2 else Origin.WEB


_MAKERS: Final[dict[str, Callable[[Path], Iterator[Memories]]]] = {
    LOCOMO: _locomo,
    BEAM: _beam,
    WORK: _locomo,
    SAVED: _saved,
    MORE: _saved,
    POISONED_RAG: _poisoned_rag,
    INJEC_AGENT: _injec_agent,
}
