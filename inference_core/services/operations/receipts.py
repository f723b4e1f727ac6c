"""What a model was given, call by call: kept under the user for a while, read when somebody asks why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inference_core.clock import time_zone
from inference_core.context.items import AssembledContext, ContextItem, Doubt
from inference_core.context.render import FORMATS, Profile, beside_profile, line_in_profile
from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.receipt import Receipt, ReceiptPlace, tells, text_hash
from inference_core.memory.record import MemoryPage, MemoryStoreDocument, table
from inference_core.memory.spaces import SpaceRole
from inference_core.memory.text import canonical_id, encode_json
from inference_core.memory.trust import Trust
from inference_core.services.operations.delete import (
    ForgottenMemory,
    earlier_texts,
    forgotten_of,
    is_archived,
)
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, archive_keys, find, record_of, records_of
from inference_core.services.operations.spaces import readable
from inference_core.stores.backend import Cursor, Expiry, Put, Row

RECEIPTS: Final = "~receipts"
"""Second label of the namespace of a user's receipts; no category and no agent has it."""
_KIND: Final = "receipt"


@dataclass(frozen=True, slots=True)
class Why:
    """Where a memory comes from, and a page of the model calls that were given it, the newest first.

    ``memory`` is None if it is gone; if it can be restored, ``removed`` has it, when it was deleted or forgotten, and
    why. The ``source`` of its value names the thread, messages and tool that it comes from. ``earlier`` are the texts
    that updates have replaced, the oldest first.
    """

    memory: MemoryStoreDocument | None
    receipts: MemoryPage[Receipt]
    removed: ForgottenMemory | None = None
    earlier: Sequence[MemoryStoreDocument] = ()

    def _repr_html_(self) -> str:
        """Tables for notebooks: its texts, and who was told."""
        last = self.memory or (self.removed.document if self.removed else None)
        state = "now" if self.memory else f"gone: {self.removed.reason}" if self.removed else "gone"
        texts = [[memory.content, memory.updated_at, "before"] for memory in self.earlier]
        texts += [[last.content, last.updated_at, state]] if last else []
        told = [
            [receipt.at, receipt.thread_id, receipt.model, receipt.status, len(receipt.lines)]
            for receipt in self.receipts
        ]
        return table("Texts", ["memory", "written", ""], texts) + table(
            f"Told {len(told)} times", ["when", "thread", "model", "memory status", "memories told"], told
        )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The texts of a receipt, rendered again from what is stored now. ``is_same``: their hashes match the receipt's.

    ``gone`` are the ids of memories that were deleted or changed since; ``problem`` is another reason for a difference.
    """

    profile: str
    block: str
    is_same: bool
    gone: Sequence[str] = ()
    problem: str | None = None


def keep_receipt(scope: MemoryScope, user_id: UserId, make: Callable[[], Receipt]) -> None:
    """Stores the receipt that ``make`` returns, to be kept until its ``until``; never waits. Raises InvalidId.

    It is made in the background.
    """
    namespace = _namespace(user_id)

    def put() -> Put:
        receipt = make()
        return Put(
            namespace=namespace,
            key=receipt.id,
            value=encode_json(receipt.to_value(), what="receipt"),
            kind=_kind(receipt.thread_id),
            created_at=receipt.at,
            updated_at=receipt.at,
            expiry=Expiry(receipt.until, receipt.until - receipt.at),
        )

    scope.engine.later.put_made(namespace[0], put)


@operation("list_receipts")
async def list_receipts(
    scope: MemoryScope,
    user_id: UserId,
    *,
    thread_id: str | None = None,
    limit: int | None = 50,
    after: str | None = None,
) -> MemoryPage[Receipt]:
    """The user's newest receipts, of one thread if given. ``limit`` None: all. Raises InvalidInput.

    ``after`` is the ``next_cursor`` of the previous page.
    """
    return await _page(scope, user_id, limit, after, thread_id=thread_id)


async def get_receipt(scope: MemoryScope, user_id: UserId, receipt_id: str) -> Receipt | None:
    """The user's receipt with this id; None if there is none or its time is over. Raises StoreUnavailable."""
    await scope.engine.flush_later()
    (row,) = await scope.engine.get([(_namespace(user_id), canonical_id(receipt_id))])
    receipt = _read(row) if row else None
    return receipt if receipt and receipt.until > scope.clock.now() else None


@operation("why")
async def why(
    scope: MemoryScope, user_id: UserId, memory_id: str, *, limit: int | None = 50, after: str | None = None
) -> Why:
    """Where the memory comes from, and the newest receipts of model calls that included it. Raises InvalidInput.

    Returns at most ``limit`` receipts (None: all). ``after`` is the ``next_cursor`` of the previous call. Only the
    admins of a space see what was deleted or replaced in it.
    """
    homes = await readable(scope, user_id)
    record = await find(scope, user_id, memory_id, homes)
    receipts = await _page(scope, user_id, limit, after, memory_id=memory_id)
    now = scope.clock.now()
    key = canonical_id(memory_id)
    past = await readable(scope, user_id, role=SpaceRole.ADMIN)
    archived = [row for row in await scope.engine.get(archive_keys(past, key)) if row]
    removed = next((forgotten_of(row) for row in archived if not record and is_archived(row, now)), None)
    latest = record or next((record_of(row) for row in archived if removed), None)
    earlier = await earlier_texts(scope, past, key, latest)
    return Why(record and MemoryStoreDocument.of(record), receipts, removed, earlier)


@operation("rebuild_receipt")
async def rebuild_receipt(scope: MemoryScope, user_id: UserId, receipt: Receipt) -> Rebuilt:
    """Renders the texts of ``receipt`` again from the stored memories, and compares them.

    Returns the `Rebuilt` texts. They are empty, with a ``problem``, if the block was rendered by the application's own
    function. Raises InvalidId, StoreUnavailable, and ConfigurationError if this computer does not know the time zone.
    """
    namespaces = await readable(scope, user_id)
    ids = dict.fromkeys(line.id for line in receipt.lines)
    rows = await scope.engine.get([(namespace, key) for key in ids for namespace in namespaces])
    there = {record.id: record for record in records_of(rows)}
    gone = [line.id for line in receipt.lines if line.id not in there or there[line.id].version != line.version]
    if receipt.form not in FORMATS:
        problem = f"A block of the form {receipt.form!r} cannot be rebuilt"
        return Rebuilt("", "", is_same=False, gone=gone, problem=problem)
    zone, now = time_zone(receipt.zone), receipt.recalled_at
    lines = [
        line_in_profile(there[line.id], zone, line.cut, receipt.form)
        for line in receipt.of(ReceiptPlace.PROFILE)
        if line.id in there
    ]
    replaced = {line.id: line.told for line in lines}
    sections: dict[str, list[ContextItem]] = {}
    conflicts: dict[int, list[ContextItem]] = {}
    untrusted: list[ContextItem] = []
    for line in receipt.lines:
        if line.place is ReceiptPlace.PROFILE or line.id not in there:
            continue
        doubts = frozenset(doubt for doubt in Doubt if doubt.value in line.doubts)
        item = ContextItem.of(there[line.id], source="receipt")
        item = replace(item, cut=line.cut, replaces=replaced.get(line.id), doubts=doubts)
        if line.group is not None:
            conflicts.setdefault(line.group, []).append(item)
        elif item.trust > Trust.EXTERNAL:
            sections.setdefault(item.section, []).append(item)
        else:
            untrusted.append(item)
    context = AssembledContext(sections=sections, conflicts=list(conflicts.values()), untrusted=untrusted)
    block = FORMATS[receipt.form](context, now, zone, not receipt.has_profile) if context.items else ""
    if receipt.has_profile:
        block = beside_profile(block, now, zone, receipt.form)
    profile = Profile(tuple(lines), receipt.form).text if receipt.profile_hash else ""
    is_same = (text_hash(profile), text_hash(block)) == (receipt.profile_hash, receipt.block_hash)
    return Rebuilt(profile, block, is_same=is_same, gone=gone)


async def _page(
    scope: MemoryScope,
    user_id: UserId,
    limit: int | None,
    after: str | None,
    *,
    thread_id: str | None = None,
    memory_id: str | None = None,
) -> MemoryPage[Receipt]:
    """A page of the user's receipts, of one thread or memory if given, the newest first. Flushes queued ones first."""
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must not be negative, not {limit}")
    cursor = None if after is None else Cursor.decode(after)
    await scope.engine.flush_later()
    now, namespace = scope.clock.now(), _namespace(user_id)
    is_own = scope.engine.backend.capabilities.change_feed
    if not is_own:  # such a store does not remove expired rows, and a page reads all of them anyway
        rows = await scope.engine.scan([namespace])
        over = [row for row in rows if (receipt := _read(row)) and receipt.until <= now]
        await scope.engine.remove_later(over)
    kinds = frozenset({_KIND, _kind(thread_id)}) if thread_id is not None and is_own else None

    def is_wanted(row: Row) -> bool:
        if thread_id not in (None, row.value.get("thread_id")):
            return False
        if memory_id is not None and not tells(row.value, memory_id):
            return False
        return (receipt := _read(row)) is not None and receipt.until > now

    end = None if limit is None else limit + 1  # one more tells whether there is another page
    found = await scope.engine.scan([namespace], kinds=kinds, accepts=is_wanted, limit=end, after=cursor)
    page = found[:limit]
    following = Cursor.of(page[-1]).encode() if page and len(found) > len(page) else None
    return MemoryPage(filter(None, map(_read, page)), following)


def _kind(thread_id: str | None) -> str:
    """The kind under which the store finds a thread's receipts; older versions wrote all of them as `_KIND`."""
    return _KIND if thread_id is None else f"{_KIND} {text_hash(thread_id)[:32]}"


def _read(row: Row) -> Receipt | None:
    """The receipt in ``row``; None if it is none, or of a newer version."""
    try:
        return Receipt.from_value(row.value)
    except (LookupError, TypeError, ValueError):
        return None


def _namespace(user_id: UserId) -> Namespace:
    return (encode_label(user_id), RECEIPTS)
