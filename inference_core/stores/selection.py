"""From ranked rows to those that are given: valid ones, each said once, various, within the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inference_core.memory.fields import moment_field
from inference_core.memory.trust import MemorySource, Origin
from inference_core.retrieval.recency import WINDOW, Moment, asks_for_present, newest_first
from inference_core.retrieval.similarity import diversified, gist
from inference_core.stores.backend import Key, Row
from inference_core.stores.search import Found, LeftOut, Search, content_of

_CHOICE: Final = 3
"""Diversity chooses among this many times as many rows as are wanted."""


class Selection:
    """Takes the rows of one group, the best first, until it ``is_full``."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._wanted = search.limit * _CHOICE if search.diversity else search.limit
        self._found: list[Found] = []
        self._said: dict[frozenset[str], str] = {}
        self.left_out: list[LeftOut] = []

    @property
    def missing(self) -> int:
        """How many more rows it takes."""
        return self._wanted - len(self._found)

    def offer(self, found: Found) -> None:
        """Takes ``found``, or notes why it is left out."""
        reason = self._search.reject(found.row) if self._search.reject else None
        if reason is None and self._search.collapses:
            reason = self._duplicate(found.row)
        if reason is None:
            self._found.append(found)
        else:
            self.left_out.append(LeftOut(found, reason))

    def keys(self) -> set[Key]:
        """What it was offered."""
        offered = [*self._found, *(one.found for one in self.left_out)]
        return {(found.row.namespace, found.row.key) for found in offered}

    def rows(self) -> list[Found]:
        """What is given, the best first."""
        chosen = self._found
        if self._search.diversity:
            texts, scores = [content_of(found.row) for found in chosen], [found.score for found in chosen]
            picked = diversified(scores, texts, self._search.limit, self._search.diversity)
            self._leave_out([found for at, found in enumerate(chosen) if at not in picked], "repeats others")
            chosen = [chosen[at] for at in picked]
        elif self._search.prefers_newer and asks_for_present(self._search.text):
            chosen = [*self._newer_first(chosen[:WINDOW]), *chosen[WINDOW:]]
        return self._within_budget(chosen)

    def _newer_first(self, best: list[Found]) -> list[Found]:
        """``best`` with newer rows before older ones of the same; each takes the score of its new place."""
        contents = [content_of(found.row) for found in best]
        order = newest_first(self._search.text, contents, [_moment(found.row) for found in best])
        return [_at_score(best[at], place.score) for at, place in zip(order, best, strict=True)]

    def _within_budget(self, chosen: list[Found]) -> list[Found]:
        left = self._search.max_characters
        if left is None:
            return chosen
        kept: list[Found] = []
        for found in chosen:
            size = len(content_of(found.row))
            if size <= left:
                kept.append(found)
                left -= size
            else:
                self._leave_out([found], "budget")
        return kept

    def _duplicate(self, row: Row) -> str | None:
        meant = gist(content_of(row))
        if meant in self._said:
            return f"duplicate of {self._said[meant]}"
        if meant:
            self._said[meant] = row.key
        return None

    def _leave_out(self, rows: list[Found], reason: str) -> None:
        self.left_out += [LeftOut(found, reason) for found in rows]


def _at_score(found: Found, score: float) -> Found:
    shares = {**found.shares, "newer": score - found.score} if found.shares else found.shares
    return found if score == found.score else replace(found, score=score, shares=shares)


def _moment(row: Row) -> Moment | None:
    """When what a memory says began to hold, and when it was stored; None for what an assistant or a tool said."""
    source = MemorySource.from_value(row.value.get("source") or {})
    if source.tool is None and source.origin not in (Origin.USER, Origin.APPLICATION):
        return None
    happened = moment_field(row.value, "valid_from") or row.created_at
    return happened.timestamp(), row.created_at.timestamp()
