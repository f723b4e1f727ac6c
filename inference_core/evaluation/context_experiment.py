"""What reaches the prompt of each case: with the context engineer, and as the plain best of the same recall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from inference_core.context.engineer import ContextEngineer
from inference_core.context.items import AssembledContext, ContextItem
from inference_core.evaluation.context_cases import Case, CaseSet, Memories, Mode
from inference_core.evaluation.context_sets import LOCOMO
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.datasets import ALL
from inference_core.evaluation.systems import Advance, LangGraphInMemory, MemoryService, Recall, dated
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

DEPTH: Final = 20
"""How many memories recall gives to both."""
MAX_TOKENS: Final = 100_000
"""More than the memories take: what a budget leaves out is no merit of the engineer."""
_SOURCE: Final = "memory"


class Fate(IntEnum):
    """What becomes of a line that recall found."""

    GONE = 0
    MARKED = 1
    PLAIN = 2


@dataclass(frozen=True, slots=True)
class Candidates:
    """What recall found for a case, the best first, as items with the ids of the case's memories.

    ``elsewhere``: the texts that LangGraph's store found, by id; None where it was not asked.
    """

    case: Case
    now: datetime
    items: tuple[ContextItem, ...]
    elsewhere: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A memory, or several that say the same, that is needed (``mode`` None) or bad, and whether it reaches the prompt.

    ``is_external``: it came from a tool, a document or the web.
    """

    mode: Mode | None
    is_external: bool
    fate: Fate


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: the lines that matter, what the prompt cost before and after, and LangGraph's needed lines and cost.

    ``judged``: of each memory that recall found the relevance, and whether it is needed.
    """

    case: Case
    lines: tuple[Line, ...]
    tokens_before: int
    tokens_after: int
    is_uncertain: bool
    judged: tuple[tuple[float, bool], ...]
    elsewhere: tuple[int, int] | None


async def candidates(
    given: CaseSet, split: str, embeddings: str | None, advance: Advance, depth: int = DEPTH
) -> list[Candidates]:
    """What recall finds for the cases of the ``tune`` or ``test`` half, or all.

    LoCoMo's questions are put to LangGraph's store too.

    Raises what the store and the embedding model raise.
    """
    found: list[Candidates] = []
    with closing(MemoryService(embeddings)) as memory:
        for user in given.users:
            recall = await memory.remember(user.id, user.turns, advance)
            langgraph = await _langgraph(given, user, embeddings)
            for case in user.cases:
                if split in (ALL, case.half):
                    items = tuple(_item(name, document) for name, document in await recall(case.question, depth))
                    found.append(Candidates(case, user.now, items, await _texts(langgraph, user, case, depth)))
                advance()
    return found


def assembled(found: Candidates, engineer: ContextEngineer) -> Outcome:
    """What the engineer makes of what recall found for a case."""
    context = engineer.assemble(found.items, query=found.case.question, now=found.now, zone=UTC, max_tokens=MAX_TOKENS)
    fates = _fates(context)
    needed = {name for same in found.case.needed for name in same}
    return Outcome(
        case=found.case,
        lines=tuple(_lines(found, fates)),
        tokens_before=_tokens(found.items),
        tokens_after=_tokens([item for item in found.items if item.id in fates]),
        is_uncertain=not fates,
        judged=tuple((item.relevance, item.id in needed) for item in found.items if item.relevance is not None),
        elsewhere=None if found.elsewhere is None else _elsewhere(found.case, found.elsewhere),
    )


def _fates(context: AssembledContext) -> dict[str, Fate]:
    """The fate of each id that reaches the prompt."""
    marked = [*context.untrusted, *(item for group in context.conflicts for item in group)]
    plain = [item for section in context.sections.values() for item in section]
    return {item.id: Fate.PLAIN for item in plain} | {item.id: Fate.MARKED for item in marked}


def _lines(found: Candidates, fates: Mapping[str, Fate]) -> Iterator[Line]:
    """Of what says the same the best placed line is needed, the others are confusion."""
    grouped: set[str] = set()
    for same in found.case.needed:
        group = sorted((item for item in found.items if item.id in same), key=lambda one: -fates.get(one.id, Fate.GONE))
        for place, item in enumerate(group):
            yield _line(item, Mode.CONFUSION if place else None, fates)
            grouped.add(item.id)
    for item in found.items:
        mode = None if item.id in grouped else found.case.mode_of(item.id)
        if mode is not None:
            yield _line(item, mode, fates)


def _line(item: ContextItem, mode: Mode | None, fates: Mapping[str, Fate]) -> Line:
    return Line(mode, item.trust <= Trust.EXTERNAL, fates.get(item.id, Fate.GONE))


def _tokens(items: Sequence[ContextItem]) -> int:
    """What the lines cost, each with its date."""
    return sum(text_tokens(f"  - [{item.happened_at:%Y-%m-%d}] {item.text}") for item in items)


def _item(name: str, document: MemoryStoreDocument) -> ContextItem:
    moment = document.created_at or datetime.min.replace(tzinfo=UTC)
    namespace = ("user", document.memory_category or "")
    record = MemoryRecord.from_value(
        document.value, memory_id=name, namespace=namespace, stored_at=moment, updated_at=document.updated_at or moment
    )
    return ContextItem.of(record, source=_SOURCE, relevance=document.relevance, score=document.score or 0.0)


def _elsewhere(case: Case, texts: Mapping[str, str]) -> tuple[int, int]:
    needed = sum(any(name in texts for name in same) for same in case.needed)
    return needed, sum(text_tokens(f"  - {text}") for text in texts.values())


async def _langgraph(given: CaseSet, user: Memories, embeddings: str | None) -> Recall | None:
    """LangGraph's store with the user's memories, where it is asked: for LoCoMo, and if there is a model."""
    if given.name != LOCOMO or embeddings is None:
        return None
    return await LangGraphInMemory().ingest(Conversation(user.id, user.turns, (), 0), lambda: None)


async def _texts(recall: Recall | None, user: Memories, case: Case, depth: int) -> dict[str, str] | None:
    """What LangGraph's store finds for a case, by id."""
    if recall is None:
        return None
    texts = {turn.id: dated(turn) for turn in user.turns}
    return {hit.id: texts[hit.id] for hit in await recall(case.question, depth)}
