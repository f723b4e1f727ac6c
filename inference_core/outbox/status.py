"""The state of an outbox: what waits, the dead letters, and retrying or dropping them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from inference_core.clock import Clock
from inference_core.effects import Operation
from inference_core.errors import VersionConflict
from inference_core.outbox.outbox import DEAD_LIST, Outbox
from inference_core.outbox.partitions import Partition, Waiting
from inference_core.stores.backend import Delete, Row, Write
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


def dead_letters(engine: StoreEngine) -> Operation[list[DeadLetter]]:
    """The messages that were given up, the newest first. Raises StoreError."""
    return [letter for letter, _ in (yield from _dead(engine))]


def retry(outbox: Outbox, clock: Clock, keys: Sequence[str] | None = None) -> Operation[int]:
    """Puts dead messages (those with ``keys``, or all) back into the outbox; how many. Raises StoreError."""
    return (yield from _removed(outbox.engine, keys, clock))


def drop(engine: StoreEngine, keys: Sequence[str] | None = None) -> Operation[int]:
    """Removes dead messages (those with ``keys``, or all) for good; how many. Raises StoreError."""
    return (yield from _removed(engine, keys))


def _removed(engine: StoreEngine, keys: Sequence[str] | None, clock: Clock | None = None) -> Operation[int]:
    """Removes dead letters, with a ``clock`` putting them back into the outbox; how many nobody else removed before."""
    done = 0
    for letter, row in (yield from _dead(engine)):
        if keys is not None and letter.key not in keys:
            continue
        writes: list[Write] = [
            Delete(namespace=row.namespace, key=row.key, expected=row.version),
            Delete(namespace=DEAD_LIST, key=row.key),
        ]
        if clock:
            now = clock.now()
            writes += [Waiting.of(row).put(letter.partition.messages, now), letter.partition.listing(now)]
        with suppress(VersionConflict):
            yield from engine.write(writes)
            done += 1
    return done


def _dead(engine: StoreEngine) -> Operation[list[tuple[DeadLetter, Row]]]:
    pointers = yield from engine.scan([DEAD_LIST])
    found: list[tuple[DeadLetter, Row]] = []
    for at in range(0, len(pointers), _PAGE):
        page = [(Partition.from_value(pointer.value), pointer.key) for pointer in pointers[at : at + _PAGE]]
        rows = yield from engine.get([(partition.dead, key) for partition, key in page])
        for (partition, key), row in zip(page, rows, strict=True):
            if row:
                letter = DeadLetter(key, partition, row.value["text"], row.value["reason"], row.value["tries"])
                found.append((letter, row))
    return found
