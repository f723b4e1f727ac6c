"""Relieves a window that is too full: nothing leaves before it is safe, and a failure leaves everything where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from langchain_core.messages import AnyMessage

from inference_core.drivers import Plan
from inference_core.errors import ConfigurationError, InferenceCoreError, ModelError
from inference_core.short_term.strategies import Eviction, FlushToLongTerm, OverflowStrategy
from inference_core.short_term.window import Window

Failures = list[tuple[OverflowStrategy, InferenceCoreError]]


@dataclass(frozen=True, slots=True)
class Relief:
    """What became of a window: its messages now, those that left, the summary that stands for them.

    ``notice`` says what failed; if something had to stay for that, ``evicted`` is empty. ``model_failed``: a model did.
    """

    messages: list[AnyMessage]
    evicted: list[AnyMessage] = field(default_factory=list[AnyMessage])
    summary: AnyMessage | None = None
    notice: str | None = None
    model_failed: bool = False


def threshold(strategies: Sequence[OverflowStrategy], room: int) -> int:
    """The tokens above which the first of ``strategies`` acts, of ``room`` that messages may take."""
    return min(strategy.threshold(room) for strategy in strategies)


def relieved(window: Window, strategies: Sequence[OverflowStrategy], eviction: Eviction) -> Plan[Relief]:
    """Plan: what ``strategies`` make of a full ``window``; ``eviction`` says whose it is, its messages are ignored.

    Only developers' mistakes are raised, as ConfigurationError.
    """
    room = threshold(strategies, eviction.room)
    start = _start(window, strategies, eviction.room, room)
    leaving = window.leaving(start)
    if not leaving:
        return Relief(window.messages)
    given = replace(eviction, room=room, messages=leaving, previous=window.summary())
    summary, failed = yield from _secured(strategies, given)
    notice = "; ".join(f"{strategy.name}: {error}" for strategy, error in failed) or None
    model_failed = any(isinstance(error, ModelError) for _, error in failed)
    if not _is_safe(strategies, [strategy for strategy, _ in failed]):
        return Relief(window.messages, notice=notice, model_failed=model_failed)
    messages = _without(window, start, given.previous or leaving[0], summary)
    return Relief(messages, leaving, summary, notice, model_failed)


def _start(window: Window, strategies: Sequence[OverflowStrategy], room: int, most: int) -> int:
    """The first unit that stays, as the last strategy wants it, and so that the window is not full any more then."""
    previous = window.summary()
    known = window.counter([previous]) if previous else 0
    added = max(0, *(strategy.reserve(most) - known for strategy in strategies))
    return max(strategies[-1].start(window, room), window.start_for(most - added))


def _secured(strategies: Sequence[OverflowStrategy], eviction: Eviction) -> Plan[tuple[AnyMessage | None, Failures]]:
    """Plan: the summary, and what failed. Flushes come first: when one fails, whatever others did would be in vain."""
    summary: AnyMessage | None = None
    failed: Failures = []
    for strategy in sorted(strategies, key=lambda one: not isinstance(one, FlushToLongTerm)):
        try:
            summary = (yield from strategy.secured(eviction)) or summary
        except ConfigurationError:
            raise
        except InferenceCoreError as error:
            failed.append((strategy, error))
            if isinstance(strategy, FlushToLongTerm):
                break
    return summary, failed


def _is_safe(strategies: Sequence[OverflowStrategy], failed: Sequence[OverflowStrategy]) -> bool:
    """Whether messages may leave: all flushes are durable, and somebody has taken care of them or was told to drop."""
    if any(isinstance(strategy, FlushToLongTerm) for strategy in failed):
        return False
    return len(failed) < len(strategies) or any(strategy.drops for strategy in strategies)


def _without(window: Window, start: int, anchor: AnyMessage, summary: AnyMessage | None) -> list[AnyMessage]:
    """What stays, with ``summary`` in the place of the message ``anchor``."""
    kept: list[AnyMessage] = []
    for at, unit in enumerate(window.units):
        if summary is not None and unit.first is anchor:
            kept.append(summary)
        elif window.stays(at, start):
            kept += unit.messages
    return kept
