"""Who changed what in a memory, and why: the cause that every write states, and the audit events made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from inference_core.memory.text import text_field, texts_field
from inference_core.memory.trust import MemorySource, Origin

_UNKNOWN: Final = "write"
_FIELDS: Final = ("id", "agent", "thread_id", "run_id", "tool")
_SORTED: Final = sorted(("kind", *_FIELDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who changes a memory: ``kind`` is "application", "user", "agent", "tool", "document", "web", "worker" or "admin".

    ``id`` names them where there are several, such as an administrator; the rest says in which run it happened.
    """

    kind: str = Origin.APPLICATION.value
    id: str | None = None
    agent: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    tool: str | None = None

    def to_value(self) -> dict[str, str]:
        """The actor as JSON data, without empty fields."""
        return {name: value for name in _SORTED if (value := getattr(self, name))}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Actor:
        """The actor of a `to_value` result."""
        return cls(kind=text_field(value, "kind") or "", **{name: text_field(value, name) for name in _FIELDS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a batch is written: the operation, who asked for it, and when.

    ``keep_until`` is how long the earlier states of what it changes are kept; None: not at all, and the earlier states
    of what it removes are removed too. ``job`` is the work on messages that it belongs to, and ``undone`` the events
    that it reverts. ``is_told``: an event is recorded even if no memory changes. ``removed`` lists the kind and key of
    each removed row that is not a memory; the event states how many of each kind, with a commitment to the keys.
    """

    at: datetime
    operation: str = _UNKNOWN
    actor: Actor = Actor()
    keep_until: datetime | None = None
    reason: str | None = None
    job: str | None = None
    undone: tuple[str, ...] = ()
    is_told: bool = False
    removed: tuple[tuple[str, str], ...] = ()


def actor_of(source: MemorySource, agent: str | None) -> Actor:
    """The actor that the source of a memory names."""
    return Actor(kind=source.origin.value, agent=agent, thread_id=source.thread_id, tool=source.tool)


@dataclass(frozen=True, slots=True)
class Changed:
    """One row that a write has changed: where, from which version to which, and what its value was and is.

    ``place`` holds the labels of its namespace after the user's. ``before`` is 0 if there was no row, and None for a
    row that has expired. ``after`` is 0 if the row is gone, and None for a new row: if its key was used before, its
    version continues from there. The commitments are keyed hashes of the values under the user's key: with the value,
    they prove what was stored; by themselves, they reveal nothing.
    """

    place: tuple[str, ...]
    key: str
    before: int | None
    after: int | None
    commitment_before: str | None
    commitment_after: str | None

    def to_value(self) -> list[Any]:
        """The change as JSON data."""
        return [list(self.place), self.key, self.before, self.after, self.commitment_before, self.commitment_after]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Who changed which memories of a user, and why, without their text.

    ``undone`` holds the ids of the events that an undo reverted.
    """

    id: str
    at: datetime
    operation: str
    actor: Actor
    changes: tuple[Changed, ...]
    reason: str | None = None
    job: str | None = None
    undone: tuple[str, ...] = ()

    def to_value(self) -> dict[str, Any]:
        """The event as JSON data, without empty fields."""
        return event_value(self, [change.to_value() for change in self.changes])

    @classmethod
    def from_value(cls, event_id: str, value: Mapping[str, Any]) -> AuditEvent:
        """The event of a `to_value` result. Raises ValueError for anything else."""
        try:
            return cls(
                id=event_id,
                at=datetime.fromisoformat(value["at"]),
                operation=str(value["operation"]),
                actor=Actor.from_value(value["actor"]),
                changes=tuple(Changed(tuple(place), *rest) for place, *rest in value["changes"]),
                reason=text_field(value, "reason"),
                job=text_field(value, "job"),
                undone=texts_field(value, "undone"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{event_id!r} is no audit event") from error


def event_value(of: Cause | AuditEvent, changes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """An event as JSON data: the fields of ``of``, and ``changes`` in the form of `Changed.to_value`."""
    # Names are sorted, because some stores return them in another order. No loop over fields: every save makes one.
    value: dict[str, Any] = {"actor": of.actor.to_value(), "at": of.at.isoformat(), "changes": changes}
    if of.job:
        value["job"] = of.job
    value["operation"] = of.operation
    if of.reason:
        value["reason"] = of.reason
    if of.undone:
        value["undone"] = list(of.undone)
    return value
