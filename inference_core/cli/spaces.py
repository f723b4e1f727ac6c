"""``spaces``: who may do what with the memories that users share."""

from __future__ import annotations

from typing import Annotated

import typer

from inference_core.cli.options import Target, on_store, one_of
from inference_core.cli.output import note, print_figures, print_json
from inference_core.memory.namespaces import Space
from inference_core.memory.spaces import SpaceRole

_ROLES = [role.name.lower() for role in SpaceRole]


@on_store("url", "json")
def spaces(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("grant", "revoke", "list")))],
    space: Annotated[str, typer.Argument(help="The name of the space.")],
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="The user whose role it is.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="NAME", help="Or the group whose role it is.")] = None,
    role: Annotated[
        str, typer.Option("--role", help="What grant allows; each allows what is before it.", **one_of(_ROLES))
    ] = "read",
) -> None:
    """Grant, revoke and list roles in a space: memories that several users share.

    Other processes notice a change within five seconds.
    """
    with target.open(creates=action == "grant") as memory:
        service, shared = memory.sync, Space(space)
        if action == "grant":
            service.grant(shared, role, user=user, group=group)
        elif action == "revoke" and not service.revoke(shared, user=user, group=group):
            note("There was no such role")
        roles = service.list_grants(shared)
    if target.json:
        print_json({"space": space, "roles": roles})
    elif roles:
        print_figures(roles)
    else:
        note("Nobody has a role in it")
