"""The upkeep of a store: ``pin``, ``forget``, ``restore``, ``retention``, ``repair``, ``scan``, ``encryption``, …."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer

from inference_core.cli.options import Id, Outboxes, Target, Users, given_file, on_store, one_of, option, print_listed
from inference_core.cli.output import counted, note, progress_bar
from inference_core.effects import run
from inference_core.errors import ConfigurationError, InvalidInput, MemoryNotFound
from inference_core.lifecycle.forgetting import ForgettingPolicy, MemoryLifecycle
from inference_core.lifecycle.repairs import find_damage, find_secrets, key_status, mend, redact, rotate
from inference_core.lifecycle.retention import RetentionPolicy, owners_with_rows, retain
from inference_core.memory.namespaces import Owner, Space
from inference_core.memory.redaction import Guard
from inference_core.stores.encryption.encrypted import EncryptedBackend
from inference_core.stores.encryption.keyring import StoredKeyRing
from inference_core.stores.factory import open_backend
from inference_core.transfer.copying import reembed as embed_anew

if TYPE_CHECKING:
    from inference_core.effects import Progress
    from inference_core.lifecycle.repairs import Damage, Exposed
    from inference_core.stores.backend import Backend

F = TypeVar("F", "Damage", "Exposed")
_SHOWN: Final = 50


@on_store("user", "space", "agent", "url", "json")
def pin(target: Target, memory_id: Id) -> None:
    """Protect a memory from being forgotten."""
    _pin(target, memory_id, pinned=True)


@on_store("user", "space", "agent", "url", "json")
def unpin(target: Target, memory_id: Id) -> None:
    """Let a pinned memory be forgotten again, like any other."""
    _pin(target, memory_id, pinned=False)


def _pin(target: Target, memory_id: str, *, pinned: bool) -> None:
    with target.open(embeds=True) as memory:
        done = memory.sync.update_memory(target.owner, memory_id, pinned=pinned)
    if not done:
        raise MemoryNotFound(memory_id)
    target.print({"id": memory_id, "pinned": pinned}, f"{'Pinned' if pinned else 'Unpinned'} {memory_id}")


@on_store("user", "url", "json")
def forget(
    target: Target,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be forgotten, and why.")] = False,
    most: Annotated[
        str | None, option("--max N", "Maximum memories: 5000, or 5000,context=200 for single types.")
    ] = None,
    max_tokens: Annotated[str | None, option("--max-tokens N", "Maximum tokens.")] = None,
    half_life: Annotated[
        float | None, option("--half-life DAYS", "Time in which an unused memory loses half its strength.")
    ] = None,
    below: Annotated[float | None, option("--below X", "Forget memories weaker than this.", min=0, max=1)] = None,
) -> None:
    """Forget what has expired, has faded or exceeds a limit.

    That of every agent. You can undo this with restore. Options that you omit come from AGENT_MEMORY_FORGET_…. Pinned
    memories stay.
    """
    limits = {"max_memories": most, "max_tokens": max_tokens, "half_life": half_life, "below": below}
    given = {f"forget_{name}": value for name, value in limits.items() if value is not None}
    with target.open() as memory, ExitStack() as bar:
        try:
            policy = ForgettingPolicy.from_settings(memory.settings.model_copy(update=given))
        except ConfigurationError as error:
            if not given:
                raise
            raise typer.BadParameter(str(error)) from error
        advance = None if dry_run else bar.enter_context(progress_bar("Memories"))
        report = MemoryLifecycle(memory.service).sync.forget(target.user, policy, dry_run=dry_run, progress=advance)
    forgotten = [
        {
            "id": candidate.record.id,
            "content": candidate.record.content,
            "memory_type": candidate.record.memory_type.value,
            "agent_name": candidate.record.agent_name,
            "reason": candidate.reason.value,
            "detail": candidate.detail,
            "strength": round(candidate.strength, 4),
            "recalls": candidate.usage.count,
            "last_recalled": candidate.usage.last,
        }
        for candidate in report.forgotten
    ]
    counts = {"kept": report.kept, "erased": report.erased, "remaining": report.remaining}
    rows = [
        (candidate.record.content, [f"id {candidate.record.id}", f"{candidate.reason.value}: {candidate.detail}"])
        for candidate in report.forgotten
    ]
    kept = f", {len(report.kept)} changed meanwhile and stay" if report.kept else ""
    erased = f", {len(report.erased)} {'would be erased' if dry_run else 'erased'}" if report.erased else ""
    text = f"{'Would forget' if dry_run else 'Forgot'} {len(forgotten)}, {report.remaining} remain{kept}{erased}"
    print_listed(target, {"dry_run": dry_run, "forgotten": forgotten, **counts}, rows, text)


@on_store("url", "json")
def retention(
    target: Target,
    days: Annotated[
        str | None,
        option(
            "--days RULES",
            "Days by memory type, category, all, archive, versions, receipts or conversations, as in "
            "interaction=365,archive=30 (default: AGENT_MEMORY_RETENTION).",
        ),
    ] = None,
    basis: Annotated[
        str | None,
        option("--basis", "What a memory's age is measured from.", **one_of(("created", "last_used", "valid_to"))),
    ] = None,
    users: Users = None,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be removed.")] = False,
) -> None:
    """Remove what is past its retention period.

    Permanently, of all users or of some; pinned memories too.
    """
    with target.open() as memory:
        settings, scope = memory.settings, memory.service.scope
        rules = days or settings.retention
        if not rules:
            raise typer.BadParameter("Pass --days, or set AGENT_MEMORY_RETENTION")
        try:
            policy = RetentionPolicy.parse(rules, cast("Any", basis or settings.retention_basis))
        except InvalidInput as error:
            if days:
                raise
            raise ConfigurationError(f"AGENT_MEMORY_RETENTION: {error}") from error
        owners: list[Owner] = list(users or ()) or run(owners_with_rows(scope))
        found = {owner: run(retain(scope, owner, policy, dry_run=dry_run)) for owner in owners}
    names = {owner: ("space", owner.name) if isinstance(owner, Space) else ("user_id", str(owner)) for owner in found}
    removed = list[dict[str, Any]]()
    rows = list[tuple[str, list[str]]]()
    for owner, overdue in found.items():
        kind, name = names[owner]
        removed += [{kind: name, **memory.to_json()} for memory in overdue]
        whose = f"{kind.removesuffix('_id')} {name}"
        rows += [
            (memory.key, [whose, f"{memory.kind}: since {memory.since:%Y-%m-%d}, kept for {memory.days:g} days"])
            for memory in overdue
        ]
    text = f"{'Would permanently remove' if dry_run else 'Permanently removed'} {counted(len(rows), 'row', 'rows')}"
    print_listed(target, {"dry_run": dry_run, "removed": removed}, rows, text)


@on_store("user", "url", "json")
def restore(
    target: Target,
    memory_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="The IDs that forget and restore print.")
    ] = None,
    everything: Annotated[bool, option("--all", "Everything that can be restored.")] = False,
) -> None:
    """Restore forgotten or deleted memories. Without IDs and --all: show what can be restored."""
    if memory_ids and everything:
        raise typer.BadParameter("Pass memory IDs, or --all")
    with target.open() as memory:
        lifecycle = MemoryLifecycle(memory.service).sync
        if memory_ids or everything:
            report = lifecycle.restore(target.user, memory_ids or None)
            there = [one for one in report.missing if memory.sync.get_memory(target.user, one)]
            for memory_id in there:
                note(f"{memory_id} is neither forgotten nor deleted; there is nothing to restore")
            gone = [one for one in report.missing if one not in there]
            taken = f", {len(report.taken)} stay forgotten because their ids are in use" if report.taken else ""
            target.print(asdict(report), f"Restored {len(report.restored)}{taken}")
            if gone:
                raise MemoryNotFound(gone[0])
            return
        memories = lifecycle.forgotten(target.user)
    rows: list[dict[str, Any]] = []
    lines: list[tuple[str, list[str]]] = []
    for forgotten in memories:
        verb = "" if forgotten.reason == "deleted" else "forgotten "
        until = f", until {forgotten.until:%Y-%m-%d}" if forgotten.until else ""
        lines.append(
            (
                forgotten.document.content,
                [f"id {forgotten.document.id}", f"{forgotten.reason}, {verb}{forgotten.forgotten_at:%Y-%m-%d}{until}"],
            )
        )
        text = {"id": forgotten.document.id, "content": forgotten.document.content}
        rows.append(
            text | {"reason": forgotten.reason, "forgotten_at": forgotten.forgotten_at, "until": forgotten.until}
        )
    print_listed(target, {"forgotten": rows}, lines, f"{len(memories) or 'Nothing'} can be restored")


@on_store("url", "json")
def repair(
    target: Target,
    users: Users = None,
    newer: Annotated[
        bool, option("--newer", "Also remove what a newer version wrote; an updated package can read it.")
    ] = False,
    yes: Annotated[bool, option("--yes -y", "Remove it; otherwise, it is only shown.")] = False,
) -> None:
    """Remove what cannot be read.

    That is damaged rows and vectors, and damaged lines of files. Without --yes it only shows them. Removed data cannot
    be restored; if you have a backup, restore that instead.
    """
    _put_right(
        target,
        lambda backend, advance: find_damage(backend, users or (), advance),
        lambda damage: newer or not damage.is_newer,
        mend if yes else None,
        "removed",
        "--yes",
        "Everything can be read.",
    )


@on_store("url", "json")
def scan(
    target: Target,
    users: Users = None,
    fix: Annotated[bool, option("--fix", "Redact them; otherwise, they are only listed.")] = False,
    pii: Annotated[
        bool, option("--pii", "Also personal data: e-mail addresses, phone numbers, IBANs, IP addresses.")
    ] = False,
) -> None:
    """Find secrets in stored memories and messages.

    Secrets are credentials, keys, passwords and card numbers. Names their kinds and where they are, never the secrets.
    Items that your application put into the store are listed but not changed.
    """
    guard = Guard("redact", "redact" if pii else "off")
    _put_right(
        target,
        lambda backend, advance: find_secrets(backend, guard, users or (), advance),
        lambda tool: not tool.is_item,
        (lambda backend, chosen: redact(backend, guard, chosen)) if fix else None,
        "redacted",
        "--fix",
        "No secrets found.",
    )


def _put_right(
    target: Target,
    find: Callable[[Backend, Progress], Iterable[F]],
    is_meant: Callable[[F], bool],
    act: Callable[[Backend, Sequence[F]], int] | None,
    done: str,
    option: str,
    nothing: str,
) -> None:
    """Finds and shows rows; ``act``, None unless ``option`` was given, puts right those that ``is_meant`` chooses."""
    settings = target.settings()
    with closing(open_backend(settings.store_url, **settings.encryption)) as backend:
        with progress_bar("Rows") as advance:
            found = list(find(backend, advance))
        chosen = [one for one in found if is_meant(one)]
        count = act(backend, chosen) if act else 0
    for one in [] if target.json else found[:_SHOWN]:
        note(str(one))
    if len(found) > _SHOWN and not target.json:
        note(f"… and {len(found) - _SHOWN} more; --json shows all")
    summary = f"{len(chosen)} of {len(found)} would be {done}: run it again with {option}."
    if act:
        summary = f"{done.capitalize()} {count} of {len(found)}."
    target.print({"found": [one.to_json() for one in found], done: count}, summary if found else nothing)


@on_store("url", "json")
def reembed(
    target: Target,
    embeddings: Annotated[str, option("--embeddings NAME", "The new model.")],
    place: Annotated[str | None, typer.Argument(metavar="URL", help="The store; the same as --url.")] = None,
) -> None:
    """Embed all texts with another model. An interrupted run continues where it stopped."""
    settings = Target(url=place or target.url, embeddings=embeddings).settings()
    with progress_bar("Embedding texts") as advance:
        done = embed_anew(settings.store_url, settings.embeddings_spec, advance, **settings.encryption)
    target.print({"embedded": done}, f"Embedded {counted(done, 'text', 'texts')}.")


@on_store("url", "json", reads_files=True)
def encryption(
    target: Target,
    action: Annotated[
        str,
        typer.Argument(
            help="status; rotate: new keys for all rows, or a user's; rewrap: a new master key.",
            **one_of(("status", "rotate", "rewrap")),
        ),
    ] = "status",
    users: Users = None,
    new_key: Annotated[
        Path | None, option("--new-key FILE", "For rewrap: a file with the new master key; - is standard input.")
    ] = None,
    outbox: Outboxes = None,
) -> None:
    """Show or replace the keys of an encrypted store.

    For stores that are encrypted with AGENT_MEMORY_KEYS.
    For rotate, name every other database encrypted with these keys with --outbox, or its rows are lost.
    An interrupted rotation is finished by the next one. To destroy a user's key, erase the user.
    """
    settings = target.settings()
    with ExitStack() as opened:
        stores: list[EncryptedBackend] = []
        for url in (settings.store_url, *(outbox or ())):
            found = opened.enter_context(closing(open_backend(url, **target.encryption_of(url))))
            if not isinstance(found, EncryptedBackend):
                raise ConfigurationError("The store is not encrypted with a key for each user: set AGENT_MEMORY_KEYS")
            stores.append(found)
        backend, *beside = stores
        if action == "status":
            known = key_status(backend, users or ())
            rest = f"{known.destroyed} without a key, {known.rotating} with two; key store {settings.keys}"
            target.print(asdict(known), f"{counted(known.users, 'user', 'users')}, {rest}")
        elif action == "rotate":
            with progress_bar("Rows") as advance:
                done = rotate(backend, users or (), advance, beside=beside)
            rest = ". This finished an interrupted rotation; run it again for the others" * done.is_resumed
            target.print(asdict(done), f"{counted(done.rows, 'row', 'rows')} under {done.labels} new keys{rest}")
        else:
            if new_key is None or not isinstance(backend.keyring, StoredKeyRing):
                raise typer.BadParameter("Pass the file with the new master key: --new-key FILE")
            with given_file(str(new_key)) as path:
                backend.keyring.rewrap(Path(path).read_text(encoding="utf-8"))
            text = "All keys are wrapped by the new master key: set AGENT_MEMORY_ENCRYPTION_KEY to it now"
            target.print({"rewrapped": True}, text)
