"""Stores the windows of sessions: a row for each message, and one that lists the messages in the window.

The list is replaced as a whole and alone decides, so that no reader sees a session half changed, on any store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import AnyMessage, message_to_dict, messages_from_dict

from inference_core.effects import Operation
from inference_core.errors import InvalidMemory
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.text import canonical_json, encode_json
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term.blocks.memory import Conversation
from inference_core.stores.backend import MAX_VALUE_BYTES, Delete, Put, Row, Write

SESSIONS: Final = "short_term"
"""The second label, below the user, of the namespaces of sessions."""
_WINDOW: Final = "window"
_SYSTEM: Final = "system"
_PREFIX: Final = "m-"


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """The messages of a session, the oldest first, with their keys and the list's version (0: no list)."""

    messages: list[AnyMessage]
    keys: list[str]
    version: int


def namespace_of(conversation: Conversation) -> Namespace:
    """The namespace of this session."""
    return (encode_label(conversation.user_id), SESSIONS, encode_label(conversation.session_id, what="session_id"))


def read(scope: MemoryScope, conversation: Conversation) -> Operation[StoredWindow]:
    """The session's window. Raises StoreError."""
    namespace = namespace_of(conversation)
    while True:
        (listed,) = yield from scope.engine.get([(namespace, _WINDOW)])
        if listed is None:
            return StoredWindow([], [], 0)
        keys = [str(key) for key in listed.value.get("messages", [])]
        rows = yield from scope.engine.get([(namespace, key) for key in keys])
        there = [row for row in rows if row is not None]
        if len(there) == len(keys):
            return StoredWindow([_message(row) for row in there], keys, listed.version)
        # Rows are missing: either the list has changed since it was read, or they are lost and the rest counts.
        (again,) = yield from scope.engine.get([(namespace, _WINDOW)])
        if again is not None and again.version == listed.version:
            return StoredWindow([_message(row) for row in there], [row.key for row in there], listed.version)


def replace(
    scope: MemoryScope, conversation: Conversation, old: StoredWindow, messages: Sequence[AnyMessage]
) -> Operation[StoredWindow]:
    """Replaces the session's window by ``messages``, which have ids, durably, if it is still ``old``.

    Raises VersionConflict if the session has changed meanwhile, InvalidMemory for a message that is too large,
    StoreError.
    """
    namespace = namespace_of(conversation)
    before = dict(zip(old.keys, old.messages, strict=True))
    after = {key_of(message): message for message in messages}
    now = scope.clock.now()
    changed = {key: message for key, message in after.items() if before.get(key) is not message}
    puts = [Put(namespace=namespace, key=key, value=_value(one), updated_at=now) for key, one in changed.items()]
    listing = encode_json({"messages": list(after)}, what="window")
    writes: list[Write] = [
        *puts,
        Put(namespace=namespace, key=_WINDOW, value=listing, updated_at=now, expected=old.version),
        *(Delete(namespace=namespace, key=key) for key in before if key not in after),
    ]
    versions = yield from scope.engine.write(writes)
    return StoredWindow(list(after.values()), list(after), versions[len(puts)])


def read_system(scope: MemoryScope, conversation: Conversation) -> Operation[AnyMessage | None]:
    """The session's system message. Raises StoreError."""
    (row,) = yield from scope.engine.get([(namespace_of(conversation), _SYSTEM)])
    return None if row is None else _message(row)


def write_system(scope: MemoryScope, conversation: Conversation, message: AnyMessage) -> Operation[None]:
    """Replaces the session's system message, durably. Raises InvalidMemory, StoreError."""
    namespace = namespace_of(conversation)
    put = Put(namespace=namespace, key=_SYSTEM, value=_value(message), updated_at=scope.clock.now())
    yield from scope.engine.write([put])


def remove(scope: MemoryScope, conversation: Conversation) -> Operation[None]:
    """Removes everything stored for the session. Raises StoreError."""
    namespace = namespace_of(conversation)
    while rows := (yield from scope.engine.page([namespace], limit=500)):
        yield from scope.engine.write([Delete(namespace=namespace, key=row.key) for row in rows])


def key_of(message: AnyMessage) -> str:
    """The key of the message's row."""
    return _PREFIX + hashlib.sha256(str(message.id).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _value(message: AnyMessage) -> str:
    """``message`` as JSON; without the artifact of a tool if that is no JSON data."""
    try:
        return canonical_json(message_to_dict(message), what="message", max_bytes=MAX_VALUE_BYTES)
    except InvalidMemory:
        if getattr(message, "artifact", None) is None:
            raise
        return _value(message.model_copy(update={"artifact": None}))


def _message(row: Row) -> AnyMessage:
    value: dict[str, Any] = row.value
    message: Any = messages_from_dict([value])[0]
    return message
