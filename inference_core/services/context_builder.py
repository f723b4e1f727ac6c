"""ContextBuilder: the context of a prompt, from many sources that are asked side by side under one deadline.

For applications that build prompts themselves. An agent's turn does not come through here, but through
`operations/prompt_context.py`. A `ContextSource` returns a part of the context. Those of this package return memories,
what belongs to them, the conversation, and what holds for all users. They stand beside the builder that asks them,
which makes the module a long one.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from functools import partial
from inspect import isawaitable
from itertools import zip_longest
from typing import Any, Final, Protocol, cast, runtime_checkable

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    SystemMessage,
    convert_to_messages,
)

from inference_core.asking import chat_model
from inference_core.clock import in_zone
from inference_core.context.engineer import DEFAULT_MAX_TOKENS, SPEAKERS, SUMMARY, ContextEngineer, with_summary
from inference_core.context.items import AssembledContext, ContextItem, section_of
from inference_core.effects import Deadline, Effect, Operation, WorkerPool, arun, run
from inference_core.errors import (
    ConfigurationError,
    DeadlineExceeded,
    IdentityError,
    InvalidId,
    ModelError,
    StoreUnavailable,
)
from inference_core.memory.namespaces import Namespace, Space, encode_label, global_namespace
from inference_core.memory.record import MemoryRecord, why_invalid
from inference_core.memory.text import text_field
from inference_core.memory.trust import Trust
from inference_core.memory.types import IDEA, MemoryCategory, MemoryType, validate_memory_category, validate_memory_type
from inference_core.outbox.messages import author_of
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.operations.messages import MAX_KEPT, kept_messages, said_at
from inference_core.services.operations.recall import asks, at_least
from inference_core.services.operations.scope import MemoryScope, UserId, record_of
from inference_core.stores.backend import Row
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import refuse_mock
from inference_core.stores.indexing.indexes import Snapshot
from inference_core.stores.indexing.search import FoundRow, Search, SearchResult

Given = Awaitable[Sequence[ContextItem]] | Sequence[ContextItem]
"""Items, or an awaitable of them, which runs on an event loop of its own."""


class SharedSearches:
    """The searches of several sources, by source; the first one that asks for its result runs all of them at once."""

    def __init__(self, engine: StoreEngine, searches: Mapping[str, Search]) -> None:
        self._engine = engine
        self._searches = searches
        self._results: Future[dict[str, SearchResult]] = Future()
        self._results.set_running_or_notify_cancel()  # so that a source that gives up does not cancel it for others
        self._lock = threading.Lock()
        self._is_begun = False

    def holds(self, source: str) -> bool:
        """Whether the search of ``source`` is among them."""
        return source in self._searches

    @property
    def necessity(self) -> float | None:
        """The log-odds that a reply to their text needs memory; None if no model tells, or nothing was found so far."""
        is_found = self._results.done() and not self._results.cancelled() and self._results.exception() is None
        return next((one.necessity for one in self._results.result().values()), None) if is_found else None

    async def result_of(self, source: str) -> SearchResult:
        """What the search of ``source`` found. Blocks the thread of the source. Raises StoreError."""
        with self._lock:
            is_first, self._is_begun = not self._is_begun, True
        if is_first:
            try:
                results = await self._engine.search_together(list(self._searches.values()))
                self._results.set_result(dict(zip(self._searches, results, strict=True)))
            except BaseException as error:  # noqa: BLE001 - each source that asks gets it
                self._results.set_exception(error)
        return (await Effect(lambda: self._results))[source]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """What the sources of a context are asked. ``scope`` is the agent's view of the store, ``now`` an aware datetime.

    ``shared`` holds the search results that sources share, so each search runs once.
    """

    user_id: str
    query: str | None
    messages: Sequence[BaseMessage]
    scope: MemoryScope
    now: datetime
    shared: SharedSearches | None = None

    async def search(self, source: str, search: Search) -> SearchResult:
        """What ``source`` finds by ``search``, ranked once for all that ask the same. Raises StoreError."""
        is_shared = self.shared is not None and self.shared.holds(source)
        found = self.shared.result_of(source) if self.shared and is_shared else self.scope.engine.search(search)
        return at_least(self.scope.min_relevance, await found)

    @property
    def question(self) -> str | None:
        """The query, None if it is blank. Raises InvalidInput if it is not text."""
        return self.query if self.query is not None and asks(self.query) else None

    @property
    def zone(self) -> tzinfo:
        """The user's time zone."""
        return self.scope.zone


@runtime_checkable
class ContextSource(Protocol):
    """A source of context. It returns items of the request's user only.

    ``fetch`` may block and may raise: it runs on a thread of its own, and a source that is late or fails is left out.
    """

    @property
    def name(self) -> str:
        """Unique among the sources of a builder."""
        ...

    @property
    def section(self) -> str:
        """The heading of its items; "" if it has several."""
        ...

    @property
    def limit(self) -> int:
        """How many items it may return; more are cut off."""
        ...

    def fetch(self, request: ContextRequest) -> Given:
        """Its items for ``request``, the best first."""
        ...


@runtime_checkable
class SearchingSource(ContextSource, Protocol):
    """A source that searches for the question, and takes the result from `ContextRequest.search`."""

    def question(self, request: ContextRequest) -> Search | None:
        """Its search for the question; None if it runs none, or another one. May raise what its ``fetch`` raises."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSource:
    """Your own source. ``find`` returns texts or items, and may be a coroutine function."""

    name: str
    find: Callable[[ContextRequest], Iterable[str | ContextItem] | Awaitable[Iterable[str | ContextItem]]]
    section: str = ""
    limit: int = 10

    def fetch(self, request: ContextRequest) -> Given:
        """The items that ``find`` returns. Texts have no relevance, so they are not pruned."""
        section = self.section or self.name

        def items(found: Iterable[str | ContextItem]) -> list[ContextItem]:
            return [
                ContextItem(id=str(at), text=one, section=section, source=self.name, score=-at)
                if isinstance(one, str)
                else one
                for at, one in enumerate(found)
            ]

        async def awaited(found: Awaitable[Iterable[str | ContextItem]]) -> Sequence[ContextItem]:
            return items(await found)

        found = self.find(request)
        return awaited(found) if isawaitable(found) else items(found)


class StoreSource(ABC):
    """A source that reads the store: its ``fetch`` blocks."""

    __slots__ = ()

    def fetch(self, request: ContextRequest) -> Given:
        """Its items for ``request``, the best first. Raises StoreError."""
        return run(self.items(request))

    @abstractmethod
    def items(self, request: ContextRequest) -> Operation[list[ContextItem]]:
        """The same, as an operation."""


Accepts = Callable[[MemoryRecord], bool]
"""Whether a source returns this memory."""
_READ: Final = 1_000
"""This many of a category's newest memories are read to list what does not depend on a question."""
_WAIT_S: Final = 2.0
_OVER: Final = ("done", "dropped")
_QUERY_CHARACTERS: Final = 2_000
_RELATION_PARTS: Final = 3
_SPEAKERS: Final = {"human": ("user", Trust.STATED), "ai": ("assistant", Trust.INFERRED)}
_OTHERS: Final = ("tool", Trust.EXTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories(StoreSource):
    """The memories that fit the question best, ``limit`` in all.

    The ``categories`` take turns, the best of each first; where one has no more, the others fill up. ``types`` and
    ``accepts`` filter them before that. ``section`` "" means that of each one's category. With ``judged`` off, or
    without a question, they are the newest ones, or with ``by_importance`` the most important, among the thousand
    newest of each category; these are shown whatever the question. Its fetch raises InvalidInput, StoreUnavailable.
    """

    name: str = "memories"
    section: str = ""
    limit: int = 30
    categories: Sequence[str | MemoryCategory] = tuple(MemoryCategory)
    types: Sequence[str | MemoryType] | None = None
    accepts: Accepts = lambda _: True
    judged: bool = True
    by_importance: bool = False

    async def items(self, request: ContextRequest) -> list[ContextItem]:
        """The memories, the best of each category first."""
        groups, search = list[Sequence[FoundRow]](), self.question(request)
        if search is not None:
            groups += (await request.search(self.name, search)).groups
        else:
            for namespaces in self._groups(request):
                rows = await _newest(request, namespaces, self._kinds())
                hits = [
                    FoundRow(row, record.importance if self.by_importance else 0.0)
                    for row in rows
                    if self.accepts(record := record_of(row))
                ]
                groups.append(sorted(hits, key=lambda hit: hit.score, reverse=True))
        in_turn = [hit for place in zip_longest(*groups) for hit in place if hit is not None]
        return [item_of(hit, self.name, self.section) for hit in in_turn[: self.limit]]

    def question(self, request: ContextRequest) -> Search | None:
        """The search for the question; None if it returns the newest or the most important. Raises InvalidInput."""
        if not self.judged or request.question is None:
            return None

        def rejects(row: Row) -> str | None:
            return None if self.accepts(record_of(row)) else "not of this source"

        return search_for(request, request.question, self._groups(request), self.limit, self._kinds(), rejects)

    def _groups(self, request: ContextRequest) -> list[list[Namespace]]:
        names = map(validate_memory_category, self.categories)
        return [request.scope.namespaces.read_scopes(request.user_id, name) for name in names]

    def _kinds(self) -> frozenset[str] | None:
        return None if self.types is None else frozenset(map(validate_memory_type, self.types))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociatedMemories(StoreSource):
    """Memories on the same subjects as the ``seeds`` that fit the question best, which do not fit it themselves.

    The relevance of an associated memory is that of the best fit, times its own to the seeds. The ``known`` best fits
    are left out, as they are found without this source. Its fetch raises StoreUnavailable.
    """

    name: str = "associated"
    section: str = "associated_memory"
    limit: int = 10
    seeds: int = 3
    known: int = 30

    async def items(self, request: ContextRequest) -> list[ContextItem]:
        """The memories, the best first; none without a question."""
        search = self.question(request)
        best = (await request.search(self.name, search)).groups[0] if search else []
        text = " ".join(record_of(hit.row).content for hit in best[: self.seeds])[:_QUERY_CHARACTERS]
        if not asks(text):
            return []
        known = {(hit.row.namespace, hit.row.key) for hit in best}
        share = max(hit.relevance or 0.0 for hit in best)

        def rejects(row: Row) -> str | None:
            return "fits by itself" if (row.namespace, row.key) in known else None

        namespaces = request.scope.namespaces.read_scopes(request.user_id)
        search = search_for(request, text, [namespaces], self.limit, None, rejects)
        result = await request.scope.engine.search(search)
        return [item_of(hit, self.name, self.section, share) for hit in result.groups[0]]

    def question(self, request: ContextRequest) -> Search | None:
        """The search for the seeds; None without a question."""
        return search_in_all(request, max(self.known, self.seeds))


def goals(limit: int = 20, *, judged: bool = False) -> Memories:
    """The user's open goals, the most important first; with ``judged`` those that fit the question."""
    return Memories(
        name="goals",
        section="goals",
        limit=limit,
        categories=(MemoryCategory.SEMANTIC,),
        types=(MemoryType.GOALS,),
        accepts=lambda record: _is_open(record) and IDEA not in record.tags,
        judged=judged,
        by_importance=True,
    )


def ideas(limit: int = 20, *, judged: bool = False) -> Memories:
    """The user's open ideas, the most important first; with ``judged`` those that fit the question.

    Ideas are goals, general memories and passing circumstances tagged "idea".
    """
    return Memories(
        name="ideas",
        section="ideas",
        limit=limit,
        categories=(MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC),
        types=(MemoryType.CONTEXT, MemoryType.GOALS, MemoryType.GENERAL),
        accepts=lambda record: _is_open(record) and IDEA in record.tags,
        judged=judged,
        by_importance=True,
    )


def _is_open(record: MemoryRecord) -> bool:
    return text_field(record.extra_metadata, "state") not in _OVER


def consolidated_memories(limit: int = 10, *, judged: bool = True) -> Memories:
    """Summaries of sessions, and memories that were drawn from others."""
    return Memories(
        name="consolidated",
        section="consolidated_memory",
        limit=limit,
        categories=(MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC),
        types=(MemoryType.SESSION_SUMMARY, MemoryType.GENERAL),
        accepts=lambda record: record.memory_type is MemoryType.SESSION_SUMMARY or bool(record.cites),
        judged=judged,
    )


@dataclass(slots=True)
class _Entity:
    """What memories of one trust level say about an entity."""

    name: str
    kind: str
    trust: Trust
    newest: MemoryRecord
    relevance: float | None = None
    score: float = 0.0
    mentions: int = 0
    relations: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, hit: FoundRow, record: MemoryRecord) -> None:
        self.newest = max(self.newest, record, key=lambda known: known.happened_at)
        self.mentions += 1
        if hit.relevance is not None:
            self.relevance = max(self.relevance or 0.0, hit.relevance)
        self.score = max(self.score, hit.score)
        for noted in map(_list, _list(record.extra_metadata.get("relations"))):
            relation = list(map(str, noted))
            if len(relation) == _RELATION_PARTS and self.name.casefold() in map(str.casefold, relation[::2]):
                self.relations[" ".join(relation).replace("_", " ")] = None

    def rank(self) -> tuple[float, float, datetime]:
        """Orders entities: by relevance where a question was asked, else by how many memories name them."""
        score = self.mentions if self.relevance is None else self.score
        return self.relevance or 0.0, score, self.newest.happened_at

    def item(self, section: str, source: str) -> ContextItem:
        head = f"{self.name} ({self.kind})" if self.kind else self.name
        return ContextItem(
            id=f"{self.name.casefold()} {self.trust.value}",
            text=f"{head}: {'; '.join(self.relations)}" if self.relations else head,
            section=section,
            source=source,
            kind="entity",
            happened_at=self.newest.happened_at,
            trust=self.trust,
            relevance=self.relevance,
            score=self.rank()[1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entities(StoreSource):
    """The entities that the user's memories name, each with its relations in one line.

    The thousand newest memories are read; the entities that most of them name come first, the newest first among
    equals. With ``judged``, only the ``read`` memories that fit the question best count, and an entity is as relevant
    as the most relevant memory that names it. Memories of different trust make different entities. Its fetch raises
    StoreUnavailable.
    """

    name: str = "entities"
    section: str = "entities"
    limit: int = 20
    read: int = 20
    judged: bool = False

    async def items(self, request: ContextRequest) -> list[ContextItem]:
        """The entities, the best first; none with ``judged`` and without a question."""
        entities: dict[tuple[str, Trust], _Entity] = {}
        if search := self.question(request):
            hits: Sequence[FoundRow] = (await request.search(self.name, search)).groups[0]
        else:
            namespaces = request.scope.namespaces.read_scopes(request.user_id)
            rows = [] if self.judged else await _newest(request, namespaces)
            hits = [FoundRow(row, 0.0) for row in rows]
        for hit in hits:
            record = record_of(hit.row)
            for noted in _list(record.extra_metadata.get("entities")):
                fields = cast("dict[str, Any]", noted) if isinstance(noted, dict) else {}  # metadata may hold anything
                if not (name := text_field(fields, "name")):
                    continue
                unseen = _Entity(name, text_field(fields, "kind") or "", record.trust, record)
                entities.setdefault((name.casefold(), record.trust), unseen).add(hit, record)
        best = sorted(entities.values(), key=_Entity.rank, reverse=True)
        return [entity.item(self.section, self.name) for entity in best[: self.limit]]

    def question(self, request: ContextRequest) -> Search | None:
        """The search for the question; None if there is no question, or ``judged`` is off."""
        return search_in_all(request, self.read) if self.judged else None


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentMessages(StoreSource):
    """The last ``limit`` messages and answers, in their order, without the question itself.

    They are those of the request, or, if it has none, those that `add_messages` and `add_completion` kept in the store.
    ``speakers`` narrows them down: "user", "assistant", "tool". Its fetch raises StoreUnavailable.
    """

    name: str = "recent_messages"
    section: str = "recent_messages"
    limit: int = 10
    speakers: Sequence[str] = SPEAKERS

    async def items(self, request: ContextRequest) -> list[ContextItem]:
        """The messages with text, except system messages."""
        messages = request.messages or await kept_messages(request.scope, request.user_id, MAX_KEPT)
        said = [message for message in messages if not isinstance(message, SystemMessage) and message.text.strip()]
        if said and said[-1].text == request.query:
            said = said[:-1]
        speakers = [_speaker(message, request.user_id) for message in said]
        chosen = [
            ContextItem(
                id=message.id or str(at),
                text=message.text,
                section=self.section,
                source=self.name,
                kind=kind,
                happened_at=said_at(message),
                trust=trust,
                score=at,
            )
            for at, (message, (kind, trust)) in enumerate(zip(said, speakers, strict=True))
            if kind in self.speakers
        ]
        return chosen[-self.limit :]


def _speaker(message: BaseMessage, user_id: str) -> tuple[str, Trust]:
    """Who said it, and how far it is trusted; other people's words are not the user's."""
    kind, trust = _SPEAKERS.get(message.type, _OTHERS)
    is_others = isinstance(message, HumanMessage) and author_of(message.name, user_id)
    return kind, Trust.EXTERNAL if is_others else trust


@dataclass(frozen=True, slots=True)
class StaticFacts(StoreSource):
    """What holds for all users: ``facts``, or, without them, what the `StaticMemory` of this ``name`` has stored."""

    facts: Sequence[str] | None = None
    name: str = "static_memory"
    section: str = "static_memory"
    limit: int = 50

    async def items(self, request: ContextRequest) -> list[ContextItem]:
        """The facts in their order. Raises StoreUnavailable."""
        if self.facts is not None:
            return [
                ContextItem(id=str(at), text=fact, section=self.section, source=self.name, kind="facts", score=-at)
                for at, fact in enumerate(self.facts)
            ]
        namespace = global_namespace(MemoryCategory.SEMANTIC, self.name)
        rows = await request.scope.engine.page([namespace], limit=self.limit)
        return [
            replace(ContextItem.of(record, source=self.name, section=self.section), happened_at=None)
            for record in map(record_of, rows)
        ]


def _newest(
    request: ContextRequest, namespaces: Sequence[Namespace], kinds: frozenset[str] | None = None
) -> Operation[list[Row]]:
    """The newest memories of ``namespaces`` that hold now, from the snapshot, whose rows are parsed once."""

    def rejects(row: Row) -> str | None:
        return why_invalid(row.value, request.now)

    def newest(snapshot: Snapshot) -> list[Row]:
        return snapshot.newest(namespaces, kinds=kinds, limit=_READ, reject=rejects)

    return request.scope.engine.read(namespaces, newest)


def search_in_all(request: ContextRequest, limit: int) -> Search | None:
    """A search for the ``limit`` memories of any category that fit the question best; None without a question."""
    namespaces = request.scope.namespaces.read_scopes(request.user_id)
    return None if request.question is None else search_for(request, request.question, [namespaces], limit)


def search_for(
    request: ContextRequest,
    text: str,
    groups: Sequence[Sequence[Namespace]],
    limit: int,
    kinds: frozenset[str] | None = None,
    rejects: Callable[[Row], str | None] | None = None,
) -> Search:
    """A search for the ``limit`` memories of each group that fit ``text`` best and hold now."""
    return Search(
        groups=groups,
        text=text,
        limit=limit,
        kinds=kinds,
        reject=lambda row: why_invalid(row.value, request.now) or (rejects(row) if rejects else None),
        explains=True,
        links=None,
        wait_seconds=_WAIT_S,
        now=in_zone(request.now, request.zone),
    )


def item_of(hit: FoundRow, source: str, section: str, share: float = 1.0) -> ContextItem:
    """The item of a hit, with ``share`` of its relevance; ``section`` "" means that of its category."""
    record = record_of(hit.row)
    return ContextItem.of(
        record,
        source=source,
        section=section or section_of(record.category),
        relevance=None if hit.relevance is None else round(share * hit.relevance, 3),
        score=hit.score,
        signals=hit.shares,
    )


DEFAULT_DEADLINE_S: Final = 1.0
DEFAULT_SOURCES: Final[tuple[ContextSource, ...]] = (
    RecentMessages(),
    Memories(),
    Entities(),
    AssociatedMemories(),
    consolidated_memories(),
    goals(),
    ideas(),
    StaticFacts(),
)
WORKERS: Final = 8
"""How many calls of one source run at a time; while all of them hang, the source is left out at once."""
_HANG_S: Final = 2.0
"""A call that has run for this long counts as hung; no prompt waits for a source nearly as long."""
_AN_INSTANT_S: Final = 0.001
_MAX_REASON: Final = 200
_EVERYBODY: Final = global_namespace(MemoryCategory.SEMANTIC, "any")[0]


class ContextBuilder:
    """Builds context for prompts: asks all sources at once, then selects and renders with an engineer.

    Safe to share between users, threads and event loops. `sync` has the same `build` for sync code.

    Args:
        service: The memory as the agent sees it.
        sources: Where items come from. By default all sources of this package.
        engineer: Selects, orders and renders the items.
        deadline: Seconds for all sources together. A late source is left out. None: no limit.
        max_tokens: The maximum size of the text, by the engineer's counter.
        model: Summarizes items that do not fit; `build` waits for it. None: they are left out.

    Raises:
        ConfigurationError: Two sources have the same name, an object is not a source, or the deadline is not positive.
    """

    def __init__(
        self,
        service: AgentMemoryStoreService | SyncMemoryService,
        sources: Sequence[ContextSource] = DEFAULT_SOURCES,
        *,
        engineer: ContextEngineer | None = None,
        deadline: float | None = DEFAULT_DEADLINE_S,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        model: BaseChatModel | str | None = None,
    ) -> None:
        if deadline is not None and not deadline > 0:
            raise ConfigurationError(f"deadline must be a positive number of seconds, or None, not {deadline}")
        for source in sources:
            if not isinstance(source, ContextSource):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
                raise ConfigurationError(
                    f"{source!r:.80} is not a context source: it needs name, section, limit and fetch"
                )
        # Each has workers of its own, so that a source that hangs takes nothing from the others.
        self._pools = {source.name: WorkerPool(WORKERS, f"context-{source.name}", hang_s=_HANG_S) for source in sources}
        if len(self._pools) < len(sources):
            raise ConfigurationError("Two context sources have the same name; give one of them another")
        for pool in self._pools.values():
            weakref.finalize(self, pool.close)
        refuse_mock(service)
        self._scope = service.scope
        self._sources = tuple(sources)
        self.engineer = engineer or ContextEngineer()
        self.deadline = deadline
        self.max_tokens = max_tokens
        self.model = None if model is None else chat_model(model)
        self.sync = SyncContextBuilder(self)

    async def build(
        self,
        user_id: UserId,
        query: str | None = None,
        *,
        messages: Sequence[MessageLikeRepresentation] = (),
        max_tokens: int | None = None,
    ) -> AssembledContext:
        """Builds the context for a question.

        Args:
            user_id: The user whose memories are used.
            query: The question. Without one, sources return their newest items.
            messages: The conversation so far.
            max_tokens: Overrides the builder's own.

        Returns:
            The rendered ``text`` and what it was made of. ``left_out`` names the sources that failed or were late.

        Raises:
            InvalidId: ``user_id`` is not usable.
        """
        return await arun(self.operation(user_id, query, messages, max_tokens))

    async def operation(
        self, user_id: UserId, query: str | None, messages: Sequence[MessageLikeRepresentation], max_tokens: int | None
    ) -> AssembledContext:
        """What `build` does, for its async and its sync form."""
        encode_label(user_id)
        if isinstance(user_id, Space):
            raise InvalidId("A context is for a user, whose spaces are in it; pass the ID of a user")
        request = ContextRequest(
            user_id=str(user_id),
            query=query,
            messages=convert_to_messages(messages),
            scope=self._scope,
            now=self._scope.clock.now(),
        )
        items, left_out, necessity = await self._gathered(request)
        room = self.max_tokens if max_tokens is None else max_tokens
        now, zone = request.now, request.zone
        if self.model is not None:
            try:
                context = await with_summary(
                    self.engineer,
                    items,
                    self.model,
                    query=query,
                    now=now,
                    zone=zone,
                    max_tokens=room,
                    necessity=necessity,
                )
                return replace(context, left_out=left_out)
            except ModelError as error:
                left_out[SUMMARY] = str(error)
        context = self.engineer.assemble(items, query=query, now=now, zone=zone, max_tokens=room, necessity=necessity)
        return replace(context, left_out=left_out)

    async def _gathered(self, request: ContextRequest) -> tuple[list[ContextItem], dict[str, str], float | None]:
        """The items of the sources that answer in time, why the others gave none, and whether memory is needed.

        Raises no source's error.
        """
        deadline = Deadline(self.deadline)
        items: list[ContextItem] = []
        left_out: dict[str, str] = {}
        searches: dict[str, Search] = {}
        for source in self._sources:
            with suppress(Exception):  # its fetch asks the same, and says what is wrong
                search = source.question(request) if isinstance(source, SearchingSource) else None
                if search is not None and search.text == request.query:
                    searches[source.name] = search
        shared = SharedSearches(request.scope.engine, searches)
        request = replace(request, shared=shared)
        under_way: list[tuple[str, Future[list[ContextItem]]]] = []
        for source in self._sources:
            try:
                under_way.append((source.name, self._pools[source.name].submit(partial(_fetched, source, request))))
            except (StoreUnavailable, RuntimeError) as error:  # its workers hang, or no thread can be started
                left_out[source.name] = _reason(error)
        try:
            for name, future in under_way:
                try:
                    left = deadline.remaining()
                except DeadlineExceeded:
                    left = _AN_INSTANT_S  # what is there by now is taken
                try:
                    may_block = request.scope.engine.pool.may_block
                    items += await Effect(lambda own=future: own, timeout=left, may_block=may_block)
                except DeadlineExceeded:
                    left_out[name] = "late"
                except Exception as error:  # noqa: BLE001 - whatever one source raises, the others are shown
                    left_out[name] = _reason(error)
        finally:
            for _, future in under_way:
                future.cancel()
        return items, left_out, shared.necessity


class SyncContextBuilder:
    """`ContextBuilder` for code without async."""

    def __init__(self, builder: ContextBuilder) -> None:
        self._builder = builder

    def build(
        self,
        user_id: UserId,
        query: str | None = None,
        *,
        messages: Sequence[MessageLikeRepresentation] = (),
        max_tokens: int | None = None,
    ) -> AssembledContext:
        """Like `ContextBuilder.build`; it blocks."""
        return run(self._builder.operation(user_id, query, messages, max_tokens))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_REASON]}"


def _fetched(source: ContextSource, request: ContextRequest) -> list[ContextItem]:
    """The items of ``source``, under its name. Raises what it raises, IdentityError for a memory of another user."""

    async def awaited(given: Awaitable[Sequence[ContextItem]]) -> Sequence[ContextItem]:
        return await given

    given: Any = source.fetch(request)
    if isawaitable(given):
        given = asyncio.run(awaited(cast("Awaitable[Sequence[ContextItem]]", given)))
    items: list[ContextItem] = list(given)[: source.limit]
    owners = (encode_label(request.user_id), _EVERYBODY)
    if any(item.record is not None and item.record.namespace[0] not in owners for item in items):
        raise IdentityError(f"Source {source.name} gave a memory of another user")
    return [replace(item, source=source.name) for item in items]
