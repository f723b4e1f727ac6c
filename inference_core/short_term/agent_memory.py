"""AgentMemory: the messages of sessions and what happens when they become too many, with or without an agent."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID, uuid4

from langchain_core.messages import AnyMessage, MessageLikeRepresentation, SystemMessage
from langgraph.store.base import BaseStore

from inference_core.blocks.conversation import Conversation, Owner, Owners
from inference_core.blocks.memory import asynchronous, one_message, scope_of, synchronous
from inference_core.context.render import fenced, with_notice
from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError, VersionConflict
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.update import retried
from inference_core.short_term import sessions
from inference_core.short_term.content import MemoryContent, recalled_for
from inference_core.short_term.policy import Overflow, OverflowPolicy
from inference_core.short_term.strategies import DEFAULT_MAX_TOKENS, Eviction, Summarize
from inference_core.short_term.tokens import TokenCounter, count_tokens
from inference_core.short_term.view import view
from inference_core.short_term.window import Window, last_of_user
from inference_core.stores.factory import open_store

SessionId = str | UUID
DEFAULT_TIMEOUT_S: Final = 60.0
TIMESTAMP: Final = "timestamp"
"""The name in a message's ``additional_kwargs`` under which the time is kept when it was stored, in ISO 8601."""


class AgentMemory:
    """The short-term memory of sessions, for use without an agent (the Ballerina proposals' ``AgentMemory``).

    It keeps each session's messages within a limit. Those that leave are handled by ``overflow``, and its blocks recall
    from long-term memory. Each method has an async twin: `aget`, `aupdate`, `adelete`. They raise InvalidInput,
    StoreError and IdentityError; a model or block that fails is reported as a notice.

    Args:
        message_store: Where messages are kept. None: in this process only.
        system_message_store: Where system messages are kept. None: with the others.
        overflow: One strategy or several. None moves older messages into long-term memory word for word.
        max_tokens: The limit of a session's messages, in tokens.
        user_id: The user of all sessions. Either this or ``owner`` is needed.
        owner: A function that takes a session id and returns its user.
        token_counter: Counts the tokens of messages.
        timeout: Seconds that each call may take. None: no limit.

    Raises:
        ConfigurationError: The arguments make no sense.
    """

    def __init__(
        self,
        message_store: BaseStore | AgentMemoryStoreService | None = None,
        system_message_store: BaseStore | AgentMemoryStoreService | None = None,
        overflow: Overflow = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        *,
        user_id: str | UUID | None = None,
        owner: Owner | None = None,
        token_counter: TokenCounter = count_tokens,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.timeout = timeout
        self._owners = Owners(user_id, owner)
        self._policy = OverflowPolicy(overflow, max_tokens, counter=token_counter)
        if any(isinstance(one, Summarize) and one.model is None for one in self._policy.strategies):
            raise ConfigurationError("AgentMemory has no model of its own: pass Summarize(model=…)")
        self._scope = scope_of(open_store("memory://") if message_store is None else message_store)
        self._system_scope = self._scope if system_message_store is None else scope_of(system_message_store)

    def _get(self, session_id: SessionId, message: MessageLikeRepresentation | None = None) -> Plan[MemoryContent]:
        """The session's messages that fit the limit, valid for any model, and what the blocks recall.

        They recall what fits ``message``, by default the user's last one, which is not added. With
        ``into_system_prompt`` the system message ends in what was recalled.
        """
        conversation = self._owners.conversation(session_id)
        system = yield from sessions.read_system(self._system_scope, conversation)
        stored = yield from sessions.read(self._scope, conversation)
        asked = last_of_user(stored.messages) if message is None else one_message(message)
        recalled, notices = yield from recalled_for(self._policy.blocks, self._scope, conversation, asked)
        content = MemoryContent(
            messages=[],
            recalled=recalled,
            notices=notices,
            now=self._scope.clock.now(),
            zone=self._scope.zone,
        )
        if self._policy.into_system_prompt and (block := content.render()):
            text = fenced(with_notice(block))
            system = SystemMessage(f"{system.text}\n\n{text}" if system else text)
        window = Window(stored.messages, self._policy.counter)
        shown = view(window, self._policy.room(system))
        content.messages.extend([*([system] if system else []), *shown])
        return content

    def _update(self, session_id: SessionId, message: MessageLikeRepresentation) -> Plan[str | None]:
        """Adds ``message`` to the session, durable when it returns, and relieves the session if it is too full.

        A message with the id of one that is there replaces it; a system message replaces the session's. Returns what
        could not be done for lack of a model, a block or a store, for which older messages were kept; None if nothing.
        """
        conversation = self._owners.conversation(session_id)
        added = _stamped(one_message(message), self._scope.clock.now().isoformat())
        if isinstance(added, SystemMessage):
            yield from sessions.write_system(self._system_scope, conversation, added)
            return None
        stored = yield from retried(partial(self._with, conversation, added))
        return (yield from self._relieved(conversation, stored))

    def _delete(self, session_id: SessionId, *, keep_long_term: bool = False) -> Plan[None]:
        """Removes the session's messages, its system message and what it alone has told the blocks.

        ``keep_long_term`` spares the blocks.
        """
        conversation = self._owners.conversation(session_id)
        if not keep_long_term:
            for block in self._policy.blocks:
                if not block.is_read_only:
                    yield from block.forget(block.scope(self._scope), conversation)
        for scope in {id(one.engine): one for one in (self._scope, self._system_scope)}.values():
            yield from sessions.remove(scope, conversation)

    get, aget = synchronous(_get), asynchronous(_get)
    update, aupdate = synchronous(_update), asynchronous(_update)
    delete, adelete = synchronous(_delete), asynchronous(_delete)

    def _with(self, conversation: Conversation, message: AnyMessage) -> Plan[sessions.StoredWindow]:
        stored = yield from sessions.read(self._scope, conversation)
        messages = {one.id: one for one in stored.messages} | {message.id: message}
        return (yield from sessions.replace(self._scope, conversation, stored, list(messages.values())))

    def _relieved(self, conversation: Conversation, stored: sessions.StoredWindow) -> Plan[str | None]:
        """Plan: relieves the session; what could not be done."""
        system = yield from sessions.read_system(self._system_scope, conversation)
        eviction = Eviction(room=self._policy.room(system), conversation=conversation, scope=self._scope)
        relief = yield from self._policy.relieved(Window(stored.messages, self._policy.counter), eviction)
        if relief.evicted:
            messages = relief.messages
            if relief.summary:
                # An id of its own, so that a message that comes again under its old id does not replace the summary.
                new = _stamped(relief.summary.model_copy(update={"id": None}), self._scope.clock.now().isoformat())
                messages = [new if one is relief.summary else one for one in messages]
            # Whoever changed the session meanwhile has relieved it too: a conflict needs no other try.
            with suppress(VersionConflict):
                yield from sessions.replace(self._scope, conversation, stored, messages)
        return relief.notice


def _stamped(message: AnyMessage, now: str) -> AnyMessage:
    """``message`` with an id and the time."""
    return message.model_copy(
        update={
            "id": message.id or uuid4().hex,
            "additional_kwargs": {TIMESTAMP: now, **message.additional_kwargs},
        }
    )
