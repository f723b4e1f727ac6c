"""Verdicts are read from a judge's last line, and words are compared as data sets compare them."""

from __future__ import annotations

import pytest

from inference_core.evaluation import JUDGE_PROMPTS
from inference_core.evaluation.answers import JUDGES, token_f1, verdict_of
from inference_core.evaluation.conversations import Question


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Fine.\nVERDICT: right", 1.0),
        ("'VERDICT: right' would be too kind.\n**Verdict:** wrong.", 0.0),
        ("verdict: 0.5", 0.5),
        ("Verdict = 1", 1.0),
        ("VERDICT: rightly so", None),
        ("I cannot say.", None),
        ("", None),
    ],
)
def test_the_last_verdict_counts(reply: str, score: float | None):
    assert verdict_of(reply) == score


def test_what_each_judge_is_asked():
    assert tuple(sorted(JUDGES)) == tuple(sorted(JUDGE_PROMPTS))
    plain = Question("Who?", "Eva", "4", ())
    nobody = Question("Who?", None, "5", (), unanswerable=True)
    points = Question("Who?", "Eva", "4", (), rubric=("names Eva", "names May"))
    assert [len([*judge.requests(plain, "Ann")]) for judge in JUDGES.values()] == [1, 1, 1]
    assert [len([*judge.requests(points, "Ann")]) for judge in JUDGES.values()] == [1, 1, 2]
    assert [*JUDGES["mem0"].requests(Question("Who?", None, "1", ()), "Ann")] == []
    (request,) = JUDGES["mem0"].requests(nobody, "Ann")
    assert "do not hold the answer" in request
    (request,) = JUDGES["mem0"].requests(plain, "{braces} stay")
    assert request.endswith("<expected>Eva</expected>\n<answer>{braces} stay</answer>")


def test_words_are_compared_without_case_articles_and_punctuation():
    assert token_f1("The watering-can!", "a Watering can") == 1
    assert token_f1("in May", "In June 2025") == pytest.approx(0.4)
    assert token_f1("", "Eva") == token_f1("Ann", "Eva") == 0
