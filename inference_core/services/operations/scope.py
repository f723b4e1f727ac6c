"""What every operation works with: the application's policy, the store's engine and the namespaces of one agent.

Requests are idempotent: clients repeat them under a key of their own until they get an answer; each runs once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

from langgraph.store.base import BaseStore

from inference_core.asking import chat_model
from inference_core.clock import Clock, SystemClock, aware, time_zone
from inference_core.effects import Operation
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import ConfigurationError, InvalidInput, InvalidMemory, VersionConflict
from inference_core.memory.audit import Actor, Cause, actor_of
from inference_core.memory.namespaces import (
    FORGOTTEN,
    MemoryNamespaceBuilder,
    Namespace,
    Owner,
    encode_label,
    sidecar_namespace,
)
from inference_core.memory.quota import Quota
from inference_core.memory.record import MemoryRecord, is_of_known_schema, turn_session_of
from inference_core.memory.redaction import DEFAULT_GUARD, Guard, Policy
from inference_core.memory.secrets import quoted
from inference_core.memory.spaces import Spaces
from inference_core.memory.text import (
    MAX_CONTENT_BYTES,
    canonical_id,
    canonical_text,
    encode_json,
    optional_text,
    text_field,
    texts_field,
)
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryCategory, MemoryType, get_category_for_type, validate_memory_category
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import Expiry, Put, Row, Write, WriteRule
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing.search import COLD_SECONDS
from inference_core.stores.rules.erasure_epoch import AllFences
from inference_core.stores.rules.versions import State

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
else:
    BaseChatModel = Any  # chat models are slow to import: whoever gives one has loaded them

T = TypeVar("T")
UserId = Owner
ATTEMPTS: Final = 100
MAX_TAGS: Final = 32
DEFAULT_DELETED_DAYS: Final = 7.0


class PolicyOptions(TypedDict, total=False):
    """How a service or an agent uses the store that it is given. `MemoryPolicy` has the defaults."""

    agent_scope_enabled: bool
    """False: read and write shared memories only."""
    embeddings: EmbeddingsSpec
    """The embedding model, for a store that `open_store` did not make."""
    secrets: Policy | Guard | None
    """What happens to credentials, for the same stores: "redact" (the default), "reject", "off" or a `Guard`."""
    quota: Quota | None
    """The limits of each user, for the same stores."""
    audit: bool
    """Whether changes of memories leave audit events, for the same stores; True by default."""
    timezone: str | tzinfo
    """Decides to which day a memory belongs, unless the run's context names a zone; UTC by default."""
    max_content_bytes: int
    """The maximum size of a memory's content in bytes of UTF-8; longer ones are refused. 8,192 by default."""
    counts_access: bool
    """Whether to count recalls; True by default."""
    deleted_days: float
    """For how many days deleted memories can be restored and replaced texts read; 7 by default."""
    confirm: Collection[str]
    """Names of categories; what agents write into them waits for the user's confirmation. Empty by default."""
    spaces: Spaces | None
    """Adds the memories of spaces in which the user has a role; None, the default: shared memories are not read."""
    min_relevance: float
    """The least relevance, from 0 to 1, of memories that answer a question, in recalls and prompts; 0 by default."""
    media_model: BaseChatModel | str | None
    """The chat model, or its name, with which workers put pictures and recordings in messages into words; without one,
    the default, these are left out."""
    clock: Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """`PolicyOptions`, checked and with defaults. Made once, from what users pass, and from then on passed as a whole.

    ``zone`` is the option ``timezone``.
    """

    agent_scope_enabled: bool = True
    embeddings: EmbeddingsSpec = None
    secrets: Guard = DEFAULT_GUARD
    quota: Quota | None = None
    audit: bool = True
    zone: tzinfo = UTC
    max_content_bytes: int = MAX_CONTENT_BYTES
    counts_access: bool = True
    deleted_days: float = DEFAULT_DELETED_DAYS
    confirm: Collection[str] = ()
    spaces: Spaces | None = None
    min_relevance: float = 0.0
    media_model: BaseChatModel | str | None = None
    clock: Clock = SystemClock()  # noqa: RUF009 - it has no state

    @classmethod
    def of(cls, **options: Unpack[PolicyOptions]) -> MemoryPolicy:
        """The policy that ``options`` describe. Raises ConfigurationError, InvalidCategory; TypeError for others."""
        chosen: dict[str, Any] = {**options}
        zone = chosen.pop("timezone", UTC)
        chosen["zone"] = time_zone(zone) if isinstance(zone, str) else zone
        chosen["secrets"] = Guard.of(chosen.get("secrets"))
        chosen["confirm"] = frozenset(map(validate_memory_category, chosen.get("confirm", ())))
        chosen["clock"] = chosen.get("clock") or SystemClock()
        if not is_share(least := chosen.get("min_relevance", 0.0)):
            raise ConfigurationError(f"min_relevance must be a number from 0 to 1, not {quoted(least)}")
        if not isinstance(model := chosen.get("media_model"), str | None):
            chat_model(model)  # raises for anything else; a name becomes a model only where it is asked
        return cls(**chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScope(MemoryPolicy):
    """One agent's view of a store, under the application's policy.

    A store from `open_store` keeps its own embeddings, secrets, quota and audit; those of the policy do not count.
    ``zone`` is the user's time zone where nothing more precise is known. ``actor`` is who the audit trail names.
    ``spares_pins``: saving the words of a pinned memory again does not change it. ``store`` is a reference that keeps
    the store from being garbage-collected; an engine holds none. ``beside`` are writes that each batch also makes, in
    its transaction. ``since``: the fences at the time when the work that these writes are part of, such as an import,
    began. ``cold_seconds`` is how many seconds a direct recall waits for a model that is being loaded, and for an index
    that is not there yet.
    """

    engine: StoreEngine
    namespaces: MemoryNamespaceBuilder
    max_results: int = 5
    actor: Actor = Actor()  # noqa: RUF009 - it does not change
    spares_pins: bool = False
    store: BaseStore | None = None
    beside: tuple[Write, ...] = ()
    since: AllFences | None = None
    cold_seconds: float = COLD_SECONDS

    @property
    def kept_until(self) -> datetime | None:
        """Until when a memory deleted now can be restored, and a text replaced now read; None: neither is kept."""
        try:
            return self.clock.now() + timedelta(days=self.deleted_days) if self.deleted_days else None
        except OverflowError:  # at the end of the calendar
            return datetime.max.replace(tzinfo=UTC)

    def write(
        self,
        batch: Sequence[Write],
        operation: str,
        *,
        source: MemorySource | None = None,
        job: str | None = None,
        embeds: bool = True,
        is_clean: bool = False,
        rules: Sequence[WriteRule] = (),
    ) -> Operation[list[int]]:
        """Applies ``batch`` like `StoreEngine.write`, attributed to ``actor`` or, by default, as ``source`` says."""
        actor = self.actor
        if source is not None and actor == Actor():
            actor = actor_of(source, self.namespaces.agent_name)
        cause = Cause(at=self.clock.now(), operation=operation, actor=actor, keep_until=self.kept_until, job=job)
        return self.engine.write(
            [*batch, *self.beside], cause=cause, embeds=embeds, is_clean=is_clean, since=self.since, rules=rules
        )

    def spend(self, user_id: UserId) -> None:
        """Counts a write of the user by this agent. Raises QuotaExceeded if there were too many in the last minute."""
        now = self.clock.now().timestamp()
        self.engine.quotas.spend(encode_label(user_id), self.namespaces.agent_name, now)

    def note_recalled(self, records: Sequence[MemoryRecord], at: datetime) -> None:
        """Counts the recall of ``records`` and renews their time to live, as far as these are on; never waits."""
        self.engine.extend_later(records)
        if self.counts_access:
            self.engine.accesses.note([(record.namespace, record.id) for record in records], at)


async def find(
    scope: MemoryScope, user_id: UserId, memory_id: str, namespaces: Sequence[Namespace] | None = None
) -> MemoryRecord | None:
    """The memory with this id in ``namespaces``, by default the user's own that the agent reads; None if there is none.

    Raises UnsupportedSchema if a newer version of this package wrote it.
    """
    row = await find_row(scope, user_id, memory_id, namespaces=namespaces)
    return record_of(row) if row else None


async def find_row(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    category: str | None = None,
    namespaces: Sequence[Namespace] | None = None,
) -> Row | None:
    """Like `find`, but returns the row, whichever version of the package wrote it.

    ``category`` narrows down the default scopes.
    """
    key, homes = canonical_id(memory_id), namespaces or scope.namespaces.read_scopes(user_id, category)
    rows = await scope.engine.get([(namespace, key) for namespace in homes])
    return next((row for row in rows if row), None)


def archive_keys(homes: Iterable[Namespace], key: str) -> list[tuple[Namespace, str]]:
    """The keys at which the archives of ``homes`` keep the memory with the id ``key``."""
    return [(sidecar_namespace(home, FORGOTTEN), key) for home in homes]


def category_of(kind: MemoryType, category: str | None) -> MemoryCategory:
    """The given category, else the one that the type is routed to."""
    if category is None:
        return get_category_for_type(kind.value)
    return MemoryCategory(validate_memory_category(category))


def check_version(memory_id: str, version: int, expected: int | None) -> None:
    """Raises VersionConflict unless ``version`` is ``expected`` (None: any), InvalidInput if that is not a version."""
    if expected is None:
        return
    if isinstance(expected, bool) or not isinstance(expected, int) or expected < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise InvalidInput(f"expected_version must be a version of a memory, from 1 on, not {quoted(expected)}")
    if version != expected:
        raise VersionConflict(f"The memory {quoted(memory_id)} is at version {version}, not {expected}; read it again")


async def retried(attempt: Callable[[], Operation[T]]) -> T:
    """Runs ``attempt`` up to `ATTEMPTS` times, until it raises no VersionConflict; returns its result.

    Raises the last VersionConflict if others keep changing what it writes.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except VersionConflict:
            continue
    return await attempt()


def records_of(rows: Iterable[Row | None]) -> list[MemoryRecord]:
    """The records in ``rows``, without missing rows and memories that a newer version of the package wrote."""
    return [record_of(row) for row in rows if row and is_known(row)]


def is_known(row: Row) -> bool:
    """Whether this version of the package can read the memory that ``row`` holds."""
    return is_of_known_schema(row.value)


def record_of(row: Row) -> MemoryRecord:
    """The record that ``row`` holds, read once. Raises UnsupportedSchema if a newer version of the package wrote it."""
    record: MemoryRecord | None = row.parsed.get(MemoryRecord)
    if record is None:
        record = row.parsed[MemoryRecord] = MemoryRecord.from_value(
            row.value,
            memory_id=row.key,
            namespace=row.namespace,
            stored_at=row.created_at,
            updated_at=row.updated_at,
            version=row.version,
        )
    return record


def record_at(state: State, namespace: Namespace, memory_id: str) -> MemoryRecord:
    """The record of a memory in ``namespace`` at an earlier ``state``. Raises UnsupportedSchema."""
    return MemoryRecord.from_value(
        state.value,
        memory_id=memory_id,
        namespace=namespace,
        stored_at=state.created_at,
        updated_at=state.updated_at,
        version=state.version,
    )


def put_of(record: MemoryRecord, expected: int | None = None, memory_id: str | None = None) -> Put:
    """The write that stores ``record``, if it is at version ``expected``; under ``memory_id``, by default its own."""
    source = record.source
    # A reply to a tool's result has the tool's origin and names its message. What an agent saved by tool is no reply.
    is_after_tool = source.origin is Origin.TOOL and bool(source.message_ids)
    value = record.to_value()
    situation = DocumentMetadata(
        session=turn_session_of(value) or "",
        by_assistant=source.tool is None and (source.origin is Origin.AGENT or is_after_tool),
        happened_at=record.happened_at.timestamp(),
        importance=1.0 if record.pinned else record.importance,
    )
    return Put(
        namespace=record.namespace,
        key=record.id if memory_id is None else memory_id,
        value=encode_json(value, what="memory"),
        document=Document.soon_of(record.indexed_text, situation),
        kind=record.memory_type.value,
        created_at=record.created_at,
        updated_at=record.updated_at,
        expected=expected,
    )


def checked_moment(moment: datetime | None, what: str) -> datetime | None:
    """``moment`` in UTC, which is also assumed if it has no zone. Raises InvalidMemory if it is not an instant."""
    if moment is None:
        return None
    try:
        return aware(moment)
    except (AttributeError, OverflowError) as error:
        raise InvalidMemory(
            f"{what} must be a datetime within the calendar, such as datetime(2026, 1, 31), not {quoted(moment)}"
        ) from error


def checked_tags(tags: Sequence[str] | None) -> tuple[str, ...]:
    """``tags``, each once; None: none. Raises InvalidMemory unless it is a list of at most 32 short texts."""
    if tags is None:
        return ()
    if not isinstance(tags, list | tuple) or len(tags) > MAX_TAGS:
        raise InvalidMemory(f"tags must be a list of at most {MAX_TAGS} short texts")
    return tuple(dict.fromkeys(canonical_text(tag, what="tag", max_bytes=128) for tag in tags))


def is_share(value: object) -> bool:
    """Whether ``value`` is a number from 0 to 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def checked_importance(importance: float) -> float:
    """``importance``. Raises InvalidMemory unless it is a number from 0 to 1."""
    if not is_share(importance):
        raise InvalidMemory(f"importance must be a number from 0 to 1, not {quoted(importance)}")
    return float(importance)


def row_filter(
    tags: Sequence[str] | None = None,
    session_id: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> Callable[[Row], bool] | None:
    """A test of whether the memory in a row has all ``tags``, is of the session and was stored between the instants.

    ``created_after`` is inclusive, ``created_before`` exclusive. None if there is nothing to test. Raises InvalidInput.
    """
    wanted, session = set(checked_tags(tags)), optional_text(session_id, what="session_id")
    start, end = checked_moment(created_after, "created_after"), checked_moment(created_before, "created_before")
    if start and end and start >= end:
        raise InvalidInput(f"created_after ({start}) must be earlier than created_before ({end})")
    if not wanted and session is None and start is None and end is None:
        return None

    def matches(row: Row) -> bool:
        if (start is not None and row.created_at < start) or (end is not None and row.created_at >= end):
            return False
        return session in (None, text_field(row.value, "session_id")) and wanted <= {*texts_field(row.value, "tags")}

    return matches


REQUESTS: Final = "~requests"
"""Second label of the namespace with the idempotency keys of a user's requests; no category and no agent has it."""
REQUEST_TTL: Final = timedelta(days=1)
MAX_REQUEST_KEY_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Request:
    """A request. The store keeps its ``mark``; writing the mark fails if the user has used the key before.

    ``id`` is derived from the request's key and its fields, ``digest`` from its fields alone.
    """

    mark: Put
    id: str
    digest: str


async def request_of(scope: MemoryScope, user_id: UserId, request_key: str, told: Mapping[str, Any]) -> Request:
    """The request with this key, whose fields are ``told``. Raises InvalidMemory for an invalid key."""
    name = canonical_text(request_key, what="idempotency key", max_bytes=MAX_REQUEST_KEY_BYTES)
    body = encode_json({field: str(value) for field, value in told.items()}, what="request")
    secret = await scope.engine.content_key()  # without it, what is kept says nothing about the memory
    key, digest, request_id = (
        hmac.new(secret, text.encode(), "sha256").hexdigest() for text in (name, body, f"{name}\n{body}")
    )
    now = scope.clock.now()
    mark = Put(
        namespace=(encode_label(user_id), REQUESTS),
        key=key,
        value=encode_json({"digest": digest}, what="request"),
        updated_at=now,
        expected=0,
        expiry=Expiry(now + REQUEST_TTL, REQUEST_TTL),
    )
    return Request(mark, request_id[:32], digest)


async def check_same(scope: MemoryScope, request: Request) -> None:
    """Raises InvalidInput if the key of ``request`` was used for a request with other fields."""
    (row,) = await scope.engine.get([(request.mark.namespace, request.mark.key)])
    if row and row.value.get("digest") != request.digest:
        raise InvalidInput("This idempotency key was used for another request; choose a new one")
