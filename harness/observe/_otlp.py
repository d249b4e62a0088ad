"""Send spans and metrics to an OpenTelemetry collector, over OTLP and HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import trio
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from harness._outside_trio import refuse_outside_trio
from harness.observe._metrics import Metrics
from harness.observe._readings import QUANTILES, Reading, TimeReading, in_trio, readings, times
from harness.observe._spans import Spans
from harness.runs import observing

SPANS_AT_MOST = 50_000
"""So many spans may wait for a collector that is slow; beyond that, new ones are dropped."""

SPANS_PER_REQUEST = 512

SECONDS_BETWEEN_METRICS = 15

SECONDS_TO_ANSWER = 5
"""How long a request may take. At the end as long again is spent on what is left."""


@asynccontextmanager
async def exporting(
    url: str, *, metrics: Metrics | None = None, service: str = "harness"
) -> AsyncGenerator[Spans]:
    """Send what runs do to a collector: ``async with exporting("http://127.0.0.1:4318"): ...``.

    Every run opened inside the block becomes a span, and so do its calls to models and tools. A
    collector that is slow or gone holds nobody up; what it misses is logged by OpenTelemetry.

    Args:
      url: Where the collector takes OTLP over HTTP, without the ``/v1/traces``. Headers, such as
        for a key, are read from ``OTEL_EXPORTER_OTLP_HEADERS``.
      metrics: To be sent too, every 15 s; it must observe the runs itself.
      service: The ``service.name``.

    Yields:
      The spans, for `Spans.span_of`.

    Raises:
      ValueError: if ``url`` is no URL of a server.
      RuntimeError: outside trio.

    Checkpoint: on exit, until everything is sent or the collector has had its time.

    Cancellation: what is left is sent all the same, for at most that time.
    """
    refuse_outside_trio("exporting() was entered")
    base = _checked(url)
    resource = Resource.create({"service.name": service})
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(
        BatchSpanProcessor(
            OTLPSpanExporter(f"{base}/v1/traces", timeout=SECONDS_TO_ANSWER),
            max_queue_size=SPANS_AT_MOST,
            max_export_batch_size=SPANS_PER_REQUEST,
        )
    )
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{base}/v1/metrics", timeout=SECONDS_TO_ANSWER),
        export_interval_millis=SECONDS_BETWEEN_METRICS * 1_000,
    )
    meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    if metrics is not None:
        show_metrics(metrics, meters.get_meter("harness"))
    spans = Spans(tracers, meters)
    try:
        with observing(spans):
            yield spans
    finally:
        with trio.CancelScope(shield=True):  # Bounded by the time that the collector has.
            await trio.to_thread.run_sync(_finish, tracers, meters)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"exporting() takes the URL of a collector, such as 'http://127.0.0.1:4318', not "
            f"{url!r}"
        )
    return url.rstrip("/").removesuffix("/v1/traces")


def _finish(tracers: TracerProvider, meters: MeterProvider) -> None:
    tracers.shutdown()
    meters.shutdown(SECONDS_TO_ANSWER * 1_000)


def show_metrics(metrics: Metrics, meter: Meter) -> None:
    """Show metrics as instruments of an OpenTelemetry meter, which are read when it exports.

    Args:
      metrics: What to show.
      meter: The meter, as from ``provider.get_meter("my program")``.

    Raises:
      RuntimeError: outside trio.
    """
    refuse_outside_trio("show_metrics() was called")
    readers = _Readers(metrics)
    for reading in readings(metrics):
        create = (
            meter.create_observable_gauge
            if reading.kind == "gauge"
            else meter.create_observable_counter
        )
        observe = partial(readers.observe, reading.name)
        create(f"harness.{reading.name}", [observe], description=reading.what)
    for distribution in times(metrics):
        name, what = f"harness.{distribution.name}", distribution.what
        meter.create_observable_gauge(name, [partial(_quantiles, distribution)], "s", what)
        for part in ("count", "total"):
            observe = partial(_part, distribution, part)
            meter.create_observable_counter(f"{name}.{part}", [observe], "s" * (part == "total"))


class _Readers:
    """Reads metrics for a thread of OpenTelemetry's, all at once: it asks for one after another."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._token = trio.lowlevel.current_trio_token()
        self._read_at = -1.0
        self._found: dict[str, Reading] = {}

    def observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        if time.monotonic() - self._read_at > 1:
            self._found = {one.name: one for one in in_trio(self._token, self._read)}
            self._read_at = time.monotonic()
        reading = self._found[name]
        for values, number in reading.samples.items():
            yield Observation(number, dict(zip(reading.labels, values, strict=True)))

    def _read(self) -> list[Reading]:
        return list(readings(self._metrics))


def _quantiles(reading: TimeReading, options: CallbackOptions) -> Iterable[Observation]:
    if reading.times.count:
        for share in QUANTILES:
            yield Observation(reading.times.quantile(share), {"quantile": f"{share:g}"})


def _part(reading: TimeReading, part: str, options: CallbackOptions) -> Iterable[Observation]:
    yield Observation(getattr(reading.times, part))
