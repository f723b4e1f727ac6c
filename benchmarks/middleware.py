"""What the middleware adds to a turn of an agent with n memories, without the time of a model."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any, Final

import ours
from command import Options, Result, bar, described, plain, run
from corpus import ASKER, queries
from langchain.agents import create_agent
from report import Row
from timing import WARM_UP, by_turns, quantile, scratch

from inference_core import MemoryMiddleware, MemoryStore
from inference_core.testing import ScriptedChatModel

TURNS: Final = 200
BAR_MS: Final = 3
P95_BAR_MS: Final = 4.5
LATE_BAR_MS: Final = 6
EXPECTED: Final = "recalled"


class Agent:
    """An agent that always answers the same, with memory on ``store``, whose index is there, or without any."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        if store:
            ours.index(store)
        middleware = [MemoryMiddleware()] if store else []
        model = ScriptedChatModel(turns=["answered"], record=False)
        self._agent: Any = create_agent(model, store=store, middleware=middleware)
        self._expected = EXPECTED if store else None
        self.unexpected = 0

    def turn(self, text: str) -> None:
        """One run of the agent."""
        result = self._agent.invoke({"messages": [("user", text)]}, context={"user_id": ASKER})
        self.unexpected += result.get("memory_status") != self._expected


def measured(options: Options) -> Result:
    """The differences of medians and of 95th percentiles, with memory and without."""
    with scratch() as folder, ExitStack() as opened:
        store = opened.enter_context(ours.filled(folder / "ours.db", options))
        late = opened.enter_context(ours.filled_late(folder / "late.db", options))
        agents = {"without": Agent(), "ours": Agent(store), "ours_late": Agent(late)}
        calls = {name: agent.turn for name, agent in agents.items()}
        taken = by_turns(calls, queries(TURNS + WARM_UP), "taking turns")
    medians = {name: quantile(times) for name, times in taken.items()}
    tails = {name: quantile(times, 0.95) for name, times in taken.items()}
    result: Result = {"n": options.n, "users": options.users, "without_ms": medians["without"]}
    for name in ("ours", "ours_late"):
        result[f"{name}_ms"] = medians[name] - medians["without"]
        result[f"{name}_p95_ms"] = tails[name] - tails["without"]
    return result | {"not_recalled": sum(agent.unexpected for agent in agents.values())}


def table(result: Result) -> list[Row]:
    """The report's rows."""
    missed = result["not_recalled"]
    return [
        plain("a turn without memory, median", result["without_ms"]),
        bar(f"memory adds to a turn {described(result)}, median", result["ours_ms"], BAR_MS),
        bar("memory adds to a turn, 95th percentile", result["ours_p95_ms"], P95_BAR_MS),
        bar("with late interaction, median", result["ours_late_ms"], LATE_BAR_MS),
        plain("with late interaction, 95th percentile", result["ours_late_p95_ms"]),
        ("turns that were answered without recall", str(missed), "0", missed == 0),
    ]


if __name__ == "__main__":
    sys.exit(run("middleware", measured, table, __doc__))
