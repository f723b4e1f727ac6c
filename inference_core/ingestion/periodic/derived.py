"""Memories derived from others: the sources that a model is shown, what its answer cites, and writing the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any, Final

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from inference_core.context.render import neutral_line
from inference_core.effects import Operation
from inference_core.errors import InvalidMemory
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.extraction.extractor import speaker, stamp
from inference_core.ingestion.extraction.schema import CONTENT, Entry, first_of, texts_of
from inference_core.memory.record import JOB, MemoryRecord
from inference_core.memory.text import canonical_text, digest_of
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.memory.types import MemoryType, get_category_for_type
from inference_core.outbox.messages import ConversationMessage, Role, brings_outside, mended
from inference_core.outbox.outbox import Claim
from inference_core.services.operations.admission import has_to_wait
from inference_core.services.operations.scope import MemoryScope, put_of, record_of

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
    external = [one.origin for one in sources if one.trust is Trust.EXTERNAL]
    if not external:
        return Origin.AGENT
    return next((one for one in external if MemorySource(origin=one).trust is Trust.EXTERNAL), Origin.TOOL)


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


def write_derived(
    scope: MemoryScope, changes: MemoryChanges, record: MemoryRecord, replaced: Sequence[MemoryRecord]
) -> Operation[None]:
    """Adds ``record`` and ends those ``replaced`` in its favour, or has it wait. Raises InvalidMemory, StoreError."""
    put_of(record)  # raises now for what cannot be written, while the caller can note the problem
    if has_to_wait(record, scope.confirm):
        yield from changes.propose(scope, record, replaced)
        return
    (row,) = yield from scope.engine.get([(record.namespace, record.id)])
    successor = record if row is None else record_of(row)  # else an earlier attempt of this job wrote it
    ended = [one for one in replaced if one.id != successor.id]
    supersedes = dict.fromkeys([*successor.supersedes, *(one.id for one in ended)])
    changes.add(replace(successor, supersedes=tuple(supersedes)))
    for one in ended:
        now = record.created_at
        changes.set(replace(one, valid_to=now, superseded_by=successor.id, updated_at=now))
        changes.superseded.append(one.id)
