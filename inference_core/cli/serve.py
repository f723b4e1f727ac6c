"""``serve``, ``keys``, ``mcp``, ``inspect``: memory for other programs and browsers, and the keys that open it."""

from __future__ import annotations

import logging
import sys
import webbrowser
from typing import Annotated, Any

import typer

from inference_core.cli.options import STARTING_S, Target, on_store, one_of, option
from inference_core.cli.output import NOT_FOUND, CommandFailed, note, print_figures
from inference_core.effects import run
from inference_core.errors import MissingExtra
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import ServerSettings, read_settings
from inference_core.stores.factory import open_configured_store
from inference_core.telemetry import use_json_logs

_PERMISSIONS = ("read", "write", "review", "act-as", "admin")


@on_store("agent", "url", "embeddings")
def serve(
    target: Target,
    user: Annotated[str | None, option("--user ID", "On loopback, requests without a key act as this user.")] = None,
    host: Annotated[str | None, option("--host", "Default: AGENT_SERVER_HOST, 127.0.0.1.")] = None,
    port: Annotated[int | None, option("--port", "Default: AGENT_SERVER_PORT, 8765.")] = None,
    json_logs: Annotated[bool, option("--json-logs", "Log as JSON, including each request.")] = False,
) -> None:
    """Serve memories over HTTP to programs with a key.

    It runs until Ctrl-C or SIGTERM.
    """
    try:
        from inference_core.server.app import serve as answer  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("inference-core serve", "server") from error
    given = {"user": user, "host": host, "port": port}
    settings = read_settings(ServerSettings, **{name: one for name, one in given.items() if one is not None})
    with target.open(embeds=True, creates=True, waits=False, patience_s=STARTING_S) as memory:
        logs = "json" if json_logs else memory.settings.log_format
        if logs == "json":
            use_json_logs(run(memory.service.scope.engine.content_key()))
        logging.basicConfig(format="%(levelname)s:     %(message)s")  # else MCP's SDK sets a format with columns
        note(f"Serving http://{settings.host}:{settings.port}, with pages at /ui and the API at /v1 (Ctrl-C ends)")
        answer(memory.service, settings, memory.settings.model_copy(update={"log_format": logs}))


@on_store("url", "json")
def keys(
    target: Target,
    action: Annotated[str, typer.Argument(help="What to do.", **one_of(("create", "list", "revoke")))] = "list",
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The keys to revoke.")] = None,
    user: Annotated[str | None, option("--user ID", "Whose memories the key opens.")] = None,
    allow: Annotated[
        list[str] | None,
        option(
            "--allow",
            "What the key may do; may be given several times. By default read and write.",
            **one_of(_PERMISSIONS),
        ),
    ] = None,
    days: Annotated[float | None, option("--days N", "Days after which the key is refused; by default never.")] = None,
) -> None:
    """Create, list and revoke the keys that serve accepts. A key is shown once.

    With act-as it opens the memories of any user that a request names, for a program that knows who its users are.
    """
    from inference_core.server.identity.auth import (  # noqa: PLC0415 - of an extra
        Permission,
        create_key,
        list_keys,
        revoke_key,
    )

    if (action == "revoke") != bool(ids):
        raise typer.BadParameter("revoke requires the IDs that list shows; create and list take none")
    with target.open(creates=action == "create") as memory:
        engine, clock = memory.service.scope.engine, memory.service.scope.clock
        if action == "create":
            permissions = [Permission(one) for one in allow or ("read", "write")]
            made, key = run(create_key(engine, clock, user=user, permissions=permissions, days=days))
            target.print_id(made.to_json() | {"key": key}, key, "Copy the key now: it is not shown again.")
        elif action == "revoke":
            missing = [id_ for id_ in ids or () if not run(revoke_key(engine, id_))]
            if missing:
                told = f"There is no key {', '.join(missing)}; inference-core keys list shows them"
                raise CommandFailed(told, NOT_FOUND)
            target.print({"revoked": ids}, f"Revoked {', '.join(ids or ())}.")
        else:
            found = [key.to_json() for key in run(list_keys(engine))]
            if target.json or not found:
                target.print({"keys": found}, "No keys")
                return
            print_figures({one["id"]: _key_line(one) for one in found})


def _key_line(key: dict[str, Any]) -> str:
    """Whose a stored key is, what it may and until when."""
    may, until = ", ".join(key["permissions"]), key["expires_at"] or "it is revoked"
    return f"{key['user'] or 'any user'}; may {may}; until {until}"


@on_store("user", "agent", "url", "embeddings")
def mcp(
    target: Target,
    read_only: Annotated[bool, option("--read-only", "Offer no tools that save, update or delete.")] = False,
) -> None:
    """Serve a user's memories over MCP.

    Agents in other programs use them over the Model Context Protocol. The other program starts this command and talks
    to it over standard input and output. It ends when they close.
    """
    try:
        from inference_core.server.mcp import Caller, MemoryServer  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("inference_core"):
            raise
        raise MissingExtra("The MCP server", "mcp") from error
    settings = target.settings(creates=True)
    # Do not wait for the model, as a client does not wait long for the list of tools; until then recall is by words.
    with open_configured_store(settings) as store:
        service = AgentMemoryStoreService.from_settings(settings, store, agent_name=target.agent)
        caller = Caller(target.user, may_write=not read_only)
        service.scope.namespaces.read_scopes(caller.user_id)  # raises for an invalid user id before a client connects
        MemoryServer(service, lambda: caller).run("stdio")


@on_store("agent", "url", "embeddings")
def inspect(
    target: Target,
    user: Annotated[str | None, option("--user ID", "Start with this user.")] = None,
    port: Annotated[int, option("--port", "By default any free port.", min=0, max=65_535)] = 0,
    opens: Annotated[bool, option("--open", "Open the link in a browser.")] = False,
) -> None:
    """Look at memories in a browser.

    Prints a link that works once, and serves it until Ctrl-C.
    The pages show what each memory says and where it comes from, what a search finds and why, and which prompts
    contained it. Looking changes nothing. Only this machine reaches them.
    """
    try:
        from inference_core.server.app import inspect as answer  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("inference-core inspect", "server") from error

    def tell(link: str) -> None:
        sys.stdout.write(f"{link}\n")
        sys.stdout.flush()
        note("The link works once. Ctrl-C ends.")
        if opens:
            webbrowser.open(link)

    with target.open(embeds=True, waits=False) as memory:
        answer(memory.service, memory.settings, user, port, tell)
