"""Whether a model answers better with memory: the same questions with no memory, all of it, and what systems recall.

``--data DIR`` holds LoCoMo's and BEAM's development data and `own_dev/work_chats.json`. The model is `reader`, a small
one on this machine (``sh scripts/bench reader`` installs it). Each reply is kept in `build/reader/replies.jsonl`, so
that an interrupted run goes on where it was; ``--questions N`` asks fewer of them, always the same. mem0 is measured
where `build/peers` has it (docs/comparison.md).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from context.noise import remembering
from reader import HOME, MODEL, WINDOW, reader
from report import Row, publish
from timing import watched

from inference_core.agents.middleware.memory import DEFAULT_ENGINEER
from inference_core.context.render import COMPACT
from inference_core.effects import arun
from inference_core.errors import ConfigurationError
from inference_core.evaluation.answers import PROMPT, Asked, Replies, sampled, token_f1
from inference_core.evaluation.conversations import Conversation, ConversationQuestion, ConversationTurn
from inference_core.evaluation.formats import load_dataset
from inference_core.evaluation.systems import dated, make_system
from inference_core.memory.text import text_tokens
from inference_core.retrieval.analysis import analyze
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.stores.factory import open_store

Notes = Callable[[ConversationQuestion], Awaitable[str]]
SETS: Final = (
    ("locomo", "locomo_dev/locomo_dev.json", 0.6),
    ("beam", "beam_dev/100K", 0.25),
    ("locomo", "own_dev/work_chats.json", 0.15),
)
"""Format, place, and share of the questions."""
NOTHING, FULL, LANGGRAPH, MEM0, OURS, GOLD = (
    "no memory",
    "the newest of the conversation",
    "LangGraph InMemoryStore, 10",
    "mem0 (infer=False), 10",
    "this package's default prompt",
    "the right messages alone",
)
_TOP: Final = 10
_ROOM: Final = WINDOW - 1_200
"""Tokens for the conversation: estimates, so less than fits."""
_UNKNOWN: Final = re.compile(
    r"\b(?:not|n't|no|never|cannot)\b.{0,40}\b(?:know|known|mention\w*|say|said|specif\w+|provided?|given|stated?|hold|"
    r"contain\w*|information|indicate\w*|answer|found|notes?)\b|\bunknown\b|\bno information\b",
    re.IGNORECASE | re.DOTALL,
)
"""How a model says in English that it does not know."""
_RESAMPLES: Final = 2_000
_SEED: Final = 7


@dataclass(slots=True)
class Answers:
    """Of one system, by question: F1 and contained words (answerable ones), abstentions, tokens, seconds."""

    f1: dict[str, float] = field(default_factory=dict[str, float])
    contained: list[float] = field(default_factory=list[float])
    wrongly_unknown: list[bool] = field(default_factory=list[bool])
    rightly_unknown: list[bool] = field(default_factory=list[bool])
    tokens: list[int] = field(default_factory=list[int])
    seconds: list[float] = field(default_factory=list[float])


async def nothing(conversation: Conversation, opened: ExitStack) -> Notes:
    """No notes."""
    del conversation, opened

    async def notes(question: ConversationQuestion) -> str:
        del question
        return "(none)"

    return notes


async def newest(conversation: Conversation, opened: ExitStack) -> Notes:
    """As much of the end of the conversation as the model can read."""
    del opened
    kept: list[str] = []
    room = _ROOM
    for turn in reversed(conversation.turns):
        line = _line(turn)
        room -= text_tokens(line)
        if room < 0:
            break
        kept.append(line)
    whole = "\n".join(reversed(kept))

    async def notes(question: ConversationQuestion) -> str:
        del question
        return whole

    return notes


async def right(conversation: Conversation, opened: ExitStack) -> Notes:
    """The messages that answer the question."""
    del opened

    async def notes(question: ConversationQuestion) -> str:
        evidence = set(question.evidence)
        return "\n".join(_line(turn) for turn in conversation.turns if turn.id in evidence) or "(none)"

    return notes


def recalled_by(name: str) -> Callable[[Conversation, ExitStack], Awaitable[Notes]]:
    """The ten best messages of a system, in their order."""

    async def made(conversation: Conversation, opened: ExitStack) -> Notes:
        system = opened.enter_context(closing(make_system(name)))
        recall = await system.ingest(conversation, lambda: None)

        async def notes(question: ConversationQuestion) -> str:
            found = {hit.id for hit in await recall(question.text, _TOP)}
            return "\n".join(_line(turn) for turn in conversation.turns if turn.id in found) or "(none)"

        return notes

    return made


async def prompted(conversation: Conversation, opened: ExitStack) -> Notes:
    """What the default middleware tells, word for word, a day after the last message."""
    store = opened.enter_context(closing(open_store("memory://", embeddings="auto")))
    service, _ = await asyncio.to_thread(remembering, store, conversation.id, conversation.turns)

    async def notes(question: ConversationQuestion) -> str:
        options = TurnOptions(engineer=DEFAULT_ENGINEER, form=COMPACT, cold_seconds=30.0)
        turn = await arun(build_turn_context(service.scope, conversation.id, question.text, options))
        return f"{turn.profile.text}\n{turn.block}".strip()

    return notes


SYSTEMS: Final = {
    NOTHING: nothing,
    FULL: newest,
    LANGGRAPH: recalled_by("langgraph-inmemory"),
    MEM0: recalled_by("mem0"),
    OURS: prompted,
    GOLD: right,
}


def _line(turn: ConversationTurn) -> str:
    """A message as a note: in one line, with its day."""
    return f"- {' '.join(dated(turn).split())}"


def asked_of(data: Path, count: int) -> list[Conversation]:
    """About ``count`` questions, the same each time, with their conversations."""
    return [
        conversation
        for form, place, share in SETS
        for conversation in sampled(load_dataset(form, data / place), round(count * share))
        if conversation.questions
    ]


async def measured(conversations: Sequence[Conversation], model: Asked) -> dict[str, Answers]:
    """The answers of each system that is installed."""
    found: dict[str, Answers] = defaultdict(Answers)
    missing: set[str] = set()
    for name, make in SYSTEMS.items():
        for conversation in watched(conversations, name):
            with ExitStack() as opened:
                try:
                    notes = await make(conversation, opened)
                except ConfigurationError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    missing.add(name)
                    break
                days = [turn.at for turn in conversation.turns if turn.at is not None]
                for question in conversation.questions:
                    await _ask(found[name], conversation.id, question, await notes(question), days, model)
    return {name: answers for name, answers in found.items() if name not in missing}


async def _ask(
    into: Answers, place: str, question: ConversationQuestion, notes: str, days: Sequence[datetime], model: Asked
) -> None:
    """Has the model answer from ``notes``, and counts the answer."""
    until = f"{max(days):%A, %d %B %Y}" if days else "a day that is not known"
    reply = await model.reply(PROMPT.format(until=until, notes=notes, question=question.text))
    into.tokens.append(reply.tokens_in)
    into.seconds.append(reply.seconds)
    is_unknown = _UNKNOWN.search(reply.text) is not None
    if question.unanswerable:
        into.rightly_unknown.append(is_unknown)
    elif question.answer:
        into.f1[f"{place}\t{question.text}"] = token_f1(reply.text, question.answer)
        wanted, given = set(analyze(question.answer)), set(analyze(reply.text))
        if wanted:
            into.contained.append(len(wanted & given) / len(wanted))
        into.wrongly_unknown.append(is_unknown)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by resampling questions."""
    drawn = np.random.default_rng(_SEED).choice(np.array(values), (_RESAMPLES, len(values))).mean(1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def rows_of(found: dict[str, Answers]) -> Iterator[Row]:
    """The report's rows: memory has to answer at least as well as LangGraph's store."""
    ours = found[OURS]
    for name, one in found.items():
        low, high = interval(list(one.f1.values()))
        score = fmean(one.f1.values())
        text = f"{100 * score:.1f} ({100 * low:.1f} to {100 * high:.1f}) of {len(one.f1)}"
        has_bar = name == OURS and LANGGRAPH in found
        bar = fmean(found[LANGGRAPH].f1.values()) if has_bar else 0.0
        yield f"{name}: token F1", text, f"≥ {100 * bar:.1f}" if has_bar else "", score >= bar if has_bar else None
        yield f"{name}: words of the right answer", f"{100 * fmean(one.contained):.1f} %", "", None
        yield f"{name}: says that it does not know, rightly", _share(one.rightly_unknown), "", None
        yield f"{name}: says that it does not know, wrongly", _share(one.wrongly_unknown), "", None
        yield f"{name}: tokens of a request, seconds", f"{fmean(one.tokens):.0f}, {fmean(one.seconds):.1f}", "", None
        if name not in (OURS, NOTHING, GOLD, FULL):
            gains = [ours.f1[key] - one.f1[key] for key in one.f1]
            low, high = interval(gains)
            text = f"{100 * fmean(gains):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            yield f"{OURS} over {name}: token F1", text, "", None


def _share(flags: Sequence[bool]) -> str:
    return f"{100 * sum(flags) / len(flags):.0f} % of {len(flags)}" if flags else "none asked"


def main() -> int:
    """Prints and writes the results; 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    given: Any = parser.parse_args()
    conversations = asked_of(given.data, given.questions)
    with reader(given.threads) as chat, Replies(HOME / "replies.jsonl") as replies:
        model = Asked(MODEL, chat, replies, asyncio.Semaphore(1))
        found = asyncio.run(measured(conversations, model))
    details = {"model": MODEL, "window": WINDOW, "questions": given.questions}
    return 0 if publish("answers", list(rows_of(found)), details) else 1


if __name__ == "__main__":
    sys.exit(main())
