"""``repair``: removes what of a store cannot be read, after showing it."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Final

import typer

from inference_core.cli.opening import existing_settings
from inference_core.cli.options import AsJson, Url, Users
from inference_core.cli.output import note, print_json
from inference_core.cli.progress import progress_bar

_SHOWN: Final = 50


def repair(
    users: Users = None,
    newer: Annotated[
        bool, typer.Option("--newer", help="Also remove what a newer version of this package wrote; updating reads it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; without, it is only shown.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Remove what cannot be read: damaged rows and vectors, and damaged lines of files.

    Without --yes it only shows them. Removed data cannot be restored; if you have a backup, restore that instead.
    """
    from inference_core.lifecycle.damage import find_damage, mend
    from inference_core.stores.factory import open_backend

    settings = existing_settings(url)
    with closing(open_backend(settings.store_url, encryption_key=settings.encryption_key_text)) as backend:
        with progress_bar("Rows") as advance:
            found = list(find_damage(backend, users or (), advance))
        chosen = [one for one in found if newer or not one.is_newer]
        removed = mend(backend, chosen) if yes else 0
    if json:
        print_json({"found": [one.to_json() for one in found], "removed": removed})
        return
    for one in found[:_SHOWN]:
        note(str(one))
    if len(found) > _SHOWN:
        note(f"… and {len(found) - _SHOWN} more; --json shows all")
    if not found:
        note("Everything can be read.")
    elif yes:
        note(f"Removed {removed} of {len(found)}.")
    else:
        note(f"{len(chosen)} of {len(found)} would be removed: run it again with --yes.")
