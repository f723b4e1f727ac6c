"""What a model is told in a turn: the user's profile, which stays the same, and what was recalled for this turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Final

from inference_core.context.engineer import ContextEngineer
from inference_core.context.items import ContextItem
from inference_core.context.profile import (
    DEFAULT_PROFILE_CHANGE,
    DEFAULT_PROFILE_TOKENS,
    STANDING,
    News,
    Profile,
    render_turn,
    renewed,
    stands,
)
from inference_core.drivers import Plan
from inference_core.memory.fields import moment_field
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import text_tokens
from inference_core.memory.types import MemoryCategory, validate_memory_category, validate_memory_type
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.context import RecalledContext, recall_context
from inference_core.services.operations.scope import MemoryScope, UserId, record_of
from inference_core.stores.backend import Row

SOURCE: Final = "memories"
_OF_EACH_KIND: Final = 32
_PINNED_AMONG: Final = 32
_MOST_OF_ALL: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a turn is to be told: of which ``types`` and ``categories`` (None: all), how much, and in what form.

    ``has_profile``: with a profile of at most ``profile_tokens``, written anew when more than the share
    ``profile_change`` of its lines have changed. ``engineer`` chooses among what was recalled, None: all is told.
    ``explains``: scores come with their shares. ``patience`` is that of a `Search`, in seconds.
    """

    types: Sequence[str] | None = None
    categories: Sequence[str | MemoryCategory] | None = None
    per_category: int = 5
    patience: float = 2.0
    has_profile: bool = True
    profile_tokens: int = DEFAULT_PROFILE_TOKENS
    profile_change: float = DEFAULT_PROFILE_CHANGE
    engineer: ContextEngineer | None = None
    explains: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """A memory that was found and not told, why, and the id of the one that stands for it, if there is one."""

    record: MemoryRecord
    reason: str
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """``block`` changes with each turn, ``profile`` does not; ``items`` are the memories that the block tells.

    ``is_chosen``: an engineer made the block.
    """

    recalled: RecalledContext
    profile: Profile
    news: Sequence[News]
    items: Sequence[ContextItem]
    block: str
    zone: tzinfo
    dropped: Sequence[Dropping] = ()
    is_chosen: bool = False
    standing: Mapping[str, MemoryRecord] = field(default_factory=dict[str, MemoryRecord])

    def records(self) -> list[MemoryRecord]:
        """All memories that are told, each once."""
        named = [*self.profile.lines, *(one.line for one in self.news)]
        stood = {line.id: self.standing[line.id] for line in named}
        return list((stood | {item.id: item.record for item in self.items if item.record}).values())


def tell(scope: MemoryScope, user_id: UserId, query: str | None, wanted: Wanted, frozen: Profile | None) -> Plan[Told]:
    """What a turn about ``query`` is told; ``frozen`` is the profile of the turn before, in this thread.

    What the profile says is not told twice. Raises InvalidInput, StoreUnavailable.
    """
    recalled = yield from recall_context(
        scope,
        user_id,
        query,
        types=wanted.types,
        categories=wanted.categories,
        per_category=wanted.per_category,
        patience=wanted.patience,
        explains=wanted.explains or wanted.engineer is not None,
    )
    standing: dict[str, MemoryRecord] = {}
    profile, news = Profile(), ()
    if wanted.has_profile:
        standing = yield from _standing(scope, user_id, wanted, {line.id for line in frozen.lines} if frozen else ())
        profile, news = renewed(
            frozen, list(standing.values()), scope.zone, wanted.profile_tokens, wanted.profile_change
        )
    known = {line.id for line in profile.lines} | {one.line.id for one in news}
    told = _chosen(scope.zone, query, wanted, _without(recalled, known))
    if wanted.has_profile and (told.block or known):
        told = replace(told, block=render_turn(told.block, news, recalled.now, scope.zone))
    return replace(told, recalled=recalled, profile=profile, news=news, standing=standing)


def _chosen(zone: tzinfo, query: str | None, wanted: Wanted, recalled: RecalledContext) -> Told:
    items = recalled.items(SOURCE)
    dropped = [Dropping(record=record, reason=reason) for record, reason in recalled.left_out]
    block = recalled.render(zone, preamble=not wanted.has_profile)
    if wanted.engineer is not None:
        context = wanted.engineer.assemble(items, query=query, now=recalled.now, zone=zone)
        block = context.text
        items = [*(item for section in context.sections.values() for item in section), *context.untrusted]
        items += [item for group in context.conflicts for item in group]
        dropped += [
            Dropping(record=one.item.record, reason=one.reason.value, by=one.by)
            for one in context.dropped
            if one.item.record
        ]
    return Told(
        recalled=recalled,
        profile=Profile(),
        news=(),
        items=items,
        block=block,
        zone=zone,
        dropped=dropped,
        is_chosen=wanted.engineer is not None,
    )


def _without(recalled: RecalledContext, known: set[str]) -> RecalledContext:
    memories = {
        category: rest
        for category, records in recalled.memories.items()
        if (rest := [record for record in records if record.id not in known])
    }
    return replace(recalled, memories=memories)


def _standing(
    scope: MemoryScope, user_id: UserId, wanted: Wanted, told: Collection[str]
) -> Plan[dict[str, MemoryRecord]]:
    """Plan: the memories that may stand in a profile and hold now: the newest of each kind, and of the pinned ones.

    Of those that were not ``told`` before, only the first that fill a profile.
    """
    rows = yield from _rows(scope, user_id, wanted, told)
    now = scope.clock.now()
    found = {row.key: row for row in rows if _may_stand(row) and why_invalid(row.value, now) is None}
    standing: dict[str, MemoryRecord] = {}
    used = 0
    for row in sorted(found.values(), key=_place):
        if used <= wanted.profile_tokens or row.key in told:
            record = standing[row.key] = record_of(row)
            used += text_tokens(record.content) if stands(record) else 0
    return standing


def _rows(scope: MemoryScope, user_id: UserId, wanted: Wanted, told: Collection[str]) -> Plan[list[Row]]:
    """Plan: the rows among which those are that stand in a profile."""
    kinds = None if wanted.types is None else frozenset(validate_memory_type(kind) for kind in wanted.types)
    names = [validate_memory_category(category) for category in wanted.categories or MemoryCategory]
    scopes = [one for name in names for one in scope.namespaces.read_scopes(user_id, name)]
    if not scope.engine.backend.capabilities.change_feed:  # each read of a foreign store reads all
        return (yield from scope.engine.page(scopes, kinds=kinds, limit=_MOST_OF_ALL))
    lasting = [kind.value for kind in STANDING if kinds is None or kind.value in kinds]
    rows = yield from scope.engine.newest_of_each(scopes, kinds=lasting, limit=_OF_EACH_KIND)
    rows += yield from scope.engine.page(scopes, kinds=kinds, limit=_PINNED_AMONG)
    known = {row.key for row in rows}
    older = [(place, key) for key in told if key not in known for place in scopes]
    return [*rows, *filter(None, (yield from scope.engine.get(older)) if older else ())]


def _may_stand(row: Row) -> bool:
    return row.value.get("memory_type") in STANDING or row.value.get("pinned") is True


def _place(row: Row) -> tuple[int, float, str]:
    """The order of `profile_of`."""
    rank = -1 if row.value.get("pinned") is True else STANDING.index(row.value["memory_type"])
    created = moment_field(row.value, "created_at") or row.created_at
    return rank, -created.timestamp(), row.key
