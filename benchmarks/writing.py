"""One durable write after the other among n memories: ours, LangGraph's stores, and a bare commit of the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

import baselines
import ours
from command import Options, Result, described, plain
from corpus import Turn, turns
from hashing import HashingEmbeddings
from langgraph.store.base import BaseStore
from report import Row
from timing import by_turns, quantile, scratch

from inference_core import AgentMemoryStoreService
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.services.operations.scope import put_of

WRITES: Final = 200
PORTION: Final = 20
Write = Callable[[Turn], object]
Verb = Callable[[SyncMemoryService, Turn], object]


def measured(options: Options, verb: Verb, arguments: Sequence[Turn]) -> Result:
    """Medians and 95th percentiles in milliseconds of ``verb``, and how they compare.

    "plain" is a store without a model, against a commit without a vector.
    """
    with scratch() as folder, ExitStack() as opened:
        writes = _ours(options, folder, opened, verb) | _others(options, folder, opened)
        taken = by_turns(writes, arguments, "writing", portion=PORTION)
    medians = {f"{name}_ms": quantile(times) for name, times in taken.items()}
    tails = {f"{name}_p95_ms": quantile(times, 0.95) for name, times in taken.items()}
    mine = medians["ours_ms"]
    return {
        "n": options.n,
        "users": options.users,
        **medians,
        **tails,
        "ratio_inmemory": medians["inmemory_ms"] / mine,
        "ratio_sqlite": medians["sqlite_ms"] / mine,
        "ratio_floor": mine / medians["floor_ms"],
        "ratio_floor_plain": medians["plain_ms"] / medians["floor_plain_ms"],
        "sqlite_reason": baselines.why_no_vectors(),
    }


def _ours(options: Options, folder: Path, opened: ExitStack, verb: Verb) -> dict[str, Write]:
    """Our service with the trivial embedding, and without any."""
    found: dict[str, Write] = {}
    for name, embeddings in (("ours", HashingEmbeddings()), ("plain", None)):
        store = opened.enter_context(ours.filled(folder / f"{name}.db", options, embeddings))
        found[name] = partial(verb, AgentMemoryStoreService(store).sync)
    return found


def _others(options: Options, folder: Path, opened: ExitStack) -> dict[str, Write]:
    sqlite = opened.enter_context(baselines.sqlite_store(folder / "peer.db"))
    stores: dict[str, BaseStore] = {"inmemory": baselines.in_memory(), "sqlite": sqlite}
    for store in stores.values():
        baselines.fill(store, turns(options.n, options.users), options.n)
    vector = ours.stored_vector(folder / "ours.db")
    floors = {"floor": vector, "floor_plain": None}
    found: dict[str, Write] = {name: partial(_put, store) for name, store in stores.items()}
    for name, blob in floors.items():
        commits = opened.enter_context(closing(baselines.BareCommits(folder / f"{name}.db")))
        found[name] = partial(_commit, commits, blob)
    return found


def _put(store: BaseStore, turn: Turn) -> None:
    store.batch([baselines.put_op(turn)])


def _commit(commits: baselines.BareCommits, vector: bytes | None, turn: Turn) -> None:
    record = turn.record()
    commits.save(record.id, put_of(record).value, vector)


def table(verb: str, result: Result) -> list[Row]:
    """The report's rows."""
    without = f"without vectors: {result['sqlite_reason']}" if result["sqlite_reason"] else "with vectors"
    named = {
        f"ours, {verb} {described(result)}": "ours",
        "bare commit of the same bytes": "floor",
        "ours, without a model": "plain",
        "bare commit of the same bytes without the vector": "floor_plain",
        "InMemoryStore (not durable)": "inmemory",
        f"SqliteStore ({without})": "sqlite",
    }
    ratios = {"ours over the bare commit": "ratio_floor", "the same without a model": "ratio_floor_plain"}
    return [
        *(plain(what, _both(result, name)) for what, name in named.items()),
        *(plain(what, result[name], "") for what, name in ratios.items()),
    ]


def _both(result: Result, name: str) -> str:
    return f"{result[f'{name}_ms']:.3f} ms, 95 %: {result[f'{name}_p95_ms']:.3f} ms"
