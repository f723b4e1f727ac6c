"""``backup``, ``verify``, ``recover``: whole stores, saved and brought back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inference_core.cli.erasing import Checkpoints, LedgerPath, opened_threads
from inference_core.cli.options import Target, on_store
from inference_core.cli.output import counted, progress_bar
from inference_core.errors import InvalidInput
from inference_core.stores.urls import shown_url

if TYPE_CHECKING:
    from inference_core.transfer.backup import Manifest

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]


@on_store("url", "json")
def backup(target: Target, folder: Folder) -> None:
    """Save the whole store into a new folder, while agents go on reading and writing."""
    from inference_core.stores.opening import open_backend
    from inference_core.transfer.backup import back_up

    settings = target.settings()
    with closing(open_backend(settings.store_url, **settings.encryption)) as store, progress_bar("Rows") as advance:
        made = back_up(store, folder, advance)
    _print(target, made, f"Saved {_held(made)} of {made.source} to {folder}.")


@on_store("url", "json")
def verify(target: Target, folder: Folder) -> None:
    """Read all of a backup, and compare it with its manifest."""
    from inference_core.transfer.backup import verify as verify_backup

    key = target.settings(creates=True).encryption["encryption_key"]
    with progress_bar("Rows") as advance:
        found = verify_backup(folder, advance, encryption_key=key)
    _print(target, found, f"{folder} is whole: {_held(found)}.")


@on_store("url", "json")
def recover(
    target: Target,
    folder: Folder,
    drill: Annotated[
        bool, typer.Option("--drill", help="Only rehearse it, in a place of its own that is removed again.")
    ] = False,
    ledger: LedgerPath = None,
    checkpoints: Checkpoints = None,
) -> None:
    """Restore a backup into a new or empty store, and erase again whom the ledger names, there and in --checkpoints.

    --drill restores it for a moment, compares it, recalls memories from it, and ends with exit code 1 if that fails.
    """
    from inference_core.lifecycle.ledger import Ledger, ledger_of
    from inference_core.transfer.backup import drill as rehearse
    from inference_core.transfer.backup import restore

    settings = target.settings(creates=True)
    if drill:
        with progress_bar("Rows") as advance:
            found = rehearse(folder, advance, **settings.encryption)
        _print(target, found, f"{folder} can be restored: {_held(found)}.")
        return
    path = ledger or ledger_of(settings.store_url)
    if ledger and not path.exists():
        raise InvalidInput(f"There is no ledger at {path}")
    with opened_threads(checkpoints or ()) as threads, progress_bar("Rows") as advance:
        book = Ledger(path) if path.exists() else None
        found, erased = restore(folder, settings.store_url, book, advance, threads=threads, **settings.encryption)
    users = len({one.subject for one in erased})
    again = counted(users, "user", "users")
    where = f"with the ledger {path}, erased {again} again" if book else "without a ledger of erasures"
    text = f"Restored {_held(found)} to {shown_url(settings.store_url)}, {where}."
    _print(target, found, text, erased_again=users)


def _held(manifest: Manifest) -> str:
    return f"{counted(manifest.rows, 'row', 'rows')} of {counted(manifest.users, 'user', 'users')}"


def _print(target: Target, manifest: Manifest, text: str, **more: int) -> None:
    facts = {"id": manifest.id, "at": manifest.at, "kind": manifest.kind, "source": manifest.source}
    target.print({**facts, "rows": manifest.rows, "users": manifest.users, **more}, text)
