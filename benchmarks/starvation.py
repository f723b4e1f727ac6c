"""Recall by meaning for users who own a small share of a PostgreSQL table: ours, and LangGraph's PostgresStore (HNSW).

One index over all users' vectors finds the nearest of all and filters afterwards, so a user with a small share gets few
results or none. The truth for PostgresStore is the exact order of the user's own vectors; for ours, which ranks by more
than vectors, it is what the same ranking finds in the same rows without a database. The report also says how many of
cosine's own ten are among ours. The server is PostgreSQL with pgvector from a wheel, with fsync; both stores share it
and take turns. PostgresStore's index is made after its rows, which is faster and gives the same index. Recall among
10,000 memories of one user follows.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple, cast

import numpy as np
import ours
import psycopg
from baselines import LIMIT, searching
from command import Options, Result, bar, plain, run
from corpus import ASKER, queries
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.base import PostgresIndexConfig
from numpy.typing import NDArray
from report import Row
from timing import WARM_UP, by_turns, watched

from inference_core import MemoryStore, open_store
from inference_core.effects import run as run_plan
from inference_core.stores.indexing.search import Search

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from postgres_server import PostgresServer, close_all, new_server

ROWS: Final = 20_000
SHARES: Final = (0.4, 0.15, 0.075, 0.035, 0.015, 0.005)
EQUAL_USERS: Final = 40
TOPICS: Final = 200
SPREAD: Final = 0.6
ASKED: Final = 25
RECALL_BAR_MS: Final = 10
_DIMENSIONS: Final = 384
_PORTION: Final = 500
Vectors = NDArray[np.float32]
Namespace = tuple[str, ...]


class Known(Embeddings):
    """Vectors that were drawn beforehand: a text is the number of its vector, so that no words are shared."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of the number that ``text`` is."""
        return self._vectors[int(text.removeprefix("number"))].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The same for several."""
        return [self.embed_query(text) for text in texts]


class Table(NamedTuple):
    """Who owns each row, all vectors (the queries' after the rows'), and which users ask which of them."""

    owners: Sequence[str]
    vectors: Vectors
    asked: Mapping[str, Sequence[int]]


def by_shares() -> Table:
    """Users with ever smaller shares, who have something on every topic; each asks about all topics."""
    random = np.random.default_rng(1)
    owners = [name for share in SHARES for name in [_named(share)] * round(share * ROWS)]
    owners += [f"other{number % 50}" for number in range(ROWS - len(owners))]
    random.shuffle(owners)
    vectors = _vectors(random, random.integers(0, TOPICS, ROWS + ASKED))
    return Table(owners, vectors, {_named(share): range(ROWS, ROWS + ASKED) for share in SHARES})


def by_topics() -> Table:
    """Equal users with topics of their own; one of them asks about the others' topics."""
    random = np.random.default_rng(2)
    numbers = np.arange(ROWS) % EQUAL_USERS
    own = TOPICS // EQUAL_USERS
    topics = [*(numbers * own + random.integers(0, own, ROWS)), *random.integers(own, TOPICS, ASKED)]
    owners = [f"equal{number}" for number in numbers]
    return Table(owners, _vectors(random, np.array(topics)), {"equal0": range(ROWS, ROWS + ASKED)})


def _named(share: float) -> str:
    return f"{share:.1%} of the rows"


def _vectors(random: np.random.Generator, topics: NDArray[np.int64]) -> Vectors:
    centres = random.standard_normal((TOPICS, _DIMENSIONS))
    drawn = centres[topics] + SPREAD * random.standard_normal((len(topics), _DIMENSIONS))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def _namespace(owner: str) -> Namespace:
    return (owner.replace(".", "_"), "notes")


def _fill(store: BaseStore, table: Table, what: str, owners: Collection[str] | None = None) -> None:
    puts = [
        PutOp(_namespace(owner), f"k{at}", {"text": f"number{at}"}, index=["text"])
        for at, owner in enumerate(table.owners)
        if owners is None or owner in owners
    ]
    for start in watched(range(0, len(puts), _PORTION), f"filling {what}"):
        store.batch(puts[start : start + _PORTION])


@contextmanager
def _theirs(url: str, table: Table) -> Generator[PostgresStore]:
    index = cast("PostgresIndexConfig", {"dims": _DIMENSIONS, "embed": Known(table.vectors), "fields": ["text"]})
    with PostgresStore.from_conn_string(url, index=index) as store, psycopg.connect(url, autocommit=True) as connection:
        store.setup()
        query = (
            "SELECT indexname, indexdef FROM pg_indexes WHERE indexdef LIKE '%hnsw%' AND schemaname = current_schema"
        )
        ((name, definition),) = connection.execute(query).fetchall()
        connection.execute(f"DROP INDEX {name}".encode())
        _fill(store, table, "PostgresStore")
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute(definition.encode())
        connection.execute("ANALYZE")
        yield store


def _measured(server: PostgresServer, name: str, table: Table) -> list[dict[str, Any]]:
    """What each user of ``table`` who asks gets from either store."""
    with ExitStack() as opened:
        for schema in (f"{name}_ours", f"{name}_theirs"):
            server.execute(f"CREATE SCHEMA {schema}")
        mine = opened.enter_context(open_store(server.url(f"{name}_ours"), embeddings=Known(table.vectors)))
        _fill(mine, table, "ours")
        theirs = opened.enter_context(_theirs(server.url(f"{name}_theirs,public"), table))
        exact = opened.enter_context(open_store("memory://", embeddings=Known(table.vectors)))
        _fill(exact, table, "memory", table.asked)
        return [_of_user(mine, theirs, exact, table, user) for user in table.asked]


def _of_user(mine: MemoryStore, theirs: BaseStore, exact: MemoryStore, table: Table, user: str) -> dict[str, Any]:
    stores: dict[str, BaseStore] = {"ours": mine, "theirs": theirs}
    own = np.array([at for at, owner in enumerate(table.owners) if owner == user])
    asked = [f"number{at}" for at in table.asked[user]]
    found: dict[str, list[set[str]]] = {name: [] for name in stores}

    def ten(store: BaseStore, text: str) -> set[str]:
        return {item.key for item in store.search(_namespace(user), query=text, limit=LIMIT)}

    def searched(name: str, text: str) -> None:
        found[name].append(ten(stores[name], text))

    calls = {name: partial(searched, name) for name in stores}
    for store in (mine, exact):
        search = Search(groups=[[_namespace(user)]], text=asked[0], limit=1, wait_seconds=ours.PATIENCE_S)
        run_plan(store.engine.search(search))
    taken = by_turns(calls, [*asked[:WARM_UP], *asked], f"asking for {user}", portion=5)
    nearest = [own[np.argsort(-(table.vectors[own] @ table.vectors[at]))[:LIMIT]] for at in table.asked[user]]
    cosine = [{f"k{at}" for at in best} for best in nearest]
    truth = {"ours": [ten(exact, text) for text in asked], "theirs": cosine}
    result: dict[str, Any] = {"user": user, "rows": len(own)}
    for name, answers in found.items():
        last = answers[-ASKED:]
        result[name] = {
            "fewest": min(map(len, last)),
            "median": median(map(len, last)),
            "recall": _recall(last, truth[name]),
            "of_cosine": _recall(last, cosine),
            "p50_ms": median(taken[name]),
        }
    return result


def _recall(found: Sequence[set[str]], truth: Sequence[set[str]]) -> float:
    return sum(len(got & best) for got, best in zip(found, truth, strict=True)) / sum(map(len, truth))


def _at_ten_thousand(server: PostgresServer, options: Options) -> dict[str, float]:
    server.execute("CREATE SCHEMA one_user")
    with open_store(server.url("one_user"), embeddings=ours.HASHING, late_interaction=False) as store:
        ours.fill(store, ours.turns(options.n, options.users), options.n)
        ours.index(store)
        taken = by_turns({"ours": searching(store, ASKER)}, queries(60 + WARM_UP), "asking among 10,000")["ours"]
    return {"p50_ms": median(taken), "p95_ms": quantiles(taken, n=20)[-1]}


def measured(options: Options) -> Result:
    """What every user got, and how fast."""
    try:
        server = new_server("postgres", durable=True)
        server.execute("CREATE EXTENSION vector")
        users = [
            *_measured(server, "shares", by_shares()),
            *_measured(server, "topics", by_topics()),
        ]
        return {"n": options.n, "users": options.users, "table": users, "recall": _at_ten_thousand(server, options)}
    finally:
        close_all()


def table(result: Result) -> list[Row]:
    """The report's rows."""
    rows: list[Row] = []
    for user in result["table"]:
        mine, theirs = user["ours"], user["theirs"]
        name = user["user"] if "%" in user["user"] else f"one of {EQUAL_USERS} equal users, another's topic"
        reached = mine["fewest"] == LIMIT and mine["recall"] == 1 and mine["p50_ms"] <= theirs["p50_ms"]
        least = f"{LIMIT}, 1.00, ≤ {theirs['p50_ms']:.1f} ms"
        rows.append((f"{name} ({user['rows']:,}): ours", _shown(mine), least, reached))
        rows.append((f"{name} ({user['rows']:,}): PostgresStore", _shown(theirs), "", None))
    asked = f"recall among {result['n']:,} memories of one user"
    rows.append(bar(asked, result["recall"]["p50_ms"], RECALL_BAR_MS))
    rows.append(plain(f"{asked}, 95th percentile", result["recall"]["p95_ms"]))
    return rows


def _shown(one: Mapping[str, float]) -> str:
    cosine = "" if one["of_cosine"] == one["recall"] else f" ({one['of_cosine']:.2f} of cosine's)"
    return f"{one['fewest']}/{one['median']:g} results, recall {one['recall']:.2f}{cosine}, {one['p50_ms']:.1f} ms"


if __name__ == "__main__":
    sys.exit(run("starvation", measured, table, __doc__))
