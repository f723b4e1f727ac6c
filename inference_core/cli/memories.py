"""``save``, ``recall``, ``context``, ``list``, ``update``, ``history``, ``why``, ``delete``: a user's memories."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from inference_core.cli.options import (
    ONE_TYPE,
    STREAM,
    TYPES,
    Category,
    Id,
    Kind,
    Metadata,
    NewCategory,
    Target,
    Yes,
    json_object,
    on_store,
    option,
)
from inference_core.cli.output import (
    CommandFailed,
    confirm,
    counted,
    draw,
    note,
    one_line,
    print_figures,
    print_history,
    print_json,
    print_memories,
    print_numbered,
    shares,
)
from inference_core.errors import ConfirmationNeeded, MemoryNotFound
from inference_core.memory.record import MemoryStoreDocument
from inference_core.memory.text import harmless
from inference_core.memory.types import MemoryType
from inference_core.memory.wire import Memory

_SHOWN: Final = 60
_Tags = Annotated[list[str] | None, option("--tag TEXT", "Only those with this tag; may be given several times.")]
_Session = Annotated[str | None, option("--session ID", "Only those of this session.")]
_After = Annotated[datetime | None, option("--created-after DATE", "Only those stored since then.")]
_Before = Annotated[datetime | None, option("--created-before DATE", "Only those stored before.")]
_Content = Annotated[str, typer.Argument(metavar="TEXT", help="What to remember; - reads it from standard input.")]


@on_store("user", "space", "agent", "url", "embeddings", "json")
def save(
    target: Target,
    content: _Content,
    kind: Annotated[str, option("--type", f"One of {TYPES}.", **ONE_TYPE)] = MemoryType.GENERAL.value,
    category: NewCategory = None,
    topic: Annotated[str | None, option("--topic TEXT", "What it is about; recall matches these words too.")] = None,
    session: Annotated[str | None, option("--session ID", "The conversation it is from.")] = None,
    memory_id: Annotated[str | None, option("--id ID", "Replaces the memory with this ID.")] = None,
    importance: Annotated[float, option("--importance X", "From 0 to 1.", min=0, max=1)] = 0.5,
    pinned: Annotated[bool, option("--pinned", "Never forget it.")] = False,
    tags: Annotated[list[str] | None, option("--tag TEXT", "May be given several times.")] = None,
    valid_from: Annotated[datetime | None, option("--valid-from DATE", "When it became true.")] = None,
    expires_at: Annotated[datetime | None, option("--expires-at DATE", "When to forget it.")] = None,
    metadata: Metadata = None,
) -> None:
    """Save a memory and print its ID.

    It is durable once the command ends. With --space, it may wait for an admin.
    """
    given = json_object(metadata)
    text = _text(content)
    with target.open(embeds=True, creates=True) as memory:
        try:
            saved = memory.sync.save_memory(
                target.owner,
                text,
                kind,
                session_id=session,
                topic=topic,
                extra_metadata=given,
                memory_id=memory_id,
                category=category,
                importance=importance,
                pinned=pinned,
                tags=tags or (),
                valid_from=valid_from and valid_from.replace(tzinfo=memory.zone),
                expires_at=expires_at and expires_at.replace(tzinfo=memory.zone),
            )
        except ConfirmationNeeded as waits:  # a proposal to a space, which waits for an admin
            target.print_id({"pending_id": waits.pending_id}, waits.pending_id, str(waits))
            return
    told = ["It was there already, in the same words"] if saved.was_stored else []
    told += [f"Left out: {', '.join(saved.redacted)}"] if saved.redacted else []
    target.print_id({"id": saved}, saved, "; ".join(told))


@on_store("user", "space", "agent", "url", "embeddings", "json")
def recall(
    target: Target,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question; if empty, the newest memories.")],
    limit: Annotated[int | None, option("--limit -k N", "Maximum number.", min=1, max=1000)] = None,
    kind: Kind = None,
    category: Category = None,
    explain: Annotated[bool, option("--explain", "Show the parts of each score, and what was left out.")] = False,
    max_characters: Annotated[int | None, option("--max-characters N", "Maximum total length.", min=1)] = None,
    diversity: Annotated[
        float, option("--diversity X", "Prefer hits that differ from each other.", min=0, max=10)
    ] = 0.0,
    tags: _Tags = None,
    session: _Session = None,
    created_after: _After = None,
    created_before: _Before = None,
    min_relevance: Annotated[
        float | None,
        option("--min-relevance X", "Leave out less relevant ones (AGENT_MEMORY_MIN_RELEVANCE).", min=0, max=1),
    ] = None,
) -> None:
    """Find the memories that answer a question."""
    with target.open(embeds=True) as memory:
        started = time.perf_counter()
        recalled = memory.sync.recall_memories(
            target.owner,
            query,
            limit,
            kind,
            category=category,
            explain=explain,
            max_characters=max_characters,
            diversity=diversity,
            tags=tags or (),
            session_id=session,
            created_after=created_after and created_after.replace(tzinfo=memory.zone),
            created_before=created_before and created_before.replace(tzinfo=memory.zone),
            min_relevance=min_relevance,
        )
        took = (time.perf_counter() - started) * 1000
    if target.json:
        left_out = [as_json(document) | {"reason": reason} for document, reason in recalled.left_out]
        print_json(
            {"query": query, "by_meaning": recalled.by_meaning, "memories": [as_json(memory) for memory in recalled]}
            | ({"left_out": left_out} if explain else {})
        )
        return
    print_memories(recalled, memory.zone)
    if recalled.left_out:
        draw(Text("Left out", "bold"))
        print_numbered(
            [(memory.content, [reason, *shares(memory.explanation)]) for memory, reason in recalled.left_out]
        )
    means = ", by words and meaning" if recalled.by_meaning else ", by words only" if query.strip() else ""
    note(f"{_counted(len(recalled))} in {took:.0f} ms{means}")


@on_store("user", "space", "agent", "url", "embeddings", "json")
def context(
    target: Target,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="What the user says; without it, the newest memories.")
    ] = None,
    limit: Annotated[int, option("--limit -k N", "Maximum number.", min=1, max=1000)] = 30,
    kinds: Annotated[list[str] | None, option("--type", "May be given several times.", **ONE_TYPE)] = None,
) -> None:
    """Print the block that an agent's prompt would get."""
    with target.open(embeds=query is not None) as memory:
        block = memory.sync.format_context_for_prompt(
            target.owner, query, kinds or None, limit, memory.settings.categories
        )
    if target.json:
        print_json({"context": block})
    elif block:
        sys.stdout.write(harmless(block) + "\n")
    else:
        note(_counted(0))


@on_store("user", "space", "agent", "url", "json")
def list_memories(
    target: Target,
    limit: Annotated[int, option("--limit N", "Memories per page.", min=1)] = 20,
    offset: Annotated[int, option("--offset N", "How many to skip.", min=0)] = 0,
    kind: Kind = None,
    category: Category = None,
    search: Annotated[str | None, option("--search TEXT", "Only those with this text.")] = None,
    session: _Session = None,
    after: Annotated[
        str | None, option("--after CURSOR", "The page after this next_cursor, which --json prints.")
    ] = None,
    tags: _Tags = None,
    created_after: _After = None,
    created_before: _Before = None,
) -> None:
    """List memories, the newest first."""
    with target.open() as memory:
        page, total = memory.sync.list_memories(
            target.owner,
            category=category,
            memory_type=kind,
            search=search,
            limit=limit,
            offset=offset,
            session_id=session,
            after=after,
            tags=tags or (),
            created_after=created_after and created_after.replace(tzinfo=memory.zone),
            created_before=created_before and created_before.replace(tzinfo=memory.zone),
        )
    if target.json:
        found = {"total": total, "offset": offset, "next_cursor": page.next_cursor}
        print_json({"memories": [as_json(memory) for memory in page], **found})
        return
    print_memories(page, memory.zone, offset + 1)
    rest = total - offset - len(page)
    if after is not None:
        more = f", more: --after {page.next_cursor}" if page.next_cursor else ""
    else:
        more = f", {rest} more: --offset {offset + len(page)}" if rest > 0 else ""
    note(_counted(total) + more)


@on_store("user", "space", "agent", "url", "embeddings", "json")
def update(
    target: Target,
    memory_id: Id,
    content: Annotated[str | None, option("--content TEXT", "The new text; - reads standard input.")] = None,
    kind: Annotated[str | None, option("--type", f"One of {TYPES}.", **ONE_TYPE)] = None,
    topic: Annotated[str | None, option("--topic TEXT", 'The new topic; "" removes it.')] = None,
    category: NewCategory = None,
    metadata: Metadata = None,
    tags: Annotated[
        list[str] | None, option("--tag TEXT", 'Replaces all tags; may be given several times; "" removes them.')
    ] = None,
    importance: Annotated[float | None, option("--importance X", "From 0 to 1.", min=0, max=1)] = None,
    expires_at: Annotated[
        str | None, option("--expires-at DATE", "When to forget it, as 2026-12-31, or never.")
    ] = None,
) -> None:
    """Change the given fields of a memory and keep the others."""
    if all(one in (None, []) for one in (content, kind, topic, category, metadata, tags, importance, expires_at)):
        raise typer.BadParameter(
            "Nothing to change: pass --content, --type, --topic, --category, --metadata, --tag, --importance or "
            "--expires-at"
        )
    try:
        moment = datetime.fromisoformat(expires_at) if expires_at not in (None, "never") else None
    except ValueError as error:
        raise typer.BadParameter("--expires-at takes a date such as 2026-12-31, or never") from error
    given = json_object(metadata)
    text = None if content is None else _text(content)
    with target.open(embeds=True) as memory:
        done = memory.sync.update_memory(
            target.owner,
            memory_id,
            text,
            kind,
            topic,
            category,
            given,
            tags=[tag for tag in tags if tag] if tags else None,
            importance=importance,
            expires_at="never"
            if expires_at == "never"
            else moment and moment.replace(tzinfo=moment.tzinfo or memory.zone),
        )
    if not done:
        raise MemoryNotFound(memory_id)
    target.print({"id": memory_id, "updated": True}, f"Updated {memory_id}")


@on_store("user", "space", "agent", "url", "json")
def history(target: Target, memory_id: Id) -> None:
    """Show the versions of a memory, the oldest first.

    Below each version are the words that it changed.
    """
    with target.open() as memory:
        memories = memory.sync.get_memory_history(target.owner, memory_id)
    if not memories:
        raise MemoryNotFound(memory_id)
    if target.json:
        print_json({"memories": [as_json(memory) for memory in memories]})
    else:
        print_history(memories, memory.zone)


@on_store("user", "space", "agent", "url", "json")
def why(
    target: Target,
    memory_id: Id,
    limit: Annotated[int, option("--limit N", "Maximum number of turns.", min=1)] = 50,
) -> None:
    """Show where a memory comes from, and when a model saw it.

    The newest turns come first.
    """
    with target.open() as memory:
        reasons = memory.sync.why(target.owner, memory_id, limit=limit)
    if reasons.memory is None and reasons.removed is None and not reasons.receipts:
        raise MemoryNotFound(memory_id)
    removed = reasons.removed
    source: dict[str, Any] = (reasons.memory.value.get("source") if reasons.memory else None) or {}
    turns = [(receipt, receipt.line_of(memory_id)) for receipt in reasons.receipts]
    if target.json:
        document = reasons.memory and as_json(reasons.memory) | {"source": reasons.memory.value.get("source")}
        names = ("id", "at", "thread_id", "run_id", "model", "agent_name", "status")
        told: list[dict[str, Any]] = []
        for receipt, line in turns:
            told.append({name: getattr(receipt, name) for name in names})
            if line is not None:
                told[-1]["line"] = {name: value for name, value in asdict(line).items() if value not in (None, {})}
        gone = removed and as_json(removed.document) | {"reason": removed.reason, "removed_at": removed.forgotten_at}
        earlier = [as_json(memory) for memory in reasons.earlier]
        print_json({"memory": document, "removed": gone, "earlier": earlier, "told": told})
        return
    print_memories([memory for memory in (reasons.memory, removed and removed.document) if memory], memory.zone)
    if removed:
        until = f" until {removed.until.astimezone(memory.zone):%Y-%m-%d %H:%M}" if removed.until else ""
        verb = "deleted" if removed.reason == "deleted" else f"forgotten ({removed.reason})"
        note(f"It was {verb} {removed.forgotten_at.astimezone(memory.zone):%Y-%m-%d %H:%M} and can be restored{until}")
    texts = {name: value if isinstance(value, str) else ", ".join(map(str, value)) for name, value in source.items()}
    print_figures({"source" if name == "origin" else name: text for name, text in texts.items()})
    if reasons.earlier:
        sys.stdout.write("\nEarlier texts\n")
        print_memories(reasons.earlier, memory.zone)
    shown = [(receipt, line) for receipt, line in turns if line is not None]
    if shown:
        sys.stdout.write("\nPrompts that showed it\n")
    for receipt, line in shown:
        where = f"thread {receipt.thread_id}" if receipt.thread_id else "no thread"
        place = f"{line.place.value} {line.rank}, version {line.version}"
        facts = [where, receipt.model or "unknown model", place, *shares(line.signals)]
        print_figures({f"{receipt.at.astimezone(memory.zone):%Y-%m-%d %H:%M:%S}": " · ".join(facts)})
    if reasons.receipts.next_cursor:
        note(f"There are more than {limit} turns; raise --limit")


def as_json(document: MemoryStoreDocument) -> dict[str, Any]:
    """A memory as JSON data: the fields that the HTTP API tells, two of them under the service's names too.

    ``space`` is there for a memory of a space.
    """
    told = Memory.of(document).model_dump()
    told |= {"memory_category": told["category"], "metadata": told["extra_metadata"]}
    told |= {"space": document.space} if document.space else {}
    return {name: one.isoformat() if isinstance(one, datetime) else one for name, one in told.items()}


def _counted(count: int) -> str:
    return counted(count, "memory", "memories") if count else "no memories"


def _text(given: str) -> str:
    """``given``, or all of standard input for "-". Raises CommandFailed if that is not UTF-8."""
    try:
        return sys.stdin.read() if given == STREAM else given
    except UnicodeDecodeError as error:
        raise CommandFailed(f"Standard input is not text in UTF-8: {error}") from error


@on_store("user", "space", "agent", "url", "json")
def delete(
    target: Target,
    memory_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The ID that save, recall and list print.")
    ] = None,
    everything: Annotated[bool, option("--all", "All memories that this agent reads.")] = False,
    kind: Kind = None,
    category: Category = None,
    yes: Yes = False,
    erase: Annotated[bool, option("--erase", "Remove it permanently.")] = False,
) -> None:
    """Delete a memory, or all.

    --all deletes every memory that this agent reads: the shared ones and its own.
    For AGENT_MEMORY_DELETED_DAYS (7) you can bring a single memory back with restore. --all and --erase are permanent.
    --type and --category limit --all.
    """
    if (memory_id is None) is not everything:
        raise typer.BadParameter("Pass a memory's ID, or --all")
    if memory_id is not None and (kind or category):
        raise typer.BadParameter("--type and --category require --all")
    derived: list[str] = []
    with target.open() as memory:
        if memory_id is None:
            _, removed = memory.sync.list_memories(target.owner, memory_type=kind, category=category, limit=0)
            if removed and not yes:
                confirm(f"Delete {counted(removed, 'memory', 'memories')} of {one_line(target.space or target.user)}?")
            if removed or yes:
                removed = memory.sync.delete_user_memories(target.owner, kind, category)
        else:
            if not yes:
                document = memory.sync.get_memory(target.owner, memory_id)
                removed = memory.sync.why(target.owner, memory_id, limit=0).removed if erase and not document else None
                shown = document or (removed and removed.document)
                if shown is None:
                    raise MemoryNotFound(memory_id)
                text = one_line(shown.content)
                confirm(f"Delete “{text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}”?")
            done = memory.sync.delete_memory(target.owner, memory_id, erase=erase)
            if not done:
                raise MemoryNotFound(memory_id)
            removed, derived = 1, list[str](getattr(done, "derived", ()))
    made = f", and {counted(len(derived), 'memory', 'memories')} made from it: {' '.join(derived)}" if derived else ""
    more = {"derived": derived} if erase and memory_id is not None else {}
    target.print({"deleted": removed, **more}, f"Deleted {counted(removed, 'memory', 'memories')}{made}")
