"""Inspection, repair and erasure of rows in Redis, outside of the batches that `RedisBackend.apply` decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from inference_core.stores.backend import Key, Row, Unreadable
from inference_core.stores.backends.redis.layout import (
    DIGITS,
    SCRIPT,
    STAMP_BYTES,
    Argument,
    CellChange,
    DamagedCell,
    Layout,
    Stored,
    call_for_lost,
    checked_cell,
    inspected,
    invocation,
    new_stamp,
    pack_scope,
    scope_of,
    unpack_cell,
)
from inference_core.stores.backends.redis.server import Server, chunked, encoded
from inference_core.stores.codec import UNREADABLE

_PORTION: Final = 1_000


def inspect(server: Server, keys: Layout, root: str | None) -> Iterator[Row | Unreadable]:
    """Every row below ``root``, or of all users, and what cannot be read."""
    (scopes,) = server.ask([("ZRANGE", keys.whole("scopes"), 0, -1)])
    for scope in scopes:
        namespace = scope_of(scope)
        if root is not None and (namespace is None or namespace[0] != root):
            continue
        (fields,) = server.ask([("HKEYS", keys.raw("cells", scope))])
        for some in chunked(fields, _PORTION):
            questions = [("HMGET", keys.raw(what, scope), *some) for what in ("cells", "vectors")]
            for field, packed, vector in zip(some, *server.ask(questions, together=True), strict=True):
                found = packed and inspected(scope, field, packed, vector)
                if found:
                    yield found


def discard(server: Server, keys: Layout, found: Unreadable) -> bool:
    """Removes a row from every key that mentions it, unless it was written since. Returns whether it did."""
    scope, field, stamp = found.place
    (packed,) = server.ask([("HMGET", keys.raw("cells", scope), field)])[0]
    if packed is None or packed[:STAMP_BYTES] != stamp:
        return False
    call: list[Argument] = []
    if found.namespace is not None and found.key.encode() == field:
        with suppress(*UNREADABLE):
            cell = checked_cell(packed)
            after = replace(cell.deleted(), seq=1)
            change = CellChange((found.namespace, found.key), Stored(stamp, cell), after, new_stamp())
            call = invocation(keys, [change], {found.namespace: 1}, {})
    if not call:
        call = call_for_lost(keys, found.place, *_members_of_lost(server, keys, found.place))
    for _ in range(2):  # the first answer is 0 if the server did not have the script yet
        (answer,) = server.evaluate(SCRIPT, [call])
        if isinstance(answer, Exception):
            raise answer
        if answer:
            return True
    return False


def _members_of_lost(server: Server, keys: Layout, place: DamagedCell) -> tuple[list[bytes], dict[bytes, list[bytes]]]:
    """The store's models, and the members of sorted sets that stand for a damaged cell.

    The cell does not say which sets contain it, so all that may are searched.
    """
    (models,) = server.ask([("ZRANGE", keys.whole("models"), 0, -1)])
    kinds: list[bytes] = []
    cursor = b""
    while cursor != b"0":
        scan = ("SCAN", cursor or b"0", "MATCH", keys.pattern_of_kinds(place.scope), "COUNT", _PORTION)
        cursor, page = server.ask([scan])[0]
        kinds += [name for name in page if keys.is_kind_of(name, place.scope)]
    sets: dict[bytes, list[bytes]] = {}
    for name, member in keys.suspects(place, kinds, models).items():
        (members,) = server.ask([("ZRANGE", name, 0, -1)])
        sets[name] = [one for one in members if member in (one, one[DIGITS:])]
    return models, sets


def erase(server: Server, keys: Layout, root: str, also: Sequence[Key]) -> None:
    """Removes all scopes of ``root``, and the rows ``also``, from every key that has them."""
    (heads,) = server.ask([("HKEYS", keys.whole("heads"))])
    scopes = [scope for scope in heads if (name := scope_of(scope)) is not None and name[0] == root]
    for scope in scopes:
        (fields,) = server.ask([("HKEYS", keys.raw("cells", scope))])
        for some in chunked(fields, _PORTION):
            _erase_rows(server, keys, scope, some)
        own = [keys.raw(what, scope) for what in ("cells", "vectors", "tokens", "feed", "age", "ends")]
        removals: list[tuple[Any, ...]] = [("DEL", *own), ("ZREM", keys.whole("scopes"), scope)]
        # The head goes last: as long as it is there, a repeated call finds the scope.
        server.ask([*removals, ("HDEL", keys.whole("heads"), scope)], together=True)
    for namespace, key in also:
        _erase_rows(server, keys, pack_scope(namespace), [encoded(key)])


def _erase_rows(server: Server, keys: Layout, scope: bytes, fields: Sequence[bytes]) -> None:
    """Removes rows of a packed scope from every key that has them."""
    (cells,) = server.ask([("HMGET", keys.raw("cells", scope), *fields)])
    namespace = scope_of(scope)
    removals: list[tuple[Any, ...]] = []
    for field, packed in zip(fields, cells, strict=True):
        if namespace and packed:
            stored = unpack_cell(packed)
            places = keys.places((namespace, field.decode(errors="replace")), stored.cell)
            removals += [("ZREM", name, member) for name, member in places]
            if stored.is_lost:
                _, sets = _members_of_lost(server, keys, DamagedCell(scope, field, packed[:STAMP_BYTES]))
                removals += [("ZREM", name, *members) for name, members in sets.items() if members]
    removals += [("HDEL", keys.raw(what, scope), *fields) for what in ("cells", "vectors", "tokens")]
    removals.append(("ZREM", keys.raw("feed", scope), *fields))
    server.ask(removals, together=True)
