"""Snapshot: a user's scopes as they were at one moment, which answers all reads of a turn.

It puts the texts of some scopes into the order in which they answer a question, and lets links change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from typing import Final, TypeVar

from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import neighbours_of, tags_of
from inference_core.retrieval.documents import Epoch
from inference_core.retrieval.query import Named, Query, asks_something, by_canonical, subjects_of
from inference_core.retrieval.ranking import (
    DECIMALS,
    SHARED,
    Bridges,
    Hit,
    LazyRanking,
    Place,
    Pool,
    Ranking,
    RankingCandidate,
    bridges_of,
    link_to_best,
    link_to_query,
    rank,
    shared_marks,
)
from inference_core.stores.backend import Backend, Cursor, Key, PageRequest, Row
from inference_core.stores.indexing.indexes import IndexCache
from inference_core.stores.indexing.search import (
    AskModel,
    FoundRow,
    QuestionVectors,
    RecallMode,
    Reranker,
    Search,
    SearchResult,
    Selection,
    content_of,
    reordered,
)
from inference_core.telemetry import brief_step, record, step

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


_SPARE: Final = 2
_LARGEST_PORTION: Final = 500
RERANKED: Final = 30
"""A re-ranker sees at least this many of the best memories of a group."""
_FIRST_PINNED: Final = 500
"""While an index is being built, pinned rows are found only among this many of the newest."""
_SCAN_SHARE: Final = 0.5
"""The share of the time left in which words are looked for without an index; the rest is for reading what was found."""
_BUILDING: Final = "the index is being built"
_TOO_LARGE: Final = "the index is too large for AGENT_MEMORY_INDEX_MB"
_NEWEST: Final = "; only the newest memories were searched"
Reject = Callable[[Row], str | None]
"""Why a row is left out; None if it is not."""


class Snapshot:
    """Answers from exactly ``scopes``, a user's and those of spaces, as they are when it is made. For one thread.

    Where an index would take longer than ``wait_seconds`` to build, it is built in the background; until then the
    database answers, and searches are by words only. They look through the newest memories, and through as many others
    as take half of the time until ``until`` (`time.monotonic`; None: ``wait_seconds`` from now). Methods block and
    raise StoreError.
    """

    def __init__(
        self,
        backend: Backend,
        indexes: IndexCache,
        scopes: Sequence[Namespace],
        ask_model: AskModel,
        wait_seconds: float,
        rerank: Reranker | None = None,
        until: float | None = None,
    ) -> None:
        self._backend = backend
        self._indexes = indexes
        self._ask_model = ask_model
        self._rerank = rerank
        self._scopes = list(dict.fromkeys(scopes))
        now = time.monotonic()
        self._scan_until = now + _SCAN_SHARE * (wait_seconds if until is None else until - now)
        self._is_cold = bool(scopes) and indexes.needs_build(self._scopes, wait_seconds)
        self._views = {} if self._is_cold else dict(zip(self._scopes, indexes.views(self._scopes), strict=True))
        self._problem = ""
        if self._is_cold:
            self._problem = _BUILDING if indexes.build(self._scopes) else _TOO_LARGE

    @property
    def count_unembedded(self) -> int:
        """How many of its texts have no vector of the store's model; 0 while it is without an index."""
        return sum(len(view.unembedded) for view in self._views.values())

    def unembedded(self) -> list[Key]:
        """The keys of these texts."""
        return [(scope, view.keys[slot]) for scope, view in self._views.items() for slot in view.unembedded.tolist()]

    def search(self, search: Search) -> SearchResult:
        """The best rows for a text; for a blank text, the newest with ``backfill``, else none."""
        return self.search_together([search])[0]

    def search_together(self, searches: Sequence[Search]) -> list[SearchResult]:
        """Like `search` for each of ``searches``. All have the same text, which is ranked once.

        Statistics are those of all their groups.
        """
        if not searches[0].text.strip():
            return [
                SearchResult(
                    [
                        [
                            FoundRow(row, 0.0)
                            for row in self.newest(group, kinds=one.kinds, limit=one.limit, reject=one.reject)
                        ]
                        if one.backfill
                        else []
                        for group in one.groups
                    ],
                    RecallMode.HYBRID,
                )
                for one in searches
            ]
        if self._is_cold:
            question = QuestionVectors()
        else:  # the question has vectors only where a text is compared with them
            spaces = (view.vectors.held_spaces for view in self._views.values())
            question = self._ask_model(frozenset[int]().union(*spaces))
        with brief_step("rank"):
            ranked, query, is_whole = self._ranked(searches, question)
        if self._is_cold:
            question = QuestionVectors(problem=self._problem if is_whole else self._problem + _NEWEST)
        return [self._result(search, ranked, query, question) for search in searches]

    def newest(
        self,
        scopes: Sequence[Namespace],
        *,
        kinds: frozenset[str] | None = None,
        limit: int,
        reject: Reject | None = None,
    ) -> list[Row]:
        """The newest rows of ``scopes`` (and of ``kinds``) that are not rejected, the newest creation first."""
        found: list[Row] = []
        for portion in self._by_age(scopes, kinds, max(limit, 1)):
            found += [row for row in portion if reject is None or reject(row) is None]
            if len(found) >= limit:
                break
        return found[:limit]

    def pinned(self, scopes: Sequence[Namespace]) -> list[Row]:
        """All rows of ``scopes`` that are pinned, the newest first."""
        if self._is_cold:
            rows = self._backend.page(PageRequest(scopes, limit=_FIRST_PINNED))
            return [row for row in rows if row.value.get("pinned") is True]
        places: list[tuple[float, str, Namespace, int]] = []
        for scope in scopes:
            view = self._views[scope]
            # Pinned memories have the highest importance; whether a memory with it is pinned, only its row says.
            places += [(-view.columns.created.item(slot), view.keys[slot], scope, slot) for slot in view.important]
        rows = self._rows([(scope, slot) for _, _, scope, slot in sorted(places)])
        return [row for row in rows if row is not None and row.value.get("pinned") is True]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key in the snapshot's scopes."""
        if self._is_cold:
            return self._backend.get(keys)
        slots = [(scope, self._views[scope].slot_of(key)) for scope, key in keys]
        rows = iter(self._rows([(scope, slot) for scope, slot in slots if slot is not None]))
        return [None if slot is None else next(rows) for _, slot in slots]

    def beside(self, keys: Sequence[Key]) -> list[Row | None]:
        """The rows at ``keys`` outside of its scopes, as they are now."""
        return self._backend.get(keys)

    def _by_age(self, scopes: Sequence[Namespace], kinds: frozenset[str] | None, size: int) -> Iterator[list[Row]]:
        """Rows in portions, the newest first; ties by key."""
        if self._is_cold:
            after: Cursor | None = None
            while page := self._backend.page(PageRequest(scopes, kinds=kinds, limit=size + _SPARE, after=after)):
                yield page
                after = Cursor.of(page[-1])
            return

        def newest_of(scope: Namespace) -> Iterator[tuple[float, str, Namespace, int]]:
            view = self._views[scope]
            for slot in view.newest_of(kinds):
                yield -view.columns.created.item(slot), view.keys[slot], scope, int(slot)

        places = merge(*map(newest_of, dict.fromkeys(scopes)))
        while portion := list(islice(places, size + _SPARE)):
            rows = self._rows([(scope, slot) for _, _, scope, slot in portion])
            yield [row for row in rows if row is not None]

    def _ranked(self, searches: Sequence[Search], question: QuestionVectors) -> tuple[Ranked, Query, bool]:
        """The texts in the groups of ``searches``, ranked, the query that ranked them, and whether these are all."""
        first = searches[0]
        query = Query.of(first.text, first.now, question.vectors, ignore_session=first.ignore_session)
        asked = dict.fromkeys(scope for search in searches for group in search.groups for scope in group)
        scopes = [scope for scope in self._scopes if scope in asked]
        if self._is_cold:
            views, is_whole = self._indexes.scanned(scopes, query.terms, self._scan_until)
        else:
            views, is_whole = [self._views[scope] for scope in scopes], True
        held = [(scope, view) for scope, view in zip(scopes, views, strict=True) if len(view)]
        scopes, views = [scope for scope, _ in held], [view for _, view in held]
        pool = Pool(views) if self._is_cold or not views else self._indexes.pool(scopes, views)

        def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
            return self._backend.tokens([(scopes[owner], views[owner].keys[slot]) for owner, slot in places])

        groups = {
            tuple(owner for owner, scope in enumerate(scopes) if scope in group): None
            for search in searches
            for group in search.groups
        }
        ranking = rank(pool, query, tokens_of, [group for group in groups if group])
        return Ranked(scopes, pool, ranking), query, is_whole

    def _result(self, search: Search, ranked: Ranked, query: Query, question: QuestionVectors) -> SearchResult:
        wanted = replace(search, limit=max(search.limit, RERANKED)) if self._rerank else search
        hits = [ranked.hits(wanted, ranked.owners(group)) for group in search.groups]
        # One read for all groups puts the rows that each of them asks for first into the cache.
        spare = _SPARE + NAMED if len(hits) > 1 and search.links is None else _SPARE
        firsts = [list(islice(one, wanted.limit + spare)) for one in hits]
        if len(firsts) > 1 and not self._is_cold:
            self._rows_at(ranked)([hit.place for first in firsts for hit in first])
        selections = [
            self._selected(wanted, ranked, query, group, chain(first, rest))
            for group, first, rest in zip(search.groups, firsts, hits, strict=True)
        ]
        groups = [selection.rows() for selection in selections]
        left_out = [one for selection in selections for one in selection.left_out]
        problem = question.problem
        mode = RecallMode.LEXICAL if question.vectors is None else RecallMode.HYBRID
        record("inference_core.search.mode", 1, {"mode": mode.value})
        if self._rerank:
            with step("rerank"):
                groups, failure = reranked(self._rerank, search, groups)
            problem = failure or problem
        return SearchResult(groups, mode, problem, left_out, question.necessity)

    def _selected(
        self, search: Search, ranked: Ranked, query: Query, group: Sequence[Namespace], hits: Iterator[Hit]
    ) -> Selection:
        """The best rows of ``hits`` that the search takes, fetched in small portions until there are enough."""
        selection = Selection(search, ranked.pool.alike if query.vectors else None)
        owners = ranked.owners(group)
        if search.links and owners:
            for found in linked(search, query, ranked, owners, self._rows_at(ranked)):
                selection.offer(found)
        offered = selection.keys()
        hits = (hit for hit in hits if not offered or ranked.key(hit.place) not in offered)
        rows_at = self._rows_at(ranked)
        size = 0
        while selection.missing > 0 and (portion := list(islice(hits, max(size, selection.missing + _SPARE)))):
            best = list(found_at(search, portion, rows_at).values())
            if search.links is None and not size:
                best = by_name(search, best, lambda: found_at(search, list(islice(hits, NAMED)), rows_at).values())
            for found in best:
                selection.offer(found)
            size = min(2 * len(portion), _LARGEST_PORTION)  # larger and larger, as a search may reject nearly all
        if self._is_cold and search.backfill and selection.missing > 0:
            # The scan that stands in for the index knows only rows that hold a word of the question.
            seen = selection.keys()
            for row in self._backend.page(PageRequest(group, kinds=search.kinds, limit=len(seen) + search.limit)):
                if (row.namespace, row.key) not in seen:
                    selection.offer(FoundRow(row, 0.0, 0.0))
        return selection

    def _rows_at(self, ranked: Ranked) -> Callable[[Sequence[Place]], list[Row | None]]:
        """A function that reads the rows of the texts at places."""
        if self._is_cold:
            return lambda places: self._backend.get([ranked.key(place) for place in places])
        return lambda places: self._rows([(ranked.scopes[place.owner], place.slot) for place in places])

    def _rows(self, places: Sequence[tuple[Namespace, int]]) -> list[Row | None]:
        """The rows in slots; None for one that has expired, or was removed since."""
        wanted: list[tuple[Key, int, int, Epoch]] = []
        for scope, slot in places:
            view = self._views[scope]
            wanted.append(((scope, view.keys[slot]), view.columns.written.item(slot), view.seq, view.epoch))
        return self._indexes.rows.get(wanted) if wanted else []


def reranked(
    reranker: Reranker, search: Search, groups: Sequence[Sequence[FoundRow]]
) -> tuple[list[list[FoundRow]], str | None]:
    """The rows of each group as ``reranker`` orders them, cut to the limit; if it fails, as they were, and why."""
    try:
        texts = [[str(found.row.value.get("content", found.row.value)) for found in group] for group in groups]
        orders = [reordered(reranker, search.text, group) if group else [] for group in texts]
    except Exception as error:  # noqa: BLE001 - whatever it raises, the first order is there
        return [list(group[: search.limit]) for group in groups], f"The re-ranker failed: {type(error).__name__}"
    return [[group[at] for at in order[: search.limit]] for group, order in zip(groups, orders, strict=True)], None


def search_each_user(
    searches: Sequence[Search], snapshot_of: Callable[[Sequence[Namespace]], Snapshot]
) -> list[SearchResult]:
    """What each of ``searches`` finds. Scopes of several users are ranked one user after the other.

    With ``together`` in the first search, they are ranked as one.
    """
    if searches[0].together:
        scopes = dict.fromkeys(chain.from_iterable(chain.from_iterable(search.groups) for search in searches))
        return snapshot_of(list(scopes)).search_together(searches)
    users: dict[str, dict[Namespace, None]] = {}
    for scope in chain.from_iterable(chain.from_iterable(search.groups) for search in searches):
        users.setdefault(scope[0], {})[scope] = None
    parts: list[list[SearchResult]] = []
    for own in list(users.values()) or [{}]:
        searched = [
            replace(search, groups=[[scope for scope in group if scope in own] for group in search.groups])
            for search in searches
        ]
        parts.append(snapshot_of(list(own)).search_together(searched))
    if len(parts) == 1:
        return parts[0]
    merged: list[SearchResult] = []
    for search, results in zip(searches, zip(*parts, strict=True), strict=True):
        groups = [
            sorted(chain.from_iterable(group), key=lambda found: -found.score)[: search.limit]
            for group in zip(*(result.groups for result in results), strict=True)
        ]
        is_lexical = any(one.mode is RecallMode.LEXICAL for one in results)
        problem = next((one.reason for one in results if one.reason), None)
        left_out = [left for one in results for left in one.left_out]
        mode = RecallMode.LEXICAL if is_lexical else results[0].mode
        merged.append(SearchResult(groups, mode, problem, left_out, results[0].necessity))
    return merged
