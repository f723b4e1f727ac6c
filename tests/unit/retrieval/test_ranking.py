"""Fusion of evidence to one order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.documents import Change, Document
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.ranking import MAX_QUERY_CHARACTERS, Query, fuse, query_of, rank, standardized

MODEL = "m"
Entry = tuple[str, str] | tuple[str, str, Sequence[float]]


def _floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _index(*entries: Entry, start: float = 0.0) -> ScopeIndex:
    """Each entry, one second younger than the one before: its key, its text and its vector."""
    index = ScopeIndex(MODEL)
    for at, (key, text, *vectors) in enumerate(entries):
        vector = _floats(*vectors[0]).tobytes() if vectors else None
        document = Document(text=text, terms=" ".join(analyze(text)), analyzer="english-1", model=MODEL, vector=vector)
        index.update([Change(at + 1, key, "facts", start + at, document)])
    return index


def _found(indexes: Sequence[ScopeIndex], text: str, vector: Sequence[float] | None = None) -> list[tuple[str, float]]:
    query = query_of(text, None if vector is None else _floats(*vector).tobytes())
    hits = rank(indexes, query).of(range(len(indexes)))
    return [(indexes[hit.index].keys[hit.slot], hit.score) for hit in hits]


def _keys(indexes: Sequence[ScopeIndex], text: str, vector: Sequence[float] | None = None) -> list[str]:
    return [key for key, _ in _found(indexes, text, vector)]


def test_nothing_is_found_in_nothing():
    assert _found([], "tea") == []
    assert _found([ScopeIndex(MODEL), ScopeIndex(MODEL)], "tea", [1, 0]) == []


def test_without_a_vector_only_documents_with_a_term_are_hits():
    index = _index(("a", "green tea"), ("b", "a car"), ("c", "tea"))
    assert set(_keys([index], "which tea?")) == {"a", "c"}


@pytest.mark.parametrize("text", ["", "the of", "\U0001f600", "zebra"])
def test_a_query_without_known_terms_finds_nothing_by_words(text: str):
    assert _found([_index(("a", "green tea"))], text) == []


def test_the_document_that_covers_more_of_the_query_is_better():
    index = _index(("both", "green tea"), ("one", "tea tea tea"), ("other", "green car in the garage"))
    assert _keys([index], "green tea")[0] == "both"


def test_deleted_documents_are_no_hits_and_do_not_count():
    index = _index(("a", "green tea"), ("b", "tea"))
    index.update([Change(9, "a", "facts", 9.0, None)])
    assert _found([index], "green tea") == _found([_index(("b", "tea"))], "green tea")


def test_equal_documents_are_ordered_newest_first():
    index = _index(*((str(at), "green tea") for at in range(20)))
    assert _keys([index], "tea") == [str(at) for at in reversed(range(20))]


def test_equal_documents_of_several_scopes_are_ordered_newest_first():
    old, new = _index(("a", "tea"), ("b", "tea")), _index(("c", "tea"), ("d", "tea"), start=10)
    assert _keys([new, old], "tea") == _keys([old, new], "tea") == ["d", "c", "b", "a"]


@pytest.mark.parametrize("copies", [3, 5, 7, 33])
@pytest.mark.parametrize("text", ["", "tea"])
def test_documents_with_the_same_vector_have_the_same_score(copies: int, text: str):
    generator = np.random.default_rng(0)
    query, vector = (drawn / np.linalg.norm(drawn) for drawn in generator.normal(size=(2, 384)))
    index = _index(*((str(at), "green tea", vector.tolist()) for at in range(copies)))
    found = _found([index], text, query.tolist())
    assert len({score for _, score in found}) == 1
    assert [key for key, _ in found] == [str(at) for at in reversed(range(copies))]


def test_a_hit_names_its_index_and_slot():
    one, two = _index(("a", "car"), ("b", "tea")), _index(("c", "green tea"))
    hits = list(rank([one, two], query_of("tea", None)).of([0, 1]))
    assert {(hit.index, hit.slot) for hit in hits} == {(0, 1), (1, 0)}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_hits_can_be_taken_from_some_of_the_indexes():
    indexes = [_index(("a", "tea")), _index(("b", "tea"), start=1), _index(("c", "tea"), start=2)]
    ranking = rank(indexes, query_of("tea", None))
    assert [hit.index for hit in ranking.of([0, 2])] == [2, 0]
    assert list(ranking.of([])) == []


def test_statistics_run_over_all_indexes():
    small, large = _index(("a", "tea rare")), _index(*((str(at), "tea") for at in range(50)))
    alone = dict(_found([small], "tea rare"))
    together = dict(_found([small, large], "tea rare"))
    assert together["a"] == pytest.approx(alone["a"])
    assert together["0"] < 0.2 * together["a"]


def test_meaning_alone_ranks_by_cosine():
    index = _index(("far", "x", [0, 1]), ("near", "y", [1, 0]), ("middle", "z", [0.6, 0.8]))
    assert _keys([index], "", [1, 0]) == ["near", "middle", "far"]


def test_meaning_and_words_add_up():
    entries: list[Entry] = [("words", "tea", [0, 1]), ("meaning", "a beverage", [1, 0]), ("both", "tea", [1, 0])]
    assert _keys([_index(*entries)], "tea", [1, 0])[0] == "both"


def test_a_document_without_a_vector_counts_as_an_average_one():
    index = _index(("low", "tea", [0, 1]), ("none", "tea"), ("high", "tea", [1, 0]))
    assert _keys([index], "tea", [1, 0]) == ["high", "none", "low"]
    assert _keys([index], "", [1, 0]) == ["high", "low"]


def test_the_query_is_a_text_and_a_vector():
    query = query_of("Green teas", _floats(1, 0).tobytes())
    assert list(query.terms) == ["green", "tea"]
    assert query.vector is not None
    assert query.vector.tolist() == [1, 0]
    assert query_of("Green teas", None) == Query(["green", "tea"], None)


def test_a_long_query_is_cut():
    assert "tea" not in query_of("car " * (MAX_QUERY_CHARACTERS // 4) + "tea", None).terms
    assert "tea" in query_of("car " * (MAX_QUERY_CHARACTERS // 4 - 1) + "tea", None).terms


@pytest.mark.parametrize(
    "text",
    [
        "\u6771\u4eac\u306b\u4f4f\u3093\u3067\u3044\u308b",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
        "\u041b\u044e\u0431\u0438\u0442 \u0447\u0430\u0439",
        "\U0001f600 tea \U0001f525",
        "tea",
        "tea " * 16_384,
    ],
    ids=["Japanese", "Arabic", "Cyrillic", "emoji", "one word", "64 KB"],
)
def test_a_query_in_any_script_finds_its_text(text: str):
    index = _index(("other", "something else entirely"), ("wanted", text[:40]), ("another", "cars"))
    assert _found([index], text) == _found([index], text)
    assert _keys([index], text) == ["wanted"]


def test_a_bad_lexical_match_is_scaled_by_how_little_it_covers():
    alive = np.ones(2, np.bool_)
    good = fuse(_floats(4, 0), _floats(1, 0), None, alive)
    bad = fuse(_floats(4, 0), _floats(0.25, 0), None, alive)
    assert bad[0] == pytest.approx(good[0] / 4)
    assert good[1] == bad[1] == 0


def test_dead_documents_do_not_set_the_scale():
    alive = np.array([True, False])
    assert fuse(_floats(1, 100), _floats(1, 1), None, alive)[0] == fuse(_floats(1, 0), _floats(1, 0), None, alive)[0]
    assert standardized(_floats(3, 100), alive)[0] == 0


def test_standardized_scores_have_mean_zero_and_deviation_one():
    scores = standardized(_floats(1, 2, np.nan, 6), np.ones(4, np.bool_))
    known = scores[[0, 1, 3]]
    assert scores[2] == 0
    assert float(known.mean()) == pytest.approx(0, abs=1e-6)
    assert float(known.std()) == pytest.approx(1)


@pytest.mark.parametrize("copies", [3, 7, 33, 1001])
def test_rounding_is_no_difference(copies: int):
    for cosine in np.random.default_rng(1).uniform(-1, 1, 50):
        scores = standardized(np.full(copies, cosine, np.float32), np.ones(copies, np.bool_))
        assert float(np.abs(scores).max()) < 1e-3


def test_where_nothing_differs_nothing_is_standardized():
    alive = np.ones(3, np.bool_)
    assert standardized(_floats(np.nan, np.nan, np.nan), alive).tolist() == [0, 0, 0]
    assert standardized(_floats(0.5, 0.5, 0.5), alive).tolist() == [0, 0, 0]
