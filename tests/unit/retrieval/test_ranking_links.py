"""What links add to the score of a candidate, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from retrieval_support import index_of, put

from inference_core.memory.record import MemoryLink
from inference_core.retrieval.pool import Place
from inference_core.retrieval.query import Named
from inference_core.retrieval.ranking import (
    ABOUT,
    SHARED,
    UNNAMED,
    RankingCandidate,
    bridges_of,
    link_to_best,
    link_to_query,
    shared_marks,
)


def candidate(key: str, score: float = 0.5, about: str = "", *marks: str, asks: bool = False) -> RankingCandidate:
    subjects = {about.casefold(): about} if about else {}
    return RankingCandidate(key, score, subjects, {mark.casefold(): mark for mark in marks}, asks)


def gained(candidates: list[RankingCandidate]) -> dict[str, tuple[Any, list[MemoryLink]]]:
    return {one.key: (pytest.approx(one.share), one.links) for one in candidates}


def test_what_is_about_whom_the_query_names_gains_by_its_lead():
    best, other, nobody = candidate("a", 3.0, "Ida"), candidate("b", 0.4, "Ida"), candidate("c", 1.0)
    assert link_to_query([best, other, nobody], Named("Where does Ida live?")) == 0.5
    assert gained([best, other, nobody]) == {
        "a": (2.5 / 2, [MemoryLink("Ida")]),
        "b": (2.5 / 2, [MemoryLink("Ida")]),
        "c": (0.0, []),
    }
    assert (ABOUT, SHARED, UNNAMED) == (2.5, 1.5, 0.33)


def test_a_name_in_another_case_counts_only_if_nobody_is_named_as_it_stands():
    named = Named("Gdzie mieszka siostra Anny?")
    anna, anny = candidate("a", 3.0, "Anna"), candidate("b", 3.0, "Anny")
    assert link_to_query([anna], named) == 1.0
    assert gained([anna]) == {"a": (2.5, [MemoryLink("Anna")])}
    anna = candidate("a", 1.0, "Anna")
    assert link_to_query([anna, anny], named) == 0.5
    assert gained([anna, anny]) == {"a": (0.0, []), "b": (2.5 / 2, [MemoryLink("Anny")])}


def test_a_query_that_names_nobody_raises_nothing():
    one = candidate("a", 0.8, "Ida")
    assert link_to_query([one], Named("Where does Bob live?")) == 0.33
    assert gained([one]) == {"a": (0.0, [])}


@pytest.mark.parametrize(("of_others", "trust"), [(8.0, 0.0), (5.0, 0.0), (4.0, 0.25), (1.0, 1.0), (0.0, 1.0)])
def test_if_others_answer_as_well_the_name_counts_less(of_others: float, trust: float):
    about, other = candidate("a", 5.0, "Ida"), candidate("b", of_others, "Bob")
    assert link_to_query([about, other], Named("Where does Ida live?")) == trust
    assert about.share == trust * 2.5


def test_a_question_answers_nothing():
    asking, telling = candidate("a", 0.9, "Ida", asks=True), candidate("b", 0.1, "Bob")
    assert link_to_query([asking, telling], Named("Where does Ida live?")) == 0.0
    assert gained([asking, telling]) == {"a": (0.0, []), "b": (0.0, [])}


def test_a_candidate_gains_by_the_best_of_its_bridges():
    one, none = candidate("a"), candidate("b")
    link_to_best(one, {"x": (3.0, "tea"), "y": (12.0, "Oslo"), "w": (12.0, "Ida")}, 0.5)
    link_to_best(none, {}, 1.0)
    assert gained([one, none]) == {"a": (0.5 * 1.5 * 0.5, [MemoryLink("Oslo", "y")]), "b": (0.0, [])}


def test_marks_weigh_by_their_rarity_and_those_of_many_nothing():
    source = candidate("s", 0.5, "", "Oslo", "Tea", "All")
    others = {
        Place(0, at): candidate(str(at), 0.5, "", *marks)
        for at, marks in enumerate([("Oslo", "Tea", "All"), ("Tea", "All"), ("Tea", "All"), ("All",)])
    }
    rare, common = (math.log1p((4 - found + 0.5) / (found + 0.5)) for found in (1, 3))
    found = shared_marks(source, others)
    assert found == {
        Place(0, 0): (pytest.approx(rare + common), "Oslo"),
        Place(0, 1): (pytest.approx(common), "Tea"),
        Place(0, 2): (pytest.approx(common), "Tea"),
    }


def test_documents_are_bridged_by_rare_words_and_by_what_they_supersede():
    texts = ["sauna oslo", "sauna", "oslo", "tea", "tea", "tea", "tea"]
    view = index_of(*(put(str(at), text) for at, text in enumerate(texts)))
    found = bridges_of("A sauna in Oslo with tea", {"absent"}, ["3"], [view], [0])
    two = math.log1p((7 - 2 + 0.5) / (2 + 0.5))
    assert found == {
        Place(0, 0): (pytest.approx(2 * two), "sauna"),
        Place(0, 1): (pytest.approx(two), "sauna"),
        Place(0, 2): (pytest.approx(two), "oslo"),
        Place(0, 3): (12.0, "supersedes"),
    }
    assert set(bridges_of("A sauna in Oslo with tea", {"sauna"}, [], [view], [0])) == {Place(0, 0), Place(0, 2)}
    assert bridges_of("A sauna in Oslo with tea", set(), ["3"], [view], []) == {}
