"""What a server tells of itself: ``/metrics``, the spans of requests, and log lines as JSON."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cli_support import Capture, answer
from commands import started
from langgraph.store.base import BaseStore
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from server_support import READ_WRITE, Served, served
from test_cli_serve import free_port, wait_ready
from test_telemetry import CANARY, CHILDREN, every_verb, exporter  # pyright: ignore[reportUnusedImport] # noqa: F401 - a fixture

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.errors import InvalidInput
from inference_core.ingestion.extraction.rules import RuleExtractor
from inference_core.ingestion.worker import Pipeline
from inference_core.server.identity.auth import Permission
from inference_core.server.telemetry import GAUGES, add_telemetry, prometheus_name
from inference_core.stores.factory import engine_of
from inference_core.telemetry import CAPTURE, METRICS, JsonFormatter, use_json_logs

ADMIN = frozenset({*READ_WRITE, Permission.ADMIN})


@pytest.fixture
def store() -> Iterator[BaseStore]:
    with closing(open_store("memory://", embeddings=None)) as one:
        yield one


@pytest.fixture
async def server(store: BaseStore) -> AsyncIterator[Served]:
    one = served(AgentMemoryStoreService(store))
    ends = add_telemetry(one.app, one.service)
    yield one
    ends()


def scraper(server: Served, address: str = "127.0.0.1", **headers: str) -> httpx.AsyncClient:
    """A client without a key at an ``address``."""
    transport = httpx.ASGITransport(server.app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


async def test_metrics_are_for_this_machine_and_for_admins(server: Served):
    """They are no part of the API: no user's key opens them, and a proxy on this machine does not either."""
    for client, status in (
        (scraper(server), 200),
        (scraper(server, "::1"), 200),
        (scraper(server, "10.1.2.3"), 401),
        (scraper(server, **{"x-forwarded-for": "10.1.2.3"}), 401),
        (scraper(server, Authorization="Bearer wrong"), 401),
        (server.client("ada"), 403),
        (server.client("ada", ADMIN), 200),
    ):
        async with client:
            assert (await client.get("/metrics")).status_code == status
            assert (await client.get("/v1/memories")).status_code in {200, 401}
    assert "/metrics" not in server.app.openapi()["paths"]


async def test_every_metric_is_there_and_nothing_of_a_user(server: Served):
    async with server.client("ada-user-id", ADMIN) as client:
        await client.post("/v1/memories", json={"content": f"Lives in {CANARY}", "memory_type": "facts"})
        await client.post("/v1/memories/search", json={"query": CANARY})
        await client.post("/v1/messages", json={"messages": [{"role": "user", "content": f"I like {CANARY}"}]})
        await client.get(f"/v1/memories/{CANARY}")
        found = (await client.get("/metrics")).text
    families = {one.name: one for one in text_string_to_metric_families(found)}
    told = {prometheus_name(name, unit) for name, (unit, _) in GAUGES.items()}
    assert families.keys() >= told | {prometheus_name(name, one.unit) for name, one in METRICS.items()}
    values = {
        (one.name, *sorted(one.labels.values())): one.value for family in families.values() for one in family.samples
    }
    assert values["inference_core_store_up",] == values["inference_core_outbox_waiting",] == 1
    assert values["gen_ai_client_operation_duration_seconds_count", "", "search_memory"] == 1
    assert values["http_server_request_duration_seconds_count", "/v1/memories/{memory_id}", "404", "GET"] == 1
    assert not [name for name in (CANARY, "ada-user-id") if name in found]


def test_the_page_names_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    names = [prometheus_name(name, unit) for name, (unit, _) in GAUGES.items()]
    names += [prometheus_name(name, one.unit) + "_total" * (one.kind == "counter") for name, one in METRICS.items()]
    assert not [name for name in (*names, *METRICS, *(label for one in METRICS.values() for label in one.labels))
                if f"`{name}`" not in page]  # fmt: skip


async def test_the_number_of_series_does_not_grow_with_the_users(server: Served):
    service = server.service

    async def series(users: range) -> int:
        for user in users:
            await service.save_memory(f"user {user}", f"Fact {user}", "facts", session_id=f"t {user}")
            await service.recall_memories(f"user {user}", "Fact")
        async with scraper(server) as client:
            return len([one for one in (await client.get("/metrics")).text.splitlines() if not one.startswith("#")])

    await series(range(1))
    few = await series(range(10))
    assert await series(range(10, 60)) == few


async def test_a_store_that_is_away_is_down(server: Served):
    engine_of(server.service.store).close()
    async with scraper(server) as client:
        answered = await client.get("/metrics")
    assert "\ninference_core_store_up 0.0\n" in answered.text
    assert "\ninference_core_outbox_waiting " not in answered.text


async def test_one_trace_from_a_request_to_what_is_saved(
    server: Served,
    exporter: InMemorySpanExporter,  # noqa: F811
):
    """The caller's, which it names by the header traceparent."""
    parent = f"00-{7:032x}-{9:016x}-01"
    async with server.client("ada") as client:
        message = {"role": "user", "content": "I live in Lisbon."}
        await client.post("/v1/messages", json={"messages": [message]}, headers={"traceparent": parent})
    pipeline = Pipeline(server.service.scope, RuleExtractor())
    for found in run(pipeline.partitions()):
        run(pipeline.process(found))
    spans = [one for one in exporter.get_finished_spans() if one.context and one.context.trace_id == 7]
    names = {one.context.span_id: one.name for one in spans if one.context}
    chain = {one.name: names.get(one.parent.span_id, "caller") for one in spans if one.parent}
    assert chain["POST /v1/messages"] == "caller"
    assert chain["add_messages"] == "POST /v1/messages"
    assert chain["process outbox"] == "add_messages"
    assert chain["db_write"] == "process outbox"
    assert not [one for one in spans if "Lisbon" in one.to_json()]
    exporter.clear()
    with trace.get_tracer_provider().get_tracer("an instrumentation").start_as_current_span("of another one"):
        async with server.client("ada") as client:
            await client.get(f"/v1/memories?search={CANARY}")
    spans = exporter.get_finished_spans()
    assert {one.name for one in spans} <= {"of another one", "list_memories", *CHILDREN}
    assert not [one for one in spans if CANARY in one.to_json()]


async def test_the_page_names_every_attribute_of_a_span(
    server: Served,
    store: BaseStore,
    exporter: InMemorySpanExporter,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    """Of verbs and their parts, an error, a request and a worker, with all that is allowed."""
    monkeypatch.setenv(CAPTURE, "true")
    service = AgentMemoryStoreService(store, agent_name="planner")
    list(every_verb(service))
    async with server.client("ada") as client:
        await client.post("/v1/messages", json={"messages": [{"role": "user", "content": "I live in Lisbon."}]})
        assert (await client.post("/v1/memories", json={"content": "x", "type": "none"})).status_code == 422
    with pytest.raises(InvalidInput):
        service.sync.save_memory("ada", CANARY, "no type")
    pipeline = Pipeline(service.scope, RuleExtractor())
    for found in run(pipeline.partitions()):
        run(pipeline.process(found))
    emitted = {name for span in exporter.get_finished_spans() for name in span.attributes or ()}
    page = (Path(__file__).parents[2] / "docs/telemetry.md").read_text("utf-8")
    table = page.partition("| attribute | value |")[2].partition("\n\n")[0]
    named = {
        name for line in table.splitlines() if line for name in re.findall(r"`([\w.]+\.[\w.]+)`", line.split("|")[1])
    }
    assert emitted == named


def test_a_line_names_the_trace_and_no_user(exporter: InMemorySpanExporter):  # noqa: F811
    def line(key: bytes, user: str) -> str:
        try:
            raise ValueError(CANARY)
        except ValueError:
            record = logging.LogRecord("inference_core.x", 40, "x.py", 1, "Saving %s failed", ("it",), sys.exc_info())
        record.__dict__ |= {"user_id": user, "key_id": "k", "secret": CANARY}
        return JsonFormatter(key).format(record)

    with trace.get_tracer_provider().get_tracer("test").start_as_current_span("span") as span:
        found = json.loads(line(b"key", "user ada"))
    assert found["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert (found["message"], found["error"], found["key_id"]) == ("Saving it failed", "ValueError", "k")
    assert "test_a_line_names" not in found["message"]
    assert CANARY not in str(found)
    assert "user ada" not in str(found)
    users = [
        json.loads(line(key, user))["user"] for key, user in ((b"key", "user ada"), (b"key", "bob"), (b"2", "user ada"))
    ]
    assert users[0] == found["user"]
    assert len(set(users)) == 3


async def test_each_request_is_a_line(server: Served, capsys: Capture):
    handlers, level = logging.root.handlers[:], logging.getLogger("inference_core").level
    try:
        use_json_logs(b"key")
        async with server.client("ada-user-id") as client:
            await client.get(f"/v1/memories/{CANARY}?search={CANARY}")
    finally:
        logging.root.handlers[:] = handlers
        logging.getLogger("inference_core").setLevel(level)
    (line,) = [json.loads(one) for one in capsys.readouterr().err.splitlines()]
    assert line["message"] == "GET /v1/memories/{memory_id} 404"
    assert (line["status"], len(line["user"])) == (404, 16)
    assert line["key_id"]
    assert not [name for name in (CANARY, "ada-user-id") if name in str(line)]


@pytest.mark.untraced
def test_a_server_logs_json_alone(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path):
    """Also what uvicorn says; and it has its metrics."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    answer(capsys, "keys", "create", "--user", "ada")
    port, log = free_port(), tmp_path / "log.txt"
    with started("serve", "--port", str(port), "--json-logs", log=log) as server:
        wait_ready(port)
        found = httpx.get(f"http://127.0.0.1:{port}/metrics")
        server.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0
    assert "inference_core_store_up 1.0" in found.text
    lines = [json.loads(one) for one in log.read_text().splitlines() if one.startswith("{")]
    assert {one["logger"] for one in lines} == {"inference_core.server.access"}
    assert [one for one in log.read_text().splitlines() if not one.startswith("{")] == [
        f"Serving http://127.0.0.1:{port}, with pages at /ui and the API at /v1 (Ctrl-C ends)"
    ]
