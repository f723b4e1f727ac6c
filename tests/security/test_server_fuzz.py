"""Requests that the description allows and forbids, by Schemathesis, and what it misses, to a server on a socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from server_support import Served, served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.server.api import jobs
from inference_core.server.identity.auth import Permission

ALL_BUT_ACT_AS = tuple(one for one in Permission if one is not Permission.ACT_AS)
# Which fields may go together, no schema says; a fuzzer that takes 422 for a failure finds those rules.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 304, 401, 403, 404, 409, 412, 422, 428]
[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""
# Boundary cases of each parameter take most of the time, and most routes have the same headers and kinds of bodies.
SHORT_RUN = """
[[operations]]
include-path-regex = "^/(?!v1/memories(/search)?$)"
phases.coverage.enabled = false
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        yield served(AgentMemoryStoreService(store))


@contextmanager
def listening(server: Served) -> Generator[int]:
    """The port of ``server`` on a socket, in a thread of this process."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        config = uvicorn.Config(server.app, log_level="error", ws="none", timeout_graceful_shutdown=1)
        runner = uvicorn.Server(config)
        thread = threading.Thread(target=runner.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            runner.should_exit = True
            thread.join()


def test_no_request_gets_what_the_description_does_not_promise(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
):
    """Erasing is left out: it would take the key with it."""
    monkeypatch.setattr(jobs, "MOST", 10_000)  # else most requests for a job would be one too many
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG if full else CONFIG + SHORT_RUN)
    key = server.key("ada", ALL_BUT_ACT_AS)
    with listening(server) as port:
        url = f"http://127.0.0.1:{port}/openapi.json"
        program = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
        command = [*program, "--config-file", str(config), "run", url, "--header", f"Authorization: Bearer {key}"]
        limits = ["--max-examples", "140"] if full else ["--max-examples", "2", "--phases", "coverage,fuzzing"]
        options = ["--exclude-path", "/v1/jobs/erase", "--generation-database", "none", "--seed", "7"]
        done = subprocess.run([*command, *limits, *options], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6_000:]


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/mem", b"POST /v1/memories HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"]
)
def test_connections_that_send_nothing_hold_up_nobody(server: Served, sent: bytes):
    """200 clients that begin a request and do not go on; others are answered meanwhile."""
    headers = {"Authorization": f"Bearer {server.key('ada')}"}
    with listening(server) as port, ExitStack() as opened:
        for _ in range(200):
            slow = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(sent)
        began = time.monotonic()
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/memories", json={"content": "Likes tea"}, headers=headers)
        assert answer.status_code == 201
        assert time.monotonic() - began < 5


def test_large_bodies_are_refused_before_they_are_read(server: Served):
    headers = {"Authorization": f"Bearer {server.key('ada')}"}
    with listening(server) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
        for path in ("/v1/memories", "/v1/memories/search", "/v1/context", "/v1/jobs/save"):
            assert client.post(path, content=b"[" * 5 * 1024 * 1024).status_code in (413, 422, 400)
        assert client.get("/v1/memories").json()["total"] == 0
