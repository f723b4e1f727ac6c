"""``queue``, ``undo`` and ``stats``: what waits to become memory, what came of it, and taking it back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from inference_core.cli.opening import Opened, opened
from inference_core.cli.options import Agent, AsJson, Url, User, one_of
from inference_core.cli.output import note, print_json
from inference_core.cli.rendering import print_figures
from inference_core.drivers import run
from inference_core.errors import InvalidInput

_SHOWN = 60
_ACTIONS = ("status", "list", "retry", "drop")


def queue(
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(_ACTIONS))] = "status",
    keys: Annotated[list[str] | None, typer.Argument(help="Dead messages, as list names them; none: all.")] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Messages that wait to become memories: how many there are, which could not be dealt with, and try those again.

    status counts, list names the dead and why, retry puts them back, drop removes them for good.
    """
    from inference_core.ingestion import queue as outbox_queue  # noqa: PLC0415 - slow to import
    from inference_core.ingestion.outbox import Outbox  # noqa: PLC0415

    if keys and action in ("status", "list"):
        raise typer.BadParameter(f"{action} takes no keys")
    with opened(url, embeds=False) as memory:
        scope = memory.service.scope
        outbox = Outbox(scope.engine, scope.clock)
        if action == "status":
            _show(asdict(run(outbox_queue.status(outbox, scope.clock))), as_json=json)
        elif action == "list":
            _list(memory, as_json=json)
        else:
            done = run(
                outbox_queue.retry(outbox, scope.clock, keys)
                if action == "retry"
                else outbox_queue.drop(scope.engine, keys)
            )
            _show({"retried" if action == "retry" else "dropped": done}, as_json=json)


def undo(
    user: User,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="As a memory's metadata names it.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="All jobs on this session.")] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Take back all that was made of a conversation: what was added goes, what it ended holds again."""
    from inference_core.ingestion.jobs import undo as undone  # noqa: PLC0415 - slow to import

    if (job is None) == (session is None):
        raise InvalidInput("Give --job or --session")
    with opened(url, embeds=False) as memory:
        removed = run(undone(memory.service.scope, user, job_id=job, session_id=session))
    _show({"removed": removed}, as_json=json)


def stats(user: User, agent: Agent = None, url: Url = None, json: AsJson = False) -> None:
    """Figures about a user's memories, and about the work that made them of conversations."""
    from inference_core.ingestion.analytics import statistics  # noqa: PLC0415 - slow to import

    with opened(url, agent, embeds=False) as memory:
        figures = asdict(run(statistics(memory.service.scope, user)))
    _show(figures, as_json=json)


def _list(memory: Opened, *, as_json: bool) -> None:
    from inference_core.ingestion.queue import dead_letters  # noqa: PLC0415 - slow to import

    letters = run(dead_letters(memory.store.engine))
    if as_json:
        print_json({"dead": [asdict(letter) for letter in letters]})
    for letter in [] if as_json else letters:
        print_figures({letter.key: letter.text, "user": letter.partition.user_id, "reason": letter.reason})
    if not letters:
        note("No message died")


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        print_figures({name: _told(value) for name, value in figures.items()})


def _told(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(f"{one['content'][:_SHOWN]} ({one['recalls']})" for one in value) or "none"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"  # pyright: ignore[reportUnknownVariableType]
    return round(value, 1) if isinstance(value, float) else value
