"""Answers on standard output, line by line, whether a memory with the words that it reads is found; then saves one."""

from __future__ import annotations

import sys

from inference_core import AgentMemoryStoreService, open_store


def main() -> None:
    with open_store(sys.argv[1], embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for line in sys.stdin:
            word = line.strip()
            found = [hit.content for hit in service.recall_memories("both", f"What about {word}?", k=3)]
            service.save_memory("both", f"The answer to {word} is reply{word}", "facts")
            print(int(any(word in content for content in found)), flush=True)


if __name__ == "__main__":
    main()
