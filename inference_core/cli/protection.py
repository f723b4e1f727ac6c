"""``backup``, ``verify``, ``recover``, ``erase``, ``erasures``: backups of whole stores, erasures of whole users."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inference_core.cli.options import Outboxes, Target, Yes, account, on_store
from inference_core.cli.output import confirm, counted, note, one_line, print_json, progress_bar, working
from inference_core.errors import InvalidInput
from inference_core.stores.locks import private_file
from inference_core.stores.urls import shown_url

if TYPE_CHECKING:
    from inference_core.agents.checkpoints import CheckpointThreads
    from inference_core.lifecycle.ledger import ErasureReceipt
    from inference_core.stores.backend import Backend
    from inference_core.transfer.backup import Manifest

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]
LedgerPath = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="The ledger of erasures (default: beside the store's files, else ./inference-core-erasures.jsonl).",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option("--checkpoints", metavar="URL", help="A checkpointer's database; may be given several times."),
]


@on_store("url", "json")
def backup(target: Target, folder: Folder) -> None:
    """Back up the whole store to a new folder. Agents can keep reading and writing."""
    from inference_core.stores.opening import open_backend
    from inference_core.transfer.backup import back_up

    settings = target.settings()
    with closing(open_backend(settings.store_url, **settings.encryption)) as store, progress_bar("Rows") as advance:
        made = back_up(store, folder, advance)
    _print_manifest(target, made, f"Backed up {_held(made)} from {made.source} to {folder}.")


@on_store("url", "json")
def verify(target: Target, folder: Folder) -> None:
    """Read an entire backup and compare it with its manifest."""
    from inference_core.transfer.backup import verify as verify_backup

    key = target.settings(creates=True).encryption["encryption_key"]
    with progress_bar("Rows") as advance:
        found = verify_backup(folder, advance, encryption_key=key)
    _print_manifest(target, found, f"{folder} is intact: {_held(found)}.")


@on_store("url", "json")
def recover(
    target: Target,
    folder: Folder,
    drill: Annotated[
        bool, typer.Option("--drill", help="Only test it: restore to a temporary place, then remove that.")
    ] = False,
    ledger: LedgerPath = None,
    checkpoints: Checkpoints = None,
) -> None:
    """Restore a backup into a new or empty store; erase again the users in the ledger, there and in --checkpoints.

    --drill restores it temporarily, compares it, recalls memories from it, and ends with exit code 1 if that fails.
    """
    from inference_core.lifecycle.ledger import Ledger, ledger_of
    from inference_core.transfer.backup import drill as rehearse
    from inference_core.transfer.backup import restore

    settings = target.settings(creates=True)
    if drill:
        with progress_bar("Rows") as advance:
            found = rehearse(folder, advance, **settings.encryption)
        _print_manifest(target, found, f"{folder} can be restored: {_held(found)}.")
        return
    path = ledger or ledger_of(settings.store_url)
    if ledger and not path.exists():
        raise InvalidInput(f"There is no ledger at {path}")
    with _opened_threads(checkpoints or ()) as threads, progress_bar("Rows") as advance:
        book = Ledger(path) if path.exists() else None
        found, erased = restore(
            folder,
            settings.store_url,
            book,
            advance,
            threads=threads,
            audit_key=settings.audit_key_bytes,
            **settings.encryption,
        )
    users = len({one.subject for one in erased})
    again = counted(users, "user", "users")
    where = f"with the ledger {path}, erased {again} again" if book else "without a ledger of erasures"
    text = f"Restored {_held(found)} to {shown_url(settings.store_url)}, {where}."
    if settings.encryption["keys"] and not found.is_sealed:
        url = shown_url(settings.store_url)
        how = f"inference-core copy --from {url} --to URL"
        text += f"\n{url} is not encrypted, because the backup is not. To encrypt it: {how}"
    _print_manifest(target, found, text, erased_again=users)


def _held(manifest: Manifest) -> str:
    return f"{counted(manifest.rows, 'row', 'rows')} ({counted(manifest.users, 'user', 'users')})"


def _print_manifest(target: Target, manifest: Manifest, text: str, **more: int) -> None:
    facts = {"id": manifest.id, "at": manifest.at, "kind": manifest.kind, "source": manifest.source}
    target.print({**facts, "rows": manifest.rows, "users": manifest.users, **more}, text)


@contextmanager
def _opened(
    target: Target, outboxes: Sequence[str], checkpoints: Sequence[str]
) -> Generator[tuple[list[Backend], list[CheckpointThreads]]]:
    from inference_core.stores.opening import open_backend

    with ExitStack() as opened:
        stores = [
            opened.enter_context(closing(open_backend(url, **target.encryption_of(url))))
            for url in (target.settings().store_url, *outboxes)
        ]
        yield stores, opened.enter_context(_opened_threads(checkpoints))


@contextmanager
def _opened_threads(checkpoints: Sequence[str]) -> Generator[list[CheckpointThreads]]:
    """The conversations of the checkpointers at these URLs."""
    with ExitStack() as opened:
        threads: list[CheckpointThreads] = []
        if checkpoints:
            from inference_core.agents.checkpoints import CheckpointThreads

            threads = [opened.enter_context(closing(CheckpointThreads(url))) for url in checkpoints]
        yield threads


@on_store("user", "url", "json")
def erase(
    target: Target,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    checkpoints: Checkpoints = None,
    outbox: Outboxes = None,
    ledger: LedgerPath = None,
    receipt: Annotated[Path | None, typer.Option("--receipt", metavar="FILE", help="Write the receipt here.")] = None,
    fully: Annotated[
        bool, typer.Option("--full", help="PostgreSQL: run VACUUM FULL, which blocks reads and writes.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Permanently remove a user's data: memories, archive, messages, receipts, jobs, conversations.

    Then checks that nothing is left, even in the bytes of files, and prints a receipt. Agents can keep running.
    Exit code 1 means that something is left; run it again.
    """
    from inference_core.lifecycle.erasing import erase as erase_user
    from inference_core.lifecycle.ledger import Ledger, ledger_of

    with _opened(target, outbox or (), checkpoints or ()) as (stores, threads), ExitStack() as written:
        book = Ledger(ledger or ledger_of(target.settings().store_url))
        if not dry_run and not yes:
            confirm(f"Permanently erase all data of {one_line(target.user)}?")
        file = written.enter_context(private_file(receipt)) if receipt else None
        with working("Erasing …"):
            made = erase_user(
                stores,
                target.user,
                book,
                threads=threads,
                by=account(),
                fully=fully,
                dry_run=dry_run,
                audit_key=target.settings().audit_key_bytes,
            )
        document = made.to_json()
        if file:
            file.write(json.dumps(document, ensure_ascii=False, indent=2).encode() + b"\n")
    if target.json:
        print_json(document)
    else:
        _show_receipt(made, is_done=not dry_run)
    if made.left and not dry_run:
        raise typer.Exit(1)


@on_store("url", "json")
def erasures(
    target: Target,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="After a restore: erase the users named in this ledger."),
    ] = None,
    ledger: LedgerPath = None,
    checkpoints: Checkpoints = None,
    outbox: Outboxes = None,
) -> None:
    """List the erasures of a ledger, or replay them on a restored store."""
    from inference_core.lifecycle.ledger import Ledger, ledger_of
    from inference_core.lifecycle.replaying import replay as replay_erasures

    if replay is None:
        entries = Ledger(ledger or ledger_of(target.settings().store_url)).entries
        for entry in [] if target.json else entries:
            note(f"{entry['ended']} {entry['id']}: {entry['found']} removed, {entry['left']} left")
        target.print({"erasures": entries}, f"{len(entries) or 'No'} erasures")
        return
    with _opened(target, outbox or (), checkpoints or ()) as (stores, threads), progress_bar("Users") as advance:
        made = replay_erasures(
            stores,
            Ledger(replay),
            threads=threads,
            by=account(),
            progress=advance,
            audit_key=target.settings().audit_key_bytes,
        )
    for one in [] if target.json else made:
        _show_receipt(one, is_done=True)
    document = {"erasures": [one.to_json() for one in made]}
    target.print(document, f"Erased {counted(len({one.subject for one in made}), 'user', 'users')} again")
    if any(one.left for one in made):
        raise typer.Exit(1)


def _show_receipt(receipt: ErasureReceipt, *, is_done: bool) -> None:
    for store, places in receipt.places.items():
        note(f"{store}: {', '.join(f'{one.found} {name}' for name, one in places.items()) or 'nothing'}")
    if not is_done:
        note(f"Would erase {counted(receipt.found, 'row', 'rows')}.")
        return
    for path, count in receipt.files.items():
        if count:
            note(f"{path}: {counted(count, 'trace', 'traces')} left")
    searched = f", searched {counted(len(receipt.files), 'file', 'files')}" if receipt.files else ""
    note(f"Erased {counted(receipt.found, 'row', 'rows')}, {receipt.left} left{searched}. Receipt {receipt.id}")
    for copy in receipt.copies:
        note(f"Still contains the user's data: {copy}")
    for place in (*receipt.remains, *receipt.not_ours):
        note(f"Not erased: {place}")
