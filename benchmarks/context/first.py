"""What is told of few memories and of many: the one that recall ranks first, and nothing if the question is unrelated.

Rules, preferences and pinned memories are told whatever is asked, by the ContextBuilder also goals, so they do not
count as an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from time import sleep
from typing import Final

from langchain_core.embeddings import Embeddings

from inference_core.agents.middleware.memory import DEFAULT_ENGINEER
from inference_core.context.items import STANDING
from inference_core.context.render import neutral_line
from inference_core.effects import run
from inference_core.embeddings.factory import make_embedder
from inference_core.evaluation.conversations import Conversation, ConversationQuestion
from inference_core.memory.types import MemoryType
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.context_builder import ContextBuilder
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.stores.factory import open_store

SIZES: Final = (1, 2, 3, 5, 10, 100)
"""How many memories the users have."""
WAYS: Final = ("middleware", "format_context_for_prompt", "ContextBuilder")
UNRELATED: Final = Path(__file__).with_name("unrelated.txt")
"""Questions that no memory has to do with, one a line."""
UNRELATED_EACH: Final = 2
"""So many of them are put to each user."""
_SEED: Final = 20_261
_POLL_S: Final = 0.01


def told(
    users: Sequence[Conversation], embeddings: str | None, sizes: Iterable[int] = SIZES
) -> dict[int, dict[str, dict[str, float]]]:
    """By the number of a user's memories, for each of WAYS: how much is told, as shares.

    ``first``: of the questions whose answer recall ranks first, those in which it is told. ``silent``: of unrelated
    questions, those in which nothing is told. Each question is put to a user who has its evidence and, drawn
    by a fixed seed, some of the other memories. Raises what the store and the embedding model raise.
    """
    embedder = make_embedder(embeddings)
    model = None if embedder is None else embedder.model  # loaded once
    return {size: _of_size(users, size, model) for size in sizes}


def _of_size(users: Sequence[Conversation], size: int, model: Embeddings | None) -> dict[str, dict[str, float]]:
    first: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    ranked_first = asked = 0
    unrelated = UNRELATED.read_text("utf-8").splitlines()
    with closing(open_store("memory://", embeddings=model)) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        for user in users:
            for number, question in enumerate(user.questions):
                if not question.evidence:
                    continue
                name = f"{user.id}-{number}"
                _remember(service, user, question, size, name)
                hits = service.sync.recall_memories(name, question.text, 1)
                if hits and hits[0].content in {turn.text for turn in user.turns if turn.id in question.evidence}:
                    ranked_first += 1
                    first.update(_ways(service, name, question.text, [hits[0].content]))
                answers = [turn.text for turn in user.turns if turn.memory_type not in STANDING]
                goals = {turn.text for turn in user.turns if turn.memory_type == MemoryType.GOALS}
                for _ in range(UNRELATED_EACH):
                    ways = _ways(service, name, unrelated[asked % len(unrelated)], answers, goals)
                    silent.update({*WAYS}.difference(ways))
                    asked += 1
    return {way: {"first": first[way] / max(ranked_first, 1), "silent": silent[way] / max(asked, 1)} for way in WAYS}


def _remember(
    service: AgentMemoryStoreService, user: Conversation, question: ConversationQuestion, size: int, name: str
) -> None:
    """Saves ``size`` of a user's memories, the question's evidence first, for a user called ``name``."""
    needed = [turn for turn in user.turns if turn.id in question.evidence]
    others = [turn for turn in user.turns if turn.id not in question.evidence]
    drawn = Random(f"{_SEED} {name}").sample(others, len(others))
    for turn in [*needed, *drawn][:size]:
        service.sync.save_memory(name, turn.text, turn.memory_type, valid_from=turn.at)
    settle(service)


def settle(service: AgentMemoryStoreService) -> None:
    """Waits until all texts have vectors: on a busy machine, some get theirs after they were saved."""
    engine = service.scope.engine
    while engine.embedder is not None and engine.backend.pending(engine.embedder.fingerprint, 1):
        sleep(_POLL_S)


def _ways(
    service: AgentMemoryStoreService,
    user: str,
    question: str,
    contents: Collection[str],
    listed: Collection[str] = (),
) -> list[str]:
    """The ways by which any of ``contents`` is told; the ContextBuilder gives what is ``listed`` whatever is asked."""
    turn = run(build_turn_context(service.scope, user, question, TurnOptions(engineer=DEFAULT_ENGINEER)))
    texts = (
        f"{turn.profile.text}\n{turn.block}",
        service.sync.format_context_for_prompt(user, question),
        ContextBuilder(service, deadline=None).sync.build(user, question).text,
    )
    answers = (contents, contents, [content for content in contents if content not in listed])
    return [
        way
        for way, text, found in zip(WAYS, texts, answers, strict=True)
        if any(neutral_line(content) in text for content in found)
    ]
