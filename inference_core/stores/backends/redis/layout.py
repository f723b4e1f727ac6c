"""The layout of a store in Redis: the names of its keys, rows (also damaged ones) as bytes, and the script for writes.

Each scope has the hashes ``cells``, ``vectors`` and ``tokens`` by key, and the sorted sets ``feed`` (keys by sequence
number), ``age`` and ``kinds`` (by creation, the newest first) and ``ends`` (by expiry). The store has the hashes
``meta`` and ``heads``, and the sorted sets ``scopes`` and ``models`` (those that hold something), ``texts`` of a model
and ``ends``. In a cluster each of its buckets has all of these but ``meta``, with the bucket's number as the hash tag.
 Order in time is in the members, as digits of fixed width: scores are too coarse for microseconds.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import chain, count
from typing import Any, Final, NamedTuple

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import NO_EPOCH, Change, Document, DocumentMetadata, Epoch
from inference_core.stores.backend import (
    BUCKETS,
    LOST,
    MAX_MICROS,
    MIN_MICROS,
    UNREADABLE,
    Cursor,
    Key,
    Row,
    RowState,
    Unreadable,
    WrongType,
    expiry_micros,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    pack_namespace,
    to_micros,
    unpack_namespace,
)
from inference_core.stores.backends.redis.server import chunked, encoded
from inference_core.stores.backends.rows import lost

STAMP_BYTES: Final = 12
DIGITS: Final = 18
"""The digits at the start of a member that is ordered by time."""
Member = tuple[bytes, bytes]
"""A sorted set, and a member of it."""
# A Lua script runs alone on the server, and its effects reach the append-only file together. This one first compares
# the stamps of all cells on which the batch was decided; if one has changed, it returns 0 and changes nothing. Commands
# that a server out of memory refuses come first, so that such a batch fails before its first change.
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
"""The most arguments of a command in the script; Lua's stack holds 8,000."""
_ORDER: Final = ("HSET", "ZADD", "HDEL", "ZREM")
Argument = bytes | int
_Entries = list[list[Argument]]


class Stored(NamedTuple):
    """What is stored under a key. Every write changes ``stamp``, which is empty where there is no cell.

    ``is_lost``: the cell cannot be parsed, so the sorted sets that contain it are unknown.
    """

    stamp: bytes = b""
    cell: RowState | None = None
    is_lost: bool = False


class DamagedCell(NamedTuple):
    """How to find an unreadable cell again: a scope and a field of its hashes, as they are stored, and its stamp."""

    layout: Layout
    scope: bytes
    field: bytes
    stamp: bytes


class Layout:
    """The names of a store's keys, which all begin with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def whole(self, what: str) -> bytes:
        """The key of something that the store has once."""
        return encoded(f"{self._prefix}{what}")

    def of(self, what: str, *names: str) -> bytes:
        """The key of something that each scope, kind of a scope, or model has."""
        return self.raw(what, pack_scope(names))

    def raw(self, what: str, packed: bytes) -> bytes:
        """The key that `of` gives for packed names, even if they cannot be unpacked."""
        return encoded(f"{self._prefix}{what}:") + packed

    def places(self, address: Key, cell: RowState | None) -> set[Member]:
        """The sorted sets that contain the cell at ``address``, except the feed, and its members there."""
        if cell is None or cell.value is None:
            return set()
        namespace, key = address
        member = newest_first(cell.created_at, key)
        found = {(self.of("age", *namespace), member), (self.of("kinds", *namespace, cell.kind), member)}
        if cell.expiry:
            at = instant(to_micros(cell.expiry.at))
            found |= {
                (self.of("ends", *namespace), at + encoded(key)),
                (self.whole("ends"), at + pack_address(address)),
            }
        if cell.document:
            found.add((self.of("texts", cell.document.model), pack_address(address)))
        return found

    def pattern_of_kinds(self, scope: bytes) -> bytes:
        """Matches the sets of all kinds of a packed scope, and those of the scopes below it."""
        return re.sub(rb"([\[\]*?\\^-])", rb"\\\1", self.raw("kinds", scope[:-1] + b",")) + b"*"

    def is_kind_of(self, name: bytes, scope: bytes) -> bool:
        """Whether ``name``, which `pattern_of_kinds` matches, is a set of this scope itself."""
        packed = scope_of(name[len(self.raw("kinds", b"")) :])
        return packed is not None and packed[:-1] == scope_of(scope)

    def suspects(self, place: DamagedCell, kinds: Sequence[bytes], models: Sequence[bytes]) -> dict[bytes, bytes]:
        """The sorted sets that may contain a damaged cell, which does not name them, and what its members end with."""
        _, scope, field, _ = place
        address = scope[:-1] + b"," + json.dumps(field.decode(errors="replace"), ensure_ascii=False).encode() + b"]"
        texts = [self.of("texts", model.decode()) for model in models]
        by_field = dict.fromkeys([self.raw("age", scope), self.raw("ends", scope), *kinds], field)
        return by_field | dict.fromkeys([self.whole("ends"), *texts], address)


@cache
def layouts(prefix: str) -> Sequence[Layout]:
    """The layouts of the buckets of a store in a cluster: what is between braces says where a key lies."""
    return [Layout(f"{prefix}{{{bucket}}}") for bucket in range(BUCKETS)]


def newest_first(created: datetime, key: str) -> bytes:
    """A member that sorts like a page: newest first, ties by key."""
    return b"%0*d" % (DIGITS, MAX_MICROS - to_micros(created)) + encoded(key)


def instant(micros: int) -> bytes:
    """``micros`` since 1970 as 18 digits that sort by time, also before 1970."""
    return b"%0*d" % (DIGITS, micros - MIN_MICROS)


def key_of_member(member: bytes) -> str:
    """The key in a member that begins with digits."""
    return member[DIGITS:].decode()


def cursor_of_member(namespace: Namespace, member: bytes) -> Cursor:
    """The cursor of the row of ``namespace`` with this member of `newest_first`."""
    return Cursor(from_micros(MAX_MICROS - int(member[:DIGITS])), key_of_member(member), namespace)


def pack_address(address: Key) -> bytes:
    """A key with its namespace as bytes, injectively."""
    namespace, key = address
    return pack_scope((*namespace, key))


def unpack_address(packed: bytes) -> Key:
    """The inverse of `pack_address`."""
    *namespace, key = unpack_namespace(packed.decode())
    return tuple(namespace), key


def pack_scope(namespace: Namespace) -> bytes:
    """A namespace as bytes, injectively."""
    return encoded(pack_namespace(namespace))


def pack_cell(stamp: bytes, cell: RowState) -> bytes:
    """A row's state without its sequence number and vectors: the stamp, then three lines: facts, text and value."""
    times = (to_micros(cell.created_at), to_micros(cell.updated_at))
    known = (cell.version, cell.kind, *times, *expiry_micros(cell.expiry))
    document = cell.document
    text = document and (document.text, document.terms, document.analyzer, document.model, *document.situation)
    return stamp + encoded("\n".join([_json(known), _json(text) if text else "", cell.value or ""]))


def unpack_cell(packed: bytes | None) -> Stored:
    """The inverse of `pack_cell`; an empty one for None, and a lost one for what cannot be parsed."""
    if packed is None:
        return Stored()
    try:
        return Stored(packed[:STAMP_BYTES], checked_cell(packed))
    except UNREADABLE:
        return Stored(packed[:STAMP_BYTES], lost(0, 1), is_lost=True)


def checked_cell(packed: bytes) -> RowState:
    """The state in a cell; a value that is not UTF-8 becomes ``LOST``. Raises one of ``UNREADABLE``."""
    known, text, stored = packed[STAMP_BYTES:].split(b"\n", 2)
    version, kind, created, updated, at, ttl = json.loads(known.decode())
    if type(version) is not int or type(kind) is not str:
        raise WrongType
    try:
        value = stored.decode() or None
    except UnicodeDecodeError:
        value = LOST
    return RowState(
        seq=0,
        version=version,
        kind=kind,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        value=value,
        document=_document(text),
        expiry=expiry_of(at, ttl),
    )


def unpack_change(seq: int, key: str, packed: bytes, vector: bytes | None, epoch: Epoch = NO_EPOCH) -> Change:
    """The change in a cell, parsed without its value to be quick; a damaged cell counts as deleted."""
    try:
        known, text, value = packed[STAMP_BYTES:].split(b"\n", 2)
        _, kind, created, *_ = json.loads(known.decode())
        document = _document(text)
        if type(kind) is not str or not MIN_MICROS <= created <= MAX_MICROS:
            return Change(seq, key, "", 0.0, None, epoch=epoch)
        document = document and document._replace(vector=vector)
        return Change(seq, key, kind, created / 1e6, document, bool(value), epoch)
    except UNREADABLE:
        return Change(seq, key, "", 0.0, None, epoch=epoch)


def scope_of(member: bytes) -> Namespace | None:
    """The namespace that was packed; None if it cannot be parsed."""
    try:
        return unpack_namespace(member.decode())
    except UNREADABLE:
        return None


def inspected(
    layout: Layout, scope: bytes, field: bytes, packed: bytes, vector: bytes | None
) -> Row | Unreadable | None:
    """The row in a cell, if it can be parsed; None if it was deleted."""
    namespace, place = scope_of(scope), DamagedCell(layout, scope, field, packed[:STAMP_BYTES])
    root = namespace[0] if namespace else None
    key = field.decode(errors="backslashreplace")
    reason, only_index = "a value is not JSON", False
    try:
        cell = checked_cell(packed)
        if cell.value is None:
            return None
        if namespace is None:
            reason = "its namespace cannot be read"
        elif key.encode() != field or not cell.value:
            reason = "a text is not UTF-8"
        elif row := cell.row(namespace, key):
            if vector is None or is_vector(vector):
                return row
            reason, only_index = "its vector cannot be unpacked", True
    except UNREADABLE as error:
        reason = fault_of(error)
    return Unreadable(root=root, namespace=namespace, key=key, reason=reason, only_index=only_index, place=place)


def new_stamp() -> bytes:
    """A stamp that no cell has yet."""
    return secrets.token_hex(STAMP_BYTES // 2).encode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _document(line: bytes) -> Document | None:
    if not line:
        return None
    text, terms, analyzer, model, *situation = json.loads(line.decode())
    if not type(text) is type(terms) is type(analyzer) is type(model) is str:
        raise WrongType
    return Document(text, terms, analyzer, DocumentMetadata(*situation), model)


class CellChange(NamedTuple):
    """A key that a batch changes from ``old`` to ``new``, which gets ``stamp``."""

    address: Key
    old: Stored
    new: RowState
    stamp: bytes


def invocation(
    layout: Layout, changes: Sequence[CellChange], heads: Mapping[Namespace, int], checked: Mapping[Key, bytes]
) -> list[Argument]:
    """The call of the script: the number of keys, the keys and the arguments.

    ``checked`` are the stamps of further cells that must not have changed. ``heads`` counts the writes to each scope;
    the sequence numbers of ``changes`` count from 1 in each scope, and a change with 0 is not in the feed.
    """
    number = defaultdict[bytes, int](count(1).__next__)  # of the keys in the call, in the order in which they are named
    _ = number[layout.whole("heads")]  # KEYS[1] of the script
    stamps = {change.address: change.old.stamp for change in changes} | {**checked}
    checks: _Entries = [
        [number[layout.of("cells", *namespace)], encoded(key), stamp] for (namespace, key), stamp in stamps.items()
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
        [number[layout.of("feed", *scope)], pack_scope(scope), writes, len(heard[scope]) // 2, *heard[scope]]
        for scope, writes in heads.items()
    ]
    ordered = sorted(grouped.items(), key=lambda one: _ORDER.index(one[0][0]))
    commands: _Entries = [
        [name.encode(), number[index], len(some), *some]
        for (name, index), arguments in ordered
        for some in chunked(arguments, _ARGUMENTS)
    ]
    cells = chain.from_iterable((change.old.cell, change.new) for change in changes)
    models = {cell.document.model for cell in cells if cell and cell.document}
    registers: _Entries = [
        [number[layout.whole("scopes")], pack_scope(scope), number[layout.of("age", *scope)]]
        for scope in {change.address[0] for change in changes}
    ]
    registers += [
        [number[layout.whole("models")], encoded(model), number[layout.of("texts", model)]] for model in models
    ]
    return call_of(number, checks, feeds, commands, registers)


def call_of(names: Mapping[bytes, int], *parts: _Entries) -> list[Argument]:
    """The number of keys, the keys, and the arguments: the number of entries in each part, and the entries."""
    return [len(names), *names, *chain.from_iterable([len(part), *chain.from_iterable(part)] for part in parts)]


def _commands(layout: Layout, change: CellChange) -> Iterator[tuple[str, bytes, list[Argument]]]:
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


def call_for_lost(place: DamagedCell, models: Sequence[bytes], sets: Mapping[bytes, list[bytes]]) -> list[Argument]:
    """The call that removes a cell that does not say what contains it; ``sets`` holds the members to remove."""
    layout, scope, field, stamp = place
    number = defaultdict[bytes, int](count(1).__next__)  # of the keys in the call, in the order in which they are named
    _ = number[layout.whole("heads")]  # KEYS[1] of the script
    cells, epoch = number[layout.raw("cells", scope)], from_micros(0)
    commands: _Entries = [
        [b"HSET", cells, 2, field, pack_cell(new_stamp(), RowState(0, 1, "", epoch, epoch, None))],
        *([b"HDEL", number[layout.raw(what, scope)], 1, field] for what in ("vectors", "tokens")),
        *([b"ZREM", number[key], len(members), *members] for key, members in sets.items() if members),
    ]
    registers: _Entries = [
        [number[layout.whole("scopes")], scope, number[layout.raw("age", scope)]],
        *([number[layout.whole("models")], model, number[layout.of("texts", model.decode())]] for model in models),
    ]
    feeds: _Entries = [[number[layout.raw("feed", scope)], scope, 1, 1, 1, field]]
    return call_of(number, [[cells, field, stamp]], feeds, commands, registers)
