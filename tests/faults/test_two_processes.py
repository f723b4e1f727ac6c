"""Two processes on one database: each acknowledged write is seen by the other's next search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from processes import CONTEXT, Forked
from searcher_process import search

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.agents.checkpoints import CheckpointThreads
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger


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


def list_all(url: str) -> None:
    with open_store(url, embeddings=None) as store:
        print(*sorted(one.content for one in store.memory("ada").all()))


def open_again(store: MemoryStore, url: str, folder: Path) -> None:
    open_store(url, embeddings=None).close()


def open_threads(store: MemoryStore, url: str, folder: Path) -> None:
    CheckpointThreads(url).close()


def erase_somebody(store: MemoryStore, url: str, folder: Path) -> None:
    with closing(CheckpointThreads(url)) as threads:
        erase([store.engine.backend], "somebody", Ledger(folder / "erasures.jsonl"), threads=[threads])


@pytest.mark.parametrize("touch", [open_again, open_threads, erase_somebody])
def test_regression_a_program_that_closes_the_file_leaves_the_journal_of_another(
    touch: Callable[[MemoryStore, str, Path], None], sqlite_url: str, tmp_path: Path
) -> None:
    """Closing any descriptor of a file frees the locks of SQLite: the other program took itself for the last one."""
    with open_store(sqlite_url, embeddings=None) as store:
        memory = store.memory("ada")
        memory.add("before", "facts")
        touch(store, sqlite_url, tmp_path)
        assert Forked(list_all, sqlite_url).end() == (0, ["before"])
        memory.add("later", "facts")
        assert Forked(list_all, sqlite_url).end() == (0, ["before later"])
