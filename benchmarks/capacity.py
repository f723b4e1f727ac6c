"""Plans 100 million memories: sizes measured in a store of 20,000, and a simulation of users, databases and workers.

Measured, on SQLite and PostgreSQL: bytes on disk and in a worker's index for each memory with words, a vector and token
vectors, the processor's time of a recall, and recall of one user with 200,000 memories. Simulated: users who own
memories and talk by power laws, spread over databases by a hash of their id, and workers that keep the indexes of the
users they served last.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import closing
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import ours
from command import Options, Result, plain, run
from corpus import queries, turns, user_name
from hashing import HashingEmbeddings, HashingTokenEmbeddings
from report import Row
from scale import Files, Schemas, load, prepared, recalls
from timing import quantile, scratch

from inference_core import AgentMemoryStoreService, open_store
from inference_core.stores.backend import Put

N: Final = 20_000
OWNED: Final = 100
"""Memories of a user in the measured store, and on average in the plan."""
LARGE: Final = 200_000
"""Memories of one user."""
PLANNED: Final = 100_000_000
DATABASES: Final = (4, 16, 64)
INDEX_MB: Final = (512, 4_096)
WORKERS: Final = 16
SIMULATED: Final = 1_000_000
TURNS: Final = 400_000
_EXPONENT: Final = 0.6
_MODELS: Final[dict[str, Any]] = {
    "words": None,
    "words and vectors": HashingEmbeddings(),
    "words, vectors and token vectors": HashingTokenEmbeddings(),
}
_GB: Final = 1e9
_MB: Final = 1e6


def sizes(place: Any, model: Any) -> dict[str, float]:
    """Bytes of a memory on disk and in an index, and milliseconds of the processor for a recall."""
    url = place.url("planned")
    with open_store(url, embeddings=model, late_interaction=isinstance(model, HashingTokenEmbeddings)) as store:
        ours.fill(store, turns(N, N // OWNED), N)
        store.wait_ready(ours.PATIENCE_S)
    asked = queries(N // OWNED)
    with open_store(url, embeddings=model, late_interaction=isinstance(model, HashingTokenEmbeddings)) as store:
        service = AgentMemoryStoreService(store, timeout=None).sync
        for number, text in enumerate(asked):
            service.recall_memories(user_name(number), text, 10)
        indexed = store.engine.index_bytes
        began = time.process_time()
        for number, text in enumerate(asked):
            service.recall_memories(user_name(number), text, 10)
        took = time.process_time() - began
    disk = place.disk_bytes("planned")
    return {"disk": disk / N, "index": indexed / N, "recall_ms": took * 1000 / len(asked)}


def large(place: Any, pool: Sequence[Put]) -> dict[str, float]:
    """Milliseconds of the first recalls of a user with many memories, and of later ones, which use the index."""
    load(place.url("large"), pool, [LARGE])
    with open_store(place.url("large"), embeddings=HashingEmbeddings()) as store:
        first = recalls(store, [user_name(0)])[0]
        ours.index(store)
        warm = recalls(store, [user_name(0)], 30)
        return {"first_ms": first, "p50_ms": quantile(warm), "p95_ms": quantile(warm, 0.95)}


def shares(databases: int) -> float:
    """How much larger the largest of so many databases is than the average, with users spread by a hash of their id."""
    weights = np.arange(1, SIMULATED + 1) ** -_EXPONENT
    marks = [blake2b(b"user%d" % number, digest_size=8).digest() for number in range(SIMULATED)]
    chosen = np.frombuffer(b"".join(marks), np.uint64) % databases
    held = np.bincount(chosen.astype(np.int64), weights, databases)
    return float(held.max() / held.mean())


def found_warm(index_bytes: float, room_mb: int, *, sticky: bool) -> float:
    """The share of turns whose user's index a worker has; each keeps what it used last in so many megabytes.

    Users talk in sessions of ten turns, and some far more often than others. ``sticky``: a user always comes to the
    same worker.
    """
    chance = np.random.default_rng(7)
    rank = np.arange(1, SIMULATED + 1) ** -_EXPONENT
    users = chance.choice(SIMULATED, TURNS // 10, p=rank / rank.sum())
    said = np.repeat(users, 10)
    # So many users talk at once that a session's turns are far apart.
    order = np.argsort(np.repeat(np.arange(len(users)), 10) + chance.uniform(0, 2_000, len(said)))
    room = int(room_mb * _MB / (index_bytes * OWNED))
    kept: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(WORKERS)]
    warm = 0
    for user, drawn in zip(said[order].tolist(), chance.integers(0, WORKERS, len(said)).tolist(), strict=True):
        cache = kept[user % WORKERS if sticky else drawn]
        if user in cache:
            warm += 1
            cache.move_to_end(user)
            continue
        cache[user] = None
        if len(cache) > room:
            cache.popitem(last=False)
    return warm / len(said)


def measured(options: Options) -> Result:
    """Sizes and times as measured, and what the simulations found."""
    found: Result = {"n": N, "sizes": {}, "planned": options.n}
    for kind, make in (("sqlite", Files), ("postgresql", Schemas)):
        for name, model in _MODELS.items():
            with scratch() as folder, closing(make(folder) if make is Files else Schemas()) as place:
                found["sizes"][f"{kind}, {name}"] = sizes(place, model)
    pool = prepared()
    found["large"] = {}
    for kind, make in (("sqlite", Files), ("postgresql", Schemas)):
        with scratch() as folder, closing(make(folder) if make is Files else Schemas()) as place:
            found["large"][kind] = large(place, pool)
    found["largest"] = {databases: shares(databases) for databases in DATABASES}
    index = found["sizes"]["postgresql, words and vectors"]["index"]
    found["warm"] = {
        f"{room} MB, {'sticky' if sticky else 'any worker'}": found_warm(index, room, sticky=sticky)
        for room in INDEX_MB
        for sticky in (False, True)
    }
    return found


def table(found: Result) -> list[Row]:
    """The report's rows."""
    rows: list[Row] = []
    planned = found["planned"]
    for name, one in found["sizes"].items():
        rows += [
            plain(f"{name}: bytes of a memory on disk", f"{one['disk']:,.0f}"),
            plain(f"{name}: {planned:,} memories on disk", f"{one['disk'] * planned / _GB:,.0f} GB"),
            plain(f"{name}: bytes of a memory in a worker's index", f"{one['index']:,.0f}"),
            plain(f"{name}: processor's time of a recall among {OWNED}", one["recall_ms"]),
        ]
    for kind, one in found["large"].items():
        rows += [
            plain(f"{kind}: first recall of a user with {LARGE:,}", one["first_ms"]),
            plain(f"{kind}: recall of a user with {LARGE:,}, p50", one["p50_ms"]),
            plain(f"{kind}: recall of a user with {LARGE:,}, p95", one["p95_ms"]),
        ]
    for databases, more in found["largest"].items():
        rows.append(plain(f"the largest of {databases} databases, by a hash of the user", f"{more:.3f} of the average"))
    for name, share in found["warm"].items():
        rows.append(plain(f"{WORKERS} workers with {name}: turns whose index is there", f"{share:.0%}"))
    return rows


if __name__ == "__main__":
    sys.exit(run("capacity", measured, table, __doc__, PLANNED))
