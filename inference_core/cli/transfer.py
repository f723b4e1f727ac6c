"""``export``, ``import`` and ``copy``: memories as a file, and from one store to another."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inference_core.cli.opening import check_exists, memory_settings
from inference_core.cli.options import AsJson, Url, one_of
from inference_core.cli.output import note, print_json
from inference_core.cli.progress import progress_bar
from inference_core.stores.urls import parse_url, shown_url

if TYPE_CHECKING:
    from inference_core.portability.writing import TransferReport
    from inference_core.stores.backend import Backend

_POLICIES: Final = ("newer", "keep", "replace", "fail")
Users = Annotated[
    list[str] | None, typer.Option("--user", metavar="ID", help="Only this user's; may be given several times.")
]
Conflicts = Annotated[
    str,
    typer.Option(
        "--conflicts",
        help="If another memory stands under the id: the newer one stays, what is there is kept or replaced, or fail.",
        **one_of(_POLICIES),
    ),
]


def export(
    file: Annotated[Path, typer.Argument(help="The new file, as JSON Lines; compressed if its name ends in .gz.")],
    users: Users = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Take the vectors along, too.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Write all memories, or those of some users, into a file."""
    from inference_core.portability.json_lines import export_store  # noqa: PLC0415 - stores are slow to import

    settings = memory_settings(url)
    check_exists(settings.store_url)
    with _opened(settings.store_url) as backend, progress_bar("Memories") as advance:
        report = export_store(backend, file, user_ids=users or (), with_vectors=vectors, progress=advance)
    _print(report, f"Wrote {report.written} rows to {file}{_left_out(report)}.", as_json=json)


def import_(
    file: Annotated[Path, typer.Argument(help="A file that export wrote.")],
    conflicts: Conflicts = "newer",
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Read a file that export wrote. Safe to repeat; what is there already is not written again."""
    from inference_core.portability.json_lines import import_store  # noqa: PLC0415 - stores are slow to import
    from inference_core.portability.writing import ConflictPolicy  # noqa: PLC0415

    settings = memory_settings(url)
    with _opened(settings.store_url) as backend, progress_bar("Memories") as advance:
        report = import_store(file, backend, policy=ConflictPolicy(conflicts), progress=advance)
    _print(report, _told(report, str(file), settings.store_url), as_json=json)


def copy(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The store that is read.")],
    target: Annotated[str, typer.Option("--to", metavar="URL", help="The store that is written.")],
    users: Users = None,
    conflicts: Conflicts = "newer",
    json: AsJson = False,
) -> None:
    """Copy a store into another one. Safe to repeat; what is there already is not written again."""
    from inference_core.portability.copying import copy_store  # noqa: PLC0415 - stores are slow to import
    from inference_core.portability.writing import ConflictPolicy  # noqa: PLC0415

    check_exists(source)
    with _opened(source) as read, _opened(target) as written, progress_bar("Memories") as advance:
        report = copy_store(read, written, user_ids=users or (), policy=ConflictPolicy(conflicts), progress=advance)
    _print(report, _told(report, shown_url(source), target), as_json=json)


@contextmanager
def _opened(url: str) -> Generator[Backend]:
    """The store at ``url``; the configured key is for those of files, whichever side they are on."""
    from inference_core.stores.factory import open_backend  # noqa: PLC0415 - stores are slow to import

    key = memory_settings(url).encryption_key_text if parse_url(url).scheme == "file" else None
    with closing(open_backend(url, encryption_key=key)) as backend:
        yield backend


def _told(report: TransferReport, source: str, target: str) -> str:
    kept = f", left {report.kept} whose place another one keeps" if report.kept else ""
    there = f", {report.already_there} were there already" if report.already_there else ""
    wrote = f"wrote {report.written} to {shown_url(target)}"
    return f"Read {report.read} rows of {source}, {wrote}{there}{kept}{_left_out(report)}."


def _left_out(report: TransferReport) -> str:
    unreadable = report.unreadable
    return f", left out {unreadable} that cannot be read (see inference-core doctor)" if unreadable else ""


def _print(report: TransferReport, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
    else:
        note(text)
