"""Writes that share a transaction: whatever fails after one of them was stored, that one is reported as stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from databases import database

from inference_core.errors import QuotaExceeded, StoreError, StoreUnavailable, WriteUnknown
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import AUDIT, HOLDS, SALT
from inference_core.memory.quota import Quota
from inference_core.stores.backend import Backend, Outcome, Put, Remove, Write
from inference_core.stores.factory import open_backend
from inference_core.stores.rules.audit_log import AuditLog
from inference_core.stores.rules.holds import marker_of
from inference_core.stores.rules.write_rules import rules_of

NOW = datetime(2026, 1, 15, tzinfo=UTC)
CAUSE = Cause(at=NOW, operation="save")
CALLS = ("get", "page", "inspect", "tally", "namespaces", "apply")


class Faulty:
    """Passes all calls on to ``backend``; the one with the number ``fails_at``, from `arm` on, raises.

    An ``apply`` has been done by then if ``is_late``, as if its answer was lost.
    """

    def __init__(self, backend: Backend, *, is_late: bool) -> None:
        self.backend, self.is_late = backend, is_late
        self.calls, self.fails_at, self.has_failed = 0, -1, False

    def arm(self, at: int) -> None:
        self.calls, self.fails_at, self.has_failed = 0, at, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        return self._guarded(name, found) if name in CALLS else found

    def _guarded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls - 1 != self.fails_at:
                return method(*given, **named)
            self.has_failed = True
            if name == "apply" and self.is_late:
                method(*given, **named)
                raise WriteUnknown("the answer was lost")
            raise StoreUnavailable("the database is away")

        return call


def memory(user: str, key: str, text: str = "likes tea") -> Put:
    value = f'{{"content": "{text}", "memory_type": "facts"}}'
    return Put(namespace=(user, "semantic"), key=key, value=value, updated_at=NOW)


def plain(backend: Any, turn: int) -> tuple[Any, list[list[Write]]]:
    """With a quota: Ada has room, Bob has none left, Kim was never counted. A hold on Dan has begun elsewhere."""
    stack: Any = rules_of(backend, Quota(max_memories=3))
    for user, memories in (("ada", 1), ("bob", 3), ("dan", 1)):
        stack.apply([[memory(f"{user}{turn}", f"old{at}")] for at in range(memories)])
    stack.holds.holds_of(f"dan{turn}")
    backend.backend.apply([[memory(f"kim{turn}", "old0")]])
    place, key = marker_of(f"dan{turn}")
    hold = Put(namespace=(f"dan{turn}", HOLDS), key="h", value='{"by": "b", "reason": "r"}', updated_at=NOW)
    rules_of(backend.backend).apply([[hold, Put(namespace=place, key=key, value="{}", updated_at=NOW, expected=0)]])
    return stack, [
        [memory(f"ada{turn}", "new")],
        [memory(f"bob{turn}", "new")],
        [memory(f"kim{turn}", "new")],
        [Remove(namespace=(f"dan{turn}", "semantic"), key="old0")],
        [memory(f"ada{turn}", "newer")],
    ]


class Journaled:
    """Applies batches through ``journal``."""

    def __init__(self, audit_log: AuditLog) -> None:
        self.audit_log = audit_log

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        return self.audit_log.apply(batches, CAUSE)


def recorded(backend: Any, turn: int) -> tuple[Any, list[list[Write]]]:
    """With an audit trail: the keys of Ada and Kim have ended elsewhere, those of Bob and Eve have not."""
    audit_log = AuditLog(backend, audit=True)
    for user in ("ada", "bob", "kim", "eve"):
        audit_log.apply([[memory(f"{user}{turn}", "old")]], CAUSE)
        audit_log.apply([[memory(f"{user}{turn}", "older")]], CAUSE)  # which reads the version of the key
    for user in ("ada", "kim"):
        backend.backend.apply([[Remove(namespace=(f"{user}{turn}", AUDIT), key=SALT)]])
    return Journaled(audit_log), [[memory(f"{user}{turn}", "new")] for user in ("bob", "ada", "kim", "eve")]


def there(backend: Backend, batch: Sequence[Write]) -> bool:
    """Whether what ``batch`` does was done."""
    (write,) = batch
    (row,) = backend.get([(write.namespace, write.key)])
    return (row is not None) == isinstance(write, Put)


@pytest.mark.parametrize("is_late", [False, True], ids=["away", "answer lost"])
@pytest.mark.parametrize("made", [plain, recorded], ids=["quota and holds", "audit trail"])
@pytest.mark.parametrize("kind", ["memory", *(pytest.param(one, marks=pytest.mark.full) for one in ("sqlite", "file"))])
def test_what_was_stored_is_reported_as_stored_wherever_the_rest_fails(
    kind: str, made: Callable[[Any, int], tuple[Any, list[list[Write]]]], is_late: bool, tmp_path: Path
) -> None:
    """A recount that failed after the first round replaced all outcomes: "nothing was stored" of what was."""
    seen: list[tuple[str, ...]] = []
    with database(kind, tmp_path) as url, closing(open_backend(url)) as inner:
        for turn in count():
            backend = Faulty(inner, is_late=is_late)
            stack, batches = made(backend, turn)
            backend.arm(turn)
            outcomes = outcomes_of(stack, batches)
            for batch, outcome in zip(batches, outcomes, strict=True):
                if not isinstance(outcome, WriteUnknown):
                    assert there(inner, batch) == isinstance(outcome, list), (turn, batch, outcome)
            seen.append(tuple(type(one).__name__ for one in outcomes))
            if not backend.has_failed:
                break
    # Without a fault: whoever may be stored is; and some fault of a recount left some of them stored and failed others.
    assert seen[-1].count("list") == (3 if made is plain else 4)
    if made is plain:
        assert seen[-1][1] == QuotaExceeded.__name__
    # Events need no second round.
    assert any("list" in one and {"StoreUnavailable", "WriteUnknown"} & {*one} for one in seen) == (made is plain)


def outcomes_of(stack: Any, batches: list[list[Write]]) -> list[Outcome]:
    try:
        return stack.apply(batches)
    except StoreError as error:
        return [error] * len(batches)
