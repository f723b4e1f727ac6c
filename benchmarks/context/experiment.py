"""What reaches the prompt of each case: with the context engineer, and as the plain best of the same recall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

from inference_core.context.engineer import ContextEngineer
from inference_core.context.items import ContextItem
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.experiment import calibration_error
from inference_core.evaluation.systems import Advance, LangGraphInMemory, MemoryService, Recall, dated
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

from .cases import LOCOMO, Case, Memories, Mode

DEPTH: Final = 20
"""How many memories recall gives to both."""
_MAX_TOKENS: Final = 100_000
"""More than the memories take: what a budget leaves out is no merit of the engineer."""
_JUDGED: Final = 10
_DIGITS: Final = 4


class Fate(IntEnum):
    """What becomes of a line that recall found."""

    GONE = 0
    MARKED = 1
    PLAIN = 2


@dataclass(frozen=True, slots=True)
class Line:
    """A memory, or several that say the same, that is needed (``mode`` None) or bad, and whether it reaches the prompt.

    ``is_external``: it came from a tool, a document or the web.
    """

    mode: Mode | None
    is_external: bool
    fate: Fate


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """One case: the lines that matter, and what the prompt cost before and after.

    ``judged``: the relevance of each memory that recall found, and whether it is needed. ``elsewhere``: the needed
    lines and the cost with LangGraph's store, None where that was not asked.
    """

    case: Case
    lines: tuple[Line, ...]
    tokens_before: int
    tokens_after: int
    is_uncertain: bool
    judged: tuple[tuple[float, bool], ...]
    elsewhere: tuple[int, int] | None


async def run_set(
    name: str,
    users: Sequence[Memories],
    split: str,
    embeddings: str | None,
    advance: Advance,
    engineer: ContextEngineer | None = None,
) -> dict[str, Any]:
    """The figures of the ``tune`` or ``test`` half of a set's cases, or of ``all``.

    LoCoMo's questions are put to LangGraph's store too. Raises what the store and the embedding model raise.
    """
    engineer = engineer or ContextEngineer()
    outcomes: list[CaseOutcome] = []
    with closing(MemoryService(embeddings)) as memory:
        for user in users:
            recall = await memory.remember(user.id, user.turns, advance)
            langgraph: Recall | None = None
            if name == LOCOMO and embeddings is not None:
                langgraph = await LangGraphInMemory().ingest(Conversation(user.id, user.turns, (), 0), lambda: None)
            for case in user.cases:
                if split in ("all", case.half):
                    items = [_item(found_id, document) for found_id, document in await recall(case.question, DEPTH)]
                    elsewhere = None if langgraph is None else await _elsewhere(langgraph, user, case)
                    outcomes.append(_outcome(case, user.now, items, elsewhere, engineer))
                advance()
    return figures(outcomes)


def _item(name: str, document: MemoryStoreDocument) -> ContextItem:
    moment = document.created_at or datetime.min.replace(tzinfo=UTC)
    namespace = ("user", document.memory_category or "")
    record = MemoryRecord.from_value(
        document.value, memory_id=name, namespace=namespace, stored_at=moment, updated_at=document.updated_at or moment
    )
    return ContextItem.of(record, source="memory", relevance=document.relevance, score=document.score or 0.0)


async def _elsewhere(recall: Recall, user: Memories, case: Case) -> tuple[int, int]:
    """How many needed lines LangGraph's store finds for a case, and what all that it finds costs."""
    texts = {turn.id: dated(turn) for turn in user.turns}
    found = [hit.id for hit in await recall(case.question, DEPTH)]
    needed = sum(any(name in found for name in same) for same in case.needed)
    return needed, sum(text_tokens(f"  - {texts[name]}") for name in found)


def _outcome(
    case: Case, now: datetime, items: list[ContextItem], elsewhere: tuple[int, int] | None, engineer: ContextEngineer
) -> CaseOutcome:
    """What the engineer makes of what recall found for a case."""
    context = engineer.assemble(items, query=case.question, now=now, zone=UTC, max_tokens=_MAX_TOKENS)
    plain = [item for section in context.sections.values() for item in section]
    marked = [*context.untrusted, *(item for group in context.conflicts for item in group)]
    marked += [item for item in plain if item.marks]
    fates = {item.id: Fate.PLAIN for item in plain} | {item.id: Fate.MARKED for item in marked}
    needed = {name for same in case.needed for name in same}
    return CaseOutcome(
        case=case,
        lines=tuple(_lines(case, items, fates)),
        tokens_before=_tokens(items),
        tokens_after=_tokens([item for item in items if item.id in fates]),
        is_uncertain=not fates,
        judged=tuple((item.relevance, item.id in needed) for item in items if item.relevance is not None),
        elsewhere=elsewhere,
    )


def _lines(case: Case, items: Sequence[ContextItem], fates: Mapping[str, Fate]) -> Iterator[Line]:
    """Of memories that say the same, the best placed one is needed, the others are confusion."""
    modes: dict[str, Mode | None] = {item.id: case.mode_of(item.id) for item in items}
    needed: set[str] = set()
    for same in case.needed:
        group = sorted((item.id for item in items if item.id in same), key=lambda name: -fates.get(name, Fate.GONE))
        needed.update(group[:1])
        modes |= dict.fromkeys(group[1:], Mode.CONFUSION)
    for item in items:
        if item.id in needed or modes[item.id] is not None:
            mode = None if item.id in needed else modes[item.id]
            yield Line(mode, item.trust <= Trust.EXTERNAL, fates.get(item.id, Fate.GONE))


def _tokens(items: Iterable[ContextItem]) -> int:
    """What the lines cost, each with its date."""
    return sum(text_tokens(f"  - [{item.happened_at:%Y-%m-%d}] {item.text}") for item in items)


def figures(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    """The sums over ``outcomes`` as JSON data: shares to four digits, None where nothing was counted.

    Poison and needed lines are also counted by origin: the user's own, and from outside.
    """
    lines = [line for outcome in outcomes for line in outcome.lines]
    needed = [line for line in lines if line.mode is None]
    by_mode = {mode: [line for line in lines if line.mode is mode] for mode in Mode}
    poison = by_mode[Mode.POISONING]
    error = calibration_error([pair for outcome in outcomes for pair in outcome.judged[:_JUDGED]])
    return {
        "cases": len(outcomes),
        "needed": {"all": _counted(needed), "external": _counted(line for line in needed if line.is_external)},
        "bad": {mode.value: _counted(found) for mode, found in by_mode.items() if found},
        "poisoning": {
            "external": _counted(line for line in poison if line.is_external),
            "own": _counted(line for line in poison if not line.is_external),
        },
        "needed_per_1000_tokens": _efficiency(outcomes),
        "silence": _silence(outcomes),
        "calibration_error": None if error is None else round(error, _DIGITS),
    }


def _counted(lines: Iterable[Line]) -> dict[str, Any]:
    """How many lines recall found, and how many of them the engineer puts into the prompt, plain and marked."""
    fates = [line.fate for line in lines]
    before, plain, marked = len(fates), fates.count(Fate.PLAIN), fates.count(Fate.MARKED)
    return {
        "before": before,
        "plain": plain,
        "marked": marked,
        "kept": _share(plain + marked, before),
        "fewer": _share(before - plain - marked, before),
        "fewer_plain": _share(before - plain, before),
    }


def _efficiency(outcomes: Sequence[CaseOutcome]) -> dict[str, float | None]:
    """Needed memories per 1,000 tokens, of cases that something answers; the share of all tokens that is kept."""
    asked = [outcome for outcome in outcomes if outcome.case.answerable]
    needed = [line for outcome in asked for line in outcome.lines if line.mode is None]
    told = sum(line.fate > Fate.GONE for line in needed)
    elsewhere = [outcome.elsewhere for outcome in asked if outcome.elsewhere is not None]
    before = sum(outcome.tokens_before for outcome in outcomes)
    return {
        "before": _share(1_000 * len(needed), sum(outcome.tokens_before for outcome in asked)),
        "after": _share(1_000 * told, sum(outcome.tokens_after for outcome in asked)),
        "langgraph": _share(1_000 * sum(count for count, _ in elsewhere), sum(tokens for _, tokens in elsewhere)),
        "tokens_kept": _share(sum(outcome.tokens_after for outcome in outcomes), before or 1),
    }


def _silence(outcomes: Sequence[CaseOutcome]) -> dict[str, float | None]:
    """Shares of cases in which nothing is told; and in which all evidence that recall found, if any, is told."""
    unanswerable = [outcome.is_uncertain for outcome in outcomes if not outcome.case.answerable]
    needed = [(outcome, [line.fate for line in outcome.lines if line.mode is None]) for outcome in outcomes]
    answerable = [(outcome.is_uncertain, all(fates)) for outcome, fates in needed if fates]
    return {
        "unanswerable": len(unanswerable),
        "silent": _share(sum(unanswerable), len(unanswerable)),
        "answerable": len(answerable),
        "wrongly_silent": _share(sum(is_silent for is_silent, _ in answerable), len(answerable)),
        "evidence_stays": _share(sum(stays for _, stays in answerable), len(answerable)),
    }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, _DIGITS) if whole else None
