"""``summarize`` and ``insights``: periodic work of the worker, at once and for one user."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inference_core.cli.opening import Opened, opened
from inference_core.cli.options import Agent, AsJson, Embeddings, Url, User
from inference_core.cli.output import note, print_json
from inference_core.cli.rendering import print_figures
from inference_core.drivers import run
from inference_core.errors import ModelError

if TYPE_CHECKING:
    from inference_core.ingestion.on_demand import Done
    from inference_core.ingestion.pipeline import Pipeline

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
    from inference_core.ingestion.on_demand import sessions_with_news, summarize_now

    with opened(url, agent, embeddings, embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, {"summaries": True})
        news = run(sessions_with_news(memory.service.scope, pipeline.outbox, user))
        quiet = memory.service.scope.clock.now() - timedelta(seconds=memory.settings.session_quiet)
        due = [one for one in news if (one.last <= quiet if session is None else one.session_id == session)]
        if dry_run:
            _show({"sessions": [asdict(one) for one in due]}, as_json=json)
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
    from inference_core.ingestion.on_demand import insights_to_do, look_after_insights_now

    with opened(url, None, embeddings, embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, {"insights": True})
        if dry_run:
            found, groups = run(insights_to_do(pipeline, user))
            ending = [one.content for one in found.orphans]
            _show({"groups": groups, "insights": len(found.insights), "ending": ending}, as_json=json)
            return
        done = run(look_after_insights_now(pipeline, user))
    _report("runs", done, as_json=json)


def _pipeline(memory: Opened, tasks: dict[str, bool]) -> Pipeline:
    from inference_core.agents.capture import make_periodic
    from inference_core.ingestion.pipeline import Pipeline
    from inference_core.ingestion.rules import RuleExtractor

    periodic = make_periodic(memory.settings.model_copy(update=tasks))
    return Pipeline(memory.service.scope, RuleExtractor(), periodic=periodic)


def _report(what: str, done: Done, *, as_json: bool) -> None:
    """Prints what was done. Raises ModelError if something failed."""
    _show({what: done.done, "failed": done.failed}, as_json=as_json)
    if done.failed:
        raise ModelError(
            "Some of it failed; the worker tries it again. inference-core queue list shows failed messages"
        )


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
        return
    print_figures({name: value if isinstance(value, int) else len(value) for name, value in figures.items()})
    for one in figures.get("sessions", []):
        note(f"{one['session_id']}: {one['sources']} new")
    for one in [*figures.get("groups", []), *figures.get("ending", [])]:
        note(one)
