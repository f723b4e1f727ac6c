"""Journal: in the batch of each change, what it replaces and who made it.

Whatever operation writes, its batch passes here on the way to the database. So an event is there if and only if the
change is, on every database whose batches are atomic. Events hold versions and commitments, never content.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Final, NamedTuple

from inference_core.effects import Operation
from inference_core.errors import VersionConflict
from inference_core.memory.audit import AuditEvent, Cause, Changed
from inference_core.memory.namespaces import AUDIT, USAGE
from inference_core.memory.text import encode_json, text_field
from inference_core.stores.backend import Backend, Delete, Expiry, Key, Outcome, Put, Row, Write
from inference_core.stores.versions import expecting, is_versioned, versions_key, versions_writes

DEFAULT_AUDIT_DAYS: Final = 365.0
KEY_META: Final = "audit_key"
AUDIT_META: Final = "audit"
_ON, _OFF = "on", "off"
SALT: Final = "~key"
"""The key of the row beside a user's events whose removal makes all their commitments meaningless."""
EVENT_KIND: Final = "event"
_MOST_KEYS: Final = 10_000
_KEY_S: Final = 5.0
"""So long a key is used before it is read again."""


class UserKey(NamedTuple):
    """The key of a user's commitments, the salt that it is made of, and whether that is stored.

    ``until`` is when it is read again, as a purge by another process removes it.
    """

    secret: bytes
    salt: str
    is_stored: bool
    until: float


class Journal:
    """The versions and events of the changes in ``backend``; without ``audit`` the versions alone (None: as before).

    ``secret`` is the key of the store's audit trail; by default one that the store keeps. Events end after ``days``.
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
        was_on = backend.get_meta(AUDIT_META) != _OFF
        if audit is not None and audit != was_on and backend.capabilities.writable:
            backend.set_meta(AUDIT_META, _ON if audit else _OFF)
        self.audit = was_on if audit is None else audit
        self.life = timedelta(days=days)
        self._secret = secret
        self._keys: dict[str, UserKey] = {}
        self._lock = threading.Lock()
        self.unsealed: dict[str, None] = {}
        """The users with events that the sealer has not seen."""
        self.wake: Callable[[], None] | None = None
        """Called when there is one more."""

    def recorded(
        self,
        batch: Sequence[Write],
        cause: Cause,
        read: Callable[..., Operation[Any]],
        write: Callable[[Sequence[Write]], Operation[list[int]]],
    ) -> Operation[list[int]]:
        """What ``write`` returns for ``batch`` and what it records; ``read`` calls a function of the backend.

        Raises VersionConflict if the batch expects another version, and what ``write`` raises.
        """
        keys = self._read_before(batch, cause)
        users = self._users(batch)
        seen: dict[Key, int] | None = None
        is_strict: bool = True
        while True:
            while (salted := self._known_keys(users)) is None:
                yield from read(self._load, users)
            rows = (yield from read(self.backend.get, keys)) if keys else ()
            before: dict[Key, Row | None] = dict(zip(keys, rows, strict=True))
            versions = {key: row.version if row else 0 for key, row in before.items()}
            guarded = expecting(batch, versions, is_strict=is_strict)
            if seen is not None and guarded is None:
                raise VersionConflict("Another caller has changed a memory; read it again")
            try:
                written = yield from write(
                    [*(guarded or batch), *self._records(batch, before, cause, salted, is_strict=is_strict)]
                )
            except VersionConflict:
                fresh: bool = (yield from read(self._load, users, anew=True)) if users else False
                may_be_unreadable = bool(keys) or not all(key.is_stored for key in salted.values())
                if not fresh and not (may_be_unreadable and is_strict):
                    raise
                # Somebody else was faster, or it is a row that cannot be read, which seems absent and is not.
                is_strict, seen = fresh or versions != seen, versions
            else:
                self._note_written(salted)
                for one in batch:
                    if isinstance(one, Delete) and one.key == SALT and one.namespace[1:] == (AUDIT,):
                        self._keys.pop(one.namespace[0], None)  # a purge: what comes later has a key of its own
                return written

    def apply(
        self,
        batches: Sequence[Sequence[Write]],
        cause: Cause,
        apply: Callable[[Sequence[Sequence[Write]]], list[Outcome]] | None = None,
    ) -> list[Outcome]:
        """Applies the batches at once with what they record, for who writes to the backend itself, or by ``apply``."""
        noted: list[list[Write]] = []
        for batch in batches:
            users = self._users(batch)
            known = self._loaded(users)
            if salts := [salt_put(user, key.salt, cause) for user, key in known.items() if not key.is_stored]:
                self.backend.apply([[salt] for salt in salts])  # first, as several batches may be a user's
                self._load(users, anew=True)
            keys = self._read_before(batch, cause)
            before = dict(zip(keys, self.backend.get(keys), strict=True))
            salted = self._loaded(users)
            noted.append([*batch, *self._records(batch, before, cause, salted)])
            self._note_written(salted)
        outcomes = (apply or self.backend.apply)(noted)
        return [
            one if isinstance(one, Exception) else one[: len(batch)]
            for one, batch in zip(outcomes, batches, strict=True)
        ]

    def key_of(self, user: str) -> bytes | None:
        """The key of the commitments of the user with this label, None if it is gone. Blocks."""
        (row,) = self.backend.get([((user, AUDIT), SALT)])
        return None if row is None else self._derived(user, text_field(row.value, "salt") or "")

    def chain_key(self) -> bytes:
        """The key of the store's audit trail. Blocks when it is first asked for."""
        if self._secret is None:
            with self._lock:
                if not self.backend.get_meta(KEY_META):
                    self.backend.set_meta(KEY_META, token_hex(32))
                self._secret = bytes.fromhex(self.backend.get_meta(KEY_META) or "")
        return self._secret

    def _users(self, batch: Sequence[Write]) -> list[str]:
        if not self.audit:
            return []
        return list(dict.fromkeys([one.namespace[0] for one in batch if _is_change(one)]))

    def _read_before(self, batch: Sequence[Write], cause: Cause) -> list[Key]:
        """The rows to be read before ``batch``: those that it may replace, and what is kept of them already."""
        if not self.audit and cause.keep_until is None:
            return []
        changed = [
            (write.namespace, write.key)
            for write in batch
            if is_versioned(write.namespace)
            and (isinstance(write, Delete) or (isinstance(write, Put) and write.expected != 0))
        ]
        kept = map(versions_key, changed) if cause.keep_until else ()
        return list(dict.fromkeys([*changed, *kept]))

    def _records(
        self,
        batch: Sequence[Write],
        before: Mapping[Key, Row | None],
        cause: Cause,
        keys: Mapping[str, UserKey],
        *,
        is_strict: bool = True,
    ) -> list[Write]:
        """The writes that keep earlier states, and for each user an event."""
        records = versions_writes(batch, before, cause.at, cause.keep_until)
        for user, key in keys.items():
            changes = tuple(
                change
                for write in batch
                if write.namespace[0] == user and (change := _changed(write, before, key.secret))
            )
            if all(change.place[0] == USAGE for change in changes):
                continue
            event = AuditEvent(
                id=event_id(cause.at),
                at=cause.at,
                operation=cause.operation,
                actor=cause.actor,
                changes=changes,
                reason=cause.reason,
                job=cause.job,
                undone=cause.undone,
            )
            if not key.is_stored:
                records.append(salt_put(user, key.salt, cause, 0 if is_strict else None))
            records.append(event_put(event, user, key.secret, self.life))
        return records

    def _load(self, users: Sequence[str], *, anew: bool = False) -> bool:
        """Reads the keys of users; ``anew``: also known ones. Whether one is another than before."""
        wanted = users if anew else [user for user in users if self._known_keys([user]) is None]
        rows = self.backend.get([((user, AUDIT), SALT) for user in wanted])
        has_changed = False
        for user, row in zip(wanted, rows, strict=True):
            salt = (text_field(row.value, "salt") if row else None) or token_hex(16)
            known = self._keys.get(user)
            if known is None or not row or known.salt != salt:
                has_changed = has_changed or known is None or known.is_stored or row is not None
                if len(self._keys) >= _MOST_KEYS:
                    self._keys.clear()
            secret = self._derived(user, salt)
            self._keys[user] = UserKey(secret, salt, row is not None, time.monotonic() + _KEY_S)
        return has_changed

    def _known_keys(self, users: Sequence[str]) -> dict[str, UserKey] | None:
        """The keys of ``users``; None if one must be read. Another thread may forget them at any time."""
        now = time.monotonic()
        found = {user: key for user in users if (key := self._keys.get(user)) and key.until > now}
        return found if len(found) == len(users) else None

    def _loaded(self, users: Sequence[str]) -> dict[str, UserKey]:
        while (found := self._known_keys(users)) is None:
            self._load(users)
        return found

    def _note_written(self, keys: Mapping[str, UserKey]) -> None:
        if self.wake and keys:
            self.wake()
        for user, key in keys.items():
            self.unsealed[user] = None
            if not key.is_stored:
                self._keys[user] = key._replace(is_stored=True)

    def _derived(self, user: str, salt: str) -> bytes:
        return hmac.new(self.chain_key(), f"user\0{user}\0{salt}".encode(), "sha256").digest()


def event_id(at: datetime) -> str:
    """An id of an event that sorts by time."""
    return f"{int(at.timestamp() * 1_000_000):017d}-{token_hex(4)}"


def salt_put(user: str, salt: str, cause: Cause, expected: int | None = 0) -> Put:
    """The write that stores the salt of the user's key."""
    value = encode_json({"salt": salt}, what="key")
    return Put(namespace=(user, AUDIT), key=SALT, value=value, updated_at=cause.at, expected=expected)


def event_put(event: AuditEvent, user: str, key: bytes, life: timedelta) -> Put:
    """The write that stores ``event`` for the time ``life``, under the user's ``key``."""
    text = encode_json(event.to_value(), what="audit event")
    return Put(
        namespace=(user, AUDIT),
        key=event.id,
        value=f'{text[:-1]}, "mac": "{mac_of(text, user, event.id, key)}"}}',
        kind=EVENT_KIND,
        updated_at=event.at,
        expected=0,
        expiry=Expiry(_later(event.at, life), life),
        is_new=True,
    )


def mac_of(text: str, user: str, event: str, key: bytes) -> str:
    """The commitment of an event, as JSON text with sorted names, which is bound to its place."""
    return commitment(f"{user}\0{event}\0{text}", key)


def commitment(text: str, key: bytes) -> str:
    """The HMAC of ``text``, which tells nothing about it to who has not the ``key``."""
    return hmac.digest(key, text.encode(), "sha256").hex()


def _later(at: datetime, life: timedelta) -> datetime:
    try:
        return at + life
    except OverflowError:  # at the end of the calendar
        return datetime.max.replace(tzinfo=at.tzinfo)


def _is_change(write: Write) -> bool:
    return isinstance(write, Put | Delete) and is_versioned(write.namespace)


def _changed(write: Write, before: Mapping[Key, Row | None], key: bytes) -> Changed | None:
    """What ``write`` changes; None for a removal of nothing."""
    row = before.get((write.namespace, write.key))
    is_put = isinstance(write, Put)
    if not _is_change(write) or (row is None and not is_put):
        return None
    return Changed(
        place=write.namespace[1:],
        key=write.key,
        before=row.version if row else 0,
        after=0 if not is_put else row.version + 1 if row else None,
        commitment_before=commitment(encode_json(row.value, what="memory"), key) if row else None,
        commitment_after=commitment(write.value, key) if isinstance(write, Put) else None,
    )
