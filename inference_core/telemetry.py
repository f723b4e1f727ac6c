"""Telemetry by OpenTelemetry's conventions for generative AI: spans, metrics, log lines, and searches in LangSmith.

Nothing is imported for it: a library is used only if the process has loaded it already. Spans carry ids, counts and the
class of an error. Texts are added only if the environment variable `CAPTURE` allows it (OpenTelemetry's own, so it is
read here and not in the settings); users' ids never are. A log line is JSON with the trace, and of an error only the
class and the location. In LangSmith, a search is a retriever run, a child of the current run.

Source: the spans ``gen_ai.memory.client`` and the metric ``gen_ai.client.operation.duration`` of OpenTelemetry's
semantic conventions for generative AI (in development).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from secrets import token_bytes
from traceback import extract_tb
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

T = TypeVar("T")
CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OPERATION: Final = "gen_ai.operation.name"
ERROR: Final = "error.type"
SEARCH: Final = "search_memory"
CREATE: Final = "create_memory"
DURATION: Final = "gen_ai.client.operation.duration"
TOKENS: Final = "gen_ai.client.token.usage"
DIRECTION: Final = "gen_ai.token.type"
_SCOPE: Final = "inference_core"
_ALLOWING: Final = frozenset({"true", "1", "span_only", "span_and_event"})
BRIEF_S: Final = 0.001
_NOTHING: Final = nullcontext()
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})\Z")
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TOKENS: Final = tuple(float(4**power) for power in range(14))
_RESULTS: Final = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Metric(NamedTuple):
    """A metric: its kind, unit (UCUM), labels, which have few values each, and the bounds of a histogram."""

    kind: Literal["counter", "histogram"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


METRICS: Final[Mapping[str, Metric]] = {
    DURATION: Metric("histogram", "s", "Time of an operation on memory.", (OPERATION, ERROR), _SECONDS),
    TOKENS: Metric(
        "histogram", "{token}", "Tokens that a model took for a batch of a worker.", (OPERATION, DIRECTION), _TOKENS
    ),
    "inference_core.recall.results": Metric("histogram", "{memory}", "Memories that a search gave.", (), _RESULTS),
    "inference_core.recall.relevance": Metric(
        "histogram", "1", "Relevance of the best hit of a search.", (), (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    ),
    "inference_core.recall.status": Metric("counter", "{run}", "Runs of agents by memory_status.", ("status",)),
    "inference_core.search.mode": Metric("counter", "{search}", "Searches by their evidence.", ("mode",)),
    "inference_core.index.duration": Metric("histogram", "s", "Time to bring an index up to date.", (), _SECONDS),
    "inference_core.worker.duration": Metric(
        "histogram", "s", "Time of a worker for a batch.", ("outcome",), (*_SECONDS, 30.0, 60.0, 120.0)
    ),
    "inference_core.worker.messages": Metric("counter", "{message}", "Messages that left the outbox.", ("outcome",)),
    "http.server.request.duration": Metric(
        "histogram",
        "s",
        "Time of a request.",
        ("http.request.method", "http.route", "http.response.status_code"),
        _SECONDS,
    ),
}
"""Every metric of this package, by name."""

Sink = Callable[[str, float, Mapping[str, str]], None]
"""Receives the name of a metric, a value, and its labels."""
_sinks: list[Sink] = []
_instruments: dict[str, Any] = {}
_known: list[Any] = [None, None]
"""The tracer provider that was used last, and its tracer."""
_meters: list[Any] = [None, None]
"""The meter provider that was used last, and its meter, which made `_instruments`."""


def add_sink(sink: Sink) -> Callable[[], None]:
    """Sends all further values to ``sink`` too; returns a function that removes it."""
    _sinks.append(sink)
    return partial(_sinks.remove, sink)


def record(name: str, value: float = 1.0, labels: Mapping[str, str] | None = None) -> None:
    """Adds ``value`` to one of `METRICS`, wherever this process collects metrics."""
    for sink in _sinks:
        sink(name, value, labels or {})
    meter = _meter()
    if meter is None:
        return
    add = _instruments.get(name)
    if add is None:
        metric = METRICS[name]
        if metric.kind == "counter":
            add = meter.create_counter(name, metric.unit, metric.description).add
        else:
            bounds = {"explicit_bucket_boundaries_advisory": metric.bounds}
            add = meter.create_histogram(name, metric.unit, metric.description, **bounds).record
        _instruments[name] = add
    add(value, labels)


def is_observed() -> bool:
    """Whether anybody would learn of an operation: a tracer, a meter, a sink, or a run that LangSmith traces."""
    return bool(_sinks) or _tracer() is not None or _meter() is not None or current_run() is not None


async def observed(name: str, agent: str | None, given: Mapping[str, Any], work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` for ``agent`` in a span and, if it is a search, a retriever run, and records its duration.

    ``name`` is the operation's, by the conventions if they have one; ``given`` are its arguments by name.
    """
    tracer, parent = _tracer(), current_run()
    is_measured = bool(_sinks) or _meter() is not None
    if name == CREATE and given.get("memory_id"):
        name = "upsert_memory"
    attributes = {OPERATION: name}
    named = (
        ("gen_ai.agent.name", agent),
        ("gen_ai.conversation.id", given.get("session_id")),
        ("gen_ai.memory.record.id", given.get("memory_id") or given.get("pending_id")),
    )
    attributes |= {key: value for key, value in named if value and isinstance(value, str)}
    if name == SEARCH and "langfuse" in sys.modules:  # Langfuse shows spans by a type of its own
        attributes["langfuse.observation.type"] = "retriever"
    shows = parent is not None and captures_content()
    query = {"query": given.get("query")} if shows else {}
    run = run_begun(parent, query) if parent is not None and name == SEARCH else None
    began, labels = time.perf_counter(), {OPERATION: name}
    with _Span(tracer, name, attributes) if tracer else nullcontext() as span:
        try:
            found = await work
        except BaseException as error:  # also a cancelled operation has an outcome to record
            labels[ERROR] = type(error).__name__
            run_ended(run, None, labels[ERROR], shows=shows)
            raise
        else:
            documents = _documents(found)
            if span is not None and span.is_recording():
                span.set_attributes(_outcome(name, given, found, documents))
            if name == SEARCH and documents is not None:
                record("inference_core.recall.results", len(documents))
                if documents and (relevance := getattr(documents[0], "relevance", None)) is not None:
                    record("inference_core.recall.relevance", relevance)
            run_ended(run, documents, None, shows=shows)
            return found
        finally:
            if is_measured:
                record(DURATION, time.perf_counter() - began, labels)


def step(name: str, attributes: Mapping[str, Any] | None = None) -> AbstractContextManager[Any]:
    """A span for a part of an operation, if that is being traced."""
    tracer = _tracer() if _is_traced() else None
    return _NOTHING if tracer is None else _Span(tracer, name, attributes)


def brief_step(name: str) -> AbstractContextManager[Any]:
    """Like `step`, for a part without spans of its own: its span is made afterwards, if it took `BRIEF_S` or failed.

    A span takes 0.05 ms, and such a part often not much longer.
    """
    return _BriefSpan(name)


def carried(call: Callable[[], T]) -> Callable[[], T]:
    """``call``, to be run in another thread, within the current span if that is recorded."""
    return partial(copy_context().run, call) if _is_traced() else call


def traceparent() -> str | None:
    """The current span in the form of W3C Trace Context; None without one."""
    trace = _loaded("opentelemetry.trace", "get_current_span")
    context = trace.get_current_span().get_span_context() if trace else None
    if context is None or not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def processing(parents: Iterable[str | None], count: int) -> AbstractContextManager[Any]:
    """The span of a worker for ``count`` messages, linked to ``parents``, the spans in which the messages were added.

    It joins the trace of ``parents`` if they all have the same one; else it starts a trace.
    """
    tracer = _tracer()
    if tracer is None:
        return nullcontext()
    from opentelemetry import trace  # noqa: PLC0415 - whoever has a tracer has loaded it

    found = [_remote(one) for one in dict.fromkeys(parents)]
    contexts = [one for one in found if one is not None]
    is_one = len(contexts) == len(found) and len({one.trace_id for one in contexts}) == 1
    attributes = {
        "messaging.system": _SCOPE,
        "messaging.operation.name": "process",
        "messaging.destination.name": "outbox",
        "messaging.batch.message_count": count,
    }
    options = {
        "kind": trace.SpanKind.CONSUMER,
        "links": [trace.Link(one) for one in contexts],
        "context": _within(contexts[0]) if is_one else None,
    }
    return _Span(tracer, "process outbox", attributes, options)


def serving(method: str, parent: str | None) -> AbstractContextManager[Any]:
    """The span of an HTTP request, unless there is a current span; ``parent`` is the request's traceparent header."""
    tracer = _tracer()
    if tracer is None or _is_traced():
        return nullcontext()
    from opentelemetry import trace  # noqa: PLC0415 - whoever has a tracer has loaded it

    context = _remote(parent)
    options = {
        "kind": trace.SpanKind.SERVER,
        "context": None if context is None else _within(context),
    }
    return _Span(tracer, method, {"http.request.method": method}, options)


def captures_content() -> bool:
    """Whether texts may go into spans and runs."""
    return os.environ.get(CAPTURE, "").strip().lower() in _ALLOWING


class _Span:
    """Makes a span the current one. It records only the class of an error, whose text may quote a memory.

    A class, because generator-based context managers such as OpenTelemetry's take as long as the span itself.
    """

    __slots__ = ("_options", "_span", "_token", "_tracer")

    def __init__(
        self, tracer: Any, name: str, attributes: Mapping[str, Any] | None, options: Mapping[str, Any] | None = None
    ) -> None:
        self._tracer = tracer
        self._options = {"name": name, "attributes": attributes, **(options or {})}

    def __enter__(self) -> Any:
        from opentelemetry import context, trace  # noqa: PLC0415 - whoever has a tracer has loaded it

        self._span = self._tracer.start_span(**self._options)
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from opentelemetry import context  # noqa: PLC0415 - whoever has a tracer has loaded it

        context.detach(self._token)
        _end(self._span, kind)


class _BriefSpan:
    """See `brief_step`."""

    __slots__ = ("_began", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._began = time.time_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if (kind is not None or time.time_ns() - self._began >= BRIEF_S * 1e9) and _is_traced():
            tracer = _tracer()
            if tracer is not None:
                _end(tracer.start_span(self._name, start_time=self._began), kind)


def _end(span: Any, error: type[BaseException] | None) -> None:
    if error is not None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - whoever has a tracer has loaded it

        span.set_attribute(ERROR, error.__name__)
        span.set_status(StatusCode.ERROR)
    span.end()


def _is_traced() -> bool:
    """Whether there is a current span that is recorded."""
    trace = _loaded("opentelemetry.trace", "get_current_span")
    return trace is not None and trace.get_current_span().is_recording()


def _loaded(module: str, has: str) -> Any:
    """The ``module`` if the process has loaded it, up to its function ``has``: another thread may be importing it."""
    found = sys.modules.get(module)
    return found if hasattr(found, has) else None


def _tracer() -> Any:
    """OpenTelemetry's tracer, if the process has set one up."""
    trace = _loaded("opentelemetry.trace", "get_tracer_provider")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    if provider is not _known[0]:
        _known[:] = provider, provider.get_tracer(_SCOPE, getattr(sys.modules.get(_SCOPE), "__version__", None))
    return _known[1]


def _meter() -> Any:
    """OpenTelemetry's meter, if the process has set one up."""
    metrics = _loaded("opentelemetry.metrics", "get_meter_provider")
    if metrics is None:
        return None
    provider = metrics.get_meter_provider()
    if provider is not _meters[0]:
        is_set_up = type(provider).__name__ != "_ProxyMeterProvider"
        _instruments.clear()
        _meters[:] = provider, provider.get_meter(_SCOPE) if is_set_up else None
    return _meters[1]


def _within(context: Any) -> Any:
    from opentelemetry import trace  # noqa: PLC0415 - whoever has a tracer has loaded it

    return trace.set_span_in_context(trace.NonRecordingSpan(context))


def _remote(parent: str | None) -> Any:
    """The context of the span that ``parent`` names, in the form of `traceparent`; None if it is not valid."""
    match = _TRACEPARENT.match(parent or "")
    if match is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - whoever has a tracer has loaded it

    trace_id, span_id, flags = (int(one, 16) for one in match.groups())
    return trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))


def _documents(found: Any) -> list[Any] | None:
    """The memories in the result of an operation; None if it does not return memories."""
    given: Any = getattr(found, "records", found)  # a turn's context has records
    kind = cast("type[object]", type(given))
    if kind is tuple:  # a page and the total, or what a turn shows
        return given[0] if given and issubclass(type(given[0]), list) else list(given)
    if kind is dict:
        return [one for group in given.values() if issubclass(type(group), list) for one in group]
    return given if issubclass(kind, list) else None


def _outcome(
    name: str, given: Mapping[str, Any], found: object, documents: Sequence[Any] | None
) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {}
    if documents is not None:
        attributes["gen_ai.memory.record.count"] = len(documents)
    elif isinstance(found, int) and not isinstance(found, bool):
        attributes["gen_ai.memory.record.count"] = found
    elif name in (CREATE, "upsert_memory", "update_memory", "delete_memory", "get_memory"):
        attributes["gen_ai.memory.record.count"] = 0 if found is None else 1
    if isinstance(found, str) and name == CREATE:
        attributes["gen_ai.memory.record.id"] = str(found)
    if captures_content():
        if isinstance(query := given.get("query"), str):
            attributes["gen_ai.memory.query.text"] = query
        records: list[dict[str, Any]] = []
        for document in (one for one in documents or () if hasattr(one, "content")):
            score = getattr(document, "score", None)
            records.append(
                {"id": document.id, "content": document.content} | ({} if score is None else {"score": score})
            )
        if not records and given.get("content"):
            records = [{"content": str(given["content"])}]
        attributes["gen_ai.memory.records"] = json.dumps(records, ensure_ascii=False)
    return attributes


def current_run() -> Any:
    """The run that LangSmith is tracing; None if there is none, or the process has not loaded LangSmith."""
    langsmith = _loaded("langsmith.run_helpers", "get_current_run_tree")
    return langsmith.get_current_run_tree() if langsmith else None


def run_begun(parent: Any, inputs: Mapping[str, Any]) -> Any:
    """Starts a retriever run as a child of ``parent``; None if LangSmith cannot create it. Never raises."""
    run = None
    with suppress(Exception):  # telemetry breaks nothing
        run = parent.create_child("recall_memories", run_type="retriever", inputs=inputs)
        run.post()
    return run


def run_ended(run: Any, documents: Sequence[Any] | None, error: str | None, *, shows: bool) -> None:
    """Ends ``run``, if there is one, with the ``documents`` found; with their texts if ``shows``. Never raises."""
    if run is None:
        return
    with suppress(Exception):  # telemetry breaks nothing
        found = [
            {
                "page_content": document.content if shows else "",
                "type": "Document",
                "metadata": {"id": document.id, "score": getattr(document, "score", None)},
            }
            for document in documents or ()
            if hasattr(document, "content")
        ]
        run.end(outputs={"documents": found}, error=error)
        run.patch()


_FIELDS: Final = ("method", "route", "status", "seconds", "key_id")
"""Attributes that a line takes over from its record, if present."""
_FRAMES: Final = 5


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON.

    A record's ``user_id`` becomes a hash with the ``key`` (by default a random one), so that the lines about a user can
    be found, but name nobody. The text of an exception that was logged with its traceback is left out, because it may
    quote a memory; messages are logged as they are.
    """

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__()
        self._key = (key or token_bytes(32))[:64]

    def format(self, record: logging.LogRecord) -> str:
        """The JSON of ``record``, without a line end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if parent := traceparent():
            _, line["trace_id"], line["span_id"], _ = parent.split("-")
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if user := getattr(record, "user_id", None):
            line["user"] = blake2b(str(user).encode(errors="replace"), key=self._key, digest_size=8).hexdigest()
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
            frames = extract_tb(record.exc_info[2])[-_FRAMES:]
            line["at"] = [f"{one.filename}:{one.lineno} {one.name}" for one in frames]
        return json.dumps(line, ensure_ascii=False, default=str)


def use_json_logs(key: bytes | None = None) -> None:
    """Makes this process log to standard error as JSON, including a line for each HTTP request that it serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(key))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("inference_core").setLevel(logging.INFO)
