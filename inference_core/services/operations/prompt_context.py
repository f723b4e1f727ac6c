"""What a model is given in a turn: gathered from one snapshot, selected by an engineer, rendered within one budget.

The user's profile stays the same from turn to turn; the block changes with each. Both together stay within the budget,
``max_tokens`` of the settings, and show no more of each category than its limit. The middleware calls this;
`context/engineer.py` selects. Applications that build prompts themselves, from memory and other sources, use
`services/context_builder` instead, which does not come through here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from functools import partial
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from inference_core.clock import in_zone
from inference_core.context.comparing import doubted
from inference_core.context.engineer import DEFAULT_MAX_TOKENS, EVERYTHING, ContextEngineer
from inference_core.context.items import STANDING, AssembledContext, ContextItem
from inference_core.context.render import (
    DEFAULT_PROFILE_CHANGE,
    DEFAULT_PROFILE_TOKENS,
    XML,
    Profile,
    ProfileMark,
    beside_profile,
    delimited,
    delimited_profile,
    profile_again,
    profile_of,
    renewed,
    standing_first,
)
from inference_core.memory.namespaces import Space, space_in
from inference_core.memory.receipt import ReceiptDrop
from inference_core.memory.record import MemoryRecord, is_of_known_schema
from inference_core.memory.spaces import SpaceRole
from inference_core.memory.types import MemoryCategory, validate_memory_category, validate_memory_type
from inference_core.services.operations.operation import operation
from inference_core.services.operations.recall import asks, at_least, checked_limit
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_at, record_of
from inference_core.services.operations.spaces import roles_of
from inference_core.stores.backend import Row
from inference_core.stores.indexing.search import (
    LAST,
    SHOWN,
    LeftOutRow,
    RecallMode,
    RowFilter,
    Search,
    SearchResult,
    traits_of,
)
from inference_core.stores.rules.versions import states_in, versions_key

if TYPE_CHECKING:  # numpy, which it needs, is slow to import
    from inference_core.stores.indexing.indexes import Snapshot

DEFAULT_MAX_MEMORIES: Final = 30
SOURCE: Final = "memories"
_RECOUNTS: Final = 3
PLACES: Final = 5
"""The memories of each category where nothing tells which fit the question, if the options set no limit."""
_MOST_PLACES: Final = 2 * PLACES
"""The most memories of a category, if the options set no limit."""
_TOGETHER: Final = 14
"""The most memories of all categories, with those of the profile, if the options set no limit."""
_BEHIND: Final = 3.0
"""Of more than `PLACES` memories of several categories, none whose score is further behind the best one's is shown, if
the options set no limit, except the first `_ANYWAY`. Not so in one category: chats would lose evidence."""
_ANYWAY: Final = 3
_SPARE: Final = 3
"""Spare results of each category, which may replace results that look outdated."""
_MOST_ASKED: Final = 8_000
"""A longer query is cut to this many characters, half from its start and half from its end: ranking takes longer for
longer queries, and the profile waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """What a turn may show: memories of which ``types`` and ``categories`` (None: all), how many, and in what form.

    ``per_category`` bounds the memories of each category in profile and block together. None: the best of all
    categories, `_TOGETHER` at most, and `_MOST_PLACES` of each. ``max_memories`` (None: unbounded) bounds all memories,
    ``max_tokens`` both texts with the elements around them, by the engineer's counter.

    ``has_profile``: memories that hold in every turn are in a profile of at most ``profile_tokens`` tokens, which is
    rewritten when more than the share ``profile_change`` of its lines have changed; otherwise, they are in the block.
    ``engineer`` None: the block shows all memories that were found, and then the newest. Both texts are in ``form``,
    unless the engineer has its own form. ``explains``: also return the shares of scores. ``wait_seconds`` and
    ``cold_seconds`` are those of a `Search`.
    """

    types: Sequence[str] | None = None
    categories: Sequence[str | MemoryCategory] | None = None
    per_category: int | None = None
    max_memories: int | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    has_profile: bool = True
    profile_tokens: int = DEFAULT_PROFILE_TOKENS
    profile_change: float = DEFAULT_PROFILE_CHANGE
    engineer: ContextEngineer | None = field(default_factory=ContextEngineer)
    form: str = XML
    explains: bool = False
    wait_seconds: float = 2.0
    cold_seconds: float = 0.0

    @property
    def places(self) -> int:
        """How many memories of a category are shown, if there are that many."""
        return PLACES if self.per_category is None else self.per_category

    @property
    def max_places(self) -> int:
        """How many memories of a category may be shown at most."""
        return _MOST_PLACES if self.per_category is None else self.per_category

    @property
    def max_standing(self) -> int:
        """How many memories of a category the profile may hold: not all, so that there is room for relevant ones."""
        return self.places - max(1, 2 * self.places // 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """``profile`` stays the same from turn to turn, ``block`` does not; ``context`` is what the block shows.

    Items of the source `PROFILE` in it are newer than the profile. ``records`` are all memories of both, each once.
    ``mode`` and ``reason`` say by which evidence they were found, ``form`` how the block was rendered.
    """

    profile: Profile
    block: str
    context: AssembledContext
    records: Sequence[MemoryRecord]
    dropped: Sequence[ReceiptDrop]
    mode: RecallMode
    reason: str | None
    now: datetime
    zone: tzinfo
    form: str


@operation("search_memory")
async def build_turn_context(
    scope: MemoryScope,
    user_id: UserId,
    query: str | None,
    options: TurnOptions,
    frozen: Sequence[ProfileMark] | None = None,
) -> TurnContext:
    """What a turn about ``query`` shows; ``frozen`` are the marks of the previous turn's profile in this thread.

    Everything is decided on one snapshot of the memories. Raises InvalidInput, StoreUnavailable.
    """
    turn = _Turn(scope, user_id, query, options, await roles_of(scope, user_id))
    context = await scope.engine.read(
        list(dict.fromkeys(turn.scopes)),
        partial(turn.build, frozen),
        text=turn.query,
        wait_seconds=options.wait_seconds,
        cold_seconds=options.cold_seconds,
    )
    scope.note_recalled(context.records, turn.now)
    return context


@operation("search_memory", needs=SpaceRole.READ)
async def format_context(
    scope: MemoryScope,
    user_id: UserId,
    query: str | None = None,
    include_types: Sequence[str] | None = None,
    max_memories: int = DEFAULT_MAX_MEMORIES,
    include_categories: Sequence[str | MemoryCategory] | None = None,
    *,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> str:
    """A prompt block with memories relevant to ``query``, rules and preferences; "" if there are none.

    Without a query, it shows the newest memories. ``include_types`` and ``include_categories`` filter them.
    ``max_memories`` is divided evenly between the categories; the block has at most ``max_tokens``. Raises
    InvalidInput, StoreUnavailable.
    """
    limit = checked_limit(max_memories)
    count = len(include_categories) if include_categories else len(MemoryCategory)
    options = TurnOptions(
        types=include_types,
        categories=include_categories,
        per_category=-(-limit // count),
        max_memories=limit,
        max_tokens=max_tokens,
        has_profile=False,
        cold_seconds=scope.cold_seconds,
    )
    return (await build_turn_context(scope, user_id, query, options)).block


class _Standing(NamedTuple):
    """What stands in profiles of the form ``asked``, from ``since`` until before ``until``, if nothing is written.

    ``keys`` are those of ``rows`` and of rows that do not hold.
    """

    asked: tuple[object, ...]
    since: datetime
    until: datetime
    keys: frozenset[str]
    rows: Sequence[Row]
    records: Mapping[str, MemoryRecord]
    profile: Profile


class _Turn:
    """One turn's question and limits; its methods are pure, apart from what they read from the snapshot."""

    def __init__(
        self, scope: MemoryScope, user_id: UserId, query: str | None, options: TurnOptions, spaces: Iterable[str]
    ) -> None:
        names = [MemoryCategory(validate_memory_category(name)) for name in options.categories or MemoryCategory]
        types = options.types
        self.kinds = None if types is None else frozenset(validate_memory_type(kind) for kind in types)
        owners: list[UserId] = [user_id, *map(Space, sorted(spaces))]
        read_scopes = scope.namespaces.read_scopes
        self.groups = {
            name: [namespace for owner in owners for namespace in read_scopes(owner, name)] for name in names
        }
        self.scopes = list(chain.from_iterable(self.groups.values()))
        self.query = query if query is not None and asks(query) else ""
        if len(self.query) > _MOST_ASKED:  # what is asked about a long text stands before or after it
            self.query = f"{self.query[: _MOST_ASKED // 2]}\n{self.query[-_MOST_ASKED // 2 :]}"
        self.min_relevance = scope.min_relevance if self.query else 0.0
        self.options = options
        self.engineer = options.engineer or EVERYTHING
        self.count = self.engineer.counter
        self.form = self.engineer.form or options.form
        self.now = scope.clock.now()
        self.filter = RowFilter(now=self.now, kinds=self.kinds)
        self.zone = scope.zone
        self.profile_tokens = options.max_tokens
        if options.has_profile:  # half of the budget at most: the other half is for what answers
            self.profile_tokens = min(options.profile_tokens, options.max_tokens // 2)

    def build(self, frozen: Sequence[ProfileMark] | None, snapshot: Snapshot) -> TurnContext:
        """Decides on the profile, then gathers, selects and renders what stands beside it."""
        standing, current = self.standing(snapshot, frozen)
        if not self.options.has_profile:
            lines = {line.id for line in current.lines}
            items = [ContextItem.of(record, source=SOURCE) for record in standing.values() if record.id in lines]
            return self.context(snapshot, Profile(), items, standing)
        kept = None
        if frozen is not None and frozen != current.marks:
            kept = self.kept(snapshot, frozen, standing)
        profile, newer = renewed(kept, current, standing, self.zone, self.options.profile_change)
        if self.is_too_much(profile, newer):
            profile, newer = current, []
        context = self.context(snapshot, profile, newer, standing)
        if {item.id for item in newer} <= {item.id for item in context.context.items}:
            return context
        return self.context(snapshot, current, [], standing)  # what is newer did not fit beside what it corrects

    def kept(
        self, snapshot: Snapshot, frozen: Sequence[ProfileMark], standing: Mapping[str, MemoryRecord]
    ) -> Profile | None:
        """The profile of the previous turn; None if one of its memories is gone, or an earlier text is not kept."""
        records = {(record.id, record.version): record for record in standing.values()}
        changed = [standing[mark.id] for mark in frozen if mark.id in standing and mark[:2] not in records]
        if changed:  # only then is anything else read
            rows = snapshot.beside([versions_key((record.namespace, record.id)) for record in changed])
            for record, row in zip(changed, rows, strict=True):
                states = [
                    state for state in states_in(row, self.now) if not state.place and is_of_known_schema(state.value)
                ]
                records |= {
                    (record.id, state.version): record_at(state, record.namespace, record.id) for state in states
                }
        return profile_again(frozen, records, self.zone, self.form)

    def standing(
        self, snapshot: Snapshot, frozen: Sequence[ProfileMark] | None
    ) -> tuple[Mapping[str, MemoryRecord], Profile]:
        """By id, the memories that may stand in a profile and hold now, and their profile.

        These are pinned ones, the newest rules and preferences, and those of the frozen profile, however old, since it
        stays only as long as all of them hold. The others are the same until a write, or until one of them ends.
        """
        asked = (self.kinds, self.options.per_category, self.profile_tokens, self.form, self.zone, self.count)
        made = snapshot.made()
        known: _Standing | None = made.get(_Standing)
        if known is None or known.asked != asked or not known.since <= self.now < known.until:
            pinned, newest = snapshot.pinned(self.scopes), list[Row]()
            for kind in STANDING:
                if self.kinds is None or kind.value in self.kinds:
                    limit = 2 * self.options.places  # some of them may say the same
                    of_kind = frozenset([kind.value])
                    newest += snapshot.newest(self.scopes, kinds=of_kind, limit=limit, reject=self.filter)
            rows = [*(row for row in pinned if self.filter(row) is None), *newest]
            keys = frozenset(row.key for row in (*pinned, *newest))
            ends = [traits_of(row).end for row in rows]
            # A row that expires by itself may be extended without a write, and some stores number no writes.
            is_lasting = all(row.seq and row.expiry is None for row in rows)
            until = min(ends, default=LAST) if is_lasting else self.now
            known = made[_Standing] = _Standing(asked, self.now, until, keys, rows, *self.profile_among(rows))
        older = {mark.id for mark in frozen or ()} - known.keys
        found = snapshot.get([(namespace, key) for key in older for namespace in self.scopes])
        kept = [row for row in found if row is not None and self.filter(row) is None]
        return self.profile_among([*known.rows, *kept]) if kept else (known.records, known.profile)

    def profile_among(self, rows: Sequence[Row]) -> tuple[Mapping[str, MemoryRecord], Profile]:
        """By id, the memories of ``rows`` that may stand in a profile, and their profile."""
        own = [row for row in rows if space_in(row.namespace) is None]
        there: dict[str, Row] = {}
        for row in (*own, *rows):  # the user's own before a space's
            there.setdefault(row.key, row)
        records = standing_first(map(record_of, there.values()))
        room = self.profile_tokens - self.count(delimited_profile(""))
        per_category = self.options.max_standing
        profile = profile_of(records, self.zone, room, per_category=per_category, counter=self.count, form=self.form)
        return {record.id: record for record in records}, profile

    def is_too_much(self, profile: Profile, newer: Sequence[ContextItem]) -> bool:
        """Whether a profile that was kept, with what is newer, exceeds the limits by now."""
        counts = Counter([line.section for line in profile.lines] + [item.section for item in newer])
        most = max(counts.values(), default=0)
        limit = self.profile_tokens if profile.lines else self.options.max_tokens
        return most >= max(self.options.places, 1) or self.count(delimited_profile(profile.text)) > limit

    def context(
        self,
        snapshot: Snapshot,
        profile: Profile,
        newer: Sequence[ContextItem],
        standing: Mapping[str, MemoryRecord],
    ) -> TurnContext:
        """``profile``, and beside it ``newer`` items and what answers the question."""
        given = [*(standing[line.id] for line in profile.lines), *(item.record for item in newer if item.record)]
        items, result = self.gathered(snapshot, given, len(newer))
        context, block = self.rendered(profile, [*newer, *items], result.necessity)
        if not block:
            profile = Profile()
        shown = [
            *(standing[line.id] for line in profile.lines),
            *(item.record for item in context.items if item.record),
        ]
        records = {(record.namespace, record.id): record for record in shown}
        over = [(record_of(row.found.row), row.reason, None) for row in result.left_out if is_known(row.found.row)]
        over += [
            (dropped.item.record, dropped.reason.value, dropped.by)
            for dropped in context.dropped
            if dropped.item.record
        ]
        dropped = [
            ReceiptDrop(id=record.id, version=record.version, reason=reason, by=by)
            for record, reason, by in over
            if reason != SHOWN
        ]
        return TurnContext(
            profile=profile,
            block=block,
            context=context,
            records=list(records.values()),
            dropped=dropped,
            mode=result.mode,
            reason=result.reason,
            now=self.now,
            zone=self.zone,
            form=self.form,
        )

    def gathered(
        self, snapshot: Snapshot, given: Sequence[MemoryRecord], newer: int
    ) -> tuple[list[ContextItem], SearchResult]:
        """What answers the question, by category, in the room that is left beside ``given``, filled with the newest."""
        counts = Counter(record.category for record in given)
        room = {name: max(self.options.places - counts[name], 0) for name in self.groups}
        most = {name: max(self.options.max_places - counts[name], 0) for name in self.groups}
        spare = _SPARE if self.query and self.options.engineer else 0
        search = Search(
            groups=list(self.groups.values()),
            text=self.query,
            limit=max(most.values(), default=0) + spare,
            backfill=True,
            kinds=self.kinds,
            # Rejected before the cut, so that what the profile shows takes no place from what answers.
            reject=replace(
                self.filter,
                shown={(record.namespace, record.id) for record in given},
                contents={record.content for record in given},
            ),
            deduplicate=True,
            prefers_newer=bool(spare),
            links=None,
            wait_seconds=self.options.wait_seconds,
            explains=self.options.explains,
            now=in_zone(self.now, self.zone),
        )
        result = at_least(self.min_relevance, snapshot.search(search))
        items = [
            ContextItem.of(
                record_of(hit.row), source=SOURCE, relevance=hit.relevance, score=hit.score, signals=hit.shares
            )
            for group in result.groups
            for hit in group
        ]
        if spare:
            items = doubted(items, self.query, [hit.outdated for group in result.groups for hit in group])
        rest = iter(items)
        ranked: dict[MemoryCategory, list[tuple[float, int, ContextItem]]] = {}
        for name, group in zip(self.groups, result.groups, strict=True):
            own = list(islice(rest, len(group)))
            # They keep their order, whatever decided it, except that doubts move an item back by what they cost.
            scores = accumulate((item.score for item in own), min)
            left = [(score - item.doubt, at, item) for at, (item, score) in enumerate(zip(own, scores, strict=True))]
            ranked[name] = sorted(left, key=itemgetter(0), reverse=True)
        if self.options.per_category is None:
            fitting = [
                (score, name, item.score)
                for name, own in ranked.items()
                for score, _, item in own[: most[name]]
                if item.score  # what only fills up has none
            ]
            fitting = sorted(fitting, key=itemgetter(0), reverse=True)[: max(_TOGETHER - len(given), PLACES)]
            are_mixed = sum(map(bool, ranked.values())) > 1 and len(items) > PLACES
            is_sure = are_mixed and result.mode is RecallMode.HYBRID
            least = max(item.score for item in items) - _BEHIND if is_sure else -math.inf
            chosen = Counter(name for at, (_, name, score) in enumerate(fitting) if at < _ANYWAY or score >= least)
            for name, own in ranked.items():
                fits = sum(bool(item.score) for *_, item in own)
                room[name] = chosen[name] if chosen[name] < fits else max(chosen[name], room[name])
        found: dict[MemoryCategory, list[ContextItem]] = {}
        for (name, own), group in zip(ranked.items(), result.groups, strict=True):
            found[name] = [item for _, _, item in own[: room[name]]]
            result.left_out.extend(
                LeftOutRow(group[at], ", ".join(sorted(item.doubts)))
                for _, at, item in own[room[name] :]
                if at < room[name] and item.doubts
            )
        limit = self.options.max_memories
        while limit is not None and newer + sum(map(len, found.values())) > limit:
            max(reversed(found.values()), key=len).pop()
        return list(chain.from_iterable(found.values())), result

    def rendered(
        self, profile: Profile, items: Sequence[ContextItem], necessity: float | None
    ) -> tuple[AssembledContext, str]:
        """What the engineer makes of ``items`` beside ``profile``, and the block; "" without any, or without room."""
        has_profile, budget = self.options.has_profile, self.options.max_tokens
        used = self.count(delimited_profile(profile.text)) if has_profile else 0

        frame = beside_profile("", self.now, self.zone, self.form) if has_profile else ""
        room = budget - used - self.count(delimited(frame))
        for _ in range(_RECOUNTS):
            context = self.engineer.assemble(
                items,
                query=self.query or None,
                now=self.now,
                zone=self.zone,
                max_tokens=max(room, 0),
                preamble=False if has_profile else None,
                necessity=necessity,
                form=self.form,
            )
            block = context.text
            if has_profile and (context.text or profile.lines or items):
                block = beside_profile(context.text, self.now, self.zone, self.form)
            over = used + self.count(delimited(block)) - budget if block else 0
            if over <= 0:
                return context, block
            room -= over  # a counter may count a whole as more than its parts
        return AssembledContext(sections={}), ""
