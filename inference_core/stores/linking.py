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
from inference_core.stores.backend import Backend, Row
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

    def rows(self, places: Sequence[Place]) -> list[Row | None]:
        """What is stored at ``places``."""
        return self.backend.get([(self.scopes[owner], self.indexes[owner].keys[slot]) for owner, slot in places])


def linked(search: Search, query: Query, territory: Territory, hits: Iterable[Hit]) -> list[Found]:
    """The first of ``hits`` and what links lead to, the best first. Raises StoreError.

    Rows that the search rejects lead nowhere.
    """
    direct = _read(search, territory, list(islice(hits, CANDIDATES)))
    candidates = {place: _candidate(found) for place, found in direct.items() if _is_wanted(search, found.row)}
    trust = link_to_query(list(candidates.values()), Named(search.text))
    sources = sorted(candidates, key=lambda place: -candidates[place].score - candidates[place].share)[:SOURCES]
    terms = set(chain.from_iterable((term,) if isinstance(term, str) else term for term in query.terms))
    bridges = {source: _bridges(territory, direct[source].row, terms) for source in sources if trust}
    further = _read_further(search, territory, direct, list(bridges.values()))
    candidates |= {place: _candidate(found) for place, found in further.items() if _is_wanted(search, found.row)}
    marks = {source: shared_marks(candidates[source], list(candidates.values())) for source in bridges}
    for place, candidate in candidates.items():
        ends = {
            candidates[source].key: marks[source][candidate.key] for source in marks if candidate.key in marks[source]
        }
        ends |= {candidates[source].key: found[place] for source, found in bridges.items() if place in found}
        link_to_best(candidate, ends, trust)
    given = [_given(search, found, candidates.get(place)) for place, found in chain(direct.items(), further.items())]
    return sorted(given, key=lambda found: -found.score)


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
    """What bridges lead to beyond ``direct``; it counts as the last of these, and nothing says that it is relevant."""
    weights = {place: mass for found in bridges for place, (mass, _) in found.items() if place not in direct}
    places = [
        place
        for place in sorted(weights, key=lambda place: (-weights[place], place))
        if _is_of_kind(search, territory, place)
    ]
    rows = territory.rows(places := places[:REACHED])
    last = min((found.score for found in direct.values()), default=0.0)
    shares = {"reached": last} if search.explains else {}
    return {place: Found(row, last, 0.0, shares) for place, row in zip(places, rows, strict=True) if row is not None}


def _is_of_kind(search: Search, territory: Territory, place: Place) -> bool:
    return search.kinds is None or territory.indexes[place.owner].kinds[place.slot] in search.kinds


def _is_wanted(search: Search, row: Row) -> bool:
    return search.reject is None or search.reject(row) is None


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
