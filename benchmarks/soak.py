"""A long run of agents, workers, servers and the inspector on one database, while processes and databases fail.

On SQLite and on PostgreSQL at once: an agent, a worker, a server and the inspector run all the time, and their memory
and open files are watched. A second agent, worker and server are killed (`kill -9`) and started again, the database is
locked, stopped or killed, and the model fails, hangs or talks nonsense. Clients save, change, delete, list and recall
over HTTP, agents talk, and pages are read. Every text names its user and its number, so that what is lost, doubled,
comes back or reaches another user is found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
from langchain_core.messages import BaseMessage, HumanMessage
from report import Row, publish
from timing import scratch

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, MemoryStore, open_store
from inference_core.client import MemoryClient
from inference_core.effects import run as run_plan
from inference_core.errors import DeadlineExceeded, InferenceCoreError, StoreUnavailable, VersionConflict, WriteUnknown
from inference_core.outbox import outbox as queue
from inference_core.server.identity.auth import Permission, create_key
from inference_core.testing import ScriptedChatModel

sys.path.append(str(Path(__file__).parents[1] / "tests"))

MARK: Final = re.compile(r"\bM(\w+?)x(\d+)M\b")
AGENTS: Final = ("steady", "killed")
USERS: Final = 3
"""Users of each agent, and clients that write, and that hand over messages."""
KEPT: Final = 40
"""Memories of each user; then old ones are deleted, so that a growing process is not a growing store."""
TURNS: Final = 20
"""Turns of a thread."""
_PASSING: Final = (StoreUnavailable, WriteUnknown, DeadlineExceeded, VersionConflict)
"""What a client may be told during a fault; it tries again."""
_SETTLE_S: Final = 600.0
_SAMPLE_S: Final = 5.0
_MOST_MB: Final = 10.0
_MOST_FILES: Final = 5
_WORDS: Final = tuple(
    "amber basil cedar delta ember fjord grape hazel ivory jade kelp lilac maple nectar olive".split()  # noqa: SIM905 - short
)


def text_of(user: str, number: int) -> str:
    """What a user says for the time of that number."""
    return f"M{user}x{number}M {' '.join(random.sample(_WORDS, 4))}"


def foreign(user: str, text: str) -> list[str]:
    """The marks of other users in what ``user`` was given."""
    return [mark[0] for mark in MARK.finditer(text) if mark[1] != user]


def talk(folder: Path, name: str, pause_s: float, *, closes: bool) -> None:
    """An agent with which users talk until it is killed. ``closes``: one more turn in each thread there is, instead."""
    from langchain.agents import create_agent  # noqa: PLC0415 - only the agents' processes need it

    from inference_core.agents.checkpoints import open_checkpointer  # noqa: PLC0415
    from inference_core.agents.middleware.capture import CaptureMiddleware  # noqa: PLC0415
    from inference_core.ingestion.extraction.rules import RuleExtractor  # noqa: PLC0415

    def reply(messages: list[BaseMessage]) -> str:
        asked = [mark[1] for message in messages for mark in MARK.finditer(message.text)][-1]
        if found := [mark for message in messages for mark in foreign(asked, message.text)]:
            os.write(1, f"FOREIGN in the prompt of {asked}: {found}\n".encode())
        return "Noted."

    said = folder / f"{name}.next"
    with opened(os.environ["AGENT_MEMORY_STORE_URL"]) as store:
        saver = open_checkpointer(f"sqlite:///{folder / name}.db")
        capture: Any = CaptureMiddleware(RuleExtractor(), works=False)
        agent: Any = create_agent(
            ScriptedChatModel(turns=[reply], record=False),
            store=store,
            middleware=[MemoryMiddleware(), capture],
            checkpointer=saver,
            context_schema=MemoryContext,
        )

        def turn(user: str, thread: str, number: int) -> None:
            begun = said.with_suffix(".new")  # replaced at once: this process may be killed in this moment
            begun.write_text(str(number + 1))
            begun.replace(said)
            given = {"messages": [("user", text_of(user, number))]}
            config = {"configurable": {"thread_id": thread}}
            answer = agent.invoke(given, config, context={"user_id": user}, durability="sync")
            os.write(1, f"TURN {answer.get('memory_status')}\n".encode())

        begin = int(said.read_text()) if said.exists() else 0
        if closes:
            for number, thread in enumerate(threads_of(folder, name), begin):
                turn(thread.partition("-")[0], thread, number)
        else:
            for number in count(begin):
                user = f"{name}{number % USERS}"
                turn(user, f"{user}-{number // (USERS * TURNS)}", number)
                time.sleep(random.uniform(0, 2 * pause_s))


def opened(url: str) -> MemoryStore:
    """The store, once its database answers: it may be killed in the moment in which an agent is started."""
    end = time.monotonic() + _SETTLE_S
    while True:
        try:
            return open_store(url, embeddings=None)
        except StoreUnavailable:
            if time.monotonic() > end:
                raise
        time.sleep(1)


def threads_of(folder: Path, name: str) -> list[str]:
    """The threads of an agent."""
    with closing(sqlite3.connect(folder / f"{name}.db")) as connection:
        return [one for (one,) in connection.execute("SELECT DISTINCT thread_id FROM checkpoints")]


def marks_of(folder: Path, name: str) -> set[str]:
    """The marks of all that was said to an agent."""
    from inference_core.agents.checkpoints import open_checkpointer  # noqa: PLC0415

    saver = open_checkpointer(f"sqlite:///{folder / name}.db")
    found: set[str] = set()
    for thread in threads_of(folder, name):
        state = saver.get_tuple({"configurable": {"thread_id": thread}})
        for message in state.checkpoint["channel_values"].get("messages", []) if state else ():
            found |= {mark[0] for mark in MARK.finditer(message.text)}
    return found


class Soak:
    """All processes on the database at ``url``, for so many seconds, and what was found."""

    def __init__(self, folder: Path, url: str, seconds: float, pause_s: float) -> None:
        self.folder, self.url, self.seconds, self.pause_s = folder, url, seconds, pause_s
        self.faults: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: dict[str, list[tuple[float, float, int, int]]] = defaultdict(list)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in AGENTS}
        self.fails = ""
        self.over, self.ended = threading.Event(), threading.Event()
        self.made: dict[str, set[str]] = defaultdict(set)
        self.gone: set[str] = set()
        self.handed: set[str] = set()
        self.began = time.monotonic()
        with open_store(url, embeddings=None) as store:
            clock = AgentMemoryStoreService(store).scope.clock
            both = [Permission.READ, Permission.WRITE]
            made = [
                run_plan(create_key(store.engine, clock, user=user, permissions=may))[1]
                for user, may in [*((f"c{at}", both) for at in range(USERS)), (None, [*both, Permission.ACT_AS])]
            ]
        self.keys = {f"c{at}": made[at] for at in range(USERS)} | {"": made[-1]}

    # Processes

    def start(self, what: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a process of that kind; what it says is in a file of its own."""
        command = [sys.executable, "-m", "inference_core", what, *arguments]
        if what == "agent":
            command = [sys.executable, __file__, "--agent", name, "--folder", str(self.folder), *arguments]
        port = {"AGENT_SERVER_PORT": str(self.ports[name])} if what == "serve" else {}
        out, err = (self.folder / f"{what}-{name}.{end}" for end in ("out", "err"))
        with out.open("ab") as said, err.open("ab") as errors:
            made = subprocess.Popen(command, env={**os.environ, **port}, stdout=said, stderr=errors)
        self.processes[f"{what} {name}"] = made
        return made

    def start_all(self) -> None:
        """Starts the processes that run all the time, and those that are killed."""
        for name in AGENTS:
            self.start("serve", name)
            self.start("worker", name, "--threads", "2")
            self.start("agent", name, "--pause", str(self.pause_s))
        self.start("inspect", "steady")

    def kill(self, what: str, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a process, and waits for its end."""
        one = self.processes.pop(f"{what} {name}", None)
        if one is None:
            return  # it has ended by itself, which is noted
        one.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            one.wait(30)

    def watch(self) -> None:
        """Notes memory, open files and threads of what runs all the time."""
        while not self.over.wait(_SAMPLE_S):
            for name, one in list(self.processes.items()):
                if one.poll() is not None:
                    if self.processes.get(name) is not one:
                        continue  # it was killed in this moment, and started again
                    self.wrong.append(f"{name} has ended with {one.returncode}")
                    self.processes.pop(name, None)
                elif name.endswith("steady"):
                    at = Path(f"/proc/{one.pid}")
                    status = dict(line.split(":", 1) for line in (at / "status").read_text().splitlines())
                    rss = int(status["VmRSS"].split()[0]) / 1024
                    files, threads = len(list((at / "fd").iterdir())), int(status["Threads"])
                    self.samples[name].append((time.monotonic() - self.began, rss, files, threads))

    # Faults

    def harm(self, server: Any) -> None:
        """One fault after the other; ``server`` is the PostgreSQL server, None on SQLite."""
        chance = random.Random(7)
        while not self.over.wait(chance.uniform(3, 12)):
            kind = chance.choice(("kill", "kill", "kill", "database", "model"))
            if kind == "kill":
                what = chance.choice(("serve", "worker", "agent"))
                self.faults[f"kill -9 of {what}"] += 1
                self.kill(what, "killed")
                time.sleep(chance.uniform(0, 2))
                arguments = {"worker": ("--threads", "2"), "agent": ("--pause", str(self.pause_s))}.get(what, ())
                self.start(what, "killed", *arguments)
            elif kind == "model":
                self.fails = chance.choice(("refuses", "hangs", "nonsense", "cut"))
                self.faults[f"model {self.fails}"] += 1
                self.over.wait(chance.uniform(3, 15))
                self.fails = ""
            elif server is None:
                self.faults["database locked"] += 1
                with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    time.sleep(chance.uniform(0.5, 8))
            elif chance.random() < 0.5:  # noqa: PLR2004 - half of the faults
                self.faults["database stopped"] += 1
                server.signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0.5, 8))
                server.signal(signal.SIGCONT)
            else:
                self.faults["database killed"] += 1
                server.kill()
                time.sleep(chance.uniform(0, 4))
                server.start()

    def answer(self, request: dict[str, Any]) -> Any:
        """The model: a memory for each mark of a message of the user, unless it is to fail."""
        from chat_server import Refusal  # noqa: PLC0415 - of the tests

        if self.fails == "refuses":
            return Refusal(500)
        if self.fails == "nonsense":
            return "I am sorry, as a language model I cannot"
        if self.fails == "hangs":
            time.sleep(5)
        asked = "\n".join(str(message["content"]) for message in request["messages"])
        found = re.findall(r'<message id="(\w+)" from="user"[^>]*>([^<]*)<', asked)
        memories = [{"content": text, "type": "facts", "sources": [name]} for name, text in found]
        told = json.dumps({"memories": memories})
        return told[: len(told) // 2] if self.fails == "cut" else told

    # Those who use it

    def client(self, user: str, name: str) -> MemoryClient:
        """A client of the server of that name with the key of ``user``; "": one that may act as anybody."""
        return MemoryClient(f"http://127.0.0.1:{self.ports[name]}", self.keys[user])

    def until_done(self, clients: list[MemoryClient], method: str, *arguments: Any, **options: Any) -> Any:
        """The answer of any of the clients, who ask again while the fault lasts."""
        end = time.monotonic() + _SETTLE_S
        while True:
            self.calls[method] += 1
            try:
                return getattr(random.choice(clients).sync, method)(*arguments, **options)
            except _PASSING as error:
                self.calls[f"{method}: {type(error).__name__}"] += 1
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def listed(self, clients: list[MemoryClient], user: str) -> dict[str, str]:
        """All that a user has, by id; foreign text is noted."""
        found: dict[str, str] = {}
        cursor: str | None = None
        while True:
            page, _ = self.until_done(clients, "list_memories", user, limit=100, after=cursor)
            found |= {one.id: one.content for one in page}
            if (cursor := page.next_cursor) is None:
                break
        self.wrong += [f"{user} was shown {mark}" for text in found.values() for mark in foreign(user, text)]
        return found

    def write(self, user: str) -> None:  # noqa: C901 - one branch for each kind of call
        """A client that saves, changes, deletes and recalls, and knows what must be there after each call."""
        clients = [self.client(user, name) for name in AGENTS]
        mine: dict[str, str] = {}
        ask = partial(self.until_done, clients)
        for number in count():
            if self.over.wait(random.uniform(0, 2 * self.pause_s)):
                break
            text, one = text_of(user, number), random.choice([*mine]) if mine else ""
            what = random.choice(("save", "save", "update", "delete", "recall", "peep"))
            if what == "save" and len(mine) < KEPT:
                ask("save_memory", user, text, "facts", memory_id=f"id{number}")
                mine[f"id{number}"] = text
            elif what == "update" and mine:
                ask("update_memory", user, one, content=text)
                mine[one] = text
            elif mine and (what == "delete" or len(mine) >= KEPT):
                ask("delete_memory", user, one)
                del mine[one]
            elif what == "recall" and mine:
                found = ask("recall_memories", user, mine[one])
                self.wrong += [f"{user} recalled {mark}" for hit in found for mark in foreign(user, hit.content)]
                if one not in {hit.id for hit in found}:
                    self.wrong.append(f"{user} did not recall {mine[one]}")
            elif what == "peep":
                with suppress(InferenceCoreError):
                    if clients[0].sync.get_memory(f"c{(int(user[1:]) + 1) % USERS}", f"id{number}"):
                        self.wrong.append(f"{user} read another's memory")
            if (there := self.listed(clients, user)) != mine:
                self.wrong.append(f"{user} after {what}: missing or other {mine.items() - there.items()}, more {there}")
                mine = there
        for one in clients:
            one.close()

    def hand_over(self, user: str) -> None:
        """A program that hands messages over, from which a worker makes memories."""
        clients = [self.client("", name) for name in AGENTS]
        for number in count():
            if self.over.wait(random.uniform(0, 4 * self.pause_s)):
                break
            text = text_of(user, number)
            message = HumanMessage(text, id=f"{user}-{number}")
            self.until_done(clients, "add_messages", user, [message], session_id=f"{user}-{number // TURNS}")
            self.handed |= {mark[0] for mark in MARK.finditer(text)}
        for one in clients:
            one.close()

    def harvest(self, clients: list[MemoryClient], kept: int) -> None:
        """Notes what was made of messages, and deletes all but the newest ``kept`` of each user."""
        for user in [f"{name}{at}" for name in (*AGENTS, "m") for at in range(USERS)]:
            there = self.listed(clients, user)
            for memory_id, text in there.items():
                for mark in MARK.finditer(text):
                    self.made[mark[0]].add(memory_id)
                if memory_id in self.gone:
                    self.wrong.append(f"{memory_id} of {user} has come back: {text}")
            for memory_id in [*there][kept:]:
                self.until_done(clients, "delete_memory", user, memory_id)
                self.gone.add(memory_id)

    def reap(self) -> None:
        """Harvests until the end."""
        with self.client("", "steady") as one:
            while not self.over.wait(5):
                self.harvest([one], KEPT)

    def look(self) -> None:
        """Reads the inspector's pages."""
        said = self.folder / "inspect-steady.out"
        while not said.exists() or not said.read_text().endswith("\n"):
            time.sleep(0.1)
        link = said.read_text().split()[0]
        home, users = link.partition("/login")[0], [f"c{at}" for at in range(USERS)] + [f"m{at}" for at in range(USERS)]
        with httpx.Client(timeout=30) as browser:
            browser.get(link)
            while not self.over.wait(random.uniform(0, 2 * self.pause_s)):
                user = random.choice(users)
                pages = ("timeline", "search?q=amber+cedar", "usage", "audit", "forgotten", "receipts", "review")
                asked = browser.get(f"{home}/u/{user}/{random.choice(pages)}")
                self.calls[f"page {asked.status_code}"] += 1
                self.wrong += [f"a page of {user} shows {mark}" for mark in foreign(user, asked.text)]
                if asked.status_code not in (200, 503, 504):
                    self.wrong.append(f"{asked.url}: {asked.status_code} {asked.text[-300:]}")

    # The run

    def run(self, server: Any) -> None:
        """All of it, and the comparison at the end."""
        from chat_server import chat_server  # noqa: PLC0415 - of the tests

        with chat_server(self.answer) as (model, requests):
            os.environ |= {"OPENAI_BASE_URL": model, "OPENAI_API_KEY": "none", "AGENT_MEMORY_MODEL": "openai:scripted"}
            self.start_all()
            self.until_served()
            works: list[Callable[[], None]] = [self.watch, self.reap, self.look, partial(self.harm, server)]
            works += [partial(self.write, f"c{at}") for at in range(USERS)]
            works += [partial(self.hand_over, f"m{at}") for at in range(USERS)]
            threads = [threading.Thread(target=self.noted, args=(one,)) for one in works]
            for one in threads:
                one.start()
            while time.monotonic() < self.began + self.seconds:
                time.sleep(1)
                requests.clear()
            self.over.set()
            for one in threads:
                one.join()
            self.fails = ""
            self.noted(self.settle)
        for name in list(self.processes):
            self.kill(*name.split(), signal.SIGTERM)  # pyright: ignore[reportCallIssue] - a kind and a name

    def noted(self, work: Callable[[], None]) -> None:
        """Runs ``work``; an error is a finding."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the run's finding
            self.wrong.append(f"{getattr(work, 'func', work).__name__}: {error!r}")

    def until_served(self) -> None:
        """Waits until the servers answer."""
        for port in self.ports.values():
            for _ in range(600):
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)

    def settle(self) -> None:
        """Lets what waits become memories, and compares."""
        for name in AGENTS:
            self.kill("agent", name)
            if self.start("agent", name, "--close").wait(_SETTLE_S):
                self.wrong.append(f"the last turns of {name} failed")
            self.processes.pop(f"agent {name}")
        with open_store(self.url, embeddings=None) as store:
            clock = AgentMemoryStoreService(store).scope.clock
            end = time.monotonic() + _SETTLE_S
            while (left := run_plan(queue.status(store.engine, clock))).waiting or left.dead:
                if time.monotonic() > end:
                    self.wrong.append(f"left in the outbox: {left}")
                    break
                self.calls["dead letters retried"] += run_plan(queue.retry(store.engine, clock))
                time.sleep(1)
        with self.client("", "steady") as one:
            self.harvest([one], 10_000)
        said = self.handed.union(*(marks_of(self.folder, name) for name in AGENTS))
        self.calls["messages"] = len(said)
        self.wrong += [f"lost: {mark}" for mark in sorted(said - {*self.made})]
        self.wrong += [f"twice: {mark} {ids}" for mark, ids in self.made.items() if len(ids) > 1]
        for name in AGENTS:
            lines = (self.folder / f"agent-{name}.out").read_text().splitlines()
            self.wrong += [line for line in lines if line.startswith("FOREIGN")]
            self.calls.update(line.lower() for line in lines if line.startswith("TURN"))
        for file in sorted(self.folder.glob("*.err")):
            found = [line for line in file.read_text(errors="replace").splitlines() if line.startswith("Traceback")]
            self.calls[f"tracebacks {file.stem}"] = len(found)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def database(kind: str, folder: Path) -> Generator[tuple[str, Any]]:
    """The URL of an empty database, and its server, if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'memory.db'}", None
        return
    import postgres_server  # noqa: PLC0415 - of the tests

    server = postgres_server.new_server("postgres", durable=True)
    yield server.url(server.schema(is_new=True)), server
    postgres_server.close_all()


def soak(kind: str, seconds: float, pause_s: float, keep: str | None) -> dict[str, Any]:
    """One database, in a process of its own."""
    with ExitStack() as opened:
        folder = Path(keep) / kind if keep else opened.enter_context(scratch())
        folder.mkdir(parents=True, exist_ok=True)
        url, server = opened.enter_context(database(kind, folder))
        settings = {"STORE_URL": url, "EMBEDDINGS": "none", "WORKER_INTERVAL": "1"}
        os.environ |= {f"AGENT_MEMORY_{name}": value for name, value in settings.items()}
        os.environ |= {"AGENT_SERVER_RATE": "1000000", "AGENT_SERVER_BURST": "1000000", "LANGSMITH_TRACING": "false"}
        one = Soak(folder, url, seconds, pause_s)
        try:
            one.run(server)
        finally:
            for process in one.processes.values():
                process.kill()
        return {
            "seconds": seconds,
            "calls": dict(one.calls),
            "faults": dict(one.faults),
            "wrong": one.wrong[:100],
            "wrongs": len(one.wrong),
            "growth": {name: growth(samples) for name, samples in one.samples.items()},
            "minutes": {name: samples[:: round(60 / _SAMPLE_S)] for name, samples in one.samples.items()},
        }


def growth(samples: list[tuple[float, float, int, int]]) -> dict[str, float]:
    """Medians of the second and of the last quarter: MB, open files, threads."""
    quarter = max(1, len(samples) // 4)
    found: dict[str, float] = {}
    for at, name in enumerate(("mb", "files", "threads"), 1):
        found[f"{name} early"] = median(one[at] for one in samples[quarter : 2 * quarter] or samples)
        found[f"{name} late"] = median(one[at] for one in samples[-quarter:])
    return found


def rows_of(kind: str, found: dict[str, Any]) -> list[Row]:
    """The report's rows of one database."""
    calls, faults = found["calls"], found["faults"]
    done = sum(number for name, number in calls.items() if name.startswith(("turn", "page")) or name.isidentifier())
    rows: list[Row] = [
        (f"{kind}: duration", f"{found['seconds'] / 60:.0f} minutes", "", None),
        (f"{kind}: faults", ", ".join(f"{name} {times}" for name, times in sorted(faults.items())), "", None),
        (f"{kind}: calls over HTTP, turns, pages", f"{done:,}", "", None),
        (f"{kind}: messages that became memories", f"{calls['messages']:,}", "", None),
        (f"{kind}: lost, doubled, foreign, back again, other errors", str(found["wrongs"]), "0", not found["wrongs"]),
    ]
    for name, one in sorted(found["growth"].items()):
        more, files = one["mb late"] - one["mb early"], one["files late"] - one["files early"]
        what = f"{kind}: {name.removesuffix(' steady')}"
        told = f"{one['mb early']:.0f} → {one['mb late']:.0f} MB"
        rows.append(
            (f"{what}, memory from the second to the last quarter", told, f"+{_MOST_MB:.0f} MB", more <= _MOST_MB)
        )
        told = f"{one['files early']:.0f} → {one['files late']:.0f}"
        rows.append((f"{what}, open files", told, f"+{_MOST_FILES}", files <= _MOST_FILES))
    return rows


def main() -> int:
    """Runs all databases at once, and publishes what was found; the exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="sh scripts/bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="default: %(default)s")
    parser.add_argument("--store", action="append", choices=("sqlite", "postgres"), help="by default both, at once")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between two calls of a caller, on average")
    parser.add_argument("--keep", help="keep databases and logs in this folder")
    parser.add_argument("--unpublished", action="store_true", help="leave benchmarks/results as it is")
    parser.add_argument("--agent", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--close", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent:
        talk(options.folder, options.agent, options.pause, closes=options.close)
        return 0
    kinds = options.store or ["sqlite", "postgres"]
    with ProcessPoolExecutor(len(kinds), mp_context=get_context("spawn")) as pool:
        jobs = {kind: pool.submit(soak, kind, 60 * options.minutes, options.pause, options.keep) for kind in kinds}
        found = {kind: job.result() for kind, job in jobs.items()}
    rows = [row for kind, one in found.items() for row in rows_of(kind, one)]
    for kind, one in found.items():
        for line in one["wrong"]:
            print(f"{kind}: {line}", file=sys.stderr)
    return int(not publish("soak", rows, found, written=not options.unpublished))


if __name__ == "__main__":
    sys.exit(main())
