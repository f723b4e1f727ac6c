"""Evidence of each kind, on one scale; of many documents only promising sessions are ranked, and nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, Vector, asked, floats, index_of, put

from inference_core.memory.types import MEMORY_TYPES
from inference_core.retrieval import ranking
from inference_core.retrieval.index import ScopeView
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import (
    HYBRID,
    LATE,
    LEXICAL,
    MULTILINGUAL_LATE,
    PROMISING,
    LazyRanking,
    Matches,
    Ranking,
    Signals,
    Spread,
    Weights,
    between,
    faded,
    ignore_session,
    necessity_among,
    over_maximum,
    priors,
    promising,
    rank,
    relevances,
    spread,
    standardized,
)
from inference_core.retrieval.vectors import Floats

NAN = float("nan")
DIAGONAL = (0.6, 0.8)
WORDS = ("tea", "green tea", "car", "tea car", "boat", "green boat", "kettle")
QUERIES = [asked(["tea", "green"]), asked(["tea"], floats(0.8, 0.6)), asked(["tea"], floats(*EAST), wants_action=True)]
Found = list[tuple[str, float]]


def _pool(*vectors: Vector | None) -> Pool:
    """Texts of one session, each a second younger than the one before."""
    return Pool(
        [
            index_of(
                *(
                    put(str(at), "tea", *([vector] if vector else []), created=at, session="s")
                    for at, vector in enumerate(vectors)
                )
            )
        ]
    )


def _feedback(pool: Pool, candidates: Sequence[int], scores: Floats) -> Floats:
    return ranking.feedback(pool, np.array(candidates, np.intp), scores)


def test_scores_over_the_largest():
    assert over_maximum(floats(1, 4, 0)).tolist() == [0.25, 1, 0]
    assert over_maximum(floats(0, 0)).tolist() == [0, 0]
    assert over_maximum(floats()).tolist() == []


def test_four_deviations_above_the_mean_count_as_one():
    # Mean 3; squared differences 4, 1, 9.
    deviation = math.sqrt(14 / 3)
    expected = [-2 / (4 * deviation), -1 / (4 * deviation), 0, 3 / (4 * deviation)]
    found = standardized(floats(1, 2, NAN, 6))
    assert found.tolist() == pytest.approx(expected)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    "scores", [[], [0.5], [NAN, NAN], [0.5, 0.5, NAN], [0.5, 0.5 + 1e-7]], ids=["none", "one", "NaN", "equal", "noise"]
)
def test_where_nothing_differs_nothing_is_standardized(scores: list[float]):
    assert standardized(floats(*scores)).tolist() == [0] * len(scores)


@pytest.mark.parametrize("copies", [3, 7, 33, 1001])
def test_rounding_is_no_difference(copies: int):
    for cosine in np.random.default_rng(1).uniform(-1, 1, 50):
        assert not standardized(np.full(copies, cosine, np.float32)).any()


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (Spread(), [0, 0, 0, 0]),
        (Spread(alone=2), [0, 0, 0, 16]),
        (Spread(own=2), [2, 4, 8, 0]),
        (Spread(previous=2), [0, 2, 4, 0]),
        (Spread(around=2), [8, 0, 2, 0]),
        (Spread(reply=2), [4, 8, 0, 0]),
        (Spread(best=3), [7, 7, 7, 0]),
        (Spread(alone=3, own=1, previous=1, around=0.5, reply=1, best=3), [12, 14, 13.5, 24]),
    ],
    ids=["nothing", "alone", "own", "previous", "around", "reply", "best", "all"],
)
def test_evidence_spreads_within_the_session(weights: Spread, expected: list[float]):
    turns = [put(str(at), created=at, session="s" if at < 3 else "t") for at in range(4)]
    values = floats(1, 2, 4, 8)
    found = spread(values, weights, Pool([index_of(*turns)]).order)
    assert found.tolist() == pytest.approx(expected)
    assert values.tolist() == [1, 2, 4, 8]


def test_closeness_is_taken_from_the_mean_of_all_vectors():
    pool = _pool(EAST, None, NORTH, WEST, NORTH)
    # The mean is (0, .5); the query minus it (1, -.5).
    found = ranking.closeness(pool, asked([], floats(*EAST)).vectors).tolist()
    assert found == pytest.approx([1, NAN, -0.5, -1, -0.5], nan_ok=True)


def test_a_query_of_another_size_is_close_to_nothing():
    assert np.isnan(ranking.closeness(_pool(EAST, NORTH), asked([], floats(1, 0, 0)).vectors)).all()


def test_feedback_is_closeness_to_the_best_three():
    pool = _pool(NORTH, EAST, DIAGONAL, EAST, WEST, EAST)
    found = _feedback(pool, [1, 2, 3, 4], floats(9, 4, 3, 2, 1, 9))
    # Mean of the best three (2.6/3, .8/3), of all (2.6/6, 1.8/6); their difference (2.6/6, -.2/6).
    products = np.array([2.6, 0.6 * 2.6 - 0.8 * 0.2, 2.6, -2.6]) / 6
    expected = (products - products.mean()) / (4 * products.std())
    assert found.tolist() == pytest.approx([0, *expected, 0], abs=1e-3)


def test_rounding_does_not_decide_which_candidates_are_the_best():
    scores = floats(1, 1 + 1e-6, 1, 1)
    found = _feedback(_pool(EAST, NORTH, EAST, WEST), [0, 2, 3, 1], scores)
    # Mean of the first three (1/3, 0), of all (.25, .25).
    assert found.argmin() == 1


@pytest.mark.parametrize(
    ("vectors", "candidates"),
    [([EAST, NORTH, WEST, EAST], [0, 1, 2]), ([EAST, None, WEST, NORTH], [0, 1, 2, 3]), ([EAST, NORTH], [])],
    ids=["three", "three with a vector", "none"],
)
def test_without_more_candidates_than_the_best_there_is_no_feedback(
    vectors: list[Vector | None], candidates: list[int]
):
    scores = floats(*range(len(vectors)))
    assert _feedback(_pool(*vectors), candidates, scores).tolist() == [0] * len(vectors)


def test_candidates_without_a_vector_get_no_feedback():
    found = _feedback(_pool(EAST, None, NORTH, EAST, WEST), [0, 1, 2, 3, 4], floats(5, 9, 1, 4, 3))
    assert found[1] == 0
    assert (found[[0, 2, 3, 4]] != 0).all()


def test_feedback_with_vectors_of_several_sizes():
    indexes = [index_of(*(put(f"{at}", "tea", EAST, created=at) for at in range(4))), index_of(put("x", "tea", (1.0,)))]
    found = _feedback(Pool(indexes), [4, 0, 1, 2, 3], floats(1, 1, 1, 1, 2))
    assert found.tolist() == [0] * 5


def _priors(pool: Pool, query: Query) -> dict[str, list[float]]:
    """Each prior as if its weight were 1."""
    weights = Weights(not_assistant=1, importance=1, guidance=1, interval=1, asks=1)
    return {name: share.tolist() for name, share in priors(pool, query, weights).items()}


def test_rules_skills_and_preferences_guide():
    pool = Pool([index_of(*(put(kind, kind=kind, created=at, session="s") for at, kind in enumerate(MEMORY_TYPES)))])
    found = _priors(pool, asked([], wants_action=True))["guidance"]
    guiding = [kind for kind, value in zip(MEMORY_TYPES, found, strict=True) if value]
    assert guiding == ["preferences", "instructions", "workflow", "skill"]
    assert found == pool.guiding.tolist()


def test_what_happened_within_an_interval():
    moments = [None, 99, 100, 150.5, 200, 201]
    turns = [put(str(at), created=at + 147, happened=moment, session="s") for at, moment in enumerate(moments)]
    found = _priors(Pool([index_of(*turns)]), asked([], interval=(100, 200)))
    assert found["time"] == [1, 0, 1, 1, 0, 0]


def test_what_an_assistant_said_counts_less():
    turns = [put("a", created=1, session="s"), put("b", created=2, session="s", by_assistant=True)]
    assert _priors(Pool([index_of(*turns)]), asked([]))["role"] == [1, 0]


def test_importance_lies_around_zero():
    turns = [put(str(at), created=at, importance=value, session="s") for at, value in enumerate([0, 0.5, 0.75, 1])]
    found = _priors(Pool([index_of(*turns)]), asked([]))
    assert found == {"role": [1, 1, 1, 1], "importance": [-0.5, 0, 0.25, 0.5], "question": [0, 0, 0, 0]}


def test_a_short_question_within_a_session_answers_little():
    texts = ["tea", "tea?", "\u8336\uff1f", "green tea " * 20 + "?"]
    turns = [put(str(at), text, created=at, session="s") for at, text in enumerate(texts)]
    pool = Pool([index_of(*turns, put("alone", "tea?", created=9))])
    keys = [pool.views[0].keys[place.slot] for place in pool.places(np.arange(5))]
    found = dict(zip(keys, _priors(pool, asked([]))["question"], strict=True))
    assert found == {"alone": 0, "0": 0, "1": -1, "2": -1, "3": 0}
    alone = priors(pool, asked([]), ignore_session(LATE))
    assert "question" not in alone


def test_without_a_session_all_texts_count_as_if_they_were_alone():
    turns = [put(str(at), created=at, session="s" if at < 3 else "") for at in range(4)]
    order = Pool([index_of(*turns)]).order
    for one in (LATE, MULTILINGUAL_LATE):
        found = spread(floats(1, 1, 1, 1), ignore_session(one).dense, order)
        assert found.tolist() == pytest.approx([one.dense.alone] * 4)


@pytest.mark.parametrize(("similarity", "trust"), [(0.0, 0), (0.275, 1 / 8), (0.55, 1), (0.9, 1)])
def test_words_that_no_text_says_count_less(similarity: float, trust: float):
    """Otherwise the best of only bad matches would count like a good one, since all evidence is on its own scale."""
    found = faded(LATE, floats(NAN, 0, similarity))
    assert found.late == pytest.approx([trust * weight for weight in LATE.late], abs=1e-6)
    assert found.lexical == pytest.approx([trust * weight for weight in LATE.lexical], abs=1e-6)
    assert found.dense[:2] == LATE.dense[:2]
    assert found.dense[2:] == pytest.approx([trust * weight for weight in LATE.dense[2:]], abs=1e-6)
    assert (found.feedback, found.guidance) == (LATE.feedback, LATE.guidance)


def test_relevance_is_that_of_the_signals_that_are_known():
    nothing, coverage, closeness, similarity = math.nan, 0.5, 0.4, 0.25

    def chance(evidence: float) -> float:
        return round(1 / (1 + math.exp(-evidence)), 3)

    among = -0.12 * math.log(199.5)
    by_words = chance(-1.9 + 3.5 * coverage)
    by_meaning = chance(-2.8 + 2.0 * coverage + 3.5 * closeness + among)
    by_tokens = chance(-2.9 + 1.9 * coverage + 3.8 * closeness + 0.3 * similarity + among)
    near, like = floats(closeness, nothing, closeness), floats(similarity, nothing, nothing)
    covered = floats(coverage, coverage, coverage)
    for signals, expected in (
        (Signals(200, covered), [by_words] * 3),
        (Signals(200, covered, near), [by_meaning, by_words, by_meaning]),
        (Signals(200, covered, near, like), [by_tokens, by_words, by_meaning]),
    ):
        assert relevances(signals, np.arange(3)) == expected


def test_what_their_number_takes_from_the_relevance_of_many_memories_their_necessity_makes_up_for():
    """Three of twenty answers were not told among 10,000 memories, although recall found all of them first."""
    assert necessity_among(-1.0, 1) == necessity_among(-1.0, 100) == -1.0, "as few say little, they take nothing"
    assert necessity_among(-1.0, 10_000) == pytest.approx(-1.0 + 0.5 * math.log(100))


def _index(size: int, offset: int = 0) -> ScopeView:
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


def _found(order: Ranking | LazyRanking, indexes: Sequence[ScopeView], owners: Sequence[int]) -> Found:
    return [(indexes[hit.place.owner].keys[hit.place.slot], hit.score) for hit in order.of(owners)]


@pytest.fixture(scope="module")
def indexes() -> list[ScopeView]:
    return [_index(3_000), _index(1_500, 10_000), _index(40, 20_000), index_of()]


@pytest.mark.parametrize("query", QUERIES, ids=["words", "hybrid", "action"])
def test_the_best_are_those_of_ranking_everything(
    indexes: list[ScopeView], query: Query, monkeypatch: pytest.MonkeyPatch
):
    """Up to feedback, which looks at the best hundred, of which the last may be others."""
    groups = [[0, 1], [2], [3]]
    narrow = rank(Pool(indexes), query, groups=groups)
    monkeypatch.setattr(ranking, "FEW", 10_000)
    whole = rank(Pool(indexes), query, groups=groups)
    assert isinstance(narrow, LazyRanking)
    assert isinstance(whole, Ranking)
    for owners in groups:
        best, expected = _found(narrow, indexes, owners), _found(whole, indexes, owners)
        assert len({key for key, _ in best[:10]} & {key for key, _ in expected[:10]}) >= min(len(expected), 8)
        assert [score for _, score in best[:10]] == pytest.approx([score for _, score in expected[:10]], rel=0.02)
        assert {key for key, _ in best} == {key for key, _ in expected}
        assert len(best) == len(expected)
        assert [hit.place for hit in narrow.others(owners)] == [hit.place for hit in whole.others(owners)]


def test_everything_is_ranked_only_for_those_who_ask_for_so_much(
    indexes: list[ScopeView], monkeypatch: pytest.MonkeyPatch
):
    ranked: list[int] = []
    original = ranking._ranked

    def counted(pool: Pool, *given: object) -> Ranking:
        ranked.append(len(pool))
        return original(pool, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ranking, "_ranked", counted)
    order = rank(Pool(indexes), QUERIES[1], groups=[[0, 1], [2]])
    assert len(list(islice(order.of([0, 1]), 100))) == 100
    assert len(list(order.of([2]))) + len(list(order.others([2]))) == 40
    assert len(ranked) == 1
    assert ranked[0] < 4_540
    for _ in range(2):
        assert len(list(order.of([0, 1]))) + len(list(order.others([0, 1]))) == 4_500
    assert ranked[1:] == [4_540]


def test_small_groups_are_promising_as_a_whole_and_sessions_are_not_torn():
    pool = Pool([_index(3_000), _index(50, 10_000)])
    query = asked(["tea"], floats(*NORTH))
    positions = promising(pool, Matches.of(pool, query), query, HYBRID, [[0], [1], []])
    assert np.count_nonzero(pool.owners[positions] == 1) == 50
    assert PROMISING <= np.count_nonzero(pool.owners[positions] == 0) < 3_000
    part = pool.only(positions)
    chosen = set(pool.order.session[positions].tolist())
    assert np.count_nonzero(np.isin(pool.order.session, list(chosen))) == len(positions)
    assert part.order.session[part.order.starts].tolist() == list(range(len(chosen)))
    assert part.column("created").tolist() == pool.column("created")[positions].tolist()
    assert list(part.places(np.arange(9))) == list(pool.places(positions[:9]))


def test_what_is_no_hit_by_words_has_no_vector_evidence():
    pool = Pool([index_of(put("a", "tea"), put("b", "car"))])
    matches = Matches.of(pool, asked(["tea"]))
    assert (matches.is_hit.tolist(), matches.dense, matches.closeness) == ([True, False], None, None)
    assert matches.only(np.array([0])).lexical.tolist() == [1.0]
    assert promising(pool, matches, asked(["tea"]), LEXICAL, [[0]]).tolist() == [0, 1]


def test_weights_change_gradually_with_the_share_of_other_languages():
    """Guards that a single memory in another language would turn the order of all others."""
    assert between(LATE, MULTILINGUAL_LATE, 0) is LATE
    half = between(LATE, MULTILINGUAL_LATE, 0.5)
    assert half.lexical.own == (LATE.lexical.own + MULTILINGUAL_LATE.lexical.own) / 2
    assert half.coverage == (LATE.coverage + MULTILINGUAL_LATE.coverage) / 2
    assert between(LATE, MULTILINGUAL_LATE, 1) == MULTILINGUAL_LATE
