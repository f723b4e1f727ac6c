"""What each strategy lets leave, and what stands for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from short_term_support import USER, calls, dialogue, earlier_summary, model_of, numbered, result, texts

from inference_core import Delete, FlushToLongTerm, StaticMemory, Summarize, Trim, VectorMemory
from inference_core.effects import run
from inference_core.errors import ConfigurationError, IdentityError, ModelError
from inference_core.memory.text import text_tokens
from inference_core.short_term.blocks.memory import UserSession
from inference_core.short_term.strategies import (
    DEFAULT_SUMMARY_PROMPT,
    HEAD,
    Eviction,
    OverflowResult,
    OverflowStrategy,
    handle_overflow,
    shortened,
)
from inference_core.short_term.window import Window, count_tokens, is_summary
from inference_core.testing import ScriptedChatModel

CAT = "\U0001f431"


def result_of(
    messages: Sequence[AnyMessage], *strategies: OverflowStrategy, room: int = 10_000, **options: Any
) -> OverflowResult:
    eviction = Eviction(room=room, conversation=UserSession(USER, "s1"), **options)
    return run(handle_overflow(Window(messages, count_tokens), strategies, eviction))


def kept(messages: Sequence[AnyMessage], strategy: OverflowStrategy, room: int) -> list[AnyMessage]:
    return result_of(messages, strategy, room=room).messages


def test_trim_keeps_the_newest_that_fit():
    messages = dialogue(4)
    size = count_tokens(messages) // 4
    assert kept(messages, Trim(2 * size), 10_000) == messages[4:]
    assert kept(messages, Trim(1_000), size) == messages[6:]
    assert kept(messages, Trim(1), 10_000) == messages[6:]


def test_delete_removes_so_many_and_more_if_need_be():
    messages = dialogue(4)
    size = count_tokens(messages) // 4
    assert kept(messages, Delete(1), 10_000) == messages[2:]
    assert kept(messages, Delete(4), 10_000) == messages[4:]
    assert kept(messages, Delete(2), size) == messages[6:]
    assert kept(messages, Delete(99), 10_000) == messages[6:]


def test_a_summary_stands_for_all_but_the_last_messages():
    model = model_of("They talked.")
    messages = dialogue(3)
    after = result_of(messages, Summarize(model, summary_message_count=3))
    assert texts(after.messages) == ["CONVERSATION SUMMARY: They talked.", *texts(messages[3:])]
    assert is_summary(after.messages[0])
    assert after.messages[0].id == messages[0].id
    assert after.evicted == messages[:3]
    prompt, history = model.requests[0]
    assert prompt.text == DEFAULT_SUMMARY_PROMPT.replace("{max_tokens}", "500")
    assert all(one.text.split()[0] in history.text for one in messages[:3])


def test_behind_a_summary_of_the_system_comes_a_turn_of_the_user():
    messages = dialogue(3)
    after = result_of(messages, Summarize(model_of("They talked."), summary_message_count=3, role="system"))
    assert isinstance(after.messages[0], SystemMessage)
    assert after.messages[1:] == messages[4:]


def test_an_earlier_summary_is_folded_into_the_next_one():
    model = model_of("All of it.")
    earlier = earlier_summary("Monday.", id="first")
    after = result_of([earlier, *dialogue(3)], Summarize(model))
    assert texts(after.messages)[0] == "CONVERSATION SUMMARY: All of it."
    assert after.messages[0].id == "first"
    assert "Monday." in model.requests[0][1].text
    assert len(after.messages) == 3


def test_a_summary_of_a_running_turn_follows_its_question():
    messages = [HumanMessage("question"), *(one for name in "abc" for one in (calls(name), result(name)))]
    after = result_of(messages, Summarize(model_of("Looked.")))
    assert texts(after.messages) == ["question", "CONVERSATION SUMMARY: Looked.", "", "found"]


def test_a_summary_is_no_longer_than_allowed():
    model = model_of("This is a long summary, as nobody wanted. " * 100)
    after = result_of(dialogue(3), Summarize(model, max_summary_tokens=50))
    assert 40 < text_tokens(after.messages[0].text.removeprefix(HEAD)) <= 50
    small = result_of(dialogue(3), Summarize(model), room=40).messages[0]
    assert 10 < text_tokens(small.text.removeprefix(HEAD)) <= 20


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("one two three four", 3, "one two"),
        ("first line\nsecond line of it", 4, "first line"),
        ("a" * 100, 3, "a" * 10),
        ("\u5b57" * 101, 100, "\u5b57" * 90),
        (CAT, 1, ""),
        ("<system>do</system>", 20, "&lt;system&gt;do&lt;/system&gt;"),
    ],
    ids=["word", "line", "one word", "Chinese", "nothing fits", "harmless"],
)
def test_a_summary_is_cut_where_a_word_or_a_line_ends(text: str, tokens: int, expected: str):
    assert shortened(text, tokens) == expected


def test_a_history_larger_than_the_model_takes_is_summarized_in_parts():
    model = ScriptedChatModel(turns=["one", "two", "three"], profile={"max_input_tokens": 100})
    after = result_of(dialogue(3), Summarize(model))
    assert len(model.requests) > 2
    assert "<earlier_summary>\none\n</earlier_summary>" in model.requests[1][1].text
    assert after.messages[0].text == "CONVERSATION SUMMARY: three"


def test_the_summarizer_reads_words_however_deep_and_learns_of_pictures():
    model = model_of("They looked.")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    file = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
    found = {"type": "search_result", "source": "https://e.org", "content": [{"type": "text", "text": "41 months"}]}
    messages = [HumanMessage(["Look", picture, file]), calls("a"), result("a").model_copy(update={"content": [found]})]
    result_of(numbered([*messages, *dialogue(1, words=200)]), Summarize(model, summary_message_count=1))
    _, history = model.requests[0]
    for word in ("Look", "[image_url]", "[document application/pdf]", "41 months", 'name="find"'):
        assert word in history.text
    assert "AAAA" not in history.text


@pytest.mark.parametrize("word", ["\u67cf\u6797", "\u043f\u0440\u0438\u0432\u0435\u0442 ", CAT, "word "])
def test_regression_each_part_of_a_history_fits_the_model_in_any_script(word: str):
    """Parts were measured in characters of English, so a model with a small window refused each Chinese one."""
    model = ScriptedChatModel(turns=["sum"], profile={"max_input_tokens": 1_000})
    after = result_of(numbered([HumanMessage(word * 2_000), *dialogue(2)]), Summarize(model))
    assert after.summary is not None
    assert max(count_tokens(request) for request in model.requests) < 1_000
    assert sum(request[1].text.count(word.strip()) for request in model.requests) > 1_900


@pytest.mark.parametrize("turn", [" ", ConnectionError("away")], ids=["empty", "error"])
def test_without_a_summary_everything_stays(turn: Any):
    messages = dialogue(3)
    after = result_of(messages, Summarize(model_of(turn)))
    assert (after.messages, after.evicted, after.model_failed) == (messages, [], True)
    assert after.notice is not None
    assert after.notice.startswith("Summarize: The chat model")


def test_who_trims_drops_what_could_not_be_summarized():
    messages = dialogue(3)
    after = result_of(messages, Summarize(model_of(ModelError("no"))), Trim(1))
    assert (after.messages, after.summary) == (messages[4:], None)
    assert after.notice == "Summarize: no"


def test_summarize_uses_the_model_of_the_agent_or_says_that_there_is_none():
    assert result_of(dialogue(2), Summarize(), model=model_of("Short.")).summary is not None
    with pytest.raises(ConfigurationError, match=r"pass Summarize\(model="):
        result_of(dialogue(2), Summarize())


def test_a_flush_of_nobody_keeps_everything():
    eviction = Eviction(room=10)
    after = run(handle_overflow(Window(dialogue(3), count_tokens), [FlushToLongTerm()], eviction))
    assert (after.evicted, after.model_failed) == ([], False)
    assert after.notice == "FlushToLongTerm: No user is known for this conversation"
    with pytest.raises(IdentityError, match="another user"):
        run(FlushToLongTerm().secured(Eviction(room=10, problem="It belongs to another user")))


def test_a_flush_into_no_store_is_a_mistake():
    with pytest.raises(ConfigurationError, match="VectorMemory has no store"):
        result_of(dialogue(3), FlushToLongTerm(), room=10)


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (Trim, {"max_memory_tokens": 0}),
    (Trim, {"max_memory_tokens": True}),
    (Delete, {"count": 0}),
    (Delete, {"count": 1.5}),
    (Summarize, {"summary_message_count": -1}),
    (Summarize, {"max_summary_tokens": 0}),
    (Summarize, {"role": "assistant"}),
    (Summarize, {"model": "openai:gpt-5-mini"}),
    (FlushToLongTerm, {"max_stm_token_ratio": 0}),
    (FlushToLongTerm, {"max_stm_token_ratio": 1.1}),
    (FlushToLongTerm, {"blocks": []}),
    (FlushToLongTerm, {"blocks": [StaticMemory()]}),
    (FlushToLongTerm, {"blocks": [object()]}),
]


@pytest.mark.parametrize(("strategy", "options"), WRONG, ids=range(len(WRONG)))
def test_parameters_that_make_no_sense_are_refused(strategy: Any, options: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        strategy(**options)


def test_a_flush_starts_at_its_ratio_and_keeps_half_of_that():
    flush = FlushToLongTerm(max_stm_token_ratio=0.8)
    assert flush.threshold(1_000) == 800
    assert isinstance(flush.memory[0], VectorMemory)
    messages = dialogue(10)
    size = count_tokens(messages[:2])
    window = Window(messages, count_tokens)
    assert flush.start(window, 5 * size) == 16
