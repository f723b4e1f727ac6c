"""Roles in spaces: what each allows, where they are stored, and a cache of those read recently."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Final
from weakref import WeakKeyDictionary

from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import GRANTS, Namespace, encode_label

REFRESH_S: Final = 5.0
"""A role that another process revokes ends at most this many seconds later."""
_REMEMBERED: Final = 10_000
_PSEUDONYM: Final = 24


class SpaceRole(IntEnum):
    """What a member may do in a space; each role includes those before it.

    READ: recall and list. PROPOSE: also save memories, which then wait for an admin's approval. WRITE: also save facts
    at once, change and delete them. ADMIN: also write what guides an agent (preferences, instructions, workflows,
    skills), pin memories, review proposals, and grant roles.
    """

    READ = 1
    PROPOSE = 2
    WRITE = 3
    ADMIN = 4


class Spaces:
    """Turns spaces on, and caches the roles of users for ``refresh_seconds``.

    ``groups_of`` returns the groups of a user, to which roles may be granted too. It is called only with the id of an
    authenticated user, and only if the cache does not have that user's roles; never on an event loop, as it may block.
    If it raises, the call that needed the roles fails. A role that another process revokes ends after
    ``refresh_seconds`` at the latest.
    """

    def __init__(
        self, groups_of: Callable[[str], Iterable[str]] | None = None, *, refresh_seconds: float = REFRESH_S
    ) -> None:
        self.groups_of = groups_of
        self._fresh_for = timedelta(seconds=refresh_seconds)
        self._known: WeakKeyDictionary[object, dict[str, tuple[datetime, dict[str, SpaceRole]]]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def homes(self, key: bytes, user_id: str) -> list[Namespace]:
        """The namespaces that hold the roles of the user and of the user's groups, in the store with this ``key``."""
        groups = () if self.groups_of is None else self.groups_of(user_id)
        return [home_of(key, user=user_id), *(home_of(key, group=group) for group in dict.fromkeys(groups))]

    def known(self, store: object, user_id: str, now: datetime) -> dict[str, SpaceRole] | None:
        """The user's roles by space; None unless they were read from this ``store`` within the refresh period."""
        with self._lock:
            known = self._known.get(store, {}).get(user_id)
        return known[1] if known and known[0] <= now < known[0] + self._fresh_for else None

    def learn(self, store: object, user_id: str, now: datetime, roles: dict[str, SpaceRole]) -> None:
        """Caches the user's roles as read ``now`` from this ``store``."""
        with self._lock:
            known = self._known.setdefault(store, {})
            if len(known) >= _REMEMBERED:
                known.clear()
            known[user_id] = (now, roles)

    def forget(self) -> None:
        """Empties the cache, because roles were granted or revoked."""
        with self._lock:
            self._known.clear()


def home_of(key: bytes, user: str | None = None, group: str | None = None) -> Namespace:
    """The namespace of a user's or a group's roles; its label is a pseudonym under the store's ``key``.

    Raises InvalidInput unless exactly one of them is given, InvalidId for a name that is not valid.
    """
    if (user is None) == (group is None):
        raise InvalidInput("Name a user or a group")
    label = encode_label(user or group or "", what="user" if group is None else "group")
    return (GRANTS, pseudonym(key, f"{'user' if group is None else 'group'}:{label}"))


def pseudonym(key: bytes, name: str) -> str:
    """The pseudonym of ``name`` in the store with this ``key``: the first 24 hex digits of an HMAC-SHA-256."""
    return hmac.digest(key, name.encode(), "sha256").hex()[:_PSEUDONYM]
