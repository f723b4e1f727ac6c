"""``inference-core eval DATASET --data PATH``: how well a system finds what answers a data set's questions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inference_core.cli.opening import memory_settings
from inference_core.cli.options import AsJson, Embeddings, one_of
from inference_core.cli.output import console, is_plain, print_json
from inference_core.cli.progress import progress_bar
from inference_core.evaluation import DATASETS, SYSTEMS

if TYPE_CHECKING:
    from inference_core.evaluation.conversations import Conversation
    from inference_core.evaluation.systems import Advance


def evaluate(
    dataset: Annotated[str, typer.Argument(help="The format of the data.", **one_of(DATASETS))],
    data: Annotated[Path, typer.Option("--data", metavar="PATH", help="The file, or the folder of BEAM.")],
    system: Annotated[str, typer.Option("--system", help="What is measured.", **one_of(SYSTEMS))] = "ours",
    split: Annotated[str, typer.Option("--split", help="all, first-half, second-half, or a folder of BEAM.")] = "all",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first conversations.")] = None,
    embeddings: Embeddings = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write R@10 by category as a picture, e.g. r.png.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure retrieval on a data set."""
    from inference_core.evaluation.datasets import load_dataset  # noqa: PLC0415 - numpy and stores are slow to import
    from inference_core.evaluation.experiment import run_experiment, summarize  # noqa: PLC0415
    from inference_core.evaluation.report import Report  # noqa: PLC0415
    from inference_core.evaluation.systems import make_system  # noqa: PLC0415

    conversations = load_dataset(dataset, data, split, limit)
    with _progress(conversations) as advance:
        measured = make_system(system, memory_settings(None, embeddings).embeddings_spec)
        outcomes = asyncio.run(run_experiment(conversations, measured, advance))
    report = Report(dataset, system, split, summarize(outcomes))
    if plot:
        report.plot(plot)
    if json:
        print_json(report.to_json())
    else:
        _print_table(report.to_markdown())


@contextmanager
def _progress(conversations: Sequence[Conversation]) -> Generator[Advance]:
    """A progress bar over all turns and questions."""
    total = sum(len(one.turns) + len(one.questions) for one in conversations)
    done = count(1)
    with progress_bar("Memories and questions") as show:
        yield lambda: show(next(done), total)


def _print_table(markdown: str) -> None:
    """Prints the report: drawn on a terminal, else as the Markdown that it is."""
    from rich.markdown import Markdown  # noqa: PLC0415 - an extra

    if is_plain():
        sys.stdout.write(markdown)
    else:
        console().print(Markdown(markdown))
