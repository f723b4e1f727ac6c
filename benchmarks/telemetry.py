"""What telemetry costs a recall: without OpenTelemetry, and with its SDK and a batch exporter, in one run.

"Without" compares recall through the service with the same operation past the wrapper that makes spans; "with" turns
the SDK on and off in this process. Both take turns, recall by recall, so that whatever else the machine does meets all.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from report import Row, publish

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.services.operations.recall import recall

MEMORIES = 1_000
ROUNDS = 2_000
_WARM_UP = 200
_BAR_WITHOUT, _BAR_WITH = 1.02, 1.10
_USER = "ada"


class Nowhere(SpanExporter):
    """Takes spans, as a collector would."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Counts on nobody."""
        del spans
        return SpanExportResult.SUCCESS


def times(calls: Sequence[Callable[[str], object]], rounds: int) -> list[float]:
    """The median milliseconds of each of ``calls``, which take turns."""
    found: list[list[float]] = [[] for _ in calls]
    for at in range(rounds + _WARM_UP):
        for number in range(len(calls)):
            place = (number + at) % len(calls)
            started = time.perf_counter()
            calls[place](f"Which number {at % 50} did the customer order?")
            if at >= _WARM_UP:
                found[place].append((time.perf_counter() - started) * 1_000)
    return [statistics.median(one) for one in found]


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Milliseconds of a recall among `MEMORIES` memories, by words and vectors and by words only, and the ratios."""
    return [*_rows("by words and vectors", rounds), *_rows("by words only", rounds, embeddings=None)]


def _rows(how: str, rounds: int, **options: Any) -> list[Row]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    with open_store("memory://", **options) as store:
        service = AgentMemoryStoreService(store, timeout=None, counts_access=False)
        for number in range(MEMORIES):
            service.sync.save_memory(_USER, f"Order {number} was of {number % 97} boxes for customer {number}", "facts")

        def bare(query: str) -> object:
            return run(recall(service.scope, _USER, query))

        def wrapped(query: str) -> object:
            return service.sync.recall_memories(_USER, query)

        def traced(query: str) -> object:
            given, trace.get_tracer_provider = trace.get_tracer_provider, lambda: provider
            try:
                return service.sync.recall_memories(_USER, query)
            finally:
                trace.get_tracer_provider = given

        off, absent, on = times([bare, wrapped, traced], rounds)
    provider.shutdown()
    return [
        (f"a recall {how}, past telemetry", f"{off:.3f} ms", "", None),
        (
            f"{how}, without OpenTelemetry's SDK",
            f"{absent:.3f} ms ({absent / off - 1:+.1%})",
            "≤ 2 %",
            absent / off <= _BAR_WITHOUT,
        ),
        (f"{how}, with it", f"{on:.3f} ms ({on / absent - 1:+.1%})", "≤ 10 %", on / absent <= _BAR_WITH),
    ]


if __name__ == "__main__":
    sys.exit(not publish("telemetry", rows()))
