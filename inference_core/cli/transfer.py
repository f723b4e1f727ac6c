"""``export``, ``import``, ``copy`` and ``migrate``: memories as a file, and from one store to another."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from inference_core.cli.background import Me, Queued, Strict, Threads, ingest_conversations
from inference_core.cli.options import STREAM, Target, Users, given_file, on_store, one_of, option
from inference_core.cli.output import CommandFailed, counted, print_json, progress_bar
from inference_core.errors import InvalidInput
from inference_core.ingestion import FORMATS
from inference_core.ingestion.formats.chat_exports import json_values
from inference_core.ingestion.formats.transcripts import format_of
from inference_core.memory.text import harmless
from inference_core.stores.factory import open_backend
from inference_core.stores.rules.write_rules import rules_of
from inference_core.stores.urls import parse_url, shown_url
from inference_core.transfer.copying import ConflictPolicy, copy_store
from inference_core.transfer.json_lines import FORMAT, export_store, import_store
from inference_core.transfer.migrate import import_items, migrate_memories
from inference_core.transfer.sources import is_mem0, mem0_items

if TYPE_CHECKING:
    from inference_core.settings import MemorySettings
    from inference_core.stores.backend import Backend
    from inference_core.transfer.copying import TransferReport
    from inference_core.transfer.migration_report import MigrationReport

_TRIED: Final = 20
"""So many values are looked at for the format: the first ones may be odd."""
Conflicts = Annotated[
    str,
    option(
        "--conflicts",
        "If another memory has the ID: use the newer one, keep or replace the existing one, or fail.",
        **one_of(("newer", "keep", "replace", "fail")),
    ),
]


@on_store("url", "json", reads_files=True)
def export(
    target: Target,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The new file, as JSON Lines; compressed if its name ends in .gz. - is standard output.",
        ),
    ],
    users: Users = None,
    vectors: Annotated[bool, option("--vectors", "Include the vectors.")] = False,
    force: Annotated[bool, option("--force", "Replace the file if it exists.")] = False,
) -> None:
    """Write all memories, or those of some users, to a file."""
    is_stream = str(file) == STREAM
    if is_stream and target.json:
        raise typer.BadParameter("Both the memories and the report of --json would be standard output")
    if not is_stream and file.exists() and not force:
        raise CommandFailed(f"{file} already exists; name another file, or replace it with --force")
    if not is_stream and not file.parent.is_dir():
        raise CommandFailed(f"There is no folder {file.parent}")
    with _opened(target.settings().store_url) as backend, progress_bar("Memories") as advance:
        to = sys.stdout.buffer if is_stream else file
        report = export_store(backend, to, user_ids=users or (), with_vectors=vectors, progress=advance)
    name = "standard output" if is_stream else file
    target.print(report.to_json(), f"Wrote {counted(report.written, 'row', 'rows')} to {name}{_left_out(report)}.")


@on_store("agent", "url", "embeddings", "json", reads_files=True)
def import_(
    target: Target,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file from export, memories of mem0 (JSON), or what ingest reads; - is standard input.",
        ),
    ],
    user: Annotated[
        str | None, option("--user ID", "The user of the conversations; of memories, only this user's.")
    ] = None,
    form: Annotated[
        str, option("--format", "The file's format.", **one_of(("auto", "export", "mem0", *FORMATS)))
    ] = "auto",
    conflicts: Conflicts = "newer",
    threads: Threads = None,
    me: Me = None,
    queue: Queued = False,
    strict: Strict = False,
) -> None:
    """Import memories or conversations from a file. Safe to repeat: nothing is stored twice.

    Reads files from export, exports of ChatGPT and Claude (also zipped), WhatsApp chats, OpenAI message lists,
    LangGraph threads (an SQLite file or a postgresql:// URL) and mem0's memories. For langmem, see migrate.
    """
    with given_file(file) as path:
        chosen = (_form_of_memories(path) or format_of(path)) if form == "auto" else form
        if chosen in ("export", "mem0"):
            _import_memories(target, Path(path), chosen, user, conflicts, strict=strict)
        elif user is None:
            raise typer.BadParameter("Pass the user of these conversations: --user ID")
        else:
            owned = replace(target, user=user)
            ingest_conversations(owned, path, chosen, threads or (), me or (), queue=queue, strict=strict)


def _import_memories(target: Target, path: Path, form: str, user: str | None, conflicts: str, *, strict: bool) -> None:
    """Imports a file in the ``form`` "export" or "mem0", and prints a report."""
    settings, users = target.settings(creates=True), () if user is None else (user,)
    if form == "export":
        policy, guard = ConflictPolicy(conflicts), settings.guard
        with _opened(settings.store_url) as backend, progress_bar("Memories") as advance:
            rules_of(backend, settings.quota)
            transferred = import_store(path, backend, user_ids=users, policy=policy, progress=advance, secrets=guard)
        target.print(transferred.to_json(), _summary(transferred, path.name, settings.store_url))
        return
    with progress_bar("Memories") as advance:
        report = import_items(
            settings.store_url,
            lambda: mem0_items(json_values(path), users, strict=strict),
            agent_name=target.agent,
            progress=advance,
            **_written_as(settings),
        )
    _show(target, report)


@on_store("agent", "url", "json")
def migrate(
    target: Target,
    users: Users = None,
    source: Annotated[str | None, option("--from URL", "The database to read (default: the store's).")] = None,
    layouts: Annotated[
        list[str] | None,
        option(
            "--layout NAME",
            "Only these: coala, flat, langmem, files, or labels such as notes.{user}; may be given several times.",
        ),
    ] = None,
    legacy_namespace: Annotated[
        str, option("--legacy-namespace NAME", "The last label of flat namespaces.")
    ] = "memories",
    dry_run: Annotated[bool, option("--dry-run", "Show what would be done, without doing it.")] = False,
) -> None:
    """Copy other applications' memories in LangGraph's stores.

    Reads SqliteStore, PostgresStore and our own stores.
    Finds the layout of the CoALA document, flat (user, "memories") and langmem's ("memories", user). --layout files
    copies deepagents' files too. The originals are not changed. Safe to repeat.
    """
    settings = target.settings(creates=source is not None)
    with progress_bar("Memories") as advance:
        report = migrate_memories(
            settings.store_url,
            source=source,
            layouts=layouts,
            user_ids=users,
            legacy_namespace=legacy_namespace,
            agent_name=target.agent,
            dry_run=dry_run,
            progress=advance,
            **_written_as(settings),
        )
    _show(target, report)


def _written_as(settings: MemorySettings) -> dict[str, Any]:
    """The arguments that say how a store with these settings is written."""
    return {
        "max_content_bytes": settings.max_content_bytes,
        "secrets": settings.guard,
        "quota": settings.quota,
        "confirm": settings.confirm,
        **settings.encryption,
    }


def _show(target: Target, report: MigrationReport) -> None:
    """Prints ``report``; ends with 1 if the store refused some memories."""
    if target.json:
        print_json(report.to_json())
    else:
        sys.stdout.write(harmless(report.to_text()) + "\n")
    if report.failed:
        raise typer.Exit(1)


def _form_of_memories(file: str) -> str | None:
    """The format of a file of memories, "export" or "mem0"; None if it is something else."""
    path = Path(file)
    if path.suffix == ".gz":
        return "export"
    try:
        values = [value for _, value in islice(json_values(path), _TRIED)] if path.is_file() else []
    except InvalidInput:
        return None
    if any(isinstance(value, dict) and cast("dict[str, Any]", value).get("format") == FORMAT for value in values[:1]):
        return "export"
    return "mem0" if any(map(is_mem0, values)) else None


@on_store("json", reads_files=True)
def copy(
    target: Target,
    source: Annotated[str, option("--from URL", "The store to read.")],
    destination: Annotated[str, option("--to URL", "The store to write.")],
    users: Users = None,
    conflicts: Conflicts = "newer",
) -> None:
    """Copy one store into another. Safe to repeat: existing memories are not written again."""
    settings, policy = Target(url=source).settings(), ConflictPolicy(conflicts)
    with _opened(source) as read, _opened(destination) as written, progress_bar("Memories") as advance:
        rules_of(written, settings.quota)
        report = copy_store(
            read, written, user_ids=users or (), policy=policy, progress=advance, secrets=settings.guard
        )
    target.print(report.to_json(), _summary(report, shown_url(source), destination))


@contextmanager
def _opened(url: str) -> Generator[Backend]:
    """The store at ``url``, with the keys of AGENT_MEMORY_KEYS if it has such or is new.

    Without AGENT_MEMORY_KEYS, the encryption key is used only for file stores.
    """
    given = Target(url=url).settings(creates=True).encryption
    if not given["keys"] and parse_url(url).scheme != "file":
        given["encryption_key"] = None
    with closing(open_backend(url, **given, as_it_is=True)) as backend:
        yield backend


def _summary(report: TransferReport, source: str, target: str) -> str:
    kept = f", skipped {report.kept} (id already in use)" if report.kept else ""
    full = f", left out {report.full} (the user's quota has no room)" if report.full else ""
    there = f", {report.already_there} were already there" if report.already_there else ""
    there += f", {report.waiting} wait for the user (see inference-core review)" if report.waiting else ""
    wrote = f"wrote {report.written} to {shown_url(target)}"
    text = f"Read {counted(report.read, 'row', 'rows')} of {source}, {wrote}{there}{kept}{full}{_left_out(report)}."
    if report.has_other_key:
        lost = "rejections, roles and API keys are not valid there"
        text += f" The target has its own secret key, so the source's {lost}."
    return text


def _left_out(report: TransferReport) -> str:
    unreadable = report.unreadable
    return f", left out {unreadable} that cannot be read (see inference-core doctor)" if unreadable else ""
