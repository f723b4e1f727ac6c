"""``eval``: how well systems find what answers the questions of a data set, or of a file about the user's own store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inference_core.cli.options import Target, on_store, one_of, wait_ready
from inference_core.cli.output import console, is_plain, print_json, progress_bar
from inference_core.evaluation import DATASETS, STORE, SYSTEMS, WITH_MODEL, WITH_RERANKER

if TYPE_CHECKING:
    from inference_core.evaluation.conversations import Conversation
    from inference_core.evaluation.report import RetrievalReport
    from inference_core.evaluation.systems import System


@on_store("agent", "url", "json")
def evaluate(
    target: Target,
    dataset: Annotated[
        str, typer.Argument(help="The format of the data; store: your own store.", **one_of((*DATASETS, STORE)))
    ],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="The file, or the folder of BEAM.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", metavar="FILE", help="For store: questions, one JSON object a line.")
    ] = None,
    user: Annotated[
        str, typer.Option("--user", metavar="ID", help="For store: the user whose memories these are.")
    ] = "",
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="What is measured; may be given several times.", **one_of(SYSTEMS)),
    ] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option("--embeddings", metavar="NAME", help="Embedding model; may be given several times."),
    ] = None,
    reranker: Annotated[
        list[str] | None,
        typer.Option("--reranker", metavar="NAME", help="Also with this re-ranker: module:name or provider:model."),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="all, first-half, second-half, or the name of a folder of BEAM.")
    ] = "all",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first conversations.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write the result as a picture, e.g. r.png.")
    ] = None,
) -> None:
    """Measure retrieval on a data set, or on your own store, with questions. Nothing in your store changes."""
    from inference_core.evaluation.experiment import run_experiment, summarize
    from inference_core.evaluation.formats import load_dataset
    from inference_core.evaluation.report import Comparison, RetrievalReport

    with ExitStack() as opened:
        runs: list[tuple[str, Callable[[], System]]] = []
        if dataset == STORE:
            if data or not (questions and user):
                raise typer.BadParameter("store needs --questions FILE and --user ID, and no --data")
            conversations, runs = _own_store(opened, replace(target, user=user), questions, reranker or [])
        else:
            if questions or data is None:
                raise typer.BadParameter(f"{dataset} needs --data PATH; --questions is for store")
            conversations = load_dataset(dataset, data, split, limit)
        if dataset != STORE or system or embeddings:
            runs += _runs(target, system or ["ours"], embeddings or [], reranker or [])
        total = len(runs) * sum(len(one.turns) + len(one.questions) for one in conversations)
        done = count(1)
        reports: list[RetrievalReport] = []
        with progress_bar("Memories and questions") as show:
            for name, make in runs:
                outcomes = asyncio.run(run_experiment(conversations, make(), lambda: show(next(done), total)))
                reports.append(RetrievalReport(dataset, name, split, summarize(outcomes)))
    report = reports[0] if len(reports) == 1 else Comparison(reports)
    if plot:
        report.plot(plot)
    if target.json:
        print_json(report.to_json())
    elif is_plain():
        sys.stdout.write(report.to_markdown())
    else:
        from rich.markdown import Markdown

        console().print(Markdown(report.to_markdown()))


def _own_store(
    opened: ExitStack, target: Target, questions: Path, rerankers: Sequence[str]
) -> tuple[list[Conversation], list[tuple[str, Callable[[], System]]]]:
    """The user's memories with the questions, and the store as it is, then with each re-ranker."""
    from inference_core.evaluation.formats import questions_about
    from inference_core.evaluation.systems import OwnStore, make_reranker
    from inference_core.services.agent_memory_service import AgentMemoryStoreService
    from inference_core.stores.factory import open_configured_store

    settings = target.settings()
    judges = {STORE: None} | {f"{STORE} + {name}": make_reranker(name) for name in rerankers}
    services: list[AgentMemoryStoreService] = []
    for judge in judges.values():
        store = opened.enter_context(open_configured_store(settings, ttl=None, reranker=judge))
        wait_ready(store.engine.embedder)
        services.append(AgentMemoryStoreService(store, agent_name=target.agent, counts_access=False, timeout=None))
    runs = [(name, partial(OwnStore, service)) for name, service in zip(judges, services, strict=True)]
    return [questions_about(services[0], target.user, questions)], [*runs]


def _runs(
    target: Target, systems: Sequence[str], models: Sequence[str], rerankers: Sequence[str]
) -> list[tuple[str, Callable[[], System]]]:
    """Each system with each model and each re-ranker that it can have, by a name that tells them apart."""
    from inference_core.evaluation.systems import make_reranker, make_system

    made = {name: make_reranker(name) for name in dict.fromkeys(rerankers)}
    runs: list[tuple[str, Callable[[], System]]] = []
    for system in dict.fromkeys(systems):
        for model in dict.fromkeys(models) if models and system in WITH_MODEL else [None]:
            spec = replace(target, embeddings=model).settings(creates=True).embeddings_spec
            for reranker in [None, *made] if system in WITH_RERANKER else [None]:
                name = system if model is None or len(models) == 1 else f"{system}, {model}"
                name += f" + {reranker}" if reranker else ""
                judge = made[reranker] if reranker else None
                runs.append((name, partial(make_system, system, spec, judge)))
    return runs
