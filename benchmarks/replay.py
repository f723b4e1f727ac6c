"""Replays a conversation through a real agent, message by message, with the same summarizer for every system."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import unescape
from typing import Any, Final

from histories import TOOL, Exchange, History
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt.chat_agent_executor import (
    _validate_chat_history,  # pyright: ignore[reportPrivateUsage] - what a model refuses
)
from langgraph.store.base import BaseStore

from inference_core.short_term.window import count_tokens, text_tokens
from inference_core.testing import ScriptedChatModel

SUMMARY_TOKENS: Final = 500
_ASKED_FOR: Final = re.compile(r"at most (\d+) tokens")
_MESSAGE: Final = re.compile(r'<message type="\w+">\n?(.*?)</message>', re.DOTALL)
_CONTENT: Final = re.compile(r"<content>(.*?)</content>", re.DOTALL)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")
_GOODBYE: Final = Exchange(HumanMessage("That is all for today.", id="goodbye"), [AIMessage("You are welcome.")])


class SummarizerDown(Exception):
    """What the summarizer raises when it fails."""


class Summarizer:
    """Answers with the first sentence of each message, in their order, until its limit; an earlier summary is one.

    The limit is what it is asked for, else 500 tokens. ``fails`` says of each call, counted from 1, whether it raises.
    """

    def __init__(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.model = ScriptedChatModel(turns=[self._answer], record=False)
        self.calls = self.failed = self.tokens = 0
        self.read: list[str] = []
        self._fails = fails

    def _answer(self, messages: list[BaseMessage]) -> str:
        text = "\n".join(message.text for message in messages)
        self.calls += 1
        self.tokens += text_tokens(text)
        if self._fails(self.calls):
            self.failed += 1
            raise SummarizerDown
        told = [unescape(one) for one in _MESSAGE.findall(text)]
        self.read += told
        asked = _ASKED_FOR.search(text)
        return _first_sentences(told, int(asked[1]) if asked else SUMMARY_TOKENS)


def _first_sentences(told: Sequence[str], limit: int) -> str:
    summary = ""
    for message in told:
        content = _CONTENT.search(message)
        sentence = _SENTENCE_END.split((content[1] if content else message).strip(), maxsplit=1)[0]
        longer = f"{summary}\n{sentence}".strip()
        if text_tokens(longer) > limit:
            break
        summary = longer
    return summary


class Replay:
    """An agent with ``middleware`` in which ``history`` happens again; whoever speaks in it is the user and a script.

    ``shown`` are the messages that the model was given last, ``said`` all texts that were really said: what an aborted
    run would have answered was not.
    """

    def __init__(self, history: History, middleware: Sequence[Any], store: BaseStore | None = None) -> None:
        model = ScriptedChatModel(turns=[self._answer], record=False)
        tool = StructuredTool.from_function(self._result, name=TOOL, description="Finds files.")
        self._agent: Any = create_agent(
            model, tools=[tool], middleware=middleware, checkpointer=InMemorySaver(), store=store
        )
        self._history = history
        self._config = {"configurable": {"thread_id": history.name}}
        self._answers: list[AIMessage] = []
        self._results: list[str] = []
        self.shown: list[BaseMessage] = []
        self.said: list[str] = []
        self.aborted = self.invalid = self.largest = 0

    def run(self, before: Callable[[int], None] = lambda _: None) -> None:
        """The whole conversation and a goodbye, which shows what the window is then; ``before`` sees each turn."""
        for at, exchange in enumerate([*self._history.exchanges, _GOODBYE]):
            before(at)
            self._turn(exchange)

    def state(self) -> list[BaseMessage]:
        """The messages that the checkpointer has."""
        return self._agent.get_state(self._config).values["messages"]

    def _turn(self, exchange: Exchange) -> None:
        self._answers = list(exchange.answers)
        self._results = list(exchange.results.values())
        self.said.append(exchange.asked.text)
        context = {"user_id": self._history.name}
        try:
            self._agent.invoke({"messages": [exchange.asked]}, self._config, context=context)
        except SummarizerDown:
            self.aborted += 1

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.shown = messages
        self.largest = max(self.largest, count_tokens(messages))
        self.invalid += not is_valid(messages)
        answer = self._answers.pop(0)
        self.said.append(answer.text)
        return answer

    def _result(self, query: str) -> str:
        """Finds files."""
        del query
        result = self._results.pop(0)
        self.said.append(result)
        return result


def is_valid(messages: Sequence[BaseMessage]) -> bool:
    """Whether models accept ``messages``: each call has its result, and each result comes after its call."""
    try:
        _validate_chat_history(messages)
    except ValueError:
        return False
    called: set[str | None] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            called |= {call["id"] for call in message.tool_calls}
        if isinstance(message, ToolMessage) and message.tool_call_id not in called:
            return False
    return True


def plain_text(texts: Sequence[str]) -> str:
    """``texts`` as one, without the differences of white space."""
    return " ".join(" ".join(texts).split())
