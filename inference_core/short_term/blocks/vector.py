"""VectorMemory: conversations word for word, found by meaning and by words, or in a vector store of the caller's.

StaticMemory: facts that the application states, the same for every user.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import accumulate, count, zip_longest
from typing import Any, ClassVar, Final, NoReturn, Unpack
from weakref import WeakSet

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langgraph.store.base import BaseStore

from inference_core.clock import in_zone
from inference_core.effects import Operation
from inference_core.errors import ConfigurationError, ReadOnlyMemory
from inference_core.ingestion.verbatim import Draft, Drafts
from inference_core.memory.namespaces import Namespace, encode_label, global_namespace
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.redaction import DEFAULT_GUARD
from inference_core.memory.text import CHARACTERS_PER_TOKEN, canonical_id, canonical_text, digest_of, encode_json
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.outbox.partitions import mark, marks_of, unmarked
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.delete import PORTION
from inference_core.services.operations.list import all_of
from inference_core.services.operations.recall import MAX_RESULTS, recall
from inference_core.services.operations.scope import MemoryScope, put_of, records_of, retried
from inference_core.short_term.blocks.memory import (
    DEFAULT_MAX_TOKENS,
    Block,
    BlockOptions,
    StoreSource,
    UserSession,
    asynchronous,
    block_metadata,
    called,
    forget_session,
    passages,
    synchronous,
    text_of,
)
from inference_core.stores.backend import Put, Remove, Write
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_store
from inference_core.stores.indexing.search import Search
from inference_core.stores.store import MemoryStore

_POSITION: Final = "position"
StaticFact = str | Mapping[str, Any] | Sequence[Any] | float | None
"""A text, a mapping with ``content`` (and ``id``) or with ``key`` and ``value``, or any other JSON data."""


class StaticMemory(Block):
    """Facts that the application states, the same for all users; read-only for conversations.

    Recall returns all of them in order or, if they exceed about ``max_tokens``, those relevant to the message.

    Args:
        facts: All facts of the block with this ``name``. They are stored at first use or by `load`, and replace the
            facts stored earlier. None: the stored facts.
        store: As for `Block`, like the other arguments.

    Raises:
        InvalidMemory: A fact cannot be stored.
    """

    section: str = "static_memory"
    is_read_only: ClassVar[bool] = True

    def __init__(
        self,
        facts: Sequence[StaticFact] | None = None,
        store: StoreSource | None = None,
        *,
        name: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        timeout: float | None = None,
    ) -> None:
        super().__init__(store, name=name, max_tokens=max_tokens, owner=lambda _: "anyone", timeout=timeout)
        self._namespace: Namespace = global_namespace(MemoryCategory.SEMANTIC, self.name)
        self._facts = None if facts is None else dict(map(_identified, facts, count()))
        self._loaded: WeakSet[StoreEngine] = WeakSet()

    def _load(self) -> Operation[None]:
        """Stores the facts, if they are not stored yet. Raises StoreError, ConfigurationError."""
        return self._store(self.scope())

    load, aload = synchronous(_load), asynchronous(_load)

    async def recall(
        self, scope: MemoryScope, conversation: UserSession, message: BaseMessage | None
    ) -> list[MemoryStoreDocument]:
        """The facts; they are the same for all conversations."""
        del conversation
        if self._facts is not None and scope.engine not in self._loaded:
            await self._store(scope)
        records = await self._records(scope)
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        if sum(len(record.content) for record in records) <= budget:
            return list(map(MemoryStoreDocument.of, records))
        search = Search(
            groups=[[self._namespace]],
            text=text_of(message),
            limit=MAX_RESULTS,
            backfill=True,
            max_characters=budget,
            cold_seconds=scope.cold_seconds,
            now=in_zone(scope.clock.now(), scope.zone),
        )
        result = await scope.engine.search(search)
        return [
            MemoryStoreDocument.of(record, found.score)
            for found in result.groups[0]
            for record in records_of([found.row])
        ]

    def absorb(self, scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]) -> NoReturn:
        """Raises ReadOnlyMemory."""
        del scope, conversation, messages
        raise ReadOnlyMemory("Static memory does not support update operation")

    def forget(self, scope: MemoryScope, conversation: UserSession) -> NoReturn:
        """Raises ReadOnlyMemory."""
        del scope, conversation
        raise ReadOnlyMemory("Static memory does not support delete operation")

    async def _records(self, scope: MemoryScope) -> list[MemoryRecord]:
        return sorted(await all_of(scope.engine, [self._namespace]), key=_position)

    async def _store(self, scope: MemoryScope) -> None:
        facts = self._facts or {}

        async def attempt() -> None:
            known = {record.id: record for record in await self._records(scope)}
            writes: list[Write] = [
                Remove(namespace=self._namespace, key=record.id, expected=record.version)
                for record in known.values()
                if record.id not in facts
            ]
            now = scope.clock.now()
            for position, (fact_id, said) in enumerate(facts.items()):
                content = scope.engine.guard.text(said)
                old = known.get(fact_id)
                if old is None or old.content != content or _position(old) != position:
                    record = MemoryRecord(
                        id=fact_id,
                        content=content,
                        memory_type=MemoryType.FACTS,
                        category=MemoryCategory.SEMANTIC,
                        namespace=self._namespace,
                        created_at=now,
                        updated_at=now,
                        extra_metadata={_POSITION: position},
                    )
                    writes.append(put_of(record, expected=old.version if old else 0))
            await scope.write(writes, "block")

        await retried(attempt)
        self._loaded.add(scope.engine)


def _identified(fact: StaticFact, position: int) -> tuple[str, str]:
    """The id and the text of ``fact``; if it has no id, that is a hash of the text, without secrets."""
    if isinstance(fact, str):
        given, text = None, fact
    elif not isinstance(fact, Mapping):
        given, text = None, _as_text(fact)
    elif "content" in fact:
        given, text = fact.get("id"), fact["content"]
    elif set(fact) == {"key", "value"}:
        given, text = fact["key"], f"{fact['key']}: {_as_text(fact['value'])}"
    else:
        given, text = None, _as_text(fact)
    content = canonical_text(text)
    if given is not None:
        return canonical_id(given), content
    clean = DEFAULT_GUARD.text(content)
    named = content if clean is content else f"{clean}{position}"
    return hashlib.sha256(named.encode()).hexdigest()[:32], content


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _position(record: MemoryRecord) -> int:
    position = record.extra_metadata.get(_POSITION)
    return position if isinstance(position, int) else 0


_MIN_BEST: Final = 0.065
"""The relevance that the best passage must have: most questions about the conversation find a better one, most about
something else do not. A minimum for each passage would lose long ones that hold the answer in one sentence of many."""
VECTORS: Final = "vector_store"
"""Second label, below the user, of the namespaces that list what is in a vector store: by block and session."""
_USER: Final = "user_id"
_MESSAGES_AT_ONCE: Final = 32


class VectorMemory(Block):
    """Passages of the user's conversations, word for word.

    Passages are episodic memories in ``store``. Recall searches all of the user's sessions, by meaning and by words.
    New passages get their vectors in the background; until then, they are found by words. With a ``vector_store``,
    passages are documents there, searched by it, and ``store`` only lists them. The other arguments are those of
    `Block`.

    Args:
        embeddings: LangChain's embeddings of your choice, for a ``store`` that is given as a URL, a mapping, a
            SQLAlchemy engine, a ``redis.Redis`` or another library's store. A store of `open_store` has its own.
        vector_store: Any vector store of LangChain that accepts ids. A document's metadata has ``user_id``,
            ``session_id``, ``block``, ``created_at`` and ``origin``.
        search_filter: Takes a user and returns the ``filter`` of a search in ``vector_store``. None: ``{"user_id":
            user}``, which most vector stores understand. Other users' documents are always left out.
        min_relevance: The minimum relevance of each recalled passage, from 0 (all) to 1. None: no minimum, but nothing
            is recalled if no passage at all fits the message. With a ``vector_store``, None is 0, because relevances
            and scores depend on its embeddings.

    Raises:
        ConfigurationError: The arguments contradict each other.
    """

    section: str = "vector_memory"

    def __init__(
        self,
        store: StoreSource | None = None,
        *,
        embeddings: Embeddings | None = None,
        vector_store: VectorStore | None = None,
        search_filter: Callable[[str], Any] | None = None,
        min_relevance: float | None = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        if isinstance(store, VectorStore):
            raise ConfigurationError("Pass a vector store of LangChain as vector_store=; store= lists what is in it")
        if min_relevance is not None and not 0 <= min_relevance <= 1:
            raise ConfigurationError(f"min_relevance must be from 0 to 1, not {min_relevance}")
        if embeddings is not None:
            if vector_store is not None:
                raise ConfigurationError(
                    "A vector store has embeddings of its own: pass them to it, not to VectorMemory"
                )
            if store is None or isinstance(store, MemoryStore | AgentMemoryStoreService):
                raise ConfigurationError(
                    "embeddings= needs a store that has none: pass open_store('sqlite:///memory.db', embeddings=…), or "
                    "VectorMemory('sqlite:///passages.db', embeddings=…)"
                )
            if isinstance(store, BaseStore):
                store = AgentMemoryStoreService(store, embeddings=embeddings)
            else:
                store = open_store(store, embeddings=embeddings, tells=False)
        super().__init__(store, **options)
        self.vector_store = vector_store
        self.min_relevance = min_relevance
        self._search_filter = search_filter

    async def recall(
        self, scope: MemoryScope, conversation: UserSession, message: BaseMessage | None
    ) -> list[MemoryStoreDocument]:
        """The user's passages relevant to ``message``, from all conversations; with a vector store, none without one.

        Alternates between passages relevant by themselves and passages relevant together with their neighbours. Raises
        BlockFailed if a vector store fails.
        """
        question, user = text_of(message), conversation.user_id
        if self.vector_store is None:
            asked = scope, user, question, self.max_results, MemoryType.INTERACTION.value
            least = self.min_relevance or 0.0
            alone = await recall(*asked, ignore_session=True, min_relevance=least)
            around = await recall(*asked, min_relevance=least)
            taken = {found.id: found for pair in zip_longest(alone, around) for found in pair if found is not None}
            chosen = list(taken.values())[: self.max_results]
            # Without a question, passages have no relevance, and the newest are as good as any.
            best = max((1.0 if one.relevance is None else one.relevance for one in chosen), default=0.0)
            if self.min_relevance is None and best < _MIN_BEST:
                chosen = []
        elif question.strip():
            chosen = await called(self.name, self._searched, self.vector_store, user, question)
        else:
            chosen = []
        ends = accumulate(len(one.content) for one in chosen)
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        return [one for one, end in zip(chosen, ends, strict=True) if one is chosen[0] or end <= budget]

    async def absorb(self, scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]) -> None:
        """Stores each message once, with a mark that outlives its deletion."""
        drafts = Drafts(scope, conversation.user_id, block_metadata(self.name, [conversation.session_id]))
        said = await passages(scope, conversation, messages)
        # On a worker, as a long conversation that overflows for the first time takes seconds.
        made = await scope.engine.pool.call(lambda: [draft for one in said if (draft := drafts.of(one))])
        vector_store = self.vector_store
        if vector_store:  # a mark tells what is in this block's vector store, not in the store or in another block's
            made = [replace(draft, key=digest_of([self.name, draft.key])) for draft in made]

        async def add(vector_store: VectorStore, batch: Sequence[Draft]) -> None:
            """Adds those without a mark. After a crash before the mark, they are added again under the same ids."""
            marks, known = marks_of(conversation.user_id), {draft.key: draft for draft in batch}
            left = await unmarked(scope.engine, marks, known)
            fresh, records, waiting = await drafts.stored_or_offered([known[key] for key in left])
            if not fresh:
                return
            frame = {_USER: conversation.user_id, "session_id": conversation.session_id, "block": self.name}
            documents: list[Document] = []
            for one in records:
                fields = {"created_at": one.created_at.isoformat(), "origin": one.source.origin.value}
                documents.append(Document(one.content, id=one.id, metadata=frame | fields))
            if documents:
                await called(self.name, vector_store.add_documents, documents, ids=[one.id for one in records])
            namespace, now = self._listing(conversation), scope.clock.now()
            writes: list[Write] = [*waiting, *(mark(marks, key, scope.clock) for key in fresh)]
            ids = {one.id for one in records}
            for key in fresh:
                listed = encode_json({"ids": [one.id for one in known[key].records if one.id in ids]}, what="ids")
                writes.append(Put(namespace=namespace, key=key, value=listed, updated_at=now))
            await scope.engine.write(writes)

        write = drafts.write if vector_store is None else partial(add, vector_store)
        try:
            for at in range(0, len(made), _MESSAGES_AT_ONCE):
                await retried(partial(write, made[at : at + _MESSAGES_AT_ONCE]))
        finally:  # the portions before one that fails are stored, too
            scope.engine.embed_later()

    async def forget(self, scope: MemoryScope, conversation: UserSession) -> None:
        """Removes the passages of this session. Raises BlockFailed if a vector store fails."""
        # Even with a vector store, passages that wait for the user are here, and become memories when approved.
        await forget_session(scope, conversation, self.name, MemoryCategory.EPISODIC)
        if self.vector_store is None:
            return
        namespace = self._listing(conversation)
        while rows := await scope.engine.page([namespace], limit=PORTION):
            ids = [str(one) for row in rows for one in row.value["ids"]]
            await called(self.name, self.vector_store.delete, ids)
            await scope.engine.write([Remove(namespace=namespace, key=row.key) for row in rows])

    def _listing(self, conversation: UserSession) -> Namespace:
        session = encode_label(conversation.session_id, what="session_id")
        return (encode_label(conversation.user_id), VECTORS, encode_label(self.name, what="name"), session)

    def _searched(self, vector_store: VectorStore, user: str, question: str) -> list[MemoryStoreDocument]:
        wanted: Any = {_USER: user}
        if self._search_filter:
            wanted = self._search_filter(user)
        elif isinstance(vector_store, InMemoryVectorStore):  # takes a function
            wanted = partial(_is_of, user)
        options: dict[str, Any] = {"k": self.max_results, "filter": wanted}
        found: list[tuple[Document, float | None]]
        if not self.min_relevance:
            found = [(one, None) for one in vector_store.similarity_search(question, **options)]
        else:
            try:
                found = [*vector_store.similarity_search_with_relevance_scores(question, **options)]
            except NotImplementedError:  # of LangChain's in-memory store, for one, whose scores are cosines
                found = [*vector_store.similarity_search_with_score(question, **options)]
        least = self.min_relevance or 0.0
        return [
            MemoryStoreDocument(
                id=str(one.id or at),
                value={
                    "content": one.page_content,
                    "memory_type": MemoryType.INTERACTION.value,
                    "session_id": one.metadata.get("session_id"),
                    "source": {"origin": one.metadata.get("origin", Origin.AGENT.value)},
                },
                metadata=dict(one.metadata),
                relevance=relevance,
                created_at=datetime.fromisoformat(stamp) if (stamp := one.metadata.get("created_at")) else None,
            )
            for at, (one, relevance) in enumerate(found)
            if _is_of(user, one) and (relevance is None or relevance >= least)
        ]


def _is_of(user: str, document: Document) -> bool:
    return document.metadata.get(_USER) == user
