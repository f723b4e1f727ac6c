"""Forgetting at intervals, for all users of a store."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Final

from inference_core.drivers import Plan, run
from inference_core.errors import InferenceCoreError, InvalidId
from inference_core.lifecycle.forgetting import forget
from inference_core.lifecycle.policy import ForgettingPolicy
from inference_core.memory.namespaces import decode_label, holds_forgotten, holds_memories
from inference_core.services.operations.scope import MemoryScope

_LOG = logging.getLogger(__name__)
_HOUR_S: Final = 3_600.0


class ForgettingRounds:
    """Applies ``policy`` to each user of the store of ``scope``, at once and then every ``hours``; None: never.

    Several processes may do so at the same time.
    """

    def __init__(self, scope: MemoryScope, policy: ForgettingPolicy, hours: float | None) -> None:
        self._scope = scope
        self._policy = policy
        self._every_s = (hours or 0.0) * _HOUR_S
        self._due = 0.0 if hours else float("inf")

    def run_if_due(self) -> int:
        """How many memories were forgotten; 0 if it is not time yet. A user whose run fails waits for the next one."""
        if time.monotonic() < self._due:
            return 0
        self._due = time.monotonic() + self._every_s
        forgotten = 0
        try:
            users = run(users_of(self._scope))
        except InferenceCoreError as error:
            _LOG.warning("Nothing is forgotten this time: %s", error)
            return 0
        for user_id in users:
            try:
                forgotten += len(run(forget(self._scope, user_id, self._policy)).forgotten)
            except InferenceCoreError as error:
                _LOG.warning("Nothing of a user is forgotten this time: %s", error)
        return forgotten


def users_of(scope: MemoryScope) -> Plan[list[str]]:
    """Plan: the users who have memories in the store, or forgotten ones."""
    names = yield from scope.engine.namespaces()
    users: list[str] = []
    for label in dict.fromkeys(name[0] for name in names if holds_memories(name) or holds_forgotten(name)):
        with suppress(InvalidId):  # an application's own namespace may look like one of ours
            users.append(decode_label(label))
    return users
