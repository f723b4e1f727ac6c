"""What tests of periodic work share: a user who says things, a worker by her side, and models that follow a script."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from outbox_support import Scripted, put, said, service_on, word_for_word

from inference_core.ingestion.periodic.insights import HigherLevelMemories, ModelInsights
from inference_core.ingestion.periodic.summaries import SUMMARY, ModelSummarizer, SessionSummary, Summarizer
from inference_core.ingestion.periodic.tasks import PeriodicWork
from inference_core.ingestion.worker import Pipeline, Worker
from inference_core.memory.record import MemoryStoreDocument
from inference_core.outbox.messages import Role
from inference_core.outbox.outbox import Limits, Outbox, Partition
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

QUIET = timedelta(minutes=30)
DAY = timedelta(days=1)


def summary(text: str = "They talked.", sources: Sequence[str] = ("s1",), **fields: Any) -> AIMessage:
    """An answer of a model that sums up."""
    given: dict[str, Any] = {"title": "Talk", "summary": text, "participants": ["user"], "sources": list(sources)}
    return call_tool(SessionSummary.__name__, **given | fields)


def insight(text: str | None = "Ada climbs whenever she can", sources: Sequence[str] = ("k1", "k2")) -> AIMessage:
    """An answer of a model that draws a higher-level memory; without a text, none."""
    entries = [] if text is None else [{"content": text, "sources": list(sources)}]
    return call_tool(HigherLevelMemories.__name__, memories=entries)


def summarizer(*turns: Any, **options: Any) -> ModelSummarizer:
    return ModelSummarizer([ScriptedChatModel(turns=turns)], **options)


def names_in(request: Sequence[BaseMessage]) -> list[str]:
    """The ids that a request lists."""
    return re.findall(r' id="(\w+)"', request[-1].text)


def citing_all(text: str = "All of it") -> Callable[[list[BaseMessage]], AIMessage]:
    """A turn that sums up whatever it is shown and cites all of that."""
    return lambda messages: summary(text, names_in(messages))


class Life:
    """What Ada says and remembers in ``store``, and a worker that is always there."""

    def __init__(
        self,
        store: Any,
        clock: FrozenClock,
        *,
        summarizer: Summarizer | None = None,
        insights: Sequence[Any] | None = None,
        outbox: Any = None,
        user: str = "ada",
        extractor: Any = None,
    ) -> None:
        self.store, self.clock, self.user = store, clock, user
        self.service = service_on(store, clock)
        self.model = ScriptedChatModel(turns=list(insights or ["-"]))
        writer = None if insights is None else ModelInsights([self.model] if insights else ())
        periodic = PeriodicWork(summarizer, writer, QUIET.total_seconds(), DAY.total_seconds())
        box = None if outbox is None else Outbox(outbox.engine, clock, Limits())
        self.pipeline = Pipeline(
            self.service.scope, extractor or Scripted(word_for_word), outbox=box, periodic=periodic
        )
        self.turns = 0

    def says(self, *texts: str, session: str | None = "s", role: Role = Role.USER, agent: str | None = None) -> None:
        """Said, and at once made memory."""
        numbers = range(self.turns + 1, self.turns + 1 + len(texts))
        named = zip(numbers, texts, strict=True)
        messages = [said(text, session=session, role=role, name=f"m{at}") for at, text in named]
        self.turns += len(texts)
        put(self.pipeline.outbox, *messages, partition=Partition(self.user, agent))
        self.works()

    def works(self, after: timedelta = timedelta()) -> Worker:
        """The worker looks ``after`` some time."""
        self.clock.advance(after)
        worker = Worker(self.pipeline)
        worker.drain()
        return worker

    def all(self, **chosen: Any) -> list[MemoryStoreDocument]:
        """What is remembered, also what does not hold any more, the newest first."""
        return self.service.sync.list_memories(self.user, limit=None, **chosen)[0]

    def summaries(self) -> list[MemoryStoreDocument]:
        return self.made_by(SUMMARY)

    def made_by(self, tool: str) -> list[MemoryStoreDocument]:
        return [one for one in self.all() if one.value["source"].get("tool") == tool]

    def holding(self, found: Sequence[MemoryStoreDocument]) -> list[str]:
        now = self.clock.now().isoformat()
        return [one.content for one in found if one.value.get("valid_to", "9") > now]
