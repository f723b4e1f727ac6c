"""A server's telemetry: spans, durations and log lines of requests, and ``/metrics`` for Prometheus.

Users, ids and threads are never labels, so the number of series does not grow with them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fastapi import Depends, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_core.effects import arun
from inference_core.errors import StoreError
from inference_core.server.api.routes import Needs
from inference_core.server.identity.auth import Permission
from inference_core.server.identity.gate import METRICS_PATH
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.stores.engine import StoreEngine
from inference_core.telemetry import METRICS, Metric, add_sink, record, serving

GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "inference_core.store.up": ("1", "Whether the store answers: 1 or 0."),
    "inference_core.outbox.waiting": ("{message}", "Messages that wait to become memories."),
    "inference_core.outbox.age": ("s", "For how long the oldest message has waited."),
    "inference_core.outbox.dead": ("{message}", "Messages that were given up."),
    "inference_core.index.size": ("By", "Indexes and rows that this process holds in memory."),
    "inference_core.breaker.open": ("1", "Whether calls of the database are refused for now: 1 or 0."),
}
"""The values that are read when ``/metrics`` is requested, by name: unit and description."""
_UNITS: Final = {"s": "_seconds", "By": "_bytes"}
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LOOK_S: Final = 10.0
"""Seconds between two looks at the outbox, however often ``/metrics`` is requested."""
_ACCESS: Final = logging.getLogger("inference_core.server.access")


def prometheus_name(name: str, unit: str) -> str:
    """The name of a metric in Prometheus; a counter's has the suffix _total too."""
    return name.replace(".", "_") + _UNITS.get(unit, "")


def add_telemetry(app: FastAPI, service: AgentMemoryStoreService) -> Callable[[], None]:
    """Adds ``/metrics`` and `Watched` to ``app``; returns a function that ends the counting."""
    registry = CollectorRegistry(auto_describe=False)
    gauges = _Gauges(service)
    registry.register(gauges)
    ProcessCollector(registry=registry)
    instruments = {name: _instrument(name, metric, registry) for name, metric in METRICS.items()}

    def add(name: str, value: float, labels: Mapping[str, str]) -> None:
        one, metric = instruments[name], METRICS[name]
        if metric.labels:
            one = one.labels(*(labels.get(label, "") for label in metric.labels))
        (one.inc if metric.kind == "counter" else one.observe)(value)

    async def get_metrics() -> Response:
        await gauges.look()
        found = await asyncio.to_thread(generate_latest, registry)
        return Response(found, media_type=CONTENT_TYPE_LATEST)

    needs = [Depends(Needs(Permission.ADMIN))]
    app.add_api_route(METRICS_PATH, get_metrics, dependencies=needs, include_in_schema=False)
    app.add_middleware(Watched)
    return add_sink(add)


def _instrument(name: str, metric: Metric, registry: CollectorRegistry) -> Any:
    labels = [label.replace(".", "_") for label in metric.labels]
    full = prometheus_name(name, metric.unit)
    if metric.kind == "counter":
        return Counter(full, metric.description, labels, registry=registry)
    return Histogram(full, metric.description, labels, buckets=metric.bounds, registry=registry)


class _Gauges(Collector):
    """The state of the store's engine and of its outbox."""

    def __init__(self, service: AgentMemoryStoreService) -> None:
        self._service = service
        self._at = float("-inf")
        self._outbox: dict[str, float] = {}

    async def look(self) -> None:
        """Looks at the outbox, unless the last look was less than `_LOOK_S` seconds ago."""
        from inference_core.outbox.outbox import status  # noqa: PLC0415 - with the first look

        if time.monotonic() < self._at + _LOOK_S:
            return
        self._at, scope = time.monotonic(), self._service.scope
        try:
            found = await arun(status(scope.engine, scope.clock), self._service.timeout)
        except StoreError:
            self._outbox = {"inference_core.store.up": 0.0}
        else:
            self._outbox = {
                "inference_core.store.up": 1.0,
                "inference_core.outbox.waiting": found.waiting,
                "inference_core.outbox.age": found.oldest_s,
                "inference_core.outbox.dead": found.dead,
            }

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The values of this moment."""
        engine: StoreEngine = self._service.scope.engine
        found = {**self._outbox, "inference_core.index.size": float(engine.index_bytes)}
        for name, (unit, description) in GAUGES.items():
            sides = engine.refuses if name == "inference_core.breaker.open" else {}
            family = GaugeMetricFamily(prometheus_name(name, unit), description, labels=["side"] if sides else [])
            for side, is_open in sides.items():
                family.add_metric([side], float(is_open))
            if name in found:
                family.add_metric([], found[name])
            yield family


class Watched:
    """ASGI middleware around all others: each request is a span, a duration and, with JSON logs, a line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as the application does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 0, time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        with serving(method, Headers(scope=scope).get("traceparent")) as span:
            try:
                await self._app(scope, receive, answer)
            finally:
                route = getattr(scope.get("route"), "path", "unmatched")
                labels = {
                    "http.request.method": method,
                    "http.route": route,
                    "http.response.status_code": str(status),
                }
                if span is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attributes({"http.route": route, "http.response.status_code": status})
                seconds, state = time.perf_counter() - began, scope.get("state", {})
                record("http.server.request.duration", seconds, labels)
                if _ACCESS.isEnabledFor(logging.INFO):
                    more = {"method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
                    more["user_id"] = state.get("user")
                    if principal := state.get("principal"):
                        more["key_id"] = principal.key_id
                    _ACCESS.info("%s %s %s", method, route, status, extra=more)
