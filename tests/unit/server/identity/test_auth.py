"""API keys, and the limits of requests."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import httpx
import pytest
from server_support import Served, served

from inference_core.effects import run
from inference_core.errors import InvalidInput
from inference_core.server.identity import auth
from inference_core.server.identity.auth import (
    KEYS,
    ApiKeys,
    Buckets,
    FixedKey,
    Permission,
    Principal,
    create_key,
    list_keys,
    revoke_key,
)
from inference_core.testing import FrozenClock


@pytest.fixture
def ring(server: Served) -> ApiKeys:
    return ApiKeys(server.service.scope.engine, server.service.scope.clock, 10)


async def test_a_key_opens_its_users_memory_and_only_its_hash_is_stored(server: Served, ring: ApiKeys):
    key = server.key("ada@example.com", days=1)
    principal = await ring(key)
    assert principal is not None
    assert (principal.subject, principal.permissions) == ("ada@example.com", {Permission.READ, Permission.WRITE})
    engine = server.service.scope.engine
    (row,) = run(engine.scan([KEYS]))
    assert key.split("_", 2)[2] not in str(row.value)
    assert [one.to_json().get("digest") for one in run(list_keys(engine))] == [None]


async def test_wrong_revoked_and_expired_keys_open_nothing(
    server: Served, ring: ApiKeys, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    key, other = server.key("ada", days=1), server.key("bob")
    swapped = f"{key[:12]}{other[12:]}"  # the id of one, the secret of another
    for wrong in ("", "x", key[:-1], f"{key}x", swapped, f"ic_00000000_{key[12:]}"):
        assert await ring(wrong) is None
    assert await ring(key)
    clock.advance(timedelta(days=1))
    assert await ring(key) is None
    assert await ring(other)
    engine = server.service.scope.engine
    assert run(revoke_key(engine, other[3:11]))
    assert not run(revoke_key(engine, other[3:11]))
    now = time.monotonic()
    monkeypatch.setattr(auth.time, "monotonic", lambda: now + auth.CACHED_S + 0.1)
    assert await ring(other) is None


@pytest.mark.parametrize("path", ["/v1/memories", "/ui/login"])
async def test_regression_a_flood_of_made_up_keys_costs_no_read_each(
    server: Served, monkeypatch: pytest.MonkeyPatch, path: str
):
    """Each was looked up, also after the limit of wrong keys; right ones, used before or not, must still be let in."""
    limited, engine, key, reads = served(server.service, failures=2), server.service.scope.engine, server.key("ada"), 0
    read = {"get": engine.get, "scan": engine.scan}

    def counting(name: str) -> Any:
        def counted(places: Any, *rest: Any, **options: Any) -> Any:
            nonlocal reads
            reads += KEYS in [place[0] if name == "get" else place for place in places]
            return read[name](places, *rest, **options)

        return counted

    for name in read:
        monkeypatch.setattr(engine, name, counting(name))

    async def tried(client: httpx.AsyncClient, one: str) -> int:
        if path == "/ui/login":
            return (await client.post(path, data={"key": one})).status_code
        return (await client.get(path, headers={"Authorization": f"Bearer {one}"})).status_code

    async with limited.client() as client:
        made_up = [f"ic_{number:08x}{key[11:]}" for number in range(200)]
        assert 429 in [await tried(client, one) for one in made_up]
        assert reads < 100
        assert await tried(client, key) == 200
        later, now = server.key("bob"), time.monotonic
        monkeypatch.setattr(auth.time, "monotonic", lambda: now() + auth.LISTED_S)
        assert await tried(client, later) == 200


async def test_known_keys_are_bounded(server: Served, ring: ApiKeys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auth, "_MAX_CACHED", 2)
    for key in [server.key(f"user-{number}") for number in range(5)]:
        assert await ring(key)
    assert len(ring._known) <= 2


@pytest.mark.parametrize(
    ("user", "permissions", "days"),
    [
        (None, [Permission.READ], None),
        ("", [Permission.READ], None),
        ("ada", [], None),
        ("ada", [Permission.READ], 0),
        ("ada", [Permission.READ], float("nan")),
    ],
)
def test_a_key_that_could_not_be_used_is_not_made(
    server: Served, user: str | None, permissions: list[Permission], days: float | None
):
    scope = server.service.scope
    with pytest.raises(InvalidInput):
        run(create_key(scope.engine, scope.clock, user=user, permissions=permissions, days=days))


async def test_a_fixed_key_is_one_users():
    check = FixedKey("x" * 32, Principal("ada", frozenset({Permission.READ}), "fixed"))
    principal = await check("x" * 32)
    assert principal is not None
    assert principal.subject == "ada"
    assert await check("x" * 31) is None
    assert await check("\ud800") is None


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(auth.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(auth, "_MAX_CACHED", 2)
    buckets = Buckets(rate=2, burst=2)
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0.5]
    assert buckets.take("b") == 0
    now[0] = 0.5
    assert buckets.take("a") == 0
    buckets.take("c")  # a third name pushes out the one that was not used for the longest time
    assert len(buckets._filled) == 2
