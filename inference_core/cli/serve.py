"""``serve`` and ``keys``: the memory over HTTP, and who may use it."""

from __future__ import annotations

from typing import Annotated

import typer

from inference_core.cli.options import Target, on_store, one_of
from inference_core.cli.output import note, print_figures, print_json
from inference_core.effects import run
from inference_core.errors import ConfigurationError, MissingExtra

_PERMISSIONS = ("read", "write", "review", "act-as", "admin")


@on_store("agent", "url", "embeddings")
def serve(
    target: Target,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="Serve this user alone; on loopback, without a key."),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Default: AGENT_SERVER_HOST, 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Default: AGENT_SERVER_PORT, 8765.")] = None,
) -> None:
    """Serve memories over HTTP, to programs with a key, until Ctrl-C or SIGTERM."""
    from inference_core.settings import ServerSettings, read_settings

    try:
        from inference_core.server.running import serve as answer
    except ModuleNotFoundError as error:
        raise MissingExtra("inference-core serve", "server") from error
    given = {"user": user, "host": host, "port": port}
    settings = read_settings(ServerSettings, **{name: one for name, one in given.items() if one is not None})
    with target.open(embeds=True, creates=True, waits=False) as memory:
        note(f"Serving http://{settings.host}:{settings.port}/v1 (Ctrl-C ends)")
        answer(memory.service, settings, memory.settings)


@on_store("url", "json")
def keys(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("create", "list", "revoke")))] = "list",
    ids: Annotated[list[str] | None, typer.Argument(help="The keys to revoke.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Whose memories the key opens.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            help="What it may do; may be given several times. By default read and write.",
            **one_of(_PERMISSIONS),
        ),
    ] = None,
    days: Annotated[float | None, typer.Option("--days", metavar="N", help="After these it is refused.")] = None,
) -> None:
    """Create, list and revoke the keys that serve accepts. A key is shown once.

    With act-as it opens the memories of any user that a request names, for a program that knows who its users are.
    """
    from inference_core.server.auth import Permission, create_key, list_keys, revoke_key

    if (action == "revoke") != bool(ids):
        raise typer.BadParameter("revoke takes the ids that list shows; create and list take none")
    with target.open(creates=action == "create") as memory:
        engine, clock = memory.service.scope.engine, memory.service.scope.clock
        if action == "create":
            permissions = [Permission(one) for one in allow or ("read", "write")]
            made, key = run(create_key(engine, clock, user=user, permissions=permissions, days=days))
            target.print(made.to_json() | {"key": key}, f"{key}\nKeep it now: it is not shown again.")
        elif action == "revoke":
            missing = [one for one in ids or () if not run(revoke_key(engine, one))]
            if missing:
                raise ConfigurationError(f"There is no key {', '.join(missing)}; inference-core keys list shows them")
            target.print({"revoked": ids}, f"Revoked {', '.join(ids or ())}.")
        else:
            found = [one.to_json() for one in run(list_keys(engine))]
            if target.json:
                print_json({"keys": found})
            for one in [] if target.json else found:
                may, until = ", ".join(one["permissions"]), one["expires_at"] or "it is revoked"
                print_figures({one["id"]: one["user"] or "any user", "may": may, "until": until})
            if not found and not target.json:
                note("No keys")
