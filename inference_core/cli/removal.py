"""``delete``: one memory or all of a user's, after asking."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inference_core.cli.opening import Opened, opened
from inference_core.cli.options import Agent, AsJson, Category, Kind, Url, User
from inference_core.cli.output import note, one_line, print_json
from inference_core.errors import InvalidInput, MemoryNotFound
from inference_core.memory.types import MemoryCategory, MemoryType

_SHOWN = 60


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
    """Delete a memory, or all of a user's.

    --all takes what this agent reads: what agents share and its own; of a type or category, if given. Nothing comes
    back.
    """
    if (memory_id is None) is not everything:
        raise typer.BadParameter("Give the id of a memory, or --all")
    if memory_id is not None and (kind or category):
        raise typer.BadParameter("--type and --category choose among --all")
    with opened(url, agent, embeds=False) as memory:
        if memory_id is None:
            removed = _delete_all(memory, user, kind, category, yes=yes)
        else:
            removed = _delete_one(memory, user, memory_id, yes=yes)
    if json:
        print_json({"deleted": removed})
    else:
        note(f"Deleted {removed} {'memory' if removed == 1 else 'memories'}")


def _delete_one(memory: Opened, user: str, memory_id: str, *, yes: bool) -> int:
    if not yes:
        found = memory.sync.get_memory(user, memory_id)
        if found is None:
            raise MemoryNotFound(memory_id)
        text = one_line(found.content)
        _ask(f"Delete “{text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}”?")
    if not memory.sync.delete_memory(user, memory_id):
        raise MemoryNotFound(memory_id)
    return 1


def _delete_all(
    memory: Opened, user: str, kind: MemoryType | None, category: MemoryCategory | None, *, yes: bool
) -> int:
    type_name, category_name = kind and kind.value, category and category.value
    _, total = memory.sync.list_memories(user, memory_type=type_name, category=category_name, limit=0)
    if total and not yes:
        _ask(f"Delete {total} memories of {one_line(user)}?")
    return memory.sync.delete_user_memories(user, type_name, category_name) if total or yes else 0


def _ask(question: str) -> None:
    """Raises InvalidInput unless the answer is yes; nothing was deleted then."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidInput("Nothing was deleted; --yes does not ask")
