"""replay(): erases the users that a ledger names again, where a restored store or checkpointer still has them."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from inference_core.effects import Progress
from inference_core.errors import Held, InvalidId
from inference_core.lifecycle.conversations import ThreadOwners, Threads
from inference_core.lifecycle.erasing import NOT_OURS, RUNNING, UNNAMED, erase, hits_in_files
from inference_core.lifecycle.ledger import ErasureReceipt, Ledger, PlaceCounts
from inference_core.memory.namespaces import ROOTS, decode_label, encode_label
from inference_core.stores.backend import Backend, Row, Unreadable
from inference_core.stores.governance.fence import Fence, fences_of
from inference_core.stores.governance.holds import Holding, holding


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
    erased: dict[str, dict[str, Any]] = {one["subject"]: one for one in ledger.entries if not one.get("replay_of")}
    known = {one["id"] for one in ledger.entries}
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
                cast("Holding", holding(store)).check(label)
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
    for one in store.inspect():
        root = one.root if isinstance(one, Unreadable) else one.namespace[0]
        if root is not None and root in ROOTS:
            name = ROOTS[root]
            user = one.value.get(name) if name and isinstance(one, Row) else None
            users |= {user} if isinstance(user, str) else set()
        elif root is not None:
            labels.add(root)
    for label in labels - ROOTS.keys():
        with suppress(InvalidId):  # an application's own
            users.add(decode_label(label))
    return users
