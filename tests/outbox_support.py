"""What the tests of the outbox share: messages, extractors that follow a script, and looking at what they made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import Any

from inference_core import AgentMemoryStoreService
from inference_core.clock import Clock
from inference_core.effects import run
from inference_core.ingestion.undo import undo_changes
from inference_core.ingestion.worker import BatchReport, Pipeline
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, KnownMemory, Role
from inference_core.outbox.outbox import Claim, Limits, Outbox, Partition
from inference_core.services.operations.scope import MemoryScope

ADA = Partition("ada")
Script = Callable[[Sequence[ConversationMessage], Sequence[KnownMemory]], Extraction]


def said(
    text: str, *, session: str | None = "s", role: Role = Role.USER, name: str | None = None
) -> ConversationMessage:
    """A message that the user said; its id is its text unless it has a name."""
    return ConversationMessage(session_id=session, role=role, text=text, id=name or text)


def word_for_word(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
    """A memory a message, with the message's text."""
    names = [(message, message.id) for message in messages]
    return Extraction([Candidate(content=one.text, message_ids=(name,) if name else ()) for one, name in names])


class Scripted:
    """An Extractor that follows ``script``. ``asked`` has the texts of each call; what the script raises is raised."""

    def __init__(self, script: Script = word_for_word) -> None:
        self.script = script
        self.asked: list[list[str]] = []
        self.offered: list[list[KnownMemory]] = []
        self._lock = threading.Lock()

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        with self._lock:
            self.asked.append([message.text for message in messages])
            self.offered.append(list(offered))
        return self.script(messages, offered)


def candidates(*given: Candidate) -> Script:
    """A script that always gives these."""
    return answering(Extraction(list(given)))


def answering(extraction: Extraction) -> Script:
    """A script that always gives this one."""
    return lambda messages, offered: extraction


def service_on(store: Any, clock: Clock | None = None, **options: Any) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(store, clock=clock, timeout=None, **options)


def pipeline_on(store: Any, script: Script | Scripted, clock: Clock | None = None, **limits: Any) -> Pipeline:
    """The way from the outbox of ``store`` into its memory."""
    extractor = script if isinstance(script, Scripted) else Scripted(script)
    return Pipeline(service_on(store, clock).scope, extractor, limits=Limits(**limits))


def put(outbox: Outbox, *messages: ConversationMessage, partition: Partition = ADA) -> int:
    return run(outbox.put(partition, messages))


def is_listed(outbox: Outbox, partition: Partition = ADA) -> bool:
    """Whether a row says that ``partition`` has messages."""
    return partition in run(outbox.partitions())


async def claiming(outbox: Outbox, partition: Partition = ADA) -> Claim | None:
    """A batch that was ready and is claimed now, if there is one."""
    found = await outbox.next_batch(partition)
    return None if found is None else await outbox.claim(found)


def step(pipeline: Pipeline, partition: Partition = ADA) -> BatchReport:
    """Works on one batch."""
    return run(pipeline.process(partition))


def undone(scope: MemoryScope, user: str, **chosen: Any) -> int:
    """Undoes a job or a session; how many memories were removed."""
    return len(run(undo_changes(scope, user, **chosen)).removed)


def contents(store: Any, user: str = "ada", agent: str | None = None) -> list[str]:
    """What is remembered of the user, also what does not hold any more."""
    documents, _ = AgentMemoryStoreService(store, agent_name=agent, timeout=None).sync.list_memories(user, limit=None)
    return sorted(document.content for document in documents)
