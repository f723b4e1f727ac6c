"""Rules: what every write to a database has to meet, whoever makes it.

A rule (`WriteRule`) is checked in the transaction of the writes that it is about. There it compares what it has read
before the transaction. If that is outdated, the batch is refused, the rule reads again, and the batch is sent again;
only `Rules.apply` does so. To add a rule for all writers, add the rules that it makes of a batch to `Rules.apply`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from inference_core.errors import StoreError, StoreUnavailable, VersionConflict
from inference_core.memory.quota import Quota, Quotas
from inference_core.stores.backend import (
    Backend,
    Batch,
    Key,
    Outcome,
    States,
    Unreadable,
    Write,
    WriteRule,
    answered,
)
from inference_core.stores.rules.holds import NOBODYS, Holds
from inference_core.stores.rules.quotas import QuotaCounts

_TRIES: Final = 16


class Rules:
    """The rules of ``backend``, which all writers of this process share: see `rules_of`. Methods block."""

    def __init__(self, backend: Backend) -> None:
        self._backend = weakref.proxy(backend)
        self.holds = Holds(self._backend)
        self.counts = QuotaCounts(self._backend)

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Like `Backend.apply`, with the rules of each batch.

        A batch is refused with Held, QuotaExceeded, or what a rule in it raises.
        """
        outcomes: dict[int, Outcome] = {}
        ruled: dict[int, Batch] = {
            at: [*batch, *self.holds.rules(batch), *self.counts.rules(batch)] for at, batch in enumerate(batches)
        }
        waiting = list(ruled)
        for _ in range(_TRIES):
            try:
                found = self._backend.apply([ruled[at] for at in waiting])
            except StoreError as error:  # of these batches alone: others may be stored by now
                found = [error] * len(waiting)
            outcomes |= zip(waiting, found, strict=True)
            waiting = [at for at in waiting if _is_renewed(ruled[at], outcomes, at)]
            if not waiting:
                break
        for at, batch in ruled.items():
            if isinstance(outcomes[at], list | StoreUnavailable):
                for rule in rules_in(batch):
                    rule.landed(is_sure=isinstance(outcomes[at], list))
        ends = answered([outcomes[at] for at in range(len(batches))])
        return [end[: len(batch)] if isinstance(end, list) else end for batch, end in zip(batches, ends, strict=True)]

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        """Like `Backend.discard`. Raises Held if a user of these rows has a hold, which may keep an unreadable row."""
        for root in {
            damaged.root for damaged in unreadable if damaged.root is not None and damaged.root not in NOBODYS
        }:
            self.holds.check(root)
        return self._backend.discard(unreadable)


class UnusedRule(WriteRule):
    """Refuses a batch with VersionConflict if there is a row at one of ``keys``, or one was removed there."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.reads = keys

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """Nothing. Raises VersionConflict."""
        del after, now
        if not before.keys().isdisjoint(self.reads):
            raise VersionConflict("There is a memory of these words, or there was one")
        return ()


class UnchangedRule(WriteRule):
    """Refuses a batch with VersionConflict unless each row is at its version in ``versions``; 0: it is not there."""

    def __init__(self, versions: Mapping[Key, int]) -> None:
        self._versions = versions
        self.reads = list(versions)

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """Nothing. Raises VersionConflict."""
        del after
        for place, expected in self._versions.items():
            state = before.get(place)
            version = state.version if state and state.is_alive(now) else 0
            if version != expected:
                raise VersionConflict(f"{place[1]!r} is at version {version}, not {expected}")
        return ()


def rules_in(batch: Batch) -> list[WriteRule]:
    """The rules of ``batch``."""
    return [one for one in batch if isinstance(one, WriteRule)]


def _is_renewed(batch: Batch, outcomes: dict[int, Outcome], at: int) -> bool:
    """Whether a rule of the refused ``batch`` has read something new, so that the batch is sent again.

    If the rule cannot read, its error becomes the batch's outcome.
    """
    error = outcomes[at]
    try:
        return isinstance(error, Exception) and any(rule.renew(error) for rule in rules_in(batch))
    except StoreError as newer:
        outcomes[at] = newer
        return False


_RULES: Final[weakref.WeakKeyDictionary[Backend, Rules]] = weakref.WeakKeyDictionary()
_MAKING: Final = threading.Lock()


def rules_of(backend: Backend, quotas: Quotas | Quota | None = None) -> Rules:
    """The only `Rules` of this process for ``backend``. From now on they enforce ``quotas``, if given."""
    with _MAKING:
        found = _RULES.get(backend)
        if found is None:
            found = _RULES[backend] = Rules(backend)
    if quotas is not None:
        found.counts.quotas = quotas if isinstance(quotas, Quotas) else Quotas(quotas)
    return found
