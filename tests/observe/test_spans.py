"""A real collector is sent the whole tree of runs, with the names that the conventions have."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import logfire
import phoenix.otel as phoenix
import pytest
import trio
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import MockClock

import harness
from harness.agents import Agent
from harness.limits import Limiter
from harness.models import ModelResponse, Price, ScriptedModel, ToolCall, Usage
from harness.observe import Metrics, Spans, _otlp, continuing, exporting
from tests.support.otlp import Collector, collecting

ERROR = 2
SECRET = "sk-proj-abcdefghijklmnop"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


async def test_the_tree_of_runs_arrives_whole(
    collector: Collector, autojump_clock: MockClock
) -> None:
    async def work(seconds: int) -> None:
        async with harness.open_run("inside"):
            await trio.sleep(seconds)

    async with exporting(collector.url, service="nightly"):
        async with harness.open_run("root", tags={"shard": 3}):
            await harness.fan_out(work, [1, 2], name="batch")
            async with harness.open_run("after"):
                pass
    assert collector.service == "nightly"
    assert collector.tree() == {
        "": ["root"],
        "root": ["batch", "after"],
        "batch": ["0", "1"],
        "0": ["inside"],
        "1": ["inside"],
    }
    assert len({span.trace_id for span in collector.spans}) == 1
    root, item = collector.named("root"), collector.named("1")
    assert root.end - root.start == 2_000_000_000
    assert item.attributes == {
        "harness.run.id": item.attributes["harness.run.id"],
        "harness.run.path": "root/batch/1",
        "harness.item.index": 1,
        "harness.run.status": "ok",
    }
    assert root.attributes["harness.tag.shard"] == "3"
    by_id = {span.span_id: span for span in collector.spans}
    for span in collector.spans:
        above = by_id.get(span.parent_id, span)
        assert above.start <= span.start <= span.end <= above.end


async def test_how_runs_ended_is_marked(collector: Collector, autojump_clock: MockClock) -> None:
    """An observer can tell a failure from a cancel, and both from running out of time."""

    async def work(how: str) -> None:
        if how == "fails":
            raise LookupError("no such customer")
        if how == "is cancelled":
            harness.current_run().cancel()
        await trio.sleep_forever()

    each = harness.Attempt(timeout=5)
    async with exporting(collector.url):
        await harness.fan_out(
            work,
            ["fails", "is cancelled", "times out"],
            policy=harness.BestEffort(),
            each=each,
            key=str,
        )
    failed = collector.named("fails")
    assert failed.status == (ERROR, "LookupError: no such customer")
    assert failed.attributes["error.type"] == "LookupError"
    [exception] = failed.events
    assert exception["exception.type"] == "LookupError"
    assert "work" in exception["exception.stacktrace"]
    cancelled = collector.named("is cancelled")
    assert cancelled.attributes["harness.run.status"] == "cancelled"
    assert cancelled.status == (0, "")
    timed_out = collector.named("times out")
    assert timed_out.attributes["harness.run.status"] == "timed_out"
    assert timed_out.attributes["error.type"] == "timeout"
    assert timed_out.status[0] == ERROR


async def test_agents_models_and_tools_have_the_names_of_the_conventions(
    collector: Collector, autojump_clock: MockClock
) -> None:
    async def lookup(customer: str) -> str:
        """Look up a customer."""
        await trio.sleep(2)
        return f"{customer}: owes nothing; password={SECRET}"

    call = ToolCall("call-1", "lookup", {"customer": SECRET})
    model = ScriptedModel(
        [
            ModelResponse(tool_calls=[call], usage=Usage(100, 10, cached_input_tokens=40)),
            ModelResponse(SECRET, usage=Usage(200, 20)),
        ],
        name="small",
        delay=1,
        price=Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens=1),
        limiter=Limiter("openai", requests_per_minute=6_000),
    )
    model.provider = "mistral"
    async with exporting(collector.url):
        await Agent("desk", model=model, tools=[lookup]).run(f"my key is {SECRET}")
    assert collector.tree() == {
        "": ["invoke_agent desk"],
        "invoke_agent desk": ["chat small", "execute_tool lookup", "chat small"],
    }
    agent = collector.named("invoke_agent desk").attributes
    assert agent["gen_ai.operation.name"] == "invoke_agent"
    assert agent["gen_ai.agent.name"] == "desk"
    assert agent["gen_ai.provider.name"] == "mistral_ai"
    assert agent["gen_ai.usage.input_tokens"] == 300
    chat = next(span for span in collector.spans if span.name == "chat small")
    assert chat.kind == 3  # A client.
    assert chat.end - chat.start == 1_000_000_000
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "harness.cost_usd": pytest.approx(0.00011),
        "harness.call.status": "ok",
    }
    tool = collector.named("execute_tool lookup")
    assert tool.end - tool.start == 2_000_000_000
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "lookup",
        "gen_ai.tool.call.id": "call-1",
        "gen_ai.tool.type": "function",
        "harness.call.status": "ok",
    }
    assert not any(SECRET.encode() in body for body in collector.raw)
    tokens = collector.metrics["gen_ai.client.token.usage"]
    assert [(kind["gen_ai.token.type"], total) for kind, total in tokens] == [
        ("input", 300),
        ("output", 30),
    ]
    [(_, seconds)] = collector.metrics["gen_ai.client.operation.duration"]
    assert seconds == 2


@pytest.mark.parametrize(
    "name",
    ["<b>\x1b[31m", "\ud800", "x" * 1_000_000, f"api_key={SECRET}", "a/b"],
    ids=["control", "surrogate", "long", "secret", "slash"],
)
async def test_hostile_names_and_errors_arrive_as_names(
    name: str, collector: Collector, autojump_clock: MockClock
) -> None:
    async with exporting(collector.url):
        with pytest.raises(ValueError, match=re.escape(name[:20])):
            async with harness.open_run(name, tags={name: name}):
                async with harness.open_run("inside"):
                    raise ValueError(name)
    assert collector.spans[0].name == "inside"
    assert len(collector.spans) == 2
    assert sum(map(len, collector.raw)) < 20_000
    assert not any(SECRET.encode() in body for body in collector.raw)
    for span in collector.spans:
        for text in (span.name, *span.attributes.values(), *span.events[0].values()):
            assert all(line.isprintable() for line in str(text).splitlines())


async def test_a_request_that_has_a_trace_is_continued(
    collector: Collector, autojump_clock: MockClock
) -> None:
    async with exporting(collector.url):
        with continuing({"traceparent": TRACEPARENT}):
            async with harness.open_run("request"):
                async with harness.open_run("inside"):
                    pass
        async with harness.open_run("other"):
            pass
    request, inside = collector.named("request"), collector.named("inside")
    assert request.trace_id.hex() == TRACEPARENT.split("-")[1] == inside.trace_id.hex()
    assert request.parent_id.hex() == TRACEPARENT.split("-")[2]
    assert inside.parent_id == request.span_id
    assert collector.named("other").trace_id != request.trace_id


async def test_no_span_is_ever_current(autojump_clock: MockClock) -> None:
    """One that is current across a yield is the parent of whatever runs next."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(tracers)
    with harness.observing(spans):
        async with harness.open_run("job") as run:
            assert not trace.get_current_span().get_span_context().is_valid
            span = spans.span_of(run.id)
            assert span is not None
            with trace.use_span(span):
                tracers.get_tracer("library").start_span("query").end()
        assert spans.span_of(run.id) is None
    query, job = exporter.get_finished_spans()
    assert query.parent is not None
    assert query.parent.span_id == job.context.span_id
    assert not spans._live


async def test_interleaved_streams_keep_their_spans(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The order in which two readers go on, and who closes what where, changes no parent."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))

    async def reader(name: str, seconds: int) -> None:
        async with harness.open_run(name):
            agent = Agent("judge", model=ScriptedModel(["one two three"], piece_delay=seconds))
            async with agent.stream("?") as stream:
                async for _ in stream:
                    await trio.sleep(1)
                    if name == "early":
                        break

    with harness.observing(Spans(tracers)):
        async with trio.open_nursery() as nursery:
            for name, seconds in (("early", 2), ("late", 3)):
                nursery.start_soon(reader, name, seconds)
    found = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    agents = [span for span in found.values() if span.name == "invoke_agent judge"]
    assert {found[span.parent.span_id].name for span in agents if span.parent} == {"early", "late"}
    assert "detach" not in caplog.text


async def test_metrics_arrive_too(collector: Collector, autojump_clock: MockClock) -> None:
    metrics = Metrics()
    limiter = Limiter("openai", requests_per_minute=60)
    each = harness.Attempt(limiter=limiter)
    with harness.observing(metrics):
        async with exporting(collector.url, metrics=metrics):
            await harness.fan_out(trio.sleep, [1, 2, 3, 4], limit=2, each=each)
    sent = collector.metrics
    assert sent["harness.worker_utilization"] == [({}, metrics.worker_utilization)]
    assert sent["harness.parallel_completion_time"][2] == (
        {"quantile": "0.99"},
        metrics.parallel_completion_time.p99,
    )
    assert sent["harness.item_time.count"] == [({}, 4)]
    assert sent["harness.items"] == [({"status": "ok"}, 4)]
    [(of, use)] = sent["harness.limit_use"]
    assert of == {"limiter": "openai", "dimension": "requests"}
    assert use == pytest.approx(4 / 60)


async def test_a_collector_that_is_gone_only_costs_its_spans(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_otlp, "SECONDS_TO_ANSWER", 0.1)
    with collecting() as gone:
        pass
    async with exporting(gone.url):
        results = await harness.fan_out(trio.sleep, [0] * 3)
    assert len(results.values()) == 3
    assert caplog.records
    assert all(record.levelno >= logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://x", "http://"])
async def test_refuses_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="4318"):
        async with exporting(url):
            pass


@pytest.fixture
def _own_propagator() -> Iterator[None]:
    """Take back the global propagator, which Logfire replaces even where it is to be local."""
    before = propagate.get_global_textmap()
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("_own_propagator")
async def test_logfire_takes_the_spans(autojump_clock: MockClock) -> None:
    exporter = InMemorySpanExporter()
    own = logfire.configure(
        local=True,
        send_to_logfire=False,
        console=False,
        additional_span_processors=[SimpleSpanProcessor(exporter)],
    )
    await triage(Spans(own.config.get_tracer_provider(), own.config.get_meter_provider()))
    names = {span.context.span_id: span.name for span in exporter.get_finished_spans()}
    above = {
        span.name: names[span.parent.span_id] for span in exporter.get_finished_spans()
        if span.parent
    }  # fmt: skip
    assert above == TRIAGE


async def test_phoenix_takes_the_spans(collector: Collector, autojump_clock: MockClock) -> None:
    tracers = phoenix.register(
        endpoint=f"{collector.url}/v1/traces",
        protocol="http/protobuf",
        project_name="triage",
        set_global_tracer_provider=False,
        verbose=False,
    )
    await triage(Spans(tracers))
    names = {span.span_id: span.name for span in collector.spans}
    assert {s.name: names[s.parent_id] for s in collector.spans if s.parent_id} == TRIAGE


TRIAGE = {"0": "batch", "invoke_agent judge": "0", "chat small": "invoke_agent judge"}


async def triage(spans: Spans) -> None:
    with harness.observing(spans):
        agent = Agent("judge", model=ScriptedModel(["yes"], name="small"))
        await harness.fan_out(agent, ["a"], name="batch")
