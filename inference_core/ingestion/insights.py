"""InsightWork: higher-level memories of a user, citing those that they follow from, with which they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final, Protocol

from inference_core.drivers import Plan
from inference_core.errors import InvalidMemory
from inference_core.ingestion.candidates import Candidate, Extraction
from inference_core.ingestion.consolidation import JOB, Effects
from inference_core.ingestion.groups import Group, groups_of
from inference_core.ingestion.messages import mended
from inference_core.ingestion.outbox import Claim, Outbox
from inference_core.ingestion.partitions import Partition, digest
from inference_core.memory.fields import mapping_field, text_field
from inference_core.memory.record import CITES, MemoryRecord
from inference_core.memory.text import canonical_text, encode_json
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryCategory
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.recall import newest
from inference_core.services.operations.scope import MemoryScope, UserId, put_of, record_of
from inference_core.stores.backend import Put, Write

INSIGHT: Final = "insight"
"""What made a higher-level memory, as its source names it."""
MAX_MEMORIES: Final = 1_000
"""So many of a user's newest semantic memories are looked at."""
MAX_GROUPS: Final = 5
"""So many groups a model is asked about at once; others wait for the next time."""
_GROUP: Final = "group"
_SAID: Final = "said"
"""The name in a higher-level memory's metadata of what tells whether its sources say the same still."""
_ANSWERED: Final = "answered"


class InsightWriter(Protocol):
    """Draws higher-level memories from groups of memories."""

    @property
    def has_model(self) -> bool:
        """Whether it can."""
        ...

    def draw(self, groups: Sequence[Group], now: datetime, zone: tzinfo) -> Plan[Extraction]:
        """Plan: at most one candidate a group, its topic the group's name; ``notes`` has "answered".

        Raises ModelError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is known of a user: memories, the higher-level ones among them, and the groups that the others make."""

    memories: Mapping[str, MemoryRecord]
    insights: Sequence[MemoryRecord]

    @property
    def orphans(self) -> list[MemoryRecord]:
        """Higher-level memories of which a source does not hold any more or says something else; not pinned ones."""
        return [one for one in self.insights if not self._is_founded(one) and not one.pinned]

    @property
    def groups(self) -> list[Group]:
        """What may belong together."""
        return groups_of(list(self.memories.values()))

    def hold(self, memory_ids: Sequence[str]) -> bool:
        """Whether all these memories still hold."""
        return all(key in self.memories for key in memory_ids)

    def said_by(self, memory_ids: Sequence[str]) -> str:
        """The same as long as these memories say the same."""
        return digest([[key, self.memories[key].content] for key in sorted(memory_ids)])

    def _is_founded(self, insight: MemoryRecord) -> bool:
        cited = cited_by(insight)
        return self.hold(cited) and self.said_by(cited) == insight.extra_metadata.get(_SAID)


class InsightWork:
    """Makes higher-level memories where memories changed, ends those whose sources did; sources stay as they are."""

    def __init__(self, outbox: Outbox, writer: InsightWriter, every_s: float) -> None:
        self._outbox = outbox
        self._writer = writer
        self._every = timedelta(seconds=every_s)

    def extracted(self, scope: MemoryScope, claim: Claim) -> Plan[Extraction]:
        """Plan: what the groups that changed show. Raises ModelError, StoreError."""
        found = yield from beliefs(scope, claim.partition.user_id)
        answered = yield from groups_answered(self._outbox, claim.partition)
        groups = changed_groups(found, answered) if self._writer.has_model else []
        if not groups:
            return Extraction(())
        return (yield from self._writer.draw(groups[:MAX_GROUPS], scope.clock.now(), scope.zone))

    def effects(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Plan[Effects]:
        """Plan: new ones stand beside their sources, in the place of those of the same group. Raises StoreError."""
        effects = Effects(claim.job_id)
        found = yield from beliefs(scope, claim.partition.user_id)
        for candidate in extraction.candidates:
            if not found.hold(candidate.cites):
                effects.problems.append("A memory that was cited does not hold any more")
                continue
            try:
                record = _record(scope, claim, candidate, found)
            except InvalidMemory as error:
                effects.problems.append(mended(str(error)))
                continue
            yield from _place(scope, found, effects, record)
        for orphan in found.orphans:
            if effects.get(orphan) is orphan:
                effects.set(replace(orphan, valid_to=scope.clock.now(), updated_at=scope.clock.now()))
        return effects

    def settled(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Plan[list[Write]]:
        """Plan: the work is done until the next time, if there is anything to look after. Raises StoreError."""
        found = yield from beliefs(scope, claim.partition.user_id)
        asked = yield from groups_answered(self._outbox, claim.partition)
        answered = {**asked, **mapping_field(extraction.notes, _ANSWERED)}
        names = {group.name for group in found.groups}
        kept = {name: mark for name, mark in answered.items() if name in names}
        is_left = self._writer.has_model and changed_groups(found, kept)
        goes_on = bool(found.insights or extraction.candidates or is_left)
        again = scope.clock.now() + self._every if goes_on else None
        value = encode_json(kept, what="outbox")
        note = Put(namespace=claim.partition.state, key=_ANSWERED, value=value, updated_at=scope.clock.now())
        return [*self._outbox.settled(claim, again), note]


def groups_answered(outbox: Outbox, partition: Partition) -> Plan[Mapping[str, Any]]:
    """Plan: the fingerprints of the groups that a model has spoken on, by name. Raises StoreError."""
    (row,) = yield from outbox.engine.get([(partition.state, _ANSWERED)])
    return {} if row is None else row.value


def beliefs(scope: MemoryScope, user_id: UserId) -> Plan[Beliefs]:
    """Plan: the newest semantic memories of the user that hold. Raises StoreError."""
    scopes = scope.namespaces.read_scopes(user_id, MemoryCategory.SEMANTIC)
    rows = yield from newest(scope, scopes, None, MAX_MEMORIES, scope.clock.now())
    records = [record_of(row) for row in rows]
    insights = [one for one in records if is_insight(one)]
    cited = {key for one in insights for key in cited_by(one)} - {one.id for one in records}
    older = yield from scope.engine.get([(scopes[0], key) for key in sorted(cited)])
    records += [record_of(row) for row in older if row and why_invalid(row.value, scope.clock.now()) is None]
    return Beliefs({one.id: one for one in records if not is_insight(one)}, insights)


def changed_groups(found: Beliefs, answered: Mapping[str, Any]) -> list[Group]:
    """The groups that no model has spoken on as they are now, or whose higher-level memory ends."""
    ended = {one.extra_metadata.get(_GROUP) for one in found.orphans}
    return [one for one in found.groups if answered.get(one.name) != one.fingerprint or one.name in ended]


def is_insight(record: MemoryRecord) -> bool:
    """Whether periodic work drew it from others."""
    return record.source.tool == INSIGHT


def cited_by(record: MemoryRecord) -> tuple[str, ...]:
    """The memories that a higher-level one follows from."""
    return record.cites


def _record(scope: MemoryScope, claim: Claim, candidate: Candidate, found: Beliefs) -> MemoryRecord:
    """The higher-level memory that ``candidate`` would be. Raises InvalidMemory."""
    content = canonical_text(mended(candidate.content), max_bytes=scope.max_content_bytes)
    namespace = scope.namespaces.namespace_for(claim.partition.user_id, MemoryCategory.SEMANTIC)
    source = MemorySource(origin=candidate.origin, tool=INSIGHT)
    cites = list(candidate.cites)
    now = scope.clock.now()
    record = MemoryRecord(
        id=digest([*namespace, INSIGHT, candidate.topic, content, *sorted(candidate.cites)]),
        content=content,
        memory_type=candidate.memory_type,
        category=MemoryCategory.SEMANTIC,
        namespace=namespace,
        created_at=now,
        updated_at=now,
        extra_metadata={JOB: claim.job_id, CITES: cites, _GROUP: candidate.topic, _SAID: found.said_by(cites)},
        source=source,
        trust=source.trust,
    )
    put_of(record)  # what cannot be written is told here
    return record


def _place(scope: MemoryScope, found: Beliefs, effects: Effects, record: MemoryRecord) -> Plan[None]:
    """Plan: ``record`` is to be there, and those of its group end; nothing if it is there already and holds."""
    while True:
        (row,) = yield from scope.engine.get([(record.namespace, record.id)])
        if row is None:
            heir = record
            break
        heir = record_of(row)
        if heir.extra_metadata.get(JOB) == effects.job_id:
            break
        if why_invalid(row.value, record.created_at) is None:
            return
        record = replace(record, id=digest([record.id]))
    effects.added.append(heir.id)
    before = [one for one in found.insights if _is_replaced(one, heir)]
    ids = [one.id for one in before]
    effects.set(replace(heir, supersedes=tuple(dict.fromkeys([*heir.supersedes, *ids]))))
    for one in before:
        now = record.created_at
        effects.set(replace(one, valid_to=now, superseded_by=heir.id, updated_at=now))
    effects.superseded += ids


def _is_replaced(one: MemoryRecord, heir: MemoryRecord) -> bool:
    group = text_field(one.extra_metadata, _GROUP)
    return one.id != heir.id and group == heir.extra_metadata.get(_GROUP) and not one.pinned
