"""Damaged rows in Redis: found by reading every cell, and removed from every key that mentions them.

A damaged cell does not say which sorted sets contain it, so all that may are searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Row, Unreadable
from inference_core.stores.backends.redis_layout import (
    DIGITS,
    SCRIPT,
    STAMP_BYTES,
    Argument,
    Changed,
    Layout,
    Stored,
    call_of,
    checked_cell,
    chunked,
    invocation,
    new_stamp,
    pack_cell,
)
from inference_core.stores.backends.redis_server import Server
from inference_core.stores.backends.rows import RowState
from inference_core.stores.codec import UNREADABLE, fault_of, from_micros, is_vector, unpack_namespace

_PORTION: Final = 500


class DamagedCell(NamedTuple):
    """A scope and a field of its hashes, as they are stored, and the stamp of the cell."""

    scope: bytes
    field: bytes
    stamp: bytes


def scope_of(member: bytes) -> Namespace | None:
    """The namespace that was packed; None if it cannot be parsed."""
    try:
        return unpack_namespace(member.decode())
    except UNREADABLE:
        return None


def inspect(server: Server, layout: Layout, root: str | None) -> Iterator[Row | Unreadable]:
    """Every row, readable or not, of one user or of all."""
    (scopes,) = server.ask([("ZRANGE", layout.whole("scopes"), 0, -1)])
    for scope in scopes:
        namespace = scope_of(scope)
        if root is not None and (namespace is None or namespace[0] != root):
            continue
        (fields,) = server.ask([("HKEYS", layout.raw("cells", scope))])
        for some in chunked(fields, _PORTION):
            questions = [("HMGET", layout.raw(what, scope), *some) for what in ("cells", "vectors")]
            for field, packed, vector in zip(some, *server.ask(questions, together=True), strict=True):
                found = packed and _inspected(
                    namespace, DamagedCell(scope, field, packed[:STAMP_BYTES]), packed, vector
                )
                if found:
                    yield found


def _inspected(
    namespace: Namespace | None, place: DamagedCell, packed: bytes, vector: bytes | None
) -> Row | Unreadable | None:
    """The row in a cell, if it can be parsed; None if it was deleted."""
    root = namespace[0] if namespace else None
    key = place.field.decode(errors="backslashreplace")
    reason = "its vector cannot be unpacked"
    try:
        cell = checked_cell(packed)
        if cell.value is None:
            return None
        if namespace is None:
            reason = "its namespace cannot be read"
        elif key.encode() != place.field or not cell.value:
            reason = "a text is not UTF-8"
        elif row := cell.row(namespace, key):
            if vector is None or is_vector(vector):
                return row
            return Unreadable(root=root, namespace=namespace, key=key, reason=reason, only_index=True, place=place)
        else:
            reason = "a value is not JSON"
    except UNREADABLE as error:
        reason = fault_of(error)
    return Unreadable(root=root, namespace=namespace, key=key, reason=reason, place=place)


def discard(server: Server, layout: Layout, found: Unreadable) -> bool:
    """Removes a row unless it was written since; whether it did. Raises StoreUnavailable."""
    scope, field, stamp = found.place
    (packed,) = server.ask([("HMGET", layout.raw("cells", scope), field)])[0]
    if packed is None or packed[:STAMP_BYTES] != stamp:
        return False
    call: list[Argument] = []
    if found.namespace is not None and found.key.encode() == field:
        with suppress(*UNREADABLE):
            cell = checked_cell(packed)
            after = replace(cell.deleted(), seq=1)
            change = Changed((found.namespace, found.key), Stored(stamp, cell), after, new_stamp())
            call = invocation(layout, [change], {found.namespace: 1}, {})
    call = call or _call_for_lost(server, layout, found.place)
    for _ in range(2):  # the first answer is 0 if the server did not have the script yet
        (answer,) = server.evaluate(SCRIPT, [call])
        if isinstance(answer, Exception):
            raise answer
        if answer:
            return True
    return False


def _call_for_lost(server: Server, layout: Layout, place: DamagedCell) -> list[Argument]:
    """The call of the script for a cell that does not say which sorted sets contain it."""
    scope, field, stamp = place
    address = scope[:-1] + b"," + json.dumps(field.decode(errors="replace"), ensure_ascii=False).encode() + b"]"
    (models,) = server.ask([("ZRANGE", layout.whole("models"), 0, -1)])
    texts = [layout.of("texts", model.decode()) for model in models]
    pattern = re.sub(rb"([\[\]*?\\^-])", rb"\\\1", layout.raw("kinds", scope[:-1] + b",")) + b"*"
    kinds: list[bytes] = []
    cursor = b""
    while cursor != b"0":
        cursor, page = server.ask([("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", _PORTION)])[0]
        kinds += page
    sets: dict[bytes, list[bytes]] = {}
    by_field, by_address = [layout.raw("age", scope), layout.raw("ends", scope), *kinds], [layout.whole("ends"), *texts]
    for name, wanted in [*((name, field) for name in by_field), *((name, address) for name in by_address)]:
        (members,) = server.ask([("ZRANGE", name, 0, -1)])
        sets[name] = [member for member in members if wanted in (member, member[DIGITS:])]
    keys = [layout.whole("heads"), *(layout.raw(what, scope) for what in ("cells", "feed", "vectors", "tokens", "age"))]
    keys += [layout.whole("scopes"), layout.whole("models"), *sets, *texts]
    number = {key: at for at, key in enumerate(dict.fromkeys(keys), 1)}
    cells, feed, vectors, tokens, age, of_scopes, of_models = (number[key] for key in keys[1:8])
    epoch = from_micros(0)
    commands: list[list[Argument]] = [
        [b"HSET", cells, 2, field, pack_cell(new_stamp(), RowState(0, 1, "", epoch, epoch, None))],
        [b"HDEL", vectors, 1, field],
        [b"HDEL", tokens, 1, field],
        *([b"ZREM", number[key], len(members), *members] for key, members in sets.items() if members),
    ]
    registers: list[list[Argument]] = [
        [of_scopes, scope, age],
        *([of_models, model, number[index]] for model, index in zip(models, texts, strict=True)),
    ]
    return call_of(number, [[cells, field, stamp]], [[feed, scope, 1, 1, 1, field]], commands, registers)
