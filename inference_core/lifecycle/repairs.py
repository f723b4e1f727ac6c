"""Repairs across all rows of a store: removes damaged rows, redacts secrets, and replaces encryption keys.

Reads skip a damaged row, so that it does not block others; it is reported without its content. A memory that a newer
version of this package wrote is not damaged, but skipped too, since this version cannot tell what it means. The secrets
are those from before the store redacted them; they are reported by kind and id.

replay(): erases the users that a ledger names again, where a restored store or checkpointer still has them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from inference_core.effects import Progress
from inference_core.errors import Held, InvalidId, InvalidInput, SealError
from inference_core.lifecycle.conversations import ThreadOwners, Threads
from inference_core.lifecycle.erasing import NOT_OURS, RUNNING, UNNAMED, erase, hits_in_files
from inference_core.lifecycle.ledger import ErasureReceipt, Ledger, PlaceCounts
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import ROOTS, decode_label, encode_label, holds_memories, is_item
from inference_core.memory.redaction import Guard
from inference_core.memory.text import encode_json
from inference_core.services.operations.scope import is_known, put_of, record_of
from inference_core.stores.backend import Backend, Put, Remove, Row, Unreadable, Write
from inference_core.stores.encryption.encrypted import GRACE_S, OF_STORE, EncryptedBackend
from inference_core.stores.rules.audit_log import AuditLog
from inference_core.stores.rules.erasure_epoch import Fence, fences_of
from inference_core.stores.rules.redacting import redacted
from inference_core.stores.rules.write_rules import rules_of


def replay(
    stores: Sequence[Backend],
    ledger: Ledger,
    *,
    threads: Sequence[Threads] = (),
    by: str = "",
    labels: Iterable[str] = (),
    progress: Progress | None = None,
    audit_key: bytes | None = None,
) -> list[ErasureReceipt]:
    """Erases users again where ``stores`` or ``threads`` hold a state from before their erasure: a restored backup.

    Returns the new receipts: one for the rows of a user, and one for the conversations. ``labels`` are of users who may
    have no rows left, because an earlier call was interrupted; this one completes it. A store that knows of an erasure
    is left as it is: what it has of the user came later. So are conversations that began later. Raises Held for users
    with a legal hold in a store, after all others were erased; StoreError.
    """
    # Replays do not count: what came after the erasure itself stays, also if it came before a replay.
    erased: dict[str, dict[str, Any]] = {
        entry["subject"]: entry for entry in ledger.entries if not entry.get("replay_of")
    }
    known = {entry["id"] for entry in ledger.entries}
    receipts: list[ErasureReceipt] = []
    holds: dict[str, tuple[str, ...]] = {}
    held = set[str]()
    users = sorted({user for store in stores for user in _users(store, labels)})
    for done, user_id in enumerate(users, 1):
        if progress:
            progress(done, len(users))
        subject = ledger.subject(user_id)
        if subject not in erased:
            continue
        label, entry = encode_label(user_id), erased[subject]
        stale = [store for store in stores if not _knows(fences_of(store).last(label), entry, known)]
        try:
            for store in stores:
                rules_of(store).holds.check(label)
            if stale:
                reason = f"replay of {entry['id']}"
                receipts.append(
                    erase(stale, user_id, ledger, by=by, reason=reason, replay_of=entry["id"], audit_key=audit_key)
                )
        except Held as error:
            holds[subject] = tuple(error.holds)
            held |= {subject} if stale else set()
    for subject, found in _stale(stores, ledger, threads, erased).items():
        if subject in holds:
            held.add(subject)
        else:
            receipts.append(_conversations(found, stores, ledger, erased[subject], by))
    if held:
        raise Held([hold for subject in sorted(held) for hold in holds[subject]])
    return receipts


def _knows(fence: Fence, entry: Mapping[str, Any], known: Collection[str]) -> bool:
    """Whether a store with the user's ``fence`` is of a time after the user's last erasure, whose ``entry`` this is.

    Clocks tell only where the fence names no erasure of this ledger, such as one of an earlier version of the package.
    """
    if fence.erasure in known:
        return fence.erasure == entry["id"]
    return fence.since >= datetime.fromisoformat(entry["began"]).timestamp()


def _stale(
    stores: Sequence[Backend], ledger: Ledger, threads: Sequence[Threads], erased: dict[str, dict[str, Any]]
) -> dict[str, list[tuple[Threads, list[str]]]]:
    """The conversations of erased users that began before their erasure ended: of each user, by place."""
    owners = ThreadOwners(ledger, erased)
    ended = {subject: datetime.fromisoformat(entry["ended"]).timestamp() for subject, entry in erased.items()}
    found: list[dict[str, str]] = []
    for place in threads:
        there = place.there()
        found.append({one: subject for one, subject in owners.among(there).items() if there[one] < ended[subject]})
    shared = owners.shared(stores, {thread: subject for one in found for thread, subject in one.items()})
    stale: dict[str, list[tuple[Threads, list[str]]]] = {}
    for subject in {subject for one in found for thread, subject in one.items() if thread not in shared}:
        ids = [[thread for thread, owner in one.items() if owner == subject and thread not in shared] for one in found]
        stale[subject] = list(zip(threads, ids, strict=True))
    return stale


def _conversations(
    found: Sequence[tuple[Threads, list[str]]],
    stores: Sequence[Backend],
    ledger: Ledger,
    entry: dict[str, Any],
    by: str,
) -> ErasureReceipt:
    """Removes the conversations of the user whose erasure is ``entry``; returns the receipt, also in the ledger."""
    began, remains = datetime.now(UTC).isoformat(), list[str]()
    for place, ids in found:
        remains += place.erase(ids)
    files, _ = hits_in_files(stores, [place for place, _ in found], [thread for _, ids in found for thread in ids])
    receipt = ErasureReceipt(
        id=secrets.token_hex(16),
        subject=entry["subject"],
        began=began,
        ended=datetime.now(UTC).isoformat(),
        by=by,
        reason=f"replay of {entry['id']}",
        places={
            place.name: {"threads": PlaceCounts(found=len(ids), left=len(place.there().keys() & set(ids)))}
            for place, ids in found
        },
        files={str(path): hits for path, hits in files.items()},
        remains=tuple(remains),
        not_ours=(*NOT_OURS, RUNNING, UNNAMED),
        replay_of=entry["id"],
    )
    ledger.append(receipt)
    return receipt


def _users(store: Backend, labels: Iterable[str]) -> set[str]:
    """The ids of all users that the store has anything of, and of those with ``labels``."""
    users, labels = set[str](), set(labels)
    for row in store.inspect():
        root = row.root if isinstance(row, Unreadable) else row.namespace[0]
        if root is not None and root in ROOTS:
            name = ROOTS[root]
            user = row.value.get(name) if name and isinstance(row, Row) else None
            users |= {user} if isinstance(user, str) else set()
        elif root is not None:
            labels.add(root)
    for label in labels - ROOTS.keys():
        with suppress(InvalidId):  # an application's own
            users.add(decode_label(label))
    return users


@dataclass(frozen=True, slots=True)
class Damage:
    """A row that cannot be read: whose it is, if that is known, where it is, and why.

    ``is_newer``: it is intact, but a newer version wrote it. ``keeps_row``: only its index entry is damaged, which
    `mend` rebuilds.
    """

    user_id: str | None
    place: str
    key: str
    reason: str
    is_newer: bool
    keeps_row: bool
    found: Unreadable | Row

    def to_json(self) -> dict[str, Any]:
        """Whose it is, where, and why, as JSON data."""
        return {"user_id": self.user_id, "place": self.place, "key": self.key, "reason": self.reason}

    def __str__(self) -> str:
        owner = "an unknown user" if self.user_id is None else self.user_id
        return f"{owner}, {self.place or 'an unknown place'}, {self.key}: {self.reason}"


def find_damage(backend: Backend, user_ids: Sequence[str] = (), progress: Progress | None = None) -> Iterator[Damage]:
    """The rows of these users, or of all, that cannot be read; reads every row. Raises InvalidId, StoreError."""
    for row in _inspected(backend, user_ids, progress):
        if isinstance(row, Unreadable):
            user, place = user_of(row.root), "/".join((row.namespace or ())[1:])
            keeps_row = row.only_index
            yield Damage(user, place, row.key, row.reason, is_newer=False, keeps_row=keeps_row, found=row)
        elif holds_memories(row.namespace) and not is_known(row):
            user, place = user_of(row.namespace[0]), "/".join(row.namespace[1:])
            reason = "a newer version of this package wrote it"
            yield Damage(user, place, row.key, reason, is_newer=True, keeps_row=False, found=row)


def mend(backend: Backend, damages: Iterable[Damage]) -> int:
    """Removes the rows of ``damages``; where only the index entry is damaged, rebuilds that.

    Rows that have changed since stay; returns how many had not. Raises Held for a user with a legal hold, StoreError.
    """
    audit_log, cause = AuditLog(backend), Cause(at=datetime.now(UTC), operation="repair")
    mended, backend = 0, audit_log.backend
    for damage in damages:
        found = damage.found
        if isinstance(found, Row):
            write: Write = Remove(namespace=found.namespace, key=found.key, expected=found.version)
        elif found.only_index and found.namespace and (row := backend.get([(found.namespace, found.key)])[0]):
            write = reindexed(backend, row)
        else:
            mended += audit_log.discard([found], cause)
            continue
        (outcome,) = audit_log.apply([[write]], cause)
        mended += isinstance(outcome, list)
    return mended


def reindexed(backend: Backend, row: Row) -> Put:
    """A write of ``row`` whose text gets a new vector later: the indexed text or, if damaged, the memory's own."""
    change = None
    with suppress(SealError):  # a damaged text that was encrypted cannot be read even in part
        change = next((change for change in backend.changes(row.namespace, row.seq - 1) if change.key == row.key), None)
    if change and change.document:
        document, kind = change.document._replace(model="", vector=None, tokens=None), change.kind
    elif holds_memories(row.namespace) and is_known(row):
        put = put_of(record_of(row))
        document, kind = put.document, put.kind
    else:
        document, kind = None, ""
    return Put(
        namespace=row.namespace,
        key=row.key,
        value=encode_json(row.value, what="value"),
        document=document,
        kind=kind,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expected=row.version,
        expiry=row.expiry,
    )


def user_of(label: str | None) -> str | None:
    """The user with this first label of a namespace; the label itself if no user has it."""
    try:
        return None if label is None else decode_label(label)
    except (InvalidInput, ValueError):
        return label


@dataclass(frozen=True, slots=True)
class Exposed:
    """A row that holds secrets: whose it is, where it is, and their kinds; never the secrets.

    ``is_item``: an application's own item, which `redact` leaves as it is.
    """

    user_id: str | None
    place: str
    key: str
    kinds: tuple[str, ...]
    is_item: bool
    found: Row

    def to_json(self) -> dict[str, Any]:
        """All but the row, as JSON data."""
        fields = {"user_id": self.user_id, "place": self.place, "key": self.key}
        return {**fields, "kinds": list(self.kinds), "is_item": self.is_item}

    def __str__(self) -> str:
        what = f"{', '.join(self.kinds)}{' (an item of your application)' if self.is_item else ''}"
        return f"{self.user_id}, {self.place}, {self.key}: {what}"


def find_secrets(
    backend: Backend, guard: Guard, user_ids: Sequence[str] = (), progress: Progress | None = None
) -> Iterator[Exposed]:
    """The rows of these users, or of all, in which ``guard`` finds secrets; reads every row.

    Raises InvalidId, StoreError.
    """
    for row in _inspected(backend, user_ids, progress):
        if isinstance(row, Row) and (kinds := guard.kinds(guard.told(row.value))):
            label, *place = row.namespace
            item = is_item(row.namespace)
            yield Exposed(user_of(label), "/".join(place), row.key, kinds, is_item=item, found=row)


def redact(backend: Backend, guard: Guard, exposed: Iterable[Exposed]) -> int:
    """Redacts ``exposed`` in place, each as a new version; returns how many. Applications' items and changed rows stay.

    Texts that change lose their vectors until the store is next opened with its embedding model. Raises StoreError.
    """
    done, audit_log = 0, AuditLog(backend)
    for tool in exposed:
        if tool.is_item:
            continue
        row = tool.found
        if holds_memories(row.namespace) and is_known(row):
            put = put_of(record_of(row), expected=row.version)
            put = replace(put, value=encode_json(row.value, what="value"), expiry=row.expiry)
        else:
            put = reindexed(backend, row)
        (outcome,) = audit_log.apply([[redacted(guard, put)]], Cause(at=datetime.now(UTC), operation="redact"))
        done += isinstance(outcome, list)
    return done


def _inspected(backend: Backend, user_ids: Sequence[str], progress: Progress | None) -> Iterator[Row | Unreadable]:
    """Every row of these users or of all, also those that cannot be read."""
    labels = [encode_label(user_id) for user_id in user_ids]
    rows = chain.from_iterable(map(backend.inspect, labels)) if labels else backend.inspect()
    total = backend.count(backend.namespaces()) if progress else 0
    for done, row in enumerate(rows, 1):
        if progress:
            progress(done, max(total, done))
        yield row


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """How many users have rows in a store; of how many all keys are ``destroyed``, or a rotation is unfinished."""

    users: int
    destroyed: int
    rotating: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """How many labels (users, and the store's own) have a new key, and how many rows were encrypted again.

    ``is_resumed``: the call finished an interrupted rotation, and began no other.
    """

    labels: int
    rows: int
    is_resumed: bool


def key_status(backend: EncryptedBackend, user_ids: Sequence[str] = ()) -> KeyStatus:
    """The keys of these users or of all. Raises InvalidId, StoreError."""
    live = [_live(backend, label) for label in _labels(backend, user_ids) if label not in ROOTS]
    return KeyStatus(len(live), live.count(0), sum(count > 1 for count in live))


def rotate(
    backend: EncryptedBackend,
    user_ids: Sequence[str] = (),
    progress: Progress | None = None,
    wait: Callable[[float], None] = time.sleep,
    *,
    beside: Sequence[EncryptedBackend] = (),
) -> Rotation:
    """Encrypts all rows of these users, or of all, with new keys, then destroys the old ones.

    ``beside`` are all other stores with the same keys, such as an outbox: rows of a store that is not named are lost.
    Safe to interrupt: the next call finishes what was begun. Safe beside writers: it waits a minute for their last
    writes with the old keys. Rows change neither version nor times. Raises InvalidId, SealError, StoreError.
    """
    ring = backend.keyring
    stores = [backend, *beside]
    found = {label for store in stores for label in _labels(store, user_ids)}
    labels = [*sorted(found), *([] if user_ids else [OF_STORE])]
    # A label with two live keys was in a rotation that was interrupted: that is finished before any other begins.
    begun = [label for label in labels if _live(backend, label) > 1]
    labels = begun or [label for label in labels if _live(backend, label)]
    for label in [] if begun else labels:
        ring.rotate(label)
    started = time.monotonic()  # until now, a write may have begun with an old key
    total = sum(
        store.count([namespace for label in labels for namespace in store.namespaces((label,))]) for store in stores
    )
    seen = 0

    def advance(count: int) -> None:
        nonlocal seen
        seen += count
        if progress:
            progress(min(seen, total), total)

    rows = sum(store.encrypt_anew(label, advance) for label in labels for store in stores)
    if labels:
        wait(max(0.0, started + GRACE_S - time.monotonic()))
    for label in labels:
        rows += sum(store.encrypt_anew(label) for store in stores)
        ring.destroy(label, keep=1)
    return Rotation(len(labels), rows, bool(begun))


def _labels(backend: EncryptedBackend, user_ids: Sequence[str]) -> list[str]:
    return [encode_label(user) for user in user_ids] or sorted(
        {namespace[0] for namespace in backend.inner.namespaces()}
    )


def _live(backend: EncryptedBackend, label: str) -> int:
    return sum(key.secret is not None for key in backend.keyring.get(label))
