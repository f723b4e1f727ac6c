"""Partition: whose messages wait together in an outbox, and where."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_core.memory.namespaces import QUEUE_ROOT, Namespace, encode_label
from inference_core.memory.text import encode_json

OUTBOX: Final = "outbox"
"""Second label of the namespaces, below the user, that hold waiting messages."""
DEAD: Final = "outbox_dead"
"""Second label of the namespaces, below the user, that hold messages which could not be dealt with."""
SHARDS: Final = 16
"""The list of those that have messages lies in that many namespaces."""
_NO_AGENT: Final = "~shared"
_STATE: Final = "state"


@dataclass(frozen=True, slots=True)
class Partition:
    """The messages of a user with an agent: worked on one batch after the other, in their order."""

    user_id: str
    agent_name: str | None = None
    agent_scope_enabled: bool = True

    @property
    def messages(self) -> Namespace:
        """Where its waiting messages are."""
        return (encode_label(self.user_id), OUTBOX, self._agent)

    @property
    def state(self) -> Namespace:
        """Where its lease and its result are."""
        return (*self.messages, _STATE)

    @property
    def dead(self) -> Namespace:
        """Where messages are that could not be dealt with."""
        return (encode_label(self.user_id), DEAD, self._agent)

    @property
    def place(self) -> tuple[Namespace, str]:
        """The row that says that it has messages."""
        key = digest([self.user_id, self.agent_name, self.agent_scope_enabled])
        return (QUEUE_ROOT, f"{int(key[:8], 16) % SHARDS:02d}"), key

    @property
    def _agent(self) -> str:
        return encode_label(self.agent_name, what="agent_name") if self.agent_name else _NO_AGENT

    def to_value(self) -> dict[str, Any]:
        """Itself as JSON data."""
        return {"user": self.user_id, "agent": self.agent_name, "scoped": self.agent_scope_enabled}

    def to_json(self) -> str:
        """Itself as JSON."""
        return to_json(self.to_value())

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Partition:
        """The partition that `to_value` gave."""
        return cls(value["user"], value["agent"], value["scoped"])


def digest(what: Sequence[Any]) -> str:
    """The same for the same data, and for no other."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def to_json(value: Mapping[str, Any]) -> str:
    """``value`` as what a row of an outbox holds."""
    return encode_json(value, what="outbox")
