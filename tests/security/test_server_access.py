"""Who may do what over HTTP: every route with every kind of key, and users who never see each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from server_support import Served, served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.server.auth import Permission, revoke_key
from inference_core.server.gate import PUBLIC
from inference_core.server.routes import Route
from inference_core.server.user_routes import ALL_ROUTES
from inference_core.testing import FrozenClock

USERS = ("ada", "bob", "åsa@example.com")
KINDS = ("none", "wrong", "expired", "revoked", "read", "write", "review", "act-as", "admin", "other")
ALLOWED = {"read": {Permission.READ}, "write": {Permission.WRITE}, "act-as": set[Permission]()} | {
    "review": {Permission.REVIEW},
    "admin": {Permission.ADMIN},
    "other": {Permission.READ, Permission.WRITE},
}


@pytest.fixture
def server(clock: FrozenClock) -> Iterator[Served]:
    with open_store("memory://", embeddings=None) as store:
        yield served(AgentMemoryStoreService(store, clock=clock))


def headers_of(server: Served, clock: FrozenClock) -> dict[str, dict[str, str]]:
    """What each kind of client sends."""
    keys = {name: server.key("ada", [Permission(name)]) for name in ("read", "write", "review", "act-as", "admin")}
    keys |= {"other": server.key("ada"), "expired": server.key("ada", days=1), "revoked": server.key("ada")}
    run(revoke_key(server.service.scope.engine, keys["revoked"][3:11]))
    clock.advance(timedelta(days=2))
    keys["wrong"] = f"{keys['read'][:12]}{'x' * 43}"
    sent = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
    sent["other"]["Act-As-User"] = "bob"
    return {"none": {}, **sent}


def expected(route: Route, kind: str) -> set[int]:
    """The statuses that a client of this kind may get; one that is let in sent nothing useful."""
    if route.permission is None:
        return {200}
    if kind not in ALLOWED:
        return {401}
    if kind == "other" or route.permission not in ALLOWED[kind]:
        return {403}
    return {200, 404, 422, 428} if route.method != "DELETE" else {204, 404, 422}


async def test_every_route_lets_in_whom_it_should(server: Served, clock: FrozenClock):
    sent = headers_of(server, clock)
    server.service.sync.save_memory("bob", "Likes tea", memory_id="1")
    async with server.client() as client:
        for route in ALL_ROUTES:
            path = route.path.replace("{memory_id}", "1")
            assert (route.permission is None) == (path in PUBLIC)
            for kind in KINDS:
                answer = await client.request(route.method, path, headers=sent[kind])
                assert answer.status_code in expected(route, kind), (route.method, path, kind, answer.text)
                assert "Likes tea" not in answer.text
    assert server.service.sync.count_memories("bob")["total"] == 1


async def test_users_never_see_each_other(server: Served, *, full: bool):
    """Random requests of three users, with ids that others use too; each text has its user's mark."""
    dice = random.Random(23)
    clients = {user: server.client(user) for user in USERS}
    marks = {user: f"canary{number}" for number, user in enumerate(USERS)}
    seen = dict.fromkeys(USERS, 0)

    def request(user: str) -> tuple[str, str, dict[str, Any]]:
        text = f"{marks[user]} likes {dice.choice(['tea', 'mate', 'water'])} {dice.randrange(40)}"
        one = f"/v1/memories/m{dice.randrange(8)}"
        condition = {"If-Match": '"1"'} if dice.random() < 0.5 else {"If-None-Match": "*"}
        return dice.choice(
            [
                ("POST", "/v1/memories", {"json": {"content": text}, "headers": {"Idempotency-Key": text[-8:]}}),
                ("PUT", one, {"json": {"content": text}, "headers": condition}),
                ("PATCH", one, {"json": {"content": text}}),
                ("GET", one, {}),
                ("DELETE", one, {}),
                ("GET", "/v1/memories", {"params": {"search": "canary", "limit": 5}}),
                (
                    "POST",
                    "/v1/memories/search",
                    {"json": {"query": "canary0 canary1 canary2 tea", "explain": True}},
                ),
            ]
        )

    for _ in range(10_000 if full else 300):
        user = dice.choice(USERS)
        method, path, given = request(user)
        answer = await clients[user].request(method, path, **given)
        assert answer.status_code < 500, answer.text
        assert not any(mark in answer.text for other, mark in marks.items() if other != user)
        seen[user] += marks[user] in answer.text
    assert min(seen.values()) > 20
    for client in clients.values():
        await client.aclose()


async def test_no_answer_and_no_log_has_a_key(server: Served, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    key = server.key("ada")
    async with server.client() as client:
        for token in (key, f"{key[:-1]}!", "ic_0"):
            answer = await client.get("/v1/memories", headers={"Authorization": f"Bearer {token}"})
            assert token not in answer.text
    assert key[12:] not in caplog.text
