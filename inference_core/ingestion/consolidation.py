"""Consolidation: a candidate is added, reinforces a memory, or supersedes one.

Nothing is overwritten: a superseded memory keeps its text and gets an end, a reinforced one counts the repetition. The
job records every effect, so that it can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from inference_core.errors import InvalidMemory, UntrustedWrite
from inference_core.memory.record import DEFAULT_IMPORTANCE, JOB, MemoryRecord, ended, holds_at, without_block
from inference_core.memory.text import canonical_text, digest_of, moment_field, same_text
from inference_core.memory.trust import Decision, MemorySource, Origin, Trust
from inference_core.memory.types import get_category_for_type
from inference_core.outbox.messages import (
    Action,
    Candidate,
    ConversationMessage,
    KnownMemory,
    Role,
    label,
    mended,
    session_label,
    session_name,
    traced,
)
from inference_core.outbox.said import Said
from inference_core.services.operations.admission import Place, check_rejected_on, has_to_wait, place_on, proposal
from inference_core.services.operations.recall import recall
from inference_core.services.operations.scope import MAX_TAGS, MemoryScope, checked_moment, put_of, record_of
from inference_core.stores.backend import Backend, Key, Write

OFFERED: Final = 20
REINFORCED: Final = "reinforced"
LAST_SEEN: Final = "last_seen"
LAST_JOB: Final = "last_job"
SAID: Final = "said_at"
"""Metadata key: when it was last said, by the messages' times; not when it was processed, nor when it happened."""
_TOOL: Final = "extraction"
_QUERY_CHARACTERS: Final = 2_000
_LABEL_CHARACTERS: Final = 120
_TAG_CHARACTERS: Final = 32


@dataclass(slots=True)
class MemoryChanges:
    """What a job changes: the new state of each changed memory by scope and id, and the problems of refused candidates.

    ``before``: the earlier counts of the memories that the job reinforced. ``pending``: the writes for memories that
    wait for the user.
    """

    job_id: str
    changed: dict[tuple[str, ...], MemoryRecord] = field(default_factory=dict[tuple[str, ...], MemoryRecord])
    added: list[str] = field(default_factory=list[str])
    reinforced: list[str] = field(default_factory=list[str])
    superseded: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    before: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    pending: dict[Key, Write] = field(default_factory=dict[Key, Write])

    def set(self, record: MemoryRecord) -> None:
        """Sets the new state of a memory."""
        self.changed[*record.namespace, record.id] = record

    def get(self, record: MemoryRecord) -> MemoryRecord:
        """``record`` with the changes of this job."""
        return self.changed.get((*record.namespace, record.id), record)

    def add(self, record: MemoryRecord) -> None:
        """Adds a memory."""
        self.set(record)
        self.added.append(record.id)

    def reinforce(self, record: MemoryRecord, repetition: MemoryRecord) -> None:
        """Counts a ``repetition`` of ``record``. Several in one batch count once; less trusted ones do not count."""
        if record.id in self.added or record.id in self.reinforced or _is_lower(repetition, record):
            return
        self.reinforced.append(record.id)
        if record.extra_metadata.get(LAST_JOB) == self.job_id:
            self.set(record)  # an earlier attempt of this job counted it
            return
        count = record.extra_metadata.get(REINFORCED)
        times = (count if isinstance(count, int) else 0) + 1
        seen = {REINFORCED: times, LAST_SEEN: repetition.created_at.isoformat(), LAST_JOB: self.job_id}
        said = [moment for one in (record, repetition) if (moment := moment_field(one.extra_metadata, SAID))]
        seen |= {SAID: max(said).isoformat()} if said else {}
        self.before[record.id] = {name: record.extra_metadata[name] for name in seen if name in record.extra_metadata}
        self.set(replace(record, extra_metadata={**without_block(record.extra_metadata), **seen}))

    def supersede(self, target: MemoryRecord, successor: MemoryRecord, record: MemoryRecord) -> None:
        """Ends ``target`` in favour of ``successor``, at the time from which the new statement ``record`` holds.

        ``target`` stays as it is if it (1) is ``successor`` itself, (2) is pinned, (3) has ended already, (4) was said
        later than ``record``, or (5) is not external while ``record`` is. If ``record`` has ended because ``target``
        was said later, the two are only linked.
        """
        now = record.created_at
        if target.id == successor.id:
            return
        if record.superseded_by == target.id:
            if self.get(successor).superseded_by == target.id:
                self.set(replace(target, supersedes=tuple(dict.fromkeys([*target.supersedes, successor.id]))))
            return
        if _is_earlier(record, target):
            return
        if target.superseded_by == successor.id:
            self.set(target)  # an earlier attempt of this job ended it
        elif target.pinned or not holds_at(target, now) or _is_lower(record, target):
            return
        else:
            self.set(ended(target, record, successor.id))
        successor = self.get(successor)
        self.set(replace(successor, supersedes=tuple(dict.fromkeys([*successor.supersedes, target.id]))))
        if target.id not in self.superseded:
            self.superseded.append(target.id)

    async def propose(self, scope: MemoryScope, record: MemoryRecord, ends: Sequence[MemoryRecord]) -> None:
        """Makes ``record`` wait for the user, unless it waits already or the user has decided. Raises StoreError."""
        if record.superseded_by is not None:
            return  # it has ended already: there is no point in confirming it
        decision, _, writes = await proposal(scope, record, ends)
        self.pending |= {(write.namespace, write.key): write for write in writes}
        if decision is Decision.NO:
            self.problems.append("A memory was not offered: the user has rejected it, or has too much to confirm")

    @property
    def writes(self) -> list[Write]:
        """The writes, which fail if one of the memories was changed meanwhile."""
        changed = [put_of(record, expected=record.version) for record in self.changed.values()]
        return [*changed, *self.pending.values()]


async def offered_for(scope: MemoryScope, user_id: str, messages: Sequence[ConversationMessage]) -> list[KnownMemory]:
    """The memories to offer for ``messages``: the most relevant, then the newest others. Raises StoreError."""
    said = " ".join(message.text for message in messages if message.role is not Role.TOOL)
    recalled = await recall(
        replace(scope, counts_access=False),
        user_id,
        said[:_QUERY_CHARACTERS],
        OFFERED,
        backfill=True,
        min_relevance=0.0,
    )
    return [
        KnownMemory(
            f"k{at}",
            document.id,
            document.content,
            document.value.get("trust") == Trust.EXTERNAL,
            moment_field(document.metadata, SAID),
        )
        for at, document in enumerate(recalled, 1)
    ]


async def consolidated(
    scope: MemoryScope,
    user_id: str,
    candidates: Sequence[Candidate],
    messages: Sequence[ConversationMessage],
    job_id: str,
    *,
    earlier: Sequence[ConversationMessage] = (),
) -> MemoryChanges:
    """What ``candidates`` change in the user's memories; nothing is written yet. Raises StoreError.

    ``earlier`` are messages of the session before.
    """
    changes = MemoryChanges(job_id)
    told = list(traced([*earlier, *messages]))
    messages = told[len(earlier) :]
    key = await scope.engine.content_key()
    for given in candidates:
        sources = _sources(given, messages)
        said = Said(told, sources=sources)
        candidate = judged(given, said)
        try:
            record = _record(scope, user_id, candidate, messages, job_id)
            found, place = await scope.engine.ask(partial(_read, scope, user_id, record, candidate.target, key))
        except (InvalidMemory, UntrustedWrite) as error:
            changes.problems.append(mended(str(error)))
            continue
        target = _reachable(candidate, changes.get(found), said) if found else None
        if candidate.action is Action.SUPERSEDE and target is not None and _is_earlier(record, target):
            record = _outlived(record, target)
        outranks = partial(_outranks, record, sources)
        successor, is_known, replaced = _placed(record, place, changes, outranks)
        now = record.created_at
        repeated, ends = _targeted(candidate, target, outranks, now)
        replaced |= {record.id: record for record in ends}
        waits = has_to_wait(record, scope.confirm)
        if waits and not is_known and repeated is None:
            await changes.propose(scope, successor, [record for record in replaced.values() if holds_at(record, now)])
            continue
        if waits and record.trust is Trust.EXTERNAL:
            continue  # a repetition from outside vouches for nothing
        if repeated is not None and not is_known:
            changes.reinforce(repeated, record)
            continue
        if is_known and successor.extra_metadata.get(JOB) != job_id:
            changes.reinforce(successor, record)
        elif successor.id not in changes.added:  # if it is known, an earlier attempt of this job added it
            changes.add(successor)
        for one in replaced.values():
            changes.supersede(one, successor, record)
    return changes


def _read(
    scope: MemoryScope, user_id: str, record: MemoryRecord, target: str | None, key: bytes, backend: Backend
) -> tuple[MemoryRecord | None, Place]:
    """The memory with the id ``target``, and the place of ``record``. Raises UntrustedWrite if it was rejected."""
    check_rejected_on(record, key, backend)
    homes = scope.namespaces.read_scopes(user_id)
    rows = backend.get([(home, target) for home in homes]) if target else []
    return next((record_of(row) for row in rows if row), None), place_on(record, key, (), backend)


def judged(candidate: Candidate, said: Said) -> Candidate:
    """``candidate`` with the origin that it earns by what the user ``said`` in its sources.

    No other place decides that. If text from outside was in the conversation, a candidate keeps its origin only if it
    is one or more whole sentences of the user (it is then stored as the user said it) or the user confirmed it. Any
    other candidate counts as a tool's, or as a document's if it says so itself, which is trusted no more.
    """
    if not said.has_outside or candidate.origin is Origin.DOCUMENT:
        return candidate
    own = said.owned(candidate.content)
    return replace(candidate, origin=Origin.TOOL) if own is None else replace(candidate, content=own)


def _sources(candidate: Candidate, messages: Sequence[ConversationMessage]) -> Sequence[ConversationMessage]:
    """The messages that ``candidate`` names; all if it names none."""
    return [message for message in messages if message.id in candidate.message_ids] or messages


def _is_lower(record: MemoryRecord, other: MemoryRecord) -> bool:
    """Whether ``record`` is external and ``other`` is not."""
    return record.trust < min(other.trust, Trust.INFERRED)


def _is_earlier(record: MemoryRecord, target: MemoryRecord) -> bool:
    """Whether ``record`` was said before ``target``, if both are dated, and is not a repetition of it.

    Messages are not always processed in the order in which they were said: exports may be old, and some are retried.
    """
    said, since = (moment_field(one.extra_metadata, SAID) for one in (record, target))
    is_dated = said is not None and since is not None and said < since
    return is_dated and not same_text(record.content, target.content)


def _outlived(record: MemoryRecord, later: MemoryRecord) -> MemoryRecord:
    """``record`` as superseded by ``later``, which was said after it, unless only ``later`` is external."""
    if _is_lower(later, record):
        return record
    return replace(ended(record, later), updated_at=record.updated_at)


def _reachable(candidate: Candidate, target: MemoryRecord, said: Said) -> MemoryRecord | None:
    """``target``, unless the user stated it and ``candidate`` is a sentence of the user about something else."""
    is_apart = target.trust is Trust.STATED and said.is_apart(candidate.content, target.content)
    return None if is_apart else target


def _targeted(
    candidate: Candidate, target: MemoryRecord | None, outranks: Callable[[MemoryRecord], bool], now: datetime
) -> tuple[MemoryRecord | None, list[MemoryRecord]]:
    """The memory that ``candidate`` repeats, and those that it replaces; both are ``target`` or nothing."""
    if target is None:
        return None, []
    is_same = candidate.action is Action.REINFORCE or same_text(candidate.content, target.content)
    is_lower = is_same and outranks(target)
    repeated = target if is_same and not is_lower and holds_at(target, now) else None
    return repeated, [target] if is_lower or candidate.action is Action.SUPERSEDE else []


def _placed(
    record: MemoryRecord, place: Place, changes: MemoryChanges, outranks: Callable[[MemoryRecord], bool]
) -> tuple[MemoryRecord, bool, dict[str, MemoryRecord]]:
    """The memory that says what ``record`` does, and True; else ``record`` under a free id, and False.

    Memories of the same words that ``record`` ``outranks`` do not count; the third value has these by id. A memory that
    was superseded, has ended or was given another text stays as it is, and ``record`` gets another id.
    """
    record = replace(record, id=place.memory_id)
    same = [changes.get(record) for record in place.same]
    while (added := changes.get(record)) is not record:  # by this job
        same += [added] if same_text(added.content, record.content) else []
        record = replace(record, id=digest_of([record.id]))
    now = record.created_at
    lower = {record.id: record for record in same if outranks(record)}
    for known in same:
        is_said = known.superseded_by in (None, record.superseded_by) and known.id not in lower
        if is_said and (holds_at(known, now) or not holds_at(record, now)):
            return known, True, lower
    return record, False, lower


def _outranks(record: MemoryRecord, sources: Sequence[ConversationMessage], old: MemoryRecord) -> bool:
    """Whether ``record`` replaces ``old``, which says the same: it came from outside, and now the user says so too.

    If ``record`` only counted as a repetition, a web page could occupy a fact: what the user states later would stay
    untrusted. An assistant that repeats what it has recalled vouches for nothing.
    """
    return _is_lower(old, record) and any(message.is_own for message in sources)


def _record(
    scope: MemoryScope, user_id: str, candidate: Candidate, messages: Sequence[ConversationMessage], job_id: str
) -> MemoryRecord:
    """``candidate`` as a memory. Raises InvalidMemory."""
    content = canonical_text(mended(candidate.content), max_bytes=scope.max_content_bytes)
    content = scope.engine.guard.text(content)  # before an id is made of it
    category = get_category_for_type(candidate.memory_type.value)
    sources = _sources(candidate, messages)
    source = MemorySource(
        origin=candidate.origin,
        thread_id=session_name(messages[0].session_id),
        message_ids=tuple(mended(message.id) for message in sources if message.id),
        tool=_TOOL,
    )
    namespace = scope.namespaces.namespace_for(user_id, category)
    now = scope.clock.now()
    said = [message.at for message in sources if message.at]
    metadata: dict[str, Any] = {
        JOB: job_id,
        # A wrong clock must not date this in the future, where nothing said later could supersede it.
        SAID: min(max(said), now).isoformat() if said else None,
        "state": candidate.state and mended(candidate.state),
        "entities": [{"name": mended(entity.name), "kind": mended(entity.kind)} for entity in candidate.entities],
        "relations": [
            [mended(relation.source), mended(relation.name), mended(relation.target)]
            for relation in candidate.relations
        ],
    }
    tags = filter(None, (label(tag, _TAG_CHARACTERS) for tag in candidate.tags))
    record = MemoryRecord(
        id="",
        content=content,
        memory_type=candidate.memory_type,
        category=category,
        namespace=namespace,
        created_at=now,
        updated_at=now,
        topic=label(candidate.topic, _LABEL_CHARACTERS),
        session_id=session_label(messages[0].session_id),
        agent_name=scope.namespaces.agent_name,
        extra_metadata={name: value for name, value in metadata.items() if value},
        source=source,
        trust=source.trust,
        importance=candidate.importance if 0 <= candidate.importance <= 1 else DEFAULT_IMPORTANCE,
        tags=tuple(dict.fromkeys(tags))[:MAX_TAGS],
        valid_from=checked_moment(candidate.valid_from, "valid_from") or min(said, default=None),
        valid_to=checked_moment(candidate.valid_to, "valid_to"),
    )
    put_of(record)  # raises now what would otherwise fail only at the write
    return record
