"""The systems that are measured: this package's memory, set up as a user would, and others to compare it with.

mem0 and langmem are measured if they are installed, without a language model. All systems get the same: each turn as
one memory, with its day, embedded by the same local model.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar, cast

import numpy as np
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListChatModel
from langgraph.store.memory import InMemoryStore
from numpy.typing import NDArray

from inference_core.embeddings.factory import EmbeddingsSpec, make_embedder
from inference_core.errors import ConfigurationError, EmbeddingError, InvalidInput, MissingExtra, raised_as
from inference_core.evaluation import SYSTEMS
from inference_core.evaluation.conversations import Conversation, ConversationTurn
from inference_core.memory.record import MemoryStoreDocument
from inference_core.memory.trust import MemorySource
from inference_core.retrieval.analysis import analyze
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.stores.factory import open_store
from inference_core.stores.indexing.indexes import RERANKED
from inference_core.stores.indexing.search import Reranker

T = TypeVar("T")
V = TypeVar("V")
_LOG = logging.getLogger(__name__)
MAX_CONTENT_BYTES: Final = 1_000_000
_CONCURRENT_SAVES: Final = 4
"""With more at once, vectors would take longer than a save waits for them."""
_EMBEDDED_AT_ONCE: Final = 32
_BACKFILL_S: Final = 600.0
_POLL_S: Final = 0.02
_MINILM_DIMENSIONS: Final = 384
_TINY: Final = 1e-12
_COMMUNITY: Final = "langchain_community.document_compressors"
_PROVIDERS: Final = {
    "cohere": ("langchain_cohere", "CohereRerank", "top_n", "langchain-cohere"),
    "voyageai": ("langchain_voyageai", "VoyageAIRerank", "top_k", "langchain-voyageai"),
    "flashrank": (_COMMUNITY, "FlashrankRerank", "top_n", "langchain-community flashrank"),
    "jina": (_COMMUNITY, "JinaRerank", "top_n", "langchain-community"),
}
"""For each provider: module and class of its compressor, its option for how many texts to keep, packages to install."""


@dataclass(frozen=True, slots=True)
class RecalledTurn:
    """A recalled turn; ``relevance`` is the system's confidence in it, None if the system gives none."""

    id: str
    relevance: float | None = None


Recall = Callable[[str, int], Awaitable[list[RecalledTurn]]]
"""The best ``k`` turns of one conversation for a question, the best first."""
RecallMemories = Callable[[str, int], Awaitable[list[tuple[str, MemoryStoreDocument]]]]
"""The same as memories, each with the id of its turn."""
Advance = Callable[[], None]
"""Called for each turn and each question that is done."""


class System(ABC):
    """Something that remembers conversations and recalls turns of them."""

    @abstractmethod
    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Remembers every turn; returns a function that recalls only from this conversation."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Frees what the system holds."""


def make_system(name: str, embeddings: str | None = "auto", reranker: Any = None) -> System:
    """The system of that name; ``embeddings`` is the model of `WITH_MODEL`, ``reranker`` that of `WITH_RERANKER`.

    Raises InvalidInput for an unknown name, MissingExtra, ConfigurationError, EmbeddingError.
    """
    makers: dict[str, Callable[[], System]] = {
        "ours": lambda: MemoryService(embeddings, reranker=reranker),
        "ours-no-late": lambda: MemoryService(embeddings, late_interaction=False, reranker=reranker),
        "ours-no-links": lambda: MemoryService(embeddings, links=False, reranker=reranker),
        "ours-links": lambda: MemoryService(embeddings, links=True, reranker=reranker),
        "lexical": lambda: MemoryService(None, reranker=reranker),
        "langgraph-inmemory": LangGraphInMemory,
        "dense": lambda: Dense(embeddings),
        "bm25": BM25,
        "mem0": lambda: Mem0(_model("local", "mem0")),
        "langmem": lambda: LangMem(_model("local", "langmem")),
    }
    if name not in makers:
        raise InvalidInput(f"Unknown system {name!r}; known: {', '.join(SYSTEMS)}")
    return makers[name]()


class MemoryService(System):
    """AgentMemoryStoreService over a new SQLite file, one memory a turn, one user a conversation.

    ``links`` is that of `recall_memories`; it may be changed between two questions. The file is in ``place``, or in a
    folder that `close` deletes.
    """

    def __init__(
        self, embeddings: EmbeddingsSpec, *, links: bool | None = None, place: Path | None = None, **options: Any
    ) -> None:
        self.links = links
        with ExitStack() as stack:
            folder = place or stack.enter_context(tempfile.TemporaryDirectory())
            self._store = open_store(f"sqlite:///{folder}/memory.db", embeddings=embeddings, **options)
            stack.callback(self._store.close)
            self._opened = stack.pop_all()
        if embeddings is not None and self._store.engine.embedder is None:
            _LOG.warning("No embedding model is installed (extra: local): recall is by words only")
        self._service = AgentMemoryStoreService(self._store, max_content_bytes=MAX_CONTENT_BYTES, timeout=None)

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Saves the turns as memories of a user with the conversation's id."""
        recalled = await self.remember(conversation.id, conversation.turns, advance)

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            return [RecalledTurn(name, getattr(memory, "relevance", None)) for name, memory in await recalled(query, k)]

        return recall

    async def remember(self, user_id: str, turns: Sequence[ConversationTurn], advance: Advance) -> RecallMemories:
        """Saves the turns in their order, a few at a time, and waits until all have vectors.

        A save reads the clock when it starts, so creation times keep the order of the turns.
        """
        embedder = self._store.engine.embedder
        if embedder is not None:
            embedder.warm()
            if not await asyncio.to_thread(embedder.wait_ready):
                raise EmbeddingError(embedder.failure or "The embedding model does not answer")

        async def save(turn: ConversationTurn) -> str:
            source = MemorySource(origin=turn.origin)
            memory_id = await self._service.save_memory(
                user_id, turn.content, turn.memory_type, session_id=turn.session, valid_from=turn.at, source=source
            )
            advance()
            return memory_id

        turn_of: dict[str, str] = {}
        for start in range(0, len(turns), _CONCURRENT_SAVES):
            window = turns[start : start + _CONCURRENT_SAVES]
            ids = await asyncio.gather(*map(save, window))
            turn_of.update(zip(ids, (turn.id for turn in window), strict=True))
        deadline = monotonic() + _BACKFILL_S
        # Texts that could not be embedded at once get their vectors in the background; recall needs all of them.
        while embedder is not None and self._store.engine.backend.pending(embedder.fingerprint, 1):
            if monotonic() > deadline:
                raise EmbeddingError("The embedding model does not keep up: memories still wait for their vectors")
            await asyncio.sleep(_POLL_S)

        async def recall(query: str, k: int) -> list[tuple[str, MemoryStoreDocument]]:
            recalled = await self._service.recall_memories(user_id, query, k, links=self.links)
            return [(turn_of[memory.id], memory) for memory in recalled]

        return recall

    def close(self) -> None:
        """Closes the store, and deletes its file unless it is in a ``place``."""
        self._opened.close()


class LangGraphInMemory(System):
    """LangGraph's InMemoryStore with the local model over ``[date] speaker: text``: the baseline without this package.

    Raises MissingExtra without the ``local`` extra.
    """

    def __init__(self) -> None:
        self._model = _model("local", "langgraph-inmemory")

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Puts every turn into a new store."""
        index: Any = {"dims": _MINILM_DIMENSIONS, "embed": self._model, "fields": ["text"]}
        store = InMemoryStore(index=index)
        for turn in conversation.turns:
            store.put(("memories",), turn.id, {"text": dated(turn)})
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            return [RecalledTurn(item.key) for item in store.search(("memories",), query=query, limit=k)]

        return recall


class Dense(System):
    """Exact search by cosine between question and plain content. Raises MissingExtra, ConfigurationError."""

    def __init__(self, embeddings: EmbeddingsSpec) -> None:
        self._model = _model(embeddings, "dense")

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Embeds the turns."""
        turns = conversation.turns
        made: list[list[float]] = []
        for start in range(0, len(turns), _EMBEDDED_AT_ONCE):
            window = turns[start : start + _EMBEDDED_AT_ONCE]
            made += await asyncio.to_thread(_vectors, self._model.embed_documents, [turn.content for turn in window])
            for _ in window:
                advance()
        vectors = np.array(made, np.float32).reshape(len(turns), -1)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            vector = await asyncio.to_thread(_vectors, self._model.embed_query, query)
            return _best(turns, vectors @ np.array(vector, np.float32), k)

        return recall


class BM25(System):
    """Plain BM25 over stems without stop words (Robertson and Zaragoza, FnTIR 3, 2009; idf as in Lucene)."""

    k1: Final = 1.2
    b: Final = 0.75

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Counts the terms of the turns."""
        turns = conversation.turns
        analyzed: list[list[str]] = []
        for turn in turns:
            analyzed.append(analyze(turn.content))
            advance()
        mean_length = sum(map(len, analyzed)) / max(len(turns), 1) or 1.0
        frequencies: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for at, terms in enumerate(analyzed):
            norm = self.k1 * (1 - self.b + self.b * len(terms) / mean_length)
            for term, count in Counter(terms).items():
                frequencies[term].append((at, count * (self.k1 + 1) / (count + norm)))

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            scores = np.zeros(len(turns))
            for term in analyze(query):
                found = frequencies.get(term, ())
                idf = math.log1p((len(turns) - len(found) + 0.5) / (len(found) + 0.5))
                for at, frequency in found:
                    scores[at] += frequency * idf
            return _best(turns, scores, min(k, int(np.count_nonzero(scores))))

        return recall


def _model(spec: EmbeddingsSpec, system: str) -> Embeddings:
    """The model that ``spec`` names. Raises MissingExtra, naming ``system``, if there is none."""
    embedder = make_embedder(spec)
    if embedder is None:
        raise MissingExtra(f"The system {system!r}", "local")
    return embedder.model


def _vectors(embed: Callable[[T], V], given: T) -> V:
    """What ``embed``, a method of the model, returns for ``given``. Raises EmbeddingError for whatever it raises."""
    with raised_as(lambda error: EmbeddingError(f"The embedding model failed: {error}")):
        return embed(given)


def _best(turns: Sequence[ConversationTurn], scores: NDArray[np.floating[Any]], k: int) -> list[RecalledTurn]:
    """The ``k`` turns with the highest scores, the best first; of equal ones the earliest first."""
    return [RecalledTurn(turns[int(at)].id) for at in np.argsort(-scores, kind="stable")[:k]]


def dated(turn: ConversationTurn) -> str:
    """The turn as a line with its day, if that is known."""
    return turn.content if turn.at is None else f"[{turn.at:%d %B %Y}] {turn.content}"


class OwnStore(System):
    """Recalls from a store as it is. Pass a service that counts no recalls, so that measuring changes nothing."""

    def __init__(self, service: AgentMemoryStoreService) -> None:
        self._service = service

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Stores nothing, since everything is stored already."""
        for _ in conversation.turns:
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            recalled = await self._service.recall_memories(conversation.id, query, k)
            return [RecalledTurn(memory.id, memory.relevance) for memory in recalled]

        return recall


def make_reranker(name: str) -> Reranker | BaseDocumentCompressor:
    """The re-ranker of a ``name`` such as ``cohere:model``, or ``module:name`` for one of your own.

    A class or function of yours is called without arguments. Raises ConfigurationError, which says what to install or
    to write.
    """
    home, _, wanted = name.partition(":")
    module, attribute, kept, packages = _PROVIDERS.get(home, (home, wanted, "", ""))
    if not attribute:
        known = ", ".join(_PROVIDERS)
        raise ConfigurationError(f"Unknown re-ranker {name!r}; write module:name, or provider:model ({known})")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        advice = f"; pip install {packages}" if packages else ""
        raise ConfigurationError(f"The re-ranker {name!r} cannot be imported: {error}{advice}") from error
    options: dict[str, Any] = {kept: RERANKED} if kept else {}
    options |= {"model": wanted} if kept and wanted else {}
    made = found
    if isinstance(found, type) or (callable(found) and not isinstance(found, BaseDocumentCompressor | Reranker)):
        with raised_as(lambda error: ConfigurationError(f"The re-ranker {name!r} cannot be made: {error}")):
            made = cast("Callable[..., Any]", found)(**options)
    if isinstance(made, BaseDocumentCompressor | Reranker):
        return made
    raise ConfigurationError(
        f"{name!r} is not a re-ranker: {type(made).__name__} is not a BaseDocumentCompressor and has no method "
        "rerank(query, texts)"
    )


_DIMENSIONS: Final = 384
_QUIET: Final = {"MEM0_TELEMETRY": "False", "ANONYMIZED_TELEMETRY": "False"}


def _module(name: str, package: str) -> Any:
    """Imports the module ``name``. Raises ConfigurationError with the command that installs ``package``."""
    os.environ.update(_QUIET)
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{package} cannot be imported ({error}): pip install {package}") from error


class Mem0(System):
    """mem0 with ``infer=False`` over local Qdrant: every turn is stored as it is. Raises ConfigurationError.

    Its files are in ``place``, or in a temporary folder, which `close` deletes.
    """

    def __init__(self, model: Embeddings, place: str | None = None) -> None:
        os.environ.setdefault("MEM0_DIR", tempfile.gettempdir())
        memory = _module("mem0", "mem0ai").Memory
        self._folder = tempfile.TemporaryDirectory()
        folder = place or self._folder.name
        qdrant = {"path": f"{folder}/qdrant", "embedding_model_dims": _DIMENSIONS, "on_disk": True}
        config = {
            "vector_store": {"provider": "qdrant", "config": qdrant},
            "llm": {"provider": "langchain", "config": {"model": FakeListChatModel(responses=[""])}},
            "embedder": {"provider": "langchain", "config": {"model": model}},
            "history_db_path": f"{folder}/history.db",
        }
        self.memory = memory.from_config(config)

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Adds every turn for a user with the conversation's id."""
        user = {"user_id": conversation.id}
        for turn in conversation.turns:
            said = {"messages": dated(turn), "infer": False, "metadata": {"turn": turn.id}}
            await asyncio.to_thread(self.memory.add, **said, **user)
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            # By default, mem0 drops results with a similarity below 0.1.
            found = await asyncio.to_thread(self.memory.search, query, top_k=k, filters=user, threshold=0.0)
            return [RecalledTurn(result["metadata"]["turn"]) for result in found["results"]]

        return recall

    def close(self) -> None:
        """Closes the database, and deletes it unless it is in a ``place``."""
        self.memory.vector_store.client.close()
        self._folder.cleanup()


class LangMem(System):
    """langmem's search tool over LangGraph's InMemoryStore, indexed as its guide does it. Raises ConfigurationError."""

    def __init__(self, model: Embeddings) -> None:
        self._make: Any = _module("langmem", "langmem").create_search_memory_tool
        self._model = model

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Stores every turn in the form that langmem's memory-managing tool uses."""
        store = InMemoryStore(index={"dims": _DIMENSIONS, "embed": self._model})
        for turn in conversation.turns:
            await asyncio.to_thread(store.put, ("memories",), turn.id, {"content": dated(turn)})
            advance()
        tool = self._make(("memories",), store=store, response_format="content_and_artifact")

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            call = {"name": tool.name, "args": {"query": query, "limit": k}, "id": "1", "type": "tool_call"}
            return [RecalledTurn(item.key) for item in (await tool.ainvoke(call)).artifact]

        return recall
