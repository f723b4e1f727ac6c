"""What blocks have in common: `Memory`, the Ballerina proposals' interface, `Block`, and `CustomBlock` for your own.

The proposals' blocks know sessions, but memories belong to users: `Owners` finds the user of a session. Blocks file
messages as passages, word for word, and each memory with the sessions that it comes from.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, ParamSpec, Protocol, TypedDict, TypeVar, cast, runtime_checkable
from uuid import UUID

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    MessageLikeRepresentation,
    convert_to_messages,
)
from langgraph.store.base import BaseStore

from inference_core.effects import Operation, faces, in_thread
from inference_core.errors import (
    BlockFailed,
    ConfigurationError,
    IdentityError,
    InferenceCoreError,
    raised_as,
)
from inference_core.memory.namespaces import FORGOTTEN, PENDING, encode_label, holds_memories, sidecar_namespace
from inference_core.memory.record import BLOCK, BLOCK_SESSIONS, MemoryRecord, MemoryStoreDocument
from inference_core.memory.redaction import told_error
from inference_core.memory.secrets import quoted
from inference_core.memory.text import digest_of, id_text, mapping_field
from inference_core.memory.types import MemoryCategory
from inference_core.outbox.messages import (
    OWN_ARTIFACT,
    ConversationMessage,
    Role,
    any_outside,
    author_of,
    is_of_another,
    is_plain,
    label,
    mark,
    marks_of,
    noted_outside,
    traced,
    unmarked,
)
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.delete import PORTION, derived_rows, removals_of
from inference_core.services.operations.scope import MemoryScope, is_known, put_of, record_of, retried
from inference_core.short_term.content import results_in, text_in, told_calls
from inference_core.stores.backend import Remove, Row, Write
from inference_core.stores.factory import Database, open_store, refuse_mock


def passage(
    message: AnyMessage, conversation: UserSession, position: int = 0, agent: str | None = None
) -> ConversationMessage:
    """``message`` in a conversation with ``agent`` as a message to ingest; tool calls and media become text."""
    is_result = bool(results_in(message))
    is_answer = isinstance(message, AIMessage)
    told = (f"{name}({arguments})" for name, arguments in told_calls(message))
    name = message.name if is_result else author_of(message.name, conversation.user_id)
    return ConversationMessage(
        session_id=conversation.session_id,
        role=Role.TOOL if is_result else Role.ASSISTANT if is_answer else Role.USER,
        text="\n".join(part for part in (text_in(message), *told) if part),
        id=message.id,
        position=position,
        author=None if is_answer else label(name),
        is_proven=is_result or (is_plain(message) and not is_of_another(message, agent)),
    )


async def passages(
    scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]
) -> list[ConversationMessage]:
    """``messages`` as messages to ingest, in order, marked if text from outside is or was in the session.

    The answers of memory tools are left out: what they tell is in memory.
    """
    told = (message for message in enumerate(messages) if getattr(message[1], "artifact", None) != OWN_ARTIFACT)
    agent = scope.namespaces.agent_name
    said = list(traced(passage(message, conversation, at, agent) for at, message in told))
    note = scope.engine, scope.clock, conversation.user_id, conversation.session_id
    was_there = await noted_outside(*note, is_outside=any_outside(said))
    return [replace(message, is_marked=True) for message in said] if was_there else said


def block_metadata(block: str, sessions: Sequence[str]) -> dict[str, Any]:
    """The metadata of a memory that ``block`` made of messages in ``sessions``."""
    return {BLOCK: block, BLOCK_SESSIONS: list(sessions)}


def sessions_of(record: MemoryRecord, block: str) -> list[str] | None:
    """The sessions that ``record`` comes from; None if ``block`` did not make it."""
    return _sessions_in(record.extra_metadata, block)


def _sessions_in(metadata: Mapping[str, Any], block: str) -> list[str] | None:
    sessions: Any = metadata.get(BLOCK_SESSIONS)
    is_ours = metadata.get(BLOCK) == block and isinstance(sessions, list)
    return [str(session) for session in cast("list[Any]", sessions)] if is_ours else None


def with_sessions(record: MemoryRecord, block: str, sessions: Sequence[str]) -> MemoryRecord:
    """``record`` as coming from ``sessions``."""
    return replace(record, extra_metadata={**record.extra_metadata, **block_metadata(block, sessions)})


async def forget_session(scope: MemoryScope, conversation: UserSession, block: str, category: MemoryCategory) -> None:
    """Removes the memories of ``block`` that come from this session alone; others only lose the session.

    Those that wait for the user, or were deleted and can be restored, also go if they come from this session alone. In
    a scope that keeps nothing deleted, so do their earlier texts and what was made from them. Raises StoreError; what
    was removed before stays removed.
    """
    homes = scope.namespaces.read_scopes(conversation.user_id, category)
    # All in one scan: between two, a memory could be approved or deleted, and be found in neither.
    namespaces = [*homes, *(sidecar_namespace(home, place) for home in homes for place in (PENDING, FORGOTTEN))]

    def other_sessions(rows: Sequence[Row]) -> list[tuple[Row, list[str]]]:
        found: list[tuple[Row, list[str]]] = []
        for row in filter(is_known, rows):
            sessions = _sessions_in(mapping_field(row.value, "extra_metadata"), block) or []
            if conversation.session_id in sessions:
                found.append((row, [session for session in sessions if session != conversation.session_id]))
        return found

    async def attempt() -> None:
        writes: list[Write] = []
        rows = await scope.engine.scan(namespaces)
        found = await scope.engine.pool.call(other_sessions, rows)
        gone = [row for row, others in found if not others]
        if not scope.deleted_days and gone:
            derived = await derived_rows(scope.engine, encode_label(conversation.user_id), list(map(record_of, gone)))
            writes += removals_of([*derived, *gone])
            found = [(row, others) for row, others in found if others]
        for row, others in found:
            if not others:
                writes.append(Remove(namespace=row.namespace, key=row.key, expected=row.version))
            elif holds_memories(row.namespace):
                writes.append(put_of(with_sessions(record_of(row), block, others), expected=row.version))
        for at in range(0, len(writes), PORTION):
            await scope.write(writes[at : at + PORTION], "block")

    await retried(attempt)


P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_RESULTS: Final = 5
DEFAULT_MAX_TOKENS: Final = 2_000
Owner = Callable[[str], str | UUID | None]
"""Takes a session id and returns its user, None if it has none; may raise."""


StoreSource = BaseStore | AgentMemoryStoreService | Database
"""A store, a service on one, or what `open_store` opens: a URL, a mapping, a SQLAlchemy engine, a ``redis.Redis``."""


@dataclass(frozen=True, slots=True)
class UserSession:
    """A session of a user. Raises InvalidId."""

    user_id: str
    session_id: str

    def __post_init__(self) -> None:
        encode_label(self.user_id)
        encode_label(self.session_id, what="session_id")


class Owners:
    """Finds the user of a session: ``user_id``, or whom ``owner`` returns. Raises ConfigurationError for both."""

    def __init__(self, user_id: str | UUID | None = None, owner: Owner | None = None) -> None:
        if user_id is not None and owner is not None:
            raise ConfigurationError("Give user_id= or owner=, not both")
        if user_id is not None:
            encode_label(user_id)
        self._user_id = user_id
        self._owner = owner

    def conversation(self, session_id: str | UUID) -> UserSession:
        """This session with its user. Raises ConfigurationError, IdentityError, InvalidId."""
        session: str = id_text(session_id)
        user = self._user_id
        if user is None:
            if self._owner is None:
                raise ConfigurationError("No user: pass user_id=, or owner=, a function of the session id")
            user = self._owner(session)
            if not user:
                raise IdentityError(f"owner gives no user for session {quoted(session)}")
        return UserSession(id_text(user), session)


@runtime_checkable
class Memory(Protocol):
    """The methods of your own block. They are called on a separate thread, so they may block.

    Messages keep their ids, and `update` may get the same message again after a crash.
    """

    def get(self, session_id: str, message: Any) -> Any:
        """What the block knows about ``message``: texts, messages or JSON data."""
        ...

    def update(self, session_id: str, message: Any) -> None:
        """Stores ``message``, or what the block extracts from it."""
        ...

    def delete(self, session_id: str) -> None:
        """Deletes what the block stored from this session only."""
        ...


class BlockOptions(TypedDict, total=False):
    """What every block takes by name; `Block` says what each option means."""

    name: str | None
    max_results: int
    max_tokens: int
    user_id: str | UUID | None
    owner: Owner | None
    timeout: float | None


class Block(ABC):
    """A block on a LangGraph store. Each method has an async twin: `aget`, `aupdate`, `adelete`.

    Args:
        store: Where it keeps memories: a store, a service, or anything that `open_store` takes. None: the store of the
            `AgentMemory` or agent that uses it.
        name: Distinguishes it from other blocks on the store. None: its `section`.
        max_results: The maximum number of memories that a recall returns.
        max_tokens: The maximum tokens of a recall, approximately.
        user_id: The user, if the block is used alone; an `AgentMemory` or agent passes its own.
        owner: A function that takes a session id and returns its user, in place of ``user_id``.
        timeout: Seconds that each call may take. None: no limit.
    """

    section: str
    """The element of a prompt that holds what it recalls."""
    is_read_only: ClassVar[bool] = False
    asks_model: bool = False
    """Whether its recall asks a language model, which takes seconds."""

    def __init__(
        self,
        store: StoreSource | None = None,
        *,
        name: str | None = None,
        max_results: int = DEFAULT_RESULTS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        user_id: str | UUID | None = None,
        owner: Owner | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name = name or self.section
        self.max_results = max_results
        self.max_tokens = max_tokens
        self.timeout = timeout
        self._owners = Owners(user_id, owner)
        self._scope = None if store is None else scope_of(store)

    @abstractmethod
    def recall(
        self, scope: MemoryScope, conversation: UserSession, message: BaseMessage | None
    ) -> Operation[list[MemoryStoreDocument]]:
        """Memories that fit ``message``, the best first; without one, the newest."""

    @abstractmethod
    def absorb(self, scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]) -> Operation[None]:
        """Takes in ``messages`` that it does not have yet, durably. Raises StoreError, ModelError."""

    @abstractmethod
    def forget(self, scope: MemoryScope, conversation: UserSession) -> Operation[None]:
        """Removes what it took in from this session alone."""

    @property
    def has_store(self) -> bool:
        """Whether it has a store of its own."""
        return self._scope is not None

    def scope(self, default: MemoryScope | None = None) -> MemoryScope:
        """The scope of its own store, else ``default``. Raises ConfigurationError if there is neither."""
        chosen = self._scope or default
        if chosen is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no store: pass store=open_store('sqlite:///memory.db')"
            )
        return chosen

    async def _get(
        self, session_id: str | UUID, message: MessageLikeRepresentation | None = None
    ) -> list[MemoryStoreDocument]:
        """Memories that fit ``message``, the best first. Raises InvalidInput, StoreError, ConfigurationError."""
        asked = None if message is None else one_message(message)
        return await self.recall(self.scope(), self._owners.conversation(session_id), asked)

    async def _update(self, session_id: str | UUID, message: MessageLikeRepresentation) -> None:
        """Takes in ``message``, durably when it returns. Raises what `get` raises, and ModelError."""
        await self.absorb(self.scope(), self._owners.conversation(session_id), [one_message(message)])

    async def _delete(self, session_id: str | UUID) -> None:
        """Removes what it took in from this session alone. Raises what `get` raises."""
        await self.forget(self.scope(), self._owners.conversation(session_id))

    get, aget = faces(_get)
    update, aupdate = faces(_update)
    delete, adelete = faces(_delete)


def scope_of(store: StoreSource) -> MemoryScope:
    """The scope of a service, or that of an agent without a name on ``store``. Raises what `open_store` raises."""
    refuse_mock(store)
    if isinstance(store, AgentMemoryStoreService):
        return store.scope
    return AgentMemoryStoreService(store if isinstance(store, BaseStore) else open_store(store, tells=False)).scope


def one_message(message: MessageLikeRepresentation) -> AnyMessage:
    """``message`` as LangChain's: it may be a mapping with role and content, such a pair, or a text of the user."""
    converted: Any = convert_to_messages([message])[0]
    return converted


def text_of(message: BaseMessage | None) -> str:
    """The text of ``message``; "" without one."""
    return "" if message is None else message.text


async def called(block: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls ``function`` for ``block`` as `in_thread` does, and returns its result. Raises BlockFailed if it fails."""

    def failure(error: Exception) -> BlockFailed:
        return BlockFailed(f"The block {quoted(block)} failed: {type(error).__name__}: {told_error(error)}")

    with raised_as(failure, but=InferenceCoreError):
        result: T = await in_thread(partial(function, *args, **kwargs))
        return result


class CustomBlock(Block):
    """A block of the application's own, called on a separate thread.

    It is given each message once; again only if the process died before that was noted.
    """

    def __init__(self, memory: Memory) -> None:
        self.section = str(getattr(memory, "name", type(memory).__name__))
        super().__init__()
        self._memory = memory

    async def recall(
        self, scope: MemoryScope, conversation: UserSession, message: BaseMessage | None
    ) -> list[MemoryStoreDocument]:
        """What the block returns for ``message``. Raises BlockFailed."""
        del scope
        found = await called(self.name, self._memory.get, conversation.session_id, message)
        documents: list[MemoryStoreDocument] = []
        is_many = isinstance(found, Iterable) and not isinstance(found, str)
        for at, item in enumerate(cast("Iterable[Any]", found) if is_many else [found]):
            if isinstance(item, MemoryStoreDocument):
                documents.append(item)
            elif item is not None:
                text = item.text if isinstance(item, BaseMessage) else item
                content = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
                documents.append(MemoryStoreDocument(id=str(at), value={"content": content}, metadata={}))
        return documents

    async def absorb(self, scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]) -> None:
        """Gives the block each message that is not marked as taken in, and marks it. Raises BlockFailed, StoreError."""
        marks = marks_of(conversation.user_id)
        for message in messages:
            key = digest_of([self.name, conversation.session_id, message.id, scope.engine.guard.text(message.text)])
            if await unmarked(scope.engine, marks, [key]):
                await called(self.name, self._memory.update, conversation.session_id, message)
                await scope.engine.write([mark(marks, key, scope.clock)])

    async def forget(self, scope: MemoryScope, conversation: UserSession) -> None:
        """Has the block delete the session. Raises BlockFailed."""
        del scope
        await called(self.name, self._memory.delete, conversation.session_id)


def as_block(memory: Memory | Block) -> Block:
    """``memory`` as a block. Raises ConfigurationError if it lacks one of the interface's methods."""
    if isinstance(memory, Block):
        return memory
    if not isinstance(memory, Memory):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise ConfigurationError(f"A block needs get, update and delete; {type(memory).__name__} lacks some of them")
    return CustomBlock(memory)
