"""Requests and responses of the routes, with the names of the service's arguments and of stored memories."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from inference_core.lifecycle.forgetting import DEFAULT_BELOW, ForgettingReport
from inference_core.memory.record import DEFAULT_IMPORTANCE, PendingMemory, RecalledMemories
from inference_core.memory.text import MAX_CONTENT_BYTES
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.memory.wire import AS_CATEGORY, AS_TYPE, Given, Memory, memories_of
from inference_core.outbox import outbox as queue
from inference_core.server.problems import Problem
from inference_core.services.operations.delete import ForgottenMemory
from inference_core.services.operations.messages import TIMESTAMP
from inference_core.services.operations.prompt_context import DEFAULT_MAX_MEMORIES, DEFAULT_MAX_TOKENS
from inference_core.services.operations.recall import MAX_DIVERSITY, MAX_RESULTS
from inference_core.services.operations.scope import MAX_TAGS

MAX_PAGE = 200
MAX_QUERY = 16_384
Tags = Annotated[list[str], Field(max_length=MAX_TAGS)]
Share = Annotated[float, Field(ge=0, le=1)]
Kind = Annotated[MemoryType, AS_TYPE]
Category = Annotated[MemoryCategory, AS_CATEGORY]


class Body(Given):
    """A request's body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class NewMemory(Body):
    """A memory to save. ``origin`` says who said it: text of a tool, a document or the web is trusted less."""

    content: str = Field(max_length=MAX_CONTENT_BYTES, description="The text.")
    memory_type: Kind = MemoryType.GENERAL
    category: Category | None = Field(None, description="By default that of the type.")
    topic: str | None = Field(None, description="A short label.")
    session_id: str | None = Field(None, description="The conversation that the memory belongs to.")
    tags: Tags = Field([])
    importance: Share = DEFAULT_IMPORTANCE
    pinned: bool = Field(False, description="Always in the prompt's profile, and never forgotten.")
    extra_metadata: dict[str, Any] | None = Field(None, description="Your own JSON data.")
    origin: Origin = Origin.APPLICATION
    valid_from: datetime | None = Field(None, description="When it happened or became true.")
    expires_at: datetime | None = Field(None, description="From this time on, it is not found.")

    def arguments(self) -> dict[str, Any]:
        """The arguments of the service's ``save_memory``."""
        return self.model_dump(exclude={"origin"}) | {"source": MemorySource(origin=self.origin)}


class MemoryChange(Body):
    """The fields of a memory to change; what is left out or null stays."""

    content: str | None = Field(None, max_length=MAX_CONTENT_BYTES)
    memory_type: Kind | None = None
    category: Category | None = None
    topic: str | None = Field(None, description='"" removes it.')
    tags: Tags | None = Field(None, description="Replaces all tags.")
    importance: Share | None = None
    pinned: bool | None = None
    extra_metadata: dict[str, Any] | None = Field(None, description="Merged into what is there.")
    origin: Origin = Origin.APPLICATION
    expires_at: datetime | Literal["never"] | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of the service's ``update_memory``."""
        return self.model_dump(exclude={"origin"}) | {"source": MemorySource(origin=self.origin)}


class Question(Body):
    """What to find, and among which memories."""

    query: str = Field("", max_length=MAX_QUERY, description="A question or keywords; blank: the newest memories.")
    k: int | None = Field(None, ge=1, le=MAX_RESULTS, description="How many memories at most.")
    memory_type: Kind | None = None
    category: Category | None = None
    sort_by_time: bool = False
    explain: bool = Field(False, description="Adds the parts of each score, and what was left out and why.")
    max_characters: int | None = Field(None, ge=1, description="Of all contents together.")
    diversity: float = Field(0.0, ge=0, le=MAX_DIVERSITY)
    backfill: bool = Field(False, description="Adds the newest other memories if fewer than k match.")
    as_of: datetime | None = Field(None, description="What was true at this time.")
    ignore_session: bool = False
    links: bool | None = None
    tags: Tags = Field([], description="Only memories that have all of these.")
    session_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    min_relevance: Share | None = Field(None, description="Leave out less relevant ones; null: the server's setting.")


class SavedMemory(Memory):
    """A memory that was saved. ``was_stored``: it had been saved before. ``redacted``: kinds of secrets left out."""

    was_stored: bool = False
    redacted: list[str] = Field([])


class MemoryList(BaseModel):
    """A page of memories, the newest first. Send ``next_cursor`` as ``cursor`` for the next one; null: the last."""

    memories: list[Memory]
    next_cursor: str | None
    total: int = Field(description="How many match in all.")


class LeftOut(BaseModel):
    """A memory that a search dropped, and why."""

    memory: Memory
    reason: str


class Found(BaseModel):
    """The memories that a search found, the best first."""

    memories: list[Memory]
    left_out: list[LeftOut] = []
    by_meaning: bool = Field(default=False, description="Whether meaning was compared, not only words.")

    @classmethod
    def of(cls, recalled: RecalledMemories) -> Found:
        """The result for a response."""
        dropped = [LeftOut(memory=Memory.of(document), reason=reason) for document, reason in recalled.left_out]
        return cls(memories=memories_of(recalled), left_out=dropped, by_meaning=recalled.by_meaning)


class Status(BaseModel):
    """Whether the server works."""

    status: Literal["ok"] = "ok"


class Version(BaseModel):
    """The package's version."""

    version: str


class NewMemories(Body):
    """Memories to save together."""

    memories: list[NewMemory] = Field(min_length=1, max_length=500)


class Saved(BaseModel):
    """What became of one memory of several: its id, or the problem with its status."""

    status: int
    id: str | None = None
    redacted: list[str] = []
    problem: Problem | None = None


class SavedMemories(BaseModel):
    """What became of each memory, in their order."""

    results: list[Saved]


class Erased(BaseModel):
    """A memory was erased; ``derived`` are the ids of memories that were made from it and went with it."""

    derived: list[str]


class Count(BaseModel):
    """How many."""

    count: int


class Added(Count):
    """How many messages were new."""

    skipped: dict[str, int] = Field(description="What was left out, by reason, such as pictures where no model is set.")


class History(BaseModel):
    """Versions of a memory, the oldest first."""

    memories: list[Memory]


class Profile(BaseModel):
    """What agents are told about a user first, as one text, one memory a line; ``more`` memories are left out."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    more: int


class ProfileEdit(Body):
    """An edited profile, and the ``text`` of the `Profile` that it was made from."""

    text: str
    before: str
    origin: Origin = Origin.APPLICATION


class ProfileChange(BaseModel):
    """A memory that was saved (``before`` null), changed, or deleted (``after`` null)."""

    model_config = ConfigDict(from_attributes=True)

    memory_id: str
    before: str | None
    after: str | None


class ProfileChanges(BaseModel):
    """What an edit of a profile has changed."""

    changes: list[ProfileChange]


class Forgotten(BaseModel):
    """A memory that can be restored, when it was deleted or forgotten, and why; ``until`` null: as the policy says."""

    memory: Memory
    forgotten_at: datetime
    reason: str
    until: datetime | None

    @classmethod
    def of(cls, memory: ForgottenMemory) -> Forgotten:
        """The memory for a response."""
        return cls(
            memory=Memory.of(memory.document),
            forgotten_at=memory.forgotten_at,
            reason=memory.reason,
            until=memory.until,
        )


class ForgottenList(BaseModel):
    """What can be restored."""

    memories: list[Forgotten]


class Receipts(BaseModel):
    """A page of receipts, as `Receipt.to_value` describes them."""

    receipts: list[dict[str, Any]]
    next_cursor: str | None


class Reasons(Receipts):
    """Where a memory comes from; ``removed`` if it is gone and can be restored."""

    memory: Memory | None
    removed: Forgotten | None
    earlier: list[Memory]


class ContextQuery(Body):
    """What a prompt is about, and what it may hold."""

    query: str | None = Field(None, max_length=MAX_QUERY, description="What the user says; null: the newest memories.")
    include_types: list[Kind] | None = Field(None, max_length=len(MemoryType))
    include_categories: list[Category] | None = Field(None, max_length=len(MemoryCategory))
    max_memories: int = Field(DEFAULT_MAX_MEMORIES, ge=1, le=MAX_RESULTS)
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=1, le=1_000_000)


class Context(BaseModel):
    """A block for a prompt. Its texts are escaped."""

    context: str


class Message(Given):
    """One message of a conversation, in the forms of LangChain and of OpenAI's API, with any other fields of theirs.

    Only the texts of users, assistants and tools are kept. What came besides text marks the session, which is then
    trusted less: other messages, parts and fields.
    """

    model_config = ConfigDict(extra="allow")

    role: Literal["user", "human", "assistant", "ai", "tool", "function", "system", "developer"]
    content: (
        Annotated[str, Field(max_length=200_000)] | Annotated[list[str | dict[str, Any]], Field(max_length=500)]
    ) = Field("", description="Text, or content parts; null if there are only tool calls.")
    name: str | None = Field(None, max_length=512, description="Of a user message: who said it, if not the user.")
    outside: bool = Field(
        False, description="It held more than its text, such as a file or a citation, so its session is trusted less."
    )
    id: str | None = Field(None, min_length=1, max_length=255, description="Your id; it is added only once.")
    timestamp: datetime | None = Field(None, description="When it was said; by default now.")

    def told(self) -> dict[str, Any]:
        """The message as LangChain takes it."""
        fields = self.model_dump(exclude={"timestamp", "outside"}, exclude_none=True)
        said = {TIMESTAMP: self.timestamp.isoformat()} if self.timestamp else {}
        outside = {"outside": "yes"} if self.outside else {}  # a key that no harmless message has
        call = {"tool_call_id": ""} if self.role == "tool" else {}
        return {**call, **fields, **said, **outside}


class Messages(Body):
    """Messages in order. Those of a session are processed together."""

    messages: list[Message] = Field(min_length=1, max_length=500)
    session_id: str | None = None


class Statistics(BaseModel):
    """Figures about a user's memories and the jobs that made them; see `MemoryStatistics`."""

    model_config = ConfigDict(extra="allow")

    memories: int
    by_type: dict[str, int]
    by_age: dict[str, int]
    by_week: dict[str, int]
    by_month: dict[str, int]
    over: int
    used: int
    never_used: int
    forgotten: int


class ForgettingRequest(Body):
    """What to forget; limits are by memory type, or for all types under "all"."""

    expired: bool = True
    half_life_days: float | None = Field(None, gt=0)
    below: Share = DEFAULT_BELOW
    max_memories: dict[str, Annotated[int, Field(ge=0)]] = Field({})
    max_tokens: dict[str, Annotated[int, Field(ge=0)]] = Field({})
    dry_run: bool = Field(False, description="Only report what would be forgotten.")


class Leaving(BaseModel):
    """A memory that is forgotten, and why."""

    id: str
    reason: str


class Forgetting(BaseModel):
    """What was forgotten; ``kept`` was used meanwhile, ``erased`` can no longer be restored."""

    forgotten: list[Leaving]
    kept: list[str]
    erased: list[str]
    remaining: int

    @classmethod
    def of(cls, report: ForgettingReport) -> Forgetting:
        """The report for a response."""
        return cls(
            forgotten=[
                Leaving(id=candidate.record.id, reason=candidate.reason.value) for candidate in report.forgotten
            ],
            kept=report.kept,
            erased=report.erased,
            remaining=report.remaining,
        )


class Pending(BaseModel):
    """A memory that waits for the user, and those that end if it is approved."""

    memory: Memory
    proposed_at: datetime
    expires_at: datetime
    why: str
    ends: list[Memory]

    @classmethod
    def of(cls, pending: PendingMemory) -> Pending:
        """The memory for a response."""
        return cls(
            memory=Memory.of(pending.document),
            proposed_at=pending.proposed_at,
            expires_at=pending.expires_at,
            why=pending.why,
            ends=memories_of(pending.ends),
        )


class PendingList(BaseModel):
    """What waits for the user, the newest first."""

    pending: list[Pending]


class Approval(Body):
    """``edit``: the new text of the memory."""

    edit: str | None = Field(None, max_length=MAX_CONTENT_BYTES)


class Rejection(Body):
    """``why``: the reason, which is kept."""

    why: str | None = Field(None, max_length=MAX_CONTENT_BYTES)


class User(BaseModel):
    """A user, and how many memories they have."""

    user_id: str
    memories: int


class Users(BaseModel):
    """A page of users by id."""

    users: list[User]
    next_cursor: str | None


class Queue(BaseModel):
    """How many conversations and messages wait, for how long the oldest (seconds), and how many messages failed."""

    model_config = ConfigDict(from_attributes=True)

    partitions: int
    waiting: int
    oldest_s: float
    dead: int


class DeadLetter(BaseModel):
    """A message that was given up, and why."""

    key: str
    user_id: str
    text: str
    reason: str
    tries: int

    @classmethod
    def of(cls, message: queue.DeadMessage) -> DeadLetter:
        """The message for a response."""
        return cls(
            key=message.key,
            user_id=message.partition.user_id,
            text=message.text,
            reason=message.reason,
            tries=message.tries,
        )


class DeadLetters(BaseModel):
    """The messages that were given up, the newest first."""

    dead: list[DeadLetter]


class Letters(Body):
    """Which failed messages; null: all."""

    keys: list[str] | None = None


class ManyMemories(Body):
    """Memories that a job saves."""

    memories: list[NewMemory] = Field(min_length=1, max_length=10_000)


class Erasure(Body):
    """Whether to permanently erase everything of the user, or only to count what there is."""

    dry_run: bool = Field(description="true: only count what there is.")
    reason: str = Field("", max_length=1_000, description="Is kept in the receipt.")


class Job(BaseModel):
    """Work that goes on after the response. ``result`` is there when it is done, ``problem`` when it has failed."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    kind: Literal["export", "forget", "save", "erase"]
    state: Literal["queued", "running", "done", "failed"]
    done: int = Field(description="How many memories it has been through.")
    total: int | None = Field(description="Of how many, if that is known.")
    created_at: datetime
    updated_at: datetime
    result: dict[str, Any] | None = Field(
        description="Of a forgetting what POST /v1/forget returns, of an erasure its receipt, else counts."
    )
    problem: Problem | None


class JobList(BaseModel):
    """The user's jobs of the last day, the newest first."""

    jobs: list[Job]
