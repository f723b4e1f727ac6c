"""What the tests of short-term memory share: histories with a marker word in every message, and what models refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langgraph.prebuilt.chat_agent_executor import (
    _validate_chat_history,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
)

from inference_core import AgentMemoryStoreService, MemoryStore, VectorMemory
from inference_core.effects import Operation
from inference_core.outbox.messages import MARKS
from inference_core.short_term.window import SUMMARY_MARK
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel, call_tool

USER = "ada"
_DIGITS = "bcdfghjklm"
_MARKER = re.compile(f"qx[{_DIGITS}]{{4,}}zq")


def marker(number: int) -> str:
    """A word that stands in no other text."""
    return "qx" + "".join(_DIGITS[int(digit)] for digit in f"{number:04}") + "zq"


def markers(messages: Iterable[BaseMessage]) -> set[str]:
    """The marker words of ``messages``, also those in the arguments of tool calls."""
    return {word for one in messages for word in _MARKER.findall(f"{one.content} {getattr(one, 'tool_calls', '')}")}


def markers_in(*texts: str) -> list[str]:
    """The marker words of ``texts``, as often as they stand there."""
    return [word for text in texts for word in _MARKER.findall(text)]


def earlier_summary(text: str, role: str = "user", **options: Any) -> AnyMessage:
    """What an earlier run has left in place of messages."""
    kind = SystemMessage if role == "system" else HumanMessage
    return kind(f"CONVERSATION SUMMARY: {text}", additional_kwargs={"lc_source": SUMMARY_MARK}, **options)


def calls(*names: str | None, **options: Any) -> AIMessage:
    """An assistant's message that calls a tool for each of the call ids ``names``."""
    return AIMessage("", tool_calls=[{"name": "find", "args": {}, "id": name} for name in names], **options)


def result(name: str, text: str = "found", **options: Any) -> ToolMessage:
    """What the tool answered to the call ``name``."""
    return ToolMessage(text, tool_call_id=name, name="find", **options)


def exchange(form: str, name: str) -> list[AnyMessage]:
    """A call with the id ``name`` and its result, in one of `FORMS`."""
    asked: Any = {"name": "find", "args": {}, "id": name}
    use = {"type": "tool_use", "id": name, "name": "find", "input": {}}
    told = HumanMessage([{"type": "tool_result", "tool_use_id": name, "content": "found"}])
    match form:
        case "tool message":
            return [calls(name), result(name)]
        case "tool_result of the user":
            return [AIMessage([use], tool_calls=[asked]), told]
        case "content alone":
            return [AIMessage([{"type": "text", "text": "Let me see"}, use]), result(name)]
        case "computer":
            call = {"type": "computer_call", "id": "cu_1", "call_id": name, "action": {"type": "click"}}
            picture = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
            kind = {"type": "computer_call_output"}
            return [AIMessage([call]), ToolMessage([picture], tool_call_id=name, additional_kwargs=kind)]
        case "responses":
            call = {"type": "function_call", "id": "fc_1", "call_id": name, "name": "find", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": name, "output": "found"}
            return [AIMessage([call], tool_calls=[asked]), HumanMessage([output])]
        case "bedrock":
            use = {"toolUse": {"toolUseId": name, "name": "find", "input": {}}}
            return [
                AIMessage([use]),
                HumanMessage([{"toolResult": {"toolUseId": name, "content": [{"text": "found"}]}}]),
            ]
        case "invalid":
            broken: Any = {"name": "find", "args": "{", "id": name, "error": "no JSON"}
            return [AIMessage("", invalid_tool_calls=[broken]), result(name, "no JSON", status="error")]
        case "approval":
            call = {"type": "mcp_approval_request", "id": name, "name": "find", "arguments": "{}"}
            approval = {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}
            return [AIMessage([call]), HumanMessage([approval])]
        case _:
            kwargs = {"function_call": {"name": "find", "arguments": "{}"}}
            return [AIMessage("", additional_kwargs=kwargs), FunctionMessage(name="find", content="found")]


FORMS = (
    "tool message", "tool_result of the user", "content alone", "computer", "responses", "bedrock", "invalid",
    "approval", "function",
)  # fmt: skip


def dialogue(turns: int, words: int = 20, first: int = 0) -> list[AnyMessage]:
    """Questions and answers, each with a marker word and an id of its own."""
    kinds: list[type[HumanMessage | AIMessage]] = [HumanMessage, AIMessage]
    numbers = range(first, first + 2 * turns)
    return [kinds[at % 2](f"{marker(at)} {'word ' * words}".strip(), id=f"m{at}") for at in numbers]


def check_valid(messages: Sequence[BaseMessage]) -> None:
    """Fails if a model would refuse ``messages``: a result directly follows its call, every call has one result."""
    _validate_chat_history(messages)
    assert len(convert_to_openai_messages(list(messages))) == len(messages)
    waiting: set[str | None] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in waiting
            waiting.remove(message.tool_call_id)
            continue
        assert not waiting
        if isinstance(message, AIMessage):
            waiting = {call["id"] for call in message.tool_calls}
            assert len(waiting) == len(message.tool_calls)
            assert all(waiting)
            assert not message.invalid_tool_calls
            in_content = [one["id"] for one in _blocks(message) if one.get("type") == "tool_use"]
            assert set(in_content) <= waiting
            assert len(in_content) == len(set(in_content))
    assert not waiting


def texts(messages: Iterable[BaseMessage]) -> list[str]:
    """The texts of ``messages``."""
    return [message.text for message in messages]


def stored_texts(store: MemoryStore, category: str | None = None, user: str = USER) -> list[str]:
    """What long-term memory holds of ``user``, the oldest first."""
    documents, _ = AgentMemoryStoreService(store, timeout=None).sync.list_memories(user, category=category, limit=None)
    return [document.content for document in reversed(documents)]


def mark_count(engine: StoreEngine, user: str = USER) -> int:
    """How many messages of ``user`` are marked as dealt with."""
    return engine.backend.count([(user, MARKS)])


def lost_words(words: Iterable[str], block: VectorMemory, session: str = "s1") -> set[str]:
    """Those of ``words`` that ``block`` does not give among the ten best memories for the word."""
    return {word for word in words if not any(word in one.content for one in block.get(session, word))}


def extracting(messages: Sequence[BaseMessage]) -> AIMessage:
    """The turn of an extractor that makes a fact of each marker word it sees."""
    facts = [{"content": f"Knows {word}", "topic": "word"} for word in markers_in(messages[-1].text)]
    return call_tool("ExtractedFacts", facts=facts)


def model_of(*turns: Any) -> ScriptedChatModel:
    """A chat model that gives ``turns``, then the last one again."""
    return ScriptedChatModel(turns=list(turns))


async def resumed(plan: Operation[Any], effect: Any) -> Any:
    """What is left of ``plan``, which waits for ``effect``."""
    while True:
        given = await effect
        try:
            effect = plan.send(given)
        except StopIteration as stop:
            return stop.value


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """What ``functions`` give that run at the same time; an error where one raised."""
    results: list[Any] = [None] * len(functions)
    start = threading.Barrier(len(functions))

    def work(at: int) -> None:
        start.wait()
        try:
            results[at] = functions[at]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[at] = error

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def numbered(messages: Iterable[AnyMessage]) -> list[AnyMessage]:
    """``messages`` with ids of their own."""
    return [message.model_copy(update={"id": f"m{at}"}) for at, message in zip(count(), messages, strict=False)]


def _blocks(message: BaseMessage) -> list[dict[str, Any]]:
    content: Any = message.content
    return [] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]
