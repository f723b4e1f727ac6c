"""``migrate``: memories of the old flat namespace, put where their types belong."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inference_core.cli.opening import check_exists, memory_settings
from inference_core.cli.options import Agent, AsJson, Url
from inference_core.cli.output import harmless, print_json
from inference_core.cli.progress import progress_bar


def migrate(
    user_ids: Annotated[
        list[str] | None, typer.Option("--user", metavar="ID", help="Only this user's; may be given several times.")
    ] = None,
    legacy_namespace: Annotated[str, typer.Option("--legacy-namespace", metavar="NAME")] = "memories",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and change nothing.")] = False,
    agent: Agent = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Take over the old flat namespace.

    Copies memories from (user, "memories") to the categories of their types; the old ones stay. Safe to repeat.
    """
    from inference_core.migration.migrate import migrate_flat  # noqa: PLC0415 - stores are slow to import

    settings = memory_settings(url)
    check_exists(settings.store_url)
    with progress_bar("Memories") as advance:
        report = migrate_flat(
            settings.store_url,
            user_ids=user_ids,
            legacy_namespace=legacy_namespace,
            agent_name=agent,
            dry_run=dry_run,
            progress=advance,
            encryption_key=settings.encryption_key_text,
        )
    if json:
        print_json(report.to_json())
    else:
        sys.stdout.write(harmless(report.to_text()) + "\n")
    if report.failed:
        raise typer.Exit(1)
