"""How much of each request a provider's prompt cache can reuse: fifty turns, ten writes, several placements of memory.

Cached is the common beginning of a request and the one before it, in tokens of the one before it: the tools' schemas,
which providers put first, the system prompt and the messages. Messages have the average length in LMSYS-Chat-1M (Zheng
et al., arXiv 2309.11998): 70 tokens of the user, 215 of the assistant. The agent has only the memory tools, and its own
system prompt is short: both make the shares lower than in most agents.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any, Final

from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from report import Row, publish

from inference_core import AgentMemoryStoreService, MemoryMiddleware, open_store
from inference_core.short_term.window import count_tokens, tool_tokens
from inference_core.testing import FrozenClock, ScriptedChatModel

TURNS: Final = 50
MEDIAN_BAR: Final = 90.0
EARLY_BAR: Final = 70.0
FIRST_EARLY: Final = 2
LAST_EARLY: Final = 10
USER: Final = "ada"
SYSTEM: Final = (
    "You are the assistant of a small sheep farm. Answer in the user's language, in a few sentences. Say what you do "
    "not know. Amounts are in kilograms, days as weekday and date. Before anything is ordered, repeat the order."
)
TOPICS: Final = ("the barn", "the north field", "the market in Skipton", "shearing", "lambing", "the vet", "feed")
KNOWN: Final[Sequence[tuple[str, str]]] = (
    ("instructions", "Always name the field when you speak of a flock"),
    ("instructions", "Never order feed on a Sunday"),
    ("preferences", "Prefers answers in short bullet points"),
    ("preferences", "Likes prices with VAT"),
    ("preferences", "Drinks tea, not coffee"),
    *(("facts", f"The flock at {place} counts {40 + 7 * at} ewes") for at, place in enumerate(TOPICS)),
    *(("context", f"Talked about {place} with the neighbour") for place in TOPICS),
    *(("workflow", f"Before {place}: check the fence, then the water, then the weather") for place in TOPICS),
)
WRITES: Final[dict[int, tuple[str, str]]] = {
    4: ("preferences", "Prefers to be called Ms Lovelace"),
    9: ("facts", "The red barn holds 300 bales"),
    13: ("facts", "The vet comes on the first Monday of the month"),
    18: ("instructions", "Ask before anything is sold"),
    22: ("context", "Was at the market in Skipton on Monday"),
    27: ("preferences", "Wants distances in miles"),
    31: ("facts", "Feed is bought from Harrison"),
    36: ("goals", "Sell forty lambs by October"),
    41: ("preferences", "Likes the weather told first"),
    46: ("facts", "The new ram is called Babbage"),
}
"""In front of which turn what is written."""
OURS: Final = "profile and last_user (the default)"
NAIVE: Final = "naive: one block at the end of the system prompt"
WAYS: Final[dict[str, dict[str, Any]]] = {
    OURS: {},
    "one block behind the last message": {"profile": False},
    "profile and system": {"placement": "system"},
    NAIVE: {"placement": "system", "profile": False},
}


def asked(turn: int) -> str:
    """What the user says in a turn."""
    topic = TOPICS[turn % len(TOPICS)]
    return (
        f"Turn {turn}: what do we have to think of for {topic} this week, and what did we say about it before? My "
        "brother is here until Friday and can help on two of the days, so tell me what takes two people, what can wait "
        "until next week, and whom I should call about it first."
    )


def answered(turn: int) -> str:
    """What the assistant says in a turn."""
    topic = TOPICS[turn % len(TOPICS)]
    return (
        f"For {topic} three things are open: the fence by the lane, the order of feed, and the count of the ewes. Last "
        "time you wanted to settle the first one yourself, and to have the other two written down.\n\n"
        "What takes two people: the fence, since one has to hold the posts while the other drives them in; plan half a "
        "day, better in the morning, and have the wire ready the evening before. Turning the ewes for the count goes "
        "faster with two as well, but one person and the dog can do it.\n\n"
        "What can wait until next week: the order of feed, as there is enough for ten days, if nothing changes about "
        "the weather. Write down how much is left on Sunday, then the order can go out on Monday.\n\n"
        f"Whom to call first: whoever lends you the post driver, because without it nothing begins. That is number "
        f"{turn} on the list. Shall I put the calls in order of the days on which your brother can help?"
    )


def requests(options: dict[str, Any]) -> list[list[BaseMessage]]:
    """The request of each turn."""
    model = ScriptedChatModel(turns=[answered(turn) for turn in range(1, TURNS + 1)])
    clock = FrozenClock(datetime(2026, 3, 2, 9, tzinfo=UTC))
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        memory = MemoryMiddleware(service, user_id=USER, recall_timeout=60, **options)
        agent: Any = create_agent(model, middleware=[memory], system_prompt=SYSTEM, checkpointer=InMemorySaver())
        for kind, content in KNOWN:
            _save(service, clock, kind, content)
        for turn in range(1, TURNS + 1):
            if turn in WRITES:
                _save(service, clock, *WRITES[turn])
            clock.advance(timedelta(minutes=3))
            agent.invoke({"messages": [("user", asked(turn))]}, {"configurable": {"thread_id": "1"}})
    return model.requests


def _save(service: AgentMemoryStoreService, clock: FrozenClock, kind: str, content: str) -> None:
    clock.advance(timedelta(seconds=30))
    service.sync.save_memory(USER, content, kind)


def cached_share(before: Sequence[BaseMessage], now: Sequence[BaseMessage], tools: int) -> float:
    """Percent of the tokens of ``before``, behind ``tools`` tokens of tools, with which ``now`` begins too."""
    common: list[BaseMessage] = []
    for old, new in zip(before, now, strict=False):
        if (old.type, old.content) == (new.type, new.content):
            common.append(old)
            continue
        if old.type == new.type:
            common.append(old.model_copy(update={"content": _common(old.text, new.text)}))
        break
    return 100 * (tools + count_tokens(common)) / (tools + count_tokens(before))


def _common(old: str, new: str) -> str:
    return old[: next((at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), len(new))]


def measured() -> dict[str, dict[str, list[float]]]:
    """By way of telling, the cached share of each turn from the second on, with the tools' schemas and without."""
    tools = tool_tokens(MemoryMiddleware().tools)
    found: dict[str, dict[str, list[float]]] = {}
    for name, options in WAYS.items():
        pairs = list(pairwise(requests(options)))
        found[name] = {
            "request": [cached_share(*pair, tools) for pair in pairs],
            "without_tools": [cached_share(*pair, 0) for pair in pairs],
        }
    return found


def table(found: dict[str, dict[str, list[float]]]) -> list[Row]:
    """The report's rows."""
    rows: list[Row] = []
    for name, shares in found.items():
        bars = (MEDIAN_BAR, EARLY_BAR) if name == OURS else (None, None)
        rows.append(_row(f"{name}: cached, median", median(shares["request"]), bars[0]))
        rows.append(_row(f"{name}: cached, least of turns 2-10", _least_early(shares["request"]), bars[1]))
    ours = found[OURS]["without_tools"]
    rows.append(_row(f"{OURS}, tools not counted: cached, median", median(ours)))
    rows.append(_row(f"{OURS}, tools not counted: cached, least of turns 2-10", _least_early(ours)))
    return rows


def _least_early(shares: Sequence[float]) -> float:
    return min(shares[FIRST_EARLY - 2 : LAST_EARLY - 1])


def _row(what: str, share: float, least: float | None = None) -> Row:
    return (
        what,
        f"{share:.1f} %",
        "" if least is None else f"≥ {least:.0f} %",
        None if least is None else share >= least,
    )


if __name__ == "__main__":
    shares = measured()
    sys.exit(0 if publish("prompt_cache", table(shares), {"shares": shares}) else 1)
