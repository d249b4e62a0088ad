"""What Prometheus is shown: the metrics, bounded in labels, whatever the names are."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

import harness
from harness.agents import Agent
from harness.limits import Limiter
from harness.models import ModelResponse, Price, ScriptedModel, Usage
from harness.observe import Metrics, PrometheusCollector, _prometheus, serving_metrics
from tests.scale import PATIENCE_SECONDS

SECRET = "sk-proj-abcdefghijklmnop"


def samples_of(text: str) -> dict[str, float]:
    """Return the samples by name and labels, as Prometheus reads them."""
    return {
        f"{sample.name}{''.join(sorted(f'[{k}={v}]' for k, v in sample.labels.items()))}": (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def shown(metrics: Metrics) -> str:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    return generate_latest(registry).decode()


async def test_every_metric_is_shown(autojump_clock: MockClock) -> None:
    metrics = Metrics()
    limiter = Limiter("openai", requests_per_minute=60)
    price = Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens=2)
    reply = ModelResponse("yes", usage=Usage(1_000, 500))
    model = ScriptedModel([reply], name="small", price=price, limiter=limiter)
    with harness.observing(metrics):
        await harness.fan_out(Agent("judge", model=model), ["a", "b"], limit=2)
        await harness.fan_out(trio.sleep, [1, 2, 3, 4], limit=2)
    samples = samples_of(shown(metrics))
    assert samples["harness_worker_utilization"] == metrics.worker_utilization
    assert samples["harness_worker_failure_rate"] == 0
    assert samples["harness_parallel_completion_time_seconds[quantile=0.99]"] == 6
    assert samples["harness_parallel_completion_time_seconds_count"] == 2
    assert samples["harness_aggregation_wait_time_seconds_sum"] == pytest.approx(6)
    assert samples["harness_items_total[status=ok]"] == 6
    assert samples["harness_tokens_total[model=small][provider=][type=input]"] == 2_000
    assert samples["harness_cost_usd_total[model=small][provider=]"] == pytest.approx(0.004)
    assert samples["harness_model_calls_total[model=small][provider=]"] == 2
    assert samples["harness_limit_use[dimension=requests][limiter=openai]"] > 0
    assert samples["harness_limit_waits_total[limiter=openai]"] == 1
    assert samples["harness_limit_slowing[dimension=requests][limiter=openai]"] == 0
    assert samples["harness_runs_running"] == 0


async def test_the_number_of_series_does_not_grow_with_runs(autojump_clock: MockClock) -> None:
    """A label for each run, item or priority would fill whoever stores them."""
    metrics = Metrics()

    async def lines_after(count: int) -> int:
        with harness.observing(metrics):
            await harness.fan_out(trio.sleep, [1] * count, name=f"batch-{count}")
        return len(shown(metrics).splitlines())

    assert await lines_after(3) == await lines_after(500)

    async def look() -> None:
        await trio.sleep(0.5)
        assert len(metrics.queue_depth_by_priority) > 90
        assert shown(metrics).count("harness_queue_depth_by_priority{") == 21

    with harness.observing(metrics):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await harness.fan_out(trio.sleep, range(1, 300), limit=1, priority=lambda n: n)


@pytest.mark.parametrize(
    "name",
    [
        'a"} 1\nharness_items_total{status="forged',
        "\\",
        "\x1b[31mred\x1b[0m",
        "<script>alert(1)</script>",
        "\ud800 half a pair",
        "x" * 1_000_000,
        f"model with api_key={SECRET}",
    ],
    ids=["quotes", "backslash", "ansi", "html", "surrogate", "long", "secret"],
)
async def test_hostile_names_stay_names(name: str, autojump_clock: MockClock) -> None:
    metrics = Metrics()
    limiter = Limiter(name, requests_per_minute=6_000)
    model = ScriptedModel(["yes"], name=name, limiter=limiter)
    with harness.observing(metrics):
        await harness.fan_out(Agent("judge", model=model), ["a"], name=name)
    text = shown(metrics)
    samples = samples_of(text)
    assert len(text) < 20_000
    assert SECRET not in text
    assert "\x1b" not in text
    assert [value for one, value in samples.items() if one.startswith("harness_items")] == [1]
    assert [value for one, value in samples.items() if "model_calls_total" in one] == [1]


async def test_names_that_have_become_the_same_add_up(autojump_clock: MockClock) -> None:
    """Two samples of one name and labels would make Prometheus refuse the whole answer."""
    metrics = Metrics()
    with harness.observing(metrics):
        for end in "ab":
            model = ScriptedModel(["yes"], name="x" * 500 + end)
            await Agent("judge", model=model).run("?")
    samples = samples_of(shown(metrics))
    assert [value for one, value in samples.items() if "model_calls_total" in one] == [2]


# The server -------------------------------------------------------------------------------------


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    with harness.observing(metrics):
        yield metrics


async def ask(
    port: int, path: str = "/metrics", *, host: str | None = None, method: str = "GET"
) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request(method, path, headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    return await trio.to_thread.run_sync(fetch)


async def test_is_served_while_the_block_lasts(
    metrics: Metrics, capsys: pytest.CaptureFixture[str]
) -> None:
    limiter = Limiter("openai", requests_per_minute=60)
    with serving_metrics(metrics, 0) as port:
        async with harness.open_run("asks"):
            async with limiter.reserve():
                status, text = await ask(port)
    assert status == 200
    assert samples_of(text)["harness_limit_in_flight[limiter=openai]"] == 1
    with pytest.raises(ConnectionRefusedError):
        await ask(port)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("path", "host", "method", "status"),
    [
        ("/metrics", "localhost", "GET", 200),
        ("/metrics", "evil.example", "GET", 403),
        ("/metrics", "evil.example:80", "GET", 403),
        ("/metrics", "[::1", "GET", 403),
        ("/metrics", "", "GET", 403),
        ("/", None, "GET", 404),
        ("/metrics/x", None, "GET", 404),
        ("/metrics", None, "POST", 405),
        ("/metrics", None, "DELETE", 405),
    ],
)
async def test_answers_nothing_else(
    metrics: Metrics, path: str, host: str | None, method: str, status: int
) -> None:
    """A page of another site can have its own name point to this machine."""
    with serving_metrics(metrics, 0) as port:
        answered, text = await ask(port, path, host=host, method=method)
    assert answered == status
    assert ("harness_" in text) == (status == 200)


async def test_who_keeps_silent_takes_a_bounded_number_of_threads(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_prometheus, "CONNECTIONS", 2)
    before = threading.active_count()

    def is_answered(port: int) -> bool:
        """Keep two connections silent, and see whether a third one is hung up on."""
        with ExitStack() as stack:
            for _ in range(2):
                silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                silent.sendall(b"GET /met")
            while threading.active_count() < before + 3:  # The server's own, and two.
                time.sleep(0.001)
            third = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            return bool(third.recv(1))

    with serving_metrics(metrics, 0) as port:
        assert not await trio.to_thread.run_sync(is_answered, port)
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                try:
                    status, _ = await ask(port)
                except ConnectionError:  # Its threads haven't noticed yet that they have gone.
                    continue
                break
    assert status == 200
    assert capsys.readouterr() == ("", "")


async def test_refuses_a_port_that_is_none(metrics: Metrics) -> None:
    for port in (-1, 65_536, 0.5, "http"):
        with pytest.raises((TypeError, ValueError), match="port"):
            with serving_metrics(metrics, port):  # type: ignore[arg-type]
                pass
    with serving_metrics(metrics, 0) as taken, pytest.raises(OSError, match="in use"):
        with serving_metrics(metrics, taken):
            pass
