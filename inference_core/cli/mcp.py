"""``mcp``: a user's memory for an agent in another program, over standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from inference_core.cli.options import Target, on_store
from inference_core.errors import MissingExtra


@on_store("user", "agent", "url", "embeddings")
def mcp(
    target: Target,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer no tool that saves, updates or deletes.")
    ] = False,
) -> None:
    """Serve a user's memory to an agent in another program, by the Model Context Protocol.

    The other program starts this command and speaks with it over standard input and output. It ends when they close.
    """
    from inference_core.services.agent_memory_service import AgentMemoryStoreService
    from inference_core.stores.factory import open_configured_store

    try:
        from inference_core.server.mcp import Caller, MemoryServer
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("inference_core"):
            raise
        raise MissingExtra("The MCP server", "mcp") from error
    settings = target.settings(creates=True)
    # The model loads meanwhile: a client does not wait long for the list of tools, and until then recall is by words.
    with open_configured_store(settings) as store:
        service = AgentMemoryStoreService.from_settings(settings, store, agent_name=target.agent)
        caller = Caller(target.user, may_write=not read_only)
        service.scope.namespaces.read_scopes(caller.user_id)  # refuses what is no user before anybody connects
        MemoryServer(service, lambda: caller).run("stdio")
