"""Retention: what is older than a policy allows is removed permanently, by type, category and kind of row.

Unlike forgetting, it considers age alone: pinned memories are removed too, and nothing can be restored. A dry run
reports exactly what a run at the same time removes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from inference_core.errors import InvalidId, InvalidInput
from inference_core.lifecycle.forgetting import Rounds, portions, usages_beside
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import (
    FORGOTTEN,
    VERSIONS,
    Namespace,
    Owner,
    encode_label,
    holds_memories,
    is_sidecar,
    owner_in,
)
from inference_core.memory.secrets import quoted
from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPES
from inference_core.services.operations.receipts import RECEIPTS
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of, retried
from inference_core.stores.backend import Remove, Row
from inference_core.stores.maintenance import Usage

Basis = Literal["created", "last_used", "valid_to"]
BASES: Final = ("created", "last_used", "valid_to")
EVERY_TYPE: Final = "all"
BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "archive": (FORGOTTEN,),
    "versions": (VERSIONS,),
    "receipts": (RECEIPTS,),
    "conversations": ("short_term", "messages", "vector_store"),
}
"""Kinds of rows beside memories, with the second labels of their namespaces. Their age counts from the last write."""
_KINDS: Final = (EVERY_TYPE, *MEMORY_CATEGORIES, *MEMORY_TYPES, *BESIDE)
_MOST_DAYS: Final = 36_500.0
_PORTION: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """For how many ``days`` rows are kept: by memory type, category, ``"all"`` memories, or kind of row.

    A type takes precedence over its category, and that over ``"all"``. Kinds of rows are ``archive``, ``versions``,
    ``receipts`` and ``conversations``. What is not named stays. A memory's age counts from when it was stored; with the
    ``basis`` ``last_used``, from its last change or recall; with ``valid_to``, from when it ceased to be true, and
    memories that still hold stay. Raises InvalidInput.
    """

    days: Mapping[str, float] = field(default_factory=dict[str, float])
    basis: Basis = "created"

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise InvalidInput(f"basis is one of {', '.join(BASES)}, not {quoted(self.basis)}")
        for kind, days in self.days.items():
            if kind not in _KINDS:
                raise InvalidInput(f"Retention: {quoted(kind)} is not one of {', '.join(_KINDS)}")
            if isinstance(days, bool) or not isinstance(days, int | float) or not 0 <= days <= _MOST_DAYS:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
                raise InvalidInput(f"days of {kind} are from 0 to {_MOST_DAYS:g}, not {quoted(days)}")

    @classmethod
    def parse(cls, text: str, basis: Basis = "created") -> RetentionPolicy:
        """The policy that ``text`` names, such as ``interaction=365,archive=30``. Raises InvalidInput."""
        days: dict[str, float] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            kind, _, number = part.partition("=")
            try:
                days[kind.strip()] = float(number)
            except ValueError:
                raise InvalidInput(
                    f"Retention: {quoted(part)} does not say how many days; write interaction=365,archive=30"
                ) from None
        return cls(days=days, basis=basis)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A row past its retention period: its kind and key, from when its age counts, and for how many days it is kept."""

    kind: str
    namespace: Namespace
    key: str
    since: datetime
    days: float
    version: int = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON data, without anything of the row's text."""
        return {"kind": self.kind, "key": self.key, "since": self.since.isoformat(), "days": self.days}


async def retain(
    scope: MemoryScope, user_id: UserId, policy: RetentionPolicy, *, dry_run: bool = False
) -> list[Overdue]:
    """Removes the user's rows of all agents that are older than ``policy`` allows; returns them, the oldest first.

    ``dry_run`` only returns them. What changes meanwhile stays for the next run. A memory is removed with its recall
    counts, its earlier versions and what the archive keeps of it. What a legal hold keeps stays. Raises InvalidInput,
    StoreError.
    """
    engine, now = scope.engine, scope.clock.now()
    names = await engine.namespaces((encode_label(user_id),))
    found, rows = list[Overdue](), list[Row]()
    memories = [name for name in names if holds_memories(name)]
    if policy.days.keys() - BESIDE.keys():
        reads_usage = policy.basis == "last_used"
        usages: Mapping[Any, Usage] = await usages_beside(engine, memories) if reads_usage else {}
        for row in await engine.scan(memories, accepts=is_known):
            rows.append(row)
            found += _overdue_memory(row, usages.get((row.namespace, row.key)), policy, now)
    for kind, labels in BESIDE.items():
        if (days := policy.days.get(kind)) is None:
            continue
        # Archive and versions lie beside memories' namespaces; others of that name hold an application's own items.
        own = [name for name in names if name[1:2] and name[1] in labels]
        namespaces = [name for name in own if is_sidecar(name) or kind not in ("archive", "versions")]
        for row in await engine.scan(namespaces):
            rows.append(row)
            if row.updated_at + timedelta(days=days) <= now:
                found.append(Overdue(kind, row.namespace, row.key, row.updated_at, days, row.version))
    held = await engine.held(rows)
    found = [overdue for overdue in found if (overdue.namespace, overdue.key) not in held]
    found.sort(key=lambda overdue: (overdue.since, overdue.namespace, overdue.key))
    if dry_run:
        return found
    removed: list[Overdue] = []
    for portion in portions(found, _PORTION):
        removed += await retried(partial(_remove, scope, portion, removed))
    return removed


async def _remove(scope: MemoryScope, portion: Sequence[Overdue], before: Sequence[Overdue]) -> list[Overdue]:
    """Removes the rows that have not changed; returns them, with those that the removal of a memory took along.

    That memory may be in this portion or in ``before``. Raises VersionConflict if one of them changes meanwhile.
    """
    there = await scope.engine.get([(overdue.namespace, overdue.key) for overdue in portion])
    same = [overdue for overdue, row in zip(portion, there, strict=True) if row and row.version == overdue.version]
    if same:
        beside = tuple((overdue.kind, overdue.key) for overdue in same if overdue.kind in BESIDE)
        cause = Cause(at=scope.clock.now(), operation="retention", actor=scope.actor, removed=beside)
        # A row that is written after the check above may no longer be overdue: then the removal fails.
        gone = [Remove(namespace=overdue.namespace, key=overdue.key, expected=overdue.version) for overdue in same]
        await scope.engine.write(gone, cause)
    # What lies beside a memory has gone with it.
    keys = {overdue.key for overdue in (*before, *same) if holds_memories(overdue.namespace)}
    return [
        *same,
        *(overdue for overdue, row in zip(portion, there, strict=True) if row is None and overdue.key in keys),
    ]


async def owners_with_rows(scope: MemoryScope) -> list[Owner]:
    """The users and spaces with anything that a policy may name, also those with only receipts or conversations."""
    kinds = {*MEMORY_CATEGORIES, *(label for labels in BESIDE.values() for label in labels)}
    names = await scope.engine.namespaces()
    owners: list[Owner] = []
    for label in dict.fromkeys(name[0] for name in names if name[1:2] and name[1] in kinds):
        with suppress(InvalidId):  # an application's own namespace may look like one of ours
            owners.append(owner_in((label,)))
    return owners


class RetentionRounds(Rounds[Owner]):
    """Applies ``policy`` to all of the store of ``scope``, at once and then every ``hours``; never if it names nothing.

    Each removal writes an audit event in the same transaction: which memories, or how many rows of each other kind.
    """

    def __init__(self, scope: MemoryScope, policy: RetentionPolicy, hours: float = 24.0) -> None:
        async def apply(owner: Owner) -> int:
            return len(await retain(scope, owner, policy))

        super().__init__(lambda: owners_with_rows(scope), apply, hours if policy.days else None)


def _overdue_memory(row: Row, usage: Usage | None, policy: RetentionPolicy, now: datetime) -> list[Overdue]:
    record = record_of(row)
    kinds = (record.memory_type.value, record.category.value, EVERY_TYPE)
    kind = next((one for one in kinds if one in policy.days), None)
    since: datetime | None = record.created_at
    if policy.basis == "last_used":
        since = max(record.updated_at, usage.last) if usage and usage.last else record.updated_at
    elif policy.basis == "valid_to":
        since = min(filter(None, (record.valid_to, record.expires_at)), default=None)
    if kind is None or since is None or since + timedelta(days=policy.days[kind]) > now:
        return []
    return [Overdue(kind, row.namespace, row.key, since, policy.days[kind], row.version)]
