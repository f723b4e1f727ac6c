"""The order, scores and relevances for every question of the benchmark of contexts, compared with those of before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from retrieval_support import MODEL, index_of
from support import DATA, HashingEmbeddings

from benchmarks.context.cases import Memories, own_cases
from inference_core.memory.trust import Origin
from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.documents import Change, Document, DocumentMetadata, QueryVectors
from inference_core.retrieval.index import ScopeView
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import rank
from inference_core.retrieval.vectors import PLAIN, Floats, pack_tokens, pack_vectors

RANKED = DATA / "cases_ranked.json"
BEST = 6
SESSION = 4
"""So many turns make a session."""


@cache
def vector(text: str) -> Floats:
    found = np.array(HashingEmbeddings().embed_query(text), np.float32)
    return (found / np.linalg.norm(found)).astype(np.float32)


def tokens(text: str) -> Floats:
    return np.array([vector(term) for term in analyze(text)] or [vector("")])


def index(user: Memories) -> ScopeView:
    """The user's memories, with a vector each, in sessions, of four importances."""
    changes: list[Change] = []
    for at, turn in enumerate(user.turns):
        when = (turn.at or user.now).timestamp()
        metadata = DocumentMetadata(
            session=f"s{at // SESSION}" if at % 3 else "",
            by_assistant=turn.origin is Origin.AGENT or at % 5 == 0,
            happened_at=when if at % 2 else None,
            importance=at % 4 / 4,
        )
        document = Document.of(turn.text, metadata)
        document = document._replace(model=MODEL, vector=pack_vectors(vector(turn.text)[None]))
        changes.append(Change(1, turn.id, turn.memory_type, when, document))
    return index_of(*changes)


def ranked() -> dict[str, dict[str, tuple[float, float]]]:
    """By case, the best with score and relevance; by words, by meaning as well, and with token vectors by turns."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for user in own_cases():
        view = index(user)
        texts = {turn.id: turn.text for turn in user.turns}

        def tokens_of(
            places: Sequence[Place], view: ScopeView = view, texts: dict[str, str] = texts
        ) -> list[bytes | None]:
            return [pack_tokens([tokens(texts[view.keys[place.slot]])]) for place in places]

        for at, case in enumerate(user.cases):
            text = case.question
            vectors = {PLAIN: QueryVectors(vector(text), tokens(text) if at % 3 == 2 else None)} if at % 3 else None
            query = Query.of(text, user.now, vectors, ignore_session=at % 7 == 6)
            hits = list(rank(Pool([view]), query, tokens_of).of([0]))[:BEST]
            found[case.id] = {view.keys[one.place.slot]: (round(one.score, 4), round(one.relevance, 4)) for one in hits}
    return found


def test_the_same_is_found_as_before():
    """A change of weights shows here what it changes; this file, run as a script, writes it down."""
    before = json.loads(RANKED.read_text(encoding="utf-8"))
    for case, now in ranked().items():
        assert list(now) == list(before[case]), case
        for key, (score, relevance) in now.items():
            assert (score, relevance) == pytest.approx(tuple(before[case][key]), abs=0.002), (case, key)


if __name__ == "__main__":
    lines = (f"{json.dumps(case)}: {json.dumps(hits)}" for case, hits in ranked().items())
    RANKED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
