"""A history that `valid` has mended needs no other mending."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from inference_core.short_term.window import Window, count_tokens

_IDS = st.sampled_from(["a", "b", "c"])


def _call(names: list[str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": name} for name in names])


_MESSAGES: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(HumanMessage, st.just("asked")),
    st.builds(_call, st.lists(_IDS, max_size=3)),
    st.builds(ToolMessage, st.just("found"), tool_call_id=_IDS),
)


@given(st.lists(_MESSAGES, max_size=12))
def test_a_mended_history_is_valid(messages: list[AnyMessage]) -> None:
    mended = Window(messages, count_tokens).valid
    assert Window(mended, count_tokens).valid == mended
    waiting: set[str | None] = set()
    for message in mended:
        assert isinstance(message, ToolMessage) == bool(waiting)
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        elif isinstance(message, AIMessage):
            waiting = {call["id"] for call in message.tool_calls}
    assert not waiting
