"""What others see of a batch while it runs: Prometheus on this machine, and a collector."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from tests.support.otlp import collecting

AGENT = """
import urllib.request

import trio

async def look(record):
    def fetch():
        with urllib.request.urlopen(f"http://127.0.0.1:{record['port']}/metrics") as answer:
            return answer.read().decode()
    return await trio.to_thread.run_sync(fetch)

async def echo(record):
    return record

async def fails(record):
    raise AssertionError("it must not be called")
"""


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    return clean_imports


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def batch(target: str, records: list[dict[str, Any]], *arguments: str) -> int:
    Path("in.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    where = ("--input", "in.jsonl", "--output", "out.jsonl")
    return main(["batch", f"agent.py:{target}", *where, *arguments])


def values() -> list[Any]:
    return [json.loads(line)["value"] for line in Path("out.jsonl").read_text().splitlines()]


def test_metrics_are_served_while_the_batch_runs(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert batch("look", [{"port": port}] * 2, "--metrics-port", f"{port}", "--limit", "1") == 0
    assert f"metrics: http://127.0.0.1:{port}/metrics" in capsys.readouterr().err
    first, second = values()
    assert "harness_working 1.0" in first
    assert 'harness_items_total{status="ok"} 1.0' in second
    with socket.create_server(("127.0.0.1", port)):
        pass  # It is free again.


def test_the_runs_of_a_batch_arrive_at_a_collector() -> None:
    with collecting() as collector:
        assert (
            batch("echo", [{"id": "a"}, {"id": "b"}], "--key", "id", "--otlp", collector.url) == 0
        )
    [root] = collector.tree()[""]
    assert sorted(collector.tree()[root]) == ["a", "b"]
    assert len({span.trace_id for span in collector.spans}) == 1
    assert collector.metrics["harness.items"] == [({"status": "ok"}, 2)]


def test_a_port_that_is_taken_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert batch("fails", [{}], "--metrics-port", f"{port}") == 2
    assert f"--metrics-port {port} can't be used: Address already in use" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--metrics-port", "65536"),
        ("--metrics-port", "http"),
        ("--otlp", "localhost:4318"),
        ("--otlp", "http://localhost:x"),
        ("--otlp", ""),
    ],
)
def test_what_can_not_be_meant_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("fails", [{}], *arguments) == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_dry_run_says_so_and_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://me:hunter2hunter2@127.0.0.1:4318"
    assert batch("echo", [{}], "--otlp", url, "--metrics-port", "9464", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "spans and metrics to http://me:[key]@127.0.0.1:4318" in said
    assert "metrics at http://127.0.0.1:9464/metrics" in said


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("prometheus_client", "prometheus", ("--metrics-port", "0")),
        ("opentelemetry", "otel", ("--otlp", "http://127.0.0.1:1")),
        ("opentelemetry.sdk", "otel", ("--otlp", "http://127.0.0.1:1")),
        ("opentelemetry.exporter", "otel", ("--otlp", "http://127.0.0.1:1")),
    ],
)
def test_a_missing_extra_is_named(
    package: str,
    extra: str,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in list(sys.modules):
        if f"{name}.".startswith((f"{package}.", "harness.observe._")):
            monkeypatch.delitem(sys.modules, name)

    class NotInstalled:
        def find_spec(self, name: str, *_: object) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [NotInstalled(), *sys.meta_path])
    assert batch("fails", [{}], *arguments) == 2
    assert f"trio-harness[{extra}]" in capsys.readouterr().err
