"""``inference-core eval DATASET --data PATH``: how well a system finds what answers a data set's questions."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inference_core.errors import MissingExtra
from inference_core.evaluation import DATASETS, SYSTEMS

if TYPE_CHECKING:
    from inference_core.evaluation.conversations import Conversation
    from inference_core.evaluation.systems import Advance

_HELP: Final = "measure retrieval on a data set"


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers ``commands``."""
    command: argparse.ArgumentParser = commands.add_parser("eval", help=_HELP, description=_HELP)
    command.add_argument("dataset", choices=DATASETS, help="the format of the data")
    command.add_argument("--data", type=Path, required=True, metavar="PATH", help="the file, or the folder of BEAM")
    command.add_argument("--system", choices=SYSTEMS, default="ours", help="what is measured (default: ours)")
    command.add_argument("--split", default="all", help="all, first-half, second-half, or a folder of BEAM")
    command.add_argument("--limit", type=_positive, metavar="N", help="only the first N conversations of the split")
    command.add_argument(
        "--embeddings",
        default=os.environ.get("AGENT_MEMORY_EMBEDDINGS", "auto"),
        help="model of ours, ours-no-late and dense (default: AGENT_MEMORY_EMBEDDINGS, else auto)",
    )
    command.add_argument("--plot", type=Path, metavar="FILE", help="write R@10 by category as a picture, e.g. r.png")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measures and prints the report; progress goes to standard error.

    Raises InvalidInput for data that cannot be read, MissingExtra, and what the system raises.
    """
    from inference_core.evaluation.datasets import load_dataset  # noqa: PLC0415 - numpy and stores are slow to import
    from inference_core.evaluation.experiment import run_experiment, summarize  # noqa: PLC0415
    from inference_core.evaluation.report import Report  # noqa: PLC0415
    from inference_core.evaluation.systems import make_system  # noqa: PLC0415

    conversations = load_dataset(options.dataset, options.data, options.split, options.limit)
    with _progress(conversations) as advance:
        system = make_system(options.system, options.embeddings)
        outcomes = asyncio.run(run_experiment(conversations, system, advance))
    report = Report(options.dataset, options.system, options.split, summarize(outcomes))
    if options.plot:
        report.plot(options.plot)
    if options.json:
        sys.stdout.write(json.dumps(report.to_json(), ensure_ascii=False) + "\n")
    else:
        _print_table(report.to_markdown())


@contextmanager
def _progress(conversations: Sequence[Conversation]) -> Generator[Advance]:
    """A progress bar over all turns and questions. Raises MissingExtra without rich."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("inference-core eval", "cli") from error
    columns = (TextColumn("Memories and questions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    total = sum(len(one.turns) + len(one.questions) for one in conversations)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _print_table(markdown: str) -> None:
    """Prints the report: drawn on a terminal, else as the Markdown that it is."""
    from rich.console import Console  # noqa: PLC0415 - an extra, known to be there
    from rich.markdown import Markdown  # noqa: PLC0415

    console = Console()
    if console.is_terminal:
        console.print(Markdown(markdown))
    else:
        sys.stdout.write(markdown)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)
