"""Show metrics to Prometheus: a collector for anybody's registry, and a small server.

The collector reads the metrics when it is asked, so they cost nothing in between.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import trio
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harness._arguments import check_count
from harness._outside_trio import refuse_outside_trio
from harness.observe._metrics import Metrics
from harness.observe._readings import QUANTILES, Reading, TimeReading, in_trio, readings, times

CONNECTIONS = 16
"""How many may be open at once; each has a thread."""

PATIENCE_SECONDS = 5
"""How long the other side may keep silent."""

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


class PrometheusCollector(Collector):
    """Shows a `Metrics` object: ``registry.register(PrometheusCollector(metrics))``.

    Args:
      metrics: What to show. In another thread than trio's, what is running is shown as it was at
        the latest event, and limits as at their last grant.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it doesn't collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        yield from map(_family, readings(self._metrics))
        yield from map(_summary, times(self._metrics))


def _family(reading: Reading) -> Metric:
    kind = GaugeMetricFamily if reading.kind == "gauge" else CounterMetricFamily
    family = kind(f"harness_{reading.name}", reading.what, labels=reading.labels)
    for names, value in reading.samples.items():
        family.add_metric(names, value)
    return family


def _summary(reading: TimeReading) -> Metric:
    name = f"harness_{reading.name}_seconds"
    family = Metric(name, reading.what, "summary")
    for share in QUANTILES:
        family.add_sample(name, {"quantile": f"{share:g}"}, reading.times.quantile(share))
    family.add_sample(f"{name}_count", {}, reading.times.count)
    family.add_sample(f"{name}_sum", {}, reading.times.total)
    return family


# A server ---------------------------------------------------------------------------------------


@contextmanager
def serving_metrics(metrics: Metrics, port: int) -> Iterator[int]:
    """Serve metrics to a Prometheus on this machine: ``with serving_metrics(metrics, 9464): ...``.

    Until the block is left, ``http://127.0.0.1:9464/metrics`` answers, and nothing else: no other
    path, and nobody on another machine. Threads write the answers, so a slow reader holds nobody
    up.

    Args:
      metrics: What to serve.
      port: The port; 0 for any that is free.

    Yields:
      The port.

    Raises:
      TypeError: if ``port`` isn't a whole number.
      ValueError: if it is out of range.
      OSError: if it is taken.
      RuntimeError: outside trio.
    """
    check_count("serving_metrics(port)", port, least=0, advice="0 for any that is free")
    if port > 65_535:
        raise ValueError(f"serving_metrics() takes a port up to 65535, not {port}")
    refuse_outside_trio("serving_metrics() was entered")
    registry = CollectorRegistry()
    registry.register(_InTrio(PrometheusCollector(metrics)))
    with _Server(("127.0.0.1", port), _Handler) as server:
        server.set_app(_only_metrics(make_wsgi_app(registry)))
        thread = threading.Thread(
            target=server.serve_forever, args=(0.02,), name="harness: metrics", daemon=True
        )
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class _InTrio(Collector):
    """Collects in trio's thread, where limits can say what they are now."""

    def __init__(self, collector: PrometheusCollector) -> None:
        self._collector = collector
        self._token = trio.lowlevel.current_trio_token()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return in_trio(self._token, lambda: list(self._collector.collect()))


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False  # A reader that never reads on would keep the block from being left.

    def __init__(self, *args: Any) -> None:
        self._room = threading.Semaphore(CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless there are too many: then hang up."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show nothing, as of a client that has gone: standard error is the program's."""


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_SECONDS

    def address_string(self) -> str:
        return "127.0.0.1"  # Without asking a name server.

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error is the program's."""


def _only_metrics(app: WSGIApplication) -> WSGIApplication:
    """Refuse other paths, and requests that a page of another site makes under its own name."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            host = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname
        except ValueError:
            host = None
        if host not in ("127.0.0.1", "localhost"):
            status = "403 Forbidden"
        elif environ["PATH_INFO"] != "/metrics":
            status = "404 Not Found"
        elif environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        else:
            return app(environ, start_response)
        start_response(status, [("Content-Type", "text/plain")])
        return [f"{status}; the metrics are at /metrics\n".encode()]

    return guarded
