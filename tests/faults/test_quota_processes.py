"""Several processes fill one user's memory at once."""

from __future__ import annotations

from processes import Forked
from quota_process import fill

from inference_core import AgentMemoryStoreService, open_store


def test_processes_share_one_limit_to_the_memory(shared_url: str) -> None:
    """Counts are written with what they count: nothing is lost among four processes, and nothing exceeds the limit."""
    with open_store(shared_url, embeddings=None):
        pass  # its tables are made once
    limit = 40
    processes = [Forked(fill, shared_url, limit, name) for name in "abcd"]
    ends = [process.end() for process in processes]
    assert [code for code, _ in ends] == [0] * 4, ends
    assert sum(int(lines[-1]) for _, lines in ends) == limit
    with open_store(shared_url, embeddings=None) as store:
        assert AgentMemoryStoreService(store).sync.count_memories("ada")["total"] == limit
