"""Messages as the rows of an outbox hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inference_core.ingestion.messages import Message, Role, mended, session_name
from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import encode_json
from inference_core.stores.backend import Put


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the outbox."""

    key: str
    version: int
    message: Message


def message_put(namespace: Namespace, key: str, message: Message, at: datetime) -> Put:
    """The write that puts ``message`` into the outbox."""
    return Put(
        namespace=namespace,
        key=key,
        value=encode_json(message_to_json(message), what="outbox"),
        created_at=at,
        updated_at=at,
    )


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
