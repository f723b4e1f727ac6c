"""AgentMemoryStoreService: a user's long-term memory, for direct use and for the agent's tools and middleware.

This is the documented import path, so it also re-exports the domain's types and functions. `services.user_memories`
has the helpers that need a store but no agent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from langgraph.store.base import BaseStore

from inference_core.clock import Clock
from inference_core.effects import Faces, Operation, faces
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import InvalidInput
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import MEMORIES_STORE_NAME, MemoryNamespaceBuilder, encode_label
from inference_core.memory.quota import Quota
from inference_core.memory.record import INDEXED_FIELDS, MemoryData, MemoryMetadata, MemoryStoreDocument
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.spaces import Spaces
from inference_core.memory.text import MAX_CONTENT_BYTES
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MEMORY_TYPE_TO_CATEGORY,
    MEMORY_TYPES,
    MemoryCategory,
    MemoryType,
    MemoryTypeDescription,
    format_memory_types_for_description,
    get_category_for_type,
    get_memory_category_literal,
    get_memory_type_literal,
    get_types_for_category,
    validate_memory_category,
    validate_memory_type,
)
from inference_core.services.operations.audit import audit, verify_audit
from inference_core.services.operations.delete import delete, delete_all
from inference_core.services.operations.holds import hold, list_held_copies, list_holds, release_hold
from inference_core.services.operations.list import count, get, history, list_all, list_memories
from inference_core.services.operations.messages import add_completion, add_messages
from inference_core.services.operations.operation import MemoryOperation
from inference_core.services.operations.profile import edit_profile, read_profile
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.recall import (
    recall,
    recall_by_category,
    user_context,
    user_context_with_timestamps,
)
from inference_core.services.operations.receipts import list_receipts, rebuild_receipt, why
from inference_core.services.operations.review import approve_pending, list_pending, reject_pending
from inference_core.services.operations.save import save, update
from inference_core.services.operations.scope import (
    DEFAULT_DELETED_DAYS,
    MemoryPolicy,
    MemoryScope,
    UserId,
)
from inference_core.services.operations.spaces import get_spaces, grant, list_grants, revoke
from inference_core.services.user_memories import (
    count_user_long_term_memory,
    count_user_memories,
    delete_user_long_term_memory_entries,
    delete_user_long_term_memory_entry,
    delete_user_memory_entries,
    delete_user_memory_entry,
    list_user_long_term_memory,
    list_user_memories,
    list_users,
    open_memory_store,
    purge_user_long_term_memory,
    purge_user_memories,
)
from inference_core.stores.factory import engine_of
from inference_core.stores.indexing.search import COLD_SECONDS

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from inference_core.settings import MemorySettings
else:  # both are slow to import: whoever gives one has loaded it
    BaseChatModel = MemorySettings = Any

P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_TIMEOUT_S: Final = 10.0
_COLD_SHARE: Final = 0.7
"""The share of its timeout in which a recall waits for the model and the index; the rest is for ranking."""
_MOST_DELETED_DAYS: Final = 36_500.0


class ServiceBase:
    """What the async and the sync form of a service have in common: both run the same operations."""

    def __init__(self, scope: MemoryScope, timeout: float | None) -> None:
        self.scope = scope
        self.timeout = timeout

    def __repr__(self) -> str:
        agent = self.scope.namespaces.agent_name
        return f"{type(self).__name__}({self.scope.store!r}{'' if agent is None else f', agent_name={agent!r}'})"


def scope_on(store: BaseStore, policy: MemoryPolicy, agent_name: str | None) -> MemoryScope:
    """The view that this agent has of ``store``, which it does not keep alive.

    Raises InvalidId for the agent's name, and ConfigurationError if the store or the embeddings cannot be used.
    """
    namespaces = MemoryNamespaceBuilder(agent_name=agent_name, agent_scope_enabled=policy.agent_scope_enabled)
    engine = engine_of(store, policy.embeddings, policy.secrets, policy.quota, audit=policy.audit)
    chosen: dict[str, Any] = {field.name: getattr(policy, field.name) for field in fields(MemoryPolicy)}
    return MemoryScope(engine=engine, namespaces=namespaces, **chosen)


class SyncMemoryService(ServiceBase):
    """Blocking versions of the methods of `AgentMemoryStoreService`, for sync code."""

    save_memory = save.sync
    get_memory = get.sync
    recall_memories = recall.sync
    recall_by_category = recall_by_category.sync
    update_memory = update.sync
    delete_memory = delete.sync
    delete_user_memories = delete_all.sync
    list_memories = list_memories.sync
    count_memories = count.sync
    get_memory_history = history.sync
    audit = audit.sync
    verify_audit = verify_audit.sync
    why = why.sync
    get_profile = read_profile.sync
    edit_profile = edit_profile.sync
    list_receipts = list_receipts.sync
    rebuild_receipt = rebuild_receipt.sync
    get_user_context = user_context.sync
    get_user_context_with_timestamps = user_context_with_timestamps.sync
    format_context_for_prompt = format_context.sync
    list_pending = list_pending.sync
    approve_pending = approve_pending.sync
    reject_pending = reject_pending.sync
    add_messages = add_messages.sync
    add_completion = add_completion.sync
    get_spaces = get_spaces.sync
    list_grants = list_grants.sync
    grant = grant.sync
    revoke = revoke.sync
    hold = hold.sync
    release_hold = release_hold.sync
    list_holds = list_holds.sync
    list_held_copies = list_held_copies.sync


class AgentMemoryStoreService(ServiceBase):
    """A user's long-term memory on a LangGraph store, as one agent sees it.

    Every method is a coroutine and takes the ``user_id`` first; `sync` has the same methods for sync code. You can
    share one service between users, threads and event loops. Besides the errors that they name, methods raise
    InvalidInput and StoreUnavailable or its subclasses.

    Args:
        store: From `open_store`, or any other LangGraph store.
        base_namespace: Accepted for compatibility; not used.
        max_results: How many memories a recall returns by default.
        agent_name: Episodic and procedural memories are stored under this name, separate from other agents'.
        embeddings: "auto", "provider:model", or a LangChain embeddings object. This and the next three apply only to
            stores that are not from `open_store`, which takes its own.
        secrets: What happens to credentials: "redact", "reject", "off" or a `Guard`.
        quota: The limits of each user.
        audit: Whether changes to memories leave audit events.
        actor: The actor in audit events. None: the one that a memory's source names, else the application.
        agent_scope_enabled: False: agents share all memories.
        max_content_bytes: The longest content of a memory, in bytes of UTF-8.
        timezone: IANA name or tzinfo; decides on which day a memory happened.
        counts_access: Whether to count recalls. The more often a memory is recalled, the later it is forgotten.
        deleted_days: For how many days deleted memories can be restored and replaced texts can be read. 0: not at all.
        confirm: Names of categories. What agents write into them waits for the user to confirm it, see `list_pending`.
        clock: Returns the current time.
        timeout: Seconds that every operation may take. None: no limit.
        spaces: Turns on shared memories: a recall covers the user's own and those of each `Space` in which the user has
            a role. None: spaces are not read.
        min_relevance: From 0 to 1. The least relevance of memories that answer a question, in recalls and prompts.
        media_model: The chat model, or its name, with which workers put pictures and recordings in messages into words.
            None: `add_messages` leaves these out.
    """

    save_memory = save.aio
    get_memory = get.aio
    recall_memories = recall.aio
    recall_by_category = recall_by_category.aio
    update_memory = update.aio
    delete_memory = delete.aio
    delete_user_memories = delete_all.aio
    list_memories = list_memories.aio
    count_memories = count.aio
    get_memory_history = history.aio
    audit = audit.aio
    verify_audit = verify_audit.aio
    why = why.aio
    get_profile = read_profile.aio
    edit_profile = edit_profile.aio
    list_receipts = list_receipts.aio
    rebuild_receipt = rebuild_receipt.aio
    get_user_context = user_context.aio
    get_user_context_with_timestamps = user_context_with_timestamps.aio
    format_context_for_prompt = format_context.aio
    list_pending = list_pending.aio
    approve_pending = approve_pending.aio
    reject_pending = reject_pending.aio
    add_messages = add_messages.aio
    add_completion = add_completion.aio
    get_spaces = get_spaces.aio
    list_grants = list_grants.aio
    grant = grant.aio
    revoke = revoke.aio
    hold = hold.aio
    release_hold = release_hold.aio
    list_holds = list_holds.aio
    list_held_copies = list_held_copies.aio

    def __init__(
        self,
        store: BaseStore,
        base_namespace: Sequence[str] = (MEMORIES_STORE_NAME,),
        max_results: int = 5,
        agent_name: str | None = None,
        *,
        embeddings: EmbeddingsSpec = None,
        secrets: Policy | Guard | None = None,
        quota: Quota | None = None,
        audit: bool = True,
        actor: Actor | None = None,
        agent_scope_enabled: bool = True,
        max_content_bytes: int = MAX_CONTENT_BYTES,
        timezone: str | tzinfo = UTC,
        counts_access: bool = True,
        deleted_days: float = DEFAULT_DELETED_DAYS,
        confirm: Collection[str] = (),
        clock: Clock | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        spaces: Spaces | None = None,
        min_relevance: float = 0.0,
        media_model: BaseChatModel | str | None = None,
    ) -> None:
        if not 0 <= deleted_days <= _MOST_DELETED_DAYS:
            raise InvalidInput(f"deleted_days is from 0 to {_MOST_DELETED_DAYS:g}, not {deleted_days}")
        self.store = store
        self.base_namespace = tuple(base_namespace)
        self.max_results = max_results
        self.agent_name = agent_name
        policy = MemoryPolicy.of(
            embeddings=embeddings,
            secrets=secrets,
            quota=quota,
            audit=audit,
            agent_scope_enabled=agent_scope_enabled,
            max_content_bytes=max_content_bytes,
            timezone=timezone,
            counts_access=counts_access,
            deleted_days=deleted_days,
            confirm=confirm,
            clock=clock,
            spaces=spaces,
            min_relevance=min_relevance,
            media_model=media_model,
        )
        scope = replace(
            scope_on(store, policy, agent_name),
            store=store,
            actor=actor or Actor(),
            max_results=max_results,
            cold_seconds=COLD_SECONDS if timeout is None else _COLD_SHARE * timeout,
        )
        self.ns_builder = scope.namespaces
        super().__init__(scope, timeout)
        self.sync = SyncMemoryService(scope, timeout)

    @classmethod
    def from_settings(cls, settings: MemorySettings, store: BaseStore, **options: Any) -> AgentMemoryStoreService:
        """Creates the service that ``settings`` describe, on ``store``.

        ``options`` are arguments of the constructor; they override the settings. Raises ConfigurationError if the
        store, the embeddings or the time zone cannot be used, and InvalidInput for another invalid argument.
        """
        from inference_core.settings import policy_of  # noqa: PLC0415 - whoever has settings has loaded it

        chosen: dict[str, Any] = {
            "max_results": settings.max_results,
            "timeout": settings.timeout,
            **policy_of(settings),
        }
        return cls(store, **chosen | options)


def _of_user(operation: MemoryOperation[Concatenate[UserId, P], T]) -> Faces[Concatenate[UserMemory, P], T]:
    def on_memory(memory: UserMemory, /, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        return operation.checked(memory.scope, memory.user_id, *args, **kwargs)

    return faces(on_memory, operation.body, hidden=2)


class UserMemory(ServiceBase):
    """One user's memory, as ``store.memory("ada")`` returns it. For other LangGraph stores, create it from a service.

    `add`, `search`, `all`, `update` and `delete` block; `aadd`, `asearch`, `aall`, `aupdate` and `adelete` are
    coroutines. `add`, `search`, `update` and `delete` take the arguments of the service's `save_memory`,
    `recall_memories`, `update_memory` and `delete_memory` without the user; `all` returns all memories, of a category
    or a type if given. Raises InvalidId for an invalid user id.
    """

    def __init__(self, service: AgentMemoryStoreService, user_id: UserId) -> None:
        encode_label(user_id)
        super().__init__(service.scope, service.timeout)
        self.user_id = user_id

    add = _of_user(save).sync
    aadd = _of_user(save).aio
    search = _of_user(recall).sync
    asearch = _of_user(recall).aio
    all = _of_user(list_all).sync
    aall = _of_user(list_all).aio
    aupdate = _of_user(update).aio
    update = _of_user(update).sync
    adelete = _of_user(delete).aio
    delete = _of_user(delete).sync

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, user_id={self.user_id!r})"


__all__ = [
    "INDEXED_FIELDS",
    "MEMORIES_STORE_NAME",
    "MEMORY_CATEGORIES",
    "MEMORY_TYPES",
    "MEMORY_TYPE_TO_CATEGORY",
    "AgentMemoryStoreService",
    "MemoryCategory",
    "MemoryData",
    "MemoryMetadata",
    "MemoryNamespaceBuilder",
    "MemoryStoreDocument",
    "MemoryType",
    "MemoryTypeDescription",
    "SyncMemoryService",
    "UserMemory",
    "count_user_long_term_memory",
    "count_user_memories",
    "delete_user_long_term_memory_entries",
    "delete_user_long_term_memory_entry",
    "delete_user_memory_entries",
    "delete_user_memory_entry",
    "format_memory_types_for_description",
    "get_category_for_type",
    "get_memory_category_literal",
    "get_memory_type_literal",
    "get_types_for_category",
    "list_user_long_term_memory",
    "list_user_memories",
    "list_users",
    "open_memory_store",
    "purge_user_long_term_memory",
    "purge_user_memories",
    "validate_memory_category",
    "validate_memory_type",
]
