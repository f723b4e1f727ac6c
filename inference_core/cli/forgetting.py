"""``forget`` and ``restore``: apply a forgetting policy, and bring memories back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inference_core.cli.opening import opened
from inference_core.cli.options import AsJson, Url, User
from inference_core.cli.output import note, print_json, print_result
from inference_core.cli.progress import progress_bar
from inference_core.cli.rendering import print_numbered
from inference_core.errors import MemoryNotFound

if TYPE_CHECKING:
    from inference_core.lifecycle.choosing import Leaving


def forget(
    user: User,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be forgotten, and why.")] = False,
    most: Annotated[
        str | None,
        typer.Option("--max", metavar="N", help="Most memories: 5000, or 5000,context=200 for single types."),
    ] = None,
    max_tokens: Annotated[str | None, typer.Option("--max-tokens", metavar="N", help="The same in tokens.")] = None,
    half_life: Annotated[
        float | None,
        typer.Option("--half-life", metavar="DAYS", help="The time in which an unused memory loses half its strength."),
    ] = None,
    below: Annotated[
        float | None, typer.Option("--below", metavar="X", min=0, max=1, help="Forget what is weaker than this.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Forget what has expired, has faded or exceeds a limit, for every agent. restore brings it back.

    What you do not give is taken from the settings AGENT_MEMORY_FORGET_…. Pinned memories stay.
    """
    from inference_core.lifecycle.policy import ForgettingPolicy
    from inference_core.lifecycle.service import MemoryLifecycle

    given = {
        "forget_max_memories": most,
        "forget_max_tokens": max_tokens,
        "forget_half_life": half_life,
        "forget_below": below,
    }
    with opened(url, embeds=False) as memory, ExitStack() as bar:
        update = {name: value for name, value in given.items() if value is not None}
        policy = ForgettingPolicy.from_settings(memory.settings.model_copy(update=update))
        advance = None if dry_run else bar.enter_context(progress_bar("Memories"))
        report = MemoryLifecycle(memory.service).sync.forget(user, policy, dry_run=dry_run, progress=advance)
    if json:
        print_json(
            {
                "dry_run": dry_run,
                "forgotten": [_as_json(one) for one in report.forgotten],
                "kept": report.kept,
                "erased": report.erased,
                "remaining": report.remaining,
            }
        )
        return
    print_numbered(
        (one.record.content, [f"id {one.record.id}", f"{one.reason.value}: {one.detail}"]) for one in report.forgotten
    )
    kept = f", {len(report.kept)} changed meanwhile and stay" if report.kept else ""
    erased = f", {len(report.erased)} {'would be erased' if dry_run else 'erased'}" if report.erased else ""
    note(f"{'Would forget' if dry_run else 'Forgot'} {len(report.forgotten)}, {report.remaining} remain{kept}{erased}")


def _as_json(one: Leaving) -> dict[str, Any]:
    return {
        "id": one.record.id,
        "content": one.record.content,
        "memory_type": one.record.memory_type.value,
        "agent_name": one.record.agent_name,
        "reason": one.reason.value,
        "detail": one.detail,
        "strength": round(one.strength, 4),
        "recalls": one.usage.count,
        "last_recalled": one.usage.last,
    }


def restore(
    user: User,
    memory_ids: Annotated[list[str] | None, typer.Argument(help="The ids that forget and restore print.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that can be restored.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Bring back what was forgotten. Without ids and --all: show what can be restored."""
    from inference_core.lifecycle.service import MemoryLifecycle

    if memory_ids and everything:
        raise typer.BadParameter("Give ids, or --all")
    with opened(url, embeds=False) as memory:
        lifecycle = MemoryLifecycle(memory.service).sync
        if not memory_ids and not everything:
            found = [(one.document, one.reason, one.forgotten_at) for one in lifecycle.forgotten(user)]
            if json:
                fields = [
                    {"id": document.id, "content": document.content, "reason": reason, "forgotten_at": at}
                    for document, reason, at in found
                ]
                print_json({"forgotten": fields})
                return
            print_numbered(
                (document.content, [f"id {document.id}", f"{reason}, forgotten {at:%Y-%m-%d}"])
                for document, reason, at in found
            )
            note(f"{len(found) or 'Nothing'} can be restored")
            return
        report = lifecycle.restore(user, memory_ids or None)
    taken = f", {len(report.taken)} stay forgotten because their ids are in use" if report.taken else ""
    print_result(asdict(report), f"Restored {len(report.restored)}{taken}", as_json=json)
    if report.missing:
        raise MemoryNotFound(report.missing[0])
