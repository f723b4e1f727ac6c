"""All weights of ranking, few and round: how much each kind of evidence counts.

Chosen on one half of several data sets and measured on the other; see `docs/retrieval.md`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Spread(NamedTuple):
    """The weights of one kind of evidence: the turn's own, and its surroundings' in the session."""

    own: float = 0.0
    previous: float = 0.0
    around: float = 0.0
    reply: float = 0.0
    best: float = 0.0


class Weights(NamedTuple):
    """The weights of everything that adds to a score."""

    lexical: Spread = Spread()
    coverage: float = 0.0
    dense: Spread = Spread()
    late: Spread = Spread()
    feedback: float = 0.0
    not_assistant: float = 0.0
    guidance: float = 0.0
    interval: float = 0.0
    importance: float = 0.0


LATE: Final = Weights(
    lexical=Spread(own=1, previous=1, around=0.25, reply=1, best=1),
    dense=Spread(own=1, reply=0.5, best=0.5),
    late=Spread(own=2, previous=0.5, around=0.25, best=1),
    feedback=0.5,
    not_assistant=2,
    guidance=2,
    interval=2,
    importance=0.5,
)
"""Words, meaning and token vectors."""
HYBRID: Final = Weights(
    lexical=Spread(own=2, previous=1, around=0.5, reply=1, best=2),
    coverage=2,
    dense=Spread(own=2, previous=0.5, reply=0.5, best=1),
    feedback=0.5,
    not_assistant=2,
    guidance=2,
    interval=2,
    importance=0.5,
)
"""Words and meaning. Also the first stage, which picks the candidates of late interaction."""
LEXICAL: Final = Weights(
    lexical=Spread(own=1, previous=1, around=0.5, reply=1, best=1),
    coverage=1,
    not_assistant=2,
    guidance=0.5,
    interval=2,
    importance=0.5,
)
"""Words alone."""


def ignore_session(weights: Weights) -> Weights:
    """``weights`` without those of surroundings and speaker, so that only the text itself counts."""
    return weights._replace(
        lexical=Spread(own=weights.lexical.own),
        dense=Spread(own=weights.dense.own),
        late=Spread(own=weights.late.own),
        not_assistant=0.0,
    )
