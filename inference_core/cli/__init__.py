"""The command line: ``inference-core COMMAND``, also as ``python -m inference_core COMMAND``.

A command's module is imported when the command is run, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from inference_core.errors import MissingExtra


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. ``argv`` None: the process's own arguments.

    The codes: 0 done; 1 failed, with one line on standard error that says what to do; 2 wrong usage; 3 no such memory;
    130 interrupted by Ctrl-C.
    """
    try:
        from inference_core.cli.app import run  # noqa: PLC0415 - of an extra

        return run(argv)
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(f"{MissingExtra('inference-core', 'cli')}\n")
        return 1
