"""Candidates become memories beside those that are there: added, reinforced, or in the place of what held before.

Nothing is overwritten. What is superseded keeps its text and gets an end, what was said again gets a count; a job notes
all that it did, so that it can be undone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from inference_core.drivers import Plan
from inference_core.errors import InvalidMemory, UntrustedWrite
from inference_core.ingestion.candidates import Action, Candidate, Offered
from inference_core.ingestion.messages import Message, Role, mended
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import canonical_text, optional_text
from inference_core.memory.trust import MemorySource, Origin, Trust, check_write
from inference_core.memory.types import get_category_for_type
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.recall import recall
from inference_core.services.operations.scope import MemoryScope, find, put_of, record_of
from inference_core.stores.backend import Put

OFFERED: Final = 12
JOB: Final = "job"
"""The name in a memory's metadata that says which work made it."""
REINFORCED: Final = "reinforced"
LAST_SEEN: Final = "last_seen"
_LAST_JOB: Final = "last_job"
_TOOL: Final = "extraction"
_QUERY_CHARACTERS: Final = 2_000


@dataclass(slots=True)
class Effects:
    """What a job does to memories, by their scope and id, the newest state of each; ``problems`` were left out."""

    job_id: str
    changed: dict[tuple[str, ...], MemoryRecord] = field(default_factory=dict[tuple[str, ...], MemoryRecord])
    added: list[str] = field(default_factory=list[str])
    reinforced: list[str] = field(default_factory=list[str])
    superseded: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])

    def set(self, record: MemoryRecord) -> None:
        """``record`` is how the memory is to be."""
        self.changed[*record.namespace, record.id] = record

    def get(self, record: MemoryRecord) -> MemoryRecord:
        """``record`` as this job leaves it."""
        return self.changed.get((*record.namespace, record.id), record)

    @property
    def puts(self) -> list[Put]:
        """The writes; they fail if somebody changed one of the memories meanwhile."""
        return [put_of(record, expected=record.version) for record in self.changed.values()]


def offered_for(scope: MemoryScope, user_id: str, messages: Sequence[Message]) -> Plan[list[Offered]]:
    """Plan: the memories that ``messages`` may say again or change. Raises StoreError."""
    said = " ".join(message.text for message in messages if message.role is not Role.TOOL)
    found = yield from recall(scope, user_id, said[:_QUERY_CHARACTERS], OFFERED)
    return [Offered(f"k{at}", document.id, document.content) for at, document in enumerate(found, 1)]


def consolidated(
    scope: MemoryScope, user_id: str, candidates: Sequence[Candidate], messages: Sequence[Message], job_id: str
) -> Plan[Effects]:
    """Plan: what ``candidates`` of ``messages`` do to the user's memories; nothing is written. Raises StoreError."""
    effects = Effects(job_id)
    for candidate in candidates:
        try:
            record = _record(scope, user_id, candidate, messages, job_id)
        except (InvalidMemory, UntrustedWrite) as error:
            effects.problems.append(str(error))
            continue
        yield from _applied(scope, user_id, candidate, record, effects)
    return effects


def _applied(
    scope: MemoryScope, user_id: str, candidate: Candidate, record: MemoryRecord, effects: Effects
) -> Plan[None]:
    target = None
    if candidate.target is not None:
        found = yield from find(scope, user_id, candidate.target)
        target = effects.get(found) if found else None
    (row,) = yield from scope.engine.get([(record.namespace, record.id)])
    known = effects.get(record if row is None else record_of(row))
    if known is not record and known.extra_metadata.get(JOB) == effects.job_id and known.id not in effects.added:
        effects.added.append(known.id)  # this very job has been here before
    elif known is not record and _holds(known, record.created_at):
        _reinforce(effects, known, record.created_at)
    elif target is not None and _holds(target, record.created_at) and _says_again(candidate, target):
        _reinforce(effects, target, record.created_at)
    else:
        is_free = known is record
        new = record if is_free else replace(record, id=_digest([record.id, effects.job_id]))
        _add(effects, new, target if candidate.action is Action.SUPERSEDE else None)


def _says_again(candidate: Candidate, target: MemoryRecord) -> bool:
    return candidate.action is Action.REINFORCE or _normal(candidate.content) == _normal(target.content)


def _add(effects: Effects, record: MemoryRecord, target: MemoryRecord | None) -> None:
    """Adds ``record``, in the place of ``target`` if that may end."""
    if target is not None and _may_end(target, record):
        ends = min(max(record.valid_from or record.created_at, target.happened_at), record.created_at)
        effects.set(replace(target, valid_to=ends, superseded_by=record.id, updated_at=record.created_at))
        effects.superseded.append(target.id)
        record = replace(record, supersedes=(target.id,))
    effects.set(record)
    effects.added.append(record.id)


def _holds(record: MemoryRecord, now: datetime) -> bool:
    return why_invalid(record.to_value(), now) is None


def _may_end(target: MemoryRecord, record: MemoryRecord) -> bool:
    """Whether ``record`` may take the place of ``target``: not if that is pinned, over, or better founded."""
    if target.superseded_by == record.id:
        return True
    return not target.pinned and _holds(target, record.created_at) and record.trust >= min(target.trust, Trust.INFERRED)


def _reinforce(effects: Effects, record: MemoryRecord, now: datetime) -> None:
    if record.id in effects.added or record.extra_metadata.get(_LAST_JOB) == effects.job_id:
        return  # said twice in the same batch
    count = record.extra_metadata.get(REINFORCED)
    times = (count if isinstance(count, int) else 0) + 1
    seen = {REINFORCED: times, LAST_SEEN: now.isoformat(), _LAST_JOB: effects.job_id}
    effects.set(replace(record, extra_metadata={**record.extra_metadata, **seen}))
    effects.reinforced.append(record.id)


def _record(
    scope: MemoryScope, user_id: str, candidate: Candidate, messages: Sequence[Message], job_id: str
) -> MemoryRecord:
    """The memory that ``candidate`` would be. Raises InvalidMemory, UntrustedWrite."""
    content = canonical_text(mended(candidate.content), max_bytes=scope.max_content_bytes)
    category = get_category_for_type(candidate.memory_type.value)
    source = _source(candidate, messages)
    check_write(source, category)
    namespace = scope.namespaces.namespace_for(user_id, category)
    now = scope.clock.now()
    sources = [message for message in messages if message.id in candidate.message_ids] or messages
    said_at = min((message.at for message in sources if message.at), default=None)
    return MemoryRecord(
        id=_digest([*namespace, candidate.memory_type.value, _normal(content)]),
        content=content,
        memory_type=candidate.memory_type,
        category=category,
        namespace=namespace,
        created_at=now,
        updated_at=now,
        topic=optional_text(candidate.topic and mended(candidate.topic), what="topic"),
        session_id=optional_text(messages[0].session_id and mended(messages[0].session_id), what="session_id"),
        agent_name=scope.namespaces.agent_name,
        extra_metadata=_metadata(candidate, job_id),
        source=source,
        trust=source.trust,
        importance=candidate.importance,
        tags=candidate.tags,
        valid_from=candidate.valid_from or said_at,
        valid_to=candidate.valid_to,
    )


def _source(candidate: Candidate, messages: Sequence[Message]) -> MemorySource:
    """Where a candidate comes from: what rests on a tool's words alone is not believed as what somebody said."""
    named = [message for message in messages if message.id in candidate.message_ids]
    is_external = Role.TOOL in {message.role for message in named or messages} and not any(
        message.role is not Role.TOOL for message in named
    )
    return MemorySource(
        origin=Origin.TOOL if is_external else candidate.origin,
        thread_id=messages[0].session_id,
        message_ids=tuple(mended(message.id) for message in named or messages if message.id),
        tool=_TOOL,
    )


def _metadata(candidate: Candidate, job_id: str) -> dict[str, Any]:
    given: dict[str, Any] = {
        JOB: job_id,
        "state": candidate.state,
        "entities": [{"name": mended(one.name), "kind": mended(one.kind)} for one in candidate.entities],
        "relations": [[mended(one.source), mended(one.name), mended(one.target)] for one in candidate.relations],
    }
    return {name: value for name, value in given.items() if value}


def _normal(content: str) -> str:
    return " ".join(content.casefold().rstrip(".!").split())


def _digest(what: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
