"""What a model was told, call by call: kept under the user for a while, read when somebody asks why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.clock import time_zone
from inference_core.context.profile import News, Profile, ProfileLine, line_in_profile, render_turn
from inference_core.context.render import render_memories
from inference_core.drivers import Plan
from inference_core.errors import InvalidInput
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.receipt import Place, Receipt, ReceiptLine, text_hash
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import encode_json
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.scope import MemoryScope, UserId, find, record_of
from inference_core.stores.backend import Delete, Expiry, Put, Row

RECEIPTS: Final = "~receipts"
"""Second label of the namespace of a user's receipts; no category and no agent has it."""
MEMORIES: Final = "memories"
"""The form of a block that tells all that was recalled."""
ENGINEER: Final = "engineer"
"""The form of a block that a `ContextEngineer` made."""
_KIND: Final = "receipt"
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Why:
    """Where a memory is from, and every call of a model that was told it, the newest first.

    ``memory`` is None if it is gone. What it was made of stands in the ``source`` of its value: thread, messages, tool.
    """

    memory: MemoryStoreDocument | None
    receipts: Sequence[Receipt]


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
        kind=_KIND,
        created_at=receipt.at,
        updated_at=receipt.at,
        expiry=Expiry(receipt.until, receipt.until - receipt.at),
    )
    scope.engine.later.put(put)


def list_receipts(
    scope: MemoryScope, user_id: UserId, *, thread_id: str | None = None, limit: int | None = 50
) -> Plan[list[Receipt]]:
    """The user's newest receipts, of one thread, if given; ``limit`` None gives all. Raises InvalidInput."""
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must not be negative, not {limit}")
    found = yield from _all(scope, user_id)
    return [one for one in found if thread_id in (None, one.thread_id)][:limit]


def why(scope: MemoryScope, user_id: UserId, memory_id: str) -> Plan[Why]:
    """Where the memory is from, and every kept receipt of a call that was told it. Raises InvalidInput."""
    record = yield from find(scope, user_id, memory_id)
    found = yield from _all(scope, user_id)
    told = [receipt for receipt in found if receipt.line_of(memory_id)]
    return Why(record and MemoryStoreDocument.of(record), told)


def rebuild_receipt(scope: MemoryScope, user_id: UserId, receipt: Receipt) -> Plan[Rebuilt]:
    """The texts that ``receipt`` is about, made again of the memories that are there, and whether they are the same."""
    scopes = scope.namespaces.read_scopes(user_id)
    ids = list(dict.fromkeys(line.id for line in receipt.lines))
    rows = yield from scope.engine.get([(namespace, key) for key in ids for namespace in scopes])
    there = {row.key: record_of(row) for row in rows if row}
    gone = [line.id for line in receipt.lines if not _is_there(line, there)]
    if receipt.form != MEMORIES:
        return Rebuilt("", "", is_same=False, gone=gone, problem=f"The form was {receipt.form}, which is not kept")
    profile, block = _texts(receipt, there)
    is_same = (text_hash(profile), text_hash(block)) == (receipt.profile_hash, receipt.block_hash)
    return Rebuilt(profile, block, is_same=is_same, gone=gone)


def _texts(receipt: Receipt, there: Mapping[str, MemoryRecord]) -> tuple[str, str]:
    zone = time_zone(receipt.zone)

    def line(one: ReceiptLine) -> ProfileLine:
        return line_in_profile(there[one.id], zone)

    known = {place: [one for one in receipt.of(place) if one.id in there] for place in Place}
    standing = {one.id: line(one) for one in known[Place.PROFILE]}
    news = [News(line(one), standing.get(one.id)) for one in known[Place.NEWS]]
    memories: dict[MemoryCategory, list[MemoryRecord]] = {}
    for one in known[Place.RECALLED]:
        memories.setdefault(there[one.id].category, []).append(there[one.id])
    block = render_memories(memories, now=receipt.recalled_at, zone=zone, preamble=not receipt.has_profile)
    if not receipt.has_profile:
        return "", block
    block = render_turn(block, news, receipt.recalled_at, zone)
    return (Profile(tuple(standing.values())).text if receipt.profile_hash else ""), block


def _is_there(line: ReceiptLine, there: Mapping[str, MemoryRecord]) -> bool:
    return line.id in there and there[line.id].version == line.version


def _all(scope: MemoryScope, user_id: UserId) -> Plan[list[Receipt]]:
    """Plan: the user's receipts that are kept, the newest first; what waits to be written is written before."""
    yield from scope.engine.flush_later()
    receipts: list[Receipt] = []
    offset = 0
    while rows := (yield from scope.engine.newest([_namespace(user_id)], limit=_PAGE, offset=offset)):
        receipts += [receipt for row in rows if (receipt := _read(row))]
        offset += len(rows)
    now = scope.clock.now()
    over = [receipt for receipt in receipts if receipt.until <= now]  # on stores that do not expire their rows
    scope.engine.later.put(*(Delete(namespace=_namespace(user_id), key=receipt.id) for receipt in over))
    kept = [receipt for receipt in receipts if receipt.until > now]
    return sorted(kept, key=lambda receipt: receipt.at, reverse=True)


def _read(row: Row) -> Receipt | None:
    """The receipt in ``row``; None for what is none, or of another version."""
    try:
        return Receipt.from_value(row.value)
    except (KeyError, TypeError, ValueError):
        return None


def _namespace(user_id: UserId) -> Namespace:
    return (encode_label(user_id), RECEIPTS)
