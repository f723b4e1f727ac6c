"""``migrate``: copies memories of the old flat namespace to the categories of their types."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inference_core.cli.opening import existing_settings
from inference_core.cli.options import Agent, AsJson, Url, Users
from inference_core.cli.output import harmless, print_json
from inference_core.cli.progress import progress_bar


def migrate(
    users: Users = None,
    legacy_namespace: Annotated[str, typer.Option("--legacy-namespace", metavar="NAME")] = "memories",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    agent: Agent = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Copy memories of the old flat namespace (user, "memories") to the categories of their types.

    The old ones stay. Safe to repeat.
    """
    from inference_core.migration.migrate import migrate_flat

    settings = existing_settings(url)
    with progress_bar("Memories") as advance:
        report = migrate_flat(
            settings.store_url,
            user_ids=users,
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
