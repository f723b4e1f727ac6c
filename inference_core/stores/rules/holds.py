"""Legal holds: what is under a hold is not removed, whoever tries to, and what replaces it keeps a copy.

Every write that could remove something has a `HoldRule`, whichever operation, chore, tool or command it comes from;
`erase`, `discard` and the sweep of expired rows ask too. A user with holds has a marker row, whose version changes with
each of them. The rule compares it in the transaction of the batch, so no process can overlook a new hold of another
process. Without holds this costs no read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from secrets import token_hex
from typing import Any, Final, NamedTuple, cast

from inference_core.clock import SystemClock
from inference_core.errors import Held, StoreError, StoreUnavailable
from inference_core.memory.namespaces import (
    ERASED,
    FORGOTTEN,
    GLOBAL,
    GRANTS,
    HELD,
    HOLDS,
    JOBS_ROOT,
    MIGRATED,
    PENDING,
    PORTIONS,
    QUEUE_ROOT,
    QUOTA,
    SEALS,
    USAGE,
    VERSIONS,
    Namespace,
    holds_forgotten,
    holds_memories,
    is_sidecar,
    sidecar_namespace,
)
from inference_core.memory.text import encode_json, mapping_field, moment_field, text_field
from inference_core.stores.backend import (
    EXTRA,
    Backend,
    Batch,
    Expire,
    Expiry,
    Key,
    Outdated,
    PageRequest,
    Put,
    Remove,
    Row,
    RowState,
    States,
    Write,
    WriteRule,
)
from inference_core.stores.rules.versions import is_versioned, versions_key

MARKER: Final = "~marker"
_MOST_HOLDS: Final = 1_000
_WORKING: Final = frozenset({"outbox", "messages", "short_term", "vector_store", "jobs", PENDING})
"""Second labels of what agents have to remove to go on working: it may be removed once a copy is kept."""
_FREE: Final = frozenset({USAGE, QUOTA, PORTIONS, "ingested", "~requests"})
"""Second labels of what says nothing by itself: counts, marks, what requests and jobs of the server take and give."""
_LEASES: Final = ("outbox", "state")
"""Second and last label of the namespaces of leases."""
NOBODYS: Final = frozenset({GRANTS, QUEUE_ROOT, JOBS_ROOT, ERASED, SEALS, GLOBAL, MIGRATED[0], "#keys", "#store"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keeps all of a user, or of one of the user's memories or sessions, until it is released or until ``until``."""

    id: str
    by: str
    reason: str
    since: datetime
    until: datetime | None = None
    memory_id: str | None = None
    session_id: str | None = None

    def to_value(self) -> dict[str, Any]:
        """The hold as JSON data, without empty fields."""
        fields = {"by": self.by, "reason": self.reason, "since": self.since.isoformat()}
        optional = {"memory_id": self.memory_id, "session_id": self.session_id}
        optional["until"] = self.until and self.until.isoformat()
        return fields | {name: value for name, value in optional.items() if value}

    @classmethod
    def of(cls, row: Row) -> Hold:
        """The hold in ``row``."""
        return cls(
            id=row.key,
            by=text_field(row.value, "by") or "",
            reason=text_field(row.value, "reason") or "",
            since=moment_field(row.value, "since") or row.created_at,
            until=moment_field(row.value, "until"),
            memory_id=text_field(row.value, "memory_id"),
            session_id=text_field(row.value, "session_id"),
        )

    def covers(self, row: Row) -> bool:
        """Whether the hold keeps ``row``, which is of the hold's user."""
        if row.namespace[1:2] in ((HOLDS,), (HELD,)):
            return True
        if self.memory_id is not None:
            return row.key == self.memory_id and (holds_memories(row.namespace) or is_sidecar(row.namespace))
        return self.session_id is None or self.session_id in set(_sessions(row.value))


def marker_of(root: str) -> Key:
    """Where the marker of the user with the label ``root`` is."""
    return (root, HOLDS), MARKER


class KnownHolds(NamedTuple):
    """The holds of a user as of a version of the user's marker (0: there is none)."""

    version: int = 0
    holds: Sequence[Hold] = ()

    def now(self, now: datetime) -> list[Hold]:
        """Those that have not ended."""
        return [hold for hold in self.holds if hold.until is None or hold.until > now]


class Holds:
    """The holds on what is in ``backend``. Methods block, and raise StoreError.

    On a store of another library, whose batches are not atomic, a hold that begins during a removal may come too late.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.known: dict[str, KnownHolds] = {}
        """Of users that have, or had, holds."""

    def read(self, root: str) -> KnownHolds:
        """The holds of the user with the label ``root``, as they are now."""
        backend = self._backend
        try:
            (row,) = backend.get([marker_of(root)])
        except StoreUnavailable:
            raise
        except StoreError:  # a damaged file can only be inspected; the holds in its readable part still count
            readable = (row for row in backend.inspect(root) if isinstance(row, Row))
            holds = [Hold.of(row) for row in readable if row.namespace == (root, HOLDS) and row.key != MARKER]
            return KnownHolds(holds=holds)
        if row is None:
            self.known.pop(root, None)
            return KnownHolds()
        rows = backend.page(PageRequest([(root, HOLDS)], limit=_MOST_HOLDS))
        self.known[root] = KnownHolds(row.version, [Hold.of(row) for row in rows if row.key != MARKER])
        return self.known[root]

    def holds_of(self, root: str) -> list[Hold]:
        """The holds of the user with the label ``root`` that have not ended."""
        found = self.read(root)
        # Where the database numbers its writes, it has left out the ended ones, by its own clock.
        return list(found.holds) if self._backend.capabilities.change_feed else found.now(SystemClock().now())

    def check(self, root: str) -> None:
        """Raises Held if the user with the label ``root`` has holds."""
        if holds := self.holds_of(root):
            raise Held([hold.id for hold in holds])

    def held(self, rows: Iterable[Row]) -> set[Key]:
        """The keys of the ``rows`` that a hold keeps, for callers that remove the others.

        A memory is kept with its earlier versions and its copy in the archive, which its removal would take along: they
        may be of another session.
        """
        rows, known = list(rows), dict[str, list[Hold]]()
        kept = self._covered(rows, known)
        free = [(row.namespace, row.key) for row in rows if known.get(row.namespace[0])]
        pairs = [(beside, key) for key in free if key not in kept for beside in _taken_along(key)]
        found = self._backend.get([beside for beside, _ in pairs]) if pairs else ()
        there = {(row.namespace, row.key): row for row in found if row}
        held = self._covered(there.values(), known)
        return kept | {key for beside, key in pairs if beside in held}

    def expired(self, limit: int) -> list[Key]:
        """Like `Backend.expired`, without what a hold keeps."""
        size = limit
        while True:
            keys = self._backend.expired(size)
            roots = list(dict.fromkeys(namespace[0] for namespace, _ in keys))
            markers = self._backend.get(list(map(marker_of, roots))) if roots else []
            under = [root for root, marker in zip(roots, markers, strict=True) if marker]
            rows = (row for root in under for row in self._backend.inspect(root) if isinstance(row, Row))
            kept = self._covered((row for row in rows if (row.namespace, row.key) in set(keys)), {})
            free = [key for key in keys if key not in kept]
            if len(free) >= limit or len(keys) < size:
                return free[:limit]
            size *= 2

    def rules(self, batch: Batch) -> list[HoldRule]:
        """The rule for ``batch``, if it may remove anything that a hold keeps."""
        roots = [
            write.namespace[0]
            for write in batch
            if isinstance(write, (Put, Remove, Expire))
            and _may_remove(write, is_known=write.namespace[0] in self.known)
        ]
        return [HoldRule(self, list(dict.fromkeys(roots)), batch)] if roots else []

    def _covered(self, rows: Iterable[Row], known: dict[str, list[Hold]]) -> set[Key]:
        """The keys of the ``rows`` that holds cover; adds the holds of their users to ``known``."""
        kept: set[Key] = set()
        for row in rows:
            root = row.namespace[0]
            if _is_kept(row.namespace):
                known[root] = holds = known[root] if root in known else self.holds_of(root)
                if any(hold.covers(row) for hold in holds):
                    kept.add((row.namespace, row.key))
        return kept


class HoldRule(WriteRule):
    """Refuses a batch that removes what a hold keeps, and keeps a copy of what it replaces.

    ``roots`` are the labels of the users of whom the batch may remove something.
    """

    def __init__(self, holds: Holds, roots: Sequence[str], batch: Batch) -> None:
        self._holds = holds
        self._known = {root: holds.known.get(root, KnownHolds()) for root in roots}
        self.reads = list(map(marker_of, roots))
        markers = [put for put in batch if isinstance(put, Put) and (put.namespace, put.key) in self.reads]
        # What begins or ends a hold writes the marker. A marker never expires: holds would end with it.
        expiring = {put.namespace[0] for put in markers if put.expiry}
        self._spared = {put.namespace[0] for put in markers} - expiring
        self._set_scopes()

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """The copies of what is replaced. Raises Held, and Outdated if a hold has begun or ended meanwhile."""
        copies: list[Put] = []
        puts = {key for key, state in after.items() if state.value is not None}
        for root, known in self._known.items():
            marker = before.get(marker_of(root))
            if (marker.version if marker and marker.is_alive(now) else 0) != known.version:
                raise Outdated(self, "A legal hold has begun or ended meanwhile")
            spared = marker_of(root)[0] if root in self._spared else None
            changed = [key for key in after if key[0][0] == root and key[0] != spared and _is_kept(key[0])]
            for key in changed if (holds := known.now(now)) else ():
                old, new = before.get(key), after[key]
                # What keeps the version changes no value.
                row = old.row(*key) if old and old.version != new.version else None
                covering = [hold for hold in holds if hold.covers(row)] if row else ()
                if not row or not covering:
                    continue
                lost = _lost(row, new, puts)
                if lost is None:
                    raise Held([hold.id for hold in covering])
                if lost:
                    copies.append(_copy(row, lost, covering))
        return copies

    def renew(self, error: Exception) -> bool:
        """Reads the holds anew if one has begun or ended. Raises StoreError."""
        if not isinstance(error, Outdated) or error.rule is not self:
            return False
        before, self._known = self._known, {root: self._holds.read(root) for root in self._known}
        self._set_scopes()
        return [one.version for one in before.values()] != [one.version for one in self._known.values()]

    def _set_scopes(self) -> None:
        self.makes = [(root, HELD) for root, known in self._known.items() if known.holds]


def _is_kept(namespace: Namespace) -> bool:
    """Whether holds keep what is in ``namespace``."""
    if namespace[0] in NOBODYS:
        return False
    return namespace[1:2] == () or (namespace[1] not in _FREE and (*namespace[1:2], *namespace[4:][-1:]) != _LEASES)


def _taken_along(key: Key) -> Iterator[Key]:
    """What a removal of the memory at ``key``, or of its row in the archive, removes with it."""
    if holds_memories(key[0]):
        yield sidecar_namespace(key[0], FORGOTTEN), key[1]
    if holds_memories(key[0]) or holds_forgotten(key[0]):
        yield versions_key(key)


def _may_remove(write: Put | Remove | Expire, *, is_known: bool) -> bool:
    """Whether ``write`` may take something away that a hold keeps.

    For users ``is_known`` to have holds, that includes a put that expects nothing: it may replace an expired row.
    """
    is_addition = isinstance(write, Put) and (write.is_new or (write.expected == 0 and not is_known))
    return not is_addition and _is_kept(write.namespace)


def _lost(row: Row, new: RowState, puts: Collection[Key]) -> Mapping[str, Any] | None:
    """The part of ``row``'s value that its batch, which puts ``puts``, would lose; None if it must be refused."""
    old = _without_extra(row.value)
    if row.namespace[1:2] in ((HOLDS,), (HELD,)):
        return None
    is_working = row.namespace[1:2] != () and row.namespace[1] in _WORKING
    is_versioned_by_it = is_versioned(row.namespace) and versions_key((row.namespace, row.key)) in puts
    if new.value is not None:
        if is_working:
            return {}
        value = _without_extra(json.loads(new.value))
        if row.namespace[1:2] == (VERSIONS,):
            left = [version for version in old.get("versions", ()) if version not in value.get("versions", ())]
            return {"versions": left} if left else {}
        return {} if old == value or is_versioned_by_it else old
    if is_working:
        return old
    homes = [place for place, key in puts if key == row.key and place[0] == row.namespace[0]]
    if not any(holds_memories(place) or place[1:2] == _LEASES[:1] for place in homes):
        return None
    return {} if is_versioned_by_it else old  # the memory moves to another category, or the work is tried again


def _copy(row: Row, lost: Mapping[str, Any], covering: Sequence[Hold]) -> Put:
    """The write that keeps ``lost`` as long as the holds last."""
    now, ends = SystemClock().now(), [hold.until for hold in covering]
    last = None if None in ends else max(filter(None, ends))
    copied = {
        "place": list(row.namespace[1:]),
        "key": row.key,
        "value": dict(lost),
        "version": row.version,
        "updated_at": row.updated_at.isoformat(),
        "holds": [hold.id for hold in covering],
    }
    return Put(
        namespace=(row.namespace[0], HELD),
        key=f"{int(now.timestamp() * 1_000_000):017d}-{token_hex(8)}",
        value=encode_json(copied, what="copy"),
        updated_at=now,
        expiry=Expiry(last, last - now) if last and last > now else None,
        is_new=True,
    )


def _without_extra(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name != EXTRA}


def _sessions(value: Mapping[str, Any]) -> Iterator[str]:
    """The sessions that a row, or one of the states or copies in it, names."""
    named = [text_field(value, name) for name in ("session_id", "session", "thread_id")]
    named.append(text_field(mapping_field(value, "source"), "thread_id"))
    yield from filter(None, named)
    inner = [value, *cast("Sequence[Mapping[str, Any]]", value.get("versions") or ())]
    yield from chain.from_iterable(_sessions(mapping_field(one, "value")) for one in inner if "value" in one)
