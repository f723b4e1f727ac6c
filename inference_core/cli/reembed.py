"""``inference-core reembed URL --embeddings NAME``: embed all texts of a store with another model."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from inference_core.stores.reembed import reembed

_HELP: Final = "embed all texts of a store with another model"


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers ``commands``."""
    command: argparse.ArgumentParser = commands.add_parser("reembed", help=_HELP, description=_HELP)
    command.add_argument("url", help="the store, for example sqlite:///memory.db")
    command.add_argument("--embeddings", required=True, help="'local' or 'provider:model'")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Embeds the texts and says how many there were. Raises ConfigurationError, EmbeddingError, StoreError."""
    done = reembed(options.url, options.embeddings, _show)
    sys.stderr.write(f"\nEmbedded {done} texts.\n")


def _show(done: int, total: int) -> None:
    share = min(done / max(total, 1), 1.0)
    sys.stderr.write(f"\r[{'#' * int(share * 40):<40}] {done} of at most {total}")
    sys.stderr.flush()
