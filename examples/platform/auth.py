"""Who a client of LangGraph Server is, and what of the store and of the threads it may touch: its own.

Without handlers, every authenticated client reads and writes all that is in the server's store, also everybody's
memories, through the server's own routes (``/store/items`` and so on). Replace `authenticate` by the check of your
login. This one knows the tokens in the environment variable TOKENS, as in ``secret-1=ada@example.com,secret-2=bob``.
"""

from __future__ import annotations

import os
from typing import Any

from langgraph_sdk import Auth

from inference_core import MemoryNamespaceBuilder

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    """The user with this token."""
    tokens = dict(one.split("=", 1) for one in os.environ.get("TOKENS", "").split(",") if one)
    user = tokens.get((authorization or "").removeprefix("Bearer "))
    if user is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Unknown token")
    return {"identity": user}


@auth.on.store
async def own_store(ctx: Auth.types.AuthContext, value: Any) -> None:
    """Keeps clients in the namespaces of their own memories; whoever names none gets these."""
    own = MemoryNamespaceBuilder().namespace_for(ctx.user.identity, "semantic")[0]
    value["namespace"] = tuple(value.get("namespace") or (own,))
    if value["namespace"][0] != own:
        raise Auth.exceptions.HTTPException(status_code=403, detail="This namespace belongs to somebody else")


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: Any) -> Auth.types.FilterType:
    """Marks new threads with their owner, and hides all others."""
    owner: dict[str, Any] = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(owner)
    return owner
