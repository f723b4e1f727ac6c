"""``delete``: one memory or all of a user's, after asking."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from inference_core.cli.opening import opened
from inference_core.cli.options import Agent, AsJson, Category, Kind, Url, User
from inference_core.cli.output import one_line, print_result
from inference_core.errors import InvalidInput, MemoryNotFound

_SHOWN: Final = 60


def delete(
    user: User,
    memory_id: Annotated[str | None, typer.Argument(help="The id that save, recall and list print.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that the user and this agent share.")] = False,
    kind: Kind = None,
    category: Category = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    agent: Agent = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Delete a memory, or all of a user's. Deleted memories cannot be restored.

    --all deletes what this agent reads: the shared memories and its own; of one type or category, if given.
    """
    if (memory_id is None) is not everything:
        raise typer.BadParameter("Give the id of a memory, or --all")
    if memory_id is not None and (kind or category):
        raise typer.BadParameter("--type and --category choose among --all")
    with opened(url, agent, embeds=False) as memory:
        if memory_id is None:
            _, removed = memory.sync.list_memories(user, memory_type=kind, category=category, limit=0)
            if removed and not yes:
                _ask(f"Delete {removed} memories of {one_line(user)}?")
            if removed or yes:
                removed = memory.sync.delete_user_memories(user, kind, category)
        else:
            if not yes:
                found = memory.sync.get_memory(user, memory_id)
                if found is None:
                    raise MemoryNotFound(memory_id)
                text = one_line(found.content)
                _ask(f"Delete “{text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}”?")
            if not memory.sync.delete_memory(user, memory_id):
                raise MemoryNotFound(memory_id)
            removed = 1
    print_result({"deleted": removed}, f"Deleted {removed} {'memory' if removed == 1 else 'memories'}", as_json=json)


def _ask(question: str) -> None:
    """Raises InvalidInput unless the answer is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidInput("Nothing was deleted; --yes does not ask")
