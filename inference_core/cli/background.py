"""``ingest``, ``worker``, ``queue``, ``undo``, ``stats``, ``summarize``, ``insights``: memories from conversations."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from inference_core.cli.options import (
    STARTING_S,
    Opened,
    Outboxes,
    Target,
    given_file,
    held_back,
    on_store,
    one_of,
    option,
)
from inference_core.cli.output import counted, note, print_figures, print_json, progress_bar
from inference_core.clock import time_zone
from inference_core.effects import run
from inference_core.errors import ConfigurationError, InvalidInput, ModelError, only_warned
from inference_core.ingestion import FORMATS
from inference_core.ingestion.analytics import statistics
from inference_core.ingestion.extraction.rules import RuleExtractor
from inference_core.ingestion.formats.transcripts import format_of
from inference_core.ingestion.periodic.summaries import unsummarized_sessions
from inference_core.ingestion.undo import undo_changes
from inference_core.ingestion.verbatim import IngestReport, hand_over
from inference_core.ingestion.verbatim import ingest as ingested
from inference_core.ingestion.worker import Pipeline, Worker, insights_to_do, look_after_insights_now, summarize_now
from inference_core.lifecycle.forgetting import ForgettingPolicy, ForgettingRounds
from inference_core.lifecycle.retention import RetentionPolicy, RetentionRounds
from inference_core.outbox.messages import Role
from inference_core.outbox.outbox import dead_letters, drop, retry, status
from inference_core.services.operations.tuning import tuned

if TYPE_CHECKING:
    from inference_core.ingestion.verbatim import IngestReport
    from inference_core.ingestion.worker import Done, Pipeline, Worker
    from inference_core.outbox.messages import ConversationMessage
    from inference_core.settings import MemorySettings

LOOK_S: Final = 10.0
"""Seconds between a worker's looks at whether its settings were changed."""
_LOG = logging.getLogger(__name__)
_AUTO: Final = "auto"
_INTERRUPTED: Final = 130
_SHOWN: Final = 60
_NAMES: Final = 5
_DryRun = Annotated[bool, option("--dry-run", "Show what would be done, without doing it.")]


Threads = Annotated[
    list[str] | None, option("--thread ID", "For a checkpointer: also this thread, if it does not name a user.")
]
Me = Annotated[
    list[str] | None, option("--me NAME", "A name of the user in the file. Messages of other names are not theirs.")
]
Queued = Annotated[bool, option("--queue", "Queue the messages for a worker instead of storing them as memories.")]
Strict = Annotated[bool, option("--strict", "Stop at the first entry that cannot be read, instead of skipping it.")]


@on_store("user", "agent", "url", "embeddings", "json", reads_files=True)
def ingest(
    target: Target,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="An export of ChatGPT or Claude (also zipped), messages, a WhatsApp chat, …; - is standard input.",
        ),
    ],
    form: Annotated[str, option("--format", "The file's format.", **one_of((_AUTO, *FORMATS)))] = _AUTO,
    threads: Threads = None,
    me: Me = None,
    queue: Queued = False,
    strict: Strict = False,
) -> None:
    """Store conversations from a file, one memory per message. Run it again to continue where it stopped.

    Besides the exports, it reads JSON Lines with role and content, LangGraph checkpointers (an SQLite file or a
    postgresql:// URL), LoCoMo files and BEAM folders.
    """
    with given_file(file) as path:
        chosen = format_of(path) if form == _AUTO else form
        ingest_conversations(target, path, chosen, threads or (), me or (), queue=queue, strict=strict)


def ingest_conversations(
    target: Target,
    file: str,
    form: str,
    threads: Sequence[str],
    me: Sequence[str],
    *,
    queue: bool,
    strict: bool = False,
) -> None:
    """Stores the messages of ``file``, or with ``queue`` puts them into the outbox, and prints a report.

    ``me`` are names of the user. What cannot be read is listed, or if ``strict`` ends it with an error. Ctrl-C ends it
    after the current batch, with the exit code 130.
    """
    from inference_core.evaluation.formats import load_transcript  # noqa: PLC0415 - imports all that evaluates

    zone = time_zone(target.settings(creates=True).timezone)
    transcript = load_transcript(form, file, user_id=target.user, me=me, threads=threads, zone=zone, strict=strict)
    authors: dict[str | None, None] = {}

    def noticed() -> Iterator[ConversationMessage]:
        for message in transcript.messages:
            if message.role is Role.USER:
                authors[message.author] = None
            yield message

    seen, report = replace(transcript, messages=noticed()), IngestReport()
    is_over = False
    try:
        with (
            target.open(embeds=not queue, creates=True) as memory,
            progress_bar("Messages") as show,
            held_back() as check,
        ):
            for report in (hand_over if queue else ingested)(memory.service.scope, target.user, seen):
                show(report.done, transcript.total)
                check()
        is_over = True
    except KeyboardInterrupt:
        is_over = True
        note("Interrupted. What was written is kept; run the same command again to continue")
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        if is_over or report.done:
            _print_ingested(target, report, form, transcript.faults, queue=queue)
            if queue and authors and None not in authors:
                names = ", ".join(filter(None, [*authors][:_NAMES]))
                note(
                    f"No message counts as the user's: they are all by others ({names}). If one of these is the user, "
                    "run the same command again with --me NAME"
                )


def _print_ingested(target: Target, report: IngestReport, form: str, faults: Sequence[str], *, queue: bool) -> None:
    figures: dict[str, Any] = {
        "format": form,
        "messages": report.messages,
        "queued" if queue else "memories": report.written,
        "already_there": report.already_there,
        "skipped": dict(report.skipped),
        "sessions": len(report.sessions),
        "seconds": round(report.seconds, 2),
    }
    if report.waiting:
        figures["waiting"] = report.waiting
        note(f"{counted(report.waiting, 'memory waits', 'memories wait')} for the user: inference-core review")
    if target.json:
        print_json(figures | {"without_vector": report.without_vector} | ({"left_out": faults} if faults else {}))
    else:
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items() if count)
        print_figures(figures | {"skipped": reasons or 0})
    for fault in faults:
        note(f"Skipped {fault}")
    if report.without_vector:
        waiting = counted(report.without_vector, "memory waits for its vector", "memories wait for their vectors")
        note(f"{waiting} until the embedding model answers")


@on_store("url", "embeddings", "json")
def worker(
    target: Target,
    once: Annotated[bool, option("--once", "Process the messages that are waiting now, then exit.")] = False,
    threads: Annotated[int, option("--threads N", "Number of users to process at once.", min=1)] = 4,
) -> None:
    """Extract memories from waiting messages.

    Uses the models of AGENT_MEMORY_MODEL, or rules. If the settings say so, also summarizes sessions, maintains
    higher-level memories, forgets (AGENT_MEMORY_FORGET_HOURS) and removes what is past its retention period
    (AGENT_MEMORY_RETENTION). Ctrl-C and SIGTERM stop it after the current batches. Any number of workers can share a
    store.
    """
    with target.open(embeds=True, creates=True, patience_s=STARTING_S) as memory:
        settings, scope = memory.settings, memory.service.scope
        forgetting = ForgettingRounds(scope, ForgettingPolicy.from_settings(settings), settings.forget_hours)
        try:
            policy = RetentionPolicy.parse(settings.retention or "", settings.retention_basis)
        except InvalidInput as error:
            raise ConfigurationError(f"AGENT_MEMORY_RETENTION: {error}") from error
        retaining = RetentionRounds(scope, policy, settings.retention_hours)

        def tidy() -> None:
            retaining.run_if_due()
            forgetting.run_if_due()

        now = run(tuned(scope.engine, settings))
        made = _worker(memory, now, threads, tidy)
        if once:
            made.drain()
            tidy()
        else:
            stopped = threading.Event()

            def stop(*_: object) -> None:
                stopped.set()

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stop)
            made.start()
            note("Working; Ctrl-C stops after the current batches")
            while not stopped.wait(LOOK_S):
                with only_warned(_LOG, "Could not check for changed settings: %s"):
                    found = run(tuned(scope.engine, settings))
                    if found != now:
                        following = _worker(memory, found, threads, tidy)
                        made.close()
                        following.progress, made, now = made.progress, following, found
                        made.start()
            made.close()
        figures = asdict(made.progress)
    names = {"dead": "given up", "failures": "failed attempts", "periodic": "summaries and insights"}
    _print_figures(target, figures, names)


def _worker(memory: Opened, settings: MemorySettings, threads: int, chore: Callable[[], object]) -> Worker:
    from inference_core.agents.from_settings import (  # noqa: PLC0415 - imports all agents
        limits_of,
        make_extractor,
        make_periodic,
    )

    pipeline = Pipeline(
        memory.service.scope,
        make_extractor(settings),
        limits=limits_of(settings),
        periodic=make_periodic(settings),
    )
    return Worker(pipeline, interval_s=settings.worker_interval, threads=threads, chore=chore)


@on_store("url", "json")
def queue(
    target: Target,
    action: Annotated[
        str, typer.Argument(help="What to do.", **one_of(("status", "list", "retry", "drop")))
    ] = "status",
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="The keys of failed messages, as list prints them (default: all)."),
    ] = None,
) -> None:
    """Show and retry the messages that wait to become memories.

    status counts them, list shows the failed ones and why they failed, retry queues these again, drop deletes them.
    """
    if keys and action in ("status", "list"):
        raise typer.BadParameter(f"{action} takes no keys")
    with target.open() as memory:
        scope = memory.service.scope
        if action == "status":
            found = run(status(scope.engine, scope.clock))
            names = {"partitions": "users and agents", "oldest_s": "oldest, seconds", "dead": "failed"}
            _print_figures(target, asdict(found), names)
        elif action == "retry":
            _print_figures(target, {"retried": run(retry(scope.engine, scope.clock, keys))})
        elif action == "drop":
            _print_figures(target, {"dropped": run(drop(scope.engine, keys))})
        else:
            letters = run(dead_letters(scope.engine))
            if target.json:
                print_json({"dead": [asdict(letter) for letter in letters]})
            for letter in [] if target.json else letters:
                print_figures({letter.key: letter.text, "user": letter.partition.user_id, "reason": letter.reason})
            if not letters:
                note("No failed messages")


@on_store("user", "url", "json")
def undo(
    target: Target,
    job: Annotated[str | None, option("--job ID", "The job, from a memory's metadata.")] = None,
    session: Annotated[str | None, option("--session ID", "Changes of this session.")] = None,
    agent: Annotated[str | None, option("--agent NAME", "Changes by this agent.")] = None,
    since: Annotated[datetime | None, option("--since DATE", "Changes since this time.")] = None,
    until: Annotated[datetime | None, option("--until DATE", "Changes before this time.")] = None,
    outbox: Outboxes = None,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be undone.")] = False,
) -> None:
    """Undo the changes of a session, job, agent or period.

    Those made by tools too. Restores memories to their state before; added ones are removed. Later changes by others
    stay, and so do pinned memories. With --session, its waiting and failed messages are removed too, also those in
    --outbox.
    """
    if (job and session) or all(given is None for given in (job, session, agent, since, until)):
        raise InvalidInput("Pass --job or --session, or --agent, --since or --until")
    if outbox and not (session and agent is since is until is None):
        raise InvalidInput("--outbox requires --session, without --agent, --since and --until")
    with target.open() as memory, target.open_outboxes(outbox or ()) as outboxes:
        report = run(
            undo_changes(
                memory.service.scope,
                target.user,
                job_id=job,
                session_id=session,
                agent=agent,
                since=since and since.replace(tzinfo=memory.zone),
                until=until and until.replace(tzinfo=memory.zone),
                dry_run=dry_run,
                outboxes=outboxes,
            )
        )
    figures = {name: len(ids) for name, ids in asdict(report).items() if ids or name == "removed"}
    listed = {name: ", ".join(ids) for name, ids in asdict(report).items() if ids} if dry_run else {}
    _print_figures(target, figures | ({"ids": asdict(report)} if target.json and dry_run else listed))
    if dry_run:
        note("Dry run: nothing was changed.")
    if report.lost:
        note(f"Not restored, because their earlier state is no longer kept: {', '.join(report.lost)}")
    if report.kept:
        note(f"Not removed, because they are pinned: {', '.join(report.kept)}")
    if report.waiting:
        note(f"Waiting for the user's confirmation again: {', '.join(report.waiting)}")


@on_store("user", "agent", "url", "json")
def stats(target: Target) -> None:
    """Count a user's memories, and the work that extracted them."""
    with target.open() as memory:
        figures = asdict(run(statistics(memory.service.scope, target.user)))
    _print_figures(target, figures, _STATISTICS)


_STATISTICS: Final = {
    "over": "no longer hold",
    "used": "recalled",
    "never_used": "never recalled",
    "most_used": "most recalled",
    "oldest_unused": "oldest never recalled",
    "forgotten": "can be restored",
}
"""What people are told in place of the names in JSON."""


@on_store("user", "agent", "url", "embeddings", "json")
def summarize(
    target: Target,
    session: Annotated[str | None, option("--session ID", "Only this session, even if it is not quiet yet.")] = None,
    dry_run: _DryRun = False,
) -> None:
    """Summarize a user's sessions.

    Those with new messages that are quiet (AGENT_MEMORY_SESSION_QUIET). Uses the models of AGENT_MEMORY_MODEL, or the
    sessions' own sentences. Existing memories are not changed.
    """
    with target.open(embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, {"summaries": True})
        news = run(unsummarized_sessions(memory.service.scope, pipeline.outbox, target.user))
        quiet = memory.service.scope.clock.now() - timedelta(seconds=memory.settings.session_quiet)
        due = [one for one in news if (one.last <= quiet if session is None else one.session_id == session)]
        if not dry_run:
            _print_done(
                target, "summaries", run(summarize_now(pipeline, target.user, [session.session_id for session in due]))
            )
            return
    lines = [f"{session.session_id}: {session.sources} new" for session in due]
    _print_planned(target, {"sessions": [asdict(session) for session in due]}, lines)


@on_store("user", "url", "embeddings", "json")
def insights(target: Target, dry_run: _DryRun = False) -> None:
    """Derive higher-level memories from others.

    Uses the models of AGENT_MEMORY_MODEL, and ends insights with sources that are no longer valid. Each cites its
    sources, which are not changed. Without a model, none are derived.
    """
    with target.open(embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, {"insights": True})
        if not dry_run:
            _print_done(target, "runs", run(look_after_insights_now(pipeline, target.user)))
            return
        beliefs, groups = run(insights_to_do(pipeline, target.user))
    ending = [record.content for record in beliefs.orphans]
    _print_planned(target, {"groups": groups, "insights": len(beliefs.insights), "ending": ending}, [*groups, *ending])


def _pipeline(memory: Opened, tasks: dict[str, bool]) -> Pipeline:
    from inference_core.agents.from_settings import make_periodic  # noqa: PLC0415 - imports all agents

    periodic = make_periodic(memory.settings.model_copy(update=tasks))
    return Pipeline(memory.service.scope, RuleExtractor(), periodic=periodic)


def _print_done(target: Target, what: str, done: Done) -> None:
    """Prints how much is done and how much has failed. Raises ModelError if something has."""
    _print_figures(target, {what: done.done, "failed": done.failed})
    if done.failed:
        raise ModelError(
            "Some of the work failed; the worker will retry it. inference-core queue list shows failed messages"
        )


def _print_planned(target: Target, planned: dict[str, Any], lines: list[str]) -> None:
    if target.json:
        print_json(planned)
        return
    print_figures({name: value if isinstance(value, int) else len(value) for name, value in planned.items()})
    for line in lines:
        note(line)


def _print_figures(target: Target, figures: dict[str, Any], names: Mapping[str, str] | None = None) -> None:
    """Prints ``figures``, for people under other ``names``."""
    if target.json:
        print_json(figures)
        return
    texts: dict[str, Any] = {}
    for key, value in figures.items():
        name = (names or {}).get(key, key)
        if isinstance(value, list):
            named = cast("list[dict[str, Any]]", value)
            texts[name] = "; ".join(f"{one['content'][:_SHOWN]} ({one['recalls']})" for one in named) or "none"
        elif isinstance(value, dict):
            counts = cast("dict[str, Any]", value)
            texts[name] = ", ".join(f"{key} {count}" for key, count in counts.items()) or "none"
        else:
            texts[name] = round(value, 1) if isinstance(value, float) else value
    print_figures(texts)
