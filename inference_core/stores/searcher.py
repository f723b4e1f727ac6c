"""Searcher: ranked search over a backend's rows, through the in-process indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from inference_core.embeddings.documents import QueryVectors
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.pool import Place
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import Hit, Ranking, rank
from inference_core.stores.backend import Backend
from inference_core.stores.indexes import IndexCache, one_user_at_a_time
from inference_core.stores.search import Found, LeftOut, Search
from inference_core.stores.selection import Selection

_SPARE: Final = 2


class Searcher:
    """Ranks the rows of ``backend``; ``model`` names the vector space, ``max_bytes`` bounds the indexes."""

    def __init__(self, backend: Backend, model: str, max_bytes: int) -> None:
        self._backend = backend
        analyze("loads the stemmer")
        self.indexes = IndexCache(backend, model, max_bytes)

    def ranked(self, search: Search, vectors: QueryVectors | None) -> tuple[list[list[Found]], list[LeftOut]]:
        """The best rows of each group, the best first, and what was left out.

        ``vectors`` are the query's, None if there are none. Raises StoreError.
        """
        query = Query.of(search.text, search.now, *(vectors or ()))
        results: list[list[Found]] = [[] for _ in search.groups]
        left_out: list[LeftOut] = []
        for scopes in one_user_at_a_time(dict.fromkeys(scope for group in search.groups for scope in group)):
            indexes, ranking = self.indexes.use(scopes, partial(self._ranking, scopes, query))
            for at, group in enumerate(search.groups):
                owners = [owner for owner, scope in enumerate(scopes) if scope in group]
                selection = self._selected(search, scopes, indexes, ranking.of(owners))
                results[at] += selection.rows()
                left_out += selection.left_out
        return [sorted(found, key=_by_score)[: search.limit] for found in results], left_out

    def _ranking(
        self, scopes: Sequence[Namespace], query: Query, indexes: Sequence[ScopeIndex]
    ) -> tuple[Sequence[ScopeIndex], Ranking]:
        def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
            return self._backend.tokens([(scopes[at.index], indexes[at.index].keys[at.slot]) for at in places])

        return indexes, rank(indexes, query, tokens_of)

    def _selected(
        self, search: Search, scopes: Sequence[Namespace], indexes: Sequence[ScopeIndex], hits: Iterator[Hit]
    ) -> Selection:
        """The best rows that the search takes, fetched in small portions until there are enough."""
        selection = Selection(search)
        kinds = search.kinds
        wanted = (hit for hit in hits if kinds is None or indexes[hit.place.index].kinds[hit.place.slot] in kinds)
        while selection.missing > 0 and (portion := list(islice(wanted, selection.missing + _SPARE))):
            places = [hit.place for hit in portion]
            rows = self._backend.get([(scopes[at.index], indexes[at.index].keys[at.slot]) for at in places])
            for row, hit in zip(rows, portion, strict=True):
                if row is not None and selection.missing > 0:
                    shares = hit.shares if search.explains else {}
                    selection.offer(Found(row, hit.score, hit.relevance, shares))
        return selection


def _by_score(found: Found) -> float:
    return -found.score
