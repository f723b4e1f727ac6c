"""Memory, the documents' interface of all memory, and Block, what this package's own blocks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from langchain_core.messages import AnyMessage, BaseMessage, MessageLikeRepresentation, convert_to_messages
from langgraph.store.base import BaseStore

from inference_core.blocks.conversation import Conversation, Owner, Owners
from inference_core.drivers import Plan, arun, run
from inference_core.errors import ConfigurationError
from inference_core.memory.document import MemoryStoreDocument
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.scope import MemoryScope

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="_Timed")
M = TypeVar("M", bound=Callable[..., Any])
DEFAULT_RESULTS: Final = 5
DEFAULT_MAX_TOKENS: Final = 2_000


@runtime_checkable
class Memory(Protocol):
    """What a block of your own must do. It is called on a thread of its own, so it may block.

    Messages keep their ids, and `update` may get the same message again after a crash.
    """

    def get(self, session_id: str, message: Any) -> Any:
        """What the block knows that fits ``message``: texts, messages or JSON data."""
        ...

    def update(self, session_id: str, message: Any) -> None:
        """Adds ``message`` to what is known."""
        ...

    def delete(self, session_id: str) -> None:
        """Forgets what this session alone has told."""
        ...


class _Timed(Protocol):
    timeout: float | None


def synchronous(plan: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[S, P], T]:
    """The method that runs ``plan`` within the object's ``timeout`` and blocks."""

    def method(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(plan(self, *args, **kwargs), self.timeout)

    return _documented(method, plan)


def asynchronous(plan: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The method that runs ``plan`` within the object's ``timeout`` and is awaited."""

    async def method(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(plan(self, *args, **kwargs), self.timeout)

    return _documented(method, plan)


def _documented(method: M, plan: Callable[..., Any]) -> M:
    """``method`` with the name, the text and the signature of ``plan``; it returns what the plan does."""
    wraps(plan)(method)
    method.__name__ = plan.__name__.removeprefix("_")
    returned = plan.__annotations__["return"].removeprefix("Plan[").removesuffix("]")
    method.__annotations__ = {**plan.__annotations__, "return": returned}
    vars(method)["__signature__"] = signature(plan).replace(return_annotation=returned)
    return method


class Block(ABC):
    """A block on a LangGraph store. Each method has an async twin: `aget`, `aupdate`, `adelete`.

    Args:
        store: Where it keeps memories. None: the store of the `AgentMemory` or agent that uses it.
        name: Tells it from other blocks on the store. None: its `section`.
        max_results: Recall at most so many memories.
        max_tokens: Recall at most about so many tokens.
        user_id: The user, if the block is used alone; an `AgentMemory` or agent passes its own.
        owner: A function that takes a session id and returns its user, in place of ``user_id``.
        timeout: Seconds that each call may take. None: no limit.
    """

    section: str
    """The element of a prompt that holds what it recalls."""
    is_read_only: ClassVar[bool] = False

    def __init__(
        self,
        store: BaseStore | AgentMemoryStoreService | None = None,
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
        self, scope: MemoryScope, conversation: Conversation, message: BaseMessage | None
    ) -> Plan[list[MemoryStoreDocument]]:
        """Plan: what fits ``message``, the best first; without one, the newest."""

    @abstractmethod
    def absorb(self, scope: MemoryScope, conversation: Conversation, messages: Sequence[AnyMessage]) -> Plan[None]:
        """Plan: makes ``messages`` memory, durable when it ends; those that are already are left out.

        Raises StoreError, and ModelError if it needs a model and that fails.
        """

    @abstractmethod
    def forget(self, scope: MemoryScope, conversation: Conversation) -> Plan[None]:
        """Plan: removes what this session alone has told."""

    @property
    def has_store(self) -> bool:
        """Whether it has a store of its own."""
        return self._scope is not None

    def scope(self, default: MemoryScope | None = None) -> MemoryScope:
        """The block's own view of its store, else ``default``. Raises ConfigurationError if there is neither."""
        chosen = self._scope or default
        if chosen is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no store: pass store=open_store('sqlite:///memory.db')"
            )
        return chosen

    def _get(
        self, session_id: str | UUID, message: MessageLikeRepresentation | None = None
    ) -> Plan[list[MemoryStoreDocument]]:
        """What fits ``message``, the best first. Raises InvalidInput, StoreUnavailable, ConfigurationError."""
        asked = None if message is None else one_message(message)
        return self.recall(self.scope(), self._owners.conversation(session_id), asked)

    def _update(self, session_id: str | UUID, message: MessageLikeRepresentation) -> Plan[None]:
        """Makes ``message`` memory, durable when it returns. Raises what `get` raises, and ModelError."""
        return self.absorb(self.scope(), self._owners.conversation(session_id), [one_message(message)])

    def _delete(self, session_id: str | UUID) -> Plan[None]:
        """Removes what this session alone has told. Raises what `get` raises."""
        return self.forget(self.scope(), self._owners.conversation(session_id))

    get, aget = synchronous(_get), asynchronous(_get)
    update, aupdate = synchronous(_update), asynchronous(_update)
    delete, adelete = synchronous(_delete), asynchronous(_delete)


def scope_of(store: BaseStore | AgentMemoryStoreService) -> MemoryScope:
    """The view of ``store`` that a service has of it, or an agent without a name."""
    return (store if isinstance(store, AgentMemoryStoreService) else AgentMemoryStoreService(store)).scope


def one_message(message: MessageLikeRepresentation) -> AnyMessage:
    """``message`` as LangChain's; a mapping with role and content, a pair of them, or a text of the user will do."""
    converted: Any = convert_to_messages([message])[0]
    return converted


def text_of(message: BaseMessage | None) -> str:
    """The text of ``message``; "" without one."""
    return "" if message is None else message.text
