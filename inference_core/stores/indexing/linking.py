"""The texts of some scopes in the order in which they answer a question, and what links change in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, TypeVar

from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import neighbours_of, tags_of
from inference_core.retrieval.evidence import DECIMALS
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Named, Query, asks_something, by_canonical, subjects_of
from inference_core.retrieval.ranking import (
    SHARED,
    Bridges,
    Hit,
    LazyRanking,
    Ranking,
    RankingCandidate,
    bridges_of,
    link_to_best,
    link_to_query,
    shared_marks,
)
from inference_core.stores.backend import Key, Row
from inference_core.stores.indexing.search import FoundRow, Search, content_of

NAMED: Final = 8
"""This many rows more are read if one of the best is about somebody whom the text names: they may take its place."""
CANDIDATES: Final = 60
"""This many of the best rows are read if links between rows are followed."""
SOURCES: Final = 3
"""Links are followed from this many of them."""
REACHED: Final = 50
"""At most this many linked rows are added."""
RowsAt = Callable[[Sequence[Place]], list[Row | None]]
"""Gives what is stored at places."""
K = TypeVar("K")


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

    def hits(self, search: Search, owners: Collection[int]) -> Iterator[Hit]:
        """The hits in the views of ``owners``, the best first; with ``backfill``, all other texts follow."""
        if not owners:
            return iter(())
        hits = self._ranking.of(owners, search.kinds)
        return chain(hits, self._ranking.others(owners, search.kinds)) if search.backfill else hits


def found_at(search: Search, hits: Sequence[Hit], rows_at: RowsAt) -> dict[Place, FoundRow]:
    """The rows of ``hits`` that are there. Raises StoreError."""
    return {
        hit.place: FoundRow(row, hit.score, hit.relevance, hit.shares if search.explains else {}, place=hit.place)
        for hit, row in zip(hits, rows_at([hit.place for hit in hits]), strict=True)
        if row is not None
    }


def by_name(search: Search, best: list[FoundRow], others: Callable[[], Iterable[FoundRow]]) -> list[FoundRow]:
    """``best``; if one of them is about somebody whom the text names, also ``others``, and all such rows gain by it."""
    named = Named(search.text)
    if not any(named.is_any(subjects_of(one.row.value, content_of(one.row))) for one in best):
        return best
    given = dict(enumerate([*best, *others()]))
    candidates = _candidates(search, given)
    link_to_query(list(candidates.values()), named)
    return _gained(search, given, candidates)


def linked(search: Search, query: Query, ranked: Ranked, owners: Collection[int], rows_at: RowsAt) -> list[FoundRow]:
    """The best hits in the views of ``owners``, and rows there that links lead to, the best first. Raises StoreError.

    Rows that the search rejects lead nowhere.
    """
    hits = list(islice(ranked.hits(search, owners), CANDIDATES))
    direct = found_at(search, hits, rows_at)
    candidates = _candidates(search, direct)
    strength = link_to_query(list(candidates.values()), Named(search.text))
    best = sorted(candidates, key=lambda place: -candidates[place].score - candidates[place].share)[:SOURCES]
    terms = set(chain.from_iterable((term,) if isinstance(term, str) else term for term in query.terms))
    bridges: dict[Place, Bridges] = {}
    for place in best if strength else ():
        row = direct[place].row
        bridges[place] = bridges_of(content_of(row), terms, neighbours_of(row.value), ranked.pool.views, owners)
    # Rows that only bridges lead to come after the direct hits; nothing says that they are relevant.
    reached = [(mass, place) for found in bridges.values() for place, (mass, _) in found.items() if place not in direct]
    kinds, views = search.kinds, ranked.pool.views
    wanted = {
        place: mass for mass, place in sorted(reached) if kinds is None or views[place.owner].kind(place.slot) in kinds
    }
    places = sorted(wanted, key=lambda place: (-wanted[place], ranked.key(place)))[:REACHED]
    start = round(min((found.score for found in direct.values()), default=0.0) - SHARED, DECIMALS)
    shares = {"reached": start} if search.explains else {}
    rows = zip(places, rows_at(places), strict=True)
    further = {place: FoundRow(row, start, 0.0, shares, place=place) for place, row in rows if row is not None}
    candidates |= _candidates(search, further)
    # What records say goes before what texts share.
    ends: dict[Place, dict[str, tuple[float, str]]] = {place: {} for place in candidates}
    for source, found in bridges.items():
        for place, bridge in (found | shared_marks(candidates[source], candidates)).items():
            if place in candidates and place != source:
                ends[place][candidates[source].key] = bridge
    for place, candidate in candidates.items():
        link_to_best(candidate, ends[place], strength)
    return _gained(search, direct | further, candidates)


def _gained(search: Search, found: Mapping[K, FoundRow], candidates: Mapping[K, RankingCandidate]) -> list[FoundRow]:
    """``found`` with what the ``candidates`` among them gained, the best first."""
    given = dict(found)
    for place, candidate in candidates.items():
        if candidate.links:
            one, share = given[place], round(candidate.share, DECIMALS)
            shares = {**one.shares, "links": share} if search.explains else one.shares
            score = round(one.score + share, DECIMALS)
            given[place] = replace(one, score=score, shares=shares, links=tuple(candidate.links))
    return sorted(given.values(), key=lambda one: -one.score)


def _candidates(search: Search, found: Mapping[K, FoundRow]) -> dict[K, RankingCandidate]:
    """The rows of ``found`` that the search does not reject, as candidates for links."""
    candidates: dict[K, RankingCandidate] = {}
    for place, one in found.items():
        if search.reject is None or search.reject(one.row) is None:
            text = content_of(one.row)
            subjects = subjects_of(one.row.value, text)
            marks = subjects | by_canonical(tags_of(one.row.value))
            candidates[place] = RankingCandidate(one.row.key, one.score, subjects, marks, asks_something(text))
    return candidates
