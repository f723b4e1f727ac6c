"""Many users in one store, on SQLite and PostgreSQL: bulk load, saves and recall of small, median and large users.

Users own memories by a power law: the largest about one in a hundred, the smallest some dozens. Texts are drawn from
20,000, which are analysed and given a vector beforehand; what is measured is the database and the index. "Cold" is a
user's first recall, which reads the memories and builds the index, "warm" the next ones. The same small user is asked
in a store of his own. PostgreSQL is the server of a wheel, with fsync, on the same machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from command import Result, bar, plain
from corpus import queries, turns, user_name
from hashing import HashingEmbeddings
from ours import disk_bytes, portioned
from report import Row, publish
from timing import quantile, scratch, seconds, watched

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.embeddings.embedder import Passage, embed_documents_now
from inference_core.embeddings.factory import make_embedder
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.scope import put_of
from inference_core.stores.backend import Put
from inference_core.stores.factory import open_backend

sys.path.append(str(Path(__file__).parents[1] / "tests"))

KINDS: Final = ("sqlite", "postgresql")
EXPONENT: Final = 0.6
POOL: Final = 20_000
PORTION: Final = 2_000
ASKED: Final = 30
WORKER_S: Final = 10.0
SAVES_ONE_IN: Final = 10
SMALL_BAR_MS: Final = 50
ALONE_BAR: Final = 1.5
_SPACES: Final = MemoryNamespaceBuilder()


def owned(n: int, users: int) -> list[int]:
    """How many memories each user owns, the largest first; about ``n`` in all."""
    weights = np.arange(1, users + 1) ** -EXPONENT
    return np.maximum(1, np.round(n * weights / weights.sum())).astype(int).tolist()


def prepared() -> list[Put]:
    """Memories with terms and vectors, of nobody yet."""
    embedder = make_embedder(HashingEmbeddings())
    assert embedder is not None
    puts: list[Put] = []
    for portion in portioned(turns(POOL), 500):
        made = [put_of(turn.record(), expected=0) for turn in portion]
        vectors = embed_documents_now(embedder, [Passage(turn.text) for turn in portion], with_tokens=False)
        puts += [
            replace(put, document=put.document._replace(model=embedder.fingerprint, vector=vector))
            for put, (vector, _) in zip(made, vectors, strict=True)
            if put.document
        ]
    return puts


def rows(pool: Sequence[Put], sizes: Sequence[int]) -> Iterator[Put]:
    """The memories of all users; who owns many takes his from all over the pool."""
    chosen = random.Random(1)
    for number, size in enumerate(sizes):
        namespace = _SPACES.namespace_for(user_name(number), MemoryCategory.SEMANTIC)
        start = chosen.randrange(len(pool))
        for at in range(size):
            yield replace(pool[(start + at) % len(pool)], namespace=namespace, key=f"m{at}")


def load(url: str, pool: Sequence[Put], sizes: Sequence[int]) -> float:
    """Fills the store at ``url``; memories a second."""
    with closing(open_backend(url)) as backend:
        portions = watched(portioned(rows(pool, sizes), PORTION), "loading", -(-sum(sizes) // PORTION))
        took = seconds(lambda: [backend.apply([portion]) for portion in portions])
    return sum(sizes) / took


def recalls(store: MemoryStore, users: Sequence[str], rounds: int = 1) -> list[float]:
    """Milliseconds of a recall for each of ``users``, as often as ``rounds``."""
    service = AgentMemoryStoreService(store, timeout=None).sync
    asked = queries(len(users) * rounds)
    return [
        seconds(partial(service.recall_memories, user, text, 10)) * 1000
        for user, text in zip([*users] * rounds, asked, strict=True)
    ]


def work(url: str, users: int, seed: int) -> list[tuple[bool, float]]:
    """What one of several workers does for a while: nine recalls, then a save; whether each was a save, and its ms."""
    chosen = random.Random(seed)
    asked = queries(200)
    done: list[tuple[bool, float]] = []
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store, timeout=None).sync
        service.recall_memories(user_name(users - 1), asked[0])
        end = time.monotonic() + WORKER_S
        while time.monotonic() < end:
            user, text, saves = user_name(chosen.randrange(users)), chosen.choice(asked), len(done) % SAVES_ONE_IN == 0
            call = partial(service.save_memory, user, text) if saves else partial(service.recall_memories, user, text)
            done.append((saves, seconds(call) * 1000))
    return done


def together(url: str, users: int) -> Result:
    """Two worker processes on one store."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        done = [one for found in pool.map(work, [url] * 2, [users] * 2, [1, 2]) for one in found]
    found = {"operations_a_second": round(len(done) / WORKER_S, 1)}
    for name, saves in (("recall", False), ("save", True)):
        taken = [ms for is_save, ms in done if is_save is saves]
        found |= {f"{name}_p50_ms": quantile(taken), f"{name}_p95_ms": quantile(taken, 0.95)}
    return found


def classes(sizes: Sequence[int]) -> dict[str, list[str]]:
    """Users to ask for: the smallest, those in the middle, and the largest."""
    last, middle = len(sizes), len(sizes) // 2
    return {
        "small": [user_name(at) for at in range(last - ASKED, last)],
        "median": [user_name(at) for at in range(middle - ASKED // 2, middle + ASKED // 2)],
        "largest": [user_name(0)],
    }


def of_store(url: str, sizes: Sequence[int]) -> Result:
    """Recall and saves in the filled store at ``url``."""
    found: Result = {}
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        recalls(store, [user_name(len(sizes) // 3)] * 3)
        for name, users in classes(sizes).items():
            cold = recalls(store, users)
            warm = recalls(store, users, max(3, 60 // len(users)))
            found[name] = {
                "memories": sizes[int(users[0].removeprefix("user"))],
                "cold_p50_ms": quantile(cold),
                "cold_p95_ms": quantile(cold, 0.95),
                "warm_p50_ms": quantile(warm),
                "warm_p95_ms": quantile(warm, 0.95),
            }
        service = AgentMemoryStoreService(store, timeout=None).sync
        chosen = random.Random(2)
        saves = [
            seconds(partial(service.save_memory, user_name(chosen.randrange(len(sizes))), text)) * 1000
            for text in queries(200)
        ]
    found["save"] = {"p50_ms": quantile(saves), "p95_ms": quantile(saves, 0.95)}
    return found


class Files:
    """SQLite stores in a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, name: str) -> str:
        """The store's URL."""
        return f"sqlite:///{self._folder / name}.db"

    def disk_bytes(self, name: str) -> int:
        """What the store takes on disk."""
        return disk_bytes(self._folder / f"{name}.db")

    def close(self) -> None:
        """The folder belongs to the caller."""


class Schemas:
    """Stores in the schemas of a PostgreSQL server of their own, by name."""

    def __init__(self) -> None:
        from postgres_server import new_server  # noqa: PLC0415 - the tests' server

        self._server = new_server("postgres", durable=True)
        self._schemas: dict[str, str] = {}

    def url(self, name: str) -> str:
        """The store's URL."""
        if name not in self._schemas:
            self._schemas[name] = self._server.schema(is_new=True)
        return self._server.url(self._schemas[name])

    def disk_bytes(self, name: str) -> int:
        """What the store's tables and their indexes take on disk."""
        return _tables(self._server.url(), self._schemas[name])

    def close(self) -> None:
        """Stops the server."""
        self._server.close()


def _tables(url: str, schema: str) -> int:
    """Bytes of a schema's tables and indexes."""
    import psycopg  # noqa: PLC0415 - an extra

    query = (
        "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
    )
    with psycopg.connect(url) as connection:
        found = connection.execute(query, (schema,)).fetchone()
    return int(found[0]) if found else 0


def measured(kind: str, n: int, users: int, pool: Sequence[Put]) -> Result:
    """Everything about one kind of store at one size."""
    sizes = owned(n, users)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        place = stack.enter_context(closing(Files(folder) if kind == "sqlite" else Schemas()))
        found: Result = {"kind": kind, "n": sum(sizes), "users": users}
        found["load_rows_a_second"] = load(place.url("all"), pool, sizes)
        found["disk_bytes_a_memory"] = place.disk_bytes("all") / found["n"]
        found |= of_store(place.url("all"), sizes)
        found["two_processes"] = together(place.url("all"), users)
        load(place.url("alone"), pool, sizes[-1:])
        found["alone"] = _alone(place.url("alone"))
    found["small_to_alone"] = found["small"]["warm_p95_ms"] / found["alone"]["warm_p95_ms"]
    return found


def _alone(url: str) -> Result:
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        recalls(store, [user_name(0)] * 3)
        warm = recalls(store, [user_name(0)], 60)
    return {"warm_p50_ms": quantile(warm), "warm_p95_ms": quantile(warm, 0.95)}


def table(results: Sequence[Result]) -> list[Row]:
    """The report's rows."""
    return [row for result in results for row in _rows(result)]


def _rows(found: Result) -> Iterator[Row]:
    where = f"{found['kind']}, {found['n']:,} memories of {found['users']:,} users"
    yield plain(f"{where}: bulk load, memories a second", found["load_rows_a_second"], "")
    yield plain(f"{where}: disk, bytes a memory", found["disk_bytes_a_memory"], "")
    yield plain(f"{where}: save, p50", found["save"]["p50_ms"])
    yield plain(f"{where}: save, p95", found["save"]["p95_ms"])
    for name in ("small", "median", "largest"):
        one = found[name]
        who = f"{where}: {name} user ({one['memories']:,})"
        yield plain(f"{who}, cold, p95", one["cold_p95_ms"])
        yield plain(f"{who}, warm, p50", one["warm_p50_ms"])
        limited = name == "small"
        yield (bar if limited else _without_bar)(f"{who}, warm, p95", one["warm_p95_ms"], SMALL_BAR_MS)
    yield bar(f"{where}: small user's p95 to the same alone", found["small_to_alone"], ALONE_BAR, "x")
    both = found["two_processes"]
    yield plain(f"{where}: two processes, operations a second", both["operations_a_second"], "")
    yield plain(f"{where}: two processes, recall p95", both["recall_p95_ms"])
    yield plain(f"{where}: two processes, save p95", both["save_p95_ms"])


def _without_bar(what: str, value: float | None, _: float) -> Row:
    return plain(what, value)


def draw(results: Sequence[Result], path: Path) -> None:
    """The median recall of small, median and largest users, and saves, over the number of memories."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        known = [result for result in results if result["kind"] == kind]
        sizes = [result["n"] for result in known]
        for name, colour in (("small", "#0b6e4f"), ("median", "#66b395"), ("largest", "#8a5a00")):
            values = [result[name]["warm_p50_ms"] for result in known]
            axes.plot(sizes, values, style, color=colour, marker="o", label=f"{kind}: recall, {name} user")
        saves = [result["save"]["p50_ms"] for result in known]
        axes.plot(sizes, saves, style, color="#c1440e", marker="s", label=f"{kind}: save")
    axes.set(
        title="Many users in one store (medians)",
        xlabel="memories in the store",
        ylabel="ms",
        xscale="log",
        yscale="log",
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    figure.legend(fontsize="x-small", loc="outside right upper")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> int:
    """Measures each kind at each size, and publishes after each; exit code 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="sh scripts/bench scale", description=__doc__)
    parser.add_argument("--max-n", type=int, default=1_000_000, help="largest store (default: %(default)s)")
    parser.add_argument("--only", choices=KINDS, help="one kind of store (default: both)")
    arguments = parser.parse_args()
    pool = prepared()
    results: list[Result] = []
    reached = True
    for n in [size for size in (10_000, 100_000, 1_000_000) if size <= arguments.max_n] or [arguments.max_n]:
        for kind in KINDS:
            if arguments.only in (None, kind):
                results.append(measured(kind, n, max(n // 100, 2 * ASKED), pool))
                reached = publish("scale", table(results), {"results": results}, shown=False)
                draw(results, Path(__file__).parents[1] / "docs" / "benchmarks" / "scale.png")
    publish("scale", table(results), {"results": results})
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
