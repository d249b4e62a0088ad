"""Show metrics to Prometheus: a collector for anybody's registry, and a small server.

The collector reads the metrics when it is asked, so they cost nothing in between. No label is made
of a run, an item or a path: the number of series depends on the models, tools, limiters and
priorities that the program has, and of each of those a bounded number is told apart.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from harness.limits import LimiterStatistics
from harness.observe._distribution import Distribution
from harness.observe._labels import clean
from harness.observe._metrics import Metrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PRIORITIES_AT_MOST = 20
"""So many priorities are told apart, the largest; those below count together as ``lower``."""

QUANTILES = (0.5, 0.95, 0.99)

_Samples = Mapping[tuple[str, ...], float]


class PrometheusCollector(Collector):
    """Shows a `Metrics` object: ``registry.register(PrometheusCollector(metrics))``.

    Args:
      metrics: What to show. If the registry is read in another thread than trio's, limits are shown
        as they were at their last grant.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it doesn't collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        metrics = self._metrics
        for name, what in _NUMBERS.items():
            yield _gauge(name, what, {(): getattr(metrics, name)})
        yield _gauge(
            "queue_depth_by_priority",
            "What waits for its turn now.",
            _by_priority(metrics.queue_depth_by_priority),
            "priority",
        )
        for name, what in _DISTRIBUTIONS.items():
            yield _summary(name, what, getattr(metrics, name))
        yield _counter("items", "Items that ended.", _by_name(metrics.items), "status")
        runs = dict(metrics.runs)
        yield _gauge("runs_running", "Runs that are running now.", {(): runs.pop("running")})
        yield _counter("runs", "Runs that ended.", _by_name(runs), "status")
        yield _counter("retries", "Attempts after a failed one.", {(): metrics.retries})
        yield _counter("hedges", "Attempts beside a late one.", {(): metrics.hedges})
        tools = _by_names(metrics.tool_calls)
        yield _counter("tool_calls", "Tool calls that ended.", tools, "tool", "status")
        yield from _spending(metrics)
        yield from _limits(metrics.limits)


_NUMBERS = {
    "worker_utilization": "Share of slots' time in which items are worked on.",
    "worker_failure_rate": "Share of items that failed or timed out.",
    "workers": "Slots that there are now.",
    "working": "Slots in which an item is worked on now.",
}

_DISTRIBUTIONS = {
    "parallel_completion_time": "Time from the start of a fan-out to its end.",
    "item_time": "Time from the start of an item to its result.",
    "aggregation_wait_time": "Time from the first item's end to the last one's in a fan-out.",
    "aggregation_idle_time": "Time for which slots stood empty during that.",
    "model_time": "Time of calls to models.",
    "tool_time": "Time of tool calls.",
    "limiter_wait_time": "Time that reservations waited for limiters.",
}


def _spending(metrics: Metrics) -> Iterator[Metric]:
    spent = metrics.spent_by_model
    by_model = ("provider", "model")
    tokens: Counter[tuple[str, ...]] = Counter()
    for kind, one in spent.items():
        names = tuple(map(clean, kind))
        tokens[(*names, "input")] += one.input_tokens
        tokens[(*names, "output")] += one.output_tokens
    yield _counter("tokens", "Tokens that calls to models used.", tokens, *by_model, "type")
    calls = _by_names({kind: one.calls for kind, one in spent.items()})
    yield _counter("model_calls", "Calls to models.", calls, *by_model)
    cost = _by_names({kind: one.cost_usd for kind, one in spent.items()})
    yield _counter("cost_usd", "What calls to models cost, in dollars.", cost, *by_model)


def _limits(limits: Mapping[str, LimiterStatistics]) -> Iterator[Metric]:
    use: dict[tuple[str, ...], float] = {}
    slowing: dict[tuple[str, ...], float] = {}
    for name, limit in limits.items():
        for dimension, one in limit.dimensions.items():
            use[clean(name), dimension] = one.use
            slowing[clean(name), dimension] = one.slowing
    yield _gauge("limit_use", "Used share of a limit.", use, "limiter", "dimension")
    yield _gauge("limit_slowing", "1 while grants are spaced out.", slowing, "limiter", "dimension")
    for name, what in _OF_LIMITER.items():
        family = _counter if name in ("waits", "waited_seconds", "rate_limited") else _gauge
        values = _by_name({limiter: getattr(one, name) for limiter, one in limits.items()})
        yield family(f"limit_{name}", what, values, "limiter")


_OF_LIMITER = {
    "waiting": "Reservations in line now.",
    "in_flight": "Reservations held now.",
    "paused_seconds": "How much longer it is paused.",
    "waits": "Reservations that had to wait.",
    "waited_seconds": "How long those waited.",
    "rate_limited": "Refusals for rate that it was told of.",
}


def _by_priority(depths: Mapping[float, int]) -> _Samples:
    shown: Counter[tuple[str, ...]] = Counter()
    for place, (priority, depth) in enumerate(depths.items()):
        shown[f"{priority:g}" if place < PRIORITIES_AT_MOST else "lower",] += depth
    return shown


def _by_name(values: Mapping[str, float]) -> _Samples:
    return _by_names({(name,): value for name, value in values.items()})


def _by_names(values: Mapping[Any, float]) -> _Samples:
    """Return values by cleaned names, added up where those have become the same."""
    found: dict[tuple[str, ...], float] = {}
    for names, value in values.items():
        key = tuple(map(clean, names))
        found[key] = found.get(key, 0) + value
    return found


def _gauge(name: str, what: str, samples: _Samples, *labels: str) -> Metric:
    family = GaugeMetricFamily(f"harness_{name}", what, labels=labels)
    for names, value in samples.items():
        family.add_metric(names, value)
    return family


def _counter(name: str, what: str, samples: _Samples, *labels: str) -> Metric:
    family = CounterMetricFamily(f"harness_{name}", what, labels=labels)
    for names, value in samples.items():
        family.add_metric(names, value)
    return family


def _summary(name: str, what: str, of: Distribution) -> Metric:
    name = f"harness_{name}_seconds"
    family = Metric(name, what, "summary")
    for share in QUANTILES:
        family.add_sample(name, {"quantile": f"{share:g}"}, of.quantile(share))
    family.add_sample(f"{name}_count", {}, of.count)
    family.add_sample(f"{name}_sum", {}, of.total)
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
        return trio.from_thread.run_sync(
            lambda: list(self._collector.collect()), trio_token=self._token
        )


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # A reader that never reads on would keep the block from being left.


class _Handler(WSGIRequestHandler):
    timeout = 10

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
