"""The one way in: whether what somebody adds is there already, is stored at once, waits for the user, or is refused.

All code that adds or changes memories takes these steps: it removes secrets (`Guard`), looks for memories of the same
words (`place_on`), and checks trust (`has_to_wait`, `changed`). Then the memory gets a free id, becomes a proposal
(`proposed_on`), or is merged. Nothing else asks `decide`.

Memories of the same words have few possible ids, so one read finds them without an index, on every database. A saved
memory has an id derived from its words under a key of the store, a memory from a conversation a hash of its words, and
an approved memory the id of its proposal. Each of these ids starts a chain: the next id is used once a memory has ended
or was changed. A memory that comes with an id of its own, as from an import, is not compared.

If `plain_words` changes, these ids change: `_ids_of` then has to give the earlier ids too, as it does for those of
earlier versions.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final

from inference_core.errors import ConfirmationNeeded, UntrustedWrite
from inference_core.memory.namespaces import (
    PENDING,
    Namespace,
    encode_label,
    holds_pending,
    owner_in,
    sidecar_namespace,
    space_in,
)
from inference_core.memory.record import MemoryRecord, holds_at, why_invalid
from inference_core.memory.text import digest_of, encode_json, mapping_field, moment_field, plain_words, same_text
from inference_core.memory.trust import (
    Decision,
    MemorySource,
    Origin,
    Trust,
    check_write,
    decide,
    guides,
    why_it_waits,
)
from inference_core.memory.types import MEMORY_TYPES, MemoryCategory
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, put_of, records_of, retried
from inference_core.stores.backend import Backend, Expiry, Put, Row, Write, WriteRule
from inference_core.stores.rules.write_rules import UnchangedRule, UnusedRule

NOTE: Final = "_pending"
ENDS: Final = "ends"
PENDING_DAYS: Final = 30
MOST_PENDING: Final = 200
"""How many memories may wait beside one namespace, a user's category or an agent's part of it; more are refused."""
_NAMES: Final = 4
"""How many names a proposal can get: the next one each time that a memory of it was approved and has ended since."""
_AT_ONCE: Final = 2
"""How many ids of each chain are read at first. A row that ended may be removed before the one that took its place."""


# The same words ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a memory can be stored: under ``memory_id``, which is free.

    ``same`` are the memories that have the same words and type, whether they still hold or not. ``rule`` makes a write
    fail if another memory of these words was written or changed since.
    """

    memory_id: str
    same: Sequence[MemoryRecord]
    rule: WriteRule


def place_of(record: MemoryRecord, key: bytes, others: Sequence[Namespace], *, leaves_traces: bool) -> Place:
    """The place of ``record``, which somebody saves, if its words are new. Reads nothing: the write fails if not.

    ``key`` is the store's content key. The id also has to be free in the namespaces ``others``. ``leaves_traces``: the
    database still knows of rows that were removed, so an id that it does not know has no successor in its chain.
    """
    chains = _ids_of(record, key, 1 if leaves_traces else _AT_ONCE, is_saved=True)
    memory_id = chains[0][0]
    keys = [(record.namespace, one) for one in chain.from_iterable(chains)]
    return Place(memory_id, (), UnusedRule([*keys, *((home, memory_id) for home in others)]))


def place_on(
    record: MemoryRecord, key: bytes, others: Sequence[Namespace], backend: Backend, *, is_saved: bool = False
) -> Place:
    """The place of ``record``, by what is there. Raises StoreError.

    ``key`` is the store's content key. ``is_saved``: somebody saves the memory, so its moments distinguish it from
    other memories of its words. In a conversation they do not, as it dates everything that is said in it. The id is
    also free in the namespaces ``others``.
    """
    count = _AT_ONCE
    while True:
        chains = _ids_of(record, key, count, is_saved=is_saved)
        keys = [(home, one) for home in others for one in chains[0]]
        keys += [(record.namespace, one) for one in chain.from_iterable(chains)]
        rows = {(row.namespace, row.key): row for row in backend.get(list(dict.fromkeys(keys))) if row}
        taken = {one for _, one in rows}
        if not any(taken.issuperset(ids) for ids in chains):  # else there may be more behind its end
            break
        count *= 2
    memory_id = next(one for one in chains[0] if one not in taken)
    there = [one for one in records_of(rows.values()) if one.namespace == record.namespace]
    same = [one for one in there if one.memory_type is record.memory_type and same_text(one.content, record.content)]
    return Place(memory_id, same, UnchangedRule({place: rows[place].version if place in rows else 0 for place in keys}))


def _ids_of(record: MemoryRecord, key: bytes, count: int, *, is_saved: bool) -> list[list[str]]:
    """The first ``count`` ids of each chain of ids for the record's words; the chain for this record comes first."""
    words, category = plain_words(record.content), record.category
    session = record.session_id if category is MemoryCategory.EPISODIC else None  # else the same fact
    moments = [moment and moment.isoformat() for moment in (record.valid_from, record.expires_at)]
    told = [session, moments if is_saved else [None, None]]
    place = [record.namespace, record.memory_type.value]
    saved = _keyed(key, [*place, words, *told], count)
    heard = _hashed(digest_of([*record.namespace, record.memory_type.value, words]), count)
    approved = _keyed(key, [PENDING, record.namespace[0], words], count)  # see `names_of`
    # The ids of memories that earlier versions saved distinguish upper and lower case; blocks named theirs otherwise.
    literal = " ".join(record.content.split())
    before = [] if literal == words else [_keyed(key, [*place, literal, *told], count)]
    before += [_hashed(record.id, count)] if record.id else []
    return [saved, heard, approved, *before] if is_saved else [heard, saved, approved, *before]


def names_of(key: bytes, user_id: UserId, content: str, count: int = _NAMES) -> list[str]:
    """The first ids that a proposal of this text can get, whatever its type. Without the key they reveal nothing."""
    return _keyed(key, [PENDING, encode_label(user_id), plain_words(content)], count)


def _hashed(first: str, count: int) -> list[str]:
    ids = [first]
    while len(ids) < count:
        ids.append(digest_of([ids[-1]]))
    return ids


def _keyed(key: bytes, told: Sequence[Any], count: int) -> list[str]:
    """Ids derived from ``told`` and the number of an attempt. Without the ``key``, they reveal neither."""
    common = encode_json(told, what="memory").encode()[:-1]  # of "[…, 0]", "[…, 1]" and so on
    ids: list[str] = []
    for attempt in range(count):
        made = _hmac_under(key).copy()
        made.update(common + b",%d]" % attempt)
        ids.append(made.hexdigest()[:32])
    return ids


@lru_cache(maxsize=64)
def _hmac_under(key: bytes) -> hmac.HMAC:
    """An HMAC to copy. `hmac.digest` lets other threads go first each time, which takes longer than the hash."""
    return hmac.new(key, digestmod="sha256")


def says_already(old: MemoryRecord, new: MemoryRecord, now: datetime) -> bool:
    """Whether ``old``, which has the same words, makes ``new`` needless: ``old`` holds, and both end at the same time.

    Two events are the same only within a session.
    """
    is_event = old.category is MemoryCategory.EPISODIC and old.session_id != new.session_id
    return holds_at(old, now) and not is_event and (old.valid_to, old.expires_at) == (new.valid_to, new.expires_at)


# Trust ---------------------------------------------------------------------------------------------------------------


def has_to_wait(record: MemoryRecord, confirm: Collection[str] = ()) -> bool:
    """Whether ``record`` waits for the user before it is stored; ``confirm`` names categories to confirm."""
    is_outside = record.trust is Trust.EXTERNAL and guides(record.memory_type, record.category)
    return is_outside or decide(record.source, record.category, record.memory_type, confirm) is Decision.PENDING


def changed(
    old: MemoryRecord, new: MemoryRecord, source: MemorySource | None, confirm: Collection[str] = ()
) -> tuple[MemoryRecord, bool]:
    """``new``, which replaces ``old``, with the source that answers for it; and whether the change has to wait.

    ``source`` is who gave the new text or type; None: neither changes, or nobody says who gave it. Raises
    UntrustedWrite if a memory from the source of ``old`` may not be of ``new``'s category.
    """
    kind = None if new.memory_type is old.memory_type else new.memory_type
    if source is None:
        check_write(old.source, new.category, kind)
        return new, False
    waits = decide(source, new.category, new.memory_type, confirm) is not Decision.YES
    if source.trust is Trust.EXTERNAL < old.trust:
        waits = True  # what a page says ends nothing that the user stated
    # An agent that rewords a less trusted memory does not vouch for it: the memory keeps its source or, if it is
    # trusted less than that, counts as a tool's. What such a source may not write at once waits for the user.
    if not waits and source.trust < Trust.STATED and old.trust < source.trust:
        said_by = old.source if old.source.trust <= old.trust else MemorySource(origin=Origin.TOOL)
        if decide(said_by, new.category, kind) is Decision.YES:
            return new, False  # rewording it vouches for nothing
        source, waits = said_by, True
    return replace(new, source=source, trust=source.trust), waits  # whoever rewrites it answers for it


async def check_rejected(scope: MemoryScope, record: MemoryRecord) -> None:
    """Raises UntrustedWrite if ``record`` repeats rejected words that the user has not stated since; StoreError."""
    if record.source.trust is not Trust.STATED:
        key = await scope.engine.content_key()
        await scope.engine.ask(partial(check_rejected_on, record, key))


def check_rejected_on(record: MemoryRecord, key: bytes, backend: Backend) -> None:
    """Like `check_rejected`, on a worker; ``key`` is the store's content key."""
    owner = owner_in(record.namespace)
    if record.source.trust is not Trust.STATED and is_rejected_on(owner, record.content, key, backend):
        reviewer = "the user" if space_in(record.namespace) is None else "an admin of the space"
        raise UntrustedWrite(f"Not saved: {reviewer} has rejected these words before. Do not retry")


def is_rejected_on(user_id: UserId, content: str, key: bytes, backend: Backend) -> bool:
    """Whether the user has rejected this text. Raises StoreError."""
    places = [namespace for namespace in backend.namespaces((encode_label(user_id),)) if holds_pending(namespace)]
    if not places:
        return False
    names = names_of(key, user_id, content)
    return any(row and is_rejected(row) for row in backend.get([(place, name) for place in places for name in names]))


def is_rejected(row: Row) -> bool:
    """Whether ``row`` is the mark of a rejection."""
    return "rejected" in mapping_field(row.value, NOTE)


# Proposals -----------------------------------------------------------------------------------------------------------


async def proposal(
    scope: MemoryScope, record: MemoryRecord, ends: Sequence[MemoryRecord] = ()
) -> tuple[Decision, str, list[Write]]:
    """Like `proposed_on`, in the namespaces that this agent reads. Raises StoreError."""
    homes = scope.namespaces.read_scopes(owner_in(record.namespace))
    key = await scope.engine.content_key()
    return await scope.engine.ask(partial(proposed_on, record, homes, scope.clock.now(), ends, key))


def proposed_on(
    record: MemoryRecord,
    homes: Sequence[Namespace],
    now: datetime,
    ends: Sequence[MemoryRecord],
    key: bytes,
    backend: Backend,
) -> tuple[Decision, str, list[Write]]:
    """What to do with the proposal ``record``: a decision, the proposal's id, and the writes that store it.

    PENDING: the proposal waits for the user; if there are no writes, these words wait already. YES: a memory says this
    already, or a proposal of these words was approved in one of ``homes`` and still holds. NO: the user has rejected
    these words, too many memories wait, or these words were approved and ended too often. The writes fail if another
    proposal takes the place first. Approval ends the memories ``ends``. ``key`` is the store's content key. Raises
    StoreError.
    """
    owner, ending = owner_in(record.namespace), {record.id for record in ends}
    for old in place_on(record, key, (), backend).same:
        is_vouched = old.trust > Trust.EXTERNAL or record.trust is not Trust.INFERRED
        if old.id not in ending and is_vouched and says_already(old, record, now):
            return Decision.YES, old.id, []
    homes = list(dict.fromkeys([record.namespace, *homes]))
    place = sidecar_namespace(record.namespace, PENDING)
    for name in names_of(key, owner, record.content):
        there = backend.get([(home, name) for home in homes])
        if not any(there):
            break
        if any(row and why_invalid(row.value, now) is None for row in there):
            return Decision.YES, name, []
    else:
        return Decision.NO, "", []
    if is_rejected_on(owner, record.content, key, backend):
        return Decision.NO, name, []
    known = backend.get([(sidecar_namespace(home, PENDING), name) for home in homes])
    if any(row and waits(row, now) for row in known):
        return Decision.PENDING, name, []
    if backend.count([place], kinds=frozenset(MEMORY_TYPES)) >= MOST_PENDING:
        return Decision.NO, name, []
    until = now + timedelta(days=PENDING_DAYS)
    note = {
        "at": now.isoformat(),
        "until": until.isoformat(),
        "why": why_it_waits(record.source, record.category),
        ENDS: [[*record.namespace, record.id] for record in ends],
    }
    waiting = replace(record, supersedes=(), superseded_by=None, valid_to=None if ends else record.valid_to)
    put = Put(
        namespace=place,
        key=name,
        value=encode_json(waiting.to_value() | {NOTE: note}, what="memory"),
        kind=record.memory_type.value,
        created_at=now,
        updated_at=now,
        expected=known[0].version if known[0] else 0,  # an expired one, on a store that does not remove it by itself
        expiry=Expiry(until, until - now),
    )
    return Decision.PENDING, name, [put]


@dataclass(slots=True)
class Admitted:
    """What becomes of memories: ``stored`` are to be put under their ids, ``known`` are those that say the same.

    ``waiting`` has the writes that let others wait, by name: the same words wait once. ``decisions`` tells for each
    that may not be stored at once what becomes of it, by id.
    """

    stored: list[MemoryRecord] = field(default_factory=list[MemoryRecord])
    known: list[MemoryRecord] = field(default_factory=list[MemoryRecord])
    waiting: dict[str, list[Write]] = field(default_factory=dict[str, list[Write]])
    decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])

    @property
    def writes(self) -> list[Write]:
        """The writes for the new memories, and for those that wait."""
        return [*(put_of(record, expected=0) for record in self.stored), *chain.from_iterable(self.waiting.values())]


async def admitted(scope: MemoryScope, records: Sequence[MemoryRecord], *, compares: bool = False) -> Admitted:
    """What becomes of ``records``, all of one user, which were made of a conversation. Raises StoreError.

    ``compares``: what is known in the same words is not added, and the others get ids that follow from their words.
    """
    if not records:
        return Admitted()
    homes = scope.namespaces.read_scopes(owner_in(records[0].namespace))
    key = await scope.engine.content_key()

    def admit(backend: Backend) -> Admitted:
        found, now = Admitted(), scope.clock.now()
        for given in records:
            record = given
            if compares:
                place = place_on(given, key, (), backend)
                if known := [record for record in place.same if says_already(record, given, now)]:
                    found.known.append(known[0])
                    continue
                record = replace(given, id=place.memory_id)
            if has_to_wait(record, scope.confirm):
                found.decisions[record.id], name, writes = proposed_on(record, homes, now, (), key, backend)
                found.waiting.setdefault(name, writes)
            else:
                found.stored.append(record)
        return found

    return await scope.engine.ask(admit)


async def propose(scope: MemoryScope, record: MemoryRecord, ends: Sequence[MemoryRecord] = ()) -> str:
    """Returns the id of the approved memory that says the same as ``record``, or else has ``record`` wait for the user.

    Raises ConfirmationNeeded if it waits now; UntrustedWrite if the user has rejected it or too many wait; StoreError.
    """

    async def proposed() -> tuple[Decision, str]:
        decision, name, writes = await proposal(scope, record, ends)
        if writes:
            await scope.write(writes, "propose", source=record.source)
        return decision, name

    decision, name = await retried(proposed)
    why, is_own = why_it_waits(record.source, record.category), space_in(record.namespace) is None
    reviewer = "the user" if is_own else "an admin of the space"
    if decision is Decision.PENDING:
        is_external = is_own and record.source.trust is Trust.EXTERNAL
        raise ConfirmationNeeded(name, why, is_external=is_external, reviewer=reviewer)
    if decision is Decision.NO:
        raise UntrustedWrite(
            f"Not saved: {why}, and {reviewer} has rejected it before or has too much to confirm. Do not retry"
        )
    return name


def waits(row: Row, now: datetime) -> bool:
    """Whether what ``row`` proposes still waits for the user."""
    until = moment_field(mapping_field(row.value, NOTE), "until")
    return is_known(row) and bool(row.value.get("content")) and until is not None and until > now
