"""erase(): removes everything of a user from stores, checks that it is gone, byte by byte where it can, and says so.

The order is: fence, remove, reclaim, verify, write the receipt. The fence refuses writes that began earlier: workers in
the middle of an extraction, waiting saves, imports. An interrupted erasure is completed by the next call with the same
ledger, which gives the same counts.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

from inference_core.errors import Held, InvalidId, StoreError, VersionConflict
from inference_core.lifecycle.conversations import ThreadOwners, Threads, threads_named
from inference_core.lifecycle.ledger import (
    SHORTEST,
    ErasureReceipt,
    Ledger,
    PlaceCounts,
    copies_with,
    forget_in_copies,
    masked,
    sweep,
)
from inference_core.memory.namespaces import ITEMS, LISTED, PLACES, ROOTS, Owner, Space, agent_in, encode_label
from inference_core.outbox.outbox import INSIGHTS, SESSIONS, Partition
from inference_core.stores.backend import Backend, Key, Row
from inference_core.stores.encryption.encrypted import EncryptedBackend
from inference_core.stores.locks import private_file, read_at, sync_folder
from inference_core.stores.rules.audit_log import AuditLog, end_key
from inference_core.stores.rules.erasure_epoch import Fences, fences_of
from inference_core.stores.rules.write_rules import rules_of

NOT_OURS: Final = (
    "backups, exports, replicas and write-ahead log archives, until you delete them",
    "prompts kept by model providers, traces and logs",
    "copies in the memory of running processes, which are never shown",
)
NO_CHECKPOINTS: Final = "conversation checkpoints (name their database with --checkpoints)"
UNNAMED: Final = (
    "conversations with IDs of your own that the user's data does not name (delete them with your checkpointer)"
)
NO_OUTBOX: Final = "messages waiting in an outbox in another database, if you have one (name it with --outbox)"
RUNNING: Final = "what turns in progress save when they end, through checkpointers that are not from open_checkpointer"
_MOST_TRACES: Final = 64
_TRACE: Final = 40
"""Characters of a text that are searched for in files; fewer than `SHORTEST` may be anybody's."""
_SAID: Final = ("content", "text")
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+-]+Z?")
_SOUGHT: Final = ("named", "traces")
_NAMED_BY_OTHERS: Final = "{} that memories of other users also name: {}"
_ID_OF_OTHERS: Final = "the user's ID, where memories or sessions of other users or of spaces contain it"
_TRIES: Final = 50
_PAUSE_S: Final = 0.1
_BLOCK: Final = 8 * 1024 * 1024


class _Found:
    """What there is of a user: rows by place, the ids of threads, and traces to search for in files."""

    def __init__(self, backend: Backend, user_id: str) -> None:
        self.rows: Counter[str] = Counter()
        self.threads: set[str] = set()
        self.also: list[Key] = []
        """Rows outside the user's namespaces that name the user, or may have done so."""
        self.traces: list[str] = []
        seen, chance = 0, random.Random(0)  # noqa: S311 - which texts are searched for is no secret
        label, agents = encode_label(user_id), {None}
        for row in backend.inspect(label):
            namespace = row.namespace or (label,)
            self.rows[PLACES.get(namespace[1], ITEMS) if len(namespace) > 1 else ITEMS] += 1
            agents |= {agent_in(namespace), agent_in(namespace[1:])}
            if not isinstance(row, Row):
                continue
            if trace := _trace_of(row, user_id):
                seen += 1
                if len(self.traces) < _MOST_TRACES:
                    self.traces.append(trace)
                elif (at := chance.randrange(seen)) < _MOST_TRACES:
                    self.traces[at] = trace
            self.threads |= threads_named(row)
        for root, name in ROOTS.items():
            for row in backend.inspect(root) if name else ():
                if name and isinstance(row, Row) and row.value.get(name) == user_id:
                    self.rows[LISTED] += 1
                    self.also.append((row.namespace, row.key))
        # A store keeps the keys of removed rows. These keys are hashes of the user's id, so they are erased too.
        for agent, scoped, task in product(agents, (True, False), (None, SESSIONS, INSIGHTS)):
            self.also.append(Partition(user_id, agent, scoped, task).place(backend))


def erase(
    stores: Sequence[Backend],
    user_id: Owner,
    ledger: Ledger,
    *,
    threads: Sequence[Threads] = (),
    by: str = "",
    reason: str = "",
    fully: bool = False,
    dry_run: bool = False,
    replay_of: str = "",
    audit_key: bytes | None = None,
) -> ErasureReceipt:
    """Removes everything about a user from ``stores``, checks that it is gone, and returns the receipt.

    Safe to repeat, and safe beside readers and writers; meanwhile, writes for this user raise UserErased.

    Args:
        stores: The store of memories, and that of the outbox if it is another one.
        user_id: The user.
        ledger: Keeps the receipt and, until the erasure is complete, what was found.
        threads: The conversations of the application; those of the user are removed too.
        by: Who removes the user, for the receipt.
        reason: Why, for the receipt.
        fully: Also reclaims space in ways that block all other users of the store meanwhile.
        dry_run: Changes nothing; the receipt says what there is.
        replay_of: The id of the erasure that this one repeats on a restored store.
        audit_key: What the stores were opened with, if their audit trails have a key of yours.

    Raises:
        InvalidId: ``user_id`` is not a user's id, but a space, for example.
        Held: The user has a legal hold; nothing was removed.
        StoreError: A store failed; call this again with the same ledger.
    """
    if isinstance(user_id, Space):
        raise InvalidId("A space is not a user: to remove it, delete its memories and revoke its roles")
    user_id = str(user_id)
    label = encode_label(user_id)
    plan, began = ledger.plan(user_id), datetime.now(UTC).isoformat()
    noted = _read_plan(plan, ledger, [fences_of(store).since(label) for store in stores])
    fences = _fenced(stores, label, ledger, dry_run=dry_run)
    matches = [_Found(store, user_id) for store in stores]
    named = {thread for match in matches for thread in match.threads}
    marks = {*noted.get("threads", ()), *map(ledger.thread, named)}
    owners = ThreadOwners(ledger, [ledger.subject(user_id)], marks)
    kept = [owners.among(place.there()) for place in threads]
    shared = owners.shared(stores, {thread: subject for ids in kept for thread, subject in ids.items()})
    held = [sorted(ids.keys() - shared) for ids in kept]
    counts = {store.name: dict(match.rows) for store, match in zip(stores, matches, strict=True)}
    counts |= {place.name: {"threads": len(ids)} for place, ids in zip(threads, held, strict=True)}
    copies = [copy for store in stores for copy in copies_with(store, user_id)]
    known = _resumed(noted, {"id": secrets.token_hex(16), "began": began, "counts": counts, "copies": copies})
    # Texts cannot be found in the files of an encrypted store, and a plan would hold them in clear: so it has none.
    open_stores = [not isinstance(store, EncryptedBackend) for store in stores]
    fresh = (trace for match, is_open in zip(matches, open_stores, strict=True) if is_open for trace in match.traces)
    known["traces"] = [*known.get("traces", ()), *fresh][: 2 * _MOST_TRACES]
    # The user's id is searched for in any case, so a plan need not contain it.
    named = {name for name in named if user_id not in name and label not in name}
    known |= {"named": sorted({*known.get("named", ()), *named}), "threads": sorted(owners.marks)}
    not_ours = (
        *NOT_OURS,
        *((RUNNING, UNNAMED) if threads else [NO_CHECKPOINTS]),
        *([NO_OUTBOX] if len(stores) == 1 else []),
    )
    files: dict[str, int] = {}
    # The ledger keeps the receipt, so it must not show a user's label, which `thread_label` puts before a colon.
    shown = [masked(thread[thread.find(":") + 1 :], user_id) for thread in sorted(shared)]
    remains = (
        [_NAMED_BY_OTHERS.format(f"{len(shared)} conversation{'s' * (len(shared) != 1)}", ", ".join(shown))]
        if shared
        else []
    )
    left = counts
    if not dry_run:
        # Before anything is removed: after a crash, the next call could not find out any more what there was.
        _write_plan(plan, known)
        sweep()
        _remove_all(stores, matches, user_id, audit_key, replay_of)
        for place, ids in zip(threads, held, strict=True):
            remains += place.erase(ids)
        for store in stores:
            remains += store.reclaim(fully=fully)
        left = {store.name: dict(_Found(store, user_id).rows) for store in stores}
        left |= {place.name: {"threads": _removed_again(place, owners, shared)} for place in threads}
        traces = [user_id, label, *known["named"], *known["traces"]]
        hits, others = hits_in_files(stores, threads, traces)
        files = {str(path): count for path, count in hits.items()}
        remains += [_ID_OF_OTHERS] if {user_id, label} & others else []
    receipt = ErasureReceipt(
        id=known["id"],
        subject=ledger.subject(user_id),
        began=known["began"],
        ended=datetime.now(UTC).isoformat(),
        by=by,
        reason=reason,
        places={
            name: {
                place: PlaceCounts(found=count, left=left.get(name, {}).get(place, 0))
                for place, count in (left.get(name, {}) | places).items()
            }
            for name, places in known["counts"].items()
        },
        files=files,
        remains=tuple(remains),
        not_ours=not_ours,
        copies=tuple(known.get("copies", ())),
        threads=tuple(sorted(owners.marks)),
        replay_of=replay_of,
    )
    if not dry_run:
        # In this order: the receipt is on disk before writers are let in again. The plan is removed last: until then,
        # a repeated call has the same id, and adds no second receipt.
        ledger.append(receipt)
        for fence in fences:
            fence.take_down(label, replay_of or receipt.id)
        if receipt.left:  # the next call has to search for these, but can no longer find them in the store
            _write_plan(plan, {name: known[name] for name in _SOUGHT})
        else:
            plan.unlink(missing_ok=True)
    return receipt


def _fenced(stores: Sequence[Backend], label: str, ledger: Ledger, *, dry_run: bool) -> list[Fences]:
    """Puts up the user's fence in each store. Raises Held for a legal hold, also for one that began meanwhile."""
    fences = [fences_of(store) for store in stores]
    for store in stores:
        rules_of(store).holds.check(label)
    if not dry_run:
        ledger.make()
        for fence in fences:
            fence.put_up(label)
        try:
            for store in stores:
                rules_of(store).holds.check(label)
        except Held:  # it began between the first check and the fence; behind the fence, none can begin
            for fence in fences:
                fence.take_down(label)
            raise
    return fences


def _end_trail(audit_log: AuditLog, label: str) -> None:
    """Seals the end of the key of the user's audit events. The fence keeps out seals that would follow it."""
    for _ in range(_TRIES):
        (outcome,) = audit_log.rules.apply([end_key(audit_log, label)])
        if not isinstance(outcome, VersionConflict):  # else a sealer that began before was faster
            if isinstance(outcome, Exception):
                raise outcome
            return
    raise StoreError(
        f"{audit_log.backend.name}: another process keeps sealing this user's audit trail; stop it and try again"
    )


def _remove_all(
    stores: Sequence[Backend], found: Sequence[_Found], user_id: str, audit_key: bytes | None, replay_of: str
) -> None:
    label = encode_label(user_id)
    for store in stores:  # before keys are destroyed, which may be those of several stores
        _end_trail(AuditLog(store, secret=audit_key), label)
    for store, match in zip(stores, found, strict=True):
        _remove(store, label, match.also, replay_of)
        forget_in_copies(store, user_id)


def _remove(store: Backend, label: str, also: Sequence[Key], replay_of: str) -> None:
    rules_of(store).holds.check(label)
    if replay_of and isinstance(store, EncryptedBackend):
        # A user who came back has a new key, which seals what another store with these keys has of the user.
        store.destroy_keys_of_rows(label)
        store = store.inner
    for _ in range(_TRIES):
        store.erase(label, also)
        if next(iter(store.inspect(label)), None) is None:
            return
        time.sleep(_PAUSE_S)  # a write that passed the fence before it was put up, in a store without transactions
    raise StoreError(f"{store.name}: another process keeps writing for this user; stop it and try again")


def _removed_again(place: Threads, owners: ThreadOwners, shared: set[str]) -> int:
    """Removes conversations that a turn under way has saved again; returns how many are left."""
    late = owners.among(place.there()).keys() - shared
    for _ in range(_TRIES if late else 0):
        place.erase(sorted(late))
        if not (late := owners.among(place.there()).keys() - shared):
            break
        time.sleep(_PAUSE_S)
    return len(late)


def _read_plan(plan: Path, ledger: Ledger, ended: Sequence[float]) -> dict[str, Any]:
    """What an erasure noted that was interrupted, or ended with something left; empty if there was none.

    ``ended``: when the last erasure from each store ended; 0 if it has not.
    """
    try:
        noted: dict[str, Any] = json.loads(plan.read_bytes())
    except (FileNotFoundError, ValueError):  # a plan is complete before anything is removed
        return {}
    if all(ended) and any(entry["id"] == noted.get("id") for entry in ledger.entries):
        # That erasure was complete and writers let in again, only its plan is left: the next one needs its own receipt.
        return {name: noted[name] for name in _SOUGHT}
    return noted


def _resumed(noted: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """What an interrupted erasure noted, with what has come since; else ``fresh``, with what to search for."""
    if "id" not in noted:
        return fresh | noted
    for name, counts in fresh["counts"].items():
        before = noted["counts"].setdefault(name, {})
        noted["counts"][name] = {place: max(before.get(place, 0), counts.get(place, 0)) for place in before | counts}
    return noted


def _write_plan(plan: Path, known: dict[str, Any]) -> None:
    temporary = plan.with_name(plan.name + ".tmp")
    with private_file(temporary, os.O_CREAT | os.O_TRUNC) as file:
        file.write(json.dumps(known).encode())
    temporary.replace(plan)
    sync_folder(plan.parent)


def _trace_of(row: Row, user_id: str) -> str | None:
    """The beginning of a row's text, by which a copy of it would be found in a file; None if that is too short."""
    # A timestamp is long enough, but many rows share it.
    found = [(said, text) for said, text in _texts(row.value) if len(text) >= SHORTEST and not _INSTANT.fullmatch(text)]
    if len(user_id) >= SHORTEST:  # the id is searched for anyway, and a plan should not contain it
        names = (user_id, encode_label(user_id))
        found = [(is_said, text) for is_said, text in found if not any(name in text[:_TRACE] for name in names)]
    # Words are better than hashes, which are long, but appear in no copy of a text.
    _, text = max(found, key=lambda one: (one[0], " " in one[1], len(one[1])), default=(False, ""))
    return text[:_TRACE] or None


def _texts(value: object, *, is_said: bool = False) -> Iterator[tuple[bool, str]]:
    """The texts in a value, and whether each was said or remembered, which the name of its field tells."""
    if isinstance(value, str):
        yield is_said, value
    elif isinstance(value, dict):
        for name, one in cast("dict[str, object]", value).items():
            yield from _texts(one, is_said=name in _SAID)
    elif isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _texts(one, is_said=is_said)


def hits_in_files(
    stores: Sequence[Backend], threads: Sequence[Threads], traces: Iterable[str]
) -> tuple[dict[Path, int], set[str]]:
    """How many of the traces each file still holds, except those that others have stored too; and the latter."""
    # A file may hold a trace as it is, in JSON of either kind, or in lower case.
    forms = {
        trace: {trace, json.dumps(trace)[1:-1], json.dumps(trace, ensure_ascii=False)[1:-1], trace.lower()}
        for trace in traces
        if len(trace) >= SHORTEST
    }
    patterns = {one: [form.encode(errors="surrogatepass") for form in some] for one, some in forms.items()}
    overlap = max((len(form) for some in patterns.values() for form in some), default=0)
    places: list[Backend | Threads] = [*stores, *threads]
    found = {path: set[str]() for place in places for path in place.files()}
    for path, held in found.items():
        at = 0
        with suppress(FileNotFoundError):
            while block := read_at(path, at, _BLOCK + overlap):
                held |= {trace for trace, some in patterns.items() if any(form in block for form in some)}
                at += _BLOCK
    suspects, others = set[str]().union(*found.values()), set[str]()
    for one in (row for store in stores if suspects for row in store.inspect()):
        if isinstance(one, Row) and one.namespace[0] not in ROOTS:
            text = "\n".join([*one.namespace, one.key, json.dumps(one.value, ensure_ascii=False)])
            lower = text.lower()
            # In JSON, the quotes and line ends of a trace are escaped here as well.
            others |= {
                trace
                for trace in suspects - others
                if any(form in text or form.lower() in lower for form in forms[trace])
            }
    return {path: len(held - others) for path, held in found.items()}, others
