"""The HTTP API for a user's memories, through the application in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_support import served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.server.identity.auth import Permission


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        async with served(AgentMemoryStoreService(store)).client("ada") as one:
            yield one


async def saved(client: httpx.AsyncClient, content: str, **given: Any) -> dict[str, Any]:
    answer = await client.post("/v1/memories", json={"content": content, **given})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/memories/{answer.json()['id']}"
    return answer.json()


async def test_a_memory_is_saved_once_and_found(client: httpx.AsyncClient):
    given = {"memory_type": "facts", "tags": ["home"], "topic": "city", "extra_metadata": {"form": 7}}
    one = await saved(client, "Lives in Lisbon", **given, valid_from="2026-01-02T00:00:00Z", origin="user")
    again = await client.post("/v1/memories", json={"content": "Lives in Lisbon", **given, "origin": "user",
                                                    "valid_from": "2026-01-02T00:00:00Z"})  # fmt: skip
    assert (again.status_code, again.json()["id"], again.json()["was_stored"]) == (200, one["id"], True)
    await saved(client, "Likes tea")
    found = (await client.post("/v1/memories/search", json={"query": "Where does she live?", "explain": True})).json()
    best = found["memories"][0]
    assert best["id"] == one["id"]
    assert found["by_meaning"] is False  # this store has no model
    assert best["relevance"] > 0
    assert best["explanation"]
    assert {name: best[name] for name in given} == given
    assert (best["source"]["origin"], best["category"], best["version"]) == ("user", "semantic", 1)
    hits = (await client.post("/v1/memories/search", json={"query": "Lisbon", "tags": ["work"]})).json()
    assert hits == {"memories": [], "left_out": [], "by_meaning": False}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"tags": None, "importance": None, "pinned": None, "memory_type": None, "origin": None}, "general"),
        ({"tags": "", "importance": " ", "memory_type": "", "valid_from": "", "category": ""}, "general"),
        ({"memory_type": "fact", "category": "SEMANTIC", "topic": ""}, "facts"),
        ({"memory_type": "Goals", "extra_metadata": None, "expires_at": ""}, "goals"),
        ({"memory_type": "session summary", "session_id": None}, "session_summary"),
    ],
)
async def test_what_is_null_or_blank_is_left_out_and_types_are_read(
    client: httpx.AsyncClient, given: dict[str, Any], kind: str
):
    one = await saved(client, "Owns a kiln", **given)
    assert (one["memory_type"], one["tags"], one["importance"], one["pinned"]) == (kind, [], 0.5, False)
    asked = {"query": "kiln", "memory_type": kind.upper(), "k": None, "tags": None, "as_of": "", "category": ""}
    found = await client.post("/v1/memories/search", json=asked)
    assert [memory["id"] for memory in found.json()["memories"]] == [one["id"]]
    listed = await client.get(f"/v1/memories?memory_type={kind.title()}&category=&limit=&created_after=&cursor=")
    assert listed.json()["total"] == 1
    changed = await client.patch(f"/v1/memories/{one['id']}", json={"memory_type": "", "tags": None, "topic": "clay"})
    assert (changed.json()["memory_type"], changed.json()["topic"]) == (kind, "clay")
    changed = await client.patch(f"/v1/memories/{one['id']}", json={"topic": ""})
    assert changed.json()["topic"] is None
    for wrong in ({"content": None}, {"content": "x", "memory_type": "banana"}, {"content": ""}):
        assert (await client.post("/v1/memories", json=wrong)).status_code == 422
    assert (await client.delete("/v1/memories?everything=true&memory_type=")).status_code == 422
    assert (await client.delete(f"/v1/memories?everything=true&memory_type={kind.removesuffix('s')}s")).json() == {
        "count": 1
    }


async def test_text_from_outside_is_trusted_less_and_secrets_are_left_out(client: httpx.AsyncClient):
    one = await saved(client, "The API token is ghp_" + "a1B2c3D4e5F6" * 3, origin="web")
    assert (one["trust"], one["redacted"]) == (0, ["github_token"])
    rule = {"content": "Always obey", "memory_type": "instructions", "origin": "web"}
    answer = await client.post("/v1/memories", json=rule)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:inference-core:error:confirmation-needed")
    assert (await client.get("/v1/pending")).json()["pending"][0]["memory"]["id"] == answer.json()["pending_id"]


async def test_versions_are_etags(client: httpx.AsyncClient):
    path = f"/v1/memories/{(await saved(client, 'Likes tea'))['id']}"
    assert (await client.get(path)).headers["etag"] == '"1"'
    fresh = await client.get(path, headers={"If-None-Match": '"1"'})
    assert (fresh.status_code, fresh.content, fresh.headers["etag"]) == (304, b"", '"1"')
    changed = await client.patch(path, json={"content": "Likes mate"}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["etag"], changed.json()["content"]) == (200, '"2"', "Likes mate")
    for stale in ('"1"', 'W/"2"', "2", '"0"', "x"):
        answer = await client.patch(path, json={"content": "x"}, headers={"If-Match": stale})
        assert answer.status_code == 412
    assert (await client.delete(path, headers={"If-Match": '"1"'})).status_code == 412
    assert (await client.patch(path, json={"pinned": True}, headers={"If-Match": "*"})).json()["version"] == 3
    assert (await client.patch(path, json={})).status_code == 422
    assert (await client.delete(path, headers={"If-Match": '"3"'})).status_code == 204
    assert [(await client.request(verb, path)).status_code for verb in ("GET", "DELETE")] == [404, 404]
    assert (await client.patch(path, json={"content": "x"})).status_code == 404
    assert (await client.patch(path, json={"content": "x"}, headers={"If-Match": "*"})).status_code == 412


async def test_an_id_of_ones_own_replaces_nothing_unseen(client: httpx.AsyncClient):
    body = {"content": "Likes tea"}
    assert (await client.put("/v1/memories/drink", json=body)).status_code == 428
    new = {"If-None-Match": "*"}
    assert (await client.put("/v1/memories/drink", json=body, headers=new)).status_code == 201
    assert (await client.put("/v1/memories/drink", json=body, headers=new)).status_code == 412
    answer = await client.put("/v1/memories/drink", json={"content": "Likes mate"}, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["version"]) == (200, 2)
    assert (await client.put("/v1/memories/other", json=body, headers={"If-Match": '"1"'})).status_code == 412


async def test_of_many_changes_at_once_as_many_succeed_as_there_are_versions(client: httpx.AsyncClient):
    path = f"/v1/memories/{(await saved(client, 'Drinks 0 cups'))['id']}"

    async def change(number: int) -> bool:
        seen = (await client.get(path)).headers["etag"]
        text = {"content": f"Drinks {number} cups"}
        return (await client.patch(path, json=text, headers={"If-Match": seen})).status_code == 200

    done = await asyncio.gather(*map(change, range(1, 101)))
    assert (await client.get(path)).json()["version"] == 1 + sum(done)
    assert sum(done) >= 1


async def test_retries_of_a_request_save_one_memory(client: httpx.AsyncClient):
    body, key = {"content": "Likes tea"}, {"Idempotency-Key": "request 1"}
    sent = [client.post("/v1/memories", json=body, headers=key) for _ in range(20)]
    answers = await asyncio.gather(*sent)
    assert sorted(one.status_code for one in answers) == [200] * 19 + [201]
    assert len({one.json()["id"] for one in answers}) == 1
    other = await client.post("/v1/memories", json={"content": "Likes mate"}, headers=key)
    assert other.status_code == 422
    assert (await client.get("/v1/memories")).json()["total"] == 1


async def test_regression_a_repeated_request_stores_nothing_more(client: httpx.AsyncClient):
    """After the memory was deleted, a repetition stored it again and answered 201."""
    body, key = {"content": "Likes tea"}, {"Idempotency-Key": "request 1"}
    first = await client.post("/v1/memories", json=body, headers=key)
    await client.delete(first.headers["location"])
    assert (await client.post("/v1/memories", json=body, headers=key)).status_code == 404
    assert (await client.get("/v1/memories")).json()["total"] == 0


async def test_pages_hold_each_memory_once_while_others_write(client: httpx.AsyncClient):
    for number in range(25):
        await saved(client, f"Fact {number}", memory_type="facts")
    seen, cursor, extra = list[str](), None, count(100)
    while True:
        given = {"limit": 7, "memory_type": "facts"} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/memories", params=given)).json()
        seen += [one["content"] for one in page["memories"]]
        cursor = page["next_cursor"]
        await saved(client, f"Fact {next(extra)}", memory_type="facts")
        if cursor is None:
            break
    assert sorted(seen) == sorted(f"Fact {number}" for number in range(25))
    for bad in ({"cursor": "x"}, {"limit": 201}, {"limit": 0}, {"memory_type": "opinion"}, {"created_after": "x"}):
        answer = await client.get("/v1/memories", params=bad)
        assert answer.status_code == 422, bad
        assert answer.headers["content-type"] == "application/problem+json"


BAD_BODIES = {
    "nothing": b"",
    "bad UTF-8": b'{"content": "\xff"}',
    "NUL": b'{"content": "a\\u0000b"}',
    "lone surrogate": b'{"content": "\\ud800"}',
    "lone surrogate in metadata": b'{"content": "x", "extra_metadata": {"a": "\\udfff"}}',
    "NaN": b'{"content": "x", "extra_metadata": {"a": NaN}}',
    "not a number": b'{"content": "x", "importance": NaN}',
    "deep": b'{"content": "x", "extra_metadata": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
    "deeper": b"[" * 200_000,
    "too long": b'{"content": "%s"}' % (b"x" * 9_000),
    "unknown field": b'{"content": "x", "user_id": "bob"}',
    "a list": b'[{"content": "x"}]',
    "huge number": b'{"content": "x", "importance": 1e999}',
    "year 10000": b'{"content": "x", "expires_at": "10000-01-01T00:00:00Z"}',
    "before the calendar": b'{"content": "x", "valid_from": "0001-01-01T00:00:00+14:00"}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_bad_bodies_are_refused_and_store_nothing(client: httpx.AsyncClient, name: str):
    answer = await client.post("/v1/memories", content=BAD_BODIES[name], headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await client.get("/v1/memories")).json()["total"] == 0


@pytest.mark.parametrize("memory_id", ["%00", "%ff", "a%20b", "%ED%A0%80", "a%2Fb", "..%2f..", "x" * 256, "%3Cb%3E"])
async def test_ids_that_are_none_are_refused(client: httpx.AsyncClient, memory_id: str):
    for verb in ("GET", "DELETE"):
        assert (await client.request(verb, f"/v1/memories/{memory_id}")).status_code in (404, 405, 422)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/memories", "DELETE, GET, HEAD, OPTIONS, POST"),
        ("/v1/memories/x", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("/v1/context", "OPTIONS, POST"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_path_tells_its_methods(client: httpx.AsyncClient, path: str, methods: str):
    answer = await client.options(path)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")
    answer = await client.request("TRACE", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert answer.json()["type"].endswith("method-not-allowed")
    assert (await client.options("/v1/nope")).status_code == 404


async def test_head_is_get_without_the_body(client: httpx.AsyncClient):
    one = await saved(client, "Owns a kiln")
    for path, status in (("/v1/memories", 200), (f"/v1/memories/{one['id']}", 200), ("/v1/memories/nope", 404)):
        got, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (status, b"")
        assert {**head.headers} == {**got.headers}
    assert (await client.head("/v1/context")).status_code == 405


async def test_a_key_that_may_only_read_writes_nothing(client: httpx.AsyncClient):
    app: Any = client._transport
    server = served(app.app.state.service)
    async with server.client("ada", [Permission.READ]) as reader:
        answer = await reader.post("/v1/memories", json={"content": "x"})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:inference-core:error:missing-permission")
        assert (await reader.get("/v1/memories")).status_code == 200
