"""What a model was told, call by call: kept under the user for a while, read when somebody asks why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inference_core.clock import time_zone
from inference_core.context.items import AssembledContext, ContextItem
from inference_core.context.profile import Profile, beside_profile, line_in_profile
from inference_core.context.render import FORMATS
from inference_core.drivers import Plan
from inference_core.errors import InvalidInput
from inference_core.memory.document import MemoryPage, MemoryStoreDocument
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.receipt import Place, Receipt, ReceiptLine, tells, text_hash
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import encode_json
from inference_core.memory.trust import Trust
from inference_core.services.operations.scope import MemoryScope, UserId, find, records_of
from inference_core.stores.backend import Delete, Expiry, Put, Row
from inference_core.stores.cursor import Cursor

RECEIPTS: Final = "~receipts"
"""Second label of the namespace of a user's receipts; no category and no agent has it."""
_KIND: Final = "receipt"


@dataclass(frozen=True, slots=True)
class Why:
    """Where a memory is from, and a page of the calls of a model that were told it, the newest first.

    ``memory`` is None if it is gone. What it was made of stands in the ``source`` of its value: thread, messages, tool.
    """

    memory: MemoryStoreDocument | None
    receipts: MemoryPage[Receipt]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a receipt says was told, made again of what is stored now. ``is_same``: the hashes are the receipt's.

    ``gone`` are the ids of memories that were deleted or changed since then, ``problem`` is why else it differs.
    """

    profile: str
    block: str
    is_same: bool
    gone: Sequence[str] = ()
    problem: str | None = None


def keep_receipt(scope: MemoryScope, user_id: UserId, receipt: Receipt) -> None:
    """Has ``receipt`` stored soon, off the caller's way, until its time is over; never waits. Raises InvalidId."""
    put = Put(
        namespace=_namespace(user_id),
        key=receipt.id,
        value=encode_json(receipt.to_value(), what="receipt"),
        kind=_kind(receipt.thread_id),
        created_at=receipt.at,
        updated_at=receipt.at,
        expiry=Expiry(receipt.until, receipt.until - receipt.at),
    )
    scope.engine.later.put(put)


def list_receipts(
    scope: MemoryScope,
    user_id: UserId,
    *,
    thread_id: str | None = None,
    limit: int | None = 50,
    after: str | None = None,
) -> Plan[MemoryPage[Receipt]]:
    """The user's newest receipts, of one thread, if given; ``limit`` None gives all. Raises InvalidInput.

    ``after`` is the ``next_cursor`` of the page before.
    """

    def of_thread(row: Row) -> bool:
        return thread_id in (None, row.value.get("thread_id"))

    return (yield from _page(scope, user_id, of_thread, limit, after, thread_id))


def why(
    scope: MemoryScope, user_id: UserId, memory_id: str, *, limit: int | None = 50, after: str | None = None
) -> Plan[Why]:
    """Where the memory is from, and the newest kept receipts of calls that were told it. Raises InvalidInput.

    Receipts are read from the newest on until there are ``limit`` (None: all) of them. ``after`` is the ``next_cursor``
    of the receipts before.
    """
    record = yield from find(scope, user_id, memory_id)
    told = yield from _page(scope, user_id, lambda row: tells(row.value, memory_id), limit, after)
    return Why(record and MemoryStoreDocument.of(record), told)


def rebuild_receipt(scope: MemoryScope, user_id: UserId, receipt: Receipt) -> Plan[Rebuilt]:
    """The texts that ``receipt`` is about, made again of the memories that are there, and whether they are the same."""
    scopes = scope.namespaces.read_scopes(user_id)
    ids = list(dict.fromkeys(line.id for line in receipt.lines))
    rows = yield from scope.engine.get([(namespace, key) for key in ids for namespace in scopes])
    there = {record.id: record for record in records_of(rows)}
    gone = [line.id for line in receipt.lines if not _is_there(line, there)]
    if receipt.form not in FORMATS:
        return Rebuilt("", "", is_same=False, gone=gone, problem=f"The form was {receipt.form}, which is not kept")
    profile, block = _texts(receipt, there)
    is_same = (text_hash(profile), text_hash(block)) == (receipt.profile_hash, receipt.block_hash)
    return Rebuilt(profile, block, is_same=is_same, gone=gone)


def _texts(receipt: Receipt, there: Mapping[str, MemoryRecord]) -> tuple[str, str]:
    """The texts of profile and block, of what is ``there``."""
    zone, now = time_zone(receipt.zone), receipt.recalled_at
    lines = [line_in_profile(there[one.id], zone, one.cut) for one in receipt.of(Place.PROFILE) if one.id in there]
    replaced = {line.id: line.text.removeprefix("  - ") for line in lines}
    sections: dict[str, list[ContextItem]] = {}
    conflicts: dict[int, list[ContextItem]] = {}
    untrusted: list[ContextItem] = []
    for line in receipt.lines:
        if line.place is Place.PROFILE or line.id not in there:
            continue
        item = replace(ContextItem.of(there[line.id], source="receipt"), cut=line.cut, replaces=replaced.get(line.id))
        if line.group is not None:
            conflicts.setdefault(line.group, []).append(item)
        else:
            of_section = sections.setdefault(item.section, []) if item.trust > Trust.EXTERNAL else untrusted
            of_section.append(item)
    context = AssembledContext(sections=sections, conflicts=list(conflicts.values()), untrusted=untrusted)
    is_told = bool(context.items)
    block = FORMATS[receipt.form](context, now, zone, not receipt.has_profile) if is_told else ""
    if receipt.has_profile:
        block = beside_profile(block, now, zone)
    return (Profile(tuple(lines)).text if receipt.profile_hash else ""), block


def _is_there(line: ReceiptLine, there: Mapping[str, MemoryRecord]) -> bool:
    return line.id in there and there[line.id].version == line.version


def _page(
    scope: MemoryScope,
    user_id: UserId,
    accepts: Callable[[Row], bool],
    limit: int | None,
    after: str | None,
    thread_id: str | None = None,
) -> Plan[MemoryPage[Receipt]]:
    """Plan: the user's receipts that are kept and accepted, the newest first; what waits is written before."""
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must not be negative, not {limit}")
    cursor = None if after is None else Cursor.decode(after)
    yield from scope.engine.flush_later()
    now, namespace = scope.clock.now(), _namespace(user_id)
    is_own = scope.engine.backend.capabilities.change_feed
    if not is_own:  # then nobody else removes what is over, and all of it is read for a page anyway
        rows = yield from scope.engine.scan([namespace])
        over = [row for row in rows if (receipt := _read(row)) and receipt.until <= now]
        scope.engine.later.put(*(Delete(namespace=namespace, key=row.key) for row in over))
    kinds = frozenset({_KIND, _kind(thread_id)}) if thread_id is not None and is_own else None

    def is_kept(row: Row) -> bool:
        return accepts(row) and (receipt := _read(row)) is not None and receipt.until > now

    end = None if limit is None else limit + 1
    found = yield from scope.engine.scan([namespace], kinds=kinds, accepts=is_kept, limit=end, after=cursor)
    page = found if limit is None else found[:limit]
    following = Cursor.of(page[-1]).encode() if page and len(found) > len(page) else None
    return MemoryPage(filter(None, map(_read, page)), following)


def _kind(thread_id: str | None) -> str:
    """The kind of the receipts of a thread, by which the store finds them; those of older versions have none."""
    return _KIND if thread_id is None else f"{_KIND} {text_hash(thread_id)[:32]}"


def _read(row: Row) -> Receipt | None:
    """The receipt in ``row``; None for what is none, or of another version."""
    try:
        return Receipt.from_value(row.value)
    except (LookupError, TypeError, ValueError):
        return None


def _namespace(user_id: UserId) -> Namespace:
    return (encode_label(user_id), RECEIPTS)
