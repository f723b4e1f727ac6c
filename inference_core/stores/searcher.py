"""Searcher: ranked search over a backend's rows, through the in-process indexes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

import numpy as np

from inference_core.embeddings.documents import QueryVectors
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.pool import Place
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import HeadFirst, Hit, Ranking, rank
from inference_core.stores.backend import Backend, Key, Row
from inference_core.stores.indexes import IndexCache, one_user_at_a_time
from inference_core.stores.linking import Territory, linked
from inference_core.stores.search import Found, LeftOut, Search
from inference_core.stores.selection import Selection

_SPARE: Final = 2


class Ranked(NamedTuple):
    """The rows of each group, the best first; what was left out; whether by a scan, as an index is still missing."""

    groups: list[list[Found]]
    left_out: list[LeftOut]
    is_scanned: bool


class _View(NamedTuple):
    """The scopes that hold something, their indexes, and the order of what these hold.

    ``linked`` has, by the scopes of a group that hold something, what comes before that order.
    """

    scopes: Sequence[Namespace]
    indexes: Sequence[ScopeIndex]
    ranking: Ranking | HeadFirst
    linked: dict[tuple[int, ...], list[Found]]

    def key(self, hit: Hit) -> Key:
        """Where the hit is stored."""
        owner, slot = hit.place
        return self.scopes[owner], self.indexes[owner].keys[slot]


class Searcher:
    """Ranks the rows of ``backend``; ``model`` names the vector space, ``max_bytes`` bounds the indexes."""

    def __init__(self, backend: Backend, model: str, max_bytes: int) -> None:
        self._backend = backend
        analyze("loads the stemmer")
        self.indexes = IndexCache(backend, model, max_bytes)

    def ranked(self, search: Search, vectors: QueryVectors | None) -> Ranked:
        """The best rows of each group. ``vectors`` are the query's, None if there are none. Raises StoreError.

        Where an index would take long to build, it is built in the background, and words alone decide until then.
        """
        return self.ranked_together([search], vectors)[0]

    def ranked_together(self, searches: Sequence[Search], vectors: QueryVectors | None) -> list[Ranked]:
        """Like `ranked` for each of ``searches``, which ask the same, so that it is ranked once.

        Statistics are those of all their groups.
        """
        first = searches[0]
        query = Query.of(first.text, first.now, *(vectors or ()), by_itself=first.by_itself)
        found = [Ranked([[] for _ in search.groups], [], is_scanned=False) for search in searches]
        groups = [group for search in searches for group in search.groups]
        for scopes in one_user_at_a_time(dict.fromkeys(scope for group in groups for scope in group)):
            is_far = self.indexes.are_far(scopes, first.patience)
            if is_far:
                by_words = replace(query, vector=None, tokens=None)
                view = self._view(searches, by_words, scopes, self.indexes.scanned(scopes, query.terms))
            else:
                view = self.indexes.use(scopes, partial(self._view, searches, query, scopes))
            for at, search in enumerate(searches):
                self._select(search, view, found[at], scopes if is_far and search.fills else ())
                found[at] = found[at]._replace(is_scanned=found[at].is_scanned or is_far)
            if is_far:
                self.indexes.build(scopes)
        return [
            one._replace(groups=[sorted(rows, key=_by_score)[: search.limit] for rows in one.groups])
            for one, search in zip(found, searches, strict=True)
        ]

    def newest(self, scopes: Sequence[Namespace], kinds: Collection[str], limit: int) -> list[Row] | None:
        """Of each of ``kinds`` the newest rows that have a text, in ``scopes`` of one user; the newest of all first.

        None if an index is not there yet. Raises StoreError.
        """
        if self.indexes.are_far(scopes, 0.0):
            return None
        rows = self._backend.get(self.indexes.use(scopes, partial(_newest, scopes, kinds, limit)))
        return sorted(filter(None, rows), key=lambda row: (-row.created_at.timestamp(), row.key))

    def _select(self, search: Search, view: _View, into: Ranked, filled: Sequence[Namespace]) -> None:
        """Adds to each group of ``into`` the best rows of ``view``, and the newest of ``filled`` if they are few."""
        for found, group in zip(into.groups, search.groups, strict=True):
            selection = self._selected(search, view, group)
            if newest := [scope for scope in group if scope in filled]:
                self._fill(selection, search, newest)
            found.extend(selection.rows())
            into.left_out.extend(selection.left_out)

    def _view(
        self,
        searches: Sequence[Search],
        query: Query,
        scopes: Sequence[Namespace],
        indexes: Sequence[ScopeIndex],
    ) -> _View:
        held = [(scope, index) for scope, index in zip(scopes, indexes, strict=True) if len(index)]
        scopes, indexes = [scope for scope, _ in held], [index for _, index in held]

        def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
            return self._backend.tokens([(scopes[owner], indexes[owner].keys[slot]) for owner, slot in places])

        owners = [[_owners(scopes, group) for group in search.groups] for search in searches]
        distinct = dict.fromkeys(tuple(group) for groups in owners for group in groups if group)
        view = _View(scopes, indexes, rank(indexes, query, tokens_of, list(distinct)), {})
        for search, groups in zip(searches, owners, strict=True):
            for group in filter(None, groups if search.links else ()):
                territory = Territory(self._backend, scopes, indexes, group)
                view.linked[tuple(group)] = linked(search, query, territory, _hits(search, view, group))
        return view

    def _selected(self, search: Search, view: _View, group: Sequence[Namespace]) -> Selection:
        """The best rows that the search takes, fetched in small portions until there are enough."""
        selection = Selection(search)
        owners = _owners(view.scopes, group)
        for found in view.linked.get(tuple(owners), ()) if search.links else ():
            if selection.missing > 0:
                selection.offer(found)
        offered = selection.keys()
        hits = (hit for hit in _hits(search, view, owners) if view.key(hit) not in offered)
        while selection.missing > 0 and (portion := list(islice(hits, selection.missing + _SPARE))):
            rows = self._backend.get([view.key(hit) for hit in portion])
            for row, hit in zip(rows, portion, strict=True):
                if row is not None and selection.missing > 0:
                    shares = hit.shares if search.explains else {}
                    selection.offer(Found(row, hit.score, hit.relevance, shares))
        return selection

    def _fill(self, selection: Selection, search: Search, scopes: Sequence[Namespace]) -> None:
        """Adds the newest rows, as a scan knows only those that hold a word of the query."""
        seen = selection.keys()
        size = len(seen) + search.limit
        for row in self._backend.page(scopes, kinds=search.kinds, limit=size) if selection.missing > 0 else ():
            if selection.missing > 0 and (row.namespace, row.key) not in seen:
                selection.offer(Found(row, 0.0, 0.0))


def _newest(
    scopes: Sequence[Namespace], kinds: Collection[str], limit: int, indexes: Sequence[ScopeIndex]
) -> list[Key]:
    """Where the newest texts of each of ``kinds`` are stored."""
    return [place for kind in kinds for place in _newest_of(scopes, kind, limit, indexes)]


def _newest_of(scopes: Sequence[Namespace], kind: str, limit: int, indexes: Sequence[ScopeIndex]) -> list[Key]:
    found: list[tuple[float, str, Namespace]] = []
    for scope, index in zip(scopes, indexes, strict=True):
        is_wanted = index.is_of(frozenset([kind]))
        slots, created = index.order.slots[is_wanted], index.in_order("created")[is_wanted]
        order = np.argsort(-created, kind="stable")[:limit]
        found += [(-created.item(at), index.keys[slots.item(at)], scope) for at in order]
    return [(scope, key) for _, key, scope in sorted(found)[:limit]]


def _owners(scopes: Sequence[Namespace], group: Sequence[Namespace]) -> list[int]:
    return [owner for owner, scope in enumerate(scopes) if scope in group]


def _hits(search: Search, view: _View, owners: Sequence[int]) -> Iterator[Hit]:
    """The hits of some scopes, the best first, and, if the search is to be filled, what is no hit after them."""
    if not owners:
        return iter(())

    def is_of_kind(place: Place) -> bool:
        return search.kinds is None or view.indexes[place.owner].kinds[place.slot] in search.kinds

    accepts = None if search.kinds is None else is_of_kind
    hits = view.ranking.of(owners, accepts)
    return chain(hits, view.ranking.others(owners, accepts)) if search.fills else hits


def _by_score(found: Found) -> float:
    return -found.score
