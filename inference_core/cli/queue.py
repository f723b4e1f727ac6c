"""``queue``, ``undo`` and ``stats``: messages that wait for extraction, undoing it, and figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from inference_core.cli.opening import opened
from inference_core.cli.options import Agent, AsJson, Url, User, one_of
from inference_core.cli.output import note, print_json
from inference_core.cli.rendering import print_figures
from inference_core.drivers import run
from inference_core.errors import InvalidInput

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
