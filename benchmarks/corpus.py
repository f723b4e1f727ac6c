"""Synthetic conversations that look real to a store: Zipf's law, sessions, many users; the same in every run.

Words follow the Zipf-Mandelbrot law (Mandelbrot, 1953). The most frequent ones are English stop words, the others are
made of syllables.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, product
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MEMORY_TYPE_TO_CATEGORY, MemoryCategory, MemoryType

SEED: Final = 20_260_101
VOCABULARY_SIZE: Final = 20_000
SESSION_TURNS: Final = 20
SHORTEST, LONGEST = 10, 40
LARGE_QUERY_BYTES: Final = 64 * 1024
ASKER: Final = "user0"
"""The user whose memories are asked for."""
_OFFSET: Final = 2.7
_STOP_WORDS: Final = (  # noqa: SIM905 - easier to read
    "the to and of a in is it that for on was with as at by be this have from or an are not but we had his they he "
    "she you my were her me which their will"
).split()
_SYLLABLES: Final = [first + second for first, second in product("bdfgklmnprstvz", "aeiou")]
_FIRST_DAY: Final = datetime(2025, 1, 1, 8, tzinfo=UTC)
_TYPES: Final = tuple(kind for kind, owner in MEMORY_TYPE_TO_CATEGORY.items() if owner == MemoryCategory.SEMANTIC.value)


class Turn(NamedTuple):
    """What a user said: in which session, as the how manieth of all, and when."""

    user: str
    session: int
    number: int
    text: str
    at: datetime

    def record(self) -> MemoryRecord:
        """The turn as a memory of its user."""
        kind = MemoryType(_TYPES[self.number % len(_TYPES)])
        return MemoryRecord(
            id=f"m{self.number}",
            content=self.text,
            memory_type=kind,
            category=MemoryCategory.SEMANTIC,
            namespace=MemoryNamespaceBuilder().namespace_for(self.user, MemoryCategory.SEMANTIC),
            created_at=self.at,
            updated_at=self.at,
            session_id=f"s{self.session}",
        )


@cache
def vocabulary() -> list[str]:
    """All words, the most frequent first."""
    made = ("".join(word) for size in (2, 3) for word in product(_SYLLABLES, repeat=size))
    content = list(islice(made, VOCABULARY_SIZE * 3))
    np.random.default_rng(SEED).shuffle(content)
    return [*_STOP_WORDS, *content[: VOCABULARY_SIZE - len(_STOP_WORDS)]]


@cache
def _cumulative() -> NDArray[np.float64]:
    weights = 1 / (np.arange(1, VOCABULARY_SIZE + 1) + _OFFSET)
    return np.cumsum(weights / weights.sum())


def words(random: np.random.Generator, count: int) -> list[str]:
    """``count`` words of the vocabulary, by their frequency."""
    ranks = np.searchsorted(_cumulative(), random.random(count)).clip(max=VOCABULARY_SIZE - 1)
    return [vocabulary()[rank] for rank in ranks]


def turns(count: int, users: int = 1, *, seed: int = SEED) -> Iterator[Turn]:
    """``count`` turns of ``users`` whose sessions follow one another, one of each user in a round."""
    random = np.random.default_rng(seed)
    size = max(min(SESSION_TURNS, count // users), 1)
    for number in range(count):
        session = number // size
        text = " ".join(words(random, int(random.integers(SHORTEST, LONGEST + 1)))).capitalize() + "."
        at = _FIRST_DAY + timedelta(hours=session, minutes=number % size)
        yield Turn(user_name(session % users), session, number, text, at)


def own_turns(count: int, users: int) -> list[Turn]:
    """Those of `turns` that are the first user's."""
    return [turn for turn in turns(count, users) if turn.user == ASKER]


def user_name(number: int) -> str:
    """The id of a user."""
    return f"user{number}"


def queries(count: int, *, seed: int = SEED + 1) -> list[str]:
    """Questions of five to eight words, at least two of which are not stop words."""
    random = np.random.default_rng(seed)
    found: list[str] = []
    while len(found) < count:
        chosen = words(random, int(random.integers(5, 9)))
        if sum(word not in _STOP_WORDS for word in chosen) > 1:
            found.append(" ".join(chosen))
    return found


def large_query() -> str:
    """A question of 64 KB."""
    random = np.random.default_rng(SEED + 2)
    return " ".join(words(random, LARGE_QUERY_BYTES // 3))[:LARGE_QUERY_BYTES]
