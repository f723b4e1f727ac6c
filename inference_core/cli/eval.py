"""``eval``: how well a system finds what answers the questions of a data set."""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from inference_core.cli.options import Target, on_store, one_of
from inference_core.cli.output import console, is_plain, print_json, progress_bar
from inference_core.evaluation import DATASETS, SYSTEMS


@on_store("embeddings", "json")
def evaluate(
    target: Target,
    dataset: Annotated[str, typer.Argument(help="The format of the data.", **one_of(DATASETS))],
    data: Annotated[Path, typer.Option("--data", metavar="PATH", help="The file, or the folder of BEAM.")],
    system: Annotated[str, typer.Option("--system", help="What is measured.", **one_of(SYSTEMS))] = "ours",
    split: Annotated[
        str, typer.Option("--split", help="all, first-half, second-half, or the name of a folder of BEAM.")
    ] = "all",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first conversations.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write the result as a picture, e.g. r.png.")
    ] = None,
) -> None:
    """Measure retrieval on a data set of conversations or memories with questions."""
    from inference_core.evaluation.experiment import run_experiment, summarize
    from inference_core.evaluation.formats import load_dataset
    from inference_core.evaluation.report import RetrievalReport
    from inference_core.evaluation.systems import make_system

    conversations = load_dataset(dataset, data, split, limit)
    total = sum(len(one.turns) + len(one.questions) for one in conversations)
    done = count(1)
    with progress_bar("Memories and questions") as show:
        measured = make_system(system, target.settings(creates=True).embeddings_spec)
        outcomes = asyncio.run(run_experiment(conversations, measured, lambda: show(next(done), total)))
    report = RetrievalReport(dataset, system, split, summarize(outcomes))
    if plot:
        report.plot(plot)
    if target.json:
        print_json(report.to_json())
    elif is_plain():
        sys.stdout.write(report.to_markdown())
    else:
        from rich.markdown import Markdown

        console().print(Markdown(report.to_markdown()))
