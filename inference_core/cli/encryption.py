"""``encryption``: the keys of an encrypted store."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from inference_core.cli.options import Target, Users, on_store, one_of
from inference_core.cli.output import counted, progress_bar
from inference_core.errors import ConfigurationError


@on_store("url", "json")
def encryption(
    target: Target,
    action: Annotated[
        str,
        typer.Argument(
            help="status; rotate: new keys for all rows, or for a user's; rewrap: another master key.",
            **one_of(("status", "rotate", "rewrap")),
        ),
    ] = "status",
    users: Users = None,
    new_key: Annotated[
        Path | None, typer.Option("--new-key", metavar="FILE", help="For rewrap: a file with the new master key.")
    ] = None,
) -> None:
    """Show or replace the keys of a store that is encrypted with AGENT_MEMORY_KEYS.

    A rotation that was interrupted is finished by the next. To destroy a user's key, erase the user.
    """
    from inference_core.lifecycle.rotation import key_status, rotate
    from inference_core.stores.keyring import StoredKeyRing
    from inference_core.stores.opening import open_backend
    from inference_core.stores.sealed import SealedBackend

    settings = target.settings()
    with closing(open_backend(settings.store_url, **settings.encryption)) as backend:
        if not isinstance(backend, SealedBackend):
            raise ConfigurationError("The store is not encrypted with a key for each user: set AGENT_MEMORY_KEYS")
        if action == "status":
            found = key_status(backend, users or ())
            text = (
                f"{counted(found.users, 'user', 'users')}, {found.destroyed} without a key, {found.rotating} with two"
            )
            target.print(asdict(found), f"{text}; key store {settings.keys}")
        elif action == "rotate":
            with progress_bar("Rows") as advance:
                done = rotate(backend, users or (), advance)
            rest = ". This finished a rotation that was interrupted; run it again for the others" * done.is_resumed
            target.print(asdict(done), f"{counted(done.rows, 'row', 'rows')} under {done.labels} new keys{rest}")
        else:
            if new_key is None or not isinstance(backend.keyring, StoredKeyRing):
                raise typer.BadParameter("Name the file with the new master key: --new-key FILE")
            backend.keyring.rewrap(new_key.read_text(encoding="utf-8"))
            text = "All keys are wrapped by the new master key: set AGENT_MEMORY_ENCRYPTION_KEY to it now"
            target.print({"rewrapped": True}, text)
