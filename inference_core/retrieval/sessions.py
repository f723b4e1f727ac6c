"""A text's surroundings in its session: the previous turn, nearby turns, the answer, and the session's best.

In a `SessionOrder`, the turns of a session are adjacent, oldest first; a text without a session is alone. Spreading
evidence from neighbours is the context window of conversation search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.vectors import Floats

SESSIONLESS: Final = -1
_BEST: Final = 3
_DECIMALS: Final = 5


@dataclass(frozen=True)
class SessionOrder:
    """``slots`` by session and time, the number of each position's ``session``, and where sessions start."""

    slots: NDArray[np.intp]
    session: NDArray[np.intp]
    starts: NDArray[np.intp]
    _near: dict[int, Floats] = field(default_factory=dict[int, Floats], init=False)

    @classmethod
    def of(
        cls,
        slots: NDArray[np.intp],
        sessions: NDArray[np.int32],
        created: NDArray[np.float64],
        ranks: NDArray[np.uint32],
    ) -> SessionOrder:
        """The order of ``slots``; each slot without a session is a session of its own."""
        codes = np.where(sessions == SESSIONLESS, -1 - slots, sessions)
        by_session = np.lexsort((ranks, created, codes))
        codes = codes[by_session]
        is_start = np.ones(len(codes), np.bool_)
        is_start[1:] = codes[1:] != codes[:-1]
        return cls(slots[by_session], np.cumsum(is_start) - 1, np.flatnonzero(is_start))

    @classmethod
    def joined(cls, orders: Sequence[SessionOrder], sizes: Sequence[int]) -> SessionOrder:
        """The orders of several indexes, one after the other; ``sizes`` are their numbers of slots."""
        if len(orders) == 1:
            return orders[0]
        slots, sessions, turns = 0, 0, 0
        parts: list[tuple[NDArray[np.intp], ...]] = []
        for order, size in zip(orders, sizes, strict=True):
            parts.append((order.slots + slots, order.session + sessions, order.starts + turns))
            slots, sessions, turns = slots + size, sessions + len(order.starts), turns + len(order.slots)
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def only(self, positions: NDArray[np.intp]) -> SessionOrder:
        """The order of the sessions at ``positions``, each of which must be there as a whole."""
        starts = np.flatnonzero(np.diff(self.session[positions], prepend=-1))
        numbers = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(positions)))
        return SessionOrder(self.slots[positions], numbers, starts)

    def shifted(self, values: Floats, by: int) -> Floats:
        """For each position, the value ``by`` turns earlier in the session (later if negative); 0 if there is none."""
        result = np.zeros(len(values), values.dtype)
        distance = abs(by)
        if not 0 < distance < len(values):
            return result
        target, source = (result[by:], values[:-by]) if by > 0 else (result[:by], values[distance:])
        if distance not in self._near:  # for each turn, whether its session goes on so many turns later
            self._near[distance] = (self.session[distance:] == self.session[:-distance]).astype(np.float32)
        np.multiply(source, self._near[distance], out=target)
        return result

    def best(self, values: Floats) -> Floats:
        """For each position, a third of the sum of its session's three best values.

        Values equal to five decimals count once.
        """
        if not len(values):
            return values
        left = values.round(_DECIMALS)
        total = top = np.maximum.reduceat(left, self.starts)
        for _ in range(_BEST - 1):
            np.copyto(left, -np.inf, where=left == top[self.session])
            top = np.maximum.reduceat(left, self.starts)
            total = total + np.where(np.isfinite(top), top, 0)
        return (total / _BEST).astype(np.float32)[self.session]
