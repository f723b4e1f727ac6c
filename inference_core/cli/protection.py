"""What protects a store and its users: backups, erasures, confirmations, the audit trail, legal holds, spaces.

The commands are ``backup``, ``verify``, ``recover``, ``erase``, ``erasures``, ``review``, ``audit``, ``hold`` and
``spaces``.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inference_core.cli.memories import as_json
from inference_core.cli.options import (
    STREAM,
    Opened,
    Outboxes,
    Target,
    Yes,
    account,
    given_file,
    on_store,
    one_of,
    option,
    print_listed,
)
from inference_core.cli.output import (
    NOT_FOUND,
    CommandFailed,
    confirm,
    counted,
    note,
    one_line,
    print_figures,
    print_id,
    print_json,
    print_numbered,
    progress_bar,
    stamp,
    working,
)
from inference_core.effects import run
from inference_core.errors import InvalidInput
from inference_core.lifecycle.erasing import erase as erase_user
from inference_core.lifecycle.ledger import Ledger, ledger_of
from inference_core.lifecycle.repairs import replay as replay_erasures
from inference_core.memory.audit import AuditEvent
from inference_core.memory.namespaces import GRANTS, Space, decode_label
from inference_core.memory.secrets import quoted
from inference_core.memory.spaces import SpaceRole
from inference_core.stores.factory import open_backend
from inference_core.stores.locks import private_file
from inference_core.stores.rules.holds import MARKER
from inference_core.stores.urls import shown_url
from inference_core.transfer.backup import back_up, restore
from inference_core.transfer.backup import drill as rehearse
from inference_core.transfer.backup import verify as verify_backup

if TYPE_CHECKING:
    from inference_core.agents.checkpoints import CheckpointThreads
    from inference_core.lifecycle.ledger import ErasureReceipt
    from inference_core.memory.namespaces import Owner
    from inference_core.memory.record import PendingMemory
    from inference_core.stores.backend import Backend
    from inference_core.transfer.backup import Manifest


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]
LedgerPath = Annotated[
    Path | None,
    option(
        "--ledger FILE",
        "The ledger of erasures (default: beside the store's files, else ./inference-core-erasures.jsonl).",
    ),
]
Checkpoints = Annotated[
    list[str] | None, option("--checkpoints URL", "A checkpointer's database; may be given several times.")
]


@on_store("url", "json", reads_files=True)
def backup(target: Target, folder: Folder) -> None:
    """Back up the whole store to a new folder. Agents can keep reading and writing."""
    settings = target.settings()
    with closing(open_backend(settings.store_url, **settings.encryption)) as store, progress_bar("Rows") as advance:
        made = back_up(store, folder, advance)
    _print_manifest(target, made, f"Backed up {_held(made)} from {made.source} to {folder}.")


@on_store("url", "json", reads_files=True)
def verify(target: Target, folder: Folder) -> None:
    """Read an entire backup and compare it with its manifest."""
    key = target.settings(creates=True).encryption["encryption_key"]
    with progress_bar("Rows") as advance:
        manifest = verify_backup(folder, advance, encryption_key=key)
    _print_manifest(target, manifest, f"{folder} is intact: {_held(manifest)}.")


@on_store("url", "json", reads_files=True)
def recover(
    target: Target,
    folder: Folder,
    drill: Annotated[bool, option("--drill", "Only test it: restore to a temporary place, then remove that.")] = False,
    ledger: LedgerPath = None,
    checkpoints: Checkpoints = None,
) -> None:
    """Restore a backup into a new or empty store.

    Erases again the users in the ledger, there and in --checkpoints.
    --drill restores it temporarily, compares it, recalls memories from it, and ends with exit code 1 if that fails.
    """
    settings = target.settings(creates=True)
    if drill:
        with progress_bar("Rows") as advance:
            manifest = rehearse(folder, advance, **settings.encryption)
        _print_manifest(target, manifest, f"{folder} can be restored: {_held(manifest)}.")
        return
    path = ledger or ledger_of(settings.store_url)
    if ledger and not path.exists():
        raise InvalidInput(f"There is no ledger at {path}")
    with _opened_threads(checkpoints or ()) as threads, progress_bar("Rows") as advance:
        book = Ledger(path) if path.exists() else None
        manifest, erased = restore(
            folder,
            settings.store_url,
            book,
            advance,
            threads=threads,
            audit_key=settings.audit_key_bytes,
            **settings.encryption,
        )
    users = len({receipt.subject for receipt in erased})
    again = counted(users, "user", "users")
    where = f"with the ledger {path}, erased {again} again" if book else "without a ledger of erasures"
    text = f"Restored {_held(manifest)} to {shown_url(settings.store_url)}, {where}."
    if settings.encryption["keys"] and not manifest.is_encrypted:
        url = shown_url(settings.store_url)
        how = f"inference-core copy --from {url} --to URL"
        text += f"\n{url} is not encrypted, because the backup is not. To encrypt it: {how}"
    _print_manifest(target, manifest, text, erased_again=users)


def _held(manifest: Manifest) -> str:
    return f"{counted(manifest.rows, 'row', 'rows')} ({counted(manifest.users, 'user', 'users')})"


def _print_manifest(target: Target, manifest: Manifest, text: str, **more: int) -> None:
    facts = {"id": manifest.id, "at": manifest.at, "kind": manifest.kind, "source": manifest.source}
    target.print({**facts, "rows": manifest.rows, "users": manifest.users, **more}, text)


@contextmanager
def _opened(
    target: Target, outboxes: Sequence[str], checkpoints: Sequence[str]
) -> Generator[tuple[list[Backend], list[CheckpointThreads]]]:
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
            from inference_core.agents.checkpoints import CheckpointThreads  # noqa: PLC0415 - imports all agents

            threads = [opened.enter_context(closing(CheckpointThreads(url))) for url in checkpoints]
        yield threads


@on_store("user", "url", "json", reads_files=True)
def erase(
    target: Target,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be removed.")] = False,
    checkpoints: Checkpoints = None,
    outbox: Outboxes = None,
    ledger: LedgerPath = None,
    receipt: Annotated[
        Path | None, option("--receipt FILE", "Write the receipt here; - is standard output, as with --json.")
    ] = None,
    fully: Annotated[bool, option("--full", "PostgreSQL: run VACUUM FULL, which blocks reads and writes.")] = False,
    yes: Yes = False,
) -> None:
    """Permanently remove a user's data.

    That is memories, archive, messages, receipts, jobs and conversations. Then checks that nothing is left, even in the
    bytes of files, and prints a receipt. Agents can keep running. Exit code 1 means that something is left; run it
    again.
    """
    with _opened(target, outbox or (), checkpoints or ()) as (stores, threads), ExitStack() as written:
        book = Ledger(ledger or ledger_of(target.settings().store_url))
        if not dry_run and not yes:
            confirm(f"Permanently erase all data of {one_line(target.user)}?")
        is_printed = target.json or str(receipt) == STREAM
        file = written.enter_context(private_file(receipt)) if receipt and str(receipt) != STREAM else None
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
    if is_printed:
        print_json(document)
    else:
        show_receipt(made, is_done=not dry_run)
    if made.left and not dry_run:
        raise typer.Exit(1)


@on_store("url", "json", reads_files=True)
def erasures(
    target: Target,
    replay: Annotated[
        Path | None,
        option("--replay FILE", "After a restore: erase the users named in this ledger; - is standard input."),
    ] = None,
    ledger: LedgerPath = None,
    checkpoints: Checkpoints = None,
    outbox: Outboxes = None,
) -> None:
    """List erasures, or repeat them on a restored store."""
    if replay is None:
        entries = Ledger(ledger or ledger_of(target.settings().store_url)).entries
        for entry in [] if target.json else entries:
            line = f"{entry['ended']} {entry['id']}: {entry['found']} removed, {entry['left']} left"
            sys.stdout.write(f"{one_line(line)}\n")
        target.print({"erasures": entries}, counted(len(entries), "erasure", "erasures") if entries else "No erasures")
        return
    with (
        given_file(str(replay)) as path,
        _opened(target, outbox or (), checkpoints or ()) as (stores, threads),
        progress_bar("Users") as advance,
    ):
        made = replay_erasures(
            stores,
            Ledger(Path(path)),
            threads=threads,
            by=account(),
            progress=advance,
            audit_key=target.settings().audit_key_bytes,
        )
    for receipt in [] if target.json else made:
        show_receipt(receipt, is_done=True)
    document = {"erasures": [receipt.to_json() for receipt in made]}
    target.print(document, f"Erased {counted(len({receipt.subject for receipt in made}), 'user', 'users')} again")
    if any(receipt.left for receipt in made):
        raise typer.Exit(1)


def show_receipt(receipt: ErasureReceipt, *, is_done: bool) -> None:
    """Prints an erasure's receipt: its ID alone on standard output, the rest on standard error."""
    for store, places in receipt.places.items():
        found = ", ".join(counted(counts.found, _singular(name), name) for name, counts in places.items())
        note(f"{store}: {found or 'nothing'}")
    if not is_done:
        note(f"Would erase {counted(receipt.found, 'row', 'rows')}.")
        return
    for path, count in receipt.files.items():
        if count:
            note(f"{path}: {counted(count, 'trace', 'traces')} left")
    searched = f", searched {counted(len(receipt.files), 'file', 'files')}" if receipt.files else ""
    note(f"Erased {counted(receipt.found, 'row', 'rows')}, {receipt.left} left{searched}. Receipt:")
    print_id(receipt.id, "")
    for copy in receipt.copies:
        note(f"May still contain the user's data: {copy}")
    for place in (*receipt.remains, *receipt.not_ours):
        note(f"Not erased: {place}")


def _singular(several: str) -> str:
    """The singular of what a receipt counts: "receipt of recalls" for "receipts of recalls"."""
    found = re.match(r"(?!what )([\w ]*?)(ies|s)(?= that | of | under | and |$)", several)
    if found is None:  # such as "archive"
        return several
    return found[1] + ("y" if found[2] == "ies" else "") + several[found.end() :].replace(" wait ", " waits ")


_ALL: Final = "all"
When = Annotated[
    datetime | None, option("--until", "The day on which the hold ends automatically.", formats=["%Y-%m-%d"])
]
_ROLES = [role.name.lower() for role in SpaceRole]


@on_store("user", "space", "agent", "url", "embeddings", "json")
def review(
    target: Target,
    approve: Annotated[list[str] | None, option("--approve ID", "Approve this memory, or all of --session.")] = None,
    text: Annotated[str | None, option("--text", "Replace the text of the memory that you approve.")] = None,
    reject: Annotated[list[str] | None, option("--reject ID", "Reject this memory, or all of --session.")] = None,
    why: Annotated[str | None, option("--why TEXT", "The reason for the rejection.")] = None,
    session: Annotated[str | None, option("--session ID", "Only those of this session.")] = None,
) -> None:
    """Approve or reject memories that wait for confirmation.

    Those of all agents. In a terminal, asks about them one by one; elsewhere, and with --json, lists them. --approve
    and --reject may be given several times.
    """
    given = [*(approve or ()), *(reject or ())]
    if text is not None and (len(approve or ()) != 1 or _ALL in given):
        raise typer.BadParameter("--text applies to one memory: pass exactly one --approve")
    if len(set(given)) < len(given) or (_ALL in given and (session is None or len(given) > 1)):
        raise typer.BadParameter("Pass each ID once; all requires --session and no other IDs")
    is_asked = not (given or target.json) and sys.stdin.isatty() and sys.stderr.isatty()
    with target.open(embeds=bool(given) or is_asked) as memory:
        reviewer = _Reviewer(memory, target.owner, f"admin:{account()}")
        for key in approve or ():
            reviewer.approve(text, **({"session_id": session} if key == _ALL else {"pending_id": key}))
        for key in reject or ():
            reviewer.reject(why, **({"session_id": session} if key == _ALL else {"pending_id": key}))
        left = memory.sync.list_pending(target.owner, session_id=session)
        if is_asked:
            for number, pending in enumerate(left, 1):
                _show([pending], memory.zone, number)
                if not reviewer.asks(pending.id):
                    break
        elif not (given or target.json):
            _show(left, memory.zone)
    done = f"{len(reviewer.approved)} approved, {len(reviewer.rejected)} rejected"
    waiting = f"{counted(len(left), 'memory waits', 'memories wait')} for confirmation"
    listed = [
        as_json(pending.document)
        | {
            "source": pending.document.value["source"],
            "why": pending.why,
            "proposed_at": pending.proposed_at,
            "expires_at": pending.expires_at,
            "ends": list(map(as_json, pending.ends)),
        }
        for pending in left
    ]
    document = {"approved": reviewer.approved, "rejected": reviewer.rejected, "pending": listed}
    target.print(document, done if given or is_asked else waiting)
    for key in set(given) - {*reviewer.approved, *reviewer.rejected, _ALL}:
        raise CommandFailed(
            f"No memory {quoted(key)} waits for confirmation: there is none, or it was decided differently; "
            "inference-core review lists those that wait",
            NOT_FOUND,
        )


class _Reviewer:
    """Approves and rejects what waits for ``owner``, in the name of ``by``, and collects the ids of both."""

    def __init__(self, memory: Opened, owner: Owner, by: str) -> None:
        self._sync, self._owner, self._by = memory.sync, owner, by
        self.approved: list[str] = []
        self.rejected: list[str] = []

    def approve(self, text: str | None, **which: str | None) -> None:
        self.approved += self._sync.approve_pending(self._owner, edit=text, by=self._by, **which)

    def reject(self, why: str | None, **which: str | None) -> None:
        self.rejected += self._sync.reject_pending(self._owner, why=why, by=self._by, **which)

    def asks(self, key: str) -> bool:
        """Asks what to do with the pending memory ``key``, and does it; False if no more are to be asked about."""
        while True:
            try:
                match _answer("[a]pprove, [e]dit and approve, [r]eject, [s]kip or [q]uit? "):
                    case "a":
                        self.approve(None, pending_id=key)
                    case "e":
                        self.approve(_answer("New text: "), pending_id=key)
                    case "r":
                        self.reject(_answer("Why? ") or None, pending_id=key)
                    case "s":
                        pass
                    case "q":
                        return False
                    case _:
                        continue
            except EOFError:
                return False
            except InvalidInput as error:  # a text that cannot be stored: ask again
                note(str(error), "red")
                continue
            return True


def _answer(question: str) -> str:
    """The line that answers ``question``; a single letter in lower case. Raises EOFError at the end of the input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    given = line.strip()
    return given.lower() if len(given) == 1 else given


def _show(proposals: list[PendingMemory], zone: tzinfo, first: int = 1) -> None:
    rows: list[tuple[str, list[str]]] = []
    for pending in proposals:
        source = pending.document.value["source"]
        made = [f"{name} {source[key]}" for key, name in (("tool", "tool"), ("thread_id", "thread")) if key in source]
        until = f"waits until {stamp(pending.expires_at, zone)}"
        facts = [" · ".join([pending.document.memory_type or "", f"from {source['origin']}", *made, until])]
        ends = [f"replaces: {one_line(old.content)}" for old in pending.ends]
        rows.append((pending.document.content, [*facts, pending.why, *ends, f"id {pending.id}"]))
    print_numbered(rows, first)


@on_store("user", "space", "agent", "url", "json")
def audit(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("show", "verify")))] = "show",
    thread: Annotated[str | None, option("--thread ID", "Only changes in this thread.")] = None,
    actor: Annotated[
        str | None, option("--actor NAME", "Only changes by this kind of actor, ID, agent or tool.")
    ] = None,
    memory_id: Annotated[str | None, option("--id ID", "Only changes of this memory.")] = None,
    since: Annotated[datetime | None, option("--since DATE", "Only changes at this time or later.")] = None,
    limit: Annotated[int, option("--limit N", "Maximum number of events.", min=1)] = 50,
    head: Annotated[str | None, option("--head HEX", "verify: the head that an earlier verify printed.")] = None,
) -> None:
    """Show who changed a user's memories.

    The newest change first: which agent, thread, run and tool; never the text.
    verify checks that no event was changed, removed or added, as far as the trail is sealed.
    """
    if action == "verify":
        _verify(target, head)
        return
    with target.open() as memory:
        events = memory.sync.audit(
            target.owner,
            thread_id=thread,
            actor=actor,
            memory_id=memory_id,
            since=since and since.replace(tzinfo=memory.zone),
            limit=limit,
        )
    document = {"events": [{"id": event.id, **event.to_value()} for event in events]}
    print_listed(
        target, document, [_entry(event, memory.zone) for event in events], counted(len(events), "event", "events")
    )


def _verify(target: Target, head: str | None) -> None:
    with target.open() as memory:
        check = memory.sync.verify_audit(target.owner, head)
    if target.json:
        print_json(asdict(check))
    else:
        for problem in check.problems:
            note(problem, "red")
        gone = f", {check.expired} expired, {check.erased} erased" if check.expired or check.erased else ""
        verdict = f"{len(check.problems)} problems" if check.problems else "intact"
        note(f"{counted(check.events, 'event', 'events')}, {check.sealed} sealed{gone}: {verdict}")
        print_id(check.head, "Keep this head, and pass it to a later audit verify --head")
    if check.problems:
        raise typer.Exit(1)


def _entry(event: AuditEvent, zone: tzinfo) -> tuple[str, list[str]]:
    """When who did what, and below it why and to which memories."""
    who: dict[str, Any] = event.actor.to_value()
    kind = " ".join(filter(None, (who.pop("kind", "unknown"), who.pop("id", None))))
    by = ", ".join([kind, *(f"{name.removesuffix('_id')} {value}" for name, value in sorted(who.items()))])
    lines = [f"{name} {value}" for name, value in (("job", event.job), ("reason", event.reason)) if value]
    for change in event.changes:
        if change.key == MARKER:  # only tells processes to read the holds again
            continue
        after = "gone" if change.after == 0 else "new" if change.after is None else f"version {change.after}"
        before = f"version {change.before} → " if change.before else ""
        lines.append(f"{'/'.join(change.place).lstrip('~')} {change.key}: {before}{after}")
    return f"{stamp(event.at, zone)} {event.operation} by {by}", lines


@on_store("user", "url", "json")
def hold(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("add", "list", "copies", "release")))] = "list",
    hold_id: Annotated[str | None, typer.Argument(metavar="ID", help="release: the hold's ID.")] = None,
    reason: Annotated[str | None, option("--reason TEXT", "add: why, for auditors.")] = None,
    memory: Annotated[str | None, option("--memory ID", "add: only this memory.")] = None,
    session: Annotated[str | None, option("--session ID", "add: only this session.")] = None,
    until: When = None,
) -> None:
    """Protect a user's data from removal by legal holds.

    During a hold, deleting, undoing, purging and erasing fail; forgetting, retention and expiry skip what is held.
    copies lists what has been replaced since the hold began.
    """
    if (action == "release") != (hold_id is not None):
        raise typer.BadParameter("release requires a hold's ID; no other action takes one")
    with target.open() as opened:
        service, zone = opened.sync, opened.zone
        if action == "add":
            if not reason:
                raise typer.BadParameter("Pass the reason with --reason")
            end = until and until.replace(tzinfo=zone)
            made = service.hold(target.user, reason, memory_id=memory, session_id=session, until=end)
            target.print_id({"hold": asdict(made)}, made.id, "The hold begins; hold release ends it")
            return
        if hold_id is not None:
            if not service.release_hold(target.user, hold_id):
                raise CommandFailed(f"This user has no hold {quoted(hold_id)}", NOT_FOUND)
            target.print({"released": hold_id}, f"Released {hold_id}")
            return
        holds = service.list_holds(target.user) if action == "list" else []
        copies = service.list_held_copies(target.user) if action == "copies" else []
    if target.json:
        print_json({"holds" if action == "list" else "copies": [asdict(row) for row in (holds or copies)]})
        return
    rows: list[tuple[str, list[str]]] = []
    for one in holds:
        subject = f"memory {one.memory_id}" if one.memory_id else one.session_id and f"session {one.session_id}"
        end = f", until {one.until:%Y-%m-%d}" if one.until else ""
        rows.append((one.reason, [f"id {one.id}: {subject or 'all'}", f"by {one.by}, {one.since:%Y-%m-%d}{end}"]))
    for one in copies:
        text = one.value.get("content") or one.value.get("text") or one.key
        rows.append((str(text), [f"{one.place}, {one.key}", f"replaced {one.replaced_at:%Y-%m-%d}"]))
    print_numbered(rows)
    if not rows:
        note("No hold" if action == "list" else "No copies")


@on_store("url", "json")
def spaces(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("grant", "revoke", "list")))] = "list",
    space: Annotated[
        str | None, typer.Argument(metavar="SPACE", help="The name of the space; list: by default all spaces.")
    ] = None,
    user: Annotated[str | None, option("--user ID", "The user with the role.")] = None,
    group: Annotated[str | None, option("--group NAME", "The group with the role.")] = None,
    role: Annotated[
        str, option("--role", "The role to grant; each includes those before it.", **one_of(_ROLES))
    ] = "read",
) -> None:
    """Grant, revoke and list roles in spaces.

    A space has memories that several users share.
    Other processes notice a change within five seconds.
    """
    if space is None:
        if action != "list":
            raise typer.BadParameter(f"{action} requires the name of a space")
        _list_spaces(target)
        return
    with target.open(creates=action == "grant") as memory:
        service, shared = memory.sync, Space(space)
        if action == "grant":
            service.grant(shared, role, user=user, group=group)
        elif action == "revoke" and not service.revoke(shared, user=user, group=group):
            note("There was no such role")
        roles = service.list_grants(shared)
    if target.json:
        print_json({"space": space, "roles": roles})
    elif roles:
        print_figures(roles)
    else:
        note("No roles have been granted in this space")


def _list_spaces(target: Target) -> None:
    """Prints the names of all spaces in which roles have been granted, and how many have one there."""
    with target.open() as memory:
        engine = memory.service.scope.engine
        grants = run(engine.scan(run(engine.namespaces((GRANTS,)))))
    counts = Counter(decode_label(row.key) for row in grants)
    names = sorted(counts)
    if target.json:
        print_json({"spaces": names})
    elif names:
        print_figures({name: counted(counts[name], "role", "roles") for name in names})
    else:
        note("No spaces")
