"""Telemetry: the spans of every verb, who is their parent, and that no text leaves by them unless it is allowed to."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from agent_support import make_agent, patient_memory
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore
from langsmith import Client, RunTree
from langsmith.run_helpers import tracing_context
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from outbox_support import answering, pipeline_on, put, said, step
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store, telemetry
from inference_core.effects import run
from inference_core.errors import InvalidInput
from inference_core.ingestion.extraction.rules import RuleExtractor
from inference_core.ingestion.worker import Pipeline
from inference_core.memory.namespaces import Space
from inference_core.memory.receipt import Receipt
from inference_core.outbox.messages import Extraction
from inference_core.outbox.outbox import Outbox, Waiting
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.stores.factory import engine_of
from inference_core.stores.indexing.indexes import Snapshot
from inference_core.telemetry import METRICS, traceparent
from inference_core.testing import ScriptedChatModel

U = "ada-user-id"
CANARY = "zanzibar"
NAME, COUNT, ID = "gen_ai.operation.name", "gen_ai.memory.record.count", "gen_ai.memory.record.id"
TEXTS = ("gen_ai.memory.query.text", "gen_ai.memory.records")
CHILDREN = {
    "embeddings": {NAME},
    "index_refresh": set[str](),
    "rank": set[str](),
    "rerank": set[str](),
    "db_write": {"db.system.name", "db.operation.batch.size"},
}
NOW = datetime.now(UTC)
RECEIPT = Receipt(
    id="r-1", at=NOW, until=NOW, recalled_at=NOW, zone="UTC", status="recalled", placement="last_user",
    has_profile=False, form="xml", lines=(), dropped=(), tokens=0, profile_hash="", block_hash="",
)  # fmt: skip


class Backwards:
    """A re-ranker."""

    def rerank(self, query: str, texts: list[str]) -> list[float]:
        return [float(at) for at, _ in enumerate(texts)]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Collects the spans of a tracer provider that only this test has."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """Collects the metrics of a provider that only this test has."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    yield reader
    provider.shutdown()


@pytest.fixture
def store() -> Iterator[BaseStore]:
    with closing(open_store("memory://", embeddings=HashingEmbeddings(), reranker=Backwards())) as one:
        yield one


def verbs(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    """The spans of verbs, without those of their parts; the exporter is emptied."""
    found = [one for one in spans.get_finished_spans() if one.name not in CHILDREN]
    spans.clear()
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def every_verb(service: AgentMemoryStoreService) -> Iterator[tuple[str, set[str], Any]]:
    """Each verb of the service once: its span's name, the attributes beside that, and what it gave."""
    memory = service.sync
    one = memory.save_memory(U, f"Lives in {CANARY}", "facts", session_id="t-1")
    yield "create_memory", {"gen_ai.conversation.id", ID, COUNT}, one
    two = memory.save_memory(U, f"Likes {CANARY}", "preferences", memory_id="m-2")
    yield "upsert_memory", {ID, COUNT}, two
    yield "get_memory", {ID, COUNT}, memory.get_memory(U, one)
    yield "search_memory", {COUNT}, memory.recall_memories(U, f"Where is {CANARY}?")
    yield "search_memory", {COUNT}, memory.recall_by_category(U, "semantic", CANARY)
    yield "update_memory", {ID, COUNT}, memory.update_memory(U, one, f"Moved to {CANARY}")
    yield "list_memories", {COUNT}, memory.list_memories(U)
    yield "count_memories", {COUNT}, memory.count_memories(U)
    yield "get_memory_history", {ID, COUNT}, memory.get_memory_history(U, one)
    yield "audit", {COUNT}, memory.audit(U)
    yield "verify_audit", set(), memory.verify_audit(U)
    yield "why", {ID}, memory.why(U, one)
    profile = memory.get_profile(U)
    yield "get_profile", set(), profile
    yield "edit_profile", {COUNT}, memory.edit_profile(U, f"{profile.text}- Lives in {CANARY}", profile.text)
    yield "list_receipts", {COUNT}, memory.list_receipts(U)
    yield "search_memory", {COUNT}, memory.get_user_context(U)
    yield "search_memory", {COUNT}, memory.get_user_context_with_timestamps(U)
    yield "search_memory", set(), memory.format_context_for_prompt(U, CANARY)
    yield "list_pending", {COUNT}, memory.list_pending(U)
    yield "approve_pending", {ID, COUNT}, memory.approve_pending(U, "none")
    yield "reject_pending", {ID, COUNT}, memory.reject_pending(U, "none", CANARY)
    yield "add_messages", {COUNT}, memory.add_messages(U, [HumanMessage(f"I like {CANARY}", id="1")])
    yield "add_completion", {COUNT}, memory.add_completion(U, CANARY)
    yield "get_spaces", {COUNT}, memory.get_spaces(U)
    yield "grant", set(), memory.grant(Space(CANARY), "read", U)
    yield "list_grants", {COUNT}, memory.list_grants(Space(CANARY))
    yield "revoke", set(), memory.revoke(Space(CANARY), U)
    held = memory.hold(U, CANARY)
    yield "hold", set(), held
    yield "list_holds", {COUNT}, memory.list_holds(U)
    yield "list_held_copies", {COUNT}, memory.list_held_copies(U)
    yield "release_hold", set(), memory.release_hold(U, held.id)
    yield "rebuild_receipt", set(), memory.rebuild_receipt(U, RECEIPT)
    yield "delete_memory", {ID, COUNT}, memory.delete_memory(U, one)
    yield "delete_memory", {COUNT}, memory.delete_user_memories(U)


def test_every_verb_is_one_span_with_the_attributes_of_the_conventions(
    store: BaseStore, exporter: InMemorySpanExporter, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
):
    """The table of docs/telemetry.md; no text and no user in any span, metric or log line."""
    seen, told = list[str](), list[str]()
    with caplog.at_level(logging.DEBUG):
        for name, allowed, _ in every_verb(AgentMemoryStoreService(store, agent_name="planner")):
            told += [span.to_json() for span in exporter.get_finished_spans()]
            (span,) = verbs(exporter)
            assert (span.name, span.kind, span.parent) == (name, SpanKind.INTERNAL, None)
            found = attributes(span)
            assert set(found) == allowed | {NAME, "gen_ai.agent.name"}, name
            assert (found[NAME], span.status.status_code) == (name, StatusCode.UNSET)
            seen.append(name)
    data = reader.get_metrics_data()
    assert data is not None
    told += [data.to_json(), caplog.text]
    assert not [one for one in told if CANARY in one or U in one]
    for resource in data.resource_metrics:
        for one in resource.scope_metrics[0].metrics:
            metric = METRICS[one.name]
            assert (metric.unit, metric.description) == (one.unit, one.description)
            assert {key for point in one.data.data_points for key in point.attributes or {}} <= set(metric.labels)
    names = [name for name in vars(SyncMemoryService) if not name.startswith("_")]
    assert len(seen) == len(names) + 1, "no verb is left out; a save has two names"


def test_texts_go_into_spans_only_where_they_are_allowed(
    store: BaseStore, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(telemetry.CAPTURE, "true")
    service = AgentMemoryStoreService(store)
    one = service.sync.save_memory(U, f"Lives in {CANARY}", "facts")
    service.sync.recall_memories(U, CANARY)
    saved, found = (attributes(span) for span in verbs(exporter))
    assert json.loads(saved[TEXTS[1]]) == [{"content": f"Lives in {CANARY}"}]
    (record,) = json.loads(found[TEXTS[1]])
    assert (record["id"], record["content"], found[TEXTS[0]]) == (one, f"Lives in {CANARY}", CANARY)
    assert record["score"] > 0


def test_an_error_is_told_by_its_class(store: BaseStore, exporter: InMemorySpanExporter):
    with pytest.raises(InvalidInput):
        AgentMemoryStoreService(store).sync.save_memory(U, CANARY, "no type")
    (span,) = verbs(exporter)
    assert (attributes(span)["error.type"], span.status.status_code) == ("InvalidMemoryType", StatusCode.ERROR)
    assert (span.status.description, span.events) == (None, ())


@pytest.mark.parametrize("face", ["sync", "async", "threads"])
async def test_the_callers_span_is_the_parent(
    store: BaseStore, exporter: InMemorySpanExporter, face: str, monkeypatch: pytest.MonkeyPatch
):
    """Also of the parts, which run in the threads of the store."""
    monkeypatch.setattr(telemetry, "BRIEF_S", 0)
    service, tracer = AgentMemoryStoreService(store), trace.get_tracer_provider().get_tracer("test")
    service.sync.save_memory(U, "Lives in Lisbon", "facts")
    exporter.clear()

    def ask(number: int) -> None:
        with tracer.start_as_current_span(f"caller {number}"):
            service.sync.recall_memories(U, f"Where {number}?")

    async def asked(number: int) -> None:
        with tracer.start_as_current_span(f"caller {number}"):
            await service.recall_memories(U, f"Where {number}?")

    if face == "async":
        await asyncio.gather(*map(asked, range(8)))
    elif face == "threads":
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(8)))
    else:
        ask(0)
    spans = {one.context.span_id: one for one in exporter.get_finished_spans() if one.context}
    names = sorted(one.name for one in spans.values())
    assert names.count("search_memory") == names.count("rank") == names.count("rerank") == (1 if face == "sync" else 8)
    for one in spans.values():
        parent = one.parent and spans[one.parent.span_id]
        assert (parent.name if parent else "").partition(" ")[0] == {
            "search_memory": "caller",
            **dict.fromkeys(CHILDREN, "search_memory"),
        }.get(one.name, "")
        assert set(attributes(one)) == CHILDREN.get(one.name, {NAME, COUNT} if one.name == "search_memory" else set())


def test_ranking_is_a_span_if_it_takes_long_or_fails(
    store: BaseStore, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
):
    """A span of 0.05 ms for ranking of 0.3 ms made recall by words a sixth slower."""
    memory = AgentMemoryStoreService(store).sync
    memory.save_memory(U, "Lives in Lisbon", "facts")
    for least, failing, expected in ((60, False, []), (0, False, [StatusCode.UNSET]), (60, True, [StatusCode.ERROR])):
        exporter.clear()
        with monkeypatch.context() as patched, nullcontext() if not failing else pytest.raises(ZeroDivisionError):
            patched.setattr(telemetry, "BRIEF_S", least)
            if failing:
                patched.setattr(Snapshot, "_ranked", lambda *_: 1 / 0)  # pyright: ignore[reportUnknownLambdaType]
            memory.recall_memories(U, "Lisbon")
        ranks = [one for one in exporter.get_finished_spans() if one.name == "rank"]
        assert [one.status.status_code for one in ranks] == expected


def test_a_run_of_an_agent_searches_once_and_a_tool_once(
    store: BaseStore, exporter: InMemorySpanExporter, reader: InMemoryMetricReader
):
    """What the middleware and the tools do passes no service; their spans are the same."""
    service = AgentMemoryStoreService(store)
    service.sync.save_memory(U, "Lives in Lisbon", "facts")
    verbs(exporter)
    memory = patient_memory(service, user_id=U)
    make_agent(ScriptedChatModel(turns=["Hello."]), middleware=[memory]).invoke({"messages": [("user", "Lisbon?")]})
    assert [(one.name, attributes(one)[COUNT]) for one in verbs(exporter)] == [("search_memory", 1)]
    tools = {tool.name: tool for tool in memory.tools}
    for name, given, span in (
        ("save_memory_store", {"content": "Likes tea", "memory_type": "facts"}, "create_memory"),
        ("recall_memories_store", {"query": "tea"}, "search_memory"),
    ):
        tools[name].invoke(given)
        assert [one.name for one in verbs(exporter)] == [span]
    data = reader.get_metrics_data()
    assert data is not None
    assert '"status": "recalled"' in data.to_json()


async def test_a_worker_goes_on_with_the_trace_in_which_a_message_came(
    store: BaseStore, exporter: InMemorySpanExporter
):
    """From the request's span to what is saved: one trace. Messages of several traces get links to each."""
    service, tracer = AgentMemoryStoreService(store), trace.get_tracer_provider().get_tracer("test")
    pipeline = Pipeline(service.scope, RuleExtractor())

    def worked() -> ReadableSpan:
        for found in run(pipeline.partitions()):
            run(pipeline.process(found))
        (span,) = [one for one in exporter.get_finished_spans() if one.name == "process outbox"]
        return span

    with tracer.start_as_current_span("request") as request:
        await service.add_messages(U, [HumanMessage("I live in Lisbon.", id="1")])
    (span,) = (worked(),)
    assert (span.kind, attributes(span)["messaging.batch.message_count"]) == (SpanKind.CONSUMER, 1)
    sent = next(one for one in exporter.get_finished_spans() if one.name == "add_messages")
    assert span.parent is not None
    assert sent.context is not None
    assert (span.parent.span_id, span.links[0].context.span_id) == (sent.context.span_id, sent.context.span_id)
    of_trace = {one.name for one in exporter.get_finished_spans() if one.context
                and one.context.trace_id == request.get_span_context().trace_id}  # fmt: skip
    assert of_trace >= {"request", "add_messages", "process outbox", "db_write"}
    assert [one.content for one in await service.recall_memories(U, "Lisbon")]
    exporter.clear()
    for number in (2, 3):
        with tracer.start_as_current_span("request"):
            await service.add_messages(U, [HumanMessage(f"I have {number} cats.", id=str(number))])
    span = worked()
    assert (span.parent, len(span.links)) == (None, 2)


def test_tokens_of_models_are_measured(store: BaseStore, reader: InMemoryMetricReader):
    pipeline = pipeline_on(store, answering(Extraction([], [], 1, 1_912, 164)))
    put(pipeline.outbox, said("I sing in a choir"))
    step(pipeline)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    (found,) = [one for one in metrics if one.name == "gen_ai.client.token.usage"]
    sums = {(point.attributes or {})["gen_ai.token.type"]: point.sum for point in found.data.data_points}  # pyright: ignore[reportAttributeAccessIssue]
    assert sums == {"input": 1_912, "output": 164}


def test_messages_without_a_trace_are_stored_as_before(store: BaseStore):
    """Rows of the outbox have the field only where there is something in it; those without are read."""
    service = AgentMemoryStoreService(store)
    service.sync.add_messages(U, [HumanMessage("I live in Lisbon.", id="1")])
    (partition,) = run(Outbox(engine_of(store), service.scope.clock).partitions())
    (row,) = run(engine_of(store).page([partition.messages], limit=5))
    assert "trace" not in row.value
    assert Waiting.of(row).trace is traceparent() is None


def test_langfuse_gets_a_recall_as_a_retriever(
    store: BaseStore, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "langfuse", ModuleType("langfuse"))
    memory = AgentMemoryStoreService(store).sync
    memory.recall_memories(U, CANARY)
    memory.count_memories(U)
    kinds = [attributes(one).get("langfuse.observation.type") for one in verbs(exporter)]
    assert kinds == ["retriever", None]


@pytest.mark.parametrize("shows", [False, True])
def test_langsmith_gets_a_recall_as_a_retriever(store: BaseStore, monkeypatch: pytest.MonkeyPatch, shows: bool):
    class Posted(Client):
        """Keeps what it would send."""

        def __init__(self) -> None:
            super().__init__(api_url="http://localhost:1", api_key="none", auto_batch_tracing=False)
            self.sent: list[dict[str, Any]] = []

        def create_run(self, *_: Any, **given: Any) -> None:
            self.sent.append(given)

        def update_run(self, *_: Any, **given: Any) -> None:
            self.sent.append(given)

    if shows:
        monkeypatch.setenv(telemetry.CAPTURE, "true")
    service, client = AgentMemoryStoreService(store), Posted()
    one = service.sync.save_memory(U, f"Lives in {CANARY}", "facts")
    with tracing_context(parent=RunTree(name="agent", ls_client=client), enabled=True):
        service.sync.recall_memories(U, CANARY)
        with pytest.raises(InvalidInput):
            service.sync.recall_memories(U, CANARY, 0 - 1)
        service.sync.count_memories(U)
    began, ended, _, failed = client.sent
    assert (began["name"], began["run_type"], "query" in began["inputs"]) == ("recall_memories", "retriever", shows)
    (document,) = ended["outputs"]["documents"]
    assert (document["metadata"]["id"], document["page_content"]) == (one, f"Lives in {CANARY}" if shows else "")
    assert failed["error"] == "InvalidInput"
    assert shows or CANARY not in repr(client.sent)


def test_regression_a_library_that_is_being_imported_breaks_no_recall(monkeypatch: pytest.MonkeyPatch):
    """While another thread imported LangSmith, as at a model's first call, each operation raised AttributeError."""
    monkeypatch.setitem(sys.modules, "langsmith.run_helpers", ModuleType("langsmith.run_helpers"))
    with open_store("memory://", embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        memory.save_memory("ada", "Lives in Lisbon")
        assert [one.content for one in memory.recall_memories("ada", "Lisbon")] == ["Lives in Lisbon"]
