"""What a search ranks, and what links add to it: strictly within the scopes of each group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from inference_core.memory.links import neighbours_of, tags_of
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.evidence import DECIMALS
from inference_core.retrieval.links import (
    SHARED,
    Bridges,
    Candidate,
    bridges_of,
    link_to_best,
    link_to_query,
    shared_marks,
)
from inference_core.retrieval.names import Named, asks_something, by_canonical, subjects_of
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import Hit, LazyRanking, Ranking
from inference_core.stores.backend import Key, Row
from inference_core.stores.search import Found, Search, content_of

CANDIDATES: Final = 60
"""So many of the best rows are read and linked."""
SOURCES: Final = 3
"""So many of these are started from."""
REACHED: Final = 50
"""So many rows beyond them are followed to."""


RowsAt = Callable[[Sequence[Place]], list[Row | None]]
"""Gives what is stored at places."""


class Ranked:
    """The texts of some views in the order in which they answer a question."""

    def __init__(self, scopes: Sequence[Namespace], pool: Pool, ranking: Ranking | LazyRanking) -> None:
        self.scopes = scopes
        self.pool = pool
        self._ranking = ranking

    def owners(self, group: Sequence[Namespace]) -> list[int]:
        """Which of the views are those of ``group``."""
        return [owner for owner, scope in enumerate(self.scopes) if scope in group]

    def key(self, place: Place) -> Key:
        """Where the text at ``place`` is stored."""
        return self.scopes[place.owner], self.pool.views[place.owner].keys[place.slot]

    def is_of_kind(self, place: Place, kinds: frozenset[str] | None) -> bool:
        """Whether the kind of the row at ``place`` is one of ``kinds``."""
        return kinds is None or self.pool.views[place.owner].kind(place.slot) in kinds

    def hits(self, search: Search, owners: Collection[int]) -> Iterator[Hit]:
        """The hits in some of the views, the best first; if the search is to be filled, what is no hit after them."""
        if not owners:
            return iter(())
        hits = self._ranking.of(owners, search.kinds)
        return chain(hits, self._ranking.others(owners, search.kinds)) if search.fills else hits


def linked(search: Search, query: Query, ranked: Ranked, owners: Collection[int], rows_at: RowsAt) -> list[Found]:
    """The best hits in the views of ``owners`` and what links lead to there, the best first. Raises StoreError.

    Rows that the search rejects lead nowhere.
    """
    direct = _read(search, rows_at, list(islice(ranked.hits(search, owners), CANDIDATES)))
    candidates = _candidates(search, direct)
    strength = link_to_query(list(candidates.values()), Named(search.text))
    best = sorted(candidates, key=lambda place: -candidates[place].score - candidates[place].share)[:SOURCES]
    terms = set(chain.from_iterable((term,) if isinstance(term, str) else term for term in query.terms))
    bridges = {place: _bridges(ranked, owners, direct[place].row, terms) for place in best if strength}
    further = _read_further(search, ranked, rows_at, direct, list(bridges.values()))
    candidates |= _candidates(search, further)
    _link_to_best(candidates, bridges, strength)
    given = [_given(search, found, candidates.get(place)) for place, found in chain(direct.items(), further.items())]
    return sorted(given, key=lambda found: -found.score)


def _link_to_best(candidates: dict[Place, Candidate], bridges: dict[Place, Bridges], strength: float) -> None:
    """Follows the bridges from the best to all candidates; what records say goes before what texts share."""
    ends: dict[Place, dict[str, tuple[float, str]]] = {place: {} for place in candidates}
    for source, found in bridges.items():
        for place, bridge in (found | shared_marks(candidates[source], candidates)).items():
            if place in candidates and place != source:
                ends[place][candidates[source].key] = bridge
    for place, candidate in candidates.items():
        link_to_best(candidate, ends[place], strength)


def _candidates(search: Search, found: dict[Place, Found]) -> dict[Place, Candidate]:
    """What may be given."""
    reject = search.reject
    return {place: _candidate(one) for place, one in found.items() if reject is None or reject(one.row) is None}


def _read(search: Search, rows_at: RowsAt, hits: Sequence[Hit]) -> dict[Place, Found]:
    rows = rows_at([hit.place for hit in hits])
    return {
        hit.place: Found(row, hit.score, hit.relevance, hit.shares if search.explains else {})
        for hit, row in zip(hits, rows, strict=True)
        if row is not None
    }


def _read_further(
    search: Search, ranked: Ranked, rows_at: RowsAt, direct: dict[Place, Found], bridges: Sequence[Bridges]
) -> dict[Place, Found]:
    """What bridges lead to beyond ``direct``: it comes after these, and nothing says that it is relevant."""
    ends = [(mass, place) for found in bridges for place, (mass, _) in found.items() if place not in direct]
    wanted = {place: mass for mass, place in sorted(ends) if ranked.is_of_kind(place, search.kinds)}
    places = sorted(wanted, key=lambda place: (-wanted[place], ranked.key(place)))[:REACHED]
    rows = rows_at(places)
    start = round(min((found.score for found in direct.values()), default=0.0) - SHARED, DECIMALS)
    shares = {"reached": start} if search.explains else {}
    return {place: Found(row, start, 0.0, shares) for place, row in zip(places, rows, strict=True) if row is not None}


def _candidate(found: Found) -> Candidate:
    text = content_of(found.row)
    subjects = subjects_of(found.row.value, text)
    marks = subjects | by_canonical(tags_of(found.row.value))
    return Candidate(found.row.key, found.score, found.relevance or 0.0, subjects, marks, asks_something(text))


def _bridges(ranked: Ranked, owners: Collection[int], row: Row, terms: Collection[str]) -> Bridges:
    return bridges_of(content_of(row), terms, neighbours_of(row.value), ranked.pool.views, owners)


def _given(search: Search, found: Found, candidate: Candidate | None) -> Found:
    if candidate is None or not candidate.links:
        return found
    share = round(candidate.share, DECIMALS)
    shares = {**found.shares, "links": share} if search.explains else found.shares
    return replace(found, score=round(found.score + share, DECIMALS), shares=shares, links=tuple(candidate.links))
