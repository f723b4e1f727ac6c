"""Jobs and their portions as rows of the store.

A job's row lies under a hash of its user. Its input and output are stored in portions beside its user's memories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from inference_core.clock import Clock
from inference_core.effects import Operation
from inference_core.errors import InvalidInput, UserErased, VersionConflict
from inference_core.memory.namespaces import PORTIONS, Namespace, encode_label
from inference_core.memory.text import encode_json
from inference_core.stores.backend import Check, Expiry, Put, Row
from inference_core.stores.engine import StoreEngine

Kind = Literal["export", "forget", "save", "erase"]
LIFE: Final = timedelta(days=1)
"""A job is kept for this long after its last change."""
_LIFE_OF_PORTIONS: Final = 2 * LIFE
"""A job's input and output are kept for this long: longer than `LIFE`, as they are older than its last change."""
QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
_BESIDE: Final = ("id", "place", "version", "created_at", "updated_at", "is_stopped")


class Stopped(Exception):
    """Ends a job's work, since its server ends or another one has taken the job over."""


@dataclass(slots=True, kw_only=True)
class StoredJob:
    """A job, as its row stores it. ``user`` None: it is an erasure, which must not leave a name behind.

    ``is_given_up``: its server has shut down in good order, so another one need not wait for `ABANDONED` to take over.
    ``actor`` asked for the job, and ``server`` runs it. ``is_stopped`` asks its thread to end; it is not stored.
    """

    id: str
    place: Namespace
    kind: Kind
    user: str | None
    arguments: dict[str, Any]
    digest: str
    created_at: datetime
    updated_at: datetime
    state: str = QUEUED
    done: int = 0
    total: int | None = None
    portions: int = 0
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    version: int = 0
    actor: dict[str, str] | None = None
    server: str = ""
    is_given_up: bool = False
    is_stopped: bool = False

    @classmethod
    def of(cls, row: Row) -> StoredJob:
        """The job in ``row``; fields that a later version of this package has added are left out."""
        known = {field.name for field in fields(cls)}.difference(_BESIDE)
        value = {name: what for name, what in row.value.items() if name in known}
        when = {"created_at": row.created_at, "updated_at": row.updated_at}
        return cls(id=row.key, place=row.namespace, version=row.version, **when, **value)

    def to_value(self) -> dict[str, Any]:
        """The value of its row."""
        return {name: value for name, value in asdict(self).items() if name not in _BESIDE}

    @property
    def is_over(self) -> bool:
        """Whether it is done or has failed."""
        return self.state in (DONE, FAILED)

    def advance(self, done: int, total: int | None) -> None:
        """Notes the progress, called from the job's thread. Raises Stopped once the job is to stop."""
        self.done, self.total = done, total
        if self.is_stopped:
            raise Stopped


class Portions:
    """The portions of jobs in the store of ``engine``."""

    def __init__(self, engine: StoreEngine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock

    def take_in(self, user: str, job: StoredJob, number: int, portion: Sequence[object]) -> Operation[None]:
        """Stores a portion of the job's input, also where an interrupted attempt of the same request has stored it.

        Raises VersionConflict if another request has stored it, or the job is under way.
        """
        value = {"given": portion, "request": job.digest}
        (known,) = yield from self._engine.get([(_portions(user, job.id), str(number))])
        if known and known.value.get("request") != job.digest:
            raise VersionConflict("Another request has been given this key")
        yield from self.put(user, job.id, number, value, expected=known.version if known else 0)

    def put(
        self,
        user: str,
        job_id: str,
        number: int,
        value: dict[str, Any],
        fence: Sequence[Check] = (),
        *,
        expected: int | None = None,
    ) -> Operation[list[int]]:
        """Stores a portion together with the checks ``fence``; of version ``expected``, if given."""
        now = self._clock.now()
        put = Put(
            namespace=_portions(user, job_id),
            key=str(number),
            value=encode_json(value, what="portion of a job"),
            updated_at=now,
            expected=expected,
            expiry=Expiry(now + _LIFE_OF_PORTIONS, _LIFE_OF_PORTIONS),
        )
        return self._engine.write([put, *fence])

    def fence(self, user: str, job: StoredJob) -> Operation[list[Check]]:
        """The checks that refuse what a portion writes if the user is erased after this, before it reads anything.

        Raises UserErased if that has happened already: an erasure removes the row of the job.
        """
        checks = yield from self._engine.fenced([encode_label(user)])
        (row,) = yield from self._engine.get([(job.place, job.id)])
        if row is None:
            raise UserErased
        return checks

    def count(self, user: str, job_id: str) -> Operation[int]:
        """How many portions of a job there are."""
        return self._engine.count([_portions(user, job_id)])

    def get(self, user: str, job_id: str, number: int) -> Operation[dict[str, Any]]:
        """A portion of a job. Raises InvalidInput if it is gone, or else the rest would pass for the whole."""
        (row,) = yield from self._engine.get([(_portions(user, job_id), str(number))])
        if row is None:
            raise InvalidInput("The input or output of this job is no longer kept; start a new one")
        return row.value


def _portions(user: str, job_id: str) -> Namespace:
    return (encode_label(user), PORTIONS, job_id)
