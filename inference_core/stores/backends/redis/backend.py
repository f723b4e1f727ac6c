"""Redis: a server, or a cluster of them, which other programs may use too; commands name exact keys but for repairs.

A batch is applied in memory to the rows it touches and stored by a script, which refuses if one of them has changed in
the meantime; then it is tried again. Rows do not expire by Redis' own means, which the change feed would miss.

Inspection, repair and erasure of rows in Redis, outside of the batches that `RedisBackend.apply` decides.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Final

from inference_core.clock import Clock, SystemClock
from inference_core.errors import SeveralOwners, StoreBusy, StoreError, StoreUnavailable, without_quotes
from inference_core.memory.namespaces import ROOTS, Namespace
from inference_core.memory.secrets import quoted
from inference_core.retrieval.documents import NO_EPOCH, Change, Term
from inference_core.stores.backend import (
    UNREADABLE,
    Batch,
    Capabilities,
    Head,
    Key,
    Outcome,
    PageRequest,
    Row,
    Tally,
    UnembeddedRow,
    Unreadable,
    bucket_of,
    by_namespace,
    check_schema,
    keys_in,
    keys_of,
    pack_namespace,
    to_micros,
)
from inference_core.stores.backends.redis.address import Redis, RedisCluster, address_of, parse_address
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
    cursor_of_member,
    inspected,
    instant,
    invocation,
    key_of_member,
    layouts,
    new_stamp,
    newest_first,
    pack_address,
    pack_scope,
    scope_of,
    unpack_address,
    unpack_cell,
    unpack_change,
)
from inference_core.stores.backends.redis.server import Server, chunked, connect, encoded
from inference_core.stores.backends.rows import WriteSet, holding_most, tally

_PORTION: Final = 1_000
_AT_ONCE: Final = 128
_APART: Final = "a cluster applies a batch only to rows of one user; write them one after the other"


def inspect(server: Server, layouts: Sequence[Layout], root: str | None) -> Iterator[Row | Unreadable]:
    """Every row below ``root``, or of all users, that ``layouts`` have, and what cannot be read there."""
    scopes = server.ask([("ZRANGE", keys.whole("scopes"), 0, -1) for keys in layouts])
    for keys, scope in chain.from_iterable(zip(repeat(keys), some) for keys, some in zip(layouts, scopes, strict=True)):
        namespace = scope_of(scope)
        if root is not None and (namespace is None or namespace[0] != root):
            continue
        (fields,) = server.ask([("HKEYS", keys.raw("cells", scope))])
        for some in chunked(fields, _PORTION):
            questions = [("HMGET", keys.raw(what, scope), *some) for what in ("cells", "vectors")]
            for field, packed, vector in zip(some, *server.ask(questions, together=True), strict=True):
                found = packed and inspected(keys, scope, field, packed, vector)
                if found:
                    yield found


def discard(server: Server, damaged: Unreadable) -> bool:
    """Removes a row from every key that mentions it, unless it was written since. Returns whether it did."""
    keys, scope, field, stamp = damaged.place
    (packed,) = server.ask([("HMGET", keys.raw("cells", scope), field)])[0]
    if packed is None or packed[:STAMP_BYTES] != stamp:
        return False
    call: list[Argument] = []
    if damaged.namespace is not None and damaged.key.encode() == field:
        with suppress(*UNREADABLE):
            cell = checked_cell(packed)
            after = cell.deleted(1)
            change = CellChange((damaged.namespace, damaged.key), Stored(stamp, cell), after, new_stamp())
            call = invocation(keys, [change], {damaged.namespace: 1}, {})
    if not call:
        call = call_for_lost(damaged.place, *_members_of_lost(server, damaged.place))
    for _ in range(2):  # the first answer is 0 if the server did not have the script yet
        (answer,) = server.evaluate(SCRIPT, [call])
        if isinstance(answer, Exception):
            raise answer
        if answer:
            return True
    return False


def _members_of_lost(server: Server, place: DamagedCell) -> tuple[list[bytes], dict[bytes, list[bytes]]]:
    """The store's models, and the members of sorted sets that stand for a damaged cell.

    The cell does not say which sets contain it, so all that may are searched.
    """
    keys = place.layout
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


def erase(server: Server, keys: Layout, root: str) -> None:
    """Removes all scopes of ``root`` from every key of the layout ``keys`` that has them."""
    (heads,) = server.ask([("HKEYS", keys.whole("heads"))])
    scopes = [scope for scope in heads if (name := scope_of(scope)) is not None and name[0] == root]
    for scope in scopes:
        (fields,) = server.ask([("HKEYS", keys.raw("cells", scope))])
        for some in chunked(fields, _PORTION):
            erase_rows(server, keys, scope, some)
        own = [keys.raw(what, scope) for what in ("cells", "vectors", "tokens", "feed", "age", "ends")]
        removals: list[tuple[Any, ...]] = [("DEL", *own), ("ZREM", keys.whole("scopes"), scope)]
        # The head goes last: as long as it is there, a repeated call finds the scope.
        server.change([*removals, ("HDEL", keys.whole("heads"), scope)])


def erase_rows(server: Server, keys: Layout, scope: bytes, fields: Sequence[bytes]) -> None:
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
                _, sets = _members_of_lost(server, DamagedCell(keys, scope, field, packed[:STAMP_BYTES]))
                removals += [("ZREM", name, *members) for name, members in sets.items() if members]
    removals += [("HDEL", keys.raw(what, scope), *fields) for what in ("cells", "vectors", "tokens")]
    removals.append(("ZREM", keys.raw("feed", scope), *fields))
    server.change(removals)


_LOG = logging.getLogger(__name__)
VERSION: Final = 1
_SCHEMA: Final = "schema_version"
_ROUNDS: Final = 64
_PAUSE_S: Final = 0.002
_REWRITE_S: Final = 60.0


class RedisBackend:
    """A Backend on the Redis at ``url``, with ``?prefix=`` for its keys, and ``?wait=`` for replicas to wait for.

    The URL begins with ``redis://``, ``rediss://`` or ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``. In
    place of a URL it takes a client, whose address and login it uses over connections of its own.

    Raises ConfigurationError for a URL or a server that cannot be used, StoreUnavailable if nothing answers,
    UnsupportedSchema if a newer version of the package wrote the store.
    """

    def __init__(self, url: str | Redis | RedisCluster, *, clock: Clock | None = None) -> None:
        address = parse_address(url) if isinstance(url, str) else address_of(url)
        self._clock = clock or SystemClock()
        self._server = connect(address)
        self._whole = Layout(address.prefix)
        self._layouts = layouts(address.prefix) if self._server.is_cluster else [self._whole]
        self.name = self._server.name
        with ExitStack() as opened:
            opened.callback(self.close)
            version = self.get_meta(_SCHEMA)
            check_schema(int(version or 0), VERSION)
            if version is None:
                self._server.tell(("HSETNX", self._whole.whole("meta"), _SCHEMA, VERSION))
            for policy in self._server.settings("maxmemory-policy"):
                if policy.startswith("allkeys"):
                    _LOG.warning("%s may drop memories when it is full: its maxmemory-policy is %s", self.name, policy)
            if not self._server.may_inform:
                _LOG.warning(
                    "%s does not answer INFO to this login, so a restart that lost writes goes unnoticed: restart this "
                    "process, too",
                    self.name,
                )
            # A confirmed write is on disk if the server flushes its log after each one.
            found = self._server.settings("appendonly"), self._server.settings("appendfsync")
            self.capabilities = Capabilities(
                durable=found == ({"yes"}, {"always"}),
                atomic=True,
                compare_and_set=True,
                change_feed=True,
                single_writer=True,
                split=self._server.is_cluster,
            )
            opened.pop_all()

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies each batch by one call of the script, all sent together; batches that lost a race are tried again."""
        self._server.check()
        parts: dict[str, dict[int, Batch]] = {}
        for at, batch in enumerate(batches):  # by server: that one fails says nothing of the others
            first = next(keys_in(batch), None) if self._server.is_cluster else None
            place = self._server.place_of(self._at(first[0]).whole("heads")) if first else ""
            parts.setdefault(place, {})[at] = batch
        outcomes: dict[int, Outcome] = {}
        for part in parts.values():
            outcomes |= self._applied_in_turns(part)
        return [outcomes[at] for at in range(len(batches))]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        now = self._clock.now()
        wanted = by_namespace(keys)
        questions: list[tuple[Any, ...]] = []
        for namespace, names in wanted.items():
            keys_at = self._at(namespace)
            # Numbers first: a write in between then gives a newer row with an older number, which caches read again,
            # and never an older row with a newer number. A server out of memory would refuse a transaction.
            questions += [("ZSCORE", keys_at.of("feed", *namespace), encoded(name)) for name in names]
            questions.append(("HMGET", keys_at.of("cells", *namespace), *map(encoded, names)))
        answers = zip(*self._server.ask_in_epoch(questions), strict=True)
        rows: dict[Key, Row | None] = {}
        for namespace, names in wanted.items():
            seqs = [seq for seq, _ in islice(answers, len(names))]
            cells, epoch = next(answers)
            for name, seq, packed in zip(names, seqs, cells, strict=True):
                cell = unpack_cell(packed).cell
                if cell and cell.is_alive(now):
                    rows[namespace, name] = replace(cell, seq=int(seq or 0)).row(namespace, name, epoch)
        return [rows.get(key) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        return self._fields("tokens", keys)

    def page(self, request: PageRequest) -> list[Row]:
        """The rows that ``request`` asks for, found in the sorted sets."""
        namespaces, kinds, rows = list(dict.fromkeys(request.scopes)), request.kinds, list[Row]()
        after, offset = request.after, request.offset
        while (missing := request.limit - len(rows)) > 0:
            end = offset + missing
            sets: list[tuple[Namespace, set[str]]] = []
            questions: list[tuple[Any, ...]] = []
            for namespace, dead in zip(namespaces, self._ended(namespaces), strict=True):
                first = b"-"
                if after is not None:
                    # A row of the same age and key comes after the cursor's if its namespace does.
                    edge = b"[" if pack_namespace(namespace) > after.place[2] else b"("
                    first = edge + newest_first(after.created_at, after.key)
                for name in [("age", *namespace)] if kinds is None else [("kinds", *namespace, kind) for kind in kinds]:
                    sets.append((namespace, dead))
                    key = self._at(namespace).of(*name)
                    questions.append(("ZRANGEBYLEX", key, first, "+", "LIMIT", 0, end + len(dead)))
            cursors = [
                cursor
                for (namespace, dead), members in zip(sets, self._server.ask(questions), strict=True)
                for cursor in (cursor_of_member(namespace, member) for member in members)
                if cursor.key not in dead
            ]
            found = sorted(cursors, key=lambda cursor: cursor.place)[offset:end]
            rows += filter(None, self.get([(cursor.namespace, cursor.key) for cursor in found]))
            if len(found) < missing:
                break
            after, offset = found[-1], 0  # more, in place of rows that were removed in the meantime
        return rows

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        distinct = list(dict.fromkeys(namespaces))
        if kinds is None:
            return sum(self._counts(distinct))
        sizes = self._server.ask(
            [("ZCARD", self._at(scope).of("kinds", *scope, kind)) for scope in distinct for kind in kinds]
        )
        ended = [
            (namespace, key) for namespace, keys in zip(distinct, self._ended(distinct), strict=True) for key in keys
        ]
        cells = [unpack_cell(packed).cell for packed in self._fields("cells", ended)]
        return sum(sizes) - sum(1 for cell in cells if cell and cell.kind in kinds)

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``namespaces`` hold, by namespace and kind; reads all of them."""
        now, distinct = self._clock.now(), list(dict.fromkeys(namespaces))
        answers = self._server.ask([("ZRANGE", self._at(scope).of("age", *scope), 0, -1) for scope in distinct])
        keys = [
            (namespace, key_of_member(one)) for namespace, found in zip(distinct, answers, strict=True) for one in found
        ]
        rows: list[tuple[Namespace, str, datetime]] = []
        for portion in chunked(keys, _PORTION):
            cells = [unpack_cell(packed).cell for packed in self._fields("cells", portion)]
            known = [(scope, cell) for (scope, _), cell in zip(portion, cells, strict=True) if cell]
            rows += [(scope, cell.kind, cell.created_at) for scope, cell in known if cell.is_alive(now)]
        return tally(rows)

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        start, later = encoded(pack_namespace(prefix)[:-1]), self._later()
        questions: list[tuple[Any, ...]] = []
        for keys in self._layouts_of(prefix[0] if prefix else None):
            questions.append(("ZRANGEBYLEX", keys.whole("scopes"), b"[" + start, b"(" + start + b"\xff"))
            questions.append(("ZLEXCOUNT", keys.whole("ends"), "-", later))
        answers = self._server.ask(questions)
        named = map(scope_of, chain.from_iterable(answers[::2]))
        names = sorted(name for name in named if name and name[: len(prefix)] == prefix)
        if not any(answers[1::2]):
            return names
        return [name for name, count in zip(names, self._counts(names), strict=True) if count]

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        by_layout: dict[Layout, list[Namespace]] = {}
        for namespace in dict.fromkeys(namespaces):
            by_layout.setdefault(self._at(namespace), []).append(namespace)
        questions = [("HMGET", keys.whole("heads"), *map(pack_scope, some)) for keys, some in by_layout.items()]
        answers = zip(by_layout.values(), *self._server.ask_in_epoch(questions), strict=True) if questions else ()
        heads = {
            namespace: Head(int(head or 0), epoch)
            for some, found, epoch in answers
            for namespace, head in zip(some, found, strict=True)
        }
        return [heads[namespace] for namespace in namespaces]

    def changes(self, namespace: Namespace, since: int, *, with_vectors: bool = True) -> Iterator[Change]:
        layout, whats = self._at(namespace), ("cells", "vectors") if with_vectors else ("cells",)
        feed = ("ZRANGEBYSCORE", layout.of("feed", *namespace), f"({since}", "+inf", "WITHSCORES")
        (numbered,), (began,) = self._server.ask_in_epoch([feed])
        for portion in chunked(numbered, 2 * _PORTION):
            keys, seqs = portion[::2], portion[1::2]
            questions = [("HMGET", layout.of(what, *namespace), *keys) for what in whats]
            (cells, *vectors), (epoch, *_) = self._server.ask_in_epoch(questions, together=True)
            epoch = epoch if epoch == began else NO_EPOCH
            for key, seq, cell, vector in zip(keys, seqs, cells, *(vectors or [repeat(None, len(keys))]), strict=True):
                with suppress(UnicodeDecodeError):  # not a key that this package wrote
                    if cell:
                        yield unpack_change(int(seq), key.decode(), cell, vector, epoch)

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        """The keys whose terms contain the most of ``words``, counted in this process."""
        changes = holding_most(self.changes(namespace, since, with_vectors=False), words, limit)
        return [change._replace(document=change.document and change.document._replace(model="")) for change in changes]

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        found = self._unembedded(model, limit) if keys is None else keys
        cells = [unpack_cell(packed).cell for packed in self._fields("cells", found)]
        waiting = [cell.pending(*key, model) for key, cell in zip(found, cells, strict=True) if cell]
        return [row for row in waiting if row][:limit]

    def _unembedded(self, model: str, limit: int) -> list[Key]:
        answers = self._server.ask([("ZRANGE", keys.whole("models"), 0, -1) for keys in self._layouts])
        others = [
            (keys, other)
            for keys, models in zip(self._layouts, answers, strict=True)
            for other in map(bytes.decode, models)
            if other != model
        ]
        texts = [("ZRANGE", keys.of("texts", other), 0, limit - 1) for keys, other in others]
        return [unpack_address(member) for member in self._first(texts, limit)]

    def expired(self, limit: int) -> list[Key]:
        later = self._later()
        ends = [("ZRANGEBYLEX", keys.whole("ends"), "-", later, "LIMIT", 0, limit) for keys in self._layouts]
        return [unpack_address(member[DIGITS:]) for member in self._first(ends, limit)]

    def _first(self, questions: list[Any], limit: int) -> list[bytes]:
        """The first ``limit`` members that the answers hold; a portion of the questions is asked at a time."""
        members: list[bytes] = []
        for some in chunked(questions, _AT_ONCE):
            members += chain.from_iterable(self._server.ask(some))
            if len(members) >= limit:
                break
        return members[:limit]

    def get_meta(self, name: str) -> str | None:
        (found,) = self._server.ask([("HGET", self._whole.whole("meta"), encoded(name))])
        return None if found is None else found.decode()

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        self._server.tell(("HSETNX" if is_first else "HSET", self._whole.whole("meta"), encoded(name), encoded(value)))

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        return inspect(self._server, self._layouts_of(root), root)

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        self._server.check()
        return sum(discard(self._server, damaged) for damaged in unreadable)

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        for keys in self._layouts_of(root):
            erase(self._server, keys, root)
        for namespace, key in also:
            erase_rows(self._server, self._at(namespace), pack_scope(namespace), [encoded(key)])

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """Has the server rewrite its append-only file, if it has one and permits it, and waits for the end of that."""
        del fully
        left = [f"snapshots (RDB) of {self.name}, until the next one"] if any(self._server.settings("save")) else []
        if "yes" not in self._server.settings("appendonly"):
            return left
        try:
            self._server.rewrite_logs(_REWRITE_S)
        except StoreUnavailable as error:
            left.append(f"the append-only file, until BGREWRITEAOF has ended ({error})")
        return left

    def files(self) -> list[Path]:
        """None: the server's files lie elsewhere."""
        return []

    def forget(self, user: str) -> None:
        """Does nothing: Redis keeps no record of who follows changes."""

    def close(self) -> None:
        self._server.close()

    def _applied_in_turns(self, waiting: Mapping[int, Batch]) -> dict[int, Outcome]:
        """The outcomes of the batches ``waiting``, whose rows one server has."""
        outcomes: dict[int, Outcome] = {}
        for turn in range(_ROUNDS):
            if turn:
                time.sleep(random.uniform(0, _PAUSE_S * turn))  # noqa: S311 - writers that met once part
            try:
                outcomes |= self._applied(waiting)
            except StoreError as error:
                outcomes |= dict.fromkeys(waiting, error)
            waiting = {at: batch for at, batch in waiting.items() if at not in outcomes}
            if not waiting:
                return outcomes
        return outcomes | dict.fromkeys(
            waiting, StoreBusy(f"{self.name}: other writers were faster {_ROUNDS} times; try again")
        )

    def _applied(self, batches: Mapping[int, Batch]) -> dict[int, Outcome]:
        """The outcomes of the batches that did not lose a race."""
        refused: dict[int, Outcome] = {}
        versions: dict[int, list[int]] = {}
        calls: dict[int, list[Argument]] = {}
        askable: list[Key] = []
        for address in keys_of(batches.values()):
            with suppress(StoreError, TypeError):  # what Redis cannot hold is refused below
                pack_address(address)
                askable.append(address)
        cells = self._fields("cells", askable)
        known = {address: unpack_cell(packed) for address, packed in zip(askable, cells, strict=True)}
        for at, batch in batches.items():
            try:
                versions[at], call = self._decided(batch, known)
            except StoreError as error:
                refused[at] = error
            except (ValueError, TypeError, AttributeError, OverflowError) as error:
                refused[at] = StoreError(f"Redis cannot hold this: {without_quotes(error)}")
            else:
                if call:
                    calls[at] = call
        answers = dict(zip(calls, self._server.evaluate(SCRIPT, list(calls.values())), strict=True)) if calls else {}
        outcomes: dict[int, Outcome] = {
            at: answer if isinstance(answer, StoreError) else versions[at] for at, answer in answers.items() if answer
        }
        if all(answer == 1 for answer in answers.values()):  # else these may build on a batch that lost its race
            outcomes |= refused | {at: one for at, one in versions.items() if at not in calls}
        return outcomes

    def _decided(self, batch: Batch, known: dict[Key, Stored]) -> tuple[list[int], list[Argument]]:
        """The versions after ``batch`` and the call that applies it; updates ``known``. Raises StoreError."""
        nothing = Stored()
        writes = WriteSet(lambda address: known.get(address, nothing).cell, lambda _: 0, self._clock.now())
        versions = writes.apply(batch)
        for address in writes.states:
            if known.get(address, nothing).is_lost:
                raise StoreError(
                    f"What is stored under {address[1]!r} cannot be read; inference-core repair removes it"
                )
        changes = [
            CellChange(address, known.get(address, nothing), cell, new_stamp())
            for address, cell in writes.states.items()
        ]
        checked = {address: known.get(address, nothing).stamp for address in writes.checked - writes.states.keys()}
        touched = {self._at(namespace): namespace for namespace, _ in (*writes.states, *checked)} if changes else {}
        if len(touched) > 1:
            roots = ", ".join(sorted({quoted(namespace[0]) for namespace in touched.values()}))
            raise SeveralOwners(f"{self.name} cannot write for {roots} at once: {_APART}")
        call = invocation(next(iter(touched)), changes, writes.heads, checked) if changes else []
        known |= {one.address: Stored(one.stamp, replace(one.new, seq=0)) for one in changes}
        return versions, call

    def _fields(self, what: str, keys: Sequence[Key]) -> list[bytes | None]:
        """The fields of ``keys`` in the scopes' hashes."""
        wanted = by_namespace(keys)
        questions = [
            ("HMGET", self._at(namespace).of(what, *namespace), *map(encoded, fields))
            for namespace, fields in wanted.items()
        ]
        found = {
            (namespace, key): field
            for (namespace, fields), answer in zip(wanted.items(), self._server.ask(questions), strict=True)
            for key, field in zip(fields, answer, strict=True)
        }
        return [found[key] for key in keys]

    def _ended(self, namespaces: Sequence[Namespace]) -> list[set[str]]:
        """The expired keys of each scope."""
        later = self._later()
        ends = [("ZRANGEBYLEX", self._at(scope).of("ends", *scope), "-", later) for scope in namespaces]
        return [{key_of_member(member) for member in members} for members in self._server.ask(ends)]

    def _counts(self, namespaces: Sequence[Namespace]) -> list[int]:
        """How many unexpired rows each scope holds."""
        later = self._later()
        sizes = [("ZCARD", self._at(scope).of("age", *scope)) for scope in namespaces]
        ended = [("ZLEXCOUNT", self._at(scope).of("ends", *scope), "-", later) for scope in namespaces]
        found: list[int] = self._server.ask([*sizes, *ended])
        return [size - dead for size, dead in zip(found[: len(namespaces)], found[len(namespaces) :], strict=True)]

    def _at(self, namespace: Namespace) -> Layout:
        """The names of the keys that have the rows of ``namespace``."""
        return self._layouts[bucket_of(namespace)] if len(self._layouts) > 1 else self._whole

    def _layouts_of(self, root: str | None) -> Sequence[Layout]:
        """The layouts that may have namespaces which begin with ``root``, or any."""
        return self._layouts if root is None or root in ROOTS else [self._at((root,))]

    def _later(self) -> bytes:
        """The end, exclusive, of the expired members in a set by expiry."""
        return b"(" + instant(to_micros(self._clock.now()) + 1)


def has_store(url: str) -> bool:
    """Whether there is a store at ``url``. Raises ConfigurationError, StoreUnavailable."""
    address = parse_address(url)
    with closing(connect(address)) as server:
        (found,) = server.ask([("HEXISTS", Layout(address.prefix).whole("meta"), _SCHEMA)])
    return bool(found)
