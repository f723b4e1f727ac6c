"""InsightWork: higher-level memories of a user, which cite their sources and end with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.errors import InvalidMemory
from inference_core.ingestion.candidates import Candidate, Extraction
from inference_core.ingestion.consolidation import JOB, Effects
from inference_core.ingestion.derived import write_derived
from inference_core.ingestion.messages import mended
from inference_core.ingestion.outbox import Claim, Outbox
from inference_core.ingestion.partitions import Partition
from inference_core.ingestion.periodic.insight_writing import Group, ModelInsights, groups_of
from inference_core.memory.record import CITES, MemoryRecord, why_invalid
from inference_core.memory.text import canonical_text, digest_of, encode_json, mapping_field
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.recall import newest
from inference_core.services.operations.scope import MemoryScope, UserId, put_of, record_of
from inference_core.stores.backend import Put, Write

INSIGHT: Final = "insight"
"""The source tool of higher-level memories."""
MAX_MEMORIES: Final = 1_000
"""How many of a user's newest semantic memories are read."""
MAX_GROUPS: Final = 5
"""How many groups a model is asked about in one run; others wait for the next."""
_GROUP: Final = "group"
_SAID: Final = "said"
"""Metadata name: a digest of the sources' texts, which tells whether they still say the same."""
_ANSWERED: Final = "answered"


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is known of a user: semantic ``memories`` by id, and the higher-level memories drawn from them."""

    memories: Mapping[str, MemoryRecord]
    insights: Sequence[MemoryRecord]

    @property
    def orphans(self) -> list[MemoryRecord]:
        """Higher-level memories of which a source no longer holds or says something else; pinned ones never are."""
        return [one for one in self.insights if not one.pinned and not self._is_founded(one)]

    @property
    def groups(self) -> list[Group]:
        """The memories that may belong together."""
        return groups_of(list(self.memories.values()))

    def hold(self, memory_ids: Sequence[str]) -> bool:
        """Whether all these memories still hold."""
        return all(key in self.memories for key in memory_ids)

    def said_by(self, memory_ids: Sequence[str]) -> str:
        """A digest of what these memories say."""
        return digest_of([[key, self.memories[key].content] for key in sorted(memory_ids)])

    def _is_founded(self, insight: MemoryRecord) -> bool:
        return self.hold(insight.cites) and self.said_by(insight.cites) == insight.extra_metadata.get(_SAID)


class InsightWork:
    """Makes higher-level memories where memories changed, ends those whose sources did; sources stay as they are."""

    def __init__(self, outbox: Outbox, writer: ModelInsights, every_s: float) -> None:
        self._outbox = outbox
        self._writer = writer
        self._every = timedelta(seconds=every_s)

    def extracted(self, scope: MemoryScope, claim: Claim) -> Operation[Extraction]:
        """What the groups that changed show. Raises ModelError, StoreError."""
        found = yield from beliefs(scope, claim.partition.user_id)
        answered = yield from groups_answered(self._outbox, claim.partition)
        groups = changed_groups(found, answered) if self._writer.has_model else []
        if not groups:
            return Extraction(())
        return (yield from self._writer.draw(groups[:MAX_GROUPS], scope.clock.now(), scope.zone))

    def effects(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[Effects]:
        """New ones, each superseding those of its group; orphans end. Raises StoreError."""
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
            group = [one for one in found.insights if one.extra_metadata.get(_GROUP) == candidate.topic]
            if not any(_says_the_same(one, record) for one in group):
                yield from write_derived(scope, effects, record, [one for one in group if not one.pinned])
        now = scope.clock.now()
        for orphan in found.orphans:
            if effects.get(orphan) is orphan:  # else it has just been superseded
                effects.set(replace(orphan, valid_to=now, updated_at=now))
        return effects

    def settled(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[list[Write]]:
        """The work is done; it comes again if there is anything to look after. Raises StoreError."""
        found = yield from beliefs(scope, claim.partition.user_id)
        asked = yield from groups_answered(self._outbox, claim.partition)
        names = {group.name for group in found.groups}
        answered = {**asked, **mapping_field(extraction.notes, _ANSWERED)}
        kept = {name: fingerprint for name, fingerprint in answered.items() if name in names}
        is_left = self._writer.has_model and changed_groups(found, kept)
        now = scope.clock.now()
        again = now + self._every if found.insights or extraction.candidates or is_left else None
        value = encode_json(kept, what="outbox")
        note = Put(namespace=claim.partition.state, key=_ANSWERED, value=value, updated_at=now)
        return [*self._outbox.settled(claim, again), note]


def groups_answered(outbox: Outbox, partition: Partition) -> Operation[Mapping[str, Any]]:
    """The fingerprints of the groups that a model has answered for, by name. Raises StoreError."""
    (row,) = yield from outbox.engine.get([(partition.state, _ANSWERED)])
    return {} if row is None else row.value


def beliefs(scope: MemoryScope, user_id: UserId) -> Operation[Beliefs]:
    """The newest semantic memories of the user that hold. Raises StoreError."""
    scopes = scope.namespaces.read_scopes(user_id, MemoryCategory.SEMANTIC)
    now = scope.clock.now()
    records = [record_of(row) for row in (yield from newest(scope, scopes, None, MAX_MEMORIES, now))]
    insights = [one for one in records if one.source.tool == INSIGHT]
    missing = {key for one in insights for key in one.cites} - {one.id for one in records}
    older = yield from scope.engine.get([(scopes[0], key) for key in sorted(missing)])
    records += [record_of(row) for row in older if row and why_invalid(row.value, now) is None]
    return Beliefs({one.id: one for one in records if one.source.tool != INSIGHT}, insights)


def changed_groups(found: Beliefs, answered: Mapping[str, Any]) -> list[Group]:
    """The groups that no model has answered for as they are now, or whose higher-level memory ends."""
    ended = {one.extra_metadata.get(_GROUP) for one in found.orphans}
    return [one for one in found.groups if answered.get(one.name) != one.fingerprint or one.name in ended]


def _says_the_same(one: MemoryRecord, record: MemoryRecord) -> bool:
    """Whether ``one`` is what another job made before of the same sources, which have not changed since."""
    known, new = one.extra_metadata, record.extra_metadata
    return one.content == record.content and known.get(_SAID) == new[_SAID] and known.get(JOB) != new[JOB]


def _record(scope: MemoryScope, claim: Claim, candidate: Candidate, found: Beliefs) -> MemoryRecord:
    """The higher-level memory that ``candidate`` would be. Raises InvalidMemory."""
    namespace = scope.namespaces.namespace_for(claim.partition.user_id, MemoryCategory.SEMANTIC)
    source = MemorySource(origin=candidate.origin, tool=INSIGHT)
    cites = list(candidate.cites)
    now = scope.clock.now()
    record = MemoryRecord(
        id=digest_of([*namespace, INSIGHT, candidate.topic, claim.job_id]),
        content=canonical_text(mended(candidate.content), max_bytes=scope.max_content_bytes),
        memory_type=candidate.memory_type,
        category=MemoryCategory.SEMANTIC,
        namespace=namespace,
        created_at=now,
        updated_at=now,
        extra_metadata={JOB: claim.job_id, CITES: cites, _GROUP: candidate.topic, _SAID: found.said_by(cites)},
        source=source,
        trust=source.trust,
    )
    put_of(record)  # raises for what cannot be written, here where it can be noted
    return record
