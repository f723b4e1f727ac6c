"""From evidence to one order, in two stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, NOW, WEST, Vector, asked, delete, floats, index_of, keys_of, put, scores_of

from inference_core.retrieval.documents import Change, Document, DocumentMetadata
from inference_core.retrieval.index import ScopeView
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.ranking import CANDIDATES, HYBRID, LATE, LEXICAL, Hit, TokensOf, rank
from inference_core.retrieval.vectors import pack_tokens

TEA = asked(["tea"])
LIKE_EAST = asked(vector=floats(*EAST))
DIAGONAL = (0.6, 0.8)


def _texts(*terms: str, start: float = 0.0) -> list[Change]:
    """Texts under the letters of the alphabet, each a second younger than the one before."""
    return [put(chr(97 + at), text, created=start + at) for at, text in enumerate(terms)]


def _hits(indexes: Sequence[ScopeView], query: Query, tokens_of: TokensOf | None = None) -> dict[str, Hit]:
    hits = rank(Pool(indexes), query, tokens_of).of(range(len(indexes)))
    return {indexes[hit.place.owner].keys[hit.place.slot]: hit for hit in hits}


def _tokens(indexes: Sequence[ScopeView], **tokens: Iterable[Vector] | None) -> TokensOf:
    """Gives the token vectors of each key, those of one passage."""

    def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
        found = [tokens.get(indexes[place.owner].keys[place.slot]) for place in places]
        return [None if rows is None else pack_tokens([floats(*rows)]) for rows in found]

    return tokens_of


@pytest.mark.parametrize("query", [TEA, LIKE_EAST, asked(["tea"], floats(*EAST), floats(EAST))], ids=["1", "2", "3"])
@pytest.mark.parametrize("indexes", [0, 1, 2])
def test_nothing_is_found_in_nothing(indexes: int, query: Query):
    empty = [index_of() for _ in range(indexes)]
    assert scores_of(empty, query, _tokens(empty)) == []


@pytest.mark.parametrize("text", ["", " ", "the of", "\U0001f600", "zebra"], ids=ascii)
def test_a_query_without_known_terms_finds_nothing_by_words(text: str):
    assert scores_of([index_of(put("a", "green tea"))], Query.of(text, NOW)) == []


def test_without_a_vector_only_documents_with_a_term_are_hits():
    assert keys_of([index_of(*_texts("green tea", "car", "tea"))], TEA) == ["c", "a"]


def test_the_score_of_a_document_alone_is_the_sum_of_the_weights():
    (hit,) = _hits([index_of(put("a", "tea"), put("b", "car"))], TEA).values()
    words = LEXICAL.lexical.alone
    assert hit.shares == pytest.approx(
        {"lexical": words, "coverage": LEXICAL.coverage, "role": LEXICAL.not_assistant, "importance": 0},
        abs=1e-5,
    )
    assert hit.score == pytest.approx(words + LEXICAL.coverage + LEXICAL.not_assistant, abs=1e-5)


@pytest.mark.parametrize("with_tokens", [False, True], ids=["hybrid", "late"])
def test_shares_add_up_to_the_score(with_tokens: bool):
    vectors = [EAST, NORTH, DIAGONAL, WEST, DIAGONAL, EAST]
    changes = [
        put(
            key, "green tea" if at % 2 else "tea car?", vector, created=at, session="s", importance=at / 5, kind="skill"
        )
        for at, (key, vector) in enumerate(zip("abcdef", vectors, strict=True))
    ]
    indexes = [index_of(*changes)]
    tokens_of = _tokens(indexes, a=[EAST], b=[NORTH, EAST], c=[WEST]) if with_tokens else None
    query = asked(["tea", "green"], floats(*DIAGONAL), floats(EAST, NORTH), interval=(1, 4), wants_action=True)
    hits = _hits(indexes, query, tokens_of)
    names = {"lexical", "dense", "role", "importance", "guidance", "time", "feedback"}
    names |= {"late_interaction", "question"} if with_tokens else {"coverage"} if HYBRID.coverage else set()
    for hit in hits.values():
        assert set(hit.shares) - {"coverage"} == names - {"coverage"}
        assert sum(hit.shares.values()) == pytest.approx(hit.score, abs=1e-4)
        assert 0 <= hit.relevance <= 1
    for name in names:
        assert any(hit.shares[name] for hit in hits.values()), name


def test_the_document_that_covers_more_of_the_query_is_better():
    index = index_of(put("both", "green tea"), put("one", "tea tea tea"), put("other", "green car garage"))
    hits = _hits([index], asked(["green", "tea"]))
    assert next(iter(hits)) == "both"
    assert hits["both"].relevance > hits["one"].relevance


def test_deleted_documents_are_no_hits_and_do_not_count():
    index = index_of(*_texts("green tea", "tea"), delete("a"))
    assert scores_of([index], TEA) == scores_of([index_of(put("b", "tea", created=1))], TEA) != []


def test_equal_documents_of_several_scopes_are_ordered_newest_first():
    old, new = index_of(*_texts("tea", "tea")), index_of(put("c", "tea", created=10), put("d", "tea", created=11))
    assert keys_of([new, old], TEA) == keys_of([old, new], TEA) == ["d", "c", "b", "a"]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 258, 3_000])
def test_all_hits_come_in_order_whatever_the_portion(size: int):
    """Scores repeat, and so do the times of creation within a score."""
    index = index_of(
        *(put(str(at), "tea", created=at % 3, importance=at % 4 / 4, by_assistant=at % 7 == 0) for at in range(size))
    )
    found = scores_of([index], TEA)
    columns = index.columns
    facts = {key: (-columns.created[slot], columns.ranks[slot]) for slot, key in enumerate(index.keys)}
    assert [(key, -score) for key, score in found] == [
        (key, score) for score, _, key in sorted((-score, facts[key], key) for key, score in found)
    ]
    assert {key for key, _ in found} == set(index.keys)
    assert len({score for _, score in found}) == min(size, 8)


def test_more_equal_hits_than_a_portion_come_newest_first():
    index = index_of(*(put(str(at), "tea", created=at) for at in range(700)))
    assert keys_of([index], TEA) == [str(at) for at in reversed(range(700))]


def test_the_first_hits_can_be_taken_alone():
    index = index_of(*(put(str(at), "tea", importance=at / 1_000) for at in range(1_000)))
    hits = list(islice(rank(Pool([index]), TEA).of([0]), 3))
    assert [index.keys[hit.place.slot] for hit in hits] == ["999", "998", "997"]


@pytest.mark.parametrize("copies", [3, 5, 7, 33])
@pytest.mark.parametrize("terms", [[], ["tea"]], ids=["meaning", "both"])
def test_documents_with_the_same_vector_have_the_same_score(copies: int, terms: list[str]):
    query, vector = (drawn / np.linalg.norm(drawn) for drawn in np.random.default_rng(0).normal(size=(2, 384)))
    index = index_of(*(put(str(at), "green tea", tuple(vector), created=at) for at in range(copies)))
    found = scores_of([index], asked(terms, query.astype(np.float32)))
    assert len({score for _, score in found}) == 1
    assert [key for key, _ in found] == [str(at) for at in reversed(range(copies))]


def test_a_hit_names_its_index_and_slot():
    one, two = index_of(*_texts("car", "tea")), index_of(put("c", "green tea"))
    assert {hit.place for hit in rank(Pool([one, two]), TEA).of([0, 1])} == {Place(0, 1), Place(1, 0)}


def test_hits_can_be_taken_from_some_of_the_indexes():
    indexes = [index_of(put(key, "tea", created=at)) for at, key in enumerate("abc")]
    ranking = rank(Pool(indexes), TEA)
    assert [hit.place.owner for hit in ranking.of([0, 2])] == [2, 0]
    assert [hit.place.owner for hit in ranking.of({1})] == [1]
    assert list(ranking.of([])) == []


def test_statistics_run_over_all_indexes():
    small, large = index_of(put("a", "tea rare")), index_of(*(put(str(at), "tea") for at in range(50)))
    query = asked(["tea", "rare"])
    alone, together = _hits([small], query), _hits([small, large], query)
    assert together["a"].shares["coverage"] == alone["a"].shares["coverage"] == LEXICAL.coverage
    assert together["0"].shares["coverage"] < 0.05 * LEXICAL.coverage


def test_meaning_alone_ranks_by_closeness():
    index = index_of(put("far", "x", NORTH), put("near", "y", EAST), put("middle", "z", DIAGONAL), put("none", "w"))
    hits = _hits([index], LIKE_EAST)
    assert list(hits) == ["near", "middle", "far"]
    assert hits["near"].relevance > hits["far"].relevance


def test_a_long_text_is_as_close_as_its_closest_passage():
    index = index_of(
        put("passages", "x", NORTH, WEST, EAST), put("one", "x", DIAGONAL), put("far", "x", NORTH, (0.0, -1.0))
    )
    assert keys_of([index], LIKE_EAST) == ["passages", "one", "far"]


def test_meaning_and_words_add_up():
    index = index_of(put("words", "tea", NORTH), put("meaning", "drink", EAST), put("both", "tea", EAST))
    assert keys_of([index], asked(["tea"], floats(*EAST)))[0] == "both"


def test_a_document_without_a_vector_counts_as_an_average_one():
    index = index_of(put("low", "tea", NORTH), put("none", "tea"), put("high", "tea", EAST))
    assert keys_of([index], asked(["tea"], floats(*EAST))) == ["high", "none", "low"]


def test_vectors_of_another_size_than_the_query_are_no_evidence():
    index = index_of(*(put(key, text, EAST) for key, text in [("a", "tea"), *((str(at), "car") for at in range(5))]))
    query = asked(["tea"], floats(1, 0, 0), floats((1, 0, 0)))
    assert keys_of([index], query, _tokens([index], a=[EAST])) == ["a"]


def test_indexes_with_vectors_of_several_sizes_are_ranked_together():
    indexes = [
        index_of(*(put(f"{at}", "tea", EAST, created=at) for at in range(5))),
        index_of(*(put(f"{at}", "tea", (0.0, 0.0, 1.0), created=at) for at in range(5, 10))),
    ]
    for query, best in ((floats(*EAST), 4), (floats(0, 0, 1), 9)):
        hits = _hits(indexes, asked([], query))
        assert next(iter(hits)) == str(best)
        assert len(hits) == 5


def test_the_turns_around_a_match_come_before_those_far_away():
    turns = [put(str(at), "tea" if at == 3 else "car", EAST, created=at, session="s") for at in range(7)]
    other = put("x", "car", EAST, created=9, session="t")
    order = keys_of([index_of(*turns, other)], asked(["tea"], floats(*EAST)))
    assert order[0] == "3"
    assert set(order[1:3]) == {"2", "4"}
    assert order[-1] == "x"


@pytest.mark.parametrize("reader", ["role", "importance", "guidance", "time"])
def test_priors_decide_between_equal_texts(reader: str):
    pairs = {
        "role": (put("a", "tea"), put("b", "tea", by_assistant=True, created=1)),
        "importance": (put("a", "tea", importance=0.9), put("b", "tea", importance=0.1, created=1)),
        "guidance": (put("a", "tea", kind="workflow"), put("b", "tea", created=1)),
        "time": (put("a", "tea", happened=150), put("b", "tea", happened=200, created=1)),
    }
    index = index_of(*pairs[reader])
    for vector in (None, floats(*EAST)):
        hits = _hits([index], asked(["tea"], vector, interval=(100, 200), wants_action=True))
        assert list(hits) == ["a", "b"]
        differing = {name for name in hits["a"].shares if hits["a"].shares[name] != hits["b"].shares[name]}
        assert differing == {reader}


@pytest.mark.parametrize(("name", "query"), [("guidance", TEA), ("time", TEA)], ids=["guidance", "time"])
def test_what_is_not_asked_for_is_no_share(name: str, query: Query):
    (hit,) = _hits([index_of(put("a", "tea", kind="workflow"))], query).values()
    assert name not in hit.shares


def test_late_interaction_decides_between_texts_of_the_same_words_and_meaning():
    index = index_of(*(put(key, "tea", EAST, created=at) for at, key in enumerate("abc")))
    query = asked(["tea"], floats(*EAST), floats(EAST, NORTH))
    hits = _hits([index], query, _tokens([index], a=[EAST, NORTH], b=[EAST], c=[WEST]))
    assert list(hits) == ["a", "b", "c"]
    # Standardised over four deviations, as in the tests of late interaction: 1.5/sqrt(2), 0 and the opposite.
    own = LATE.late.alone
    assert hits["a"].shares["late_interaction"] == pytest.approx(own * np.sqrt(1.5) / 4, abs=1e-4)
    assert hits["a"].relevance > hits["c"].relevance
    assert keys_of([index], query) == ["c", "b", "a"]


def _unasked(places: Sequence[Place]) -> list[bytes | None]:
    raise AssertionError(places)


def _none(places: Sequence[Place]) -> list[bytes | None]:
    return [None] * len(places)


def _of_two_dimensions(places: Sequence[Place]) -> list[bytes | None]:
    return [pack_tokens([floats(EAST)])] * len(places)


@pytest.mark.parametrize(
    ("tokens", "tokens_of"),
    [
        (None, _unasked),
        (floats(EAST), _none),
        (floats((1, 0, 0)), _of_two_dimensions),
    ],
    ids=["none in the query", "none in the texts", "another size"],
)
def test_without_tokens_to_compare_ranking_is_that_of_words_and_meaning(tokens: np.ndarray | None, tokens_of: TokensOf):
    index = index_of(*(put(str(at), "tea", vector) for at, vector in enumerate([EAST, NORTH, WEST, DIAGONAL])))
    plain = asked(["tea"], floats(*EAST))
    found = _hits([index], asked(["tea"], floats(*EAST), tokens), tokens_of)
    assert found == _hits([index], plain)


def test_without_a_query_vector_no_tokens_are_asked_for():
    assert keys_of([index_of(put("a", "tea"))], asked(["tea"]), _unasked) == ["a"]
    assert keys_of([index_of(put("a", "tea"))], asked(["car"], floats(*EAST), floats(EAST)), _unasked) == []


def test_texts_without_tokens_stay_among_the_hits():
    index = index_of(*(put(key, "tea", EAST) for key in "abcd"))
    query = asked(["tea"], floats(*EAST), floats(EAST))
    tokens_of = _tokens([index], a=[EAST], b=[(1.0, 0.0, 0.0)], d=[WEST])
    hits = _hits([index], query, tokens_of)
    assert next(iter(hits)) == "a"
    assert set(hits) == set("abcd")
    assert hits["b"].shares["late_interaction"] == hits["c"].shares["late_interaction"] == 0


def test_only_the_best_candidates_are_asked_for_tokens():
    index = index_of(*(put(str(at), "tea", EAST, created=at) for at in range(CANDIDATES + 50)), delete("149"))
    read: list[str] = []

    def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
        read.extend(index.keys[place.slot] for place in places)
        return [None] * len(places)

    rank(Pool([index]), asked(["tea"], floats(*EAST), floats(EAST)), tokens_of)
    assert read == [str(at) for at in range(148, 48, -1)]


def test_feedback_favours_what_is_like_the_best():
    alike = (0.0, 0.6, 0.8)
    vectors = [(1.0, 0.0, 0.0), *[(0.8, 0.6, 0.0)] * 2, alike, (0.0, -0.6, 0.8), *[(-0.8, -0.6, 0.0)] * 2]
    index = index_of(*(put(str(at), "x", vector) for at, vector in enumerate(vectors)))
    hits = _hits([index], asked([], floats(1, 0, 0)))
    assert hits["3"].shares["dense"] == hits["4"].shares["dense"]
    assert hits["3"].shares["feedback"] > hits["4"].shares["feedback"]
    few = index_of(*(put(str(at), "x", vector) for at, vector in enumerate(vectors[:3])))
    assert all(hit.shares["feedback"] == 0 for hit in _hits([few], asked([], floats(1, 0, 0))).values())


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
    texts = ["something else entirely", text[:40], "cars"]
    index = index_of(
        *(Change(1, str(at), "facts", 0, Document.of(text, DocumentMetadata())) for at, text in enumerate(texts))
    )
    assert keys_of([index], Query.of(text, NOW)) == ["1"]
