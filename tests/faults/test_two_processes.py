"""Two processes on one database: each acknowledged write is seen by the other's next search."""

from __future__ import annotations

from processes import CONTEXT, Forked
from searcher_process import search

from inference_core import AgentMemoryStoreService, open_store


def test_each_process_finds_what_the_other_has_saved(shared_url: str) -> None:
    with open_store(shared_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        ours, theirs = CONTEXT.Pipe()
        other = Forked(search, shared_url, theirs)
        theirs.close()
        for number in range(60 if shared_url.startswith("sqlite") else 20):
            word = f"topic{number}"
            memory_id = service.save_memory("both", f"A note about {word}", "facts")
            ours.send(word)
            assert ours.recv() is True
            assert f"reply{word}" in service.recall_memories("both", f"reply{word}", k=1)[0].content
            assert service.delete_memory("both", memory_id)
        ours.send(None)
        assert other.end() == (0, [])
        ours.close()
