"""Messages as rows of an outbox."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inference_core.ingestion.messages import Message, Role, mended, session_name
from inference_core.memory.fields import moment_field
from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import encode_json
from inference_core.stores.backend import Put, Row


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the outbox; ``zone`` names the time zone in which it was said, if known.

    With ``due`` it is periodic work, which waits until then and may be put off meanwhile.
    """

    key: str
    version: int
    message: Message
    zone: str | None = None
    due: datetime | None = None

    @property
    def name(self) -> str:
        """Identifies the work: periodic work that was put off is other work."""
        return f"{self.key}:{self.version}" if self.due else self.key

    def to_json(self) -> dict[str, Any]:
        """Itself as JSON data."""
        message = self.message
        return {
            "session": session_name(message.session_id),
            "role": message.role.value,
            "text": mended(message.text),
            "id": message.id and mended(message.id),
            "position": message.position,
            "author": message.author and mended(message.author),
            "at": message.at and message.at.isoformat(),
            **({"after_tool": True} if message.after_tool else {}),
            **({"zone": self.zone} if self.zone else {}),
            **({"due": self.due.isoformat()} if self.due else {}),
        }

    @classmethod
    def of(cls, row: Row) -> Waiting:
        """The message that a row of the outbox holds."""
        value = row.value
        message = Message(
            session_id=value["session"],
            role=Role(value["role"]),
            text=value["text"],
            id=value["id"],
            position=value["position"],
            author=value["author"],
            at=datetime.fromisoformat(value["at"]) if value["at"] else None,
            after_tool=value.get("after_tool", False),
        )
        return cls(row.key, row.version, message, value.get("zone"), moment_field(value, "due"))

    def put(self, namespace: Namespace, at: datetime, expected: int | None = None) -> Put:
        """The write that puts it into the outbox."""
        value = encode_json(self.to_json(), what="outbox")
        return Put(namespace=namespace, key=self.key, value=value, created_at=at, updated_at=at, expected=expected)
