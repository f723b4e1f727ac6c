"""The command line: ``inference-core COMMAND``, also as ``python -m inference_core COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from inference_core.cli import eval as evaluation
from inference_core.cli import reembed
from inference_core.errors import InferenceCoreError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code is 0, 1 with a message on standard error, or 2 (SystemExit) for wrong usage."""
    parser = argparse.ArgumentParser(prog="inference-core", description="Long-term memory for LangGraph agents.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    evaluation.add_to(commands)
    reembed.add_to(commands)
    options = parser.parse_args(argv)
    try:
        options.run(options)
    except InferenceCoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
