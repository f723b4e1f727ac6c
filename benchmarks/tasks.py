"""Whether an agent does small tasks better with memory: each needs what its user said in an earlier session.

Also, whether an agent with memory tools saves what it should: a scripted user says sixty things (`context/said.json`),
half of them worth keeping.

Twelve users, five tasks each (`context/tasks.json`): a rule, a preference or a fact, saved weeks before among others,
and a request in a new conversation, whose answer is checked by code. The model is `reader`, a small one on this machine
(``sh scripts/bench reader`` installs it), so the tasks are easy for those who know.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, Final

from answers import interval
from context.first import settle
from langchain.agents import create_agent
from langgraph.errors import GraphRecursionError
from reader import MODEL, reader
from report import Row, publish
from timing import watched

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, open_store
from inference_core.testing import FrozenClock

_TASKS: Final = Path(__file__).parent / "context" / "tasks.json"
_SAID: Final = _TASKS.with_name("said.json")
_SYSTEM: Final = "You are a helpful assistant. Answer with what was asked for and nothing else."
_WITH, _WITHOUT = "with memory", "without memory"


def passes(answer: str, check: Mapping[str, Any]) -> bool:
    """Whether an answer meets one check of a task."""
    lines = [line for line in answer.strip().splitlines() if line.strip()]
    ((kind, wanted),) = check.items()
    match kind:
        case "has":
            return re.search(wanted, answer.strip(), re.MULTILINE) is not None
        case "lacks":
            return re.search(wanted, answer) is None
        case "max_words":
            return len(answer.split()) <= wanted
        case "each_line":
            return all(re.search(wanted, line) for line in lines)
        case "lines":
            return len(lines) == wanted
        case _:
            raise ValueError(f"Unknown check {kind!r}")


def measured(model: Any, embeddings: str) -> dict[str, Any]:
    """Success by way and kind of memory, tokens and seconds of the requests, and the answers."""
    data = json.loads(_TASKS.read_text(encoding="utf-8"))
    found: dict[str, Any] = {
        name: {"passed": [], "kinds": [], "tokens": [], "seconds": []} for name in (_WITH, _WITHOUT)
    }
    answers: list[dict[str, Any]] = []
    for user in watched(data["users"], "users"):
        clock = FrozenClock()
        with closing(open_store("memory://", embeddings=embeddings)) as store:
            if (embedder := store.engine.embedder) is not None:
                embedder.warm()
                embedder.wait_ready()
            service = AgentMemoryStoreService(store, timeout=None, clock=clock)
            for task, other in zip(user["tasks"], _portions(data["filler"], len(user["tasks"])), strict=True):
                service.sync.save_memory(user["user_id"], task["memory"], task["memory_type"])
                for text in other:
                    service.sync.save_memory(user["user_id"], text, "facts")
                clock.advance(timedelta(days=3))
            settle(service)
            remembers = MemoryMiddleware(memory_service=service, include_tools=[], recall_timeout=30.0)
            agents = {
                _WITH: create_agent(
                    model, system_prompt=_SYSTEM, store=store, middleware=[remembers], context_schema=MemoryContext
                ),
                _WITHOUT: create_agent(model, system_prompt=_SYSTEM),
            }
            for task in user["tasks"]:
                for name, agent in agents.items():
                    asked: Any = {"messages": [("user", task["request"])]}
                    started = perf_counter()
                    message = agent.invoke(asked, context={"user_id": user["user_id"]})["messages"][-1]
                    one = found[name]
                    one["seconds"].append(perf_counter() - started)
                    one["tokens"].append(message.usage_metadata["input_tokens"])
                    one["passed"].append(all(passes(message.text, check) for check in task["checks"]))
                    one["kinds"].append(task["memory_type"])
                    answers.append(
                        {"request": task["request"], "way": name, "answer": message.text, "passed": one["passed"][-1]}
                    )
    return found | {"answers": answers}


def saved(model: Any) -> dict[str, Any]:
    """Of what the scripted user says, how much worth keeping is stored in the end, and how many memories are not.

    Each message is sent in a conversation of its own, so that the agent's memory is all that is left of it.
    """
    turns = json.loads(_SAID.read_text(encoding="utf-8"))["turns"]
    with closing(open_store("memory://", embeddings=None)) as store:
        agent = create_agent(model, store=store, middleware=[MemoryMiddleware()], context_schema=MemoryContext)
        failures = 0
        for turn in watched(turns, "messages"):
            try:
                said: Any = {"messages": [("user", turn["text"])]}
                agent.invoke(said, {"recursion_limit": 12}, context={"user_id": "bo"})
            except GraphRecursionError:  # the model calls tools without end
                failures += 1
        kept = [memory.content for memory in store.memory("bo").all()]
    wanted = [turn["keep"] for turn in turns if turn["keep"]]
    found = sum(any(re.search(rf"\b(?:{one})", text, re.IGNORECASE) for text in kept) for one in wanted)
    useless = sum(not any(re.search(rf"\b(?:{one})", text, re.IGNORECASE) for one in wanted) for text in kept)
    return {"wanted": len(wanted), "found": found, "useless": useless, "memories": kept, "failures": failures}


def _portions(texts: list[str], count: int) -> Iterator[list[str]]:
    """``texts`` in ``count`` portions."""
    return (texts[at::count] for at in range(count))


def rows_of(found: dict[str, Any], saves: dict[str, Any]) -> Iterator[Row]:
    """The report's rows: with memory, more tasks have to succeed, beyond chance."""
    for name in (_WITH, _WITHOUT):
        one = found[name]
        low, high = interval(one["passed"])
        text = f"{sum(one['passed'])} of {len(one['passed'])} ({100 * low:.0f} to {100 * high:.0f} %)"
        yield f"tasks done {name}", text, "", None
        for kind in dict.fromkeys(one["kinds"]):
            of_kind = [passed for passed, its in zip(one["passed"], one["kinds"], strict=True) if its == kind]
            yield f"tasks done {name}: {kind}", f"{sum(of_kind)} of {len(of_kind)}", "", None
        yield (
            f"tokens of a request, seconds, {name}",
            f"{fmean(one['tokens']):.0f}, {fmean(one['seconds']):.1f}",
            "",
            None,
        )
    gains = [int(a) - int(b) for a, b in zip(found[_WITH]["passed"], found[_WITHOUT]["passed"], strict=True)]
    low, high = interval(gains)
    text = f"{100 * fmean(gains):+.0f} points ({100 * low:+.0f} to {100 * high:+.0f})"
    yield "memory adds", text, "> 0, beyond chance", low > 0
    yield "worth keeping and saved by the agent's tools", f"{saves['found']} of {saves['wanted']}", "", None
    yield "memories saved that nobody would keep", f"{saves['useless']} of {len(saves['memories'])}", "", None
    yield "turns that ended in endless calls", f"{saves['failures']} of 60", "", None


def main() -> int:
    """Prints and writes the results; 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--embeddings", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    given: Any = parser.parse_args()
    with reader(given.threads) as model:
        found, saves = measured(model, given.embeddings), saved(model)
    details = {"model": MODEL, "answers": found.pop("answers"), "saves": saves}
    return 0 if publish("tasks", list(rows_of(found, saves)), details) else 1


if __name__ == "__main__":
    sys.exit(main())
