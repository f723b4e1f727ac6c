"""``python -m inference_core reembed URL --embeddings NAME``: embed all texts of a store with another model."""

from __future__ import annotations

import argparse
import sys

from inference_core.errors import InferenceCoreError
from inference_core.stores.reembed import reembed


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 1 with a message on standard error."""
    parser = argparse.ArgumentParser(prog="python -m inference_core")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("reembed", help="embed all texts of a store with another model")
    command.add_argument("url", help="the store, for example sqlite:///memory.db")
    command.add_argument("--embeddings", required=True, help="'local' or 'provider:model'")
    options = parser.parse_args(arguments)
    try:
        done = reembed(options.url, options.embeddings, _show)
    except InferenceCoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.write(f"\nEmbedded {done} texts.\n")
    return 0


def _show(done: int, total: int) -> None:
    share = min(done / max(total, 1), 1.0)
    sys.stderr.write(f"\r[{'#' * int(share * 40):<40}] {done} of at most {total}")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
