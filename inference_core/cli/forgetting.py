"""``forget`` and ``restore``: memories that a policy lets go, and bringing them back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inference_core.cli.opening import opened
from inference_core.cli.options import AsJson, Url, User
from inference_core.cli.output import note, print_json
from inference_core.cli.progress import progress_bar
from inference_core.cli.rendering import print_reasons
from inference_core.errors import MemoryNotFound

if TYPE_CHECKING:
    from inference_core.lifecycle.archive import ForgottenMemory
    from inference_core.lifecycle.choosing import Leaving
    from inference_core.lifecycle.policy import ForgettingPolicy
    from inference_core.lifecycle.restoring import RestoreReport
    from inference_core.lifecycle.service import MemoryLifecycle
    from inference_core.services.agent_memory_service import AgentMemoryStoreService
    from inference_core.settings import MemorySettings

Budget = Annotated[
    str | None, typer.Option("--max", metavar="N", help="Most memories: 5000, or 5000,context=200 for single types.")
]


def forget(
    user: User,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be forgotten, and why.")] = False,
    most: Budget = None,
    max_tokens: Annotated[str | None, typer.Option("--max-tokens", metavar="N", help="The same in tokens.")] = None,
    half_life: Annotated[
        float | None, typer.Option("--half-life", metavar="DAYS", help="In which unused memories lose half of it.")
    ] = None,
    below: Annotated[
        float | None, typer.Option("--below", metavar="X", min=0, max=1, help="The strength that is too little.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Forget what has expired, has faded or is too much of a user's memories, every agent's. restore brings it back.

    What is not given is as AGENT_MEMORY_FORGET_… say. Pinned memories stay.
    """
    given = {
        "forget_max_memories": most,
        "forget_max_tokens": max_tokens,
        "forget_half_life": half_life,
        "forget_below": below,
    }
    with opened(url, embeds=False) as memory, ExitStack() as bar:
        policy = _policy(memory.settings, {name: value for name, value in given.items() if value is not None})
        advance = None if dry_run else bar.enter_context(progress_bar("Memories"))
        report = _lifecycle(memory.service).sync.forget(user, policy, dry_run=dry_run, progress=advance)
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
    print_reasons(
        [(one.record.content, f"id {one.record.id}", f"{one.reason.value}: {one.detail}") for one in report.forgotten]
    )
    kept = f", {len(report.kept)} changed meanwhile and stay" if report.kept else ""
    erased = f", {len(report.erased)} {'would be erased' if dry_run else 'erased'}" if report.erased else ""
    note(f"{'Would forget' if dry_run else 'Forgot'} {len(report.forgotten)}, {report.remaining} remain{kept}{erased}")


def restore(
    user: User,
    memory_ids: Annotated[list[str] | None, typer.Argument(help="The ids that forget and restore print.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that can be restored.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Bring back what was forgotten. Without ids and --all: show what can be restored."""
    if memory_ids and everything:
        raise typer.BadParameter("Give ids, or --all")
    with opened(url, embeds=False) as memory:
        lifecycle = _lifecycle(memory.service).sync
        if not memory_ids and not everything:
            _print_forgotten(lifecycle.forgotten(user), as_json=json)
            return
        report = lifecycle.restore(user, memory_ids or None)
    _print_restored(report, as_json=json)
    if report.missing:
        raise MemoryNotFound(report.missing[0])


def _policy(settings: MemorySettings, given: dict[str, Any]) -> ForgettingPolicy:
    from inference_core.lifecycle.policy import ForgettingPolicy  # noqa: PLC0415 - slow to import

    return ForgettingPolicy.from_settings(settings.model_copy(update=given))


def _lifecycle(service: AgentMemoryStoreService) -> MemoryLifecycle:
    from inference_core.lifecycle.service import MemoryLifecycle  # noqa: PLC0415 - slow to import

    return MemoryLifecycle(service)


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


def _print_forgotten(found: list[ForgottenMemory], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "forgotten": [
                    {
                        "id": one.document.id,
                        "content": one.document.content,
                        "reason": one.reason,
                        "forgotten_at": one.forgotten_at,
                    }
                    for one in found
                ]
            }
        )
        return
    print_reasons(
        [
            (one.document.content, f"id {one.document.id}", f"{one.reason}, forgotten {one.forgotten_at:%Y-%m-%d}")
            for one in found
        ]
    )
    note(f"{len(found) or 'Nothing'} can be restored")


def _print_restored(report: RestoreReport, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    taken = f", {len(report.taken)} stay forgotten, as others have their ids" if report.taken else ""
    note(f"Restored {len(report.restored)}{taken}")
