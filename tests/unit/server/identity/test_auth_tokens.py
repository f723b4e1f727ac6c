"""Tokens of an identity provider, and the platform's user."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from jwt.algorithms import ECAlgorithm
from server_support import Served, served
from starlette.authentication import SimpleUser, UnauthenticatedUser
from starlette.types import Receive, Scope, Send

from inference_core.errors import ConfigurationError
from inference_core.server.identity import auth
from inference_core.server.identity.auth import Permission, TokenCheck
from inference_core.server.problems import Refusal

ISSUER = "https://id.example.com"
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
PUBLIC = json.loads(ECAlgorithm.to_jwk(KEY.public_key())) | {"kid": "one", "use": "sig", "alg": "ES256"}


class Issuer:
    """An identity provider that counts requests and may be down."""

    def __init__(self) -> None:
        self.keys: list[Any] = [PUBLIC, {"kty": "oct", "kid": "secret", "k": "eA"}, {"kty": "strange"}, 7]
        self.asked, self.is_down = 0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await asyncio.sleep(0)  # other requests go on meanwhile
        is_keys = scope["path"] == "/keys"
        body = json.dumps({"keys": self.keys} if is_keys else {"jwks_uri": f"{ISSUER}/keys"}).encode()
        await send({"type": "http.response.start", "status": 500 if self.is_down else 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def check(issuer: Issuer) -> TokenCheck:
    return TokenCheck(ISSUER, "memory", transport=httpx.ASGITransport(issuer))


def token(key: Any = KEY, algorithm: str = "ES256", kid: str | None = "one", **changed: Any) -> str:
    claims = {"iss": ISSUER, "aud": "memory", "sub": "ada", "exp": datetime.now(UTC) + timedelta(minutes=5)} | changed
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": kid} if kid else {})


async def test_a_token_opens_its_users_memory(check: TokenCheck, issuer: Issuer):
    found = await check(token())
    assert found is not None
    assert (found.subject, found.permissions) == ("ada", {Permission.READ, Permission.WRITE})
    limited = await check(token(scope="openid memory:read memory:everything"))
    assert limited is not None
    assert limited.permissions == {Permission.READ}
    listed = await check(token(scp=["memory:read", "memory:act-as"]))
    assert listed is not None
    assert listed.permissions == {Permission.READ, Permission.ACT_AS}
    assert issuer.asked == 2  # the configuration and the keys, once


@pytest.mark.parametrize(
    "wrong",
    [
        "x.y.z",
        "",
        token(aud="other"),
        token(iss="https://evil.example.com"),
        token(exp=datetime.now(UTC) - timedelta(minutes=5)),
        token(exp=None),
        token(sub=None),
        token(sub=""),
        token(scope=5),
        token(scp={"memory:act-as": True}),
        token(nbf=datetime.now(UTC) + timedelta(days=1), exp=datetime.now(UTC) + timedelta(days=2)),
        token(OTHER),
        token(kid=None),
        token(kid="unknown"),
        token(ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        token(json.dumps(PUBLIC) * 2, "HS256"),
        token("x" * 32, "HS256", kid="secret"),
        token("", "none"),
    ],
)
async def test_tokens_that_are_not_the_issuers_for_us_open_nothing(check: TokenCheck, wrong: str):
    assert await check(wrong) is None


async def test_new_keys_are_found_and_old_ones_outlive_an_outage(
    check: TokenCheck, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
):
    now = [time.monotonic()]
    monkeypatch.setattr(auth.time, "monotonic", lambda: now[0])
    assert await check(token())
    issuer.keys.append(json.loads(ECAlgorithm.to_jwk(OTHER.public_key())) | {"kid": "two"})
    for _ in range(5):  # an unknown key does not have the issuer asked each time
        assert await check(token(OTHER, kid="two")) is None
    assert issuer.asked == 2
    now[0] += auth.RETRY_S
    assert await check(token(OTHER, kid="two"))
    issuer.is_down = True
    now[0] += auth.FRESH_S
    assert await check(token())


async def test_regression_requests_wait_for_keys_that_are_being_fetched(
    check: TokenCheck, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
):
    """Of those that came at once, all but the first were told that the issuer is down, or that the token is wrong."""
    now = [time.monotonic()]
    monkeypatch.setattr(auth.time, "monotonic", lambda: now[0])
    assert all(await asyncio.gather(*(check(token()) for _ in range(5))))
    issuer.keys.append(json.loads(ECAlgorithm.to_jwk(OTHER.public_key())) | {"kid": "two"})
    now[0] += auth.RETRY_S
    assert all(await asyncio.gather(*(check(token(OTHER, kid="two")) for _ in range(5))))
    assert issuer.asked == 4  # twice, each time for the configuration and the keys


async def test_without_the_issuers_keys_it_is_told_to_come_again(issuer: Issuer):
    issuer.is_down = True
    with pytest.raises(Refusal) as told:
        await TokenCheck(ISSUER, "memory", jwks_url=f"{ISSUER}/keys", transport=httpx.ASGITransport(issuer))(token())
    assert told.value.status == 503
    issuer.is_down, issuer.keys = False, ["x" * auth._MAX_BYTES]
    with pytest.raises(Refusal):
        await TokenCheck(ISSUER, "memory", transport=httpx.ASGITransport(issuer))(token())


def test_keys_are_not_fetched_in_the_clear():
    with pytest.raises(ConfigurationError, match="https"):
        TokenCheck("http://id.example.com", "memory")


async def test_a_token_works_like_a_key(server: Served, check: TokenCheck):
    async with served(server.service, checks=[check]).client() as client:
        headers = {"Authorization": f"Bearer {token()}"}
        assert (await client.post("/v1/memories", json={"content": "Likes tea"}, headers=headers)).status_code == 201
        assert (await client.get("/v1/memories", headers={"Authorization": "Bearer a.b.c"})).status_code == 401
    assert server.service.sync.count_memories("ada")["total"] == 1


async def test_on_a_platform_it_is_the_platforms_user_and_closed_without(server: Served):
    """LangGraph Server gives its user to our routes only if a setting is on; without, they answered everybody."""
    app = served(server.service, is_platform=True, hosts=None).app
    key = server.key("ada")

    def client(user: object) -> httpx.AsyncClient:
        async def platform(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, **({"user": user} if user else {})}, receive, send)

        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(platform), base_url="https://x.test", headers=headers)

    async with client(SimpleUser("bob")) as bob:
        assert (await bob.post("/v1/memories", json={"content": "Likes tea"})).status_code == 201
        assert (await bob.get("/v1/memories", headers={"Act-As-User": "ada"})).status_code == 403
    for nobody in (None, UnauthenticatedUser(), SimpleUser("")):
        async with client(nobody) as closed:
            assert (await closed.get("/v1/memories")).status_code == 401
    assert server.service.sync.count_memories("bob")["total"] == 1


async def test_routes_without_the_gate_are_closed(server: Served):
    server.app.user_middleware.clear()
    async with server.client("ada") as client:
        assert (await client.get("/v1/memories")).status_code == 401
