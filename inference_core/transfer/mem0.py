"""mem0's memories in JSON: from `Memory.get_all`, pages of its platform, and points of its Qdrant collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from inference_core.clock import moment_of
from inference_core.errors import InvalidInput
from inference_core.transfer.legacy import LegacyItem

NO_USER: Final = "it names no user"
_LISTS: Final = ("results", "points", "memories")
_PLACED: Final = (
    "id",
    "memory",
    "data",
    "user_id",
    "run_id",
    "metadata",
    "created_at",
    "updated_at",
    "expiration_date",
)
_FORM: Final = "a memory of mem0, with 'id', 'memory' and 'user_id', or a point with 'id' and 'payload'"


def is_mem0(value: Any) -> bool:
    """Whether ``value``, the first in a file, holds memories in mem0's format."""
    _, first = next(_rows([("", value)]), ("", None))
    return isinstance(first, dict) and ("memory" in first or "payload" in first)


def mem0_items(values: Iterable[tuple[str, Any]], user_ids: Iterable[str] = ()) -> Iterator[LegacyItem]:
    """The memories in ``values``, each with its place in the file; those of ``user_ids`` only, if any are named.

    Ids, times and expiry are kept, ``run_id`` becomes the session, ``metadata`` is kept, and so are all other fields. A
    memory that names no user gets that as its fault. Raises InvalidInput, naming the place, for what is not a memory.
    """
    wanted = frozenset(user_ids)
    for where, row in _rows(values):
        fields = dict(_object(row, where))
        if "payload" in fields:
            payload = _object(fields["payload"], where)
            known = (*_PLACED, "hash", "agent_id", "actor_id", "role")
            extra = {name: found for name, found in payload.items() if name not in known}
            fields = {"id": fields.get("id"), "metadata": extra, **{n: payload[n] for n in known if n in payload}}
        content = fields.get("memory") if "memory" in fields else fields.get("data")
        if not isinstance(fields.get("id"), str | int) or not isinstance(content, str):
            raise InvalidInput(f"{where} is not {_FORM}")
        user = fields.get("user_id")
        if wanted and user not in wanted:
            continue
        rest = {name: found for name, found in fields.items() if name not in _PLACED}
        yield LegacyItem(
            user_id=str(user or ""),
            key=str(fields["id"]),
            value=rest
            | {
                "content": content,
                "created_at": fields.get("created_at"),
                "session_id": fields.get("run_id"),
                "extra_metadata": fields.get("metadata"),
            },
            updated_at=moment_of(fields.get("updated_at")),
            expires_at=moment_of(fields.get("expiration_date")),
            fault=None if isinstance(user, str) and user else NO_USER,
            layout="mem0",
            origin="mem0",
        )


def _rows(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The memories or points, with their places: each value is one, or an object with a list of them."""
    for where, value in values:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if isinstance(fields.get("result"), dict):
            fields = fields["result"]  # the answer of Qdrant's server
        rows: Any = next((fields[name] for name in _LISTS if isinstance(fields.get(name), list)), None)
        if rows is None:
            yield where, value
        for at, row in enumerate(cast("list[Any]", rows or []), 1):
            yield f"{where}, memory {at}", row


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} is not {_FORM}")
    return cast("Mapping[str, Any]", value)
