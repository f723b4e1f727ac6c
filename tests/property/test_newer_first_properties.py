"""Newer first: only the order of the best ten changes, and only among memories without a session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference_core.retrieval.pool import Place
from inference_core.retrieval.similarity import WINDOW
from inference_core.retrieval.vectors import Floats
from inference_core.stores.backend import Row
from inference_core.stores.indexing.search import FoundRow, Search, Selection

DAY = datetime(2026, 1, 1, tzinfo=UTC)
QUERIES = ["Book the room", "tea for two", "Where did I live before?", "What is the room of my team?"]
texts = st.lists(st.sampled_from(["room", "team", "tea", "Aspen", "Birch", "two"]), max_size=4).map(" ".join)
memories = st.tuples(texts, st.sampled_from([None, "s"]), st.integers(0, 3), st.booleans())


@given(
    given_memories=st.lists(memories, max_size=WINDOW + 4),
    seed=st.integers(0, 2**32 - 1),
    query=st.sampled_from(QUERIES),
    limit=st.integers(1, 16),
)
def test_only_the_order_of_the_best_without_a_session_changes(
    given_memories: list[tuple[str, str | None, int, bool]], seed: int, query: str, limit: int
):
    nearness = np.random.default_rng(seed).choice(np.array([-0.5, 0.3, 0.4, 0.9, np.nan], np.float32), (14, 14))
    found: list[FoundRow] = []
    for at, (content, session, day, is_embedded) in enumerate(given_memories):
        value = {"content": content, "memory_category": "episodic"} | ({"session_id": session} if session else {})
        moment = DAY + timedelta(days=day)
        row = Row(
            namespace=("ada", "semantic"),
            key=str(at),
            value=value,
            version=1,
            seq=at,
            created_at=moment,
            updated_at=moment,
        )
        found.append(
            FoundRow(row, 9 - at / 4, 0.5, {"lexical": 9 - at / 4}, place=Place(0, at) if is_embedded else None)
        )

    def alike(places: Sequence[Place]) -> Floats:
        slots = [place.slot for place in places]
        return nearness[slots][:, slots]

    def selected(wanted: int) -> list[FoundRow]:
        selection = Selection(Search(groups=[], text=query, limit=wanted, prefers_newer=True), alike)
        for one in found[: selection.missing]:
            selection.offer(one)
        return selection.rows()

    best = selected(20)
    keys = [one.row.key for one in best]
    assert sorted(keys[:WINDOW]) == sorted(one.row.key for one in found[:WINDOW])
    assert keys[WINDOW:] == [one.row.key for one in found[WINDOW:]]
    assert [one.score for one in best] == [one.score for one in found]
    assert all(abs(sum(one.shares.values()) - one.score) < 1e-6 for one in best)
    assert [one.row.key for one in selected(limit)] == keys[:limit]
    if not query.startswith("What is"):
        for at, one in enumerate(found):
            if one.row.value.get("session_id") or one.place is None:
                assert best[at].row is one.row
