"""Two processes on one database: each acknowledged write is seen by the other's next search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from inference_core import AgentMemoryStoreService, open_store

SEARCHER = Path(__file__).parent / "searcher_process.py"


def test_each_process_finds_what_the_other_has_saved(shared_url: str) -> None:
    with open_store(shared_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        with subprocess.Popen(
            [sys.executable, SEARCHER, shared_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            for number in range(60 if shared_url.startswith("sqlite") else 20):
                word = f"topic{number}"
                memory_id = service.save_memory("both", f"A note about {word}", "facts")
                print(word, file=other.stdin, flush=True)
                assert other.stdout.readline() == "1\n"
                assert f"reply{word}" in service.recall_memories("both", f"reply{word}", k=1)[0].content
                assert service.delete_memory("both", memory_id)
            other.stdin.close()
