"""``inference-core eval DATASET --data PATH``: how well a system finds what answers a data set's questions.

``inference-core eval context [--data DIR]``: what of it reaches the prompt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inference_core.cli.opening import memory_settings
from inference_core.cli.options import AsJson, Embeddings, one_of
from inference_core.cli.output import console, is_plain, print_json
from inference_core.cli.progress import progress_bar
from inference_core.evaluation import CONTEXT, DATASETS, SYSTEMS

if TYPE_CHECKING:
    from inference_core.evaluation.context_report import ContextReport
    from inference_core.evaluation.report import Report
    from inference_core.evaluation.systems import Advance

ALL: Final = "all"
TEST: Final = "test"
NO_MODEL: Final = "none"


def evaluate(
    dataset: Annotated[
        str, typer.Argument(help="The format of the data; context: the prompt.", **one_of((*DATASETS, CONTEXT)))
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="The file, or the folder of BEAM; for context, of all sets."),
    ] = None,
    system: Annotated[str, typer.Option("--system", help="What is measured.", **one_of(SYSTEMS))] = "ours",
    split: Annotated[
        str | None,
        typer.Option("--split", help="all, first-half, second-half, or a folder of BEAM; for context tune, test, all."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first conversations.")] = None,
    embeddings: Embeddings = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write the result as a picture, e.g. r.png.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="For context: the engineer asks no model.", **one_of((NO_MODEL,)))
    ] = NO_MODEL,
    json: AsJson = False,
) -> None:
    """Measure retrieval on a data set, or what reaches the prompt."""
    del model  # there is no choice yet
    if dataset == CONTEXT:
        report = _context(data, split or TEST, limit, embeddings)
    elif data is None:
        raise typer.BadParameter(f"eval {dataset} needs --data PATH")
    else:
        report = _retrieval(dataset, data, system, split or ALL, limit, embeddings)
    if plot:
        report.plot(plot)
    if json:
        print_json(report.to_json())
    else:
        _print_table(report.to_markdown())


def _context(data: Path | None, split: str, limit: int | None, embeddings: str | None) -> ContextReport:
    """The context engineer measured on the package's cases and on what lies in the folder ``data``."""
    from inference_core.evaluation.context_report import run_context  # noqa: PLC0415 - numpy and stores are slow
    from inference_core.evaluation.context_sets import case_sets  # noqa: PLC0415

    sets = case_sets(data, limit)
    total = sum(len(user.turns) + len(user.cases) for one in sets for user in one.users)
    with _progress("Memories and questions", total) as advance:
        return asyncio.run(run_context(sets, split, memory_settings(None, embeddings).embeddings_spec, advance))


def _retrieval(dataset: str, data: Path, system: str, split: str, limit: int | None, embeddings: str | None) -> Report:
    from inference_core.evaluation.datasets import load_dataset  # noqa: PLC0415 - numpy and stores are slow to import
    from inference_core.evaluation.experiment import run_experiment, summarize  # noqa: PLC0415
    from inference_core.evaluation.report import Report  # noqa: PLC0415
    from inference_core.evaluation.systems import make_system  # noqa: PLC0415

    conversations = load_dataset(dataset, data, split, limit)
    total = sum(len(one.turns) + len(one.questions) for one in conversations)
    with _progress("Memories and questions", total) as advance:
        measured = make_system(system, memory_settings(None, embeddings).embeddings_spec)
        outcomes = asyncio.run(run_experiment(conversations, measured, advance))
    return Report(dataset, system, split, summarize(outcomes))


@contextmanager
def _progress(what: str, total: int) -> Generator[Advance]:
    """A progress bar over ``total`` of ``what``."""
    done = count(1)
    with progress_bar(what) as show:
        yield lambda: show(next(done), total)


def _print_table(markdown: str) -> None:
    """Prints the report: drawn on a terminal, else as the Markdown that it is."""
    from rich.markdown import Markdown  # noqa: PLC0415 - an extra

    if is_plain():
        sys.stdout.write(markdown)
    else:
        console().print(Markdown(markdown))
