"""``eval``: how well systems find what answers the questions of a data set, or of a file about the user's own store.

``eval qa``: how well a model then answers them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from inference_core.agents.from_settings import make_chat_models
from inference_core.cli.options import Target, given_file, on_store, one_of, option, wait_ready
from inference_core.cli.output import console, is_plain, print_json, progress_bar
from inference_core.clock import time_zone
from inference_core.evaluation import DATASETS, JUDGE_PROMPTS, MODES, STORE, SYSTEMS, WITH_MODEL, WITH_RERANKER
from inference_core.evaluation.answers import JUDGES, USUAL, Asked, Everything, Nothing, Replies, answered, sampled
from inference_core.evaluation.experiment import run_experiment, summarize
from inference_core.evaluation.formats import conversations_with, load_dataset, questions_about
from inference_core.evaluation.report import AnswerReport, RetrievalReport, SystemComparison, answers_compared
from inference_core.evaluation.systems import OwnStore, make_reranker, make_system
from inference_core.ingestion.formats.transcripts import format_of
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.stores.factory import open_configured_store

if TYPE_CHECKING:
    from inference_core.evaluation.conversations import Conversation
    from inference_core.evaluation.report import AnswerReport, RetrievalReport
    from inference_core.evaluation.systems import System

CONVERSATIONS: Final = "conversations"
"""Given in place of a data set's format: the user's own conversations, with a file of questions."""
NO_JUDGE: Final = "none"
Split = Annotated[str, option("--split", "all, first-half, second-half, or the name of a BEAM folder.")]
Limit = Annotated[int | None, option("--limit", "Only the first N conversations.", min=1)]


class RetrievalUnlessNamed(TyperGroup):
    """A group that runs ``retrieval`` where no command is named: ``eval locomo`` is ``eval retrieval locomo``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses ``args``, with the command's name if they lack it."""
        return super().parse_args(ctx, args if args[:1] in (["qa"], ["retrieval"]) else ["retrieval", *args])


def evaluate() -> None:
    """Measure retrieval, or with qa answers, with questions."""


program: Final = typer.Typer(cls=RetrievalUnlessNamed, callback=evaluate)


@program.command("retrieval")
@on_store("agent", "url", "json", reads_files=True)
def retrieval(
    target: Target,
    dataset: Annotated[
        str, typer.Argument(help="The format of the data; store: your own store.", **one_of((*DATASETS, STORE)))
    ],
    data: Annotated[Path | None, option("--data PATH", "The file, or the BEAM folder; - is standard input.")] = None,
    questions: Annotated[
        Path | None, option("--questions FILE", "For store: questions, one JSON object a line; - is standard input.")
    ] = None,
    user: Annotated[str, option("--user ID", "For store: the user whose memories these are.")] = "",
    system: Annotated[
        list[str] | None, option("--system", "What to measure; may be given several times.", **one_of(SYSTEMS))
    ] = None,
    embeddings: Annotated[
        list[str] | None, option("--embeddings NAME", "Embedding model; may be given several times.")
    ] = None,
    reranker: Annotated[
        list[str] | None, option("--reranker NAME", "Also with this re-ranker: module:name or provider:model.")
    ] = None,
    split: Split = "all",
    limit: Limit = None,
    plot: Annotated[Path | None, option("--plot FILE", "Write the result as a picture, e.g. r.png.")] = None,
) -> None:
    """Measure retrieval with questions, on a data set or your own store. Nothing in your store changes.

    To measure the answers of a model: inference-core eval qa --help.
    """
    with ExitStack() as opened:
        runs: list[tuple[str, Callable[[], System]]] = []
        if dataset == STORE:
            place = _file(opened, _given(dataset, data, questions, user))
            conversations, runs = _own_store(opened, target, user, place, reranker or [])
        else:
            conversations = load_dataset(dataset, _file(opened, _given(dataset, data, questions)), split, limit)
        if dataset != STORE or system or embeddings:
            runs += _runs(target, system or ["ours"], embeddings or [], reranker or [])
        total = len(runs) * sum(len(conversation.turns) + len(conversation.questions) for conversation in conversations)
        done = count(1)
        reports: list[RetrievalReport] = []
        with progress_bar("Memories and questions") as show:
            for name, make in runs:
                outcomes = asyncio.run(run_experiment(conversations, make(), lambda: show(next(done), total)))
                reports.append(RetrievalReport(dataset, name, split, summarize(outcomes)))
    report = reports[0] if len(reports) == 1 else SystemComparison(reports)
    if plot:
        report.plot(plot)
    _print(target, report.to_json, report.to_markdown())


def _print(target: Target, document: Callable[[], object], text: str) -> None:
    if target.json:
        print_json(document())
    elif is_plain():
        sys.stdout.write(text)
    else:
        from rich.markdown import Markdown  # noqa: PLC0415 - slow to import

        console().print(Markdown(text))


@program.command("qa")
@on_store("agent", "url", "json", reads_files=True)
def answers(
    target: Target,
    dataset: Annotated[
        str,
        typer.Argument(
            help="The format of the data; store: your own store; conversations: your own, in any format of ingest.",
            **one_of((*DATASETS, STORE, CONVERSATIONS)),
        ),
    ],
    model: Annotated[str, option("--model NAME", "The model that answers, as provider:model.")],
    judge: Annotated[
        str | None,
        option("--judge NAME", "The model that judges, as provider:model, or none; by default the one that answers."),
    ] = None,
    judge_prompt: Annotated[
        str | None, option("--judge-prompt", "The published rules to judge by.", **one_of(JUDGE_PROMPTS))
    ] = None,
    data: Annotated[Path | None, option("--data PATH", "The file or folder; - is standard input.")] = None,
    form: Annotated[str | None, option("--format NAME", "For conversations: the format (default: detected).")] = None,
    questions: Annotated[
        Path | None, option("--questions FILE", "For store and conversations: one JSON object a line.")
    ] = None,
    user: Annotated[str, option("--user ID", "For store: whose memories these are.")] = "",
    system: Annotated[
        list[str] | None, option("--system", "What recalls memories; may be given several times.", **one_of(MODES))
    ] = None,
    embeddings: Annotated[str | None, option("--embeddings NAME", "Embedding model of ours and dense.")] = None,
    k: Annotated[int, option("--k", "Turns or memories for each question.", min=1)] = 20,
    split: Split = "all",
    limit: Limit = None,
    sample: Annotated[
        int | None, option("--sample", "Only this many questions, drawn at random but the same each time.", min=1)
    ] = None,
    calls: Annotated[int, option("--calls", "Maximum number of model calls at once.", min=1)] = 4,
    price: Annotated[
        list[str] | None, option("--price MODEL=IN/OUT", "Dollars per million tokens, such as m=0.25/2.")
    ] = None,
    cache: Annotated[Path, option("--cache FILE", "Stores every reply, so that a run can be resumed.")] = Path(
        "eval-replies.jsonl"
    ),
) -> None:
    """Let a model answer questions from what systems recall, and another judge the answers.

    You pay for the model calls. Nothing in your store changes. An interrupted run continues where it stopped; --json
    also prints all answers.
    """
    prices = _prices(price or [])
    rules = None if judge == NO_JUDGE else JUDGES[judge_prompt or USUAL.get(dataset, "longmemeval")]
    with ExitStack() as opened:
        runs: list[tuple[str, Callable[[], System]]] = []
        if dataset == STORE:
            place = _file(opened, _given(dataset, data, questions, user))
            conversations, runs = _own_store(opened, target, user, place, [])
        elif dataset == CONVERSATIONS:
            place, zone = _file(opened, _given(dataset, data, questions)), target.settings(creates=True).timezone
            asked = _file(opened, questions or place)
            conversations = conversations_with(form or format_of(place), place, asked, time_zone(zone))
        else:
            conversations = load_dataset(dataset, _file(opened, _given(dataset, data, questions)), split, limit)
        conversations = sampled(conversations, sample)
        names = [*dict.fromkeys(system or ([] if runs else ["ours"]))]
        whole: dict[str, Callable[[], System]] = {"none": Nothing, "full": Everything}
        runs += [(name, whole[name]) for name in names if name in whole]
        models = [embeddings] if embeddings else []
        runs += _runs(target, [name for name in names if name not in whole], models, [])
        # All systems are made before the first call of a model: what they lack shows before anything costs money.
        systems = [(name, opened.enter_context(closing(make()))) for name, make in runs]
        replies = opened.enter_context(Replies(cache))
        done, total = (
            count(1),
            len(runs) * sum(len(conversation.turns) + len(conversation.questions) for conversation in conversations),
        )
        judge_name = None if rules is None else judge or model
        chat_models = dict(zip([model, judge_name], make_chat_models([model, judge_name or model]), strict=True))

        async def measured() -> list[AnswerReport]:
            gate = asyncio.Semaphore(calls)
            asked = {name: Asked(name, made, replies, gate) for name, made in chat_models.items() if name is not None}
            judging = None if rules is None or judge_name is None else (rules, asked[judge_name])
            reports: list[AnswerReport] = []
            for name, recalling in systems:
                outcomes = await answered(
                    conversations, recalling, asked[model], judging, k, lambda: show(next(done), total)
                )
                reports.append(AnswerReport(name, model, judge_name, outcomes, prices))
            return reports

        with progress_bar("Memories and questions") as show:
            reports = asyncio.run(measured())
    facts = {"dataset": dataset, "split": split, "k": k, "sample": sample, "model": model, "judge_model": judge_name}
    facts |= {"judge": None if rules is None else {"name": rules.name, "source": rules.source}}
    runs_found = [report.figures() | {"answers": report.answers()} for report in reports]
    _print(target, lambda: facts | {"runs": runs_found}, answers_compared(reports, dataset, rules))


def _given(dataset: str, data: Path | None, questions: Path | None, user: str = "") -> Path:
    """The path to read ``dataset`` from: ``questions`` for the own store, else ``data``.

    Raises BadParameter where an option is missing, or does not go with ``dataset``.
    """
    if dataset == STORE:
        if data or questions is None or not user:
            raise typer.BadParameter("store needs --questions FILE and --user ID, and no --data")
        return questions
    if data is None or (questions is None) == (dataset == CONVERSATIONS):
        needed = "--data PATH and --questions FILE" if dataset == CONVERSATIONS else "--data PATH"
        raise typer.BadParameter(f"{dataset} needs {needed}; --questions is for {STORE} and {CONVERSATIONS}")
    return data


def _file(opened: ExitStack, path: Path) -> Path:
    """``path``, or a copy of standard input for "-", which stays until ``opened`` is closed."""
    return Path(opened.enter_context(given_file(str(path))))


def _prices(given: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Dollars per million tokens, in and out, by model. Raises BadParameter for a malformed price."""
    found: dict[str, tuple[float, float]] = {}
    for text in given:
        name, _, both = text.rpartition("=")
        try:
            cost_in, cost_out = map(float, both.split("/"))
        except ValueError as error:
            raise typer.BadParameter(f"--price must be MODEL=IN/OUT, such as openai:m=0.25/2, not {text!r}") from error
        found[name] = (cost_in, cost_out)
    return found


def _own_store(
    opened: ExitStack, target: Target, user: str, questions: Path, rerankers: Sequence[str]
) -> tuple[list[Conversation], list[tuple[str, Callable[[], System]]]]:
    """The questions about the user's memories, and runs on the store: as it is, then with each re-ranker.

    Closing ``opened`` closes the stores.
    """
    settings = target.settings()
    judges = {STORE: None} | {f"{STORE} + {name}": make_reranker(name) for name in rerankers}
    services: list[AgentMemoryStoreService] = []
    for judge in judges.values():
        store = opened.enter_context(open_configured_store(settings, ttl=None, reranker=judge))
        wait_ready(store.engine.embedder)
        services.append(AgentMemoryStoreService(store, agent_name=target.agent, counts_access=False, timeout=None))
    runs = [(name, partial(OwnStore, service)) for name, service in zip(judges, services, strict=True)]
    return [questions_about(services[0], user, questions)], [*runs]


def _runs(
    target: Target, systems: Sequence[str], models: Sequence[str], rerankers: Sequence[str]
) -> list[tuple[str, Callable[[], System]]]:
    """Each system with each embedding model and re-ranker that it can use: a distinct name, and what makes it."""
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
