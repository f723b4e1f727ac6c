"""AuditLog: adds to the batch of each change a record of what the change replaces and who made it.

Whatever operation writes, its batch passes here on the way to the database. So an event is there if and only if the
change is, on every database whose batches are atomic. Events hold versions and commitments, never content.

Seals: the audit events of each user in a chain, so that none is changed, removed or added unseen.

A seal names the events since the one before it, and holds the HMAC of these names, of their MACs and of the seal
before. Seals are made in the background: a chain that each save had to extend would have all saves wait for each other.
They lie under a keyed pseudonym, so an erasure of the user may leave them: the chain stays whole without the events.
Whatever removes a user's events first seals that their key ends. So if events are gone without such a seal, and have
not expired, somebody has tampered with the trail.
"""

from __future__ import annotations

import hmac
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from random import getrandbits
from secrets import token_hex
from typing import Any, Final, NamedTuple

from inference_core.errors import StoreBusy, VersionConflict
from inference_core.memory.audit import AuditEvent, Cause, event_value
from inference_core.memory.namespaces import AUDIT, SALT, SEALS, USAGE, Namespace
from inference_core.memory.text import encode_json, text_field
from inference_core.stores.backend import (
    EXTRA,
    UNREADABLE,
    Backend,
    Batch,
    Check,
    Cursor,
    Expire,
    Expiry,
    Key,
    Outcome,
    PageRequest,
    Put,
    Remove,
    Row,
    RowState,
    States,
    Unreadable,
    Write,
    WriteRule,
    beside,
    unpack_value,
)
from inference_core.stores.rules.erasure_epoch import fences_of
from inference_core.stores.rules.versions import is_audited, versions_touched, versions_writes
from inference_core.stores.rules.write_rules import rules_of

_MOST_EVENTS: Final = 1_000
_PAGE: Final = 500
_NEWEST_SEALS: Final = 20
"""How many seals are read to find the last one. If it is not among them because clocks were wrong, all are read."""
_FIRST: Final = "0" * 64
"""What stands for the seal before the first one."""
_MICROSECONDS: Final = 1_000_000
_MARK: Final = 32
_OLD_MARK: Final = 16
"""The length of marks in seals of package versions that did not seal the end of a key: the first half of a mark."""
_TRIES: Final = 100


class Seal(NamedTuple):
    """The ``number``-th seal of a user: ids and MACs of ``events``, made with the key whose mark is ``key``.

    Each MAC is ``<mac>`` or ``<mac> <expires_at>``; without ``expires_at``, its event expires as the audit log says.
    ``seq`` is the number of the last write that it covers. A seal without events says that the key ends: what was
    sealed before it with this key is removed from then on. Its ``seq`` is 0, as an erasure has writes numbered anew.
    """

    number: int
    previous: str
    events: list[list[str]]
    key: str
    seq: int

    def head(self, chain_key: bytes) -> str:
        """What the next seal is chained to."""
        return _hmac(encode_json(list(self), what="seal"), chain_key)


@dataclass(frozen=True, slots=True)
class TrailCheck:
    """The state of a user's audit trail. It is whole if there are no ``problems``, which name events and seals.

    ``events`` are there, ``sealed`` of them in the chain; ``expired`` ones are gone because their time is over,
    ``erased`` ones went with the user's key, whose end is sealed. ``head`` stands for the whole chain: keep it
    elsewhere, and have `check_trail` look for it later.
    """

    events: int
    sealed: int
    expired: int
    erased: int
    problems: tuple[str, ...]
    head: str


class Sealer:
    """Seals what ``audit_log`` notes as unsealed. Its methods block."""

    def __init__(self, audit_log: AuditLog) -> None:
        self._audit_log = audit_log
        self._lock = threading.Lock()
        # Of a backend that does not number writes all seals are read: only they tell which events are sealed.
        self._reads_all = not audit_log.backend.capabilities.change_feed

    def seal_portion(self) -> bool:
        """Chore: seals the new events of one user. Returns whether there may be more to do. Raises StoreError."""
        user = next(iter(self._audit_log.unsealed), None)
        if user is None:
            return False
        self._audit_log.unsealed.pop(user, None)
        is_left = True  # also if `seal` raises: what is not sealed yet is sealed later
        try:
            is_left = self.seal(user)
        finally:
            if is_left:
                self._audit_log.unsealed[user] = None
        return bool(self._audit_log.unsealed)

    def seal(self, user: str) -> bool:
        """Seals the new events of the user with this label. Returns whether to call it again. Raises StoreError."""
        backend, audit_log = self._audit_log.backend, self._audit_log
        with self._lock:
            # An erasure does not wait for sealers. So the fence refuses a seal behind the one that ends the key.
            fence = fences_of(backend).read([user])
            chain = _Chain(audit_log, user, reads_all=self._reads_all)
            mark, fresh = _key_mark(audit_log, user), _unsealed(backend, user, chain.seals)
            if not mark:  # events without a key are being removed
                return False
            for start in range(0, len(fresh), _MOST_EVENTS):
                some = fresh[start : start + _MOST_EVENTS]
                seal = chain.put([[event, mac] for _, event, mac in some], mark, some[-1][0])
                (outcome,) = backend.apply([[seal, *fence]])
                if isinstance(outcome, VersionConflict):
                    # Another process has made this seal, or wrong clocks hide the last one: look again, at all seals.
                    # If that fails too, it is another race or a seal that cannot be read, and not tried again at once.
                    if self._reads_all:
                        raise StoreBusy("Another process seals the audit trail; it is tried again") from outcome
                    self._reads_all = True
                    return True
                if isinstance(outcome, Exception):
                    raise outcome
                self._reads_all = not backend.capabilities.change_feed
        return False


def end_key(audit_log: AuditLog, user: str) -> list[Check | Put]:
    """The writes that seal the end of the key of the user with this label: none if there is none. Blocks.

    They belong in the transaction that removes the events, or before it if nothing is sealed in between. Raises
    StoreError.
    """
    mark = _key_mark(audit_log, user)
    if not mark:
        return []
    chain = _Chain(audit_log, user, reads_all=True)
    last = chain.seals[-1] if chain.seals else None
    if last and not last.events and last.key == mark:
        return [Check(namespace=chain.place, key=chain.next, expected=0)]
    return [chain.put([], mark, 0)]


def end_trail(audit_log: AuditLog, user: str) -> None:
    """Removes the events and the key of the user with this label, and seals that the key ended. Blocks.

    Safe to repeat. Raises StoreError.
    """
    backend, place, tries = audit_log.backend, (user, AUDIT), 0
    while rows := backend.page(PageRequest([place], limit=_PAGE)):
        # The key goes with the last events: without it, nobody could tell whether they are genuine.
        gone = rows if len(rows) < _PAGE else [row for row in rows if row.key != SALT]
        removals = [Remove(namespace=row.namespace, key=row.key) for row in gone]
        (outcome,) = audit_log.rules.apply([[*end_key(audit_log, user), *removals]])
        if isinstance(outcome, Exception):
            tries += 1
            if tries == _TRIES or not isinstance(outcome, VersionConflict):  # else a sealer was faster
                raise outcome


def check_trail(audit_log: AuditLog, user: str, head: str | None = None) -> TrailCheck:
    """Whether the audit trail of the user with this label is whole, and still has the seal ``head``. Blocks.

    Raises StoreError.
    """
    heads, sealed, ended, problems = _checked(audit_log, user)
    rows = {row.key: row for row in _events(audit_log.backend, user)}
    mark, secret = _key_mark(audit_log, user), audit_log.key_of(user) or b""
    # A sealed end covers all seals before it. Earlier versions of the package sealed no ends, so a key of theirs may
    # have ended without one.
    told = {key[:_OLD_MARK] for _, key, _ in sealed.values() if len(key) > _OLD_MARK} | {mark[:_OLD_MARK], *ended}
    expired = erased = 0
    for event, (sealed_mac, key, number) in sealed.items():
        mac, _, end = sealed_mac.partition(" ")
        if event in rows:
            problems += [f"event {event} was changed"] if rows[event].value.get("mac") != mac else []
        elif number < ended.get(key[:_OLD_MARK], 0) or (len(key) == _OLD_MARK and key not in told):
            erased += 1
        elif _is_over(event, end, audit_log):
            expired += 1
        else:
            problems.append(f"event {event} was removed")
    for event, row in rows.items():
        if not _is_genuine(row, user, secret):
            problems.append(f"event {event} was {'changed' if event in sealed else 'added'}")
    if head is not None and head not in heads:
        problems.append("the chain does not hold this head: it was cut or made anew")
    found = tuple(dict.fromkeys(problems))
    return TrailCheck(len(rows), len(sealed.keys() & rows.keys()), expired, erased, found, heads[-1])


class _Chain:
    """The last seals of the user with this label, or all, and the place of the next one."""

    def __init__(self, audit_log: AuditLog, user: str, *, reads_all: bool) -> None:
        self.place, self._key = _place(audit_log, user), audit_log.chain_key()
        backend = audit_log.backend
        rows = _rows(backend, self.place) if reads_all else backend.page(PageRequest([self.place], limit=_NEWEST_SEALS))
        rows = sorted(rows, key=lambda row: row.key)
        self.seals = list(filter(None, map(_seal_of, rows)))
        self._taken = max((int(row.key) for row in rows if row.key.isdigit()), default=0)

    @property
    def next(self) -> str:
        """The key of the next seal."""
        return f"{self._taken + 1:010d}"

    def put(self, events: list[list[str]], mark: str, seq: int) -> Put:
        """The write of the next seal, which is then the chain's last; it is refused if another sealer was faster."""
        previous, key = self.seals[-1].head(self._key) if self.seals else _FIRST, self.next
        self._taken += 1
        seal = Seal(self._taken, previous, events, mark, seq)
        self.seals.append(seal)
        return Put(
            namespace=self.place,
            key=key,
            value=encode_json({**seal._asdict(), "head": seal.head(self._key)}, what="seal"),
            updated_at=datetime.now(UTC),
            expected=0,
        )


def _checked(
    audit_log: AuditLog, user: str
) -> tuple[list[str], dict[str, tuple[str, str, int]], dict[str, int], list[str]]:
    """The heads of the user's seals; of each event in them its MAC, the mark of its key and the number of its seal.

    Then the numbers of the last seals that end a key, by the beginning of its mark, and what is wrong.
    """
    heads, problems, number = [_FIRST], list[str](), 0
    sealed, ended = dict[str, tuple[str, str, int]](), dict[str, int]()
    for row in sorted(_rows(audit_log.backend, _place(audit_log, user)), key=lambda row: row.key):
        number, seal = number + 1, _seal_of(row)
        if row.key != f"{number:010d}":
            problems.append(f"seal {number} is missing")
            number = int(row.key) if row.key.isdigit() else number
        if seal is None or seal.number != number:
            problems.append(f"seal {number} was changed")
            continue
        head = seal.head(audit_log.chain_key())
        is_genuine = row.value.get("head") == head
        if seal.previous != heads[-1] or not is_genuine:
            problems.append(f"seal {number} was changed")
        heads.append(head)
        sealed |= {event: (mac, seal.key, number) for event, mac in seal.events}
        if is_genuine and not seal.events:
            ended[seal.key[:_OLD_MARK]] = number
    return heads, sealed, ended, problems


def _place(audit_log: AuditLog, user: str) -> Namespace:
    name = _hmac(f"seals\0{user}", audit_log.chain_key())[:32]
    return beside(audit_log.backend, (SEALS, name), user)


def _key_mark(audit_log: AuditLog, user: str) -> str:
    """A mark of the key of the user's commitments, which differs from that of the next key, after an erasure."""
    key = audit_log.key_of(user)
    return "" if key is None else _hmac("key", key)[:_MARK]


def _rows(backend: Backend, namespace: Namespace) -> Iterator[Row]:
    """All rows of ``namespace``, the newest first."""
    after: Cursor | None = None
    while page := backend.page(PageRequest([namespace], limit=_PAGE, after=after)):
        yield from page
        after = Cursor.of(page[-1])


def _events(backend: Backend, user: str) -> Iterator[Row]:
    return (row for row in _rows(backend, (user, AUDIT)) if row.key != SALT)


def _unsealed(backend: Backend, user: str, seals: list[Seal]) -> list[tuple[int, str, str]]:
    """The numbers, ids and MACs (with ends) of the events that no seal names, the first written first."""
    numbered = backend.capabilities.change_feed
    last = seals[-1].seq if seals else 0
    known = set[str]() if numbered else {event for seal in seals for event, _ in seal.events}
    fresh: list[tuple[int, str, str]] = []
    seen_in_a_row = 0  # there may be new ones behind a sealed one: the event of a slow write has an old id
    for row in _events(backend, user):
        is_new = row.seq > last if numbered else row.key not in known
        seen_in_a_row = 0 if is_new else seen_in_a_row + 1
        if is_new:
            # Without the end, the present setting would decide whether an event that is gone has expired.
            end = f" {row.expiry.at.timestamp():.6f}" if row.expiry else ""
            fresh.append((row.seq, row.key, f"{row.value.get('mac')}{end}"))
        elif seen_in_a_row > _PAGE:
            break
    return sorted(fresh)


def _is_over(event: str, end: str, audit_log: AuditLog) -> bool:
    """Whether ``event`` has expired. ``end`` is its sealed expiry; "" in seals written before these held one."""
    made = event.partition("-")[0]
    with suppress(ValueError):  # no id or seal of ours, which is a problem of its own
        at = float(end) if end else int(made) / _MICROSECONDS + audit_log.life.total_seconds()
        return at <= datetime.now(UTC).timestamp()
    return False


def _seal_of(row: Row) -> Seal | None:
    value: Mapping[str, Any] = row.value
    try:
        seal = Seal(**{name: value[name] for name in Seal._fields})
        events = [[str(event), str(mac)] for event, mac in seal.events]
    except (KeyError, TypeError, ValueError):
        return None
    kinds = (int, str, list, str, int)
    is_valid = all(map(isinstance, seal, kinds)) and events == seal.events
    return seal if is_valid else None


def _hmac(text: str, key: bytes) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()


def _is_genuine(row: Row, user: str, key: bytes) -> bool:
    try:
        event = AuditEvent.from_value(row.key, row.value)
    except ValueError:
        return False
    told = event.to_value()
    text = encode_json(told, what="audit event")
    # A LangGraph store of another library keeps fields of its own beside those of the row.
    stored = {name: value for name, value in row.value.items() if name != EXTRA}
    mac = stored.pop("mac", None)
    # Events of earlier versions of the package have an HMAC.
    return stored == told and mac in (mac_of(text, user, row.key, key), _hmac(f"{user}\0{row.key}\0{text}", key))


DEFAULT_AUDIT_DAYS: Final = 365.0
KEY_META: Final = "audit_key"
AUDIT_META: Final = "audit"
_ON, _OFF = "on", "off"
EVENT_KIND: Final = "event"
_MOST_KEYS: Final = 10_000
_MAC_BYTES: Final = 24
_NOBODYS: Final = "~nothing"
"""The key of a row that is never there."""
_CHANGES: Final = (Put, Remove, Expire)


class UserKey(NamedTuple):
    """The key of a user's commitments, the salt that it is derived from, and the stored value with that ("": none)."""

    secret: bytes
    salt: str
    stored: str


class AuditLog:
    """Records the earlier versions and the audit events of the changes in ``backend``.

    ``audit``: True records both, False only versions, None what the store was last opened with.
    ``secret`` is the key of the store's audit trail; by default one that the store keeps. Events expire after ``days``.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        audit: bool | None = None,
        days: float = DEFAULT_AUDIT_DAYS,
        secret: bytes | None = None,
    ) -> None:
        self.backend = backend
        self.rules = rules_of(backend)
        was_on = backend.get_meta(AUDIT_META) != _OFF
        if audit is not None and audit != was_on and backend.capabilities.writable:
            backend.set_meta(AUDIT_META, _ON if audit else _OFF)
        self.audit = was_on if audit is None else audit
        self.life = timedelta(days=days)
        self.given_key, self._secret = secret, secret
        self._keys: dict[str, UserKey] = {}
        self._lock = threading.Lock()
        self.unsealed: dict[str, None] = {}
        """The users with events that the sealer has not seen."""
        self.wake: Callable[[], None] | None = None
        """Called when ``unsealed`` gets one more."""

    def recorded(self, batch: Sequence[Write], cause: Cause) -> Batch:
        """``batch``, and the rule that records it. The first call blocks, except for one after `chain_key`."""
        if self.audit:
            self.chain_key()
        return [*batch, RecordRule(self, batch, cause)]

    def apply(self, batches: Sequence[Sequence[Write]], cause: Cause) -> list[Outcome]:
        """Applies the batches with their records, for callers that write to the backend directly. Blocks."""
        outcomes = self.rules.apply([self.recorded(batch, cause) for batch in batches])
        return [
            end[: len(batch)] if isinstance(end, list) else end for end, batch in zip(outcomes, batches, strict=True)
        ]

    def discard(self, unreadable: Sequence[Unreadable], cause: Cause) -> int:
        """Removes rows that cannot be read and records an event for each user. Blocks.

        Returns how many were still as in ``unreadable``. The event comes after the removals, as these are not one
        batch. It names no row, as nothing is known of them.
        """
        removed = self.rules.discard(unreadable)
        lost = [damaged for damaged in unreadable if removed and damaged.namespace and is_audited(damaged.namespace)]
        for user in dict.fromkeys(damaged.namespace[0] for damaged in lost if damaged.namespace):
            rows = tuple(("damaged", damaged.key) for damaged in lost if damaged.root == user)
            self.apply([[Check(namespace=(user, AUDIT), key=_NOBODYS, expected=0)]], replace(cause, removed=rows))
        return removed

    def key_of(self, user: str) -> bytes | None:
        """The key of the commitments of the user with this label, None if it is gone. Blocks."""
        (row,) = self.backend.get([((user, AUDIT), SALT)])
        return None if row is None else self.derived(user, text_field(row.value, "salt") or "")

    @property
    def has_key(self) -> bool:
        """Whether `chain_key` does not block."""
        return self._secret is not None

    def chain_key(self) -> bytes:
        """The key of the store's audit trail. The first call blocks."""
        if self._secret is None:
            with self._lock:
                if not self.backend.get_meta(KEY_META):
                    self.backend.set_meta(KEY_META, token_hex(32), is_first=True)
                self._secret = bytes.fromhex(self.backend.get_meta(KEY_META) or "")
        return self._secret

    def users(self, batch: Sequence[Write], changing: Sequence[Write], cause: Cause) -> list[str]:
        """The labels of the users who get an event of ``batch``, in order."""
        if not self.audit:
            return []
        told = [write for write in batch if is_audited(write.namespace)] if cause.is_told else changing
        told = batch if cause.removed else told
        roots = {write.namespace[0]: None for write in told}
        for write in batch:
            if write.key == SALT and isinstance(write, Remove):  # all events go with the key
                roots.pop(write.namespace[0], None)
        return list(roots)

    def known_key(self, user: str) -> UserKey | None:
        """The key of the user with this label, as far as this process knows."""
        return self._keys.get(user)

    def stored_key(self, user: str, stored: str) -> UserKey | None:
        """The key whose salt is in the value ``stored``; None if that cannot be read."""
        known = self._keys.get(user)
        if known is None or known.stored != stored:
            try:
                salt = text_field(unpack_value(stored), "salt") or ""
            except UNREADABLE:
                return None
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            known = self._keys[user] = UserKey(self.derived(user, salt), salt, stored)
        return known

    def note_unsealed(self, users: Iterable[str]) -> None:
        """Has the new events of ``users`` sealed."""
        for user in users:
            if user not in self.unsealed:
                self.unsealed[user] = None
                if self.wake:
                    self.wake()

    def derived(self, user: str, salt: str) -> bytes:
        """The secret that ``salt`` makes for the user with this label."""
        return hmac.new(self.chain_key(), f"user\0{user}\0{salt}".encode(), "sha256").digest()


class RecordRule(WriteRule):
    """Keeps what ``batch`` replaces, and records an event for each user whose memories it changes.

    The events of a batch that only adds memories follow from it alone, so they are made before the transaction.
    """

    def __init__(self, audit_log: AuditLog, batch: Sequence[Write], cause: Cause) -> None:
        self._audit_log, self._cause = audit_log, cause
        self._changing = [write for write in batch if isinstance(write, _CHANGES) and is_audited(write.namespace)]
        self._users = audit_log.users(batch, self._changing, cause)
        versions = versions_touched(self._changing, cause.keep_until)
        places = [(user, AUDIT) for user in self._users]
        self._rows = [*((write.namespace, write.key) for write in self._changing), *versions]
        self.reads = [*versions, *((place, SALT) for place in places)]
        self.makes = [*places, *(place for place, _ in versions if cause.keep_until)]
        self._told: list[str] = []
        is_addition = all(isinstance(write, Put) and (write.is_new or write.expected == 0) for write in self._changing)
        known = [audit_log.known_key(user) for user in self._users] if is_addition else []
        self._made = {key: self._event(user, key, {}) for user, key in zip(self._users, known, strict=False) if key}

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """The earlier states and the events."""
        del after
        rows = {key: row for key in self._rows if (state := before.get(key)) and (row := _alive(key, state, now))}
        records = versions_writes(self._changing, rows, self._cause.at, self._cause.keep_until)
        self._told = []
        for user in self._users:
            state = before.get(((user, AUDIT), SALT))
            key = self._audit_log.stored_key(user, state.value or "") if state and state.is_alive(now) else None
            if key is None:  # a purge has ended the last key, or it cannot be read
                salt = token_hex(16)
                key = UserKey(self._audit_log.derived(user, salt), salt, "")
            made = self._made[key] if key in self._made else self._event(user, key, rows)
            if made:
                records += [made] if key.stored else [salt_put(user, key.salt, self._cause), made]
                self._told.append(user)
        return records

    def landed(self, *, is_sure: bool) -> None:
        """Has the events sealed, if they are there."""
        del is_sure
        self._audit_log.note_unsealed(self._told)

    def _event(self, user: str, key: UserKey, before: Mapping[Key, Row]) -> Put | None:
        """The write of the user's event; None if nothing that events tell of has changed."""
        cause = self._cause
        own = (write for write in self._changing if write.namespace[0] == user)
        changes = [change for write in own if (change := _changed(write, before, key.secret))]
        if all(change[0][0] == USAGE for change in changes) and not (cause.is_told or cause.removed):
            return None
        if cause.removed:  # how many rows of each kind, with a commitment of their keys
            kinds = Counter(kind for kind, _ in cause.removed)
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            names = commitment(encode_json({"removed": sorted(cause.removed)}, what="keys"), key.secret)
            cause = replace(cause, reason=f"{counts}; {names[:32]}")
        return event_put(cause, changes, user, key.secret, self._audit_log.life)


def _alive(key: Key, state: RowState, now: datetime) -> Row | None:
    """The row, if it has not expired and can be read."""
    return state.row(*key) if state.is_alive(now) else None


def event_id(at: datetime) -> str:
    """An id of an event that sorts by time."""
    return f"{int(at.timestamp() * 1_000_000):017d}-{getrandbits(32):08x}"


def salt_put(user: str, salt: str, cause: Cause) -> Put:
    """The write that stores the salt of the user's key."""
    value, place = encode_json({"salt": salt}, what="key"), (user, AUDIT)
    # The database may lose it, and another process make another one: the versions tell them apart.
    above = getrandbits(32)
    return Put(namespace=place, key=SALT, value=value, updated_at=cause.at, above=above)


def event_put(cause: Cause, changes: Sequence[Sequence[Any]], user: str, key: bytes, life: timedelta) -> Put:
    """The write that stores an event of ``changes`` for the time ``life``, under the user's ``key``."""
    name, text = event_id(cause.at), encode_json(event_value(cause, changes), what="audit event")
    try:
        end = cause.at + life
    except OverflowError:  # at the end of the calendar
        end = datetime.max.replace(tzinfo=cause.at.tzinfo)
    return Put(
        namespace=(user, AUDIT),
        key=name,
        value=f'{text[:-1]}, "mac": "{mac_of(text, user, name, key)}"}}',
        kind=EVENT_KIND,
        updated_at=cause.at,
        expected=0,
        expiry=Expiry(end, life),
        is_new=True,
    )


def mac_of(text: str, user: str, event: str, key: bytes) -> str:
    """The commitment to an event, given as JSON ``text`` with sorted names, that is bound to its user and id."""
    return commitment(f"{user}\0{event}\0{text}", key)


def commitment(text: str, key: bytes) -> str:
    """A keyed hash of ``text``, which reveals nothing about it without the ``key``."""
    # BLAKE2 (RFC 7693) is a MAC by itself, and takes half the time of an HMAC.
    return blake2b(text.encode(), key=key, digest_size=_MAC_BYTES).hexdigest()


def _changed(write: Write, before: Mapping[Key, Row], key: bytes) -> list[Any] | None:
    """What ``write`` changes, as `Changed.to_value` has it; None for a removal of nothing."""
    if isinstance(write, Expire):
        return [write.namespace[1:], write.key, None, 0, None, None]
    row = before.get((write.namespace, write.key))
    if not isinstance(write, Put):
        if row is None:
            return None
        return [write.namespace[1:], write.key, row.version, 0, commitment(encode_json(row.value, what=""), key), None]
    return [
        write.namespace[1:],
        write.key,
        row.version if row else 0,
        row.version + 1 if row else None,
        commitment(encode_json(row.value, what="memory"), key) if row else None,
        commitment(write.value, key),
    ]
