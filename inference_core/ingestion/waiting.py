"""Messages as the rows of an outbox hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inference_core.ingestion.messages import Message, Role, mended, session_name
from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import encode_json
from inference_core.stores.backend import Put, Row


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the outbox; ``zone`` names the time zone in which it was said, as far as known."""

    key: str
    version: int
    message: Message
    zone: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Itself as JSON data."""
        return {**message_to_json(self.message), **({"zone": self.zone} if self.zone else {})}

    @classmethod
    def of(cls, row: Row) -> Waiting:
        """The message that a row of the outbox holds."""
        return cls(row.key, row.version, message_from_json(row.value), row.value.get("zone"))

    def put(self, namespace: Namespace, at: datetime, expected: int | None = None) -> Put:
        """The write that puts it into the outbox."""
        value = encode_json(self.to_json(), what="outbox")
        return Put(namespace=namespace, key=self.key, value=value, created_at=at, updated_at=at, expected=expected)


def message_to_json(message: Message) -> dict[str, Any]:
    """``message`` as JSON data."""
    return {
        "session": session_name(message.session_id),
        "role": message.role.value,
        "text": mended(message.text),
        "id": message.id and mended(message.id),
        "position": message.position,
        "author": message.author and mended(message.author),
        "at": message.at and message.at.isoformat(),
    }


def message_from_json(value: Mapping[str, Any]) -> Message:
    """The message that a row of the outbox holds."""
    return Message(
        session_id=value["session"],
        role=Role(value["role"]),
        text=value["text"],
        id=value["id"],
        position=value["position"],
        author=value["author"],
        at=datetime.fromisoformat(value["at"]) if value["at"] else None,
    )
