"""Every change of a memory's text keeps the earlier one, whatever operation made it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, open_store
from inference_core.agents.tools import get_memory_tools
from inference_core.cli.output import word_diff
from inference_core.errors import VersionConflict
from inference_core.memory.namespaces import VERSIONS
from inference_core.testing import FrozenClock


def test_whatever_replaces_a_text_keeps_it(database_url: str, clock: FrozenClock) -> None:
    """Saving under the id of a memory left nothing of its text, and only an update kept one."""
    with open_store(database_url, embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        memory = service.sync
        memory.save_memory("ada", "green tea", "facts", memory_id="tea")
        memory.save_memory("ada", "black tea", "facts", memory_id="tea")
        memory.update_memory("ada", "tea", "white tea")
        memory.update_memory("ada", "tea", pinned=True, tags=["hot"])
        memory.update_memory("ada", "tea", pinned=False)
        tools = {tool.name: tool for tool in get_memory_tools(service, "ada")}
        tools["update_memory_store"].invoke({"memory_id": "tea", "content": "no tea"})
        memory.save_memory("ada", "an evening of tea", "interaction", memory_id="tea")  # in another category
        texts = ["green tea", "black tea", "white tea", "no tea", "an evening of tea"]
        history = memory.get_memory_history("ada", "tea")
        assert [one.content for one in history] == texts
        assert [one.content for one in memory.why("ada", "tea").earlier] == texts[:-1]
        assert memory.get_memory_history("bob", "tea") == []
        assert [one.content for one in memory.list_memories("ada")[0]] == texts[-1:]
        assert not {"white tea", "black tea"} & {one.content for one in memory.recall_memories("ada", "white tea", 9)}
        assert [item.key for item in store.search(("ada",), limit=9)] == ["tea"]
        assert memory.delete_memory("ada", "tea", erase=True)
        assert " tea" not in repr(list(store.engine.backend.inspect("ada")))


def test_nothing_is_kept_where_nothing_shall_be(clock: FrozenClock) -> None:
    for store in (InMemoryStore(), open_store("memory://", embeddings=None, clock=clock)):
        memory = AgentMemoryStoreService(store, clock=clock, deleted_days=0).sync
        memory.save_memory("ada", "green tea", "facts", memory_id="tea")
        memory.save_memory("ada", "black tea", "facts", memory_id="tea")
        assert [one.content for one in memory.get_memory_history("ada", "tea")] == ["black tea"]
        assert "green" not in repr(list(memory.scope.engine.backend.inspect("ada")))


def test_no_version_is_lost_between_writers(database_url: str, clock: FrozenClock) -> None:
    with open_store(database_url, embeddings=None, clock=clock) as store:
        memory = AgentMemoryStoreService(store, clock=clock, timeout=None).sync
        memory.save_memory("ada", "0", "facts", memory_id="n")
        with ThreadPoolExecutor(4) as threads:
            texts = map(str, range(1, 21))
            list(threads.map(partial(memory.save_memory, "ada", memory_id="n"), texts))
        history = memory.get_memory_history("ada", "n")
        assert [one.version for one in history] == list(range(1, 22))
        assert sorted(int(one.content) for one in history) == list(range(21))


def test_each_version_has_an_end_of_its_own(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        memory = AgentMemoryStoreService(store, clock=clock, deleted_days=2).sync
        memory.save_memory("ada", "one", "facts", memory_id="n")
        for text in ("two", "three", "four"):
            memory.update_memory("ada", "n", text)
            clock.advance(timedelta(days=1))
        assert [one.content for one in memory.get_memory_history("ada", "n")] == ["three", "four"]
        memory.delete_user_memories("ada")
        assert not [name for name in store.engine.backend.namespaces() if VERSIONS in name]


def test_the_words_that_differ() -> None:
    assert word_diff("Likes green tea", "Likes black tea a lot") == "Likes [-green-] {+black+} tea {+a lot+}"
    assert word_diff("x " + "y " * 20 + "z", "x " + "y " * 20 + "w") == "x y y … y y y [-z-] {+w+}"
    assert word_diff("a " * 4_000, "b") == "4000 words replaced by 1"


def test_regression_versions_go_on_in_another_category(database_url: str, clock: FrozenClock) -> None:
    """They began anew: who had read the first text could overwrite the second, and the history was out of order."""
    with open_store(database_url, embeddings=None, clock=clock) as store:
        memory = AgentMemoryStoreService(store, clock=clock).sync
        texts = ["green tea", "black tea", "an evening of tea", "a night of tea"]
        for text, kind in zip(texts, ["facts", "facts", "interaction", "interaction"], strict=True):
            memory.save_memory("ada", text, kind, memory_id="tea")
        history = memory.get_memory_history("ada", "tea")
        assert [(one.content, one.version) for one in history] == list(zip(texts, [1, 2, 3, 4], strict=True))
        with pytest.raises(VersionConflict):
            memory.update_memory("ada", "tea", "no tea", expected_version=1)
