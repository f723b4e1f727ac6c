"""Journal: records in the batch of each change what it replaces and who made it.

Whatever operation writes, its batch passes here on the way to the database. So an event is there if and only if the
change is, on every database whose batches are atomic. Events hold versions and commitments, never content.
"""

from __future__ import annotations

import hmac
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from random import getrandbits
from secrets import token_hex
from typing import Any, Final, NamedTuple

from inference_core.effects import Operation
from inference_core.errors import VersionConflict
from inference_core.memory.audit import Cause, event_value
from inference_core.memory.namespaces import AUDIT, SALT, USAGE
from inference_core.memory.text import encode_json, text_field
from inference_core.stores.backend import (
    Backend,
    Check,
    Expire,
    Expiry,
    Key,
    Outcome,
    Put,
    Remove,
    Row,
    Unreadable,
    Write,
)
from inference_core.stores.governance.holds import holding
from inference_core.stores.governance.versions import expecting, is_audited, is_versioned, versions_key, versions_writes

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
    """The key of a user's commitments, the salt it is derived from, and the version of the salt's row (0: none)."""

    secret: bytes
    salt: str
    version: int


class Journal:
    """Records the versions and events of the changes in ``backend``; without ``audit`` only versions (None: as before).

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
        self.backend = backend = holding(backend)
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

    def recorded(
        self,
        batch: Sequence[Write],
        cause: Cause,
        read: Callable[..., Operation[Any]],
        write: Callable[[Sequence[Write], Callable[[], None]], Operation[list[int]]],
    ) -> Operation[list[int]]:
        """What ``write`` returns for ``batch`` together with its records; ``read`` calls a function of the backend.

        ``write`` must call its second argument once the batch is there.

        Raises VersionConflict if the batch expects another version, and what ``write`` raises.
        """
        changing = [one for one in batch if isinstance(one, _CHANGES) and is_audited(one.namespace)]
        keys = self._read_before(changing, cause)
        users = self._users(batch, changing, cause)
        seen: dict[Key, int] | None = None
        is_strict: bool = True
        while True:
            while (salted := self._known_keys(users)) is None:
                yield from read(self._load, users)
            rows = (yield from read(self.backend.get, keys)) if keys else ()
            before: dict[Key, Row | None] = dict(zip(keys, rows, strict=True))
            versions = {key: row.version if row else 0 for key, row in before.items()}
            guarded = expecting(batch, versions, is_strict=is_strict) if versions else batch
            if seen is not None and guarded is None:
                raise VersionConflict("Another caller has changed a memory; read it again")
            try:
                records = self._records(changing, before, cause, salted, is_strict=is_strict)
                return (yield from write([*(guarded or batch), *records], partial(self._note_written, salted)))
            except VersionConflict:
                fresh: bool = (yield from read(self._load, users, anew=True)) if users else False
                may_be_unreadable = bool(keys) or not all(key.version for key in salted.values())
                if not fresh and not (may_be_unreadable and is_strict):
                    raise
                # Another writer was faster, or a row cannot be read, which seems absent and is not.
                is_strict, seen = fresh or versions != seen, versions

    def apply(
        self,
        batches: Sequence[Sequence[Write]],
        cause: Cause,
        apply: Callable[[Sequence[Sequence[Write]]], list[Outcome]] | None = None,
    ) -> list[Outcome]:
        """Applies the batches with their records, for callers that write to the backend directly or by ``apply``."""
        apply = apply or self.backend.apply
        salted: dict[str, UserKey] = {}
        try:
            outcomes = apply([self._noted(batch, cause, salted) for batch in batches])
            refused = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, VersionConflict)]
            users = {one.namespace[0]: None for at in refused for one in batches[at] if is_audited(one.namespace)}
            if users and self._load(list(users), anew=True):  # a purge has ended a key
                for at in refused:
                    (outcomes[at],) = apply([self._noted(batches[at], cause, salted)])
        finally:
            # Only now: the sealer would look for events that are not there yet. But also if this failed: some may be.
            self._note_written(salted)
        return [
            one if isinstance(one, Exception) else one[: len(batch)]
            for one, batch in zip(outcomes, batches, strict=True)
        ]

    def discard(self, found: Sequence[Unreadable], cause: Cause) -> int:
        """Removes rows that cannot be read and records an event for each user. Blocks.

        Returns how many were still as they were ``found``. The event comes after the removals, as these are not one
        batch. It names no row, as nothing is known of them.
        """
        removed = self.backend.discard(found)
        lost = [one for one in found if removed and one.namespace and is_audited(one.namespace)]
        for user in dict.fromkeys(one.namespace[0] for one in lost if one.namespace):
            rows = tuple(("damaged", one.key) for one in lost if one.root == user)
            self.apply([[Check(namespace=(user, AUDIT), key=_NOBODYS, expected=0)]], replace(cause, removed=rows))
        return removed

    def key_of(self, user: str) -> bytes | None:
        """The key of the commitments of the user with this label, None if it is gone. Blocks."""
        (row,) = self.backend.get([((user, AUDIT), SALT)])
        return None if row is None else self._derived(user, text_field(row.value, "salt") or "")

    def chain_key(self) -> bytes:
        """The key of the store's audit trail. The first call blocks."""
        if self._secret is None:
            with self._lock:
                if not self.backend.get_meta(KEY_META):
                    self.backend.set_meta(KEY_META, token_hex(32), is_first=True)
                self._secret = bytes.fromhex(self.backend.get_meta(KEY_META) or "")
        return self._secret

    def _noted(self, batch: Sequence[Write], cause: Cause, salted: dict[str, UserKey]) -> list[Write]:
        """``batch`` with its records; adds the users who get an event, with their keys, to ``salted``."""
        changing = [one for one in batch if isinstance(one, _CHANGES) and is_audited(one.namespace)]
        users = self._users(batch, changing, cause)
        if salts := [salt_put(user, key.salt, cause) for user, key in self._loaded(users).items() if not key.version]:
            self.backend.apply([[salt] for salt in salts])  # first, as several batches may be of one user
            self._load(users, anew=True)
        keys = self._read_before(changing, cause)
        before = dict(zip(keys, self.backend.get(keys), strict=True))
        loaded = self._loaded(users)
        salted.update(loaded)
        return [*batch, *self._records(changing, before, cause, loaded)]

    def _users(self, batch: Sequence[Write], changing: Sequence[Write], cause: Cause) -> list[str]:
        """The labels of the users who get an event of ``batch``, in order."""
        if not self.audit:
            return []
        told = [one for one in batch if is_audited(one.namespace)] if cause.is_told else changing
        told = batch if cause.removed else told
        roots = {one.namespace[0]: None for one in told}
        for one in batch:
            if one.key == SALT and isinstance(one, Remove):  # all events go with the key
                roots.pop(one.namespace[0], None)
        return list(roots)

    def _read_before(self, changing: Sequence[Write], cause: Cause) -> list[Key]:
        """The rows to be read before ``changing`` is written: what it may replace, and what is kept of that already."""
        if not self.audit and cause.keep_until is None:
            return []
        changed = [
            (one.namespace, one.key)
            for one in changing
            if isinstance(one, Remove) or (isinstance(one, Put) and one.expected != 0)
        ]
        kept = [versions_key(key) for key in changed if is_versioned(key[0])] if cause.keep_until else ()
        return list(dict.fromkeys([*changed, *kept]))

    def _records(
        self,
        changing: Sequence[Write],
        before: Mapping[Key, Row | None],
        cause: Cause,
        keys: Mapping[str, UserKey],
        *,
        is_strict: bool = True,
    ) -> list[Write]:
        """The writes that keep earlier states, and for each user an event."""
        records = versions_writes(changing, before, cause.at, cause.keep_until)
        for user, key in keys.items():
            changes = [
                change
                for write in changing
                if write.namespace[0] == user and (change := _changed(write, before, key.secret))
            ]
            if all(change[0][0] == USAGE for change in changes) and not (cause.is_told or cause.removed):
                continue
            records.append(
                Check(namespace=(user, AUDIT), key=SALT, expected=key.version)  # no purge has ended the key
                if key.version
                else salt_put(user, key.salt, cause, 0 if is_strict else None)
            )
            told = cause
            if cause.removed:  # how many rows of each kind, with a commitment of their keys
                kinds = Counter(kind for kind, _ in cause.removed)
                counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
                names = commitment(encode_json({"removed": sorted(cause.removed)}, what="keys"), key.secret)
                told = replace(cause, reason=f"{counts}; {names[:32]}")
            records.append(event_put(told, changes, user, key.secret, self.life))
        return records

    def _load(self, users: Sequence[str], *, anew: bool = False) -> bool:
        """Reads the keys of ``users``; ``anew``: also known ones. Returns whether a key is new or has changed."""
        wanted = users if anew else [user for user in users if user not in self._keys]
        rows = self.backend.get([((user, AUDIT), SALT) for user in wanted])
        has_changed = False
        for user, row in zip(wanted, rows, strict=True):
            known = self._keys.get(user)
            version = row.version if row else 0
            salt = text_field(row.value, "salt") if row else None
            if known is None or known.version != version or (row and known.salt != salt):
                has_changed = True
                if len(self._keys) >= _MOST_KEYS:
                    self._keys.clear()
                salt = salt or token_hex(16)
                self._keys[user] = UserKey(self._derived(user, salt), salt, version)
        return has_changed

    def _known_keys(self, users: Sequence[str]) -> dict[str, UserKey] | None:
        """The keys of ``users``; None if one must be read. Another thread may forget them at any time."""
        found = {user: key for user in users if (key := self._keys.get(user))}
        return found if len(found) == len(users) else None

    def _loaded(self, users: Sequence[str]) -> dict[str, UserKey]:
        while (found := self._known_keys(users)) is None:
            self._load(users)
        return found

    def _note_written(self, keys: Mapping[str, UserKey]) -> None:
        for user, key in keys.items():
            if not key.version:
                self._keys.pop(user, None)  # the next write reads its version
            if user not in self.unsealed:
                self.unsealed[user] = None
                if self.wake:
                    self.wake()

    def _derived(self, user: str, salt: str) -> bytes:
        return hmac.new(self.chain_key(), f"user\0{user}\0{salt}".encode(), "sha256").digest()


def event_id(at: datetime) -> str:
    """An id of an event that sorts by time."""
    return f"{int(at.timestamp() * 1_000_000):017d}-{getrandbits(32):08x}"


def salt_put(user: str, salt: str, cause: Cause, expected: int | None = 0) -> Put:
    """The write that stores the salt of the user's key."""
    value, place = encode_json({"salt": salt}, what="key"), (user, AUDIT)
    # The database may lose it, and another process make another one: the versions tell them apart.
    above = getrandbits(32)
    return Put(namespace=place, key=SALT, value=value, updated_at=cause.at, expected=expected, above=above)


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


def _changed(write: Write, before: Mapping[Key, Row | None], key: bytes) -> list[Any] | None:
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
