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
    from inference_core.ingestion.periodic import PeriodicWork
    from inference_core.ingestion.pipeline import Pipeline

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def summarize(
    user: User,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="This session alone, which is over.")
    ] = None,
    dry_run: _DryRun = False,
    agent: Agent = None,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Sum up a user's sessions that have been quiet (AGENT_MEMORY_SESSION_QUIET) and have told something new.

    With the models of AGENT_MEMORY_MODEL, or in the sessions' own sentences. Memories stay as they are.
    """
    from inference_core.agents.capture import make_periodic  # noqa: PLC0415 - slow to import
    from inference_core.ingestion.on_demand import sessions_with_news, summarize_now  # noqa: PLC0415

    with opened(url, agent, embeddings, embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, make_periodic(memory.settings.model_copy(update={"summaries": True})))
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
    """Have the models of AGENT_MEMORY_MODEL draw higher-level memories; end those whose sources do not hold any more.

    Each cites its sources, which stay as they are. Without a model none are made.
    """
    from inference_core.agents.capture import make_periodic  # noqa: PLC0415 - slow to import
    from inference_core.ingestion.on_demand import insights_to_do, look_after_insights_now  # noqa: PLC0415

    with opened(url, None, embeddings, embeds=not dry_run) as memory:
        pipeline = _pipeline(memory, make_periodic(memory.settings.model_copy(update={"insights": True})))
        if dry_run:
            found, groups = run(insights_to_do(pipeline, user))
            ending = [one.content for one in found.orphans]
            _show({"groups": groups, "insights": len(found.insights), "ending": ending}, as_json=json)
            return
        done = run(look_after_insights_now(pipeline, user))
    _report("runs", done, as_json=json)


def _pipeline(memory: Opened, periodic: PeriodicWork) -> Pipeline:
    from inference_core.ingestion.pipeline import Pipeline  # noqa: PLC0415 - slow to import
    from inference_core.ingestion.rules import RuleExtractor  # noqa: PLC0415

    return Pipeline(memory.service.scope, RuleExtractor(), periodic=periodic)


def _report(what: str, done: Done, *, as_json: bool) -> None:
    """Says what was done. Raises ModelError if something failed."""
    _show({what: done.done, "failed": done.failed}, as_json=as_json)
    if done.failed:
        raise ModelError("Some of it failed and is tried again by the worker; inference-core queue list names the dead")


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
        return
    rows = {name: value if isinstance(value, int) else len(value) for name, value in figures.items()}
    print_figures(rows)
    for one in figures.get("sessions", []):
        note(f"{one['session_id']}: {one['sources']} new")
    for one in [*figures.get("groups", []), *figures.get("ending", [])]:
        note(one)
