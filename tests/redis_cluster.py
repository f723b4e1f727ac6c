"""Redis servers that stand in for each other: a cluster of three primaries with a replica each, and Sentinels."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from socket import socket
from typing import Any

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_server import PROGRAM, RedisServer, skip_without_redis

PRIMARIES = 3
_SLOTS = 16_384
_FAILED_MS = 2_000
"""How long a server has to be silent until its replica takes over."""
_PATIENT_MS = 60_000
"""The same where none is killed: servers on a busy machine are silent for a while, too."""
_WAIT_S = 60.0
_SENTINEL = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor main 127.0.0.1 {primary} 1
sentinel down-after-milliseconds main {failed}
sentinel failover-timeout main 5000
"""
_numbers = count()
_in_use: set[int] = set()


@dataclass
class RedisCluster:
    """The servers of a cluster; the primaries come first, each followed by its replica in the second half."""

    servers: list[RedisServer]
    ports: list[int]

    @property
    def url(self) -> str:
        """Names two of its servers, a primary and a replica of another one."""
        return f"redis+cluster://127.0.0.1:{self.ports[0]},127.0.0.1:{self.ports[-1]}"

    def clients(self) -> list[Any]:
        """A client for each server that runs."""
        return [server.client() for server in self.servers if server.runs]

    def flush(self) -> None:
        """Removes all keys."""
        for client in self.clients():
            with client:
                if client.info("replication")["role"] == "master":
                    client.flushall()

    def has_primary_of(self, key: str) -> bool:
        """Whether a primary runs that has ``key``."""
        return any(_has(server, key) for server in self.servers if server.runs)

    def holder_of(self, key: str) -> RedisServer:
        """The primary that has ``key``."""
        return next(server for server in self.servers if server.runs and _has(server, key))

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """The server that takes over if ``primary`` fails."""
        client: Any
        with primary.client() as client:
            ((_, port, _),) = client.execute_command("ROLE")[2]
        return self.servers[self.ports.index(int(port))]


@contextmanager
def redis_cluster(*options: str, failed_ms: int = _FAILED_MS) -> Generator[RedisCluster]:
    """A running cluster, whose servers have further ``options``; skips the test where there is no Redis.

    A replica takes over from a server that was silent for ``failed_ms``.
    """
    skip_without_redis()
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    ports = free_ports(4 * PRIMARIES)
    named, buses = ports[: 2 * PRIMARIES], ports[2 * PRIMARIES :]
    servers: list[RedisServer] = []
    try:
        for number, (port, bus) in enumerate(zip(named, buses, strict=True)):
            (place := folder / str(number)).mkdir()
            of_cluster = (
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                str(bus),
                "--cluster-node-timeout",
                f"{failed_ms}",
            )
            at = ("--bind", "127.0.0.1", "--port", str(port), "--cluster-replica-validity-factor", "0")
            servers.append(RedisServer(place, (*at, *of_cluster, "--repl-diskless-sync-delay", "0", *options), 1))
            servers[-1].start()
        with ExitStack() as opened:
            clients: list[Any] = [opened.enter_context(server.client()) for server in servers]
            for number, client in enumerate(clients[:PRIMARIES]):
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                first, end = (_SLOTS * at // PRIMARIES for at in (number, number + 1))
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            for port, bus in zip(named[1:], buses[1:], strict=True):
                clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
            wait_until(lambda: all(_known_to(client) == len(clients) for client in clients))
            for primary, replica in zip(clients, clients[PRIMARIES:], strict=False):
                replica.execute_command("CLUSTER", "REPLICATE", primary.execute_command("CLUSTER", "MYID"))
            wait_until(lambda: all(client.cluster("INFO")["cluster_state"] == "ok" for client in clients))
            wait_until(lambda: all(_is_followed(client) for client in clients[:PRIMARIES]))
        yield RedisCluster(servers, named)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sentinel() -> Generator[tuple[str, RedisServer, int]]:
    """The URL by which a Sentinel knows a primary that has two replicas, the primary, and the Sentinel's port."""
    skip_without_redis()
    folder, ports = Path(tempfile.mkdtemp(prefix="redis-")), free_ports(4)
    servers: list[RedisServer] = []
    watching: subprocess.Popen[bytes] | None = None
    try:
        for number, port in enumerate(ports[:-1]):
            (place := folder / str(number)).mkdir()
            follows = ("--replicaof", f"127.0.0.1 {ports[0]}") if number else ()
            at = ("--bind", "127.0.0.1", "--port", str(port), "--repl-diskless-sync-delay", "0")
            servers.append(RedisServer(place, (*at, *follows)))
            servers[-1].start()
        settings = folder / "sentinel.conf"
        settings.write_text(_SENTINEL.format(port=ports[-1], folder=folder, primary=ports[0], failed=_FAILED_MS))
        watching = subprocess.Popen([PROGRAM, str(settings), "--sentinel"], stdout=subprocess.DEVNULL)
        client: Any
        with Redis(port=ports[-1], retry=Retry(NoBackoff(), 0)) as client:
            wait_until(lambda: _replicas_known_to(client) == len(servers) - 1)
        yield f"redis+sentinel://127.0.0.1:1,127.0.0.1:{ports[-1]}/main", servers[0], ports[-1]
    finally:
        if watching is not None:
            watching.terminate()
            watching.wait()
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _replicas_known_to(sentinel: Any) -> int:
    with suppress(exceptions.ConnectionError):
        return sum(not replica["is_sdown"] for replica in sentinel.sentinel_slaves("main"))
    return 0


@contextmanager
def fresh_cluster() -> Generator[str]:
    """The URL of an empty store in this process's own cluster."""
    cluster, number = shared_cluster(), next(_numbers)
    _in_use.add(number)
    yield f"{cluster.url}?prefix=store{number}:"
    _in_use.remove(number)
    if not _in_use:
        cluster.flush()


@cache
def shared_cluster() -> RedisCluster:
    """This process's own cluster, started when it is first needed."""
    opened = redis_cluster(failed_ms=_PATIENT_MS)
    cluster = opened.__enter__()
    atexit.register(opened.__exit__, None, None, None)
    return cluster


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as opened:
        found = [opened.enter_context(socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits until servers have agreed on something."""
    end = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def _known_to(client: Any) -> int:
    return sum("handshake" not in node["flags"] for node in client.cluster("NODES").values())


def _is_followed(client: Any) -> bool:
    facts = client.info("replication")
    return facts["role"] == "master" and facts.get("slave0", {}).get("state") == "online"


def _has(server: RedisServer, key: str) -> bool:
    client: Any
    with server.client() as client:
        mine = client.execute_command("CLUSTER", "MYID")
        slot = client.execute_command("CLUSTER", "KEYSLOT", key)
        ranges = client.execute_command("CLUSTER", "SLOTS")
        return any(first <= slot <= last and primary[2] == mine for first, last, primary, *_ in ranges)
