"""Whether recall's first reaches the prompt."""

from __future__ import annotations

from datetime import UTC, datetime

from inference_core.evaluation.context_first import WAYS, first_told
from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question
from inference_core.memory.trust import Origin

AT = datetime(2026, 1, 15, tzinfo=UTC)
SAID = ("Has a dog called Rex", "Works <in> Lyon", "Plays chess on Sunday")


def user() -> Conversation:
    turns = [ConversationTurn(str(at), None, AT, None, text, Origin.USER, "facts") for at, text in enumerate(SAID)]
    asked = [("What is the dog called?", ("0",)), ("Where is her Lyon?", ("1",)), ("What is the weather?", ())]
    questions = [Question(text, None, "direct", needed, names_evidence=bool(needed)) for text, needed in asked]
    return Conversation("ada", tuple(turns), tuple(questions), 0)


def test_each_way_tells_it_and_questions_without_an_answer_do_not_count():
    done: list[int] = []
    found = first_told([user()], None, lambda: done.append(1), [1, 3])
    assert found == dict.fromkeys([1, 3], dict.fromkeys(WAYS, 1.0))
    assert len(done) == 4
