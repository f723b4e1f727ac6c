"""``audit``: who changed a user's memories, and whether the trail is whole."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from inference_core.cli.options import Target, on_store
from inference_core.cli.output import counted, note, print_json, print_numbered, stamp
from inference_core.memory.audit import AuditEvent


@on_store("user", "agent", "url", "json")
def audit(
    target: Target,
    thread: Annotated[str | None, typer.Option("--thread", metavar="ID", help="Only changes in this thread.")] = None,
    actor: Annotated[
        str | None,
        typer.Option("--actor", metavar="NAME", help="Only those of this kind, id, agent or tool: agent, admin …"),
    ] = None,
    memory_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Only those of this memory.")] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", metavar="DATE", help="Only those at this time or later.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many at most.")] = 50,
) -> None:
    """Show who changed a user's memories, the newest first: which agent, thread, run and tool; never what they say."""
    with target.open() as memory:
        found = memory.sync.audit(
            target.user,
            thread_id=thread,
            actor=actor,
            memory_id=memory_id,
            since=since and since.replace(tzinfo=memory.zone),
            limit=limit,
        )
    if target.json:
        print_json({"events": [{"id": event.id, **event.to_value()} for event in found]})
        return
    rows = [(f"{stamp(event.at, memory.zone)} {event.operation} by {_who(event)}", _lines(event)) for event in found]
    print_numbered(rows)
    note(counted(len(found), "event", "events"))


def _who(event: AuditEvent) -> str:
    who: dict[str, Any] = event.actor.to_value()
    kind = " ".join(filter(None, (who.pop("kind", "unknown"), who.pop("id", None))))
    return ", ".join([kind, *(f"{name.removesuffix('_id')} {value}" for name, value in sorted(who.items()))])


def _lines(event: AuditEvent) -> list[str]:
    lines = [f"{name} {value}" for name, value in (("job", event.job), ("reason", event.reason)) if value]
    for change in event.changes:
        after = "gone" if change.after == 0 else "new" if change.after is None else f"version {change.after}"
        before = f"version {change.before} → " if change.before else ""
        lines.append(f"{'/'.join(change.place)} {change.key}: {before}{after}")
    return lines
