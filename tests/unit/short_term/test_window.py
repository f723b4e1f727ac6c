"""The window of a conversation: what belongs together, how many tokens it takes, and what the model is shown."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils import function_calling
from short_term_support import FORMS, calls, check_valid, dialogue, earlier_summary, exchange, result, texts

from inference_core.short_term import window as tokens
from inference_core.short_term.content import NO_RESULT
from inference_core.short_term.window import (
    MEDIA_TOKENS,
    MESSAGE_TOKENS,
    Window,
    count_tokens,
    in_turn,
    is_summary,
    last_of_user,
    model_window,
    tool_tokens,
    valid,
    view,
)


def window_of(*messages: AnyMessage) -> Window:
    return Window(messages, count_tokens)


def sent(*messages: AnyMessage) -> list[Any]:
    return list(window_of(*messages).valid)


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
    assert [(call["id"], call["args"]) for call in shown.tool_calls] == [("a", {"at": 0})]
    assert shown.invalid_tool_calls == []
    assert shown.content == ["Let me see", {"type": "tool_use", "id": "a", "name": "find", "input": {}}]
    assert shown.additional_kwargs == {"refusal": None}
    assert len(message.tool_calls) == 3


def test_a_call_that_was_no_json_is_shown_with_what_it_was_told_only():
    broken: Any = {"name": "find", "args": "{", "id": "z", "error": "no JSON"}
    message = AIMessage("Let me see", invalid_tool_calls=[broken])
    assert valid(window_of(message, result("z", "no JSON")).units) == [message, result("z", "no JSON")]
    (shown,) = valid(window_of(message).units)
    assert isinstance(shown, AIMessage)
    assert (shown.text, shown.invalid_tool_calls) == ("Let me see", [])


@pytest.mark.parametrize("form", FORMS)
def test_a_call_and_its_result_are_one_unit_in_any_form(form: str):
    messages = [HumanMessage("question"), *exchange(form, "a"), AIMessage("done")]
    window = window_of(*messages)
    assert lengths(window) == [1, 2, 1]
    assert all(given is shown for given, shown in zip(messages, window.valid, strict=True))
    assert window.asked == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_result_without_its_call_is_not_shown_in_any_form(form: str):
    _, answer = exchange(form, "a")
    assert valid(window_of(HumanMessage("question"), answer).units) == [HumanMessage("question")]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("tool message", "tool"),
        ("tool_result of the user", "tool"),
        ("content alone", "tool"),
        ("computer", "[]"),
        ("responses", "tool"),
        ("bedrock", "tool"),
        ("invalid", ""),
        ("approval", "mcp_approval_request"),
        ("function", "function_call"),
    ],
)
def test_a_call_without_a_result_is_answered_or_left_out_unless_models_accept_it(form: str, expected: str):
    call, _ = exchange(form, "a")
    shown = valid(window_of(call, HumanMessage("go on")).units)
    if expected == "tool":
        assert shown[:2] == [call, ToolMessage(NO_RESULT, tool_call_id="a", name="find", status="error")]
    else:
        assert shown[1:] == [HumanMessage("go on")]
        assert expected in f"{shown[0].content} {shown[0].additional_kwargs}"
        assert (shown[0] is call) == bool(expected.strip("[]"))


@pytest.mark.parametrize("name", ["", None], ids=["empty", "none"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_without_ids_get_some_by_the_order_of_their_results(name: str | None, count: int):
    given = [calls(*[name] * count), *(result("", str(at)) for at in range(count)), HumanMessage("go on")]
    check_valid(sent(*given))
    call, *answers, _ = sent(*given)
    assert texts(answers) == [str(at) for at in range(count)]
    assert [one["id"] for one in call.tool_calls] == [one.tool_call_id for one in answers]
    assert sent(*sent(*given)) == sent(*given)


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        (["a", "a"], ["a", "a"], ["0", "1"]),
        (["a", ""], ["", "a"], ["1", "0"]),
        (["a", "b"], ["", "a"], ["1", "0"]),
        ([None, "b"], ["b", "look"], ["1", "0"]),
        (["a"], ["other", "a"], ["1"]),
    ],
    ids=["one id twice", "one without", "a result without", "a name as the id", "another's between"],
)
def test_each_result_belongs_to_one_call(asked: list[str | None], answered: list[str], expected: list[str]):
    call, *answers = sent(calls(*asked), *(result(name, str(at)) for at, name in enumerate(answered)))
    check_valid([call, *answers])
    by_id = {one.tool_call_id: one.text for one in answers}
    assert [by_id[one["id"]] for one in call.tool_calls] == expected


def test_ids_are_given_in_every_form_of_a_call_and_of_its_result():
    use: Any = {"type": "tool_use", "id": "", "name": "find", "input": {}}
    call: Any = AIMessage([use, {"type": "text", "text": "so"}], tool_calls=[{"name": "find", "args": {}, "id": ""}])
    told: Any = HumanMessage([{"type": "tool_result", "tool_use_id": "", "content": "found"}])
    shown, answer = sent(call, told)
    (name,) = {one["id"] for one in shown.tool_calls}
    assert name
    assert shown.content[0]["id"] == answer.content[0]["tool_use_id"] == name
    assert (call.content[0], told.content[0]["tool_use_id"]) == (use, "")


def test_a_question_beside_a_result_is_the_users():
    told: Any = {"type": "tool_result", "tool_use_id": "a", "content": "found"}
    mixed = HumanMessage([told, {"type": "text", "text": "and the other?"}])
    window = window_of(HumanMessage("question"), calls("a", "b"), mixed, AIMessage("done"))
    assert (lengths(window), window.asked, window.turn_at(1)) == ([1, 2, 1], 1, 1)
    assert [type(one).__name__ for one in window.valid[1:4]] == ["AIMessage", "ToolMessage", "HumanMessage"]
    assert last_of_user(window.messages) is mixed
    (orphan,) = sent(mixed)
    assert orphan.content == [{"type": "text", "text": "and the other?"}]


def test_results_in_the_users_role_are_no_question_and_are_cut_like_others():
    long = "start " + "middle " * 1_000 + "end"
    told: Any = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": long}]}
    messages = [HumanMessage("question"), calls("a"), HumanMessage([told])]
    assert last_of_user(messages) is messages[0]
    cut: list[Any] = shown(messages, 200)
    assert 150 < count_tokens(cut) <= 200
    assert cut[-1].content[0]["content"].startswith("start middle")
    assert messages[-1].content == [told]


def test_a_screenshot_is_not_cut():
    messages = [HumanMessage("question"), *exchange("computer", "a")]
    assert shown(messages, 100) == messages


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([earlier_summary("S."), HumanMessage("q"), AIMessage("a")], ["CONVERSATION SUMMARY: S.\n\nq", "a"]),
        ([HumanMessage("q"), earlier_summary("S."), calls("a")], ["q\n\nCONVERSATION SUMMARY: S.", ""]),
        ([earlier_summary("S."), AIMessage("a"), HumanMessage("q")], ["CONVERSATION SUMMARY: S.", "a", "q"]),
        ([earlier_summary("S.", "system"), HumanMessage("q")], ["CONVERSATION SUMMARY: S.", "q"]),
        ([HumanMessage("p"), HumanMessage("q")], ["p", "q"]),
        (
            [earlier_summary("S."), HumanMessage(["q", {"type": "image", "base64": "AA=="}])],
            ["CONVERSATION SUMMARY: S.q"],
        ),
    ],
    ids=["before", "behind", "apart", "system", "no summary", "picture"],
)
def test_a_summary_is_no_second_message_of_the_user(messages: list[AnyMessage], expected: list[str]):
    assert texts(in_turn(messages)) == expected
    assert [one for one in in_turn(messages) if is_summary(one)] == [
        one for one in messages if is_summary(one) and one.text in expected
    ]


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


HAN = "\u8bb0\u5fc6"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", 0),
        ("four", 1),
        ("fours", 2),
        (HAN * 50, 100),
        ("\ud800", 1),
        (["four", {"type": "text", "text": "four"}], 2),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], MEDIA_TOKENS),
        ([{"type": "tool_use", "id": "a", "name": "find", "input": {}}], 17),
        ([{"type": "thinking", "thinking": "x" * 400}], 110),
    ],
    ids=["empty", "a word", "two", "Chinese", "surrogate", "parts", "picture", "call", "thoughts"],
)
def test_a_message_is_counted_by_what_it_holds(content: Any, expected: int):
    assert count_tokens([AIMessage(content)]) == pytest.approx(MESSAGE_TOKENS + expected, abs=2 if expected > 99 else 0)


def test_calls_are_counted_with_their_arguments():
    assert count_tokens([calls("a")]) == MESSAGE_TOKENS + 2
    assert count_tokens([HumanMessage("four"), calls("a", "b")]) == MESSAGE_TOKENS * 2 + 5


def test_a_tool_is_looked_at_once(monkeypatch: pytest.MonkeyPatch):
    @tool
    def find(word: str) -> str:
        """Finds a word."""
        return word

    looked_at: list[object] = []
    convert = function_calling.convert_to_openai_tool

    def noted(given: Any) -> dict[str, Any]:
        looked_at.append(given)
        return convert(given)

    monkeypatch.setattr(tokens, "_tool_tokens", {})
    monkeypatch.setattr(tokens, "_MAX_TOOLS", 1)
    monkeypatch.setattr(function_calling, "convert_to_openai_tool", noted)
    size = tool_tokens([find])
    assert tool_tokens([find, find]) == 2 * size > 20
    assert len(looked_at) == 1
    assert tool_tokens([{"type": "a_providers_own"}, find]) > size
    assert len(looked_at) == 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SimpleNamespace(profile={"max_input_tokens": 8_000}), 8_000),
        (SimpleNamespace(profile={"max_input_tokens": 0}), None),
        (SimpleNamespace(profile={"max_input_tokens": "many"}), None),
        (SimpleNamespace(profile=None), None),
        (None, None),
    ],
    ids=["known", "none", "odd", "no profile", "no model"],
)
def test_the_window_of_a_model_is_what_its_profile_says(model: object, expected: int | None):
    assert model_window(model) == expected


def shown(messages: Sequence[AnyMessage], room: int) -> list[AnyMessage]:
    return view(Window(messages, count_tokens), room)


def test_what_fits_is_shown_as_it_is():
    messages = dialogue(3)
    assert shown(messages, count_tokens(messages)) == messages


def test_else_the_newest_turns_that_fit():
    messages = dialogue(3)
    assert shown(messages, count_tokens(messages) - 1) == messages[2:]


def test_of_a_long_result_start_and_end_are_shown():
    long = "start " + "middle " * 1_000 + "end"
    messages = [HumanMessage("question"), calls("a"), result("a", long)]
    cut = shown(messages, 200)
    assert 150 < count_tokens(cut) <= 200
    assert cut[-1].text.startswith("start middle")
    assert cut[-1].text.endswith("middle end")
    assert " characters cut] " in cut[-1].text
    assert messages[-1].text == long


@pytest.mark.parametrize(("room", "shortest"), [(1, 199), (3_600, 201)], ids=["no room", "little room"])
def test_any_number_of_results_is_cut_the_longest_first(room: int, shortest: int):
    names = [f"call{number}" for number in range(60)]
    results = [result(name, "x" * (201 + number)) for number, name in enumerate(names)]
    cut = shown([HumanMessage("question"), calls(*names), *results], room)
    check_valid(cut)
    lengths = [len(one.text) for one in cut[2:]]
    assert (lengths[0], max(lengths) < 250) == (shortest, True)
    assert max(lengths) <= 200 or count_tokens(cut) <= room


def test_pictures_that_tools_show_are_named_if_there_is_no_room():
    picture = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    answer = result("a").model_copy(update={"content": [{"type": "text", "text": "A cat"}, picture]})
    messages = [HumanMessage("question"), calls("a"), answer]
    assert shown(messages, 2_000) == messages
    assert texts(shown(messages, 100)) == ["question", "", "A cat\n[image image/png]"]


def test_an_answer_in_place_of_a_missing_result_needs_room_too():
    messages = [HumanMessage("old"), calls("a"), HumanMessage("question")]
    assert texts(shown(messages, count_tokens(messages))) == ["question"]


def test_nothing_can_be_shown_of_results_alone():
    assert shown([result("a")], 100) == []
