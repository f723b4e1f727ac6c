"""What short-term memory adds to a turn of an agent, for conversations that fit the limit and for longer ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import histories
from command import Result, bar, plain
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from report import Row
from timing import WARM_UP, by_turns, quantile, seconds, settle

from inference_core import MemoryStore, ShortTermMemoryMiddleware, open_store
from inference_core.embeddings.embedder import Passage, embed_documents_now
from inference_core.short_term.window import count_tokens
from inference_core.testing import ScriptedChatModel

WINDOWS: Final = (50, 500)
TURNS: Final = 300
ADDED_BAR_MS: Final = 1
FLUSHED: Final = 50
_STAYING: Final = 12
_FLUSHES: Final = 7
_ROOMY: Final = 10_000_000
_USER: Final = "ada"


class Nothing(AgentMiddleware[Any, Any, Any]):
    """Has LangGraph take one more step, in which nothing is done."""

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002
        """Nothing."""
        return {}


class Agent:
    """An agent whose thread has ``messages``, from which each turn starts anew."""

    def __init__(self, messages: Sequence[AnyMessage], middleware: Sequence[Any], store: MemoryStore) -> None:
        self._saver = InMemorySaver()
        model = ScriptedChatModel(turns=["answered"], record=False)
        self._agent: Any = create_agent(model, middleware=middleware, checkpointer=self._saver, store=store)
        config = {"configurable": {"thread_id": "thread"}}
        self._start: Any = self._agent.update_state(config, {"messages": list(messages)})
        self._kept = set(self._saver.blobs)

    def turn(self, text: str) -> Any:
        """One run of the agent, which the next one knows nothing of."""
        for key in self._saver.blobs.keys() - self._kept:
            del self._saver.blobs[key]
        return self._agent.invoke({"messages": [HumanMessage(text)]}, self._start, context={"user_id": _USER})


def messages(count: int) -> list[AnyMessage]:
    """The first ``count`` messages of a made-up conversation, or a few more up to the end of an exchange."""
    (history,) = histories.synthetic((count,))
    found: list[AnyMessage] = []
    for exchange in history.exchanges:
        found.append(exchange.asked)
        for answer in exchange.answers:
            found.append(answer)
            names = [str(call["id"]) for call in answer.tool_calls]
            found += [ToolMessage(exchange.results[name], tool_call_id=name) for name in names]
    return found


def measured(folder: Path) -> Result:
    """Turns without overflow, and turns with one."""
    with open_store(f"sqlite:///{folder}/times.db") as store:
        fitting = [_fitting(count, store) for count in WINDOWS]
        return {"fitting": fitting, "flush": _flushing(store)}


def _fitting(count: int, store: MemoryStore) -> Result:
    """What a turn takes that fits, without middleware, with ours and with LangChain's."""
    said = messages(count)
    theirs = SummarizationMiddleware(ScriptedChatModel(turns=["summary"]), trigger=("tokens", _ROOMY))
    made: dict[str, list[Any]] = {
        "without": [],
        "step": [Nothing()],
        "ours": [ShortTermMemoryMiddleware(max_tokens=_ROOMY)],
        "langchain": [theirs],
    }
    agents = {name: Agent(said, middleware, store) for name, middleware in made.items()}
    calls: dict[str, Callable[[str], object]] = {name: agent.turn for name, agent in agents.items()}
    texts = [f"And what about number {at}?" for at in range(TURNS + WARM_UP)]
    taken = by_turns(calls, texts, f"turns with {count} messages", portion=1)
    medians = {name: quantile(times) for name, times in taken.items()}
    added = {f"{name}_added_ms": medians[name] - medians["without"] for name in ("step", "ours", "langchain")}
    return {"messages": len(said), "tokens": count_tokens(said), "without_ms": medians["without"], **added}


def _flushing(store: MemoryStore) -> Result:
    """What a turn takes in which about fifty messages leave, and what embedding them takes, which comes later."""
    taken: list[float] = []
    waiting: list[int] = []
    leaving = messages(FLUSHED)
    for at in range(_FLUSHES + WARM_UP):
        said = [one.model_copy(update={"id": f"{at}-{number}"}) for number, one in enumerate(messages(FLUSHED + 12))]
        room = 4 * count_tokens(said[-_STAYING:])
        agent = Agent(said, [ShortTermMemoryMiddleware(max_tokens=room)], store)
        settle()
        started = time.perf_counter()
        left = agent.turn("And now?")["messages"]
        taken.append((time.perf_counter() - started) * 1000)
        waiting.append(pending(store))
        embed(store)
        leaving = said[: len(said) + 2 - len(left)]
    return {
        "flushed": len(leaving),
        "turn_ms": quantile(taken[WARM_UP:]),
        "waiting": quantile(waiting[WARM_UP:]),
        "embedding_ms": _embedding_ms(store, leaving),
    }


def _embedding_ms(store: MemoryStore, leaving: Sequence[AnyMessage]) -> float | None:
    """What embedding the texts of ``leaving`` takes; None if there is no model."""
    embedder = store.engine.embedder
    if embedder is None:
        return None
    passages = [Passage(str(message.text)) for message in leaving]
    embedding = partial(embed_documents_now, embedder, passages, with_tokens=True)
    return quantile([seconds(embedding) * 1000 for _ in range(3)])


def pending(store: MemoryStore) -> int:
    """How many texts have no vector yet."""
    embedder = store.engine.embedder
    return len(store.engine.backend.pending(embedder.fingerprint, _ROOMY)) if embedder else 0


def embed(store: MemoryStore) -> None:
    """Waits until all texts have their vectors, if there is a model."""
    while pending(store):
        time.sleep(0.05)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    rows: list[Row] = []
    for one in result.get("fitting", []):
        where = f"{one['messages']} messages of {one['tokens']:,} tokens"
        rows.append(plain(f"a turn with {where}, without middleware, median", one["without_ms"]))
        rows.append(bar(f"ours adds to a turn without overflow, {where}", one["ours_added_ms"], ADDED_BAR_MS))
        rows.append(plain(f"of that an empty step of LangGraph, {where}", one["step_added_ms"]))
        rows.append(plain(f"LangChain's adds to a turn without overflow, {where}", one["langchain_added_ms"]))
    if flush := result.get("flush"):
        what = f"a turn in which {flush['flushed']} messages go to long-term memory"
        rows.append(plain(f"{what}, median", flush["turn_ms"]))
        rows.append(plain("embedding these, which is done after the turn", flush["embedding_ms"]))
        rows.append(plain("texts without a vector when the turn ends", flush["waiting"], ""))
    return rows
