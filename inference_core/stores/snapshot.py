"""Snapshot: a user's scopes as they were at one moment, for whoever decides by several looks at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Backend, Key, Row
from inference_core.stores.cursor import Cursor
from inference_core.stores.search import Found, RecallMode, Search, SearchResult

if TYPE_CHECKING:
    from inference_core.stores.searcher import Searcher

_PORTION: Final = 32
_SCANNED: Final = 2_000
Reject = Callable[[Row], str | None]
"""Why a row is left out; None if it is not."""


class Snapshot:
    """Answers from exactly ``scopes``, all of one user. For one thread; methods block and raise StoreError.

    ``found`` ranks a search as the engine does.
    """

    def __init__(
        self, backend: Backend, searcher: Searcher, scopes: Sequence[Namespace], found: Callable[[Search], SearchResult]
    ) -> None:
        self._backend = backend
        self._searcher = searcher
        self._scopes = list(scopes)
        self._found = found

    def search(self, search: Search) -> SearchResult:
        """The best rows for a text; a blank text that ``fills`` gives the newest."""
        if search.text.strip():
            return self._found(search)
        groups = [
            [
                Found(row, 0.0)
                for row in self.newest(group, kinds=search.kinds, limit=search.limit, reject=search.reject)
            ]
            for group in search.groups
        ]
        return SearchResult(groups if search.fills else [[] for _ in groups], RecallMode.HYBRID)

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
        after: Cursor | None = None
        while len(found) < limit:
            page = self._backend.page(scopes, kinds=kinds, limit=_PORTION, after=after)
            found += [row for row in page if reject is None or reject(row) is None]
            if len(page) < _PORTION:
                break
            after = Cursor.of(page[-1])
        return found[:limit]

    def pinned(self, scopes: Sequence[Namespace]) -> list[Row]:
        """All rows of ``scopes`` that are pinned, the newest first."""
        rows = self._backend.page(scopes, limit=_SCANNED)
        return [row for row in rows if row.value.get("pinned") is True]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        return self._backend.get(keys)
