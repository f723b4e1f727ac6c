"""A history that is shown as it is has nothing that `valid` would mend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from inference_core.short_term.window import Window, count_tokens, is_valid, valid

_IDS = st.sampled_from(["a", "b", "c"])


def _call(names: list[str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": name} for name in names])


_MESSAGES: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(HumanMessage, st.just("asked")),
    st.builds(_call, st.lists(_IDS, max_size=3)),
    st.builds(ToolMessage, st.just("found"), tool_call_id=_IDS),
)


@given(st.lists(_MESSAGES, max_size=12))
def test_only_histories_without_need_of_mending_are_valid(messages: list[AnyMessage]) -> None:
    mended = valid(Window(messages, count_tokens).units)

    assert is_valid(messages) == (mended == messages)
    assert is_valid(mended)
