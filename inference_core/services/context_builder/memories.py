"""The sources of this package: memories, what belongs to them, the conversation, and what holds for all users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, cast

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from inference_core.clock import in_zone
from inference_core.context.engineer import SPEAKERS
from inference_core.context.items import ContextItem, section_of
from inference_core.effects import Operation
from inference_core.memory.namespaces import Namespace, global_namespace
from inference_core.memory.record import MemoryRecord, why_invalid
from inference_core.memory.text import text_field
from inference_core.memory.trust import Trust
from inference_core.memory.types import IDEA, MemoryCategory, MemoryType, validate_memory_category, validate_memory_type
from inference_core.outbox.messages import author_of
from inference_core.services.context_builder.source import ContextRequest
from inference_core.services.operations.messages import MAX_KEPT, kept_messages, said_at
from inference_core.services.operations.recall import asks
from inference_core.services.operations.scope import record_of
from inference_core.stores.backend import Row
from inference_core.stores.indexing.search import FoundRow, Search
from inference_core.stores.indexing.snapshot import Snapshot

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
class Memories:
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

    def fetch(self, request: ContextRequest) -> Operation[list[ContextItem]]:
        """The memories, the best of each category first."""
        groups, search = list[Sequence[FoundRow]](), self.question(request)
        if search is not None:
            groups += (yield from request.search(self.name, search)).groups
        else:
            for scopes in self._groups(request):
                rows = yield from _newest(request, scopes, self._kinds())
                found = [
                    FoundRow(row, record.importance if self.by_importance else 0.0)
                    for row in rows
                    if self.accepts(record := record_of(row))
                ]
                groups.append(sorted(found, key=lambda one: one.score, reverse=True))
        in_turn = [one for place in zip_longest(*groups) for one in place if one is not None]
        return [item_of(one, self.name, self.section) for one in in_turn[: self.limit]]

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
class AssociatedMemories:
    """Memories on the same subjects as the ``seeds`` that fit the question best, which do not fit it themselves.

    The relevance of an associated memory is that of the best fit, times its own to the seeds. The ``known`` best fits
    are left out, as they are found without this source. Its fetch raises StoreUnavailable.
    """

    name: str = "associated"
    section: str = "associated_memory"
    limit: int = 10
    seeds: int = 3
    known: int = 30

    def fetch(self, request: ContextRequest) -> Operation[list[ContextItem]]:
        """The memories, the best first; none without a question."""
        search = self.question(request)
        best = (yield from request.search(self.name, search)).groups[0] if search else []
        text = " ".join(record_of(one.row).content for one in best[: self.seeds])[:_QUERY_CHARACTERS]
        if not asks(text):
            return []
        known = {(one.row.namespace, one.row.key) for one in best}
        share = max(one.relevance or 0.0 for one in best)

        def rejects(row: Row) -> str | None:
            return "fits by itself" if (row.namespace, row.key) in known else None

        scopes = request.scope.namespaces.read_scopes(request.user_id)
        search = search_for(request, text, [scopes], self.limit, None, rejects)
        found = yield from request.scope.engine.search(search)
        return [item_of(one, self.name, self.section, share) for one in found.groups[0]]

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

    def add(self, found: FoundRow, record: MemoryRecord) -> None:
        self.newest = max(self.newest, record, key=lambda known: known.happened_at)
        self.mentions += 1
        if found.relevance is not None:
            self.relevance = max(self.relevance or 0.0, found.relevance)
        self.score = max(self.score, found.score)
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
class Entities:
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

    def fetch(self, request: ContextRequest) -> Operation[list[ContextItem]]:
        """The entities, the best first; none with ``judged`` and without a question."""
        entities: dict[tuple[str, Trust], _Entity] = {}
        if search := self.question(request):
            found: Sequence[FoundRow] = (yield from request.search(self.name, search)).groups[0]
        else:
            scopes = request.scope.namespaces.read_scopes(request.user_id)
            rows = [] if self.judged else (yield from _newest(request, scopes))
            found = [FoundRow(row, 0.0) for row in rows]
        for one in found:
            record = record_of(one.row)
            for noted in _list(record.extra_metadata.get("entities")):
                fields = cast("dict[str, Any]", noted) if isinstance(noted, dict) else {}  # metadata may hold anything
                if not (name := text_field(fields, "name")):
                    continue
                unseen = _Entity(name, text_field(fields, "kind") or "", record.trust, record)
                entities.setdefault((name.casefold(), record.trust), unseen).add(one, record)
        best = sorted(entities.values(), key=_Entity.rank, reverse=True)
        return [entity.item(self.section, self.name) for entity in best[: self.limit]]

    def question(self, request: ContextRequest) -> Search | None:
        """The search for the question; None if there is no question, or ``judged`` is off."""
        return search_in_all(request, self.read) if self.judged else None


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentMessages:
    """The last ``limit`` messages and answers, in their order, without the question itself.

    They are those of the request, or, if it has none, those that `add_messages` and `add_completion` kept in the store.
    ``speakers`` narrows them down: "user", "assistant", "tool". Its fetch raises StoreUnavailable.
    """

    name: str = "recent_messages"
    section: str = "recent_messages"
    limit: int = 10
    speakers: Sequence[str] = SPEAKERS

    def fetch(self, request: ContextRequest) -> Operation[list[ContextItem]]:
        """The messages with text, except system messages."""
        messages = request.messages or (yield from kept_messages(request.scope, request.user_id, MAX_KEPT))
        said = [one for one in messages if not isinstance(one, SystemMessage) and one.text.strip()]
        if said and said[-1].text == request.query:
            said = said[:-1]
        speakers = [_speaker(one, request.user_id) for one in said]
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
class StaticFacts:
    """What holds for all users: ``facts``, or, without them, what the `StaticMemory` of this ``name`` has stored."""

    facts: Sequence[str] | None = None
    name: str = "static_memory"
    section: str = "static_memory"
    limit: int = 50

    def fetch(self, request: ContextRequest) -> Operation[list[ContextItem]]:
        """The facts in their order. Raises StoreUnavailable."""
        if self.facts is not None:
            return [
                ContextItem(id=str(at), text=fact, section=self.section, source=self.name, kind="facts", score=-at)
                for at, fact in enumerate(self.facts)
            ]
        namespace = global_namespace(MemoryCategory.SEMANTIC, self.name)
        rows = yield from request.scope.engine.page([namespace], limit=self.limit)
        return [
            replace(ContextItem.of(record, source=self.name, section=self.section), happened_at=None)
            for record in map(record_of, rows)
        ]


def _newest(
    request: ContextRequest, scopes: Sequence[Namespace], kinds: frozenset[str] | None = None
) -> Operation[list[Row]]:
    """The newest memories of ``scopes`` that hold now, from the snapshot, whose rows are parsed once."""

    def rejects(row: Row) -> str | None:
        return why_invalid(row.value, request.now)

    def newest(snapshot: Snapshot) -> list[Row]:
        return snapshot.newest(scopes, kinds=kinds, limit=_READ, reject=rejects)

    return request.scope.engine.read(scopes, newest)


def search_in_all(request: ContextRequest, limit: int) -> Search | None:
    """A search for the ``limit`` memories of any category that fit the question best; None without a question."""
    scopes = request.scope.namespaces.read_scopes(request.user_id)
    return None if request.question is None else search_for(request, request.question, [scopes], limit)


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


def item_of(found: FoundRow, source: str, section: str, share: float = 1.0) -> ContextItem:
    """The item of a hit, with ``share`` of its relevance; ``section`` "" means that of its category."""
    record = record_of(found.row)
    return ContextItem.of(
        record,
        source=source,
        section=section or section_of(record.category),
        relevance=None if found.relevance is None else round(share * found.relevance, 3),
        score=found.score,
        signals=found.shares,
    )
