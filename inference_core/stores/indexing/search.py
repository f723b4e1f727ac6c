"""The request and the result of a search, and how the best rows are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from itertools import chain
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import MemoryLink, turn_session_of, why_invalid
from inference_core.memory.text import moment_field, text_field
from inference_core.memory.trust import MemorySource, Trust
from inference_core.retrieval.query import subjects_of
from inference_core.retrieval.similarity import (
    WINDOW,
    WINDOW_OF_TURNS,
    Moment,
    asks_for_past,
    asks_for_present,
    diversified,
    gist,
    newest_first,
    outdated,
)
from inference_core.stores.backend import Key, Row

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor

    from inference_core.retrieval.documents import QueryVectors
    from inference_core.retrieval.pool import Place
    from inference_core.retrieval.vectors import Floats


COLD_SECONDS: Final = 7.0
"""Seconds that a direct search waits for a model that is being loaded, and for an index that is not there yet."""


_FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)
SHOWN: Final = "shown already"
FILTERED: Final = "filtered"


class RecallMode(str, Enum):
    """By which evidence hits were ranked."""

    HYBRID = "hybrid"
    LEXICAL = "lexical"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Says why a row is left out; None if it is not. Keeps what holds at ``now``, or held at ``as_of``.

    First, it leaves out rows whose keys are ``shown`` or whose contents are in ``contents``, as the prompt has them
    already; rows that do not match; and rows of other types than ``kinds`` (None: all).
    """

    now: datetime
    as_of: datetime | None = None
    shown: Collection[Key] = ()
    contents: Collection[str] = ()
    matches: Callable[[Row], bool] | None = None
    kinds: frozenset[str] | None = None

    def __call__(self, row: Row) -> str | None:
        """Why ``row`` is left out."""
        traits = traits_of(row)
        if (row.namespace, row.key) in self.shown or traits.content in self.contents:
            return SHOWN
        if self.matches is not None and not self.matches(row):
            return FILTERED
        if self.kinds is not None and row.value.get("memory_type") not in self.kinds:
            return "of another type"
        return why_invalid(row.value, self.now, self.as_of) if self.as_of is not None else traits.why_invalid(self.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A ranked search for ``text``. Each group of scopes gives its ``limit`` best rows; the statistics are of all.

    ``kinds`` and ``reject``, such as a `RowFilter`, are applied before the ``limit``. ``deduplicate``: of rows whose
    contents say the same, only the best is given. ``max_characters`` bounds the contents of a group together.
    ``backfill``: if fewer rows match than ``limit``, the newest others follow. ``diversity`` is how much of its score a
    content loses if it repeats another one entirely. ``explains``: rows come with the shares of their scores.
    ``ignore_session``: only the text of a row counts, not who said it nor what was said around it.

    ``links``: None raises rows about somebody whom the text names; True also raises rows that share something with the
    best rows, and adds some of these; False does neither. ``together``: the scopes of several owners, such as a user
    and the user's spaces, are ranked as one. ``prefers_newer``: of the best rows on the same subject that come from the
    user or the application, the newer one comes first, unless the text asks for what held before.

    ``wait_seconds`` is how many seconds to wait for the query's vector before going on without it, ``cold_seconds`` how
    many for a model that is still being loaded; the search waits the longer of both for an index that is not there yet.
    ``now`` is the moment from which "last week" is counted, in the user's time zone.
    """

    groups: Sequence[Sequence[Namespace]]
    text: str
    limit: int
    backfill: bool = False
    kinds: frozenset[str] | None = None
    reject: Callable[[Row], str | None] | None = None
    deduplicate: bool = False
    max_characters: int | None = None
    diversity: float = 0.0
    explains: bool = False
    ignore_session: bool = False
    prefers_newer: bool = False
    links: bool | None = False
    together: bool = False
    wait_seconds: float = 2.0
    cold_seconds: float = 0.0
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row, its score (higher is better), its relevance from 0 to 1, and, if explained, the shares of its score.

    ``links`` are those that add to the score. ``outdated``: whether it lost 1 to a newer row that may have replaced it.
    ``place`` is the row's place in the index of the search, if the index found it.
    """

    row: Row
    score: float
    relevance: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    links: tuple[MemoryLink, ...] = ()
    outdated: bool = False
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that would have been among the best but for ``reason``."""

    found: FoundRow
    reason: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The rows of each group, the best first; how they were ranked; if not by all evidence, why; what was left out.

    ``necessity`` is the log-odds that a reply to the text needs memory, by the text and by how many rows were ranked;
    None if the model does not tell.
    """

    groups: list[list[FoundRow]]
    mode: RecallMode
    reason: str | None = None
    left_out: list[LeftOutRow] = field(default_factory=list[LeftOutRow])
    necessity: float | None = None


@dataclass(frozen=True, slots=True)
class QuestionVectors:
    """The vectors of a question by vector space, or why there are none."""

    vectors: Mapping[int, QueryVectors] | None = None
    problem: str | None = None

    @property
    def necessity(self) -> float | None:
        """The log-odds that a reply to the question needs memory, the mean of what models say; None if none does."""
        told = [vectors.necessity for vectors in (self.vectors or {}).values() if vectors.necessity is not None]
        return fmean(told) if told else None

    def vectors_in(self, spaces: frozenset[int]) -> QuestionVectors:  # noqa: ARG002 - they were made before
        """These, whatever vector ``spaces`` the searched texts have."""
        return self


class Traits:
    """What searches ask of a row with this ``value``, each read once while the row is in memory.

    ``content`` is the text of its memory, "" if it holds none. ``end`` is when the memory ends, the maximum if it never
    does. ``is_turn``: it is a turn of a session.
    """

    def __init__(self, value: Mapping[str, Any], created_at: datetime) -> None:
        self._value, self._created_at = value, created_at
        self.content = text_field(value, "content") or ""
        self._problem = why_invalid(value, _FIRST)
        ends = (moment_field(value, name) for name in ("valid_to", "expires_at") if name in value)
        self.end = min(filter(None, ends), default=LAST)
        self.is_turn = turn_session_of(value) is not None

    def why_invalid(self, now: datetime) -> str | None:
        """Why the memory does not hold at ``now``, as `record.why_invalid` says."""
        return self._problem or ("expired" if self.end <= now else None)

    @cached_property
    def gist(self) -> tuple[str, ...]:
        """The gist of its content."""
        return gist(self.content)

    @cached_property
    def subjects(self) -> dict[str, str]:
        """Whom or what it is about."""
        return subjects_of(self._value, self.content)

    @cached_property
    def moment(self) -> Moment | None:
        """Since when what it says holds; None if it does not tell what holds now.

        None is for external text, and for what an assistant said by itself, unless a memory tool saved it for the user.
        """
        source = MemorySource.from_value(self._value.get("source") or {})
        if source.trust is Trust.EXTERNAL or (source.trust is Trust.INFERRED and source.tool is None):
            return None
        happened = moment_field(self._value, "valid_from") or self._created_at
        return happened.timestamp(), self._created_at.timestamp()


def traits_of(row: Row) -> Traits:
    """The traits of ``row``."""
    traits: Traits | None = row.parsed.get(Traits)
    if traits is None:
        traits = row.parsed[Traits] = Traits(row.value, row.created_at)
    return traits


def by_owner(searches: Sequence[Search]) -> list[tuple[list[Namespace], list[Search]]]:
    """``searches`` by the user or space that owns scopes, each cut to that one's; with ``together``, as they are."""
    asked = list(chain.from_iterable(chain.from_iterable(search.groups) for search in searches))
    if searches[0].together:
        return [(list(dict.fromkeys(asked)), list(searches))]
    owners: dict[str, dict[Namespace, None]] = {}
    for namespace in asked:
        owners.setdefault(namespace[0], {})[namespace] = None
    return [
        (
            list(own),
            [
                replace(
                    search, groups=[[namespace for namespace in group if namespace in own] for group in search.groups]
                )
                for search in searches
            ],
        )
        for own in list(owners.values()) or [{}]
    ]


def joined(searches: Sequence[Search], parts: Sequence[list[SearchResult]]) -> list[SearchResult]:
    """The result of each of ``searches``, from those of all owners."""
    if len(parts) == 1:
        return parts[0]
    found: list[SearchResult] = []
    for search, results in zip(searches, zip(*parts, strict=True), strict=True):
        groups = [
            sorted(chain.from_iterable(group), key=attrgetter("score"), reverse=True)[: search.limit]
            for group in zip(*(result.groups for result in results), strict=True)
        ]
        is_lexical = any(result.mode is RecallMode.LEXICAL for result in results)
        problem = next((result.reason for result in results if result.reason), None)
        left_out = [left for result in results for left in result.left_out]
        mode = RecallMode.LEXICAL if is_lexical else results[0].mode
        found.append(SearchResult(groups, mode, problem, left_out, results[0].necessity))
    return found


# From ranked rows to the result: not rejected, without duplicates, diverse, within the budget.

_CHOICE: Final = 3
"""Diversity chooses among this many times as many rows as are wanted."""


class Selection:
    """Takes the rows of one group, the best first, until none are ``missing``.

    ``alike`` returns how close the vectors at places are to each other (places, places), NaN without one; None without
    a model.
    """

    def __init__(self, search: Search, alike: Callable[[Sequence[Place]], Floats] | None = None) -> None:
        self._search = search
        self._alike = alike
        if search.diversity:
            self._wanted = search.limit * _CHOICE
        else:  # at least WINDOW rows, so that a small limit gives the first rows of a large one
            self._wanted = max(search.limit, WINDOW) if search.prefers_newer else search.limit
        self._found: list[FoundRow] = []
        self._said: dict[tuple[str, ...], FoundRow] = {}
        self.left_out: list[LeftOutRow] = []

    @property
    def missing(self) -> int:
        """How many more rows it takes."""
        return self._wanted - len(self._found)

    def offer(self, hit: FoundRow) -> None:
        """Takes ``hit``, or notes why it is left out; does nothing if it is full."""
        if self.missing <= 0:
            return
        reason = self._search.reject(hit.row) if self._search.reject else None
        if reason is None and self._search.deduplicate and (meant := traits_of(hit.row).gist):
            first = self._said.setdefault(meant, hit)
            reason = None if first is hit else f"duplicate of {first.row.key}"
        if reason is None:
            self._found.append(hit)
        else:
            self.left_out.append(LeftOutRow(hit, reason))

    def keys(self) -> set[Key]:
        """The keys of the rows that it took or left out."""
        offered = [*self._found, *(row.found for row in self.left_out)]
        return {(hit.row.namespace, hit.row.key) for hit in offered}

    def rows(self) -> list[FoundRow]:
        """The rows of the result, the best first; adds to ``left_out`` what repeats others or exceeds the budget."""
        search, chosen = self._search, self._found
        if search.diversity:
            texts, scores = [traits_of(found.row).content for found in chosen], [found.score for found in chosen]
            picked = diversified(scores, texts, search.limit, search.diversity)
            repeating = sorted({*range(len(chosen))}.difference(picked))
            self.left_out += [LeftOutRow(chosen[at], "repeats others") for at in repeating]
            chosen = [chosen[at] for at in picked]
        elif search.prefers_newer:
            chosen = [*self._newer_first(chosen[:WINDOW]), *chosen[WINDOW:]][: search.limit]
        if search.max_characters is None:
            return chosen
        kept: list[FoundRow] = []
        left = search.max_characters
        for hit in chosen:
            size = len(traits_of(hit.row).content)
            if size <= left:
                kept.append(hit)
                left -= size
            else:
                self.left_out.append(LeftOutRow(hit, "budget"))
        return kept

    def _newer_first(self, best: list[FoundRow]) -> list[FoundRow]:
        """``best`` with newer rows before older ones on the same subject; each takes the score of its new place.

        Turns of sessions are compared by the words of the question, other memories by their vectors. Both change places
        only among themselves.
        """
        question, order = self._search.text, list(range(len(best)))
        others = {
            at: found.place
            for at, found in enumerate(best)
            if self._alike is not None and found.place is not None and not traits_of(found.row).is_turn
        }
        turns = [at for at in order[:WINDOW_OF_TURNS] if at not in others]
        if turns and asks_for_present(question):
            said = [traits_of(best[at].row) for at in turns]
            texts, moments = [one.content for one in said], [one.moment for one in said]
            for place, at in zip(turns, newest_first(question, texts, moments), strict=True):
                order[place] = turns[at]
        if self._alike is not None and len(others) > 1 and not asks_for_past(question):
            said = [traits_of(best[at].row) for at in others]
            texts, alike = [one.content for one in said], self._alike([*others.values()])
            replaced = outdated(question, texts, lambda at: said[at].moment, alike)
            best, places = [*best], [*others]
            for at in map(places.__getitem__, replaced):
                best[at] = replace(best[at], outdated=True)
            left = {at: best[at].score - best[at].outdated for at in others}
            for place, at in zip(others, sorted(others, key=lambda at: -left[at]), strict=True):
                order[place] = at
        placed: list[FoundRow] = []
        for at, place in zip(order, best, strict=True):
            hit, score = best[at], place.score
            if hit.score != score:
                shares = {**hit.shares, "newer": score - hit.score} if hit.shares else hit.shares
                hit = replace(hit, score=score, shares=shares)
            placed.append(hit)
        return placed


# Re-rankers that users bring: a cross-encoder, an LLM, or any LangChain document compressor.

_POSITION: Final = "position"


@runtime_checkable
class Reranker(Protocol):
    """Judges how well texts answer a query."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """A score for each text, higher is better."""
        ...


class CompressorReranker:
    """A LangChain ``BaseDocumentCompressor`` as a Reranker: its order counts, and what it drops comes last."""

    def __init__(self, compressor: BaseDocumentCompressor) -> None:
        self._compressor = compressor

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Scores from the order in which the compressor gives the texts; 0 for those that it drops."""
        from langchain_core.documents import Document  # noqa: PLC0415 - whoever has a compressor has loaded it

        documents = [Document(text, metadata={_POSITION: at}) for at, text in enumerate(texts)]
        kept = self._compressor.compress_documents(documents, query)
        scores = [0.0] * len(texts)
        for place, document in enumerate(kept):
            scores[document.metadata[_POSITION]] = float(len(kept) - place)
        return scores


def as_reranker(given: Reranker | BaseDocumentCompressor) -> Reranker:
    """``given`` as a Reranker."""
    from langchain_core.documents import BaseDocumentCompressor  # noqa: PLC0415 - it loads LangSmith, which takes long

    return CompressorReranker(given) if isinstance(given, BaseDocumentCompressor) else given


def reordered(reranker: Reranker, query: str, texts: Sequence[str]) -> list[int]:
    """Positions of ``texts``, the best first; ties keep their order. Raises what the re-ranker raises, ValueError."""
    scores = list(reranker.rerank(query, texts))
    if len(scores) != len(texts):
        raise ValueError(f"The re-ranker gave {len(scores)} scores for {len(texts)} texts")
    return sorted(range(len(texts)), key=lambda at: -scores[at])
