"""Searcher: ranked search over a backend's rows, through the in-process indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.ranking import Hit, query_of, rank
from inference_core.stores.backend import Backend
from inference_core.stores.indexes import IndexCache, one_user_at_a_time
from inference_core.stores.search import Found, Search

_SPARE: Final = 4


class Searcher:
    """Ranks the rows of ``backend``; ``model`` names the vector space, ``max_bytes`` bounds the indexes."""

    def __init__(self, backend: Backend, model: str, max_bytes: int) -> None:
        self._backend = backend
        analyze("loads the stemmer")
        self.indexes = IndexCache(backend, model, max_bytes)

    def ranked(self, search: Search, vector: bytes | None) -> list[list[Found]]:
        """The best rows of each group, the best first; ``vector`` is the query's, None if there is none.

        Raises StoreError.
        """
        query = query_of(search.text, vector)
        results: list[list[Found]] = [[] for _ in search.groups]
        for scopes in one_user_at_a_time(dict.fromkeys(scope for group in search.groups for scope in group)):
            indexes, ranking = self.indexes.use(scopes, lambda found: (found, rank(found, query)))
            for at, group in enumerate(search.groups):
                owners = [owner for owner, scope in enumerate(scopes) if scope in group]
                results[at] += self._best(search, scopes, indexes, ranking.of(owners))
        return [sorted(found, key=_by_score)[: search.limit] for found in results]

    def _best(
        self, search: Search, scopes: Sequence[Namespace], indexes: Sequence[ScopeIndex], hits: Iterator[Hit]
    ) -> list[Found]:
        """The best rows that the search accepts, fetched in small portions until there are enough."""
        found: list[Found] = []
        wanted = (hit for hit in hits if search.kinds is None or indexes[hit.index].kinds[hit.slot] in search.kinds)
        while len(found) < search.limit and (portion := list(islice(wanted, search.limit - len(found) + _SPARE))):
            rows = self._backend.get([(scopes[hit.index], indexes[hit.index].keys[hit.slot]) for hit in portion])
            found += [
                Found(row, hit.score)
                for row, hit in zip(rows, portion, strict=True)
                if row is not None and (search.accept is None or search.accept(row))
            ]
        return found


def _by_score(found: Found) -> float:
    return -found.score
