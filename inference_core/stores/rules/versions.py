"""Earlier states of memories: rows beside a memory's namespace that keep what a write replaces or removes.

One row per memory holds its newest earlier states, each with an end of its own. The batch that replaces a state also
writes it there, whatever operation that is; only history, `why` and undo read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from inference_core.memory.namespaces import (
    HOLDS,
    USAGE,
    VERSIONS,
    Namespace,
    holds_memories,
    is_sidecar,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.text import encode_json, mapping_field, moment_field, text_field
from inference_core.stores.backend import Expiry, Key, Put, Remove, Row, Write

MOST_VERSIONS: Final = 50
"""How many are kept of one memory: more than a person reads, and few enough that the row stays small."""
_MOST_CHARACTERS: Final = 200_000
"""The most that the row holds, as each change of the memory rewrites it."""
_ENTRIES: Final = "versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What stood in a row before a write; ``place`` is "" for the memory itself, else USAGE, FORGOTTEN or PENDING."""

    place: str
    version: int
    value: Mapping[str, Any]
    kind: str
    created_at: datetime
    updated_at: datetime
    expiry: Expiry | None = None

    @classmethod
    def of(cls, row: Row, kind: str = "") -> State:
        """The state that ``row`` shows."""
        return cls(
            place=place_of(row.namespace),
            version=row.version,
            value=row.value,
            kind=kind or text_field(row.value, "memory_type") or "",
            created_at=row.created_at,
            updated_at=row.updated_at,
            expiry=row.expiry,
        )


def place_of(namespace: Namespace) -> str:
    """Which row of a memory ``namespace`` holds: "" the memory itself, else USAGE, FORGOTTEN or PENDING."""
    return "" if holds_memories(namespace) else namespace[1]


def is_versioned(namespace: Namespace) -> bool:
    """Whether earlier states of the rows in ``namespace`` are kept."""
    return is_audited(namespace) and namespace[1] != HOLDS


def is_audited(namespace: Namespace) -> bool:
    """Whether changes of the rows in ``namespace`` leave events."""
    if namespace[1:] == (HOLDS,):
        return True
    return holds_memories(namespace) or (is_sidecar(namespace) and namespace[1] != VERSIONS)


def home_of(namespace: Namespace) -> Namespace:
    """The namespace of the memory that a row in the versioned ``namespace`` belongs to."""
    return namespace if holds_memories(namespace) else memory_namespace(namespace)


def versions_key(key: Key) -> Key:
    """The key of the earlier states of a memory; ``key`` is that of the memory itself or of a row beside it."""
    return sidecar_namespace(home_of(key[0]), VERSIONS), key[1]


def states_in(row: Row | None, now: datetime) -> list[State]:
    """The earlier states in ``row``, from a `versions_key`, that have not ended by ``now``, the oldest first."""
    if row is None:
        return []
    states: list[State] = []
    for entry in _entries(row, now):
        expiry = cast("Sequence[Any] | None", entry.get("expiry"))
        states.append(
            State(
                place=text_field(entry, "place") or "",
                version=cast("int", entry.get("version") or 0),
                value=mapping_field(entry, "value"),
                kind=text_field(entry, "kind") or "",
                created_at=moment_field(entry, "created_at") or row.created_at,
                updated_at=moment_field(entry, "updated_at") or row.updated_at,
                expiry=None
                if expiry is None
                else Expiry(datetime.fromisoformat(expiry[0]), timedelta(seconds=expiry[1])),
            )
        )
    return states


def last_end(row: Row) -> datetime | None:
    """When the last state in the row of versions ends; None for any other row."""
    stored = cast("Sequence[Mapping[str, Any]]", row.value.get(_ENTRIES) or ())
    return max(filter(None, (moment_field(entry, "until") for entry in stored)), default=None)


def versions_touched(batch: Sequence[Write], until: datetime | None) -> list[Key]:
    """The rows that `versions_writes` reads or writes, for a ``batch`` whose earlier states are kept ``until``."""
    changing = [write for write in batch if isinstance(write, (Put, Remove)) and is_versioned(write.namespace)]
    if until is None:
        lost = [removal for removal in changing if isinstance(removal, Remove) and place_of(removal.namespace) != USAGE]
    else:
        lost = [one for one in changing if isinstance(one, Remove) or not (one.is_new or one.expected == 0)]
    return list(dict.fromkeys(versions_key((one.namespace, one.key)) for one in lost))


def versions_writes(
    batch: Sequence[Write], before: Mapping[Key, Row], now: datetime, until: datetime | None
) -> list[Write]:
    """The writes that keep, until ``until``, what ``batch`` replaces of the rows ``before`` it.

    ``before`` also holds the rows at `versions_key`. Without ``until`` nothing is kept, and the earlier states of
    memories that ``batch`` removes are removed.
    """
    lost: dict[Key, list[Row]] = {}
    for key in dict.fromkeys((write.namespace, write.key) for write in batch if isinstance(write, Put | Remove)):
        row = before.get(key) if is_versioned(key[0]) else None
        if row is not None:
            lost.setdefault(versions_key(key), []).append(row)
    if until is None:
        gone = {(write.namespace, write.key) for write in batch if isinstance(write, Remove)}
        homes = dict.fromkeys(versions_key(key) for key in gone if is_versioned(key[0]) and place_of(key[0]) != USAGE)
        return [Remove(namespace=namespace, key=key) for namespace, key in homes]
    return [_put(key, before.get(key), rows, now, until) for key, rows in lost.items()]


def _put(key: Key, known: Row | None, rows: Iterable[Row], now: datetime, until: datetime) -> Put:
    fresh: list[Mapping[str, Any]] = []
    for state in map(State.of, rows):
        expiry = state.expiry and [state.expiry.at.isoformat(), state.expiry.ttl.total_seconds()]
        fresh.append(
            {
                "value": state.value,
                "version": state.version,
                "created_at": state.created_at.isoformat(),
                "updated_at": state.updated_at.isoformat(),
                "until": until.isoformat(),
                **({"place": state.place} if state.place else {}),
                **({"kind": state.kind} if state.kind else {}),
                **({"expiry": expiry} if expiry else {}),
            }
        )
    kept: list[Mapping[str, Any]] = []
    left = _MOST_CHARACTERS
    for entry in reversed([*_entries(known, now), *fresh][-MOST_VERSIONS:]):
        left -= len(encode_json(dict(entry), what="memory"))
        if left < 0:
            break
        kept.insert(0, entry)
    end = max([until, *(one for entry in kept if (one := moment_field(entry, "until")))])
    return Put(
        namespace=key[0],
        key=key[1],
        value=encode_json({_ENTRIES: kept}, what="memory"),
        updated_at=now,
        expected=known.version if known else 0,
        expiry=Expiry(end, max(end - now, timedelta.resolution)),
    )


def _entries(row: Row | None, now: datetime) -> list[Mapping[str, Any]]:
    stored = cast("Sequence[Mapping[str, Any]]", row.value.get(_ENTRIES) or ()) if row else ()
    return [entry for entry in stored if (until := moment_field(entry, "until")) and until > now]
