"""What of a conversation belongs together, and what has to stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from short_term_support import calls, dialogue, earlier_summary, result, texts

from inference_core.short_term.window import Window, count_tokens, valid


def window_of(*messages: AnyMessage) -> Window:
    return Window(messages, count_tokens)


def lengths(window: Window) -> list[int]:
    return [len(unit.messages) for unit in window.units]


def test_calls_and_their_results_are_one_unit():
    window = window_of(HumanMessage("hi"), calls("a", "b"), result("b"), result("a"), AIMessage("done"))
    assert lengths(window) == [1, 3, 1]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([calls("a"), result("a"), result("a")], [2, 1]),
        ([calls("a"), HumanMessage("wait"), result("a")], [1, 1, 1]),
        ([calls("a"), result("b")], [1, 1]),
        ([result("a")], [1]),
    ],
    ids=["second result", "late result", "result of another call", "nothing else"],
)
def test_a_result_that_does_not_follow_its_call_is_an_orphan(messages: Sequence[AnyMessage], expected: list[int]):
    window = window_of(*messages)
    assert lengths(window) == expected
    assert window.units[-1].is_orphan
    assert not any(messages[-1] is shown for shown in valid(window.units))


def test_a_call_without_a_result_is_answered():
    first, second = valid(window_of(calls("a"), HumanMessage("go on")).units)[:2]
    assert (first.text, second.text) == ("", "No result: the run ended before this tool did.")


def test_calls_that_cannot_be_answered_are_not_shown():
    message = AIMessage(
        ["Let me see", *({"type": "tool_use", "id": name, "name": "find", "input": {}} for name in ("a", "a", "z"))],
        tool_calls=[{"name": "find", "args": {"at": at}, "id": name} for at, name in enumerate(["a", "a", None])],
        invalid_tool_calls=[{"name": "find", "args": "{", "id": "z", "error": "no JSON"}],
        additional_kwargs={"tool_calls": [{"id": "z"}], "refusal": None},
    )
    shown, _ = valid(window_of(message, result("a")).units)
    assert isinstance(shown, AIMessage)
    assert [(call["id"], call["args"]) for call in shown.tool_calls] == [("a", {"at": 1})]
    assert shown.invalid_tool_calls == []
    assert shown.content == ["Let me see", {"type": "tool_use", "id": "a", "name": "find", "input": {}}]
    assert shown.additional_kwargs == {"refusal": None}
    assert len(message.tool_calls) == 3


def test_a_call_that_was_no_json_is_not_shown():
    broken: Any = {"name": "find", "args": "{", "id": "z", "error": "no JSON"}
    (shown,) = valid(window_of(AIMessage("Let me see", invalid_tool_calls=[broken]), result("z")).units)
    assert isinstance(shown, AIMessage)
    assert (shown.text, shown.invalid_tool_calls) == ("Let me see", [])


def test_what_stays_is_the_last_question_the_last_unit_system_messages_and_summaries():
    window = window_of(
        SystemMessage("be brief"),
        earlier_summary("of yesterday"),
        HumanMessage("old"),
        AIMessage("old"),
        HumanMessage("question"),
        calls("a"),
        result("a"),
        calls("b"),
        result("b", "latest"),
    )
    assert texts(window.leaving(window.start_for(1))) == ["old", "old", "", "found"]
    assert window.asked == 4


def test_a_stray_result_at_the_end_does_not_hide_what_has_to_be_answered():
    window = window_of(HumanMessage("question"), calls("a"), result("a", "the answer"), result("a", "again"))
    assert window.last == 1
    assert texts(valid(window.kept(window.start_for(1)))) == ["question", "", "the answer"]


def test_sizes_are_those_of_what_is_shown():
    window = window_of(calls("a"), result("b", "word " * 100))
    shown = valid(window.units)
    assert window.tokens == count_tokens(shown) == sum(window.sizes)
    assert window.sizes[1] == 0


def test_what_stays_begins_with_a_turn_of_the_user():
    window = Window(dialogue(3), count_tokens)
    size = window.sizes[-1]
    assert window.start_for(3 * size) == 4
    assert window.start_after(1) == 2
    assert window.start_after(100) == 5
    assert window.turn_at(1) == 2


def test_the_last_messages_stay_with_what_belongs_to_them():
    window = window_of(*dialogue(2), calls("a", "b"), result("a"), result("b"), HumanMessage("and now?"))
    assert [window.start_of_last(count) for count in (0, 1, 2, 4, 5, 99)] == [5, 5, 4, 4, 3, 0]


def test_a_window_may_be_empty_or_without_a_question():
    empty = window_of()
    assert (empty.tokens, empty.last, empty.start_for(1), empty.leaving(0), empty.summary()) == (0, 0, 0, [], None)
    assert window_of(AIMessage("Welcome")).asked == -1
