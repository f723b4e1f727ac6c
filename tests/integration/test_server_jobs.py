"""Jobs over HTTP: exports, bulk saves, forgetting and erasing that go on after the response, and after a server."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from server_support import BASE, Served, served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import Operation, arun, run
from inference_core.errors import StoreUnavailable, WriteUnknown
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import AUDIT, JOBS_ROOT, PORTIONS
from inference_core.memory.text import encode_json
from inference_core.server.api import jobs, routes
from inference_core.server.api.jobs import ABANDONED, Jobs, Stopped, StoredJob, save_each
from inference_core.server.identity.auth import CACHED_S, Permission, revoke_key
from inference_core.services.operations.list import list_memories
from inference_core.stores.backend import Check, Put, Remove, Row
from inference_core.stores.engine import StoreEngine
from inference_core.testing import FrozenClock

ADMIN = (Permission.READ, Permission.WRITE, Permission.ADMIN)
OPERATOR = (*ADMIN, Permission.ACT_AS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "TELL_S", 0.01)
    monkeypatch.setattr(routes, "TELL_S", 0.01)
    monkeypatch.setattr(jobs, "PORTION", 3)


@pytest.fixture
def clock() -> FrozenClock:
    """Stands still now: databases compare the ends of rows with their own time."""
    return FrozenClock(datetime.now(UTC))


@pytest.fixture
def server(tmp_path: Path, clock: FrozenClock) -> Iterator[Served]:
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        yield served(AgentMemoryStoreService(store, clock=clock), ledger=tmp_path / "erasures.jsonl")


async def begun(client: httpx.AsyncClient, kind: str, body: Any = None, **headers: str) -> str:
    """The address of a new job."""
    answer = await client.post(f"/v1/jobs/{kind}", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return answer.headers["location"]


async def ended(client: httpx.AsyncClient, job: str) -> dict[str, Any]:
    """The job when it is over."""
    for _ in range(1_000):
        answer = await client.get(job)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        if found["state"] in ("done", "failed"):
            return found
        await asyncio.sleep(0.01)
    raise TimeoutError


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def nothing(*_: object) -> None: ...


async def test_many_memories_are_saved_and_exported_by_jobs(server: Served):
    given = [{"content": f"Fact {number}", "memory_type": "facts"} for number in range(7)] + [{"content": " "}]
    async with server.client("ada") as client:
        saving = await begun(client, "save", {"memories": given}, **{"Idempotency-Key": "1"})
        assert await begun(client, "save", {"memories": given}, **{"Idempotency-Key": "1"}) == saving
        other = {"memories": given[:1]}
        again = await client.post("/v1/jobs/save", json=other, headers={"Idempotency-Key": "1"})
        assert (again.status_code, again.json()["type"].rpartition(":")[2]) == (422, "invalid-input")
        done = await ended(client, saving)
        assert (done["kind"], done["state"], done["done"], done["total"]) == ("save", "done", 8, 8)
        assert done["result"] == {"stored": 7, "refused": 1}
        told = lines_of(await client.get(f"{saving}/result"))
        assert [one["status"] for one in told] == [201] * 7 + [422]
        exporting = await begun(client, "export")
        assert (await ended(client, exporting))["result"] == {"exported": 7}
        memories = lines_of(await client.get(f"{exporting}/result"))
        assert {one["content"] for one in memories} == {one["content"] for one in given[:7]}
        assert {one["id"] for one in memories} == {one["id"] for one in told[:7]}
        listed = (await client.get("/v1/jobs")).json()["jobs"]
        assert {f"/v1/jobs/{one['id']}" for one in listed} == {saving, exporting}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_regression_metadata_that_is_nested_too_deeply_is_the_callers_fault(server: Served):
    """The server said that it had failed."""
    async with server.client("ada") as client:
        deeply = {"memories": [{"content": "Likes tea", "extra_metadata": nested(300)}]}
        answer = await client.post("/v1/jobs/save", json=deeply)
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "invalid-memory")
        less = {"memories": [{"content": "Likes tea", "extra_metadata": nested(levels)} for levels in (100, 10)]}
        saving = await begun(client, "save", less)
        assert (await ended(client, saving))["result"] == {"stored": 1, "refused": 1}


async def test_a_job_is_its_users_alone(server: Served):
    async with server.client("ada") as ada, server.client("bob", ADMIN) as bob:
        job = await begun(ada, "export", **{"Idempotency-Key": "1"})
        await ended(ada, job)
        for path in (job, f"{job}/events", f"{job}/result"):
            answer = await bob.get(path)
            assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (404, "no-such-job")
        assert (await bob.get("/v1/jobs")).json() == {"jobs": []}
        assert await begun(bob, "export", **{"Idempotency-Key": "1"}) != job
        await ended(bob, (await bob.get("/v1/jobs")).json()["jobs"][0]["id"].join(["/v1/jobs/", ""]))


async def test_progress_is_a_stream_of_events_that_can_be_taken_up(server: Served):
    for number in range(7):
        server.service.sync.save_memory("ada", f"Fact {number}")
    async with server.client("ada") as client:
        job = await begun(client, "export")
        answer = await client.get(f"{job}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [dict(line.split(": ", 1) for line in one.splitlines()) for one in answer.text.strip().split("\n\n")]
        told = [json.loads(one["data"]) for one in events]
        assert (events[-1]["event"], told[-1]["state"], told[-1]["result"]) == ("done", "done", {"exported": 7})
        numbers = [int(one["id"]) for one in events]
        assert numbers == sorted(set(numbers))
        again = await client.get(f"{job}/events", headers={"Last-Event-ID": "0"})
        assert again.text.count("event: done") == 1
        over = await client.get(f"{job}/events", headers={"Last-Event-ID": events[-1]["id"]})
        assert (over.status_code, over.content) == (204, b"")


@pytest.fixture
def runner(server: Served, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Runs exports that end with the server."""
    runs: Jobs = server.app.state.jobs

    def waits(*_: object) -> dict[str, Any]:
        while not runs.is_closing:
            time.sleep(0.01)
        return {}

    monkeypatch.setattr(runs, "_export", waits)
    return runs


def looks_at(runs: Jobs, monkeypatch: pytest.MonkeyPatch) -> asyncio.Semaphore:
    """Is released each time that a stream, or another call, looks at a job from now on."""
    looks, get = asyncio.Semaphore(0), runs.get

    async def noted(user: str, job_id: str) -> Any:
        looks.release()
        return await get(user, job_id)

    monkeypatch.setattr(runs, "get", noted)
    return looks


async def test_regression_a_stream_ends_with_its_key(server: Served, runner: Jobs, monkeypatch: pytest.MonkeyPatch):
    """Who followed a job was told of it for five minutes after the key was revoked."""
    key = server.key("ada")
    async with server.client() as client:
        client.headers["Authorization"] = f"Bearer {key}"
        job, looks = await begun(client, "export"), looks_at(runner, monkeypatch)
        following = asyncio.create_task(client.get(f"{job}/events"))
        for _ in range(2):
            await looks.acquire()
        assert not following.done()
        await arun(revoke_key(server.service.scope.engine, key[3:11]))
        await asyncio.wait_for(following, 60)
    await runner.close()


async def test_regression_a_stream_of_a_platforms_user_goes_on(
    server: Served, runner: Jobs, monkeypatch: pytest.MonkeyPatch
):
    """The platform's own token was looked up among the keys of this server, where it is not, and the stream ended."""
    platform = served(server.service, is_platform=True)
    platform.app.state.jobs = runner

    async def signed_in(scope: Any, receive: Any, send: Any) -> None:
        await platform.app(scope | {"user": SimpleNamespace(identity="ada", is_authenticated=True)}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(signed_in), base_url=BASE) as client:
        client.headers["Authorization"] = "Bearer token-of-the-platform"
        job, looks = await begun(client, "export"), looks_at(runner, monkeypatch)
        following = asyncio.create_task(client.get(f"{job}/events"))
        for _ in range(3):
            await looks.acquire()
        assert not following.done()
        await runner.close()
        await asyncio.wait_for(following, 60)


async def test_regression_an_export_with_portions_of_an_earlier_attempt_has_its_result(server: Served):
    """A server that went on with an export after memories were deleted wrote fewer portions: the result was "gone"."""
    async with server.client("ada") as client:
        await client.post("/v1/memories", json={"content": "Likes tea"})
        job = await begun(client, "export")
        await ended(client, job)
        runs: Jobs = server.app.state.jobs
        await arun(runs.portions.put("ada", job.rpartition("/")[2], 1, {"lines": [{"content": "since deleted"}]}))
        assert [one["content"] for one in lines_of(await client.get(f"{job}/result"))] == ["Likes tea"]


async def test_a_stream_without_news_beats_and_ends_with_the_server(
    server: Served, runner: Jobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(routes, "BEAT_S", 0)
    async with server.client("ada") as client:
        job = await begun(client, "export")
        early = await client.get(f"{job}/result")
        assert (early.status_code, early.json()["type"].rpartition(":")[2]) == (409, "job-not-done")
        looks = looks_at(runner, monkeypatch)
        following = asyncio.create_task(client.get(f"{job}/events"))
        for _ in range(5):
            await looks.acquire()
        assert not following.done()
        await runner.close()
        assert (await following).text.count(": \n\n") > 1


async def test_forgetting_as_a_job_does_what_it_does_at_once(server: Served):
    async with server.client("ada") as client:
        for number in range(5):
            await client.post("/v1/memories", json={"content": f"Fact {number}", "memory_type": "facts"})
        policy = {"max_memories": {"facts": 3}}
        planned = (await client.post("/v1/forget", json=policy | {"dry_run": True})).json()
        assert (await ended(client, await begun(client, "forget", policy | {"dry_run": True})))["result"] == planned
        assert (await ended(client, await begun(client, "forget", policy)))["result"] == planned
        assert (await client.get("/v1/stats")).json()["memories"] == 3
        assert (await client.post("/v1/jobs/forget", json={"max_memories": {"opinions": 3}})).status_code == 422


async def test_an_erasure_leaves_nothing_of_the_user_but_its_receipt(server: Served, tmp_path: Path):
    ada = "ada.lovelace@example.com"
    async with server.client("operator", OPERATOR) as admin, server.client("bob") as bob, server.client(ada) as own:
        admin.headers["Act-As-User"] = ada
        await own.post("/v1/memories", json={"content": "Lives in Lisbon by the river"})
        await bob.post("/v1/memories", json={"content": "Likes tea"})
        await ended(admin, await begun(admin, "export"))
        assert (await bob.post("/v1/jobs/erase", json={"dry_run": True})).status_code == 403
        planned = await ended(admin, await begun(admin, "erase", {"dry_run": True}))
        assert planned["result"]["found"] > 2
        assert (await admin.get("/v1/memories")).json()["total"] == 1
        done = await ended(admin, await begun(admin, "erase", {"dry_run": False, "reason": "asked"}))
        await asyncio.sleep(CACHED_S)
        assert (await own.get("/v1/memories")).status_code == 401  # an erasure removes the user's keys, too
    assert (done["state"], done["result"]["left"], done["result"]["reason"]) == ("done", 0, "asked")
    assert done["result"]["found"] >= planned["result"]["found"]
    assert set(done["result"]["files"].values()) == {0}
    assert server.service.sync.count_memories("bob")["total"] == 1
    for name in os.listdir(tmp_path):  # noqa: PTH208 - nobody else waits
        content = (tmp_path / name).read_bytes()
        assert b"ada.lovelace" not in content, name
        assert b"by the river" not in content, name


@pytest.mark.parametrize("kind", ["export", "save"])
async def test_regression_a_job_brings_nothing_of_an_erased_user_back(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """A job that had read memories, or what it was to save, before an erasure stored them after it."""
    erased = list[int]()

    def erase_now() -> None:
        erased.append(erase([server.service.scope.engine.backend], "ada", Ledger(tmp_path / "erasures.jsonl")).left)

    async def read(*args: Any, **options: Any) -> Any:
        found = await list_memories(*args, **options)
        erase_now()
        return found

    async def saves(*args: Any) -> list[Any]:
        erase_now()
        return await save_each(*args)

    monkeypatch.setattr(jobs, "list_memories", read)
    monkeypatch.setattr(jobs, "save_each", saves)
    runner: Jobs = server.app.state.jobs
    async with server.client("ada") as client:
        await client.post("/v1/memories", json={"content": "Lives in Lisbon"})
        await begun(client, kind, {"memories": [{"content": "Likes tea"}]} if kind == "save" else None)
        await asyncio.gather(*runner._running)
    assert erased == [0]
    assert not list(server.service.scope.engine.backend.inspect("ada"))
    assert not await runner.all_of("ada")


@pytest.mark.parametrize("kind", ["export", "save"])
async def test_the_first_erasure_of_a_store_ends_no_job_of_others(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    async def erases_bob(*args: Any) -> list[Check]:
        checks = await fence(*args)
        erase([server.service.scope.engine.backend], "bob", Ledger(tmp_path / "erasures.jsonl"))
        return checks

    runner: Jobs = server.app.state.jobs
    fence = runner.portions.fence
    monkeypatch.setattr(runner.portions, "fence", erases_bob)
    async with server.client("ada") as client:
        await client.post("/v1/memories", json={"content": "Lives in Lisbon"})
        job = await begun(client, kind, {"memories": [{"content": "Likes tea"}]} if kind == "save" else None)
        done = await ended(client, job)
        assert done["result"] == ({"stored": 1, "refused": 0} if kind == "save" else {"exported": 1})


async def test_a_server_without_a_ledger_erases_nobody(server: Served):
    async with served(server.service).client("ada", ADMIN) as admin:
        answer = await admin.post("/v1/jobs/erase", json={"dry_run": True})
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (501, "configuration-error")


async def test_secrets_are_not_kept_while_a_bulk_waits(server: Served, monkeypatch: pytest.MonkeyPatch):
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    runner: Jobs = server.app.state.jobs
    monkeypatch.setattr(runner, "_start", nothing)
    async with server.client("ada") as client:
        job = await begun(client, "save", {"memories": [{"content": f"The API token is {secret}"}]})
    (row,) = run(server.service.scope.engine.scan([("ada", PORTIONS, job.rpartition("/")[2])]))
    assert "redacted" in str(row.value)
    assert secret not in str(row.value)


async def test_another_server_goes_on_with_what_one_has_left(
    server: Served, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    """A job whose server ended was never done: nobody looked at rows that were running."""
    first: Jobs = server.app.state.jobs
    monkeypatch.setattr(first, "_start", nothing)
    async with server.client("ada", ADMIN) as client:
        saving = await begun(client, "save", {"memories": [{"content": f"Fact {number}"} for number in range(5)]})
        erasing = await begun(client, "erase", {"dry_run": True})
    second = served(server.service, ledger=None)
    runner: Jobs = second.app.state.jobs
    async with second.client("ada") as client:
        await looked(runner)
        states = [(await client.get(job)).json()["state"] for job in (saving, erasing)]
        assert states == ["queued", "queued"]  # their server may be busy
        clock.advance(ABANDONED + timedelta(seconds=1))
        await looked(runner)
        assert (await ended(client, saving))["result"] == {"stored": 5, "refused": 0}
        left = (await client.get(erasing)).json()
        assert (left["state"], left["problem"]["type"].rpartition(":")[2]) == ("failed", "interrupted")
    assert server.service.sync.count_memories("ada")["total"] == 5


async def test_what_a_later_version_has_added_to_a_job_is_left_out(server: Served):
    """One such row ended the search for jobs that are left, without a word."""
    async with server.client("ada") as client:
        job = await begun(client, "export")
        await ended(client, job)
    engine = server.service.scope.engine
    (row,) = await arun(engine.scan(await arun(engine.namespaces((JOBS_ROOT,)))))
    assert StoredJob.of(replace(row, value={**row.value, "priority": 3})) == StoredJob.of(row)


async def looked(runner: Jobs) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(runner.take_up(), 0.3)


async def test_a_stopped_job_is_put_back_and_does_nothing_twice(server: Served):
    given = [{"content": f"Fact {number}"} for number in range(9)]
    first: Jobs = server.app.state.jobs
    async with server.client("ada") as client:
        job = await begun(client, "save", {"memories": given})
        first.stop()
        await first.close()
        assert (await client.get(job)).json()["state"] in ("queued", "done")
    second = served(server.service)
    async with second.client("ada") as client:
        await looked(second.app.state.jobs)
        assert (await ended(client, job))["result"] == {"stored": 9, "refused": 0}
    assert server.service.sync.count_memories("ada")["total"] == 9


async def test_a_failure_is_told_without_what_it_quotes(server: Served, monkeypatch: pytest.MonkeyPatch):
    runner: Jobs = server.app.state.jobs

    def fails(*_: object) -> dict[str, Any]:
        raise RuntimeError("Lives in Lisbon")

    monkeypatch.setattr(runner, "_export", fails)
    async with server.client("ada") as client:
        failed = await ended(client, await begun(client, "export"))
    assert (failed["state"], failed["result"]) == ("failed", None)
    assert failed["problem"]["type"].endswith("internal-error")
    assert "Lisbon" not in str(failed)


async def test_of_two_servers_with_one_job_the_later_has_it(server: Served):
    first: Jobs = server.app.state.jobs
    async with server.client("ada") as client:
        job = await begun(client, "export")
        await ended(client, job)
    stale = await first.get("ada", job.rpartition("/")[2])
    assert isinstance(stale, StoredJob)
    stale.version, stale.server = stale.version - 1, "the earlier"
    await first._tell(stale)
    assert stale.is_stopped
    with pytest.raises(Stopped):
        stale.advance(1, 2)


async def test_a_request_that_broke_off_is_taken_in_as_a_whole_when_it_is_sent_again(
    server: Served, monkeypatch: pytest.MonkeyPatch
):
    """The second attempt used to leave out every portion that the first one had not stored."""
    body = {"memories": [{"content": f"tea {number}", "memory_type": "facts"} for number in range(7)]}
    engine, write = server.service.scope.engine, type(server.service.scope.engine).write
    calls = iter(range(1_000))

    def breaks_off(self: StoreEngine, *args: Any, **kwargs: Any) -> Operation[list[int]]:
        if next(calls) == 1:
            raise StoreUnavailable("the database is away")
        return write(self, *args, **kwargs)

    async with server.client("ada") as client:
        with monkeypatch.context() as patched:
            patched.setattr(type(engine), "write", breaks_off)
            answer = await client.post("/v1/jobs/save", json=body, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 503
        other = {"memories": body["memories"][:1]}
        refused = await client.post("/v1/jobs/save", json=other, headers={"Idempotency-Key": "k"})
        assert refused.status_code in (409, 422)
        job = await begun(client, "save", body, **{"Idempotency-Key": "k"})
        assert (await ended(client, job))["result"] == {"stored": 7, "refused": 0}
        assert len(lines_of(await client.get(job + "/result"))) == 7


@pytest.mark.parametrize("is_there", [False, True], ids=["it was not written", "it was, unconfirmed"])
async def test_regression_what_became_of_a_job_is_told_until_it_is_written(
    server: Served, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
):
    """One failed write, and the next server said that a finished erasure had failed, or forgot once more."""
    monkeypatch.setattr(jobs, "_AGAIN_S", 0.01)
    engine = server.service.scope.engine
    write, failures = type(engine).write, iter([None] * 3)

    async def fails_at_the_end(self: StoreEngine, batch: Any, *args: Any, **kwargs: Any) -> list[int]:
        if '"state":"done"' in batch[0].value and next(failures, "none left") is None:
            if is_there:
                await write(self, batch, *args, **kwargs)
            raise WriteUnknown("the store did not confirm it")
        return await write(self, batch, *args, **kwargs)

    monkeypatch.setattr(type(engine), "write", fails_at_the_end)
    async with server.client("ada") as client:
        done = await ended(client, await begun(client, "export"))
    assert (done["state"], done["result"]) == ("done", {"exported": 0})


async def test_regression_what_a_job_was_given_is_kept_longer_than_the_job(
    server: Served, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    """It ended a day after it was sent, and the job a day after its last change: that saved nothing, and was done."""
    first: Jobs = server.app.state.jobs
    monkeypatch.setattr(first, "_start", nothing)
    async with server.client("ada") as client:
        saving = await begun(client, "save", {"memories": [{"content": f"Fact {number}"} for number in range(5)]})
    clock.advance(timedelta(hours=23))
    job = await first.get("ada", saving.rpartition("/")[2])
    assert job is not None
    await first._tell(job)
    rows = [row for row in server.service.scope.engine.backend.inspect() if isinstance(row, Row)]
    ours = [row for row in rows if job.id in (row.key, row.namespace[-1])]
    ends = {row.namespace[1] == PORTIONS: row.expiry.at for row in ours if row.expiry}
    assert ends[True] > ends[False]


async def test_a_job_whose_portions_are_gone_says_so_instead_of_giving_less(
    server: Served, monkeypatch: pytest.MonkeyPatch
):
    first: Jobs = server.app.state.jobs
    async with server.client("ada", ADMIN) as client:
        exported = await begun(client, "export")
        await ended(client, exported)
        monkeypatch.setattr(first, "_start", nothing)
        saving = await begun(client, "save", {"memories": [{"content": "Fact"}]})
        engine = server.service.scope.engine
        places = await arun(engine.namespaces(("ada",)))
        rows = await arun(engine.scan([place for place in places if PORTIONS in place]))
        for row in rows:
            await arun(engine.write([Remove(namespace=row.namespace, key=row.key)]))
        assert (await client.get(exported + "/result")).status_code == 404
        job = await first.get("ada", saving.rpartition("/")[2])
        assert job is not None
        job.is_given_up = True
        await first._tell(job)
        second = served(server.service)
        await looked(second.app.state.jobs)
        assert (await ended(client, saving))["state"] == "failed"


async def test_regression_a_job_that_another_server_goes_on_with_keeps_its_actor(
    server: Served, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    first: Jobs = server.app.state.jobs
    async with server.client("ada") as client:
        await ended(client, await begun(client, "save", {"memories": [{"content": "First"}]}))
        monkeypatch.setattr(first, "_start", nothing)
        saving = await begun(client, "save", {"memories": [{"content": "Second"}]})
        clock.advance(ABANDONED + timedelta(seconds=1))
        second = served(server.service)
        await looked(second.app.state.jobs)
        await ended(client, saving)
    rows = [row for row in server.service.scope.engine.backend.inspect("ada") if isinstance(row, Row)]
    actors = [row.value["actor"] for row in rows if row.namespace[1:] == (AUDIT,) and "actor" in row.value]
    assert len(actors) == 2
    assert actors[0] == actors[1]
    assert actors[0]["id"].startswith("key ")


async def test_regression_a_job_of_a_kind_that_a_later_version_added_is_left_to_it(
    server: Served, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    """It was marked as running, and ended the search for others."""
    first: Jobs = server.app.state.jobs
    monkeypatch.setattr(first, "_start", nothing)
    async with server.client("ada") as client:
        unknown, saving = await begun(client, "export"), await begun(client, "save", {"memories": [{"content": "tea"}]})
        engine = server.service.scope.engine
        for row in await arun(engine.scan(await arun(engine.namespaces((JOBS_ROOT,))))):
            if row.key == unknown.rpartition("/")[2]:
                value = encode_json({**row.value, "kind": "reindex"}, what="job")
                put = Put(namespace=row.namespace, key=row.key, value=value, updated_at=clock.now())
                await arun(engine.write([put]))
        clock.advance(ABANDONED + timedelta(seconds=1))
        second = served(server.service)
        await looked(second.app.state.jobs)
        assert (await ended(client, saving))["state"] == "done"
        left = await first.get("ada", unknown.rpartition("/")[2])
        assert left is not None
        assert left.state == "queued"


async def test_regression_requests_sent_at_once_begin_no_more_jobs_than_allowed(server: Served):
    async with server.client("ada") as client:
        answers = await asyncio.gather(*(client.post("/v1/jobs/export") for _ in range(3 * jobs.MOST)))
        assert [one.status_code for one in answers].count(202) == jobs.MOST
    async with server.client("bob") as client:
        for _ in range(jobs.MOST - 1):
            await begun(client, "export")
        same = {"Idempotency-Key": "last"}
        assert len(set(await asyncio.gather(*(begun(client, "export", None, **same) for _ in range(3))))) == 1


async def test_a_user_may_have_ten_unfinished_jobs_and_exports(server: Served, monkeypatch: pytest.MonkeyPatch):
    """Each export keeps a copy of all memories for a day, which no quota counts."""
    first: Jobs = server.app.state.jobs
    async with server.client("ada", ADMIN) as client, server.client("bob") as other:
        for number in range(jobs.MOST):
            await ended(client, await begun(client, "export", None, **{"Idempotency-Key": str(number)}))
        await ended(client, await begun(client, "export", None, **{"Idempotency-Key": "0"}))
        for _ in range(2):
            refused = await client.post("/v1/jobs/export")
            assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (429, "too-many-jobs")
        await ended(other, await begun(other, "export"))
        monkeypatch.setattr(first, "_start", nothing)
        await begun(client, "erase", {"dry_run": True})
