"""What is refused before it reaches a route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from server_support import BASE, Served, served
from starlette.types import Message

from inference_core.server.identity import gate
from inference_core.server.identity.auth import Permission, Principal
from inference_core.server.identity.gate import Access, Gate

BOTH = frozenset({Permission.READ, Permission.WRITE})


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "localhost@evil.example", "127.0.0.2"])
async def test_other_hosts_are_refused_also_without_a_key(server: Served, host: str):
    """A page of another site can have its name point here, and then read what the server says."""
    async with server.client("ada") as client:
        answer = await client.get("/healthz", headers={"Host": host})
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (421, "wrong-host")
        for known in ("localhost:8765", "127.0.0.1", "[::1]:80"):
            assert (await client.get("/healthz", headers={"Host": known})).status_code == 200


async def test_pages_of_other_sites_are_refused(server: Served):
    other = served(server.service, origins=["https://app.example.com"])
    async with server.client("ada") as client, other.client("ada") as allowed:
        for origin in ("https://app.example.com", "null", "http://localhost.evil"):
            assert (await client.get("/v1/memories", headers={"Origin": origin})).status_code == 403
        assert (await client.get("/v1/memories", headers={"Origin": BASE})).status_code == 200
        answer = await allowed.get("/v1/memories", headers={"Origin": "https://app.example.com"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
        assert "access-control-allow-credentials" not in answer.headers
        asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
        assert (await allowed.options("/v1/memories", headers=asked)).status_code == 200
        other = await allowed.options("/v1/memories", headers=asked | {"Origin": "https://evil.example"})
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers


async def test_regression_a_malformed_host_or_origin_is_a_foreign_one(server: Served):
    """A bracket that nothing closes, or around what is no address, made the server answer 500, also without a key."""
    async with server.client() as nobody:
        for bad in ("[", "[::1", "[foo]", "[v1.x]"):
            assert (await nobody.get("/healthz", headers={"Host": bad})).status_code == 421, bad
            assert (await nobody.get("/healthz", headers={"Origin": f"http://{bad}"})).status_code == 403, bad


async def test_a_key_may_act_for_others_only_with_permission(server: Served):
    async with (
        server.client("ada") as ada,
        server.client("app", [*BOTH, Permission.ACT_AS]) as app,
        server.client() as nobody,
    ):
        assert (await ada.get("/v1/memories", headers={"Act-As-User": "bob"})).status_code == 403
        assert (await ada.get("/v1/memories", headers={"Act-As-User": "ada"})).status_code == 200
        for bad in ("", "%ff", "x" * 600, "a%00b"):
            assert (await app.get("/v1/memories", headers={"Act-As-User": bad})).status_code == 422
        await app.post("/v1/memories", json={"content": "Likes tea"}, headers={"Act-As-User": "%C3%A5sa%2F1"})
        assert server.service.sync.count_memories("åsa/1")["total"] == 1
        key = server.key(None, [Permission.READ, Permission.ACT_AS])
        headers = {"Authorization": f"Bearer {key}"}
        assert (await nobody.get("/v1/memories", headers=headers)).status_code == 422
        assert (await nobody.get("/v1/memories", headers={**headers, "Act-As-User": "ada"})).status_code == 200


async def test_too_many_requests_and_wrong_keys_are_told_when_to_come_again(server: Served):
    limited = served(server.service, rate=1, burst=2, failures=2)
    async with limited.client("ada") as ada, limited.client("bob") as bob, limited.client() as nobody:
        answers = [await ada.get("/v1/memories") for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[-1].headers["retry-after"] == "1"
        assert (await bob.get("/v1/memories")).status_code == 200
        wrong = {"Authorization": "Bearer wrong"}
        assert [(await nobody.get("/v1/memories", headers=wrong)).status_code for _ in range(3)] == [401, 401, 429]
        assert (await bob.get("/v1/memories")).status_code == 200  # from the same address
        assert (await nobody.get("/v1/memories")).headers["www-authenticate"] == "Bearer"


async def test_bodies_are_bounded_and_must_arrive(server: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "BODY_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 100_000

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with server.client("ada") as client:
        assert (await client.post("/v1/memories", content=b" " * (1024 * 1024 + 1))).status_code == 413
        assert (await client.post("/v1/memories", content=endless())).status_code == 413
        assert (await client.post("/v1/memories", content=slow())).status_code == 408
        answer = await client.get("/v1/memories", headers={"Content-Length": "-1"})
        assert answer.status_code == 413


async def test_one_user_of_this_machine_needs_no_key(server: Served):
    alone = served(server.service, anonymous=Principal("ada", BOTH, "local"))
    async with alone.client() as client:
        answer = await client.post("/v1/memories", json={"content": "Likes tea"})
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        assert (await client.get("/v1/memories", headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get("/v1/memories", headers={"Authorization": "Basic YTpi"})).status_code == 401
    assert server.service.sync.count_memories("ada")["total"] == 1


async def test_a_store_that_fails_lets_nobody_in(server: Served):
    async def fails(_: str) -> Principal | None:
        raise gate.InferenceCoreError("host db-7")

    async with served(server.service, checks=[fails]).client("ada") as client:
        answer = await client.get("/v1/memories")
    assert answer.status_code == 500
    assert "db-7" not in answer.text


async def test_a_websocket_is_closed():
    sent = list[Message]()

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(*_: object) -> None:
        raise AssertionError

    await Gate(app, Access())({"type": "websocket", "path": "/v1/memories", "headers": []}, receive, send)
    assert [one["type"] for one in sent] == ["websocket.close"]


async def test_a_failure_after_the_response_has_begun_is_not_answered_twice(caplog: pytest.LogCaptureFixture):
    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue, reportUnknownVariableType]
        raise RuntimeError("cut")

    transport = httpx.ASGITransport(Gate(app, Access()))  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        with pytest.raises(AssertionError):  # httpx misses the end
            await client.get("/healthz")
    assert "failed at" in caplog.text
