"""What a search looks for, derived from the text of a query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from inference_core.retrieval.analysis import query_alternatives
from inference_core.retrieval.documents import Term
from inference_core.retrieval.time_expressions import interval_of
from inference_core.retrieval.vectors import Floats

MAX_QUERY_CHARACTERS: Final = 8_192
_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
_OPENS_A_QUESTION: Final = re.compile(
    r"(?:who|whom|whose|what|when|where|which|why|how|did|do|does|is|are|was|were|am|has|have|had|can|could|would|"
    r"should|will|may)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Query:
    """A query's analysed terms, its vectors if there is a model, and what it asks for.

    ``interval`` is the time that the text refers to, in seconds since 1970. ``wants_action``: it asks the agent to do
    something rather than for knowledge. ``by_itself``: rank texts without regard to their speaker and their session.
    """

    terms: Sequence[Term] = ()
    vector: Floats | None = None
    tokens: Floats | None = None
    interval: tuple[float, float] | None = None
    wants_action: bool = False
    by_itself: bool = False

    @classmethod
    def of(
        cls,
        text: str,
        now: datetime,
        vector: Floats | None = None,
        tokens: Floats | None = None,
        *,
        by_itself: bool = False,
    ) -> Query:
        """The query ``text``, asked at ``now`` in the user's time zone."""
        text = text[:MAX_QUERY_CHARACTERS]
        interval = interval_of(text, now)
        clean = text.strip()
        asks = clean.endswith(_QUESTION_MARKS) or _OPENS_A_QUESTION.match(clean) is not None
        return cls(
            terms=query_alternatives(text),
            vector=vector,
            tokens=tokens if tokens is not None and len(tokens) else None,
            interval=None if interval is None else (interval[0].timestamp(), interval[1].timestamp()),
            wants_action=bool(clean) and not asks,
            by_itself=by_itself,
        )
