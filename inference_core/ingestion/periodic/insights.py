"""Higher-level memories: a model draws one from a group of memories.

It cites its sources, and ends when one of them no longer holds or was changed. Memories form a group by topic, by the
entities they are about, or by words that few others have. The same memories give the same groups, and a memory is in
one group at most. What is derived here and in summaries is cited, checked and written by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import partial
from itertools import islice
from typing import Any, Final, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel, ConfigDict, Field

from inference_core.asking import MODEL_TIMEOUT_S, chat_models
from inference_core.context.render import neutral_line
from inference_core.errors import InvalidMemory, ModelError
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.extraction.extractor import PROMPTS, Asking, answer_of, shown, speaker, stamp, structured
from inference_core.ingestion.extraction.schema import CONTENT, MAX_CONTENT, Entry, first_of, texts_of
from inference_core.memory.record import CITES, INSIGHT, JOB, MemoryRecord, why_invalid
from inference_core.memory.text import canonical_text, digest_of, encode_json, mapping_field
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.memory.types import MemoryCategory, MemoryType, get_category_for_type
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, Role, brings_outside, mended
from inference_core.outbox.outbox import Claim, Outbox, Partition
from inference_core.retrieval.analysis import analyze
from inference_core.services.operations.admission import has_to_wait
from inference_core.services.operations.recall import newest
from inference_core.services.operations.scope import MemoryScope, UserId, put_of, record_of
from inference_core.stores.backend import Put, Write

_MAX_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Citable:
    """What a derived memory may cite: a message, a memory, or a session's earlier summary, which has no id."""

    text: str
    at: datetime
    origin: Origin
    trust: Trust
    role: Role | None = None
    author: str | None = None
    memory_id: str | None = None
    message_id: str | None = None

    @classmethod
    def of_memory(cls, record: MemoryRecord, at: datetime | None = None) -> Citable:
        """A memory as a source, dated when it happened unless ``at`` is given."""
        return cls(
            text=record.content,
            at=at or record.happened_at,
            origin=record.source.origin,
            trust=record.trust,
            memory_id=record.id,
        )

    @classmethod
    def of_message(cls, message: ConversationMessage, at: datetime) -> Citable:
        """A message as a source, dated ``at``; external once text from outside is in its conversation.

        A model words what is derived from it, and may repeat that text whatever it cites.
        """
        is_others = message.role is Role.USER and brings_outside(message)
        origin = Origin.DOCUMENT if is_others else Origin.TOOL if message.is_marked else message.origin
        return cls(
            text=message.text,
            at=at,
            origin=origin,
            trust=MemorySource(origin=origin).trust,
            role=message.role,
            author=message.author,
            message_id=message.id,
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of a request, the name by which a model may cite it, and the sources that the name stands for."""

    name: str
    line: str
    cited: Sequence[Citable]


def lowest_origin(sources: Sequence[Citable]) -> Origin:
    """The origin of a memory derived from ``sources``: that of an external source if there is one, else the agent."""
    external = [cited.origin for cited in sources if cited.trust is Trust.EXTERNAL]
    if not external:
        return Origin.AGENT
    return next((origin for origin in external if MemorySource(origin=origin).trust is Trust.EXTERNAL), Origin.TOOL)


def shown_source(name: str, source: Citable, zone: tzinfo, most: int) -> Shown:
    """``source`` as a line of a request, its text cut to ``most`` characters."""
    kind = "message" if source.role else "memory" if source.memory_id else "earlier_summary"
    by = f" {speaker(source.role, source.author)}" if source.role else ""
    text = neutral_line(source.text, most)
    return Shown(name, f'<{kind} id="{name}"{by} at="{stamp(source.at, zone)}">{text}</{kind}>', [source])


def request_for(lines: Sequence[Shown], tag: str, instructions: str, now: datetime, zone: tzinfo) -> list[BaseMessage]:
    """The messages that ask a model about ``lines``, which an element ``tag`` encloses as data."""
    body = [f"<now>{stamp(now, zone)}</now>", f"<{tag}>", *(f"  {one.line}" for one in lines), f"</{tag}>"]
    return [SystemMessage(instructions), HumanMessage("\n".join(body))]


def short_text(given: Any, most: int) -> str:
    """``given`` as the text of a memory of at most ``most`` characters. Raises InvalidMemory."""
    if isinstance(given, str) and len(given) > most:
        raise InvalidMemory(f"it has {len(given)} characters, and {most} are enough")
    return canonical_text(mended(given) if isinstance(given, str) else given, max_bytes=most * 4)


def text_and_cited(
    entry: Entry, name: str, lines: Sequence[Shown], most: int, min_cited: int = 1
) -> tuple[str, list[Citable]]:
    """The text of an answer, preferably under ``name``, and the sources that it cites of ``lines``; ignores other ids.

    Raises InvalidMemory for a text of more than ``most`` characters and for fewer than ``min_cited`` cited lines.
    """
    text = short_text(first_of(entry, (name, *CONTENT)), most)
    offered: Mapping[str, Sequence[Citable]] = {one.name: one.cited for one in lines}
    named = (text.strip("[]<>\"' ").casefold() for text in islice(texts_of(entry.get("sources")), _MAX_NAMED))
    cited = dict.fromkeys(name for name in named if name in offered)
    if len(cited) < min_cited:
        raise InvalidMemory(
            f"sources names {len(cited) or 'none'} of the listed ids, and {min_cited} or more are needed"
        )
    return text, [source for name in cited for source in offered[name]]


def derived_record(
    scope: MemoryScope, claim: Claim, kind: MemoryType, content: str, source: MemorySource, metadata: Mapping[str, Any]
) -> MemoryRecord:
    """A memory that the job of ``claim`` derives; its id names the job, so that a repetition finds it again."""
    category = get_category_for_type(kind.value)
    content = scope.engine.guard.text(content)  # before an id is made of it
    namespace = scope.namespaces.namespace_for(claim.partition.user_id, category)
    now = scope.clock.now()
    return MemoryRecord(
        id=digest_of([*namespace, source.tool, claim.job_id, content]),
        content=content,
        memory_type=kind,
        category=category,
        namespace=namespace,
        created_at=now,
        updated_at=now,
        extra_metadata={JOB: claim.job_id, **metadata},
        source=source,
        trust=source.trust,
    )


async def write_derived(
    scope: MemoryScope, changes: MemoryChanges, record: MemoryRecord, replaced: Sequence[MemoryRecord]
) -> None:
    """Adds ``record`` and ends those ``replaced`` in its favour, or has it wait. Raises InvalidMemory, StoreError."""
    put_of(record)  # raises now for what cannot be written, while the caller can note the problem
    if has_to_wait(record, scope.confirm):
        await changes.propose(scope, record, replaced)
        return
    (row,) = await scope.engine.get([(record.namespace, record.id)])
    successor = record if row is None else record_of(row)  # else an earlier attempt of this job wrote it
    ended = [record for record in replaced if record.id != successor.id]
    supersedes = dict.fromkeys([*successor.supersedes, *(record.id for record in ended)])
    changes.add(replace(successor, supersedes=tuple(supersedes)))
    for one in ended:
        now = record.created_at
        changes.set(replace(one, valid_to=now, superseded_by=successor.id, updated_at=now))
        changes.superseded.append(one.id)


MAX_MEMORIES: Final = 1_000
"""How many of a user's newest semantic memories are read."""
MAX_GROUPS: Final = 5
"""How many groups a model is asked about in one run; others wait for the next."""
_GROUP: Final = "group"
_SAID: Final = "said"
"""Metadata name: a digest of the sources' texts, by which a change of them is noticed."""
_ANSWERED: Final = "answered"
MIN_MEMBERS: Final = 3
MAX_MEMBERS: Final = 20
"""Of a topic with more memories the newest are taken; an entity or word that more memories share forms no group."""
_FEW: Final = 6
"""Among more memories than these, an entity or word that more than half of them share forms no group."""
_TOPIC, _ENTITY, _WORD = range(3)
_Key = tuple[int, str]
MAX_INSIGHT: Final = 500
"""Characters of a higher-level memory."""
MIN_CITED: Final = 2
INSIGHT_PROMPT: Final = PROMPTS["insight"]["prompt"]
"""What a good higher-level memory is; the rules of answering are appended."""


@dataclass(frozen=True, slots=True)
class Group:
    """``members`` that share ``name``: a topic, an entity or a word; the oldest first."""

    name: str
    members: Sequence[MemoryRecord]

    @property
    def fingerprint(self) -> str:
        """A digest of the members' ids and texts."""
        return digest_of([[record.id, record.content] for record in self.members])


def groups_of(records: Sequence[MemoryRecord]) -> list[Group]:
    """The groups among ``records``; those by topic first, then by entity, then by word, each the largest first."""
    ordered = sorted(records, key=lambda record: (record.created_at, record.id))
    sharing: dict[_Key, list[MemoryRecord]] = {}
    for record in ordered:
        keys: list[_Key] = [(_TOPIC, " ".join(record.topic.casefold().split()))] if record.topic else []
        entities = record.extra_metadata.get("entities")  # an application may store its own here, of any form
        for entity in cast("list[Any]", entities) if isinstance(entities, list) else []:
            name: Any = cast("dict[str, Any]", entity).get("name") if isinstance(entity, dict) else None
            if isinstance(name, str) and name.strip():
                keys.append((_ENTITY, " ".join(name.casefold().split())))
        for key in dict.fromkeys([*keys, *((_WORD, word) for word in analyze(record.content))]):
            sharing.setdefault(key, []).append(record)
    most = MAX_MEMBERS if len(ordered) <= _FEW else min(MAX_MEMBERS, len(ordered) // 2)
    groups: list[Group] = []
    taken: set[str] = set()
    for key in sorted(sharing, key=lambda key: (key[0], -len(sharing[key]), key[1])):
        if key[0] != _TOPIC and len(sharing[key]) > most:
            continue
        free = [record for record in sharing[key] if record.id not in taken][-MAX_MEMBERS:]
        if len(free) >= MIN_MEMBERS:
            groups.append(Group(key[1], free))
            taken.update(record.id for record in free)
    return groups


class HigherLevelMemory(BaseModel):
    """What several memories show together."""

    model_config = ConfigDict(extra="forbid")
    content: str = Field(max_length=MAX_INSIGHT, description="One sentence that makes sense on its own")
    sources: list[str] = Field(
        min_length=MIN_CITED, max_length=MAX_MEMBERS, description="Ids of the memories that show it, such as k1"
    )


class HigherLevelMemories(BaseModel):
    """At most one memory; an empty list if there is nothing to say."""

    model_config = ConfigDict(extra="forbid")
    memories: list[HigherLevelMemory] = Field(max_length=1)


Drawn = tuple[str, Sequence[Citable]]
"""What several memories show together, and those that it cites; "" for nothing."""


class ModelInsights:
    """Draws higher-level memories with the first of ``models`` that gives a usable answer; without models, none.

    Asks once per group. ``prompt`` says what a good higher-level memory is, ``timeout`` (s) limits each call.
    """

    def __init__(
        self,
        models: BaseChatModel | str | Sequence[BaseChatModel | str],
        *,
        prompt: str = INSIGHT_PROMPT,
        timeout: float | None = MODEL_TIMEOUT_S,
    ) -> None:
        self._models = [structured(model, HigherLevelMemories) for model in chat_models(models)]
        self.prompt = prompt
        self.timeout = timeout

    @property
    def has_model(self) -> bool:
        """Whether there is a model to ask."""
        return bool(self._models)

    async def draw(self, groups: Sequence[Group], now: datetime, zone: tzinfo) -> Extraction:
        """At most one candidate per group, its topic the group's name.

        The result's ``notes`` hold the fingerprints of the answered groups. Raises ModelError if no group was answered;
        if the models fail at a later group, the earlier answers are kept.
        """
        asking = Asking(self._models, self.timeout, PROMPTS["insight"]["repair"])
        instructions = f"{self.prompt}\n\n{PROMPTS['insight']['rules']}"
        candidates: list[Candidate] = []
        answered: dict[str, str] = {}
        for group in groups:
            sources = [Citable.of_memory(record) for record in group.members]
            lines = [shown_source(f"k{at}", source, zone, MAX_CONTENT) for at, source in enumerate(sources, 1)]
            request = request_for(lines, "memories", instructions, now, zone)
            try:
                text, cited = await asking.answered(request, partial(read_insight, lines), "a higher-level memory")
            except ModelError:
                if not answered:
                    raise
                break
            answered[group.name] = group.fingerprint
            if text:
                candidate = Candidate(
                    content=text,
                    memory_type=MemoryType.GENERAL,
                    topic=group.name,
                    origin=lowest_origin(sources),  # of all that the model read, not only of what it cites
                    cites=tuple(citable.memory_id or "" for citable in cited),
                )
                candidates.append(candidate)
        return asking.extraction(candidates, notes={"answered": answered})


def read_insight(lines: Sequence[Shown], answer: Any) -> tuple[Drawn, str]:
    """The first usable memory in an answer, or why none is usable. Never raises."""
    said = answer_of(answer)
    problems = list(said.problems)
    for entry in said.entries:
        try:
            return text_and_cited(entry, "content", lines, MAX_INSIGHT, MIN_CITED), ""
        except InvalidMemory as error:
            problems.append(str(error))
    nothing: Drawn = "", ()
    if said.is_empty and not problems:
        return nothing, ""
    return nothing, "; ".join(shown(problems[:3])) or "it holds no list of memories"


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is known of a user: semantic ``memories`` by id, and the higher-level memories drawn from them."""

    memories: Mapping[str, MemoryRecord]
    insights: Sequence[MemoryRecord]

    @property
    def orphans(self) -> list[MemoryRecord]:
        """Higher-level memories of which a source no longer holds or says something else; pinned ones never are."""
        return [
            record
            for record in self.insights
            if not record.pinned and self.said_by(record.cites) != record.extra_metadata.get(_SAID)
        ]

    @property
    def groups(self) -> list[Group]:
        """The groups that the semantic memories form."""
        return groups_of(list(self.memories.values()))

    def said_by(self, memory_ids: Sequence[str]) -> str:
        """A digest of what these memories say; an empty string if one of them no longer holds."""
        if not all(key in self.memories for key in memory_ids):
            return ""
        return digest_of([[key, self.memories[key].content] for key in sorted(memory_ids)])


class InsightWork:
    """Makes higher-level memories of groups that changed, and ends those whose sources did; never changes sources."""

    def __init__(self, outbox: Outbox, writer: ModelInsights, every_s: float) -> None:
        self._outbox = outbox
        self._writer = writer
        self._every = timedelta(seconds=every_s)

    async def extracted(self, scope: MemoryScope, claim: Claim) -> Extraction:
        """What a model draws from the groups that changed, at most MAX_GROUPS. Raises ModelError, StoreError."""
        found = await beliefs(scope, claim.partition.user_id)
        answered = await groups_answered(self._outbox, claim.partition)
        groups = changed_groups(found, answered) if self._writer.has_model else []
        if not groups:
            return Extraction(())
        return await self._writer.draw(groups[:MAX_GROUPS], scope.clock.now(), scope.zone)

    async def changes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> MemoryChanges:
        """Adds new ones, each of which supersedes those of its group; ends orphans. Raises StoreError."""
        changes = MemoryChanges(claim.job_id)
        found = await beliefs(scope, claim.partition.user_id)
        for candidate in extraction.candidates:
            said = found.said_by(candidate.cites)
            if not said:
                changes.problems.append("A memory that was cited does not hold any more")
                continue
            group = [record for record in found.insights if record.extra_metadata.get(_GROUP) == candidate.topic]
            source = MemorySource(origin=candidate.origin, tool=INSIGHT)
            metadata = {CITES: list(candidate.cites), _GROUP: candidate.topic, _SAID: said}
            try:
                content = canonical_text(mended(candidate.content), max_bytes=scope.max_content_bytes)
                record = derived_record(scope, claim, MemoryType.GENERAL, content, source, metadata)
                # If another job drew the same from the same unchanged sources, it is not written again.
                is_known = any(
                    record.content == content
                    and record.extra_metadata.get(_SAID) == said
                    and record.extra_metadata.get(JOB) != claim.job_id
                    for record in group
                )
                if not is_known:
                    await write_derived(scope, changes, record, [record for record in group if not record.pinned])
            except InvalidMemory as error:
                changes.problems.append(mended(str(error)))
        now = scope.clock.now()
        for orphan in found.orphans:
            if changes.get(orphan) is orphan:  # else it has just been superseded
                changes.set(replace(orphan, valid_to=now, updated_at=now))
        return changes

    async def completion_writes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> list[Write]:
        """The writes that complete the work; it is scheduled again if anything is left to check. Raises StoreError."""
        found = await beliefs(scope, claim.partition.user_id)
        asked = await groups_answered(self._outbox, claim.partition)
        names = {group.name for group in found.groups}
        answered = {**asked, **mapping_field(extraction.notes, _ANSWERED)}
        kept = {name: fingerprint for name, fingerprint in answered.items() if name in names}
        is_left = self._writer.has_model and changed_groups(found, kept)
        now = scope.clock.now()
        again = now + self._every if found.insights or extraction.candidates or is_left else None
        value = encode_json(kept, what="outbox")
        note = Put(namespace=claim.partition.state, key=_ANSWERED, value=value, updated_at=now)
        return [*self._outbox.completion_writes(claim, again), note]


async def groups_answered(outbox: Outbox, partition: Partition) -> Mapping[str, Any]:
    """The fingerprints of the groups that a model has answered for, by name. Raises StoreError."""
    (row,) = await outbox.engine.get([(partition.state, _ANSWERED)])
    return {} if row is None else row.value


async def beliefs(scope: MemoryScope, user_id: UserId) -> Beliefs:
    """The newest semantic memories of the user that hold, and older ones that insights cite. Raises StoreError."""
    namespaces = scope.namespaces.read_scopes(user_id, MemoryCategory.SEMANTIC)
    now = scope.clock.now()
    records = [record_of(row) for row in await newest(scope, namespaces, None, MAX_MEMORIES, now)]
    insights = [record for record in records if record.source.tool == INSIGHT]
    missing = {key for one in insights for key in one.cites} - {record.id for record in records}
    older = await scope.engine.get([(namespaces[0], key) for key in sorted(missing)])
    records += [record_of(row) for row in older if row and why_invalid(row.value, now) is None]
    return Beliefs({record.id: record for record in records if record.source.tool != INSIGHT}, insights)


def changed_groups(beliefs: Beliefs, answered: Mapping[str, Any]) -> list[Group]:
    """The groups that no model has answered for in their present state, or whose higher-level memory ends."""
    ended = {record.extra_metadata.get(_GROUP) for record in beliefs.orphans}
    return [group for group in beliefs.groups if answered.get(group.name) != group.fingerprint or group.name in ended]
