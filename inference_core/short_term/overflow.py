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
    previous = window.summary()
    known = window.counter([previous]) if previous else 0
    added = max(0, *(strategy.reserve(room) - known for strategy in strategies))
    # What stays is what the last strategy wants, and no more than makes room for a new summary.
    start = max(strategies[-1].start(window, eviction.room), window.start_for(room - added))
    leaving = window.leaving(start)
    if not leaving:
        return Relief(window.messages)
    summary, failed = yield from _secured(strategies, replace(eviction, room=room, messages=leaving, previous=previous))
    notice = "; ".join(f"{strategy.name}: {error}" for strategy, error in failed) or None
    model_failed = any(isinstance(error, ModelError) for _, error in failed)
    flush_failed = any(isinstance(strategy, FlushToLongTerm) for strategy, _ in failed)
    # Messages leave when all flushes are durable, and a strategy has taken care of them or was told to drop them.
    is_dealt_with = len(failed) < len(strategies) or any(strategy.drops for strategy in strategies)
    if flush_failed or not is_dealt_with:
        return Relief(window.messages, notice=notice, model_failed=model_failed)
    anchor = previous or leaving[0]
    messages: list[AnyMessage] = []
    for at, unit in enumerate(window.units):
        if summary is not None and unit.first is anchor:
            messages.append(summary)
        elif window.stays(at, start):
            messages += unit.messages
    return Relief(messages, leaving, summary, notice, model_failed)


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
