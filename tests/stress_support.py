"""What must be in a store while many change it: acknowledged writes, and for unconfirmed ones what may be there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Contents = frozenset[str | None]
"""What may stand under an id; None: nothing."""
NOTHING: Contents = frozenset([None])
_LETTERS = "bcdfghjklm"


@dataclass
class Known:
    """What is known of one id: what may be there, and when that was last written or changed.

    ``is_open``: a write was not confirmed, so that it may still be made, also after a purge. Such an id is never
    written again, as nobody knows in which order its writes would be made.
    """

    kind: str
    word: str
    may_be: Contents = NOTHING
    written: int = 0
    changed: int = 0
    is_busy: bool = False
    is_open: bool = False
    purges: int = 0


@dataclass
class UserTruth:
    """The ids of one user, and how many purges have begun and are under way."""

    ids: dict[str, Known] = field(default_factory=dict[str, Known])
    begun: int = 0
    under_way: int = 0


Sight = dict[str, tuple[int, Contents]]
"""Of each id nobody writes to: when its state was last changed, and what may be there."""


class Truth:
    """What a reader may see of ``users``. One caller writes an id at a time; anybody may purge a user at any time."""

    def __init__(self, users: Iterable[str]) -> None:
        self._users = {user: UserTruth() for user in users}
        self._lock = threading.Lock()
        self._time = 0
        self.complaints: list[str] = []

    def add(self, user: str, memory_id: str, kind: str, word: str) -> Known:
        """A new id of ``user`` that nothing was written under."""
        with self._lock:
            known = self._users[user].ids[memory_id] = Known(kind, word)
            return known

    def add_there(self, user: str, contents: Mapping[str, str], kind: str) -> None:
        """Memories of ``user`` that are there from the beginning, by their ids, and that nobody writes."""
        for memory_id, content in contents.items():
            self.add(user, memory_id, kind, "").may_be = frozenset([content])

    def begin_write(self, user: str, known: Known) -> None:
        """Before a write is sent."""
        with self._lock:
            truth = self._users[user]
            known.is_busy = True
            known.purges = -1 if truth.under_way else truth.begun
            known.written = known.changed = self._tick()

    def end_write(self, user: str, known: Known, content: str | None, *, is_confirmed: bool) -> bool:
        """After its answer; False if the id must not be written again."""
        with self._lock:
            was_purged = known.purges != self._users[user].begun
            after: Contents = frozenset([content])
            known.may_be = after if is_confirmed else after | known.may_be
            known.may_be |= NOTHING if was_purged else frozenset()
            known.is_open = not is_confirmed
            known.is_busy = False
            known.written = known.changed = self._tick()
            return is_confirmed

    def begin_purge(self, user: str) -> int:
        """Before a purge is sent; the moment."""
        with self._lock:
            truth = self._users[user]
            truth.begun += 1
            truth.under_way += 1
            for known in truth.ids.values():
                known.may_be |= NOTHING
                known.changed = self._tick()
            return self._tick()

    def end_purge(self, user: str, begun: int) -> None:
        """After it was acknowledged: what was written before it is gone."""
        with self._lock:
            truth = self._users[user]
            truth.under_way -= 1
            for known in truth.ids.values():
                if not known.is_busy and not known.is_open and known.written < begun:
                    known.may_be = NOTHING
                    known.changed = self._tick()

    def sight(self, user: str, kind: str | None = None) -> Sight:
        """What is known before a read."""
        with self._lock:
            ids = self._users[user].ids
            return {
                name: (known.changed, known.may_be)
                for name, known in ids.items()
                if not known.is_busy and kind in (None, known.kind)
            }

    def judge(self, what: str, user: str, before: Sight, seen: Iterable[tuple[str, str]]) -> None:
        """Whether ``seen`` (ids and contents) is what a read gives that began ``before`` and has just ended."""
        listed = list(seen)
        found = dict(listed)
        with self._lock:
            ids = self._users[user].ids
            if len(found) != len(listed):
                self.complaints.append(f"{what} of {user} gives an id twice")
            for name, content in listed:
                if name not in ids or not content.startswith(f"{user} {name} "):
                    self.complaints.append(f"{what} of {user} gives somebody else's: {name}, {content!r}")
            for name, (changed, may_be) in before.items():
                if self._is_settled(ids[name], changed) and found.get(name) not in may_be:
                    self.complaints.append(f"{what} of {user} gives {found.get(name)!r} of {name}, not {set(may_be)}")

    def judge_count(self, user: str, before: Sight, count: int) -> None:
        """Whether ``count`` is between what must be there and what may be there."""
        with self._lock:
            ids = self._users[user].ids
            settled = [may for name, (changed, may) in before.items() if self._is_settled(ids[name], changed)]
            least = sum(None not in may for may in settled)
            most = len(ids) - sum(may == NOTHING for may in settled)
            if not least <= count <= most:
                self.complaints.append(f"count of {user} is {count}, not {least} to {most}")

    def expected(self) -> Mapping[str, Mapping[str, Contents]]:
        """What may be there of each user, when nobody writes any more."""
        return {user: {name: known.may_be for name, known in one.ids.items()} for user, one in self._users.items()}

    @staticmethod
    def _is_settled(known: Known, changed: int) -> bool:
        return not known.is_busy and known.changed == changed

    def _tick(self) -> int:
        self._time += 1
        return self._time


def word_of(number: int) -> str:
    """A word that no other number has, and that no stemmer shortens."""
    return "x" + "".join(_LETTERS[int(digit)] for digit in f"{number:09}")
