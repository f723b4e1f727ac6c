"""Sources that search for the question are ranked once, and find what each of them finds by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from inference_core import (
    AgentMemoryStoreService,
    AssembledContext,
    ContextBuilder,
    ContextRequest,
    ContextSource,
    Pruning,
    open_store,
)
from inference_core.context.engineer import ContextEngineer
from inference_core.errors import StoreUnavailable
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.ranking import LazyRanking, Ranking
from inference_core.services.context_builder import DEFAULT_SOURCES, Memories, OwnSource, SearchingSource, search_for
from inference_core.stores.indexing import indexes
from inference_core.stores.indexing.search import Search
from inference_core.testing import FrozenClock

USER = "ada"
EVERYTHING = ContextEngineer(pruning=Pruning(min_chance=0, min_relevance=0, min_best=0, max_external=1_000))
KINDS = ("facts", "goals", "context", "interaction", "session_summary", "instructions")


@pytest.fixture
def service(tmp_path: Path, clock: FrozenClock) -> Iterator[AgentMemoryStoreService]:
    with open_store(f"sqlite:///{tmp_path / 'memory.db'}", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        for at in range(24):
            kind = KINDS[at % len(KINDS)]
            tags = ["idea"] if kind == "context" else []
            service.sync.save_memory(USER, f"Berlin note {at} with {'tulips ' * (at % 5)}", kind, tags=tags)
        yield service


def built(service: AgentMemoryStoreService, sources: Sequence[ContextSource]) -> AssembledContext:
    return ContextBuilder(service, sources, engineer=EVERYTHING, deadline=60, max_tokens=90_000).sync.build(
        USER, "Berlin tulips"
    )


def ids(context: AssembledContext) -> set[str]:
    return {one.id for section in context.sections.values() for one in section}


class Searching(Memories):
    """A source that asks something else, or fails."""

    def question(self, request: ContextRequest) -> Search | None:
        if self.name == "fails":
            raise StoreUnavailable("Cannot ask")
        return search_for(request, "note 7", [request.scope.namespaces.read_scopes(USER)], 1)


def test_the_question_is_ranked_once(service: AgentMemoryStoreService, monkeypatch: pytest.MonkeyPatch):
    ranked: list[int] = []
    original = indexes.rank

    def counted(pool: Pool, *given: Any) -> Ranking | LazyRanking:
        ranked.append(len(pool))
        return original(pool, *given)

    monkeypatch.setattr(indexes, "rank", counted)
    searching = [one for one in DEFAULT_SOURCES if isinstance(one, SearchingSource) and one.name != "associated"]
    assert {one.name for one in searching} == {"memories", "entities", "consolidated", "goals", "ideas"}
    context = built(service, searching)
    assert context.left_out == {}
    assert ranked == [24]


def test_each_finds_what_it_finds_by_itself(service: AgentMemoryStoreService):
    alone = {one.name: built(service, [one]) for one in DEFAULT_SOURCES}
    assert ids(built(service, DEFAULT_SOURCES)) == set().union(*map(ids, alone.values()))
    assert all(ids(alone[name]) for name in ("memories", "goals", "ideas", "consolidated"))


def test_one_that_cannot_ask_or_asks_something_else_is_by_itself(service: AgentMemoryStoreService):
    context = built(service, [Searching(name="fails"), Searching(name="other"), Memories(limit=6)])
    assert context.left_out == {"fails": "StoreUnavailable: Cannot ask"}
    assert "note 7" in context.text


def test_a_store_that_is_away_is_named_for_each(service: AgentMemoryStoreService, monkeypatch: pytest.MonkeyPatch):
    async def fails(*_: Any) -> Any:
        raise StoreUnavailable("Away")

    monkeypatch.setattr(service.scope.engine, "search_together", fails)
    context = built(service, [*DEFAULT_SOURCES, OwnSource(name="own", find=lambda _: ["There"])])
    assert [one.text for one in context.sections["own"]] == ["There"]
    assert set(context.left_out) == {"memories", "associated", "consolidated"}


def test_a_source_may_be_asked_without_a_builder(service: AgentMemoryStoreService):
    scope = service.scope
    request = ContextRequest(user_id=USER, query="Berlin tulips", messages=(), scope=scope, now=scope.clock.now())
    given = Memories(limit=6).fetch(request)
    assert isinstance(given, list)
    assert len(given) == 6
