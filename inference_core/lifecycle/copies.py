"""Copies that leave a store, as backups and exports do: it notes them, so that an erasure names those with the user."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from inference_core.memory.namespaces import encode_label
from inference_core.stores.backend import Backend
from inference_core.stores.indexing.reader import content_key_of

COPIES_META: Final = "copies"
_MASK: Final = "…"


def note_copy(store: Backend, kind: str, path: Path, user_ids: Sequence[str] = ()) -> None:
    """Notes that ``path`` is a ``kind`` of copy of ``store``: of these users, or of all. Raises StoreError.

    Users are noted by a keyed digest, and the name of the file is masked when one of them is erased.
    """
    if store.capabilities.writable:
        marks = [_mark(store, user_id) for user_id in user_ids]
        at = datetime.now(UTC).isoformat(timespec="seconds")
        _keep(store, [*_known(store), {"kind": kind, "path": str(path.absolute()), "at": at, "users": marks or None}])


def copies_with(store: Backend, user_id: str) -> list[str]:
    """The copies that may hold the user, a line for each, without the user's id."""
    known = _known(store)
    mark = _mark(store, user_id) if any(one["users"] for one in known) else ""
    held = [one for one in known if one["users"] is None or mark in one["users"]]
    return [f"{one['kind']} of {one['at']}: {masked(one['path'], user_id)}" for one in held]


def forget_in_copies(store: Backend, user_id: str) -> None:
    """Removes what notes of copies tell of the user: copies of that user alone, and the id in the names of others."""
    if not (known := _known(store)) and not store.get_meta(COPIES_META):
        return
    mark, left = _mark(store, user_id), list[dict[str, Any]]()
    for one in known:
        users = one["users"] and [user for user in one["users"] if user != mark]
        if users != []:
            left.append({**one, "path": masked(one["path"], user_id), "users": users})
    _keep(store, left)


def _known(store: Backend) -> list[dict[str, Any]]:
    """The copies that are noted, but for those that were deleted: their folder is here, and they are not."""
    known: list[dict[str, Any]] = json.loads(store.get_meta(COPIES_META) or "[]")
    paths = ((one, Path(one["path"])) for one in known)
    return [one for one, path in paths if _MASK in one["path"] or path.exists() or not path.parent.exists()]


def _keep(store: Backend, copies: Sequence[dict[str, Any]]) -> None:
    store.set_meta(COPIES_META, json.dumps(list(copies), ensure_ascii=False))


def _mark(store: Backend, user_id: str) -> str:
    return hmac.new(content_key_of(store), encode_label(user_id).encode(), hashlib.sha256).hexdigest()


def masked(path: str, user_id: str) -> str:
    """``path`` without the user's id."""
    return path.replace(user_id, _MASK).replace(encode_label(user_id), _MASK)
