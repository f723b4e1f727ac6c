"""What says the same, and what adds something."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import at_most

from inference_core import AgentMemoryStoreService, open_store
from inference_core.memory.trust import MemorySource, Origin
from inference_core.retrieval.similarity import (
    asks_for_past,
    asks_for_present,
    diversified,
    gist,
    is_hypothetical,
    newest_first,
    outdated,
    overlap,
    words_of,
)

LISBON = "The user lives in Lisbon."


@pytest.mark.parametrize(
    "other",
    ["Lives in Lisbon", "lives in LISBON!", "She lives in Lisbon", "The user lives in Lisbon."],
    ids=["shorter", "capitals", "pronoun", "equal"],
)
def test_another_wording_of_the_same_says_the_same(other: str):
    assert gist(LISBON) == gist(other) != ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Likes coffee", "Does not like coffee"),
        ("Likes coffee", "Never likes coffee"),
        ("The train leaves at 23:30", "The train leaves at 22:30"),
        ("Lives in Lisbon", "Lived in Lisbon"),
        ("Lives in Lisbon", "Lives in Porto"),
        ("Prefers C++", "Prefers C#"),
        ("Budget is -5", "Budget is 5"),
        ("Takes .5 mg", "Takes 5 mg"),
        ("Prefers tabs over spaces", "Prefers spaces over tabs"),
        ("Flies from Lisbon to Porto", "Flies from Porto to Lisbon"),
        ("The code is 1 2 1 2", "The code is 1 2 2 1"),
        ("The", "A"),
        ("", ""),
    ],
    ids=[
        "negation",
        "never",
        "number",
        "tense",
        "place",
        "symbols",
        "sign",
        "fraction",
        "order",
        "direction",
        "digits",
        "empty words",
        "nothing",
    ],
)
def test_what_changes_the_meaning_does_not_say_the_same(first: str, second: str):
    assert gist(first) != gist(second) or not gist(first)


def test_overlap_is_the_share_of_common_words():
    assert overlap(words_of("green tea"), words_of("black tea")) == pytest.approx(1 / 3)
    assert overlap(words_of("tea"), words_of("tea")) == 1
    assert overlap(words_of(""), words_of("")) == 0


def test_a_repetition_gives_way_to_something_new():
    texts = ["likes green tea", "likes green tea too", "owns a boat"]
    assert diversified([3.0, 2.9, 2.5], texts, 2, 0) == [0, 1]
    assert diversified([3.0, 2.9, 2.5], texts, 2, 1) == [0, 2]
    assert diversified([3.0, 2.9, 2.5], texts, 9, 1) == [0, 2, 1]
    assert diversified([], [], 3, 1) == []


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 1 / 3, 2.0]), st.lists(st.sampled_from("abcdefgh"), max_size=5)),
        max_size=14,
    ),
    st.integers(0, 16),
    st.sampled_from([0.1, 1 / 3, 1.0, 10.0]),
)
def test_each_is_the_best_of_the_rest(given_texts: list[tuple[float, list[str]]], limit: int, diversity: float) -> None:
    scores, texts = [score for score, _ in given_texts], [" ".join(words) for _, words in given_texts]
    expected: list[int] = []
    while len(expected) < min(limit, len(texts)):
        left = [at for at in range(len(texts)) if at not in expected]
        alike = [max((overlap(words_of(text), words_of(texts[at])) for at in expected), default=0.0) for text in texts]
        expected.append(max(left, key=lambda at: (scores[at] - diversity * alike[at], -at)))
    assert diversified(scores, texts, limit, diversity) == expected


@pytest.mark.parametrize(
    ("words", "count", "seconds"), [(10, 3_000, 5), (1_000, 600, 10)], ids=["short texts", "long texts"]
)
def test_regression_a_thousand_various_hits_are_chosen_at_once(
    words: int, count: int, seconds: int, full: bool
) -> None:
    """Each pair of texts was compared, word by word: one question held a worker for long after its caller had left."""
    random = Random(1)
    known = [f"word{at}" for at in range(2 * words)]
    texts = [f"note {at} {' '.join(random.sample(known, words))}" for at in range(3_000 if full else count)]
    with at_most(30 if full else seconds):
        chosen = diversified([-0.001 * at for at in range(len(texts))], texts, len(texts) // 3, 1)
    assert len(set(chosen)) == len(texts) // 3


QUOTA = "What is my daily call quota for the weather API?"
OLD = "My weather API key has a daily quota of 1,000 calls, and the daily quota counts each call of the API"
NEW = "The quota of the API is 1,200 calls daily since the upgrade"
OTHER = "The weather was fine"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (QUOTA, True),
        ("How many sources are in my library?", True),
        ("When is the call with the director?", True),
        ("What was my daily quota?", False),
        ("What did I originally plan for my budget?", False),
        ("What is the order of my trips?", False),
        ("What does Caroline do?", False),
        ("Tell me my quota", False),
        ("Is my quota larger now?", False),
    ],
    ids=range(9),
)
def test_what_asks_for_the_present(question: str, expected: bool) -> None:
    assert asks_for_present(question) is expected


@pytest.mark.parametrize(
    ("texts", "moments", "expected"),
    [
        ([OLD, OTHER, NEW], [(1, 1), (2, 2), (3, 3)], [2, 0, 1]),
        ([OLD, OTHER, NEW], [(1, 1), (2, 2), None], [0, 1, 2]),
        ([OLD, NEW], [None, (3, 3)], [0, 1]),
        ([NEW, OLD], [(3, 3), (1, 1)], [0, 1]),
        ([OLD, NEW], [(3, 1), (3, 2)], [1, 0]),
        ([OLD, "Nothing of it"], [(1, 1), (2, 2)], [0, 1]),
        (["A call of the API", "The quota"], [(1, 1), (2, 2)], [0, 1]),
        (["The quota", "The quota is due"], [(1, 1), (2, 2)], [0, 1]),
    ],
    ids=["newer", "not-the-users", "before-not-the-users", "in-order", "same-day", "of-others", "of-two", "one-word"],
)
def test_newer_texts_of_the_same_come_first(
    texts: list[str], moments: list[tuple[float, float] | None], expected: list[int]
) -> None:
    assert newest_first(QUOTA, texts, moments) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Book me a table near my flat", False),
        ("What is my quota?", False),
        ("Where did I live before?", True),
        ("Wo habe ich früher gewohnt?", True),
        ("Wo wohne ich?", False),
        ("\u6211\u4ee5\u524d\u4f4f\u5728\u54ea\u91cc", True),
        ("\u6211\u4f4f\u5728\u54ea\u91cc", False),
    ],
    ids=range(7),
)
def test_what_asks_for_the_past(question: str, expected: bool) -> None:
    assert asks_for_past(question) is expected


TEA, MATE = "Drinks green tea", "Drinks green mate"
DRINK = "What do I drink? Some tea?"


def _lost(
    nearness: float,
    newer: str = MATE,
    moments: Sequence[tuple[float, float] | None] = ((1, 1), (2, 2)),
    older: str = TEA,
    query: str = DRINK,
) -> frozenset[int]:
    alike = np.array([[1, nearness], [nearness, 1]], np.float32)
    return outdated(query, [older, newer], moments.__getitem__, alike)


@pytest.mark.parametrize(
    ("nearness", "newer", "is_lost"),
    [
        (0.9, MATE, True),
        (0.7, MATE, False),
        (0.5, "Drinks green tea in the morning, no: mate", True),
        (0.3, MATE, False),
        (float("nan"), MATE, False),
        (0.9, "Owns a boat", False),
    ],
    ids=["close", "half of the words asked", "all words kept", "not alike", "unknown", "nothing asked"],
)
def test_a_text_loses_to_a_newer_one_that_is_close_enough(nearness: float, newer: str, is_lost: bool):
    """The cosine, half of the share of words kept, less the share of the question's words that are missing."""
    assert _lost(nearness, newer) == ({0} if is_lost else set())


@pytest.mark.parametrize(
    ("moments", "losses"),
    [
        ([(2, 2), (1, 1)], {1}),
        ([(2, 1), (2, 2)], {0}),
        ([(2, 2), (2, 2)], set()),
        ([(1, 1), None], set()),
        ([None, (2, 2)], set()),
    ],
    ids=["first", "same day", "equal", "newer unknown", "older unknown"],
)
def test_the_older_text_loses(moments: list[tuple[float, float] | None], losses: set[int]):
    assert _lost(0.9, moments=moments) == losses


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("My name is Sam", "My dog's name is Luna"),
        ("My name is Sam", "My sister-in-law's name is Eva"),
        ("Mein Name ist Sam", "Der Name meines Bruders ist Tom"),
        ("Mi nombre es Sam", "El nombre de mi hermana es Eva"),
        ("\u6211\u7684\u540d\u5b57\u662f\u5c0f\u660e", "\u6211\u5f1f\u5f1f\u7684\u540d\u5b57\u662f\u5c0f\u521a"),
        ("My name is Sam", "My name is perhaps Tom one day"),
        ("The flat on floor 3 has my name", "My name is on the flat of floor 3 and on the bell"),
    ],
    ids=["pet", "person", "German", "Spanish", "Chinese", "hypothetical", "repeats the numbers"],
)
def test_what_is_newer_but_replaces_nothing(older: str, newer: str):
    assert _lost(0.9, newer, older=older, query="name?") == set()


def test_regression_a_text_that_has_nothing_of_what_is_asked_loses_only_to_nearly_the_same():
    """Preferences that share no word with a request lost to any newer one that was alike."""
    older, newer = "Owns a boat", "Owns a large house"
    assert _lost(0.8, newer, older=older) == set()
    assert _lost(0.9, "Owns a large boat", older=older) == {0}


@pytest.mark.parametrize("newest", [1, 2])
def test_a_text_loses_to_any_newer_one(newest: int):
    alike = np.array([[1, 0.8, 0.4], [0.8, 1, 0.2], [0.4, 0.2, 1]], np.float32)
    moments = {0: (1.0, 1.0), newest: (3.0, 3.0), 3 - newest: (2.0, 2.0)}
    assert outdated("tea?", ["tea", "tea", "tea"], moments.__getitem__, alike) == {0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Quiz\u00e1s compre un coche", True),
        ("Peut-\u00eatre en mai", True),
        ("Forse a maggio", True),
        ("Talvez em maio", True),
        ("Misschien in mei", True),
        ("By\u0107 mo\u017ce w maju", True),
        ("\u0412\u043e\u0437\u043c\u043e\u0436\u043d\u043e, \u0432 \u043c\u0430\u0435", True),
        ("Belki may\u0131sta", True),
        ("\u4e5f\u8bb8\u4e94\u6708", True),
        ("\u3082\u3057\u304b\u3057\u305f\u3089", True),
        ("Vielleicht im Mai", True),
        ("Maybe in May", True),
        ("In May", False),
    ],
    ids=str,
)
def test_what_is_only_considered_is_hypothetical_in_twelve_languages(text: str, expected: bool):
    assert is_hypothetical(text) is expected


def test_recall_gives_the_newer_first_with_falling_scores_and_says_so() -> None:
    with open_store("memory://", embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        for day, content in ((1, OLD), (5, NEW)):
            memory.save_memory("ada", content, "facts", valid_from=datetime(2026, 1, day, tzinfo=UTC))
        echo = MemorySource(origin=Origin.AGENT)
        memory.save_memory("ada", f"I see: {OLD}", "facts", valid_from=datetime(2026, 1, 6, tzinfo=UTC), source=echo)
        found = memory.recall_memories("ada", QUOTA, explain=True)
        asked_before = memory.recall_memories("ada", QUOTA.replace("is", "was"))
        then = memory.recall_memories("ada", QUOTA, as_of=datetime(2026, 1, 7, tzinfo=UTC))
    contents = [one.content for one in found]
    assert contents.index(NEW) < contents.index(OLD)
    assert [one.score for one in found] == sorted((one.score or 0 for one in found), reverse=True)
    for one in found:
        assert sum((one.explanation or {}).values()) == pytest.approx(one.score, abs=1e-4)
    assert "newer" in (found[contents.index(NEW)].explanation or {})
    for others in (asked_before, then):
        others_contents = [one.content for one in others]
        assert others_contents.index(OLD) < others_contents.index(NEW)
