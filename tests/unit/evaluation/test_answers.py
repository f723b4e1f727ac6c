"""Verdicts are read from a judge's last line, and words are compared as data sets compare them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inference_core.evaluation import JUDGE_PROMPTS
from inference_core.evaluation.answers import JUDGES, Asked, Nothing, Replies, Reply, answered, token_f1, verdict_of
from inference_core.evaluation.conversations import (
    Conversation,
    ConversationQuestion,
    ConversationTurn,
    conversation_of,
)
from inference_core.evaluation.systems import Advance, Recall, RecalledTurn
from inference_core.testing import ScriptedChatModel


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


@pytest.mark.parametrize(
    ("number", "score"),
    [
        *((one, 0.5) for one in ("0.5", "0.50", ".5", "0,5", "0.5.", "**0.5**")),
        *((one, 1.0) for one in ("1", "1.0", "1,0", "1.", "1, as it says so")),
        *((one, 0.0) for one in ("0", "0.0", "0,0", "0.")),
        *((one, None) for one in ("1/2", "1 / 2", "0/1", "0.7", "10", "1.5", "-1", "50%", "1 %", "0.5.1", "1st")),
    ],
)
def test_regression_a_judges_number_is_read_as_a_whole(number: str, score: float | None):
    """A verdict was read up to its first digit, so a half in another spelling was 0, and "1/2" was 1."""
    assert verdict_of(f"It names one of both.\nVERDICT: {number}") == score


def test_regression_a_last_verdict_that_is_no_score_is_not_replaced_by_an_earlier_one():
    """A judge that changed its mind must not count with what it wrote before."""
    assert verdict_of("VERDICT: 1 would be too kind.\nVERDICT: 0.7") is None


def test_what_each_judge_is_asked():
    assert tuple(sorted(JUDGES)) == tuple(sorted(JUDGE_PROMPTS))
    plain = ConversationQuestion("Who?", "Eva", "4", ())
    nobody = ConversationQuestion("Who?", None, "5", (), unanswerable=True)
    points = ConversationQuestion("Who?", "Eva", "4", (), rubric=("names Eva", "names May"))
    assert [len([*judge.requests(plain, "Ann")]) for judge in JUDGES.values()] == [1, 1, 1]
    assert [len([*judge.requests(points, "Ann")]) for judge in JUDGES.values()] == [1, 1, 2]
    assert [*JUDGES["mem0"].requests(ConversationQuestion("Who?", None, "1", ()), "Ann")] == []
    (request,) = JUDGES["mem0"].requests(nobody, "Ann")
    assert "do not hold the answer" in request
    (request,) = JUDGES["mem0"].requests(plain, "{braces} stay")
    assert request.endswith("<expected>Eva</expected>\n<answer>{braces} stay</answer>")


def test_words_are_compared_without_case_articles_and_punctuation():
    assert token_f1("The watering-can!", "a Watering can") == 1
    assert token_f1("in May", "In June 2025") == pytest.approx(0.4)
    assert token_f1("", "Eva") == token_f1("Ann", "Eva") == 0


def test_regression_replies_outlive_a_run_that_was_killed_in_the_midst_of_a_character(tmp_path: Path):
    """No later run could read the file, although its replies were paid for."""
    path = tmp_path / "replies.jsonl"
    with Replies(path) as replies:
        replies.keep("a", Reply("Eva", 1, 1, 0.1))
        replies.keep("b", Reply("caf\u00e9", 1, 1, 0.1))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index("\u00e9".encode()) + 1])
    with Replies(path) as replies:
        assert (replies.find("a"), replies.find("b")) == (Reply("Eva", 1, 1, 0.1, is_new=False), None)
        replies.keep("b", Reply("half a pair: \ud83d", 1, 1, 0.1))
    with Replies(path) as replies:
        assert (kept := replies.find("b")) is not None
        assert kept.text == "half a pair: ?"


async def test_regression_what_is_saved_during_a_run_does_not_end_it(tmp_path: Path):
    """A recall of the user's own store found a memory that the run did not know, and the run broke off."""

    class Growing(Nothing):
        async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
            async def recall(query: str, k: int) -> list[RecalledTurn]:
                return [RecalledTurn("saved meanwhile"), RecalledTurn("1")]

            return recall

    turn = ConversationTurn("1", None, None, None, "I ride a red bike")
    asked = conversation_of("ada", [turn], [ConversationQuestion("Which bike?", "red", "4", ())])
    with Replies(tmp_path / "replies.jsonl") as replies:
        model = Asked("m", ScriptedChatModel(turns=["red"]), replies, asyncio.Semaphore())
        (outcome,) = await answered([asked], Growing(), model, None, 5, lambda: None)
    assert (outcome.notes, outcome.f1) == (1, 1)


async def test_regression_a_judge_whose_verdict_cannot_be_read_is_asked_again_in_the_next_run(tmp_path: Path):
    """Its reply was kept, so running again, as the report advises, could not help."""
    turn = ConversationTurn("1", None, None, None, "I ride a red bike")
    asked = conversation_of("ada", [turn], [ConversationQuestion("Which bike?", "red", "4", ())])
    scores: list[float | None] = []
    for says in (["red", "Hello!"], ["It says so.\nVERDICT: right"], ["not asked"]):
        with Replies(tmp_path / "replies.jsonl") as replies:
            scripted, gate = ScriptedChatModel(turns=says), asyncio.Semaphore()
            model, judge = Asked("m", scripted, replies, gate), Asked("j", scripted, replies, gate)
            (outcome,) = await answered([asked], Nothing(), model, (JUDGES["mem0"], judge), 5, lambda: None)
            scores.append(outcome.score)
    assert scores == [None, 1, 1]
