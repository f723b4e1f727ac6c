"""``worker``: extracts memories from the messages that wait, until it is stopped."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inference_core.cli.options import Agent, AsJson, Embeddings, Opened, Url, User, held_back, one_of, opened
from inference_core.cli.output import note, print_figures, print_json, progress_bar
from inference_core.effects import run
from inference_core.errors import InvalidInput, ModelError
from inference_core.ingestion import FORMATS

if TYPE_CHECKING:
    from inference_core.ingestion.periodic.on_demand import Done
    from inference_core.ingestion.pipeline import Pipeline
    from inference_core.ingestion.verbatim import IngestReport


# ``ingest``: conversations from files become a user's memories, word for word.

_AUTO: Final = "auto"
_INTERRUPTED: Final = 130


def ingest(
    file: Annotated[Path, typer.Argument(help="A LoCoMo file, a BEAM folder, or JSON Lines with role and content.")],
    user: User,
    agent: Agent = None,
    form: Annotated[str, typer.Option("--format", help="What the file is.", **one_of((_AUTO, *FORMATS)))] = _AUTO,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Remember conversations from a file, one memory a message. Run it again to continue where it stopped."""
    from inference_core.evaluation.formats import load_transcript
    from inference_core.ingestion.transcripts import format_of
    from inference_core.ingestion.verbatim import IngestReport
    from inference_core.ingestion.verbatim import ingest as ingested

    chosen = format_of(file) if form == _AUTO else form
    transcript = load_transcript(chosen, file)
    report = IngestReport()
    try:
        with (
            opened(url, agent, embeddings, embeds=True, creates=True) as memory,
            progress_bar("Messages") as show,
            held_back() as check,
        ):
            for report in ingested(memory.service.scope, user, transcript):
                show(report.done, transcript.total)
                check()
    except KeyboardInterrupt:
        _print(report, chosen, as_json=json)
        note("Interrupted. What was written is kept; run the same command again to continue")
        raise typer.Exit(_INTERRUPTED) from None
    except Exception:
        if report.done:
            _print(report, chosen, as_json=json)
        raise
    _print(report, chosen, as_json=json)


def _print(report: IngestReport, form: str, *, as_json: bool) -> None:
    figures: dict[str, Any] = {
        "format": form,
        "messages": report.messages,
        "memories": report.written,
        "already_there": report.already_there,
        "skipped": dict(report.skipped),
        "sessions": len(report.sessions),
        "seconds": round(report.seconds, 2),
    }
    if as_json:
        print_json(figures | {"without_vector": report.without_vector})
    else:
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items() if count)
        print_figures(figures | {"skipped": reasons or 0})
    if report.without_vector:
        note(f"{report.without_vector} memories wait for their vectors; they get them once the embedding model answers")


# ``queue``, ``undo`` and ``stats``: messages that wait for extraction, undoing it, and figures.

_SHOWN: Final = 60


def queue(
    action: Annotated[
        str, typer.Argument(help="What to do.", **one_of(("status", "list", "retry", "drop")))
    ] = "status",
    keys: Annotated[
        list[str] | None, typer.Argument(help="Failed messages, by the keys that list prints; without, all.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Show the messages that wait to become memories, and retry those that failed.

    status counts them, list shows the failed ones and why, retry puts these back, drop deletes them.
    """
    from inference_core.ingestion import queue as outbox_queue
    from inference_core.ingestion.outbox import Outbox

    if keys and action in ("status", "list"):
        raise typer.BadParameter(f"{action} takes no keys")
    with opened(url, embeds=False) as memory:
        scope = memory.service.scope
        outbox = Outbox(scope.engine, scope.clock)
        if action == "status":
            _show(asdict(run(outbox_queue.status(outbox, scope.clock))), as_json=json)
        elif action == "retry":
            _show({"retried": run(outbox_queue.retry(outbox, scope.clock, keys))}, as_json=json)
        elif action == "drop":
            _show({"dropped": run(outbox_queue.drop(scope.engine, keys))}, as_json=json)
        else:
            letters = run(outbox_queue.dead_letters(scope.engine))
            if json:
                print_json({"dead": [asdict(letter) for letter in letters]})
            for letter in [] if json else letters:
                print_figures({letter.key: letter.text, "user": letter.partition.user_id, "reason": letter.reason})
            if not letters:
                note("No failed messages")


def undo(
    user: User,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="The job, from a memory's metadata.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="All jobs of this session.")] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Undo what was extracted from a conversation: remove its memories and reinstate what they superseded."""
    from inference_core.ingestion.jobs import undo as undone

    if (job is None) == (session is None):
        raise InvalidInput("Give --job or --session")
    with opened(url, embeds=False) as memory:
        removed = run(undone(memory.service.scope, user, job_id=job, session_id=session))
    _show({"removed": removed}, as_json=json)


def stats(user: User, agent: Agent = None, url: Url = None, json: AsJson = False) -> None:
    """Show figures about a user's memories, and about the work that extracted them."""
    from inference_core.ingestion.analytics import statistics

    with opened(url, agent, embeds=False) as memory:
        figures = asdict(run(statistics(memory.service.scope, user)))
    _show(figures, as_json=json)


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        print_figures({name: _as_text(value) for name, value in figures.items()})


def _as_text(value: Any) -> Any:
    match value:
        case list():
            return "; ".join(f"{one['content'][:_SHOWN]} ({one['recalls']})" for one in value) or "none"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case dict():
            return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"  # pyright: ignore[reportUnknownVariableType]
        case float():
            return round(value, 1)
        case _:
            return value


# ``summarize`` and ``insights``: periodic work of the worker, at once and for one user.

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def summarize(
    user: User,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Only this session, even if it is not quiet yet.")
    ] = None,
    dry_run: _DryRun = False,
    agent: Agent = None,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Summarize a user's sessions that have new messages and are quiet (AGENT_MEMORY_SESSION_QUIET).

    Uses the models of AGENT_MEMORY_MODEL, or the sessions' own sentences. Memories stay as they are.
    """
    from inference_core.ingestion.periodic.on_demand import sessions_with_news, summarize_now

    with opened(url, agent, embeddings, embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, {"summaries": True})
        news = run(sessions_with_news(memory.service.scope, pipeline.outbox, user))
        quiet = memory.service.scope.clock.now() - timedelta(seconds=memory.settings.session_quiet)
        due = [one for one in news if (one.last <= quiet if session is None else one.session_id == session)]
        if dry_run:
            _show_periodic({"sessions": [asdict(one) for one in due]}, as_json=json)
            return
        done = run(summarize_now(pipeline, user, [one.session_id for one in due]))
    _report("summaries", done, as_json=json)


def insights(
    user: User,
    dry_run: _DryRun = False,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Draw higher-level memories with the models of AGENT_MEMORY_MODEL, and end those whose sources no longer hold.

    Each cites its sources, which stay as they are. Without a model, none are drawn.
    """
    from inference_core.ingestion.periodic.on_demand import insights_to_do, look_after_insights_now

    with opened(url, None, embeddings, embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, {"insights": True})
        if dry_run:
            found, groups = run(insights_to_do(pipeline, user))
            ending = [one.content for one in found.orphans]
            _show_periodic({"groups": groups, "insights": len(found.insights), "ending": ending}, as_json=json)
            return
        done = run(look_after_insights_now(pipeline, user))
    _report("runs", done, as_json=json)


def _pipeline(memory: Opened, tasks: dict[str, bool]) -> Pipeline:
    from inference_core.agents.from_settings import make_periodic
    from inference_core.ingestion.pipeline import Pipeline
    from inference_core.ingestion.rules import RuleExtractor

    periodic = make_periodic(memory.settings.model_copy(update=tasks))
    return Pipeline(memory.service.scope, RuleExtractor(), periodic=periodic)


def _report(what: str, done: Done, *, as_json: bool) -> None:
    """Prints what was done. Raises ModelError if something failed."""
    _show_periodic({what: done.done, "failed": done.failed}, as_json=as_json)
    if done.failed:
        raise ModelError(
            "Some of it failed; the worker tries it again. inference-core queue list shows failed messages"
        )


def _show_periodic(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
        return
    print_figures({name: value if isinstance(value, int) else len(value) for name, value in figures.items()})
    for one in figures.get("sessions", []):
        note(f"{one['session_id']}: {one['sources']} new")
    for one in [*figures.get("groups", []), *figures.get("ending", [])]:
        note(one)


def worker(
    once: Annotated[bool, typer.Option("--once", help="Process the messages that wait now, then exit.")] = False,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="How many users are processed at once.")
    ] = 4,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Extract memories from the messages that wait, with the models of AGENT_MEMORY_MODEL or by rules.

    Also summarizes sessions, maintains higher-level memories and forgets (AGENT_MEMORY_FORGET_HOURS), where the
    settings say so. Ctrl-C and SIGTERM stop it after the current batches. Any number of workers may share a store.
    """
    from inference_core.agents.from_settings import limits_of, make_extractor, make_periodic
    from inference_core.ingestion.pipeline import Pipeline
    from inference_core.ingestion.worker import Worker
    from inference_core.lifecycle.forgetting import ForgettingRounds
    from inference_core.lifecycle.policy import ForgettingPolicy

    with opened(url, None, embeddings, embeds=True, creates=True) as memory:
        settings, scope = memory.settings, memory.service.scope
        forgetting = ForgettingRounds(scope, ForgettingPolicy.from_settings(settings), settings.forget_hours)
        pipeline = Pipeline(
            scope, make_extractor(settings), limits=limits_of(settings), periodic=make_periodic(settings)
        )
        made = Worker(pipeline, interval_s=settings.worker_interval, threads=threads, chore=forgetting.run_if_due)
        if once:
            made.drain()
            forgetting.run_if_due()
        else:
            stopped = threading.Event()

            def stop(*_: object) -> None:
                stopped.set()

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)
            made.start()
            note("Working; Ctrl-C stops after the current batches")
            stopped.wait()
            made.close()
        figures = asdict(made.progress)
    if json:
        print_json(figures)
    else:
        print_figures(figures)
