"""``audit``: who changed a user's memories, and whether the trail is whole."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from inference_core.cli.options import Target, on_store, one_of
from inference_core.cli.output import counted, fail, note, print_json, print_numbered, stamp
from inference_core.memory.audit import AuditEvent


@on_store("user", "agent", "url", "json")
def audit(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("show", "verify")))] = "show",
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
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEX", help="verify: what an earlier verify printed as the head.")
    ] = None,
) -> None:
    """Show who changed a user's memories, the newest first: which agent, thread, run and tool; never what they say.

    verify checks that no event was changed, removed or added, as far as the trail is sealed.
    """
    if action == "verify":
        _verify(target, head)
        return
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


def _verify(target: Target, head: str | None) -> None:
    with target.open() as memory:
        found = memory.sync.verify_audit(target.user, head)
    if target.json:
        print_json(asdict(found))
    else:
        for problem in found.problems:
            fail(problem)
        gone = f", {found.expired} expired, {found.erased} erased" if found.expired or found.erased else ""
        verdict = f"{len(found.problems)} problems" if found.problems else "whole"
        note(f"{counted(found.events, 'event', 'events')}, {found.sealed} sealed{gone}: {verdict}")
        note(f"head {found.head}")
    if found.problems:
        raise typer.Exit(1)


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
