"""What the model is shown of a window."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from short_term_support import calls, check_valid, dialogue, result, texts

from inference_core.short_term.window import Window, count_tokens, view


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
