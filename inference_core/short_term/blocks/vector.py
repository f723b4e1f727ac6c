"""VectorMemory: conversations word for word, found by meaning and by words, or in a vector store of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import accumulate, zip_longest
from typing import Any, Final, Unpack

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langgraph.store.base import BaseStore

from inference_core.errors import ConfigurationError
from inference_core.ingestion.verbatim import Draft, Drafts
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.record import MemoryStoreDocument
from inference_core.memory.text import CHARACTERS_PER_TOKEN, digest_of, encode_json
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.outbox.messages import mark, marks_of, unmarked
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.delete import PORTION
from inference_core.services.operations.recall import recall
from inference_core.services.operations.scope import MemoryScope, retried
from inference_core.short_term.blocks.memory import (
    Block,
    BlockOptions,
    StoreSource,
    UserSession,
    block_metadata,
    called,
    forget_session,
    passages,
    text_of,
)
from inference_core.stores.backend import Put, Remove, Write
from inference_core.stores.factory import open_store
from inference_core.stores.store import MemoryStore

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
            best = max((1.0 if memory.relevance is None else memory.relevance for memory in chosen), default=0.0)
            if self.min_relevance is None and best < _MIN_BEST:
                chosen = []
        elif question.strip():
            chosen = await called(self.name, self._searched, self.vector_store, user, question)
        else:
            chosen = []
        ends = accumulate(len(memory.content) for memory in chosen)
        budget = self.max_tokens * CHARACTERS_PER_TOKEN
        return [memory for memory, end in zip(chosen, ends, strict=True) if memory is chosen[0] or end <= budget]

    async def absorb(self, scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]) -> None:
        """Stores each message once, with a mark that outlives its deletion."""
        drafts = Drafts(scope, conversation.user_id, block_metadata(self.name, [conversation.session_id]))
        said = await passages(scope, conversation, messages)
        # On a worker, as a long conversation that overflows for the first time takes seconds.
        made = await scope.engine.pool.call(lambda: [draft for message in said if (draft := drafts.of(message))])
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
            for record in records:
                fields = {"created_at": record.created_at.isoformat(), "origin": record.source.origin.value}
                documents.append(Document(record.content, id=record.id, metadata=frame | fields))
            if documents:
                await called(self.name, vector_store.add_documents, documents, ids=[record.id for record in records])
            namespace, now = self._listing(conversation), scope.clock.now()
            writes: list[Write] = [*waiting, *(mark(marks, key, scope.clock) for key in fresh)]
            ids = {record.id for record in records}
            for key in fresh:
                listed = encode_json(
                    {"ids": [record.id for record in known[key].records if record.id in ids]}, what="ids"
                )
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
            ids = [str(id_) for row in rows for id_ in row.value["ids"]]
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
        try:
            found = [*vector_store.similarity_search_with_relevance_scores(question, **options)]
        except NotImplementedError:
            try:  # of LangChain's in-memory store, for one, the scores are cosines
                found = [*vector_store.similarity_search_with_score(question, **options)]
            except NotImplementedError:
                if self.min_relevance:
                    raise
                found = [(document, None) for document in vector_store.similarity_search(question, **options)]
        least = self.min_relevance or 0.0
        return [
            MemoryStoreDocument(
                id=str(document.id or at),
                value={
                    "content": document.page_content,
                    "memory_type": MemoryType.INTERACTION.value,
                    "session_id": document.metadata.get("session_id"),
                    "source": {"origin": document.metadata.get("origin", Origin.AGENT.value)},
                },
                metadata=dict(document.metadata),
                score=relevance,
                relevance=relevance,
                created_at=datetime.fromisoformat(stamp) if (stamp := document.metadata.get("created_at")) else None,
            )
            for at, (document, relevance) in enumerate(found)
            if _is_of(user, document) and (relevance is None or relevance >= least)
        ]


def _is_of(user: str, document: Document) -> bool:
    return document.metadata.get(_USER) == user
