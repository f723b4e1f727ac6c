"""``export``, ``import`` and ``copy``: memories as a file, and from one store to another."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inference_core.cli.options import Target, Users, on_store, one_of
from inference_core.cli.output import counted, progress_bar
from inference_core.errors import InvalidInput
from inference_core.stores.urls import parse_url, shown_url

if TYPE_CHECKING:
    from inference_core.stores.backend import Backend
    from inference_core.transfer.copying import TransferReport

Conflicts = Annotated[
    str,
    typer.Option(
        "--conflicts",
        help="If another memory has the id: the newer one wins, the existing one is kept or replaced, or fail.",
        **one_of(("newer", "keep", "replace", "fail")),
    ),
]


@on_store("url", "json")
def export(
    target: Target,
    file: Annotated[Path, typer.Argument(help="The new file, as JSON Lines; compressed if its name ends in .gz.")],
    users: Users = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Include the vectors.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write all memories, or those of some users, to a file."""
    from inference_core.transfer.json_lines import export_store

    if file.exists() and not force:
        raise InvalidInput(f"{file} exists already; name another file, or replace it with --force")
    with _opened(target.settings().store_url) as backend, progress_bar("Memories") as advance:
        report = export_store(backend, file, user_ids=users or (), with_vectors=vectors, progress=advance)
    target.print(report.to_json(), f"Wrote {counted(report.written, 'row', 'rows')} to {file}{_left_out(report)}.")


@on_store("url", "json")
def import_(
    target: Target,
    file: Annotated[Path, typer.Argument(help="A file that export wrote.")],
    conflicts: Conflicts = "newer",
) -> None:
    """Read a file that export wrote. Safe to repeat: existing memories are not written again."""
    from inference_core.transfer.copying import ConflictPolicy
    from inference_core.transfer.json_lines import import_store

    url = target.settings(creates=True).store_url
    with _opened(url) as backend, progress_bar("Memories") as advance:
        report = import_store(file, backend, policy=ConflictPolicy(conflicts), progress=advance)
    target.print(report.to_json(), _summary(report, str(file), url))


@on_store("json")
def copy(
    target: Target,
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The store to read.")],
    destination: Annotated[str, typer.Option("--to", metavar="URL", help="The store to write.")],
    users: Users = None,
    conflicts: Conflicts = "newer",
) -> None:
    """Copy a store into another one. Safe to repeat: existing memories are not written again."""
    from inference_core.transfer.copying import ConflictPolicy, copy_store

    Target(url=source).settings()
    with _opened(source) as read, _opened(destination) as written, progress_bar("Memories") as advance:
        report = copy_store(read, written, user_ids=users or (), policy=ConflictPolicy(conflicts), progress=advance)
    target.print(report.to_json(), _summary(report, shown_url(source), destination))


@contextmanager
def _opened(url: str) -> Generator[Backend]:
    """The store at ``url``; the configured key is for those of files, whichever side they are on."""
    from inference_core.stores.factory import open_backend

    key = Target(url=url).settings(creates=True).encryption_key_text if parse_url(url).scheme == "file" else None
    with closing(open_backend(url, encryption_key=key)) as backend:
        yield backend


def _summary(report: TransferReport, source: str, target: str) -> str:
    kept = f", skipped {report.kept} (id already in use)" if report.kept else ""
    there = f", {report.already_there} were there already" if report.already_there else ""
    wrote = f"wrote {report.written} to {shown_url(target)}"
    return f"Read {counted(report.read, 'row', 'rows')} of {source}, {wrote}{there}{kept}{_left_out(report)}."


def _left_out(report: TransferReport) -> str:
    unreadable = report.unreadable
    return f", left out {unreadable} that cannot be read (see inference-core doctor)" if unreadable else ""
