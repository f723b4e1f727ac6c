"""Of many documents only promising sessions are ranked, and nobody can tell but by the time it takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, floats, index_of, put

from inference_core.retrieval import ranking
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.matches import PROMISING, Matches, promising
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import HeadFirst, Ranking, rank
from inference_core.retrieval.weights import HYBRID, LEXICAL

WORDS = ("tea", "green tea", "car", "tea car", "boat", "green boat", "kettle")
QUERIES = [Query(["tea", "green"]), Query(["tea"], floats(0.8, 0.6)), Query(["tea"], floats(*EAST), wants_action=True)]
Found = list[tuple[str, float]]


def _index(size: int, offset: int = 0) -> ScopeIndex:
    random = np.random.default_rng(size + offset)
    return index_of(
        *(
            put(
                f"{offset + at}",
                " ".join([WORDS[at % len(WORDS)]] * int(random.integers(1, 4))),
                *([] if at % 5 == 0 else [tuple(random.normal(size=2).tolist())]),
                created=at,
                session=f"s{at // 7}" if at % 3 else "",
                by_assistant=bool(at % 2),
                kind="skill" if at % 11 == 0 else "facts",
                importance=float(random.random()),
            )
            for at in range(size)
        )
    )


def _found(order: Ranking | HeadFirst, indexes: Sequence[ScopeIndex], owners: Sequence[int]) -> Found:
    return [(indexes[hit.place.owner].keys[hit.place.slot], hit.score) for hit in order.of(owners)]


@pytest.fixture(scope="module")
def indexes() -> list[ScopeIndex]:
    return [_index(3_000), _index(1_500, 10_000), _index(40, 20_000), index_of()]


@pytest.mark.parametrize("query", QUERIES, ids=["words", "hybrid", "action"])
def test_the_best_are_those_of_ranking_everything(
    indexes: list[ScopeIndex], query: Query, monkeypatch: pytest.MonkeyPatch
):
    """Up to feedback, which looks at the best hundred, of which the last may be others."""
    groups = [[0, 1], [2], [3]]
    narrow = rank(indexes, query, groups=groups)
    monkeypatch.setattr(ranking, "FEW", 10_000)
    whole = rank(indexes, query, groups=groups)
    assert isinstance(narrow, HeadFirst)
    assert isinstance(whole, Ranking)
    for owners in groups:
        best, expected = _found(narrow, indexes, owners), _found(whole, indexes, owners)
        assert len({key for key, _ in best[:10]} & {key for key, _ in expected[:10]}) >= min(len(expected), 8)
        assert [score for _, score in best[:10]] == pytest.approx([score for _, score in expected[:10]], rel=0.02)
        assert {key for key, _ in best} == {key for key, _ in expected}
        assert len(best) == len(expected)
        assert [hit.place for hit in narrow.others(owners)] == [hit.place for hit in whole.others(owners)]


def test_everything_is_ranked_only_for_those_who_ask_for_so_much(
    indexes: list[ScopeIndex], monkeypatch: pytest.MonkeyPatch
):
    ranked: list[int] = []
    original = ranking._ranked

    def counted(pool: Pool, *given: object) -> Ranking:
        ranked.append(len(pool))
        return original(pool, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ranking, "_ranked", counted)
    order = rank(indexes, QUERIES[1], groups=[[0, 1], [2]])
    assert len(list(islice(order.of([0, 1]), 100))) == 100
    assert len(list(order.of([2]))) + len(list(order.others([2]))) == 40
    assert len(ranked) == 1
    assert ranked[0] < 4_540
    for _ in range(2):
        assert len(list(order.of([0, 1]))) + len(list(order.others([0, 1]))) == 4_500
    assert ranked[1:] == [4_540]


def test_small_groups_are_promising_as_a_whole_and_sessions_are_not_torn():
    pool = Pool([_index(3_000), _index(50, 10_000)])
    query = Query(["tea"], floats(*NORTH))
    positions = promising(pool, Matches.of(pool, query), query, HYBRID, [[0], [1], []])
    assert np.count_nonzero(pool.owners[positions] == 1) == 50
    assert PROMISING <= np.count_nonzero(pool.owners[positions] == 0) < 3_000
    part = pool.only(positions)
    chosen = set(pool.order.session[positions].tolist())
    assert np.count_nonzero(np.isin(pool.order.session, list(chosen))) == len(positions)
    assert part.order.session[part.order.starts].tolist() == list(range(len(chosen)))
    assert part.column("created").tolist() == pool.column("created")[positions].tolist()
    assert [part.place(at) for at in range(9)] == [pool.place(int(at)) for at in positions[:9]]


def test_what_is_no_hit_by_words_has_no_vector_evidence():
    pool = Pool([index_of(put("a", "tea"), put("b", "car"))])
    matches = Matches.of(pool, Query(["tea"]))
    assert (matches.is_hit.tolist(), matches.dense, matches.closeness) == ([False, True], None, None)
    assert matches.only(np.array([1])).lexical.tolist() == [1.0]
    assert promising(pool, matches, Query(["tea"]), LEXICAL, [[0]]).tolist() == [0, 1]
