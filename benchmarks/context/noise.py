"""What stands in the middleware's default prompt: right, harmful and useless lines, and when it tells nothing.

A file of noise is one of saved memories (`inference_core.evaluation.formats`) in which a memory has a ``source`` with
an ``origin``, and a query has ``harmful`` and ``useless`` ids, with ``harm_kinds`` by id. `marks.json` holds groups of
memories in seven languages, each with a question: what a newer memory replaces, and what it does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from langchain_core.embeddings import Embeddings

from inference_core.agents.middleware.memory import DEFAULT_ENGINEER
from inference_core.context.engineer import ContextEngineer
from inference_core.context.items import MARKED, STANDING
from inference_core.context.render import COMPACT, CONFLICTS, UNTRUSTED, compact_section, neutral_line
from inference_core.effects import run
from inference_core.errors import UntrustedWrite
from inference_core.evaluation.conversations import Conversation, ConversationTurn, parse_json
from inference_core.evaluation.formats import load_atomic
from inference_core.evaluation.systems import MAX_CONTENT_BYTES
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryType
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.prompt_context import TurnContext, TurnOptions, build_turn_context
from inference_core.stores.factory import open_store
from inference_core.testing import FrozenClock

from .first import settle

_FORM: Final = "a file of noise: saved memories with 'source', queries with 'relevant', 'harmful' and 'useless'"
_APART: Final = {compact_section(name, ()) for name in (CONFLICTS, UNTRUSTED)}
_MARKS: Final = Path(__file__).with_name("marks.json")
_DOUBT: Final = re.compile(rf"\[(?:{'|'.join(one.value for one in MARKED)})")
_SOURCE: Final = " [source: "
_OTHERS: Final = 2
"""Each user is asked the questions of so many others."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A question, with the ids of the memories that answer it, do harm (by kind), and are of no use."""

    text: str
    relevant: frozenset[str]
    harmful: Mapping[str, str]
    useless: frozenset[str]


@dataclass(frozen=True, slots=True)
class NoiseUser:
    """A user's memories, and the questions about them."""

    id: str
    turns: tuple[ConversationTurn, ...]
    questions: tuple[Noise, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A question to a user, and where in the prompt each memory stands that is told.

    Of these, ``doubted`` have a doubt in their line; ``marked`` have one, or name a source other than the user.
    """

    user: str
    question: Noise
    places: Mapping[str, int]
    marked: frozenset[str]
    doubted: frozenset[str]


def load_noise(path: Path) -> list[NoiseUser]:
    """The users of a file of noise. Raises InvalidInput if it cannot be read or has another format."""
    plain = load_atomic(path)

    def read(data: Mapping[str, Any]) -> Iterator[NoiseUser]:
        for user, conversation in zip(data["users"], plain, strict=True):
            origins = {str(one["id"]): Origin(one["source"]["origin"]) for one in user["memories"]}
            turns = tuple(
                ConversationTurn(turn.id, None, turn.at, None, turn.text, origins[turn.id], turn.memory_type)
                for turn in conversation.turns
            )
            questions = tuple(
                Noise(
                    str(query["query"]),
                    frozenset(query["relevant"]),
                    {name: str(query["harm_kinds"][name]) for name in query["harmful"]},
                    frozenset(query["useless"]),
                )
                for query in user["queries"]
            )
            yield NoiseUser(conversation.id, turns, questions)

    return parse_json(path, _FORM, lambda data: list(read(data)))


def load_saved(path: Path, most: int | None = None) -> list[NoiseUser]:
    """The first ``most`` users of a file of saved memories, with right lines alone. Raises InvalidInput."""
    return [
        NoiseUser(
            user.id,
            user.turns,
            tuple(Noise(one.text, frozenset(one.evidence), {}, frozenset()) for one in user.questions),
        )
        for user in load_atomic(path)[:most]
    ]


def load_marks(half: str) -> list[NoiseUser]:
    """Each language of `marks.json` as one user, asked the groups of a half: ``tune`` or ``test``.

    Of each kind of group, every other one belongs to either half. Rules were chosen on ``tune``.
    """

    def read(data: Mapping[str, Any]) -> Iterator[NoiseUser]:
        seen: Counter[str] = Counter()
        for user in data["users"]:
            turns: list[ConversationTurn] = []
            questions: list[Noise] = []
            for at, group in enumerate(user["groups"]):
                lines = {f"{at}-{number}": memory for number, memory in enumerate(group["memories"])}
                turns += [
                    ConversationTurn(
                        name,
                        None,
                        datetime.fromisoformat(one["at"]),
                        None,
                        one["content"],
                        Origin.USER,
                        MemoryType(one["memory_type"]),
                    )
                    for name, one in lines.items()
                ]
                right = frozenset(name for name, one in lines.items() if one["label"] == "right")
                harmful = {name: str(one["label"]) for name, one in lines.items() if name not in right}
                if ("tune", "test")[seen[group["kind"]] % 2] == half:
                    questions.append(Noise(group["question"], right, harmful, frozenset()))
                seen[group["kind"]] += 1
            yield NoiseUser(str(user["user_id"]), tuple(turns), tuple(questions))

    return parse_json(_MARKS, "groups of labelled memories", lambda data: list(read(data)))


def prompts(
    users: Iterable[NoiseUser],
    embeddings: str | Embeddings | None,
    engineer: ContextEngineer | None = DEFAULT_ENGINEER,
) -> Iterator[Told]:
    """What the middleware's default prompt tells for each question, asked a day after the last memory.

    Text from outside that was to become a rule is saved as a fact, as the store demands.
    """
    for user in users:
        with closing(open_store("memory://", embeddings=embeddings)) as store:
            service, ids = remembering(store, user.id, user.turns)
            texts = {turn.id: neutral_line(turn.text) for turn in user.turns if turn.id in ids}
            for question in user.questions:
                options = TurnOptions(engineer=engineer, form=COMPACT)
                turn = run(build_turn_context(service.scope, user.id, question.text, options))
                yield Told(user.id, question, *read_back(turn, texts))


def remembering(store: Any, user: str, turns: Sequence[ConversationTurn]) -> tuple[AgentMemoryStoreService, set[str]]:
    """A service a day after ``user`` said the last of ``turns``, and the ids of those."""
    clock = FrozenClock()
    if (embedder := store.engine.embedder) is not None:
        embedder.warm()
        embedder.wait_ready()
    service = AgentMemoryStoreService(store, timeout=None, clock=clock, max_content_bytes=MAX_CONTENT_BYTES)
    ids: set[str] = set()
    for turn in sorted(turns, key=lambda one: one.at or clock.now()):
        if turn.at is not None:
            clock.set(turn.at)
        facts: Any = {"valid_from": turn.at, "source": MemorySource(origin=turn.origin), "session_id": turn.session}
        try:
            service.sync.save_memory(user, turn.content, turn.memory_type, **facts)
        except UntrustedWrite:
            service.sync.save_memory(user, turn.content, MemoryType.FACTS, **facts)
        ids.add(turn.id)
    settle(service)
    clock.advance(timedelta(days=1))
    return service, ids


def read_back(turn: TurnContext, texts: Mapping[str, str]) -> tuple[dict[str, int], frozenset[str], frozenset[str]]:
    """Where in the prompt each text stands, the profile first; which of them stand marked, and which with a doubt."""
    prompt = f"{turn.profile.text}\n{turn.block}"
    is_apart, lines = False, []
    for line in prompt.splitlines():
        if line.startswith("- "):
            lines.append((line.split(" ", 2)[2], is_apart))
        elif line:
            is_apart = line in _APART
    places: dict[str, int] = {}
    marked: set[str] = set()
    doubted: set[str] = set()
    for name, text in texts.items():
        at = next((at for at, (line, _) in enumerate(lines) if f"{line} [".startswith(f"{text} [")), None)
        if at is not None:
            places[name] = at
            line, is_apart = lines[at]
            rest = line.removeprefix(text)
            if _DOUBT.search(rest):
                doubted.add(name)
            if is_apart or name in doubted or _SOURCE in rest:
                marked.add(name)
    return places, frozenset(marked), frozenset(doubted)


def noise_figures(found: Sequence[Told]) -> dict[str, Any]:
    """Shares and counts over ``found``.

    ``first``: of the questions, those in which the first of all labelled lines is a right one. ``above``: of all pairs
    of a right and a harmful line, those in which the harmful one is told before the right one or without it.
    ``relevant``, ``harmful``, ``useless``: how many are told; ``unmarked`` harmful lines, ``marked`` and ``doubted``
    right ones. By kind of harm how many there are, are told, and are told unmarked.
    """
    first = pairs = above = 0
    told = dict.fromkeys(("relevant", "harmful", "useless", "unmarked", "marked", "doubted", "lines"), 0)
    kinds: dict[str, list[int]] = {}
    for one in found:
        question, places = one.question, one.places
        right, harmful = question.relevant & places.keys(), question.harmful.keys() & places.keys()
        labelled = (question.relevant | question.harmful.keys() | question.useless) & places.keys()
        first += min(labelled, key=lambda name: places[name], default=None) in right
        pairs += len(question.relevant) * len(question.harmful)
        above += sum(name not in right or places[bad] < places[name] for name in question.relevant for bad in harmful)
        told["relevant"] += len(right)
        told["harmful"] += len(harmful)
        told["useless"] += len(question.useless & places.keys())
        told["unmarked"] += len(harmful - one.marked)
        told["marked"] += len(right & one.marked)
        told["doubted"] += len(right & one.doubted)
        told["lines"] += len(places)
        for name, kind in question.harmful.items():
            counts = kinds.setdefault(kind, [0, 0, 0])
            for at, is_so in enumerate((True, name in places, name in places and name not in one.marked)):
                counts[at] += is_so
    shares = {"first": first / max(len(found), 1), "above": above / max(pairs, 1)}
    return {**shares, **told, "questions": len(found), "kinds": kinds}


def silence(users: Sequence[Conversation], embeddings: str | Embeddings | None) -> dict[str, Any]:
    """How often the middleware's block tells nothing: as shares, rules and preferences not counted, and ``empty``.

    Each user is asked their own questions with an answer (``wrong``), those without one (``near``), and the questions
    of two other users (``off``).
    """
    counts: dict[str, list[int]] = {"wrong": [0, 0, 0], "near": [0, 0, 0], "off": [0, 0, 0]}
    for at, user in enumerate(users):
        asked = [("wrong" if question.evidence else "near", question.text) for question in user.questions]
        for step in range(1, _OTHERS + 1):
            others = users[(at + step) % len(users)].questions
            asked += [("off", question.text) for question in others if question.evidence]
        with closing(open_store("memory://", embeddings=embeddings)) as store:
            service, _ = remembering(store, user.id, user.turns)
            for kind, text in asked:
                options = TurnOptions(engineer=DEFAULT_ENGINEER)
                shown = run(build_turn_context(service.scope, user.id, text, options)).context.items
                count = counts[kind]
                count[0] += 1
                count[1] += all(item.kind in STANDING for item in shown)
                count[2] += not shown
    return {
        kind: {"asked": asked, "silent": silent / max(asked, 1), "empty": empty / max(asked, 1)}
        for kind, (asked, silent, empty) in counts.items()
    }
