"""What a cache of answers in front of recall could save, on Redis and PostgreSQL.

A cache that never gives what was changed or deleted meanwhile has to ask the database whether anything was written
since. Recall asks the same: one read of the numbers of the user's scopes, after which it answers from an index in the
process. So a cache saves at most what recall takes beyond that read, and that only if the same question comes again.
Processor time of this process is measured, so that a busy machine does not change it; waiting for a server is the same
with a cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Final

import ours
from command import Options, Result, plain, run
from corpus import ASKER, queries, turns
from report import Row

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.effects import run as finish

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from databases import database

KINDS: Final = ("redis", "postgres")
ASKED: Final = 200


def measured(options: Options) -> Result:
    """Processor time of a recall, of the read that a correct cache needs as well, and what is left to save."""
    found: Result = {"n": options.n, "users": options.users}
    for kind in KINDS:
        with (
            TemporaryDirectory() as folder,
            database(kind, Path(folder)) as url,
            open_store(url, embeddings=ours.HASHING) as store,
        ):
            ours.fill(store, turns(options.n, options.users), options.n)
            ours.index(store)
            recall, read = _measured(store)
        found[kind] = {"recall": recall, "read": read, "saved": recall - read}
    return found


def _measured(store: MemoryStore) -> tuple[float, float]:
    service = AgentMemoryStoreService(store, counts_access=False)
    scopes = service.ns_builder.read_scopes(ASKER)
    calls: list[Callable[[str], object]] = [
        lambda question: service.sync.recall_memories(ASKER, question),
        lambda _: finish(store.engine.read(scopes, lambda _: None)),
    ]
    asked = queries(ASKED)
    for call in calls:
        _each(call, asked)  # warms up
    recall, read = (_each(call, asked) for call in calls)
    return recall, read


def _each(call: Callable[[str], object], questions: Sequence[str]) -> float:
    """Milliseconds of this process's processors for each of ``questions``, on average."""
    began = process_time()
    for question in questions:
        call(question)
    return 1_000 * (process_time() - began) / len(questions)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    rows: list[Row] = []
    for kind in KINDS:
        rows += [
            plain(f"{kind}: a recall among {result['n']:,} memories", result[kind]["recall"]),
            plain(f"{kind}: the read by which a cache knows that its answer still holds", result[kind]["read"]),
            plain(f"{kind}: most that a cache saves, if the same question comes again", result[kind]["saved"]),
        ]
    return rows


if __name__ == "__main__":
    sys.exit(run("recall_cache", measured, table, __doc__))
