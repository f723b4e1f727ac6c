"""Legal holds: what is under a hold is not removed, whoever tries to, and what replaces it keeps a copy.

Every write that could remove something passes `Holding.apply` on its way to the database, whichever operation, chore,
tool or command it comes from; so do `erase`, `discard` and the sweep of expired rows. A user with holds has a marker
row, whose version changes with each of them. A batch that may remove something checks the marker in its own
transaction, so no process can overlook a new hold of another process. Without holds this costs no read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from secrets import token_hex
from typing import Any, Final, cast

from inference_core.clock import SystemClock
from inference_core.errors import Held, StoreError, StoreUnavailable, VersionConflict
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
    Check,
    Expire,
    Expiry,
    Key,
    Outcome,
    PageRequest,
    Put,
    Remove,
    Row,
    Unreadable,
    Write,
    answered,
)
from inference_core.stores.governance.versions import is_versioned, versions_key

MARKER: Final = "~marker"
_ATTEMPTS: Final = 5
_MOST_HOLDS: Final = 1_000
_MOST_EXPIRED: Final = 100_000
_WORKING: Final = frozenset({"outbox", "messages", "short_term", "vector_store", "jobs", PENDING})
"""Second labels of what agents have to remove to go on working: it may be removed once a copy is kept."""
_FREE: Final = frozenset({USAGE, QUOTA, PORTIONS, "ingested", "~requests"})
"""Second labels of what says nothing by itself: counts, marks, what requests and jobs of the server take and give."""
_LEASES: Final = ("outbox", "state")
"""Second and last label of the namespaces of leases."""
_NOBODYS: Final = frozenset({GRANTS, QUEUE_ROOT, JOBS_ROOT, ERASED, SEALS, GLOBAL, MIGRATED[0], "#keys", "#store"})


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


def holding(backend: Backend) -> Backend:
    """``backend`` with holds; itself if it has them."""
    return backend if hasattr(backend, "holds_of") else cast("Backend", Holding(backend))


class Holding:
    """Passes all calls on to ``backend``, except removals of what a hold keeps.

    On a store of another library, whose batches are not atomic, a hold that begins during a removal may come too late.
    """

    def __init__(self, backend: Backend) -> None:
        self.beneath = backend
        self._seen: dict[str, int] = {}
        """The versions of the markers of users that have, or had, holds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def holds_of(self, root: str) -> list[Hold]:
        """The holds of the user with the label ``root`` that have not ended. Raises StoreError."""
        try:
            (row,) = self.beneath.get([marker_of(root)])
        except StoreUnavailable:
            raise
        except StoreError:  # a damaged file can only be inspected; the holds in its readable part still count
            readable = (one for one in self.beneath.inspect(root) if isinstance(one, Row))
            return [Hold.of(one) for one in readable if one.namespace == (root, HOLDS) and one.key != MARKER]
        if row is None:
            self._seen.pop(root, None)
            return []
        self._seen[root] = row.version
        rows = self.beneath.page(PageRequest([(root, HOLDS)], limit=_MOST_HOLDS))
        found = [Hold.of(one) for one in rows if one.key != MARKER]
        if self.beneath.capabilities.change_feed:  # else expired rows are still listed
            return found
        now = SystemClock().now()
        return [one for one in found if one.until is None or one.until > now]

    def check(self, root: str) -> None:
        """Raises Held if the user with the label ``root`` has holds."""
        if found := self.holds_of(root):
            raise Held([one.id for one in found])

    def held(self, rows: Iterable[Row]) -> set[Key]:
        """The keys of the ``rows`` that a hold keeps, for callers that remove the others. Raises StoreError.

        A memory is kept with its earlier versions and its copy in the archive, which its removal would take along: they
        may be of another session.
        """
        rows, known = list(rows), dict[str, list[Hold]]()
        kept = self._covered(rows, known)
        free = [(row.namespace, row.key) for row in rows if known.get(row.namespace[0])]
        pairs = [(beside, key) for key in free if key not in kept for beside in _taken_along(key)]
        found = self.beneath.get([beside for beside, _ in pairs]) if pairs else ()
        there = {(row.namespace, row.key): row for row in found if row}
        held = self._covered(there.values(), known)
        return kept | {key for beside, key in pairs if beside in held}

    def expired(self, limit: int) -> list[Key]:
        """Like `Backend.expired`, without what a hold keeps."""
        size = limit
        while True:
            found = self.beneath.expired(size)
            roots = list(dict.fromkeys(namespace[0] for namespace, _ in found))
            markers = self.beneath.get(list(map(marker_of, roots))) if roots else []
            under = {root for root, marker in zip(roots, markers, strict=True) if marker}
            kept = self._covered((row for root in under for row in self._ended(root, set(found))), {})
            free = [key for key in found if key not in kept]
            if len(free) >= limit or len(found) < size:
                return free[:limit]
            size *= 2

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Like `Backend.apply`; a batch that removes what a hold keeps is refused with Held."""
        outcomes: dict[int, Outcome] = {}
        waiting: Collection[int] = range(len(batches))
        checks: dict[int, list[Check]] = {}
        for _ in range(_ATTEMPTS):
            sent: dict[int, Sequence[Write]] = {}
            for at in waiting:
                try:
                    checks[at], sent[at] = self._checked(batches[at])
                except StoreError as error:  # Held, or of this batch alone: others may be stored by now
                    outcomes[at] = error
            # The checks come first: a batch may remove a marker that holds nothing any more.
            try:
                found = self.beneath.apply([[*checks[at], *writes] for at, writes in sent.items()]) if sent else ()
            except StoreError as error:
                found = [error] * len(sent)
            for at, end in zip(sent, found, strict=True):
                before = len(checks[at])
                outcomes[at] = end[before : before + len(batches[at])] if isinstance(end, list) else end
            conflicts = [at for at in sent if isinstance(outcomes[at], VersionConflict)]
            waiting = [at for at in conflicts if self._is_outdated(checks[at], sent[at], batches[at])]
            if not waiting:
                break
        return answered([outcomes[at] for at in range(len(batches))])

    def discard(self, found: Sequence[Unreadable]) -> int:
        """Like `Backend.discard`. Raises Held: what cannot be read may be what a hold keeps."""
        for root in {one.root for one in found if one.root is not None and one.root not in _NOBODYS}:
            self.check(root)
        return self.beneath.discard(found)

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        """Like `Backend.erase`. Raises Held."""
        self.check(root)
        self.beneath.erase(root, also)

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

    def _checked(self, batch: Sequence[Write]) -> tuple[list[Check], Sequence[Write]]:
        """The checks of the markers, and ``batch`` with copies of what it replaces. Raises Held."""
        roots = [one.namespace[0] for one in batch if _may_remove(one, self._seen)]
        if not roots:
            return [], batch
        writes, copies, checks = list(batch), list[Put](), list[Check]()
        for root in dict.fromkeys(roots):
            place, key = marker_of(root)
            markers = [one for one in batch if isinstance(one, Put) and (one.namespace, one.key) == (place, key)]
            # It begins or ends a hold, and checks the marker itself. A marker never expires: holds would end with it.
            changes_holds = bool(markers) and not any(one.expiry for one in markers)
            if (changes_holds or root in self._seen) and (holds := self.holds_of(root)):
                copies += self._kept(root, holds, writes, spared=place if changes_holds else None)
            if not changes_holds:
                checks.append(Check(namespace=place, key=key, expected=self._seen.get(root, 0)))
        return checks, [*writes, *copies]

    def _kept(
        self, root: str, holds: Sequence[Hold], writes: list[Write], *, spared: Namespace | None = None
    ) -> list[Put]:
        """The copies of what ``writes`` take away, except in the namespace ``spared``.

        Changes ``writes`` to expect what was copied. Raises Held.
        """
        of_user = [
            (at, one)
            for at, one in enumerate(writes)
            if one.namespace[0] == root and one.namespace != spared and _may_remove(one, {root})
        ]
        keys = [(one.namespace, one.key) for _, one in of_user]
        rows = dict(zip(keys, self.beneath.get(keys), strict=True))
        absent = {key for key, row in rows.items() if row is None}
        rows |= {(row.namespace, row.key): row for row in self._ended(root, absent)}
        puts = {(one.namespace, one.key): one for one in writes if isinstance(one, Put)}
        copies: list[Put] = []
        done = set[Key]()
        for at, write in of_user:
            key = (write.namespace, write.key)
            if key in done:  # a later write of the batch takes away what an earlier one has put there
                continue
            done.add(key)
            row = rows[key]
            if isinstance(write, Put | Remove) and write.expected is None:
                writes[at] = replace(write, expected=row.version if row and key not in absent else 0)
            covering = [hold for hold in holds if row and hold.covers(row)]
            if row is None or not covering or (isinstance(write, Expire) and key not in absent):
                continue
            lost = _lost(row, write, puts)
            if lost is None:
                raise Held([hold.id for hold in covering])
            if not lost:
                continue
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
            copies.append(
                Put(
                    namespace=(root, HELD),
                    key=f"{int(now.timestamp() * 1_000_000):017d}-{token_hex(8)}",
                    value=encode_json(copied, what="copy"),
                    updated_at=now,
                    expiry=Expiry(last, last - now) if last and last > now else None,
                    is_new=True,
                )
            )
        return copies

    def _ended(self, root: str, keys: Collection[Key]) -> Iterator[Row]:
        """The expired rows of the user at ``keys``, which no other read finds."""
        ended = set(keys) & set(self.beneath.expired(_MOST_EXPIRED)) if keys else set[Key]()
        for one in self.beneath.inspect(root) if any(key[0][0] == root for key in ended) else ():
            if isinstance(one, Row) and (one.namespace, one.key) in ended:
                yield one

    def _is_outdated(self, checks: Sequence[Check], sent: Sequence[Write], batch: Sequence[Write]) -> bool:
        """Whether a hold has begun or ended since, or something that was to be copied has changed."""
        try:
            rows = self.beneath.get([(one.namespace, one.key) for one in checks]) if checks else []
        except StoreError:
            return False  # it stays refused, as it is
        for check, row in zip(checks, rows, strict=True):
            if (row.version if row else 0) != check.expected:
                self._seen[check.namespace[0]] = row.version if row else 0
                return True
        return any(one is not given for one, given in zip(sent, batch, strict=False))


def _is_kept(namespace: Namespace) -> bool:
    """Whether holds keep what is in ``namespace``."""
    if namespace[0] in _NOBODYS:
        return False
    return namespace[1:2] == () or (namespace[1] not in _FREE and (*namespace[1:2], *namespace[4:][-1:]) != _LEASES)


def _taken_along(key: Key) -> Iterator[Key]:
    """What a removal of the memory at ``key``, or of its row in the archive, removes with it."""
    if holds_memories(key[0]):
        yield sidecar_namespace(key[0], FORGOTTEN), key[1]
    if holds_memories(key[0]) or holds_forgotten(key[0]):
        yield versions_key(key)


def _may_remove(write: Write, seen: Collection[str]) -> bool:
    """Whether ``write`` may take something away that a hold keeps.

    For users ``seen`` to have holds, that includes a put that expects nothing: it may replace an expired row.
    """
    if isinstance(write, Put):
        is_guess = write.expected == 0 and write.namespace[0] not in seen
        return not write.is_new and not is_guess and _is_kept(write.namespace)
    return isinstance(write, Remove | Expire) and _is_kept(write.namespace)


def _lost(row: Row, write: Write, puts: Mapping[Key, Put]) -> Mapping[str, Any] | None:
    """The part of ``row``'s value that ``write`` would lose; None if the write must be refused."""
    old = {name: part for name, part in row.value.items() if name != EXTRA}
    if row.namespace[1:2] in ((HOLDS,), (HELD,)):
        return None
    is_working = row.namespace[1:2] != () and row.namespace[1] in _WORKING
    if isinstance(write, Put):
        new = json.loads(write.value)
        if is_working:
            return {}
        if row.namespace[1:2] == (VERSIONS,):
            left = [one for one in old.get("versions", ()) if one not in new.get("versions", ())]
            return {"versions": left} if left else {}
        return {} if old == new or _is_versioned(row, puts) else old
    if is_working:
        return old
    homes = [place for place, key in puts if key == row.key and place[0] == row.namespace[0]]
    if not any(holds_memories(place) or place[1:2] == _LEASES[:1] for place in homes):
        return None
    return {} if _is_versioned(row, puts) else old  # the memory moves to another category, or the work is tried again


def _is_versioned(row: Row, puts: Mapping[Key, Put]) -> bool:
    """Whether the batch keeps ``row`` among the earlier versions of its memory."""
    return is_versioned(row.namespace) and versions_key((row.namespace, row.key)) in puts


def _sessions(value: Mapping[str, Any]) -> Iterator[str]:
    """The sessions that a row, or one of the states or copies in it, names."""
    named = [text_field(value, name) for name in ("session_id", "session", "thread_id")]
    named.append(text_field(mapping_field(value, "source"), "thread_id"))
    yield from filter(None, named)
    inner = [value, *cast("Sequence[Mapping[str, Any]]", value.get("versions") or ())]
    yield from chain.from_iterable(_sessions(mapping_field(one, "value")) for one in inner if "value" in one)
