"""The best rows of a group and what is linked with them, in one order; strictly within the scopes of the group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, NamedTuple

from inference_core.memory.links import neighbours_of, tags_of
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.evidence import DECIMALS
from inference_core.retrieval.index import ScopeIndex
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
from inference_core.retrieval.pool import Place
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import Hit
from inference_core.stores.backend import Backend, Key, Row
from inference_core.stores.search import Found, Search, content_of

CANDIDATES: Final = 60
"""So many of the best rows are read and linked."""
SOURCES: Final = 3
"""So many of these are started from."""
REACHED: Final = 50
"""So many rows beyond them are followed to."""


class Territory(NamedTuple):
    """Where links may lead: the ``owners`` among ``scopes`` and their ``indexes``, read from ``backend``."""

    backend: Backend
    scopes: Sequence[Namespace]
    indexes: Sequence[ScopeIndex]
    owners: Collection[int]

    def key(self, place: Place) -> Key:
        """Where the document at ``place`` is stored."""
        return self.scopes[place.owner], self.indexes[place.owner].keys[place.slot]

    def rows(self, places: Sequence[Place]) -> list[Row | None]:
        """What is stored at ``places``."""
        return self.backend.get(list(map(self.key, places)))


def linked(search: Search, query: Query, territory: Territory, hits: Iterable[Hit]) -> list[Found]:
    """The first of ``hits`` and what links lead to, the best first. Raises StoreError.

    Rows that the search rejects lead nowhere.
    """
    direct = _read(search, territory, list(islice(hits, CANDIDATES)))
    candidates = _candidates(search, direct)
    strength = link_to_query(list(candidates.values()), Named(search.text))
    best = sorted(candidates, key=lambda place: -candidates[place].score - candidates[place].share)[:SOURCES]
    terms = set(chain.from_iterable((term,) if isinstance(term, str) else term for term in query.terms))
    bridges = {place: _bridges(territory, direct[place].row, terms) for place in best if strength}
    further = _read_further(search, territory, direct, list(bridges.values()))
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


def _read(search: Search, territory: Territory, hits: Sequence[Hit]) -> dict[Place, Found]:
    rows = territory.rows([hit.place for hit in hits])
    return {
        hit.place: Found(row, hit.score, hit.relevance, hit.shares if search.explains else {})
        for hit, row in zip(hits, rows, strict=True)
        if row is not None
    }


def _read_further(
    search: Search, territory: Territory, direct: dict[Place, Found], bridges: Sequence[Bridges]
) -> dict[Place, Found]:
    """What bridges lead to beyond ``direct``: it comes after these, and nothing says that it is relevant."""
    ends = [(mass, place) for found in bridges for place, (mass, _) in found.items() if place not in direct]
    wanted = {place: mass for mass, place in sorted(ends) if _is_of_kind(search, territory, place)}
    places = sorted(wanted, key=lambda place: (-wanted[place], territory.key(place)))[:REACHED]
    rows = territory.rows(places)
    start = round(min((found.score for found in direct.values()), default=0.0) - SHARED, DECIMALS)
    shares = {"reached": start} if search.explains else {}
    return {place: Found(row, start, 0.0, shares) for place, row in zip(places, rows, strict=True) if row is not None}


def _is_of_kind(search: Search, territory: Territory, place: Place) -> bool:
    return search.kinds is None or territory.indexes[place.owner].kinds[place.slot] in search.kinds


def _candidate(found: Found) -> Candidate:
    text = content_of(found.row)
    subjects = subjects_of(found.row.value, text)
    marks = subjects | by_canonical(tags_of(found.row.value))
    return Candidate(found.row.key, found.score, found.relevance or 0.0, subjects, marks, asks_something(text))


def _bridges(territory: Territory, row: Row, terms: Collection[str]) -> Bridges:
    return bridges_of(content_of(row), terms, neighbours_of(row.value), territory.indexes, territory.owners)


def _given(search: Search, found: Found, candidate: Candidate | None) -> Found:
    if candidate is None or not candidate.links:
        return found
    share = round(candidate.share, DECIMALS)
    shares = {**found.shares, "links": share} if search.explains else found.shares
    return replace(found, score=round(found.score + share, DECIMALS), shares=shares, links=tuple(candidate.links))
