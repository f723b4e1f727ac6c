"""Who may do what over HTTP: every route of a server with every kind of key, and users who never see each other."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from server_support import Served, served
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from inference_core import AgentMemoryStoreService, MemorySettings, open_store
from inference_core.effects import run
from inference_core.errors import ConfigurationError
from inference_core.memory.namespaces import encode_label
from inference_core.server.app import access_for, assembled, check_routes
from inference_core.server.identity.auth import ApiKeys, Permission, Principal, revoke_key
from inference_core.settings import ServerSettings
from inference_core.testing import FrozenClock

USERS: Final = ("ada", "bob", "åsa@example.com")
OF_BOB: Final = "canary1"
"""Stands in each memory of bob."""
NEEDS: Final[dict[Permission | None, str]] = {
    None: """
        GET / /healthz /readyz /version /openapi.json /api/health /.well-known/oauth-protected-resource/mcp
        GET /ui/static/{name} /ui/login
        POST /ui/login
        """,
    Permission.READ: """
        GET /v1/memories /v1/memories/{memory_id} /v1/memories/{memory_id}/history /v1/memories/{memory_id}/why
        GET /v1/receipts /v1/stats /v1/export /v1/forgotten /v1/pending /v1/profile
        GET /v1/jobs /v1/jobs/{job_id} /v1/jobs/{job_id}/events /v1/jobs/{job_id}/result
        POST /v1/memories/search /v1/context /v1/jobs/export
        GET /api/context /api/conversations /api/queue/status /api/settings /api/settings/regeneration-status
        GET /api/test-conn
        GET /ui /ui/ /ui/{rest:path}
        GET /ui/u/{label}/timeline /ui/u/{label}/search /ui/u/{label}/memory /ui/u/{label}/receipts
        GET /ui/u/{label}/receipt /ui/u/{label}/review /ui/u/{label}/forgotten /ui/u/{label}/usage /ui/u/{label}/audit
        GET /ui/u/{label}/timeline.json /ui/u/{label}/search.json /ui/u/{label}/memory.json
        GET /ui/u/{label}/receipts.json /ui/u/{label}/receipt.json /ui/u/{label}/review.json
        GET /ui/u/{label}/forgotten.json /ui/u/{label}/usage.json /ui/u/{label}/audit.json
        GET /ui/u/{label}/profile /ui/u/{label}/profile.json /ui/u/{label}/export
        GET /ui/users /ui/users.json
        POST /ui/logout
        ANY /mcp
        """,
    Permission.WRITE: """
        POST /v1/memories /v1/memories/batch /v1/messages /v1/forget /v1/forgotten/{memory_id}/restore
        POST /v1/jobs/forget /v1/jobs/save
        PUT /v1/memories/{memory_id} /v1/profile
        PATCH /v1/memories/{memory_id}
        DELETE /v1/memories /v1/memories/{memory_id}
        POST /api/messages /api/completions /api/context /api/context/structured /api/answers
        POST /ui/u/{label}/forgotten /ui/u/{label}/memory /ui/u/{label}/profile
        """,
    Permission.REVIEW: """
        POST /v1/pending/{memory_id}/approve /v1/pending/{memory_id}/reject
        POST /ui/u/{label}/review
        """,
    Permission.ADMIN: """
        GET /v1/admin/users /v1/admin/queue /v1/admin/dead-letters
        POST /v1/admin/dead-letters/retry /v1/admin/dead-letters/drop /v1/jobs/erase
        POST /api/settings
        GET /ui/outbox /ui/outbox.json /ui/u/{label}/erase /ui/u/{label}/erase.json
        POST /ui/outbox /ui/u/{label}/erase
        GET /metrics
        """,
}
"""What each route of a server needs: a new route is to be added here, whoever it is for."""
ROUTES: Final = {
    (method, path): needed
    for needed, text in NEEDS.items()
    for method, *paths in map(str.split, text.strip().splitlines())
    for path in paths
}
READ, WRITE, ACT_AS = Permission.READ, Permission.WRITE, Permission.ACT_AS
KINDS: Final[dict[str, set[Permission] | None]] = {
    **dict.fromkeys(("nothing", "no bearer", "wrong", "expired", "revoked", "strange token")),
    "read": {READ},
    "write": {WRITE},
    "review": {Permission.REVIEW},
    "admin": {Permission.ADMIN},
    "token": {READ, WRITE},
    "act-as": {READ, WRITE, ACT_AS},
}
"""What a request brings along, and what that permits; None: it is nobody's."""


@pytest.fixture
def server(clock: FrozenClock) -> Iterator[Served]:
    """All that a server offers, with an identity provider whose tokens begin with its name."""

    async def token(text: str) -> Principal | None:
        return Principal("ada", frozenset({READ, WRITE}), "token") if text == "header.ada.signature" else None

    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        settings = ServerSettings(airi=True, issuer="https://id.example.com", audience="memory")
        checks = [ApiKeys(store.engine, clock, 10), token]
        access = replace(access_for(service, settings), checks=checks, rate=1e6, burst=10**6, failures=10**6)
        app, ends = assembled(service, access, settings, MemorySettings())
        yield Served(service, app)
        ends()


@asynccontextmanager
async def connected(server: Served, prefix: str = "") -> AsyncGenerator[httpx.AsyncClient]:
    """A client on another machine, through a proxy that has taken a ``prefix`` off."""
    transport = httpx.ASGITransport(server.app, root_path=prefix, client=("203.0.113.9", 1))
    async with (
        server.app.router.lifespan_context(server.app),
        httpx.AsyncClient(transport=transport, base_url=f"http://localhost{prefix}") as client,
    ):
        yield client


def test_every_route_is_in_the_table_and_one_without_a_permission_stops_the_start(server: Served):
    found = {
        (method, route.path)
        for route in server.app.routes
        if isinstance(route, Route)
        for method in (route.methods or {"ANY"}) - {"HEAD"}
    }
    assert found == set(ROUTES)
    server.app.add_route("/v1/new", PlainTextResponse)
    with pytest.raises(ConfigurationError, match="/v1/new"):
        check_routes(server.app)


def brought(server: Served, clock: FrozenClock) -> dict[str, dict[str, str]]:
    """The headers of each kind of request."""
    keys = {kind: server.key("ada", allowed) for kind, allowed in KINDS.items() if allowed and kind != "token"}
    keys |= {"expired": server.key("ada", days=1), "revoked": server.key("ada")}
    run(revoke_key(server.service.scope.engine, keys["revoked"][3:11]))
    clock.advance(timedelta(days=2))
    keys |= {"wrong": f"{keys['read'][:12]}{'x' * 43}", "token": "header.ada.signature", "strange token": "a.b.c"}
    sent = {kind: {"Authorization": f"Bearer {key}"} for kind, key in keys.items()}
    return sent | {"nothing": {}, "no bearer": {"Authorization": f"Basic {keys['read']}"}}


def path_of(pattern: str, **parts: str) -> str:
    return pattern.replace(":path", "").format_map(parts)


def came_of(answer: httpx.Response) -> str:
    """Whether the request was let in, and if not, why."""
    text, status = answer.text, answer.status_code
    assert status < 500, text
    is_to_login = status == 303 and answer.headers["location"].endswith("/ui/login")
    if status == 401 or is_to_login or (status == 403 and '"Invalid API key"' in text):
        return "unknown"
    if status == 403:
        if "lacks the permission" in text:
            return "lacks"
        if re.search("lacks act-as|only at (your own memories|its own user)", text):
            return "foreign"
        assert "from your session" in text or "This key is not valid" in text, text  # forms have tokens of their own
    return "in"


def cells(kind: str, prefix: str, *, full: bool) -> Iterator[tuple[tuple[str, str], str]]:
    """The routes that a request of ``kind`` is sent to, and whose memory it asks for.

    Whose the request is, and whom it may act for, is found out before its route: in the short run, a kind that is
    nobody's, or may act for nobody else, meets one route in five with it, and another kind the next one.
    """
    is_known = KINDS[kind] is not None
    for at, route in enumerate(ROUTES, list(KINDS).index(kind)):
        is_in_turn = full or at % 5 == 0
        if is_in_turn or (not prefix and (is_known or kind == "nothing")):
            yield route, "own"
        if is_known and (is_in_turn or (not prefix and kind == "act-as")):
            yield route, "header"
        if is_known and "{label}" in route[1] and (is_in_turn or not prefix):
            yield route, "label"


@pytest.mark.parametrize("prefix", ["", "/memory"])
async def test_every_route_lets_in_whom_it_should(server: Served, clock: FrozenClock, prefix: str, *, full: bool):
    """Each cell of the table: every route, with every kind of key, for the key's own user and for another."""
    server.service.sync.save_memory("bob", f"{OF_BOB} likes tea", memory_id="1")
    sent = brought(server, clock)
    ids = {"memory_id": "1", "job_id": "1", "name": "app.css", "rest": "nope"}
    async with connected(server, prefix) as client:
        for kind, allowed in KINDS.items():
            if prefix and not full and kind not in ("nothing", "read", "admin"):
                continue
            for (method, path), whose in cells(kind, prefix, full=full):
                needed = ROUTES[method, path]
                label = encode_label("ada" if whose == "own" else "bob")
                headers = sent[kind] | ({"Act-As-User": "bob"} if whose == "header" else {})
                answer = await client.request(
                    "POST" if method == "ANY" else method, path_of(path, **ids, label=label), headers=headers
                )
                lists_users = path.startswith("/ui/users")  # not for who may act for nobody else
                is_foreign = (whose != "own" or lists_users) and ACT_AS not in (allowed or ())
                place = (method, path, kind, whose, answer.status_code, answer.text[:300])
                if needed is None:
                    wanted = "in"
                elif allowed is None:
                    wanted = "unknown"
                elif is_foreign and (whose == "header" or needed in allowed):
                    wanted = "foreign"
                else:
                    wanted = "in" if needed in allowed else "lacks"
                assert came_of(answer) == wanted, place
                assert (whose != "own" and not is_foreign) or OF_BOB not in answer.text, place
                assert "cache-control" in answer.headers, place
            assert kind == "act-as" or server.service.sync.count_memories("bob")["total"] == 1


async def test_figures_are_open_to_this_machine_alone_and_not_through_a_proxy_on_it(server: Served):
    for prefix in ("", "/memory"):
        near = httpx.ASGITransport(server.app, root_path=prefix)
        async with httpx.AsyncClient(transport=near, base_url=f"http://localhost{prefix}") as client:
            assert (await client.get("/metrics")).status_code == 200
            assert (await client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.9"})).status_code == 401
            assert (await client.get("/v1/stats")).status_code == 401


async def test_what_comes_through_a_proxy_is_not_this_machines_user():
    """A proxy on the machine passed the requests of everybody on, as those of the user who needs no key there."""
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        app = served(service, anonymous=Principal("ada", frozenset({READ}), "local")).app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/v1/stats")).status_code == 200
            assert (await client.get("/v1/stats", headers={"X-Forwarded-For": "203.0.113.9"})).status_code == 401
        with pytest.raises(ConfigurationError, match="There is no key"):
            access_for(service, ServerSettings(user="ada", root_path="/memory"))


async def test_regression_a_public_name_is_not_this_machines_user():
    """Only headers of a proxy were looked for; one that adds none was not noticed by the name in Host either."""
    public = "memory.example.com"
    with open_store("memory://", embeddings=None) as store:
        hosts, anonymous = {public, "localhost"}, Principal("ada", frozenset({READ}), "local")
        app = served(AgentMemoryStoreService(store), anonymous=anonymous, hosts=hosts).app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/v1/stats")).status_code == 200
            assert (await client.get("/v1/stats", headers={"Host": public})).status_code == 401
            assert (await client.get("/metrics", headers={"Host": public})).status_code == 401


async def test_behind_a_prefix_all_is_as_without_it(server: Served):
    """The limits of bodies, what clients of MCP are told, AIRI's errors and Location looked at the whole path."""
    headers = {"Authorization": f"Bearer {server.key('ada')}"}
    many = {"memories": [{"content": "x" * 8_000, "topic": str(at)} for at in range(140)]}
    async with connected(server, "/memory") as client:
        told = (await client.post("/mcp")).headers["www-authenticate"]
        where = told.partition('"')[2].rstrip('"')
        assert where == "http://localhost/memory/.well-known/oauth-protected-resource/mcp"
        assert (await client.get(where)).json()["resource"] == "http://localhost/memory/mcp"
        assert (await client.get("/api/test-conn")).json() == {"error": "API key required"}
        assert (await client.post("/v1/memories/batch", json=many, headers=headers)).status_code == 200
        assert (await client.post("/v1/memories", json=many, headers=headers)).status_code == 413
        job = await client.post("/v1/jobs/export", headers=headers)
        assert job.headers["location"] == f"/memory/v1/jobs/{job.json()['id']}"
        made = await client.post("/v1/memories", json={"content": "Likes tea"}, headers=headers)
        assert (await client.get(f"http://localhost{made.headers['location']}", headers=headers)).json()[
            "id"
        ] == made.json()["id"]
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/memory"}]


def body(dice: random.Random, mark: str, path: str) -> object:
    """What the route takes, mostly; what it refuses must not show anything either."""
    text = f"{mark} likes {dice.choice(['tea', 'mate', 'water'])} {dice.randrange(40)}"
    rule = dice.choice([{}, {"memory_type": "instructions", "origin": "web"}])
    tool, arguments = dice.choice(
        [("recall_memories", {"query": "tea"}), ("list_memories", {}), ("save_memory", {"content": text})]
    )
    if path.endswith(("/approve", "/reject", "/forget", "/export", "/restore")):
        return {}
    bodies: dict[str, object] = {
        "/v1/memories/search": {"query": dice.choice(["tea", "canary0 canary1 canary2"]), "explain": True, "k": 20},
        "/v1/context": {"query": "Who likes tea?"},
        "/v1/messages": {"messages": [{"role": "user", "content": text}]},
        "/api/completions": {"prompt": text, "response": text},
        "/mcp": {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        },
        **{key: {"memories": [{"content": text} | rule]} for key in ("/v1/memories/batch", "/v1/jobs/save")},
        **{key: {"message": "Who likes tea?"} for key in ("/api/context", "/api/context/structured", "/api/answers")},
    }
    return bodies.get(path, {"content": text} | (rule if dice.random() < 0.3 else {}))


async def test_users_never_see_each_other(server: Served, *, full: bool):
    """Random requests of three users on all routes, with ids that others use too; each text has its user's mark."""
    dice = random.Random(23)
    marks = {user: f"canary{number}" for number, user in enumerate(USERS)}
    keys = {user: server.key(user, [READ, WRITE, Permission.REVIEW]) for user in USERS}
    seen = dict.fromkeys(USERS, 0)
    routes = [one for one, needed in ROUTES.items() if needed in {READ, WRITE, Permission.REVIEW}]
    ids = [f"m{number}" for number in range(6)]

    async with connected(server) as client:
        for _ in range(10_000 if full else 250):
            (method, path), user = dice.choice(routes), dice.choice(USERS)
            headers = {"Authorization": f"Bearer {keys[user]}", "Accept": "application/json, text/event-stream"}
            headers |= dice.choice([{}, {"If-Match": '"1"'}, {"If-None-Match": "*"}])
            headers |= dice.choice([{}, {"Idempotency-Key": dice.choice(ids)}])
            headers |= dice.choice([{}] * 9 + [{"Act-As-User": quote(dice.choice(USERS))}])
            asked = {"search": "canary", "q": "tea", "id": dice.choice(ids), "message": "tea"}
            given: dict[str, Any] = {"params": asked} if method == "GET" else {"json": body(dice, marks[user], path)}
            label = encode_label(user if dice.random() < 0.8 else dice.choice(USERS))
            where = path_of(path, memory_id=dice.choice(ids), job_id=dice.choice(ids), label=label, rest="nope")
            answer = await client.request("POST" if method == "ANY" else method, where, headers=headers, **given)
            assert answer.status_code < 500 or path == "/api/answers", (method, where, answer.text)  # it has no model
            told = answer.text + str(answer.headers)
            assert not any(mark in told for other, mark in marks.items() if other != user), (method, where, user)
            seen[user] += marks[user] in told
            ids += re.findall(r'"id":"([^"]+)"', told)[:3]
    assert min(seen.values()) > (20 if full else 5), seen


async def test_no_answer_and_no_log_has_a_key(server: Served, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    key = server.key("ada")
    async with server.client() as client:
        for token in (key, f"{key[:-1]}!", "ic_0"):
            answer = await client.get("/v1/memories", headers={"Authorization": f"Bearer {token}"})
            assert token not in answer.text
    assert key[12:] not in caplog.text
