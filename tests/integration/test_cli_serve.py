"""``inference-core serve`` as a process, ``keys``, and set-ups that would let everybody in."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from cli_support import Capture, answer, text
from commands import started
from mcp.server import MCPServer
from processes import Forked
from pydantic import SecretStr

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main
from inference_core.errors import ConfigurationError, InvalidId
from inference_core.server import app
from inference_core.server.app import access_for
from inference_core.settings import ServerSettings, read_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    return sqlite_url


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_ready(port: int) -> None:
    for _ in range(400):
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        time.sleep(0.05)
    raise TimeoutError


def test_what_a_server_logs_is_a_line_each(url: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    """Regression: with the extra mcp, the SDK laid every message out in columns of 80 characters."""

    def serves(*_: object) -> None:
        MCPServer("as the application makes one")
        logging.getLogger("inference_core").warning("word " * 40)

    monkeypatch.setattr(app, "serve", serves)
    monkeypatch.setattr(logging.root, "handlers", [])
    assert main(["serve", "--user", "ada"]) == 0
    assert "WARNING:     " + "word " * 40 in capsys.readouterr().err


def test_a_killed_server_has_lost_nothing_that_it_acknowledged(url: str, capsys: Capture, tmp_path: Path):
    """SIGTERM while two clients write: what was answered with 201 is there, and the process ends by itself."""
    key, port = answer(capsys, "keys", "create", "--user", "ada")["key"], free_port()
    log = tmp_path / "log.txt"
    acknowledged = list[str]()

    def write(name: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}) as client:
            for number in range(10_000):
                try:
                    done = client.post("/v1/memories", json={"content": f"Fact {name} {number}"})
                except httpx.TransportError:
                    return
                if done.status_code == 201:
                    acknowledged.append(done.json()["id"])

    with started("serve", "--port", str(port), log=log) as server:
        wait_ready(port)
        writers = [threading.Thread(target=write, args=(name,)) for name in range(2)]
        for one in writers:
            one.start()
        while len(acknowledged) < 20:
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0
        for one in writers:
            one.join()
    said = log.read_text()
    assert "Traceback" not in said, said
    assert key[12:] not in said
    with open_store(url, embeddings=None) as store:
        kept = {one.id for one in store.memory("ada").all()}
    assert set(acknowledged) <= kept


def serve_few(url: str, port: int) -> None:
    """A server that takes few connections, each of which has to say something soon."""
    app.HEADER_S, app._MOST_CONNECTIONS = 1.0, 6
    os.environ.update(AGENT_MEMORY_STORE_URL=url, AGENT_MEMORY_EMBEDDINGS="none")
    sys.stdout, sys.stderr = (open(at, "w", closefd=False) for at in (1, 2))  # noqa: SIM115 - never closed
    main(["serve", "--port", str(port)])


def test_regression_silent_clients_keep_nobody_out_for_long(url: str, capsys: Capture):
    """As many connections as the server takes, on which no whole request ever came, locked everybody out for good."""
    key, port = answer(capsys, "keys", "create", "--user", "ada")["key"], free_port()
    headers = {"Authorization": f"Bearer {key}"}
    begun = "GET /readyz HTTP/1.1"
    with Forked(serve_few, url, port):
        wait_ready(port)
        with ExitStack() as ends, httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            idle = [ends.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(6)]
            idle[1].sendall(begun.encode())
            idle[2].sendall(f"{begun}\r\nHost: localhost\r\n\r\n".encode())
            assert idle[2].recv(10_000).startswith(b"HTTP/1.1 ")
            with suppress(OSError):  # uvicorn has closed it if it was one too many
                idle[2].sendall(b"\r\n")
            assert client.get("/v1/stats").status_code == 503
            for number in range(12):  # a byte now and then makes it no longer
                with suppress(OSError):
                    idle[3].sendall(begun[number].encode())
                time.sleep(0.15)
            assert client.get("/v1/stats").status_code == 200
            for one in idle:
                one.settimeout(60)
                with suppress(ConnectionResetError):
                    while one.recv(10_000):  # until it is closed; TimeoutError if it never is
                        pass
            time.sleep(1.5)
            assert client.get("/v1/stats").status_code == 200  # on the same connection


@pytest.mark.full
def test_the_script_serves_a_clone_without_anything_else(tmp_path: Path):
    """``sh scripts/serve`` in a clone that holds no data: it saves some memories, and shows them."""
    environment = Path(sys.prefix)
    if not (environment / "stamp").exists():
        pytest.skip("needs the environment that the scripts make in .venv")
    for name in ("scripts", "requirements.lock"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(environment)
    port = free_port()
    given = {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "AGENT_MEMORY_EMBEDDINGS": "none",
    }
    command, log = ["sh", str(tmp_path / "scripts" / "serve"), "bob"], tmp_path / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=os.environ | given | {"AGENT_SERVER_PORT": str(port)}, stdout=output, stderr=output
        )
    try:
        wait_ready(port)
        page = httpx.get(f"http://127.0.0.1:{port}/ui", follow_redirects=True)
        assert page.status_code == 200
        assert "Ada wants to learn Portuguese by the summer" in page.text
        assert (tmp_path / "build" / "serve.db").exists()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()


def test_inspect_gives_a_link_that_works_once(url: str, capsys: Capture):
    assert "There is no store" in text(capsys, "inspect", code=1)
    answer(capsys, "save", "Lives in Lisbon", "--user", "ada@example.com")
    with started("inspect", "--user", "ada@example.com") as inspector:
        link = next(line for line in map(bytes.decode, inspector.said) if line.startswith("http")).strip()
        with httpx.Client(follow_redirects=True) as browser:
            assert browser.get(link).status_code == 200
            page = browser.get(link.partition("login")[0])
            assert "Lives in Lisbon" in page.text
            assert "~ada~40example~2ecom" in str(page.url)
        assert httpx.get(link).status_code == 403
        inspector.send_signal(signal.SIGTERM)
        assert inspector.end()[0] == 0


def test_a_request_repeated_over_a_kill_saves_one_memory(
    url: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
):
    """Clients repeat one request under one key while the server is killed and comes back: one memory, one answer."""
    key, port = answer(capsys, "keys", "create", "--user", "ada")["key"], free_port()
    threads, each = (20, 10) if full else (5, 4)
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "one"}
    monkeypatch.setenv("AGENT_SERVER_RATE", "1000")
    monkeypatch.setenv("AGENT_SERVER_BURST", "1000")
    serve = partial(started, "serve", "--port", str(port), log=tmp_path / "log.txt")
    ids, half = list[str](), threading.Event()

    def repeat() -> None:
        got = 0
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            while got < each:
                time.sleep(0.02)  # while no server is there, clients must not keep it from starting
                with suppress(httpx.TransportError):
                    done = client.post("/v1/memories", json={"content": "Tea"})
                    if done.status_code in (200, 201):
                        ids.append(done.json()["id"])
                        got += 1
                        if len(ids) >= threads * each // 2:
                            half.set()

    clients = [threading.Thread(target=repeat) for _ in range(threads)]
    with serve():
        wait_ready(port)
        for one in clients:
            one.start()
        half.wait(60)
    with serve():
        for one in clients:
            one.join()
    assert (len(ids), len(set(ids))) == (threads * each, 1)
    with open_store(url, embeddings=None) as store:
        assert len(store.memory("ada").all()) == 1


def test_keys_are_made_listed_and_revoked(url: str, capsys: Capture):
    made = answer(capsys, "keys", "create", "--user", "ada", "--allow", "read", "--days", "30")
    assert made["key"].startswith(f"ic_{made['id']}_")
    assert (made["user"], made["permissions"]) == ("ada", ["read"])
    assert main(["keys", "create", "--allow", "act-as"]) == 0
    printed = capsys.readouterr()  # as KEY=$(inference-core keys create …) takes it
    assert re.fullmatch(r"ic_\w{8}_[\w-]+\n", printed.out)
    assert "not shown again" in printed.err
    listed = answer(capsys, "keys", "list")["keys"]
    assert {one["user"] for one in listed} == {"ada", None}
    assert made["key"] not in str(listed)
    shown = text(capsys, "keys")
    assert "any user" in shown
    assert made["key"][12:] not in shown
    ids = [one["id"] for one in listed]
    assert answer(capsys, "keys", "revoke", *ids) == {"revoked": ids}
    assert "There is no key" in text(capsys, "keys", "revoke", ids[0], code=3)
    assert "No keys" in text(capsys, "keys", "list")
    assert "revoke requires" in text(capsys, "keys", "revoke", code=2)
    assert "give one of them" in text(capsys, "keys", "create", code=2)


def test_a_server_that_everybody_could_use_does_not_start(url: str, capsys: Capture):
    """A server on all addresses without a key, as others start by default, is everybody's memory."""
    for given in ([], ["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--user", "ada"], ["--host", "::"]):
        said = text(capsys, "serve", *given, code=1)
        assert "There is no key" in said.replace("\n", " ")
        assert "keys create" in said


@pytest.mark.parametrize(
    ("given", "anonymous", "checks", "hosts"),
    [
        ({"user": "ada"}, True, 1, {"localhost", "127.0.0.1", "::1"}),
        ({"user": "ada", "key": "x" * 32}, False, 2, {"localhost", "127.0.0.1", "::1"}),
        ({"user": "ada", "key": "x" * 32, "host": "0.0.0.0"}, False, 2, None),
        ({"user": "ada", "key": "x" * 32, "host": "10.1.2.3", "hosts": "Memory.example.com"}, False, 2,
         {"memory.example.com", "10.1.2.3"}),
    ],
)  # fmt: skip
def test_whom_the_settings_let_in(given: dict[str, str], anonymous: bool, checks: int, hosts: set[str] | None):
    with open_store("memory://", embeddings=None) as store:
        access = access_for(AgentMemoryStoreService(store), ServerSettings.model_validate(given))
    assert (access.anonymous is not None, len(access.checks), access.hosts) == (anonymous, checks, hosts)


def test_settings_that_mean_nothing_are_refused():
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        with pytest.raises(ConfigurationError, match="AGENT_SERVER_USER"):
            access_for(service, ServerSettings(key=SecretStr("x" * 32)))
        with pytest.raises(InvalidId):
            access_for(service, ServerSettings(user=""))
    with pytest.raises(ConfigurationError, match="AGENT_SERVER_KEY: must have"):
        read_settings(ServerSettings, key="short")
    assert ServerSettings(key=SecretStr("")).key is None  # an empty variable is no key
