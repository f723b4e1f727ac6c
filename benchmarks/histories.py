"""Long conversations in which every message states facts, to measure what remains of them; synthetic, or LoCoMo's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Final

from fact_kinds import PEOPLE, Fact, Facts, drawn
from langchain_core.messages import AIMessage, HumanMessage

SEED: Final = 20_261_122
SIZES: Final = (200, 400, 1_000)
TOOL: Final = "search_files"
_TOOL_SHARE: Final = 0.4
_LARGE_SHARE: Final = 0.05
_LARGE: Final = (120, 240)
_FACTS_OF_A_MESSAGE: Final = (1, 1, 1, 2, 2, 3)
_SENTENCES: Final = {"user": (4, 14), "call": (1, 2), "tool": (12, 40), "assistant": (4, 12)}
_ADVERSARIAL: Final = 5
_FILLERS: Final = (
    "I talked with {person} for a while, mostly about {topic}.",
    "There is nothing to decide about {topic} before {weekday}.",
    "My notes on {s} are not complete, so take them with a grain of salt.",
    "That reminds me of {s}, although it is another story.",
    "We went through {topic} twice and came to the same result.",
    "I am not sure whether {person} has read the last message about {topic}.",
    "It took longer than expected, but {topic} looks better than in {month}.",
    "If you ask me, {topic} matters less than people say.",
    "Let us come back to {topic} when the others are here.",
    "As for {s}, I would rather wait for news from {city}.",
    "Please keep the tone friendly and the paragraphs short.",
    "The weather in {city} was grey, which did not help.",
    "Somebody asked about {s} again, and I had no time to answer.",
    "On {weekday} I sat down with a cup of tea and sorted papers on {topic}.",
    "None of this is urgent, but I want to have it written down.",
    "{person} sends greetings and hopes to hear about {topic} soon.",
)
_TOPICS: Final = (
    "the autumn schedule",
    "the garden fence",
    "travel costs",
    "the newsletter",
    "parking permits",
    "the choir evening",
    "printer supplies",
    "the reading list",
    "the kitchen rota",
    "insurance forms",
    "the holiday calendar",
    "the museum visit",
)


@dataclass(slots=True)
class Exchange:
    """What the user says, and what the agent says then: tool calls, whose results are here, and an answer."""

    asked: HumanMessage
    answers: list[AIMessage]
    results: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def size(self) -> int:
        """How many messages it is."""
        return 1 + len(self.answers) + len(self.results)


@dataclass(slots=True)
class History:
    """A conversation and the facts that were said in it, each with the role in which it was said."""

    name: str
    exchanges: list[Exchange]
    facts: list[tuple[Fact, str]]

    @property
    def size(self) -> int:
        """How many messages it has."""
        return sum(exchange.size for exchange in self.exchanges)


def synthetic(sizes: tuple[int, ...] = SIZES) -> list[History]:
    """A conversation of each of ``sizes``, about as many messages."""
    return [_Writer(size, Random(f"{SEED} {size}")).history() for size in sizes]


class _Writer:
    """Makes one conversation up."""

    def __init__(self, size: int, random: Random) -> None:
        self._size = size
        self._random = random
        self._new = Facts(size * max(_FACTS_OF_A_MESSAGE), random)
        self._told: list[tuple[Fact, str]] = []

    def history(self) -> History:
        exchanges: list[Exchange] = []
        size = 0
        while size < self._size:
            exchanges.append(self._exchange(len(exchanges)))
            size += exchanges[-1].size
        return History(f"{self._size} messages", exchanges, self._told)

    def _exchange(self, at: int) -> Exchange:
        asked = HumanMessage(self._text("user"), id=f"u{at}")
        if self._random.random() >= _TOOL_SHARE:
            return Exchange(asked, [AIMessage(self._text("assistant"))])
        name = f"call{at}"
        query = self._random.choice(self._new.subjects)
        call = AIMessage(self._text("call"), tool_calls=[{"name": TOOL, "args": {"query": query}, "id": name}])
        result = self._text("tool")
        return Exchange(asked, [call, AIMessage(self._text("assistant"))], {name: result})

    def _text(self, role: str) -> str:
        """Sentences in any order, one or more of which are facts."""
        is_large = role == "tool" and self._random.random() < _LARGE_SHARE
        shortest, longest = _LARGE if is_large else _SENTENCES[role]
        sentences = [self._filler() for _ in range(self._random.randint(shortest, longest))]
        for _ in range(self._random.choice(_FACTS_OF_A_MESSAGE)):
            fact = self._new.next()
            self._told.append((fact, role))
            sentences.insert(self._random.randint(0, len(sentences)), fact.sentence)
        return ("\n" if role == "tool" else " ").join(sentences)

    def _filler(self) -> str:
        text = self._random.choice(_FILLERS).replace("{topic}", self._random.choice(_TOPICS))
        return drawn(text, self._random.choice([*self._new.subjects[:40], *PEOPLE[:40]]), self._random)


def locomo(folder: Path) -> Iterator[History]:
    """The conversations of the LoCoMo files in ``folder``: the first speaker is the user, the second the assistant.

    A fact is a turn for which there is a question; questions without an answer are left out.
    """
    for path in sorted(folder.glob("*.json")):
        for number, sample in enumerate(json.loads(path.read_text(encoding="utf-8")), 1):
            yield _of_locomo(f"LoCoMo {number}", sample)


def _of_locomo(name: str, sample: dict[str, Any]) -> History:
    conversation = sample["conversation"]
    sessions = sorted((key for key in conversation if key.split("_")[-1].isdigit()), key=lambda key: int(key[8:]))
    turns = [turn for key in sessions for turn in conversation[key]]
    user = conversation["speaker_a"]
    exchanges: list[Exchange] = []
    for is_user, said in groupby(turns, lambda turn: turn["speaker"] == user):
        text = "\n".join(turn["text"] for turn in said)
        if is_user or not exchanges:
            exchanges.append(Exchange(HumanMessage(text if is_user else "…", id=f"u{len(exchanges)}"), []))
        if not is_user:
            exchanges[-1].answers.append(AIMessage(text))
    for exchange in exchanges:
        exchange.answers = exchange.answers or [AIMessage("…")]
    return History(name, exchanges, list(_asked(turns, sample["qa"], user)))


def _asked(turns: list[dict[str, Any]], questions: list[dict[str, Any]], user: str) -> Iterator[tuple[Fact, str]]:
    by_turn: dict[str, dict[str, Any]] = {}
    for question in questions:
        if question["category"] != _ADVERSARIAL:
            for turn in question.get("evidence", []):
                by_turn.setdefault(turn, question)
    for turn in turns:
        if found := by_turn.get(turn["dia_id"]):
            kind = f"category {found['category']}"
            yield Fact(turn["text"], found["question"], kind), "user" if turn["speaker"] == user else "assistant"
