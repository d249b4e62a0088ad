"""An OpenTelemetry collector on this machine: takes OTLP over HTTP and keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@attrs.frozen
class Received:
    """One span, as it arrived."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start: int
    end: int
    attributes: dict[str, Any]
    status: tuple[int, str]
    kind: int
    events: tuple[dict[str, Any], ...]


@attrs.define
class Collector:
    """What has arrived."""

    url: str
    spans: list[Received] = attrs.field(factory=list)
    metrics: dict[str, list[tuple[dict[str, Any], float]]] = attrs.field(factory=dict)
    """The latest points of each metric: their attributes and values."""

    service: str = ""
    delay_seconds: float = 0.0
    raw: list[bytes] = attrs.field(factory=list)
    """Every request's body."""

    def take(self, path: str, body: bytes) -> Any:
        """Keep a request, and return the answer."""
        self.raw.append(body)
        if path == "/v1/metrics":
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            return ExportMetricsServiceResponse()
        assert path == "/v1/traces", path
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.service = _plain(of_resource.resource.attributes)["service.name"]
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Received(
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            _plain(span.attributes),
                            (span.status.code, span.status.message),
                            span.kind,
                            tuple(_plain(event.attributes) for event in span.events),
                        )
                    )
        return ExportTraceServiceResponse()

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for of_resource in request.resource_metrics:
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    self.metrics[metric.name] = [
                        (_plain(point.attributes), _value_of(point)) for point in data.data_points
                    ]

    def named(self, name: str) -> Received:
        """Return the one span of a name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    def tree(self) -> dict[str, list[str]]:
        """Return the names of the spans below each span, by its name; roots are below ``""``."""
        names = {span.span_id: span.name for span in self.spans}
        found: dict[str, list[str]] = {}
        for span in sorted(self.spans, key=lambda span: span.start):
            found.setdefault(names.get(span.parent_id, ""), []).append(span.name)
        return found


def _plain(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "array_value":
            value = [getattr(part, part.WhichOneof("value")) for part in value.values]
        found[one.key] = value
    return found


def _value_of(point: Any) -> float:
    if hasattr(point, "bucket_counts"):
        return float(point.sum)
    return float(getattr(point, point.WhichOneof("value")))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector, in threads of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            threading.Event().wait(collector.delay_seconds)
            answer = collector.take(self.path, body).SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
