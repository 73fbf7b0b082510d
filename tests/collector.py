"""A collector of traces on a real socket, as a Kubernetes cluster runs one: takes OTLP over HTTP and shows what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@attrs.frozen
class Received:
    """One span. ``kind`` as in the protocol: 1 internal, 2 server; ``status`` 2 is an error; times in nanoseconds."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    begin: int
    end: int
    status: int
    attributes: dict[str, Any]
    service: dict[str, Any]


class Collector:
    """What has been sent so far."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.endpoint = ""

    @property
    def spans(self) -> list[Received]:
        """All spans, in the order of their ends."""
        messages = map(ExportTraceServiceRequest.FromString, self.bodies)
        return [
            Received(
                name=span.name,
                kind=span.kind,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                begin=span.start_time_unix_nano,
                end=span.end_time_unix_nano,
                status=span.status.code,
                attributes=_values(span.attributes),
                service=_values(resource.resource.attributes),
            )
            for message in messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> Received:
        """The one span of this name."""
        (span,) = (span for span in self.spans if span.name == name)
        return span


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector on a free port, for the length of the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        collector.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield collector
        server.shutdown()
