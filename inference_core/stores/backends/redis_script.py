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
_Entries = list[list[Argument]]


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
    names: dict[bytes, int] = {}

    def number(name: bytes) -> int:
        """The place of a key among those that the script names, from 1."""
        return names.setdefault(name, len(names) + 1)

    number(layout.whole("heads"))
    stamps = {change.address: change.old.stamp for change in changes} | {**checked}
    checks: _Entries = [
        [number(layout.of("cells", *namespace)), encoded(key), stamp] for (namespace, key), stamp in stamps.items()
    ]
    heard: dict[Namespace, list[Argument]] = {scope: [] for scope in heads}
    grouped: dict[tuple[str, bytes], list[Argument]] = {}
    for change in changes:
        namespace, key = change.address
        if change.new.seq:
            heard[namespace] += [change.new.seq, encoded(key)]
        for name, index, arguments in _commands(layout, change):
            grouped.setdefault((name, index), []).extend(arguments)
    feeds: _Entries = [
        [number(layout.of("feed", *scope)), pack_scope(scope), writes, len(heard[scope]) // 2, *heard[scope]]
        for scope, writes in heads.items()
    ]
    ordered = sorted(grouped.items(), key=lambda one: _ORDER.index(one[0][0]))
    commands: _Entries = [
        [name.encode(), number(index), len(some), *some]
        for (name, index), arguments in ordered
        for some in chunked(arguments, _ARGUMENTS)
    ]
    cells = chain.from_iterable((change.old.cell, change.new) for change in changes)
    models = {cell.document.model for cell in cells if cell and cell.document}
    registers: _Entries = [
        [number(layout.whole("scopes")), pack_scope(scope), number(layout.of("age", *scope))]
        for scope in {change.address[0] for change in changes}
    ]
    registers += [
        [number(layout.whole("models")), encoded(model), number(layout.of("texts", model))] for model in models
    ]
    return call_of(names, checks, feeds, commands, registers)


def call_of(names: Mapping[bytes, int], *parts: _Entries) -> list[Argument]:
    """The number of keys, the keys and the arguments of the script: each part with the number of its entries."""
    return [len(names), *names, *chain.from_iterable([len(part), *chain.from_iterable(part)] for part in parts)]


def _commands(layout: Layout, change: Changed) -> Iterator[tuple[str, bytes, list[Argument]]]:
    (namespace, key), old, new, stamp = change
    yield "HSET", layout.of("cells", *namespace), [encoded(key), pack_cell(stamp, new)]
    before, after = old.cell.document if old.cell else None, new.document
    if after is not before:
        for what, packed in (("vectors", after and after.vector), ("tokens", after and after.tokens)):
            if packed is not None:
                yield "HSET", layout.of(what, *namespace), [encoded(key), packed]
            elif before:
                yield "HDEL", layout.of(what, *namespace), [encoded(key)]
    was, now = layout.places(change.address, old.cell), layout.places(change.address, new)
    for index, member in now - was:
        yield "ZADD", index, [0, member]
    for index, member in was - now:
        yield "ZREM", index, [member]
