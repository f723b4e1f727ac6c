"""Redis servers of the tests' own: one for a test process, started when it is first needed, and others on request."""

from __future__ import annotations

import atexit
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from redis import Redis

PROGRAM = "redis-server"
PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always")
_DATABASES = 10_000
_START_S = 20.0
_numbers = count()


@dataclass
class RedisServer:
    """A server on a socket in ``folder``; it keeps nothing unless the ``options`` say so."""

    folder: Path
    options: tuple[str, ...] = ()
    databases: int = _DATABASES
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"unix://{quote(str(self.socket))}"

    @property
    def socket(self) -> Path:
        return self.folder / "redis.sock"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(self.folder),
            "databases": str(self.databases),
        }
        given = [part for name, value in settings.items() for part in (f"--{name}", value)]
        command = [PROGRAM, *given, "--save", "", *self.options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.01)
        raise RuntimeError(f"{PROGRAM} did not start: {command}")

    @property
    def runs(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def client(self) -> Redis:
        """A client of it, which tries nothing twice."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))

    def kill(self) -> None:
        """Ends it as a power loss of the process would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Has it do nothing until it may `go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it."""
        if self._process is not None and self.runs:
            self._process.terminate()
            self._process.wait()

    def _answers(self) -> bool:
        from redis import exceptions

        with self.client() as client:
            try:
                return bool(client.ping())
            except exceptions.AuthenticationError:
                return True
            except exceptions.ConnectionError:
                return False


@contextmanager
def redis_server(*options: str) -> Generator[RedisServer]:
    """A running server with further ``options``; skips the test where there is none."""
    skip_without_redis()
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    server = RedisServer(folder, options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database() -> Generator[str]:
    """The URL of an empty database in this process's own server."""
    skip_without_redis()
    from redis import Redis

    server, number = _shared(), next(_numbers) % _DATABASES
    yield f"{server.url}?db={number}"
    with Redis(unix_socket_path=str(server.socket), db=number) as client:
        client.flushdb()


def skip_without_redis() -> None:
    """Skips the test if the server or its Python client is missing."""
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not installed (Debian: apt-get install redis-server)")


@cache
def _shared() -> RedisServer:
    opened = redis_server()
    server = opened.__enter__()
    atexit.register(opened.__exit__, None, None, None)
    return server
