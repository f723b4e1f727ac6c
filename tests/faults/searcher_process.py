"""Says of each word that comes whether a memory with it is found; then saves one."""

from __future__ import annotations

from multiprocessing.connection import Connection

from inference_core import AgentMemoryStoreService, open_store


def search(url: str, words: Connection) -> None:
    """Answers until None comes."""
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        while (word := words.recv()) is not None:
            found = [hit.content for hit in service.recall_memories("both", f"What about {word}?", k=3)]
            service.save_memory("both", f"The answer to {word} is reply{word}", "facts")
            words.send(any(word in content for content in found))
