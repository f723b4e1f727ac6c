"""The script by which Redis applies a batch as a whole, and its arguments.

A Lua script runs alone on the server, and its effects reach the append-only file together. It first compares the stamps
of all cells that the batch was decided on; if one has changed, it returns 0 and has done nothing. Writes that a server
without memory refuses come before those that it does not, so that such a batch fails before its first change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Key
from inference_core.stores.backends.redis_layout import Layout, Stored, chunked, encoded, pack_cell, pack_scope
from inference_core.stores.cells import Cell

SCRIPT: Final = """
local at = 0
local function text() at = at + 1; return ARGV[at] end
local function number() return tonumber(text()) end
local function key() return KEYS[number()] end

for _ = 1, number() do
    local found = redis.call('HGET', key(), text()) or ''
    if string.sub(found, 1, 12) ~= text() then return 0 end
end
for _ = 1, number() do
    local feed, scope, writes = key(), text(), number()
    local head = redis.call('HINCRBY', KEYS[1], scope, writes) - writes
    for _ = 1, number() do
        redis.call('ZADD', feed, head + number(), text())
    end
end
for _ = 1, number() do
    local name, target, count = text(), key(), number()
    redis.call(name, target, unpack(ARGV, at + 1, at + count))
    at = at + count
end
for _ = 1, number() do
    local register, member, held = key(), text(), key()
    if redis.call('ZCARD', held) > 0 then
        redis.call('ZADD', register, 0, member)
    else
        redis.call('ZREM', register, member)
    end
end
return 1
"""
_ARGUMENTS: Final = 4_000
"""A command that the script calls has at most that many; Lua's stack holds 8,000."""
_ORDER: Final = ("HSET", "ZADD", "HDEL", "ZREM")
Argument = bytes | int


class Changed(NamedTuple):
    """What a batch makes of a key: of ``old`` it makes ``new``, with ``stamp``."""

    address: Key
    old: Stored
    new: Cell
    stamp: bytes


def invocation(
    layout: Layout, changes: Sequence[Changed], heads: Mapping[Namespace, int], checked: Mapping[Key, bytes]
) -> list[Argument]:
    """The number of keys, the keys and the arguments of the script.

    ``checked`` are the stamps of cells on which the batch was decided besides those that it changes.
    ``heads`` tells how many writes of the batch change each scope; the sequence numbers of ``changes`` count from 1 in
    each scope, 0 means that the feed does not hear of it.
    """
    keys = _Keys()
    keys.number(layout.whole("heads"))
    arguments: list[Argument] = []
    for entries in (
        _checks(layout, keys, {change.address: change.old.stamp for change in changes} | {**checked}),
        _feeds(layout, keys, changes, heads),
        _commands(layout, keys, changes),
        _registers(layout, keys, changes),
    ):
        arguments += [len(entries), *chain.from_iterable(entries)]
    return [len(keys.names), *keys.names, *arguments]


class _Keys:
    """The keys that a script names, numbered from 1."""

    def __init__(self) -> None:
        self.names: dict[bytes, int] = {}

    def number(self, name: bytes) -> int:
        return self.names.setdefault(name, len(self.names) + 1)


_Entries = list[list[Argument]]


def _checks(layout: Layout, keys: _Keys, stamps: Mapping[Key, bytes]) -> _Entries:
    return [
        [keys.number(layout.of("cells", *namespace)), encoded(key), stamp] for (namespace, key), stamp in stamps.items()
    ]


def _feeds(layout: Layout, keys: _Keys, changes: Sequence[Changed], heads: Mapping[Namespace, int]) -> _Entries:
    heard: dict[Namespace, list[Argument]] = {scope: [] for scope in heads}
    for (namespace, key), _, new, _ in changes:
        if new.seq:
            heard[namespace] += [new.seq, encoded(key)]
    return [
        [keys.number(layout.of("feed", *scope)), pack_scope(scope), writes, len(heard[scope]) // 2, *heard[scope]]
        for scope, writes in heads.items()
    ]


def _commands(layout: Layout, keys: _Keys, changes: Sequence[Changed]) -> _Entries:
    grouped: dict[tuple[str, bytes], list[Argument]] = {}
    for change in changes:
        for name, key, arguments in chain(_fields(layout, change), _moves(layout, change)):
            grouped.setdefault((name, key), []).extend(arguments)
    ordered = sorted(grouped.items(), key=lambda one: _ORDER.index(one[0][0]))
    return [
        [name.encode(), keys.number(key), len(some), *some]
        for (name, key), arguments in ordered
        for some in chunked(arguments, _ARGUMENTS)
    ]


_Command = tuple[str, bytes, list[Argument]]


def _fields(layout: Layout, change: Changed) -> Iterator[_Command]:
    (namespace, key), old, new, stamp = change
    yield "HSET", layout.of("cells", *namespace), [encoded(key), pack_cell(stamp, new)]
    before = old.cell.document if old.cell else None
    if new.document is before:
        return
    for what in ("vectors", "tokens"):
        packed = new.document and (new.document.vector if what == "vectors" else new.document.tokens)
        if packed is not None:
            yield "HSET", layout.of(what, *namespace), [encoded(key), packed]
        elif before:
            yield "HDEL", layout.of(what, *namespace), [encoded(key)]


def _moves(layout: Layout, change: Changed) -> Iterator[_Command]:
    before, after = layout.places(change.address, change.old.cell), layout.places(change.address, change.new)
    for index, member in after - before:
        yield "ZADD", index, [0, member]
    for index, member in before - after:
        yield "ZREM", index, [member]


def _registers(layout: Layout, keys: _Keys, changes: Sequence[Changed]) -> _Entries:
    scopes = {change.address[0] for change in changes}
    cells = chain.from_iterable((change.old.cell, change.new) for change in changes)
    models = {cell.document.model for cell in cells if cell and cell.document}
    held = [("scopes", pack_scope(scope), layout.of("age", *scope)) for scope in scopes]
    held += [("models", encoded(model), layout.of("texts", model)) for model in models]
    return [[keys.number(layout.whole(register)), member, keys.number(index)] for register, member, index in held]
