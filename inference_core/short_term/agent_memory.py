"""AgentMemory: keeps the messages of sessions within a limit, and recalls memories for a turn (MemoryContent)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from itertools import chain
from typing import Any, Final, Literal
from uuid import UUID, uuid4

from langchain_core.messages import (
    AnyMessage,
    MessageLikeRepresentation,
    SystemMessage,
    convert_to_openai_messages,
    message_to_dict,
    messages_from_dict,
)

from inference_core.context.render import delimited, render_blocks, render_memories, with_notice
from inference_core.effects import faces
from inference_core.errors import (
    ConfigurationError,
    InferenceCoreError,
    InvalidInput,
    InvalidMemory,
    VersionConflict,
)
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.text import canonical_json, encode_json
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.scope import MemoryScope, retried
from inference_core.short_term.blocks.extractive import ExtractiveMemory
from inference_core.short_term.blocks.memory import (
    Block,
    Owner,
    Owners,
    StoreSource,
    UserSession,
    one_message,
    scope_of,
)
from inference_core.short_term.blocks.static import StaticMemory
from inference_core.short_term.blocks.vector import VectorMemory
from inference_core.short_term.strategies import DEFAULT_MAX_TOKENS, Eviction, Overflow, OverflowPolicy, Summarize
from inference_core.short_term.window import TokenCounter, Window, count_tokens, last_of_user, omissions, view
from inference_core.stores.backend import MAX_VALUE_BYTES, Put, Remove, Row, Write
from inference_core.stores.factory import open_store

MemoryForm = Literal["memory", "coala"]
SessionId = str | UUID
DEFAULT_TIMEOUT_S: Final = 60.0
TIMESTAMP: Final = "timestamp"
"""The key in a message's ``additional_kwargs`` of the time at which it was stored, in ISO 8601."""
SESSIONS: Final = "short_term"
"""The second label, below the user, of the namespaces of sessions."""
_WINDOW: Final = "window"
_SYSTEM: Final = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryContent:
    """The messages of a session, the oldest first, and what was recalled for the turn by section, the best first.

    ``notices`` name the blocks that failed and the messages of the session that are hidden or shortened, and why.
    """

    messages: list[AnyMessage]
    recalled: Mapping[str, Sequence[MemoryStoreDocument]] = field(default_factory=dict[str, Any])
    notices: Sequence[str] = ()
    now: datetime
    zone: tzinfo

    @property
    def static_facts(self) -> list[MemoryStoreDocument]:
        """What `StaticMemory` recalled."""
        return list(self.recalled.get(StaticMemory.section, ()))

    @property
    def extracted_facts(self) -> list[MemoryStoreDocument]:
        """What `ExtractiveMemory` recalled."""
        return list(self.recalled.get(ExtractiveMemory.section, ()))

    @property
    def vector_matches(self) -> list[MemoryStoreDocument]:
        """What `VectorMemory` recalled."""
        return list(self.recalled.get(VectorMemory.section, ()))

    def as_dicts(self, *, timestamps: bool = True) -> list[dict[str, Any]]:
        """The messages as mappings with ``role``, ``content`` and, if they were stored, ``timestamp`` in ISO 8601.

        Without ``timestamps`` they are what OpenAI's API accepts.
        """
        entries: list[dict[str, Any]] = []
        for message in self.messages:
            made: Any = convert_to_openai_messages([message])
            stamp = message.additional_kwargs.get(TIMESTAMP) if timestamps else None
            entries += [{**entry, TIMESTAMP: stamp} if stamp else entry for entry in made]
        return entries

    def render(self, form: MemoryForm = "memory") -> str:
        """What was recalled, escaped, as text for a prompt; "" if nothing was.

        ``"memory"`` is the Ballerina proposals' form, with an element for each block; ``"coala"`` is the CoALA
        document's, with sections and time buckets.
        """
        if form == "memory":
            return render_blocks(self.recalled)
        by_category: dict[MemoryCategory, list[MemoryRecord]] = {}
        for document in chain.from_iterable(self.recalled.values()):
            record = MemoryRecord.from_value(
                document.value,
                memory_id=document.id,
                namespace=(),
                stored_at=document.created_at or self.now,
                updated_at=document.updated_at or self.now,
            )
            by_category.setdefault(record.category, []).append(record)
        return render_memories(by_category, now=self.now, zone=self.zone)


async def recalled_for(
    blocks: Sequence[Block],
    scope: MemoryScope | None,
    conversation: UserSession,
    message: AnyMessage | None,
    cold_seconds: float | None = None,
) -> tuple[dict[str, list[MemoryStoreDocument]], list[str]]:
    """What ``blocks`` recall for ``message``, by section, and notices of what failed. Raises ConfigurationError.

    ``cold_seconds`` replaces that of the blocks' scopes.
    """
    recalled: dict[str, list[MemoryStoreDocument]] = {}
    notices: list[str] = []
    for block in blocks:
        try:
            own = block.scope(scope)
            own = own if cold_seconds is None else replace(own, cold_seconds=cold_seconds)
            memories = await block.recall(own, conversation, message)
        except ConfigurationError:
            raise
        except InferenceCoreError as error:
            notices.append(f"{block.name}: {error}")
        else:
            recalled.setdefault(block.section, []).extend(memories)
    return recalled, notices


class AgentMemory:
    """The short-term memory of sessions, for use without an agent (the Ballerina proposals' ``AgentMemory``).

    It keeps each session's messages within a limit. ``overflow`` handles the messages that leave, and its blocks recall
    from long-term memory. Each method has an async version: `aget`, `aupdate`, `adelete`. They raise InvalidInput,
    StoreError and IdentityError; a model or block that fails is reported as a notice.

    Args:
        message_store: Where messages are kept: a store, a service, or anything that `open_store` takes, such as a URL,
            a dict, a SQLAlchemy engine or a ``redis.Redis``. None: in this process only.
        system_message_store: Where system messages are kept. None: with the others.
        overflow: One strategy or several. None: older messages move into long-term memory word for word.
        max_tokens: The limit of a session's messages, in tokens.
        user_id: The user of all sessions. You need either this or ``owner``, because memories belong to users.
        owner: A function that takes a session id and returns its user.
        token_counter: Counts the tokens of messages.
        timeout: Seconds that each call may take. None: no limit.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        message_store: StoreSource | None = None,
        system_message_store: StoreSource | None = None,
        overflow: Overflow = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        *,
        user_id: str | UUID | None = None,
        owner: Owner | None = None,
        token_counter: TokenCounter = count_tokens,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.timeout = timeout
        if user_id is None and owner is None:
            raise ConfigurationError(
                "AgentMemory needs to know whose sessions these are: pass user_id='ada@example.com' for one user, or "
                "owner=, a function that takes a session id and returns its user"
            )
        self._owners = Owners(user_id, owner)
        self._policy = OverflowPolicy(overflow, max_tokens, counter=token_counter)
        if any(isinstance(strategy, Summarize) and strategy.model is None for strategy in self._policy.strategies):
            raise ConfigurationError("AgentMemory has no model of its own: pass Summarize(model=…)")
        self._scope = scope_of(open_store({}) if message_store is None else message_store)
        self._system_scope = self._scope if system_message_store is None else scope_of(system_message_store)

    async def _get(self, session_id: SessionId, message: MessageLikeRepresentation | None = None) -> MemoryContent:
        """The session's messages within the limit, valid for any model, and what the blocks recall.

        Blocks recall for ``message``, which is not added to the session; by default for the user's last message. With a
        strategy's ``into_system_prompt``, what was recalled is appended to the system message.
        """
        conversation = self._owners.conversation(session_id)
        system = await read_system(self._system_scope, conversation)
        stored = await read_window(self._scope, conversation)
        asked = last_of_user(stored.messages) if message is None else one_message(message)
        recalled, notices = await recalled_for(self._policy.blocks, self._scope, conversation, asked)
        content = MemoryContent(
            messages=[], recalled=recalled, notices=notices, now=self._scope.clock.now(), zone=self._scope.zone
        )
        if self._policy.into_system_prompt and (block := content.render()):
            text = delimited(with_notice(block))
            system = SystemMessage(f"{system.text}\n\n{text}" if system else text)
        window = Window(stored.messages, self._policy.counter)
        shown = view(window, self._policy.room(system))
        content.messages.extend([*([system] if system else []), *shown])
        notices += omissions(window, shown, self._policy.room(system))
        return content

    async def _update(self, session_id: SessionId, message: MessageLikeRepresentation) -> str | None:
        """Adds ``message`` to the session, durable when it returns, and handles overflow.

        A message with a known id replaces that message; a system message replaces the session's. Returns None if
        nothing has to leave, or has left; or, if a model, a block or a store failed, also within the last half minute,
        a notice that says so: older messages are then kept.
        """
        conversation = self._owners.conversation(session_id)
        added = _stamped(one_message(message), self._scope.clock.now().isoformat())
        if isinstance(added, SystemMessage):
            await write_system(self._system_scope, conversation, added)
            return None

        async def attempt() -> StoredWindow:
            stored = await read_window(self._scope, conversation)
            messages = {message.id: message for message in stored.messages} | {added.id: added}
            return await replace_window(self._scope, conversation, stored, list(messages.values()))

        stored = await retried(attempt)
        system = await read_system(self._system_scope, conversation)
        room = self._policy.room(system, warns=True)
        eviction = Eviction(room=room, conversation=conversation, scope=self._scope)
        result = await self._policy.handle(Window(stored.messages, self._policy.counter), eviction)
        if result.evicted:
            messages = result.messages
            if result.summary:
                # An id of its own, so that a message that comes again under its old id does not replace the summary.
                new = _stamped(result.summary.model_copy(update={"id": None}), self._scope.clock.now().isoformat())
                messages = [new if message is result.summary else message for message in messages]
            # Whoever changed the session meanwhile has handled the overflow too, so a conflict needs no retry.
            with suppress(VersionConflict):
                await replace_window(self._scope, conversation, stored, messages)
        return result.notice

    async def _delete(self, session_id: SessionId, *, keep_long_term: bool = False, erase: bool = False) -> None:
        """Removes the session and, unless ``keep_long_term``, what blocks stored from this session only.

        With ``erase``, also the earlier texts of these memories, and what was made from them or from their messages, as
        with the service's ``delete_memory(erase=True)``; otherwise earlier texts stay for its ``deleted_days``. Raises
        InvalidInput if it should both erase and keep them, and what the blocks raise.
        """
        if erase and keep_long_term:
            raise InvalidInput("erase= removes what blocks learned, keep_long_term= keeps it; choose one")
        conversation = self._owners.conversation(session_id)
        if not keep_long_term:
            for block in self._policy.blocks:
                if not block.is_read_only:
                    scope = block.scope(self._scope)
                    await block.forget(replace(scope, deleted_days=0.0) if erase else scope, conversation)
        for scope in {id(one.engine): one for one in (self._scope, self._system_scope)}.values():
            await remove_session(scope, conversation)

    get, aget = faces(_get)
    update, aupdate = faces(_update)
    delete, adelete = faces(_delete)


def _stamped(message: AnyMessage, now: str) -> AnyMessage:
    """``message`` with an id and the time."""
    return message.model_copy(
        update={"id": message.id or uuid4().hex, "additional_kwargs": {TIMESTAMP: now, **message.additional_kwargs}}
    )


# A session is stored as a row for each message and one that lists the messages in the window. The list is replaced as a
# whole and alone decides, so that no reader sees a session half changed, on any store.


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """The messages of a session, the oldest first, with their keys and the list's version (0: no list)."""

    messages: list[AnyMessage]
    keys: list[str]
    version: int


def session_namespace(conversation: UserSession) -> Namespace:
    """The namespace of this session."""
    return (encode_label(conversation.user_id), SESSIONS, encode_label(conversation.session_id, what="session_id"))


async def read_window(scope: MemoryScope, conversation: UserSession) -> StoredWindow:
    """The session's window. Raises StoreError."""
    namespace = session_namespace(conversation)
    while True:
        (listed,) = await scope.engine.get([(namespace, _WINDOW)])
        if listed is None:
            return StoredWindow([], [], 0)
        keys = [str(key) for key in listed.value.get("messages", [])]
        rows = await scope.engine.get([(namespace, key) for key in keys])
        there = [row for row in rows if row is not None]
        if len(there) == len(keys):
            return StoredWindow([_message(row) for row in there], keys, listed.version)
        # Rows are missing: either the list has changed since it was read, or they are lost and the rest counts.
        (again,) = await scope.engine.get([(namespace, _WINDOW)])
        if again is not None and again.version == listed.version:
            return StoredWindow([_message(row) for row in there], [row.key for row in there], listed.version)


async def replace_window(
    scope: MemoryScope, conversation: UserSession, old: StoredWindow, messages: Sequence[AnyMessage]
) -> StoredWindow:
    """Durably replaces the session's window by ``messages``, which must have ids, if it is still ``old``.

    Raises VersionConflict if the session has changed meanwhile, InvalidMemory for a message that is too large,
    StoreError.
    """
    namespace = session_namespace(conversation)
    before = dict(zip(old.keys, old.messages, strict=True))
    ids = [str(message.id).encode("utf-8", "surrogatepass") for message in messages]
    after = {f"m-{hashlib.sha256(one).hexdigest()[:32]}": message for one, message in zip(ids, messages, strict=True)}
    now = scope.clock.now()
    changed = {key: message for key, message in after.items() if before.get(key) is not message}
    puts = [
        Put(namespace=namespace, key=key, value=_value(message), updated_at=now) for key, message in changed.items()
    ]
    listing = encode_json({"messages": list(after)}, what="window")
    # In this order, for stores that apply a batch in parts: messages before the list that names them, removals after
    # it. The list's version decides whether somebody else was faster.
    writes: list[Write] = [
        *puts,
        Put(namespace=namespace, key=_WINDOW, value=listing, updated_at=now, expected=old.version),
        *(Remove(namespace=namespace, key=key) for key in before if key not in after),
    ]
    versions = await scope.engine.write(writes)
    return StoredWindow(list(after.values()), list(after), versions[len(puts)])


async def read_system(scope: MemoryScope, conversation: UserSession) -> AnyMessage | None:
    """The session's system message. Raises StoreError."""
    (row,) = await scope.engine.get([(session_namespace(conversation), _SYSTEM)])
    return None if row is None else _message(row)


async def write_system(scope: MemoryScope, conversation: UserSession, message: AnyMessage) -> None:
    """Replaces the session's system message, durably. Raises InvalidMemory, StoreError."""
    namespace = session_namespace(conversation)
    put = Put(namespace=namespace, key=_SYSTEM, value=_value(message), updated_at=scope.clock.now())
    await scope.engine.write([put])


async def remove_session(scope: MemoryScope, conversation: UserSession) -> None:
    """Removes everything stored for the session. Raises StoreError."""
    namespace = session_namespace(conversation)
    while rows := await scope.engine.page([namespace], limit=500):
        await scope.engine.write([Remove(namespace=namespace, key=row.key) for row in rows])


def _value(message: AnyMessage) -> str:
    """``message`` as JSON; a tool's artifact is left out if the message cannot be stored with it."""
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
