"""A request as OpenTelemetry spans, made at its end from the moments that its room has noted.

::

    POST /v1/chat/completions        SERVER, under the client's own span where it sent a ``traceparent``
    └─ chat smollm2-135m             INTERNAL, with the attributes of the conventions for generative AI
       ├─ prepare                    head to submission: the body read, rendered, tokenized
       ├─ queue                      submission to first step
       ├─ prefill                    first step to first token
       └─ decode                     first token to last

Needs the extra ``otel``; only ``tracing`` imports it. Nothing that a client has written is in any span.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tlserve.errors import ConfigError
from tlserve.server.operation import Operation, Value
from tlserve.server.room import Room
from tlserve.server.routes import PROBES, route_of
from tlserve.server.timing import Timing

_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})

_OF_FACTS = {
    "id": "gen_ai.response.id",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
"""Facts of the log line that have a name in the conventions."""


def otlp(model: str) -> Spans:
    """Spans that go to a collector over OTLP/HTTP, as the standard ``OTEL_*`` variables say.

    Raises:
        ConfigError: one of those variables cannot be used.
    """
    try:
        return Spans(BatchSpanProcessor(OTLPSpanExporter()), model)
    except ValueError as error:
        raise ConfigError(f"engine.tracing = 'otlp': a variable OTEL_* cannot be used: {error}") from None


class Spans:
    """Writes requests into a processor of spans. Loop thread only, but for ``close``.

    Args:
        processor: takes ended spans without waiting.
        model: the served model's id.
    """

    def __init__(self, processor: SpanProcessor, model: str) -> None:
        self._model = model
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tlserve", version("tlserve"))

    def trace(self, room: Room) -> None:
        """Write the spans of a request that is over."""
        if room.path in PROBES:
            return
        route = route_of(room.path)
        clock = _Clock()
        method = room.method if room.method in _METHODS else "_OTHER"
        name = (method if method in _METHODS else "HTTP") if route is None else f"{method} {route}"
        span = self._tracer.start_span(
            name,
            context=_parent_of(room),
            kind=SpanKind.SERVER,
            attributes=dict(_http_attributes(room, method, route)),
            start_time=clock.at(room.started_at),
        )
        room.facts["trace_id"] = format_trace_id(span.get_span_context().trace_id)
        if span.is_recording():
            self._describe(span, room, clock)
        span.end(clock.now)

    def close(self) -> None:
        """Send what is left. Waits for the collector; any thread."""
        self._provider.shutdown()

    def _describe(self, span: Span, room: Room, clock: _Clock) -> None:
        _note_end(span, room)
        if room.operation is not None:
            self._trace_operation(set_span_in_context(span), room, room.operation, clock)

    def _trace_operation(self, parent: Context, room: Room, operation: Operation, clock: _Clock) -> None:
        span = self._tracer.start_span(
            f"{operation.name} {operation.model}",
            context=parent,
            attributes={
                "gen_ai.operation.name": operation.name,
                "gen_ai.provider.name": "tlserve",
                "gen_ai.request.model": operation.model,
                "gen_ai.response.model": self._model,
                **operation.attributes,
                **dict(_response_attributes(room)),
            },
            start_time=clock.at(room.started_at),
        )
        _note_end(span, room)
        if room.timing is not None:
            self._trace_phases(set_span_in_context(span), room.timing, clock)
        span.end(clock.now)

    def _trace_phases(self, parent: Context, timing: Timing, clock: _Clock) -> None:
        for name, begin, end in timing.phases():
            phase = self._tracer.start_span(name, context=parent, start_time=clock.at(begin))
            phase.end(clock.now if end is None else clock.at(end))


class _Clock:
    """Turns moments of ``time.perf_counter`` into OpenTelemetry's: nanoseconds since 1970."""

    def __init__(self) -> None:
        self.now = time.time_ns()
        self._now = time.perf_counter()

    def at(self, moment: float) -> int:
        return self.now - round((self._now - moment) * 1e9)


def _resource() -> Resource:
    """What the environment says about this process; its name is tlserve if it says none."""
    resource = Resource.create({SERVICE_VERSION: version("tlserve")})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: "tlserve"}))
    return resource


def _parent_of(room: Room) -> Context:
    """The client's span. Without exactly one well-formed ``traceparent`` a trace begins here."""
    headers: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for name, value in room.headers:
        if (key := name.decode("latin-1")) in headers:
            headers[key].append(value.decode("latin-1"))
    carrier = {"tracestate": ",".join(headers["tracestate"])}
    if len(headers["traceparent"]) == 1:
        carrier["traceparent"] = headers["traceparent"][0]
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _http_attributes(room: Room, method: str, route: str | None) -> Iterator[tuple[str, Value]]:
    yield "http.request.method", method
    yield "url.path", room.path[:200]
    yield "tlserve.request_id", room.request_id
    if route is not None:
        yield "http.route", route
    if room.status is not None:
        yield "http.response.status_code", room.status


def _response_attributes(room: Room) -> Iterator[tuple[str, Value | list[str]]]:
    for fact, name in _OF_FACTS.items():
        value = room.facts.get(fact)
        if isinstance(value, str | int):
            yield name, value
    finishes = room.facts.get("finish")
    if isinstance(finishes, list) and any(finishes):
        yield "gen_ai.response.finish_reasons", [str(finish or "error") for finish in finishes]
    if room.timing is not None and room.timing.first_token_at is not None:
        yield "gen_ai.response.time_to_first_chunk", room.timing.first_token_at - room.started_at


def _note_end(span: Span, room: Room) -> None:
    """How the request ended; what the client did wrong is no error of ours."""
    outcome, reason = room.final_outcome(), room.final_reason()
    span.set_attribute("tlserve.outcome", outcome)
    if reason:
        span.set_attribute("error.type", reason)
    if outcome == "failed":
        span.set_status(StatusCode.ERROR, reason)
