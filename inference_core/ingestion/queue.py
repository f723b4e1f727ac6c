"""The state of an outbox: what waits, the dead letters, and retrying or dropping them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.clock import Clock
from inference_core.effects import Operation
from inference_core.errors import VersionConflict
from inference_core.ingestion.outbox import DEAD_LIST, Outbox, Partition
from inference_core.ingestion.partitions import Waiting
from inference_core.stores.backend import Delete, Row, Write
from inference_core.stores.codec import Cursor
from inference_core.stores.engine import StoreEngine

_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How many conversations and messages wait, for how long the oldest (seconds), and how many messages died."""

    partitions: int
    waiting: int
    oldest_s: float
    dead: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up, and why."""

    key: str
    partition: Partition
    text: str
    reason: str
    tries: int


def status(outbox: Outbox, clock: Clock) -> Operation[QueueStatus]:
    """How much waits and how much died. Raises StoreError."""
    partitions = yield from outbox.partitions()
    found = yield from outbox.engine.tally([partition.messages for partition, _ in partitions])
    dead = yield from outbox.engine.count([DEAD_LIST])
    now = clock.now()
    oldest = max([0.0, *((now - one.oldest).total_seconds() for one in found)])
    return QueueStatus(len(partitions), sum(one.rows for one in found), oldest, dead)


def dead_letters(engine: StoreEngine, limit: int | None = None) -> Operation[list[DeadLetter]]:
    """The messages that were given up, the newest first. Raises StoreError."""
    return [letter for letter, _ in (yield from _dead(engine, limit))]


def retry(outbox: Outbox, clock: Clock, keys: Sequence[str] | None = None) -> Operation[int]:
    """Puts dead messages (those with ``keys``, or all) back into the outbox; how many. Raises StoreError."""

    def back(letter: DeadLetter, row: Row) -> list[Write]:
        now = clock.now()
        return [Waiting.of(row).put(letter.partition.messages, now), letter.partition.listing(now)]

    return (yield from _each(outbox.engine, keys, back))


def drop(engine: StoreEngine, keys: Sequence[str] | None = None) -> Operation[int]:
    """Removes dead messages (those with ``keys``, or all) for good; how many. Raises StoreError."""
    return (yield from _each(engine, keys, lambda _letter, _row: []))


def _each(
    engine: StoreEngine, keys: Sequence[str] | None, also: Callable[[DeadLetter, Row], list[Write]]
) -> Operation[int]:
    """Takes each dead letter off the list, with what ``also`` writes, unless another did; how many."""
    done = 0
    for letter, row in (yield from _dead(engine, None)):
        if keys is not None and letter.key not in keys:
            continue
        gone = [
            Delete(namespace=row.namespace, key=row.key, expected=row.version),
            Delete(namespace=DEAD_LIST, key=row.key),
        ]
        try:
            yield from engine.write([*gone, *also(letter, row)])
        except VersionConflict:
            continue
        done += 1
    return done


def _dead(engine: StoreEngine, limit: int | None) -> Operation[list[tuple[DeadLetter, Row]]]:
    found: list[tuple[DeadLetter, Row]] = []
    after: Cursor | None = None
    while limit is None or len(found) < limit:
        page = yield from engine.page([DEAD_LIST], limit=_PAGE, after=after)
        partitions = [Partition.from_value(pointer.value) for pointer in page]
        keys = [(partition.dead, row.key) for partition, row in zip(partitions, page, strict=True)]
        rows = yield from engine.get(keys)
        found += [
            (DeadLetter(row.key, partition, row.value["text"], row.value["reason"], row.value["tries"]), row)
            for partition, row in zip(partitions, rows, strict=True)
            if row
        ]
        if len(page) < _PAGE:
            break
        after = Cursor.of(page[-1])
    return found[:limit]
