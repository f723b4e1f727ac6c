"""Memories that live as long as the store says: `open_store(url, ttl=…)`, on every kind of database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import ConfigurationError
from inference_core.services.user_memories import purge_user_memories
from inference_core.settings import MemorySettings
from inference_core.stores.factory import open_configured_store
from inference_core.stores.rules import lifetimes
from inference_core.stores.rules.lifetimes import MemoryTTLConfig
from inference_core.stores.store import MemoryStore
from inference_core.testing import FrozenClock

DAY: MemoryTTLConfig = {"default_ttl": 1440}


def memory_of(store: MemoryStore, clock: FrozenClock) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(store, clock=clock, counts_access=False)


def contents(service: AgentMemoryStoreService) -> list[str]:
    """What recall finds of ada's, without a sign of it being read."""
    return sorted(one.content for one in service.sync.recall_memories("ada", "tea", 20, ignore_session=True))


def test_memories_end_with_the_time_of_the_store(database_url: str, clock: FrozenClock):
    """`default_ttl` was silently ignored for memories: they were recalled after 30 days."""
    with open_store(database_url, embeddings=None, clock=clock, ttl=DAY) as store:
        service = memory_of(store, clock)
        service.sync.save_memory("ada", "green tea", "facts")
        service.sync.save_memory("ada", "black tea", "context", memory_id="black")
        service.sync.save_memory("ada", "pinned tea", "facts", pinned=True)
        service.sync.save_memory("ada", "tea for a week", "facts", expires_at=clock.now() + timedelta(days=7))
        clock.advance(timedelta(hours=23))
        assert len(contents(service)) == 4
        service.sync.update_memory("ada", "black", "blacker tea")
        clock.advance(timedelta(hours=1))
        assert contents(service) == ["blacker tea", "pinned tea", "tea for a week"]
        assert service.sync.list_memories("ada")[1] == service.sync.count_memories("ada")["total"] == 3
        clock.advance(timedelta(days=7))
        assert contents(service) == ["pinned tea"]
        assert service.sync.get_memory("ada", "black") is None


@pytest.mark.parametrize("how", ["recall", "get", "context"])
def test_what_is_read_lives_on(database_url: str, clock: FrozenClock, how: str):
    with open_store(database_url, embeddings=None, clock=clock, ttl=DAY) as store:
        service = memory_of(store, clock)
        for key in ("green", "black"):
            service.sync.save_memory("ada", f"{key} tea", "facts", memory_id=key)
        for _ in range(3):
            clock.advance(timedelta(hours=20))
            match how:
                case "recall":
                    assert service.sync.recall_memories("ada", "green", 1)
                case "get":
                    assert service.sync.get_memory("ada", "green")
                case _:
                    assert "green tea" in service.sync.format_context_for_prompt("ada", "green", max_memories=1)
            store.engine.flush()
        assert contents(service) == ["green tea"]
        clock.advance(timedelta(hours=24))
        assert contents(service) == []


def test_reads_need_not_extend_it(sqlite_url: str, clock: FrozenClock):
    ttl: MemoryTTLConfig = {"default_ttl": 1440, "refresh_on_read": False}
    with open_store(sqlite_url, embeddings=None, clock=clock, ttl=ttl) as store:
        service = memory_of(store, clock)
        service.sync.save_memory("ada", "green tea", "facts")
        clock.advance(timedelta(hours=20))
        assert service.sync.recall_memories("ada", "tea")
        store.engine.flush()
        clock.advance(timedelta(hours=4))
        assert contents(service) == []


def test_each_category_has_its_own(sqlite_url: str, clock: FrozenClock):
    ttl: MemoryTTLConfig = {"default_ttl": 120, "categories": {"episodic": 60, "semantic": None}}
    with open_store(sqlite_url, embeddings=None, clock=clock, ttl=ttl) as store:
        service = memory_of(store, clock)
        for kind in ("facts", "context", "instructions"):
            service.sync.save_memory("ada", f"tea {kind}", kind)
        store.put(("notes", "semantic"), "own", {"text": "tea"}, ttl=None)
        store.put(("notes", "procedural"), "own", {"text": "tea"}, ttl=None)
        clock.advance(timedelta(hours=1))
        assert contents(service) == ["tea facts", "tea instructions"]
        clock.advance(timedelta(hours=1))
        assert contents(service) == ["tea facts"]
        assert len(store.search(("notes",))) == 2  # the application said that these do not end


def test_settings_name_it(sqlite_url: str, clock: FrozenClock):
    settings = MemorySettings(store_url=sqlite_url, embeddings="none", ttl="none, episodic=60")
    with open_configured_store(settings, clock=clock) as store:
        service = memory_of(store, clock)
        service.sync.save_memory("ada", "tea facts", "facts")
        service.sync.save_memory("ada", "tea context", "context")
        clock.advance(timedelta(hours=1))
        assert contents(service) == ["tea facts"]
    with pytest.raises(ConfigurationError, match="1440,episodic=60"):
        open_configured_store(MemorySettings(store_url=sqlite_url, embeddings="none", ttl="a day"))


@pytest.mark.parametrize(
    "ttl", [{"default_tll": 5}, {"default_ttl": 0}, {"categories": {"semantic": "5"}}, {"categories": {"other": 5}}]
)
def test_a_wrong_time_is_refused(sqlite_url: str, ttl: Any):
    """A key that is mistyped was ignored."""
    with pytest.raises(ConfigurationError, match="ttl"):
        open_store(sqlite_url, embeddings=None, ttl=ttl)


def test_what_has_ended_leaves_nothing(database_url: str, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch):
    """A purge left the text of rows whose time had come, until the next sweep; counts of recalls stayed for ever."""
    monkeypatch.setattr(lifetimes, "_MOST_NOTED", 1)
    with open_store(database_url, embeddings=None, clock=clock, ttl=DAY) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        for key in ("green", "black", "white"):
            service.sync.save_memory("ada", f"{key} tea", "facts", memory_id=key)
        clock.advance(timedelta(hours=12))
        assert len(service.sync.recall_memories("ada", "tea")) == len(service.sync.recall_memories("ada", "tea")) == 3
        store.engine.flush()
        clock.advance(timedelta(days=2))
        assert purge_user_memories(store, "ada") == 0
        backend = store.engine.backend
        assert list(backend.inspect("ada")) == backend.expired(9) == []
