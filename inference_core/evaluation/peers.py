"""Other memory packages as systems, if they are installed: mem0 and langmem, without a language model.

Both get what all systems get: each turn as one memory, with its day, embedded by the same local model.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from importlib import import_module
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListChatModel
from langgraph.store.memory import InMemoryStore

from inference_core.errors import ConfigurationError
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.systems import Advance, Recall, RecalledTurn, System, dated

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
            return [RecalledTurn(one["metadata"]["turn"]) for one in found["results"]]

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
