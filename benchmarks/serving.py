"""Recall and pages over HTTP beside the same calls in a process, on SQLite without an embedding model.

`inference-core serve` runs in a process of its own, and so does each client, which sends prepared bytes over a socket;
the direct calls run in a process with as many tasks. The two take turns. On few processors, clients take time from the
server that direct calls have for themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import ours
from command import Options, Result, bar, plain, run
from corpus import ASKER, queries, turns
from report import Row
from timing import quantile, scratch

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run as run_plan
from inference_core.server.identity.auth import Permission, create_key

CALLS: Final = 400
ROUNDS: Final = 5
CLIENTS: Final = 8
RESULTS: Final = 5
LISTED: Final = 20_000
PAGE: Final = 50
LAST_PAGE: Final = 400
ADDED_MS: Final = 3.0
SHARE: Final = 0.8
SAME: Final = 2.0
IDS: Final = 1_000
APART_MS: Final = 1.0
_LEAD_S: Final = 1.0
_START_S: Final = 30.0


class Work(NamedTuple):
    """What one process does: so many calls, from an instant on. ``port`` 0: in this process, by ``tasks`` at once."""

    url: str
    port: int
    key: str
    seed: int
    calls: int
    tasks: int
    begins: float


class Done(NamedTuple):
    """Milliseconds of each call, when the last one ended, and the processor's time for all of them in seconds."""

    took: list[float]
    ended: float
    busy_s: float = 0.0


class Connection:
    """One connection to the server, kept alive, that writes and reads bytes and no more."""

    def __init__(self, port: int, key: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {key}\r\n"
        self._left = b""

    def send(self, method: str, path: str, body: bytes = b"", *, status: int = 200) -> bytes:
        """The body of the answer. Raises RuntimeError unless it has that status."""
        head = f"{method} {path} {self._head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        while b"\r\n\r\n" not in self._left:
            self._left += self._received()
        told, _, self._left = self._left.partition(b"\r\n\r\n")
        length = int(told.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(self._left) < length:
            self._left += self._received()
        answer, self._left = self._left[:length], self._left[length:]
        if f" {status} ".encode() not in told[:16]:
            raise RuntimeError(told.decode())
        return answer

    def _received(self) -> bytes:
        return self._socket.recv(65_536) or _broken()


def _broken() -> bytes:
    raise RuntimeError("the server closed the connection")


def clicked(call: Callable[[str], object], asked: Sequence[str]) -> list[float]:
    """Milliseconds of each call."""
    took: list[float] = []
    for text in asked:
        began = time.perf_counter()
        call(text)
        took.append((time.perf_counter() - began) * 1000)
    return took


def work(given: Work) -> Done:
    """Calls over HTTP, or in this process."""
    asked = queries(given.calls, seed=given.seed)
    if given.port:
        connection = Connection(given.port, given.key)

        def search(text: str) -> bytes:
            return connection.send("POST", "/v1/memories/search", json.dumps({"query": text, "k": RESULTS}).encode())

        search(asked[0])
        time.sleep(max(0.0, given.begins - time.time()))
        return Done(clicked(search, asked), time.time())
    with open_store(given.url, embeddings=None) as store:
        return asyncio.run(_directly(AgentMemoryStoreService(store), given, asked))


async def _directly(service: AgentMemoryStoreService, given: Work, asked: Sequence[str]) -> Done:
    took: list[float] = []

    async def calls(texts: Sequence[str]) -> None:
        for text in texts:
            began = time.perf_counter()
            await service.recall_memories(ASKER, text, RESULTS)
            took.append((time.perf_counter() - began) * 1000)

    await calls(asked[:1])
    took.clear()
    await asyncio.sleep(max(0.0, given.begins - time.time()))
    busy_s = time.process_time()
    await asyncio.gather(*(calls(asked[task :: given.tasks]) for task in range(given.tasks)))
    return Done(took, time.time(), time.process_time() - busy_s)


@contextmanager
def served(url: str) -> Generator[tuple[int, str, int]]:
    """A server of the store at ``url``: its port, a key of the asking user, and its process id."""
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        permissions = [Permission.READ, Permission.WRITE]
        _, key = run_plan(create_key(store.engine, service.scope.clock, user=ASKER, permissions=permissions))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"AGENT_MEMORY_STORE_URL": url, "AGENT_MEMORY_EMBEDDINGS": "none"}
    limits = {"AGENT_SERVER_RATE": "1000000", "AGENT_SERVER_BURST": "1000000", "AGENT_SERVER_PORT": str(port)}
    command = [sys.executable, "-m", "inference_core", "serve"]
    server = subprocess.Popen(command, env=os.environ | settings | limits, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port, key, server.pid
    finally:
        server.terminate()
        server.wait()


def measured(options: Options) -> Result:
    """Milliseconds and calls a second, over HTTP and directly, for one client and for eight; and those of pages."""
    with scratch() as folder, ProcessPoolExecutor(CLIENTS, mp_context=get_context("spawn")) as pool:
        url = f"sqlite:///{folder / 'recall.db'}"
        with open_store(url, embeddings=None) as store:
            ours.fill(store, turns(options.n), options.n)
        found: Result = {"n": options.n}
        with served(url) as (port, key, process):
            for clients in (1, CLIENTS):
                runs: dict[str, list[dict[str, float]]] = {"direct": [], "http": []}
                for number in range(ROUNDS):
                    for name, each in runs.items():
                        used = port if name == "http" else 0
                        each.append(_round(pool, Work(url, used, key, number, CALLS, clients, 0.0), process))
                for name, each in runs.items():
                    found[f"{name}_{clients}"] = {what: quantile([one[what] for one in each]) for what in each[0]}
        return found | _pages(folder) | _strangers(folder)


def _round(pool: ProcessPoolExecutor, given: Work, server: int) -> dict[str, float]:
    begins, busy_s = time.time() + _LEAD_S, _busy_s(server)
    processes = given.tasks if given.port else 1
    calls = CALLS * given.tasks // processes
    works = [given._replace(begins=begins, calls=calls, seed=given.seed + 100 * at) for at in range(processes)]
    done = list(pool.map(work, works))
    took = [one for each in done for one in each.took]
    spent = _busy_s(server) - busy_s if given.port else done[0].busy_s
    return {
        "p50_ms": quantile(took),
        "p95_ms": quantile(took, 0.95),
        "a_second": len(took) / (max(one.ended for one in done) - begins),
        "busy_ms": spent * 1000 / len(took),
    }


def _busy_s(process: int) -> float:
    """The processor's time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pages(folder: Path) -> Result:
    url = f"sqlite:///{folder / 'pages.db'}"
    with open_store(url, embeddings=None) as store:
        ours.fill(store, turns(LISTED), LISTED)
    with served(url) as (port, key, _):
        connection = Connection(port, key)
        cursors = [""]
        while len(cursors) < LAST_PAGE:
            page: dict[str, Any] = json.loads(connection.send("GET", f"/v1/memories?limit={PAGE}{cursors[-1]}"))
            cursors.append(f"&cursor={page['next_cursor']}")
        took: dict[str, list[float]] = {"first": [], "last": []}
        for _ in range(30):
            for name, cursor in (("first", cursors[0]), ("last", cursors[-1])):
                took[name] += clicked(lambda path: connection.send("GET", path), [f"/v1/memories?limit={PAGE}{cursor}"])
    return {f"{name}_page_ms": quantile(each) for name, each in took.items()}


def _strangers(folder: Path) -> Result:
    """How long it takes to say that there is no memory with an id: with another user's, and with nobody's."""
    url = f"sqlite:///{folder / 'strangers.db'}"
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("somebody else", "The code of the safe is 4711")
        (saved,), _ = AgentMemoryStoreService(store).sync.list_memories("somebody else")
    nobodys = saved.id[::-1]
    with served(url) as (port, key, _):
        connection = Connection(port, key)
        took: dict[str, list[float]] = {saved.id: [], nobodys: []}
        for _ in range(IDS):
            for name in took:
                took[name] += clicked(lambda path: connection.send("GET", path, status=404), [f"/v1/memories/{name}"])
    return {"other_id_ms": quantile(took[saved.id]), "no_id_ms": quantile(took[nobodys])}


def table(result: Result) -> list[Row]:
    """The report's rows."""
    one, many = (f"{clients} client{'s' if clients > 1 else ''}" for clients in (1, CLIENTS))
    direct, http = result["direct_1"], result["http_1"]
    rows = [
        plain(f"recall among {result['n']:,}, {one}, direct, median", direct["p50_ms"]),
        bar(f"recall among {result['n']:,}, {one}, HTTP, median", http["p50_ms"], direct["p50_ms"] + ADDED_MS),
    ]
    for clients in (1, CLIENTS):
        rows += [
            plain(
                f"recalls a second, {one if clients == 1 else many}, {name}",
                result[f"{name}_{clients}"]["a_second"],
                "",
            )
            for name in ("direct", "http")
        ]
        rows += [
            plain(
                f"processor's time of a recall, {one if clients == 1 else many}, {name}",
                result[f"{name}_{clients}"]["busy_ms"],
            )
            for name in ("direct", "http")
        ]
    share = result[f"http_{CLIENTS}"]["a_second"] / result[f"direct_{CLIENTS}"]["a_second"]
    growth = result["last_page_ms"] / result["first_page_ms"]
    return [
        *rows,
        bar(f"recalls a second, {many}, HTTP over direct", share, SHARE, "", least=True),
        plain(f"page 1 of {LISTED:,} memories, HTTP", result["first_page_ms"]),
        bar(f"page {LAST_PAGE} over page 1", growth, SAME, ""),
        plain("404 for an id of nobody's, HTTP", result["no_id_ms"]),
        bar("404 for another user's id, apart from that", abs(result["other_id_ms"] - result["no_id_ms"]), APART_MS),
    ]


if __name__ == "__main__":
    sys.exit(run("serving", measured, table, __doc__))
