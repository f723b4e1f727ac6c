"""Copies memories that applications keep in LangGraph's stores to the CoALA namespaces. Originals stay; safe to repeat.

Finds (user, category[, agent]) of the CoALA document, flat (user, "memories") and langmem's ("memories", user).
`inference-core migrate` does the same.

The exit code is 0 if all was migrated or there was nothing to do, 1 if something failed, 2 for wrong usage. A memory
that holds nothing to store is skipped and named, which is no failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from inference_core.errors import ConfigurationError, InferenceCoreError, InvalidInput
from inference_core.memory.namespaces import MEMORIES_STORE_NAME
from inference_core.settings import MemorySettings, load_env_file, read_settings
from inference_core.transfer.migrate import migrate_memories


def main(argv: Sequence[str] | None = None) -> int:
    """Migrates as the arguments say and prints a report; the exit code."""
    options = _parsed(argv)
    load_env_file()
    try:
        settings = read_settings(MemorySettings)
        with _shown_progress() as progress:
            report = migrate_memories(
                options.database_url or settings.store_url,
                source=options.source,
                layouts=options.layouts,
                user_ids=options.user_ids,
                legacy_namespace=options.legacy_namespace,
                agent_name=options.agent_name,
                dry_run=options.dry_run,
                max_content_bytes=settings.max_content_bytes,
                progress=progress,
                **settings.encryption,
                secrets=settings.guard,
                quota=settings.quota,
                confirm=settings.confirm,
            )
    except InferenceCoreError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigurationError | InvalidInput) else 1
    sys.stdout.write((json.dumps(report.to_json()) if options.json else report.to_text()) + "\n")
    return 1 if report.failed else 0


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be migrated")
    parser.add_argument("--user-ids", nargs="+", metavar="ID", help="only these users (default: all)")
    parser.add_argument(
        "--legacy-namespace",
        default=MEMORIES_STORE_NAME,
        metavar="NAME",
        help="last label of the flat namespace (default: %(default)s)",
    )
    parser.add_argument("--database-url", metavar="URL", help="the store (default: AGENT_MEMORY_STORE_URL)")
    parser.add_argument("--from", dest="source", metavar="URL", help="where they are (default: the store's database)")
    parser.add_argument(
        "--layout",
        dest="layouts",
        action="append",
        metavar="NAME",
        help="only these layouts: coala, flat, langmem, files, or labels such as notes.{user}",
    )
    parser.add_argument(
        "--agent-name",
        metavar="NAME",
        help="give episodic and procedural memories to this agent (default: shared by all agents)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args(argv)


@contextmanager
def _shown_progress() -> Generator[Callable[[int, int], None]]:
    """A progress bar on standard error; without rich or a terminal, a line for every tenth of the memories."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.progress import Progress  # noqa: PLC0415
    except ImportError:
        yield _line_of_progress()
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_of_progress()
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Memories", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _line_of_progress() -> Callable[[int, int], None]:
    tenths = 0

    def show(done: int, total: int) -> None:
        nonlocal tenths
        if done * 10 // total > tenths:
            tenths = done * 10 // total
            sys.stderr.write(f"{done} of {total}\n")

    return show


if __name__ == "__main__":
    sys.exit(main())
