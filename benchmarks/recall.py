"""Hybrid recall among n memories: ours, LangGraph's stores, and the floors; without the time of a model.

With several users the question goes to one small user, whose store is also measured with nobody else in it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import baselines
import ours
from baselines import Search
from command import Options, Result, bar, described, plain, run
from corpus import ASKER, large_query, own_turns, queries, turns
from langgraph.store.base import BaseStore
from report import Row
from timing import WARM_UP, by_turns, milliseconds, quantile, scratch

from inference_core import AgentMemoryStoreService, MemoryStore

QUERIES: Final = 60
BARS_MS: Final = {1_000: 0.6}
FLOOR_BARS: Final = {10_000: 2.5, 100_000: 1.3}
QUICK_FLOOR_BARS: Final = {10_000: 4, 100_000: 4}
INMEMORY_BARS: Final = {10_000: 70, 100_000: 200}
"""By the number of memories, all of one user."""
LARGE_BAR_MS: Final = 100
SMALL_USER_BAR_MS: Final = 1.5
ALONE_BAR: Final = 1.5


def measured(options: Options) -> Result:
    """Medians in milliseconds, and how they compare."""
    asked = queries(QUERIES + WARM_UP)
    with scratch() as folder, ExitStack() as opened:
        searches = _ours(options, folder, opened) | _others(options, folder, opened)
        taken = by_turns(searches, asked, "asking")
        large_ms = milliseconds(searches["ours"], large_query())
    medians = {name: quantile(times) for name, times in taken.items()}
    mine, alone = medians["ours"], medians.get("alone")
    return {
        "n": options.n,
        **{f"{name}_ms": medians.get(name) for name in ("ours", "inmemory", "sqlite", "floor", "quick_floor")},
        "ratio_inmemory": medians["inmemory"] / mine,
        "ratio_floor": mine / medians["floor"],
        "ratio_quick_floor": mine / medians["quick_floor"],
        "ours_p95_ms": quantile(taken["ours"], 0.95),
        "ours_late_ms": medians["late"],
        "ours_service_ms": medians["service"],
        "ours_64kb_ms": large_ms,
        "users": options.users,
        "ours_alone_ms": alone,
        "ratio_alone": alone and mine / alone,
        "sqlite_reason": baselines.why_no_vectors(),
    }


def _ours(options: Options, folder: Path, opened: ExitStack) -> dict[str, Search]:
    """Our store through its LangGraph face, the service, with late interaction, and with the asking user alone."""
    store = opened.enter_context(ours.filled(folder / "ours.db", options))
    late = opened.enter_context(ours.filled_late(folder / "late.db", options))
    for one in (store, late):
        ours.index(one)
    found = {
        "ours": baselines.searching(store, ASKER),
        "service": _recalling(store),
        "late": baselines.searching(late, ASKER),
    }
    if options.users > 1:
        alone = opened.enter_context(ours.opened(folder / "alone.db"))
        own = own_turns(options.n, options.users)
        ours.fill(alone, own, len(own))
        found["alone"] = baselines.searching(alone, ASKER)
    return found


def _others(options: Options, folder: Path, opened: ExitStack) -> dict[str, Search]:
    stores: dict[str, BaseStore] = {"inmemory": baselines.in_memory()}
    if baselines.why_no_vectors() is None:
        stores["sqlite"] = opened.enter_context(baselines.sqlite_store(folder / "peer.db"))
    for store in stores.values():
        baselines.fill(store, turns(options.n, options.users), options.n)
    own = own_turns(options.n, options.users)
    found = {name: baselines.searching(store, ASKER) for name, store in stores.items()}
    return found | {"floor": baselines.Floor(own).search, "quick_floor": baselines.QuickFloor(own).search}


def _recalling(store: MemoryStore) -> Search:
    service = AgentMemoryStoreService(store, timeout=None)
    return partial(service.sync.recall_memories, ASKER, k=baselines.LIMIT)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    where, several = described(result), result["users"] > 1
    return [
        _of_size(f"ours {where}", result, "ours_ms", {result["n"]: SMALL_USER_BAR_MS} if several else BARS_MS, "ms"),
        plain("ours, 95th percentile", result["ours_p95_ms"]),
        plain("ours, through the service", result["ours_service_ms"]),
        plain("ours, with late interaction", result["ours_late_ms"]),
        plain("InMemoryStore", result["inmemory_ms"]),
        plain("SqliteStore", result["sqlite_ms"], missing=f"none: {result['sqlite_reason']}"),
        plain("floor: numpy product + FTS5", result["floor_ms"]),
        plain("quick floor: numpy product + our BM25", result["quick_floor_ms"]),
        *ratios(result),
        *([bar("ours over the same user alone", result["ratio_alone"], ALONE_BAR, "")] if several else []),
        bar("one query of 64 KB", result["ours_64kb_ms"], LARGE_BAR_MS),
    ]


def ratios(result: Result) -> list[Row]:
    """How ours compares, with the bars of its size."""
    where, is_shared = described(result), result["users"] > 1
    return [
        _of_size(f"InMemoryStore over ours {where}", result, "ratio_inmemory", {} if is_shared else INMEMORY_BARS),
        _of_size(f"ours over the floor {where}", result, "ratio_floor", {} if is_shared else FLOOR_BARS),
        _of_size(
            f"ours over the quick floor {where}", result, "ratio_quick_floor", {} if is_shared else QUICK_FLOOR_BARS
        ),
    ]


def _of_size(what: str, result: Result, name: str, bars: Mapping[int, float], unit: str = "") -> Row:
    if (limit := bars.get(result["n"])) is None:
        return plain(what, result[name], unit)
    return bar(what, result[name], limit, unit, least=bars is INMEMORY_BARS)


if __name__ == "__main__":
    sys.exit(run("recall", measured, table, __doc__))
