"""Make an OpenTelemetry span of each run, and of each call to a model or a tool.

Spans begin and end explicitly, from notices, with the times of those. None is ever made current: a
current span set before a ``yield``, or in a task that goes on elsewhere, is how traces of
concurrent programs get mixed up. The parent of a span is that of the run's parent; that of a root
is whatever is current where it is opened, such as the request that a server is answering.

The names and attributes are those of OpenTelemetry's conventions for generative AI, which are still
in development: ``invoke_agent``, ``chat`` and ``execute_tool``. What models and tools are told, and
what they answer, is never in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import metrics as otel_metrics
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue
from trio.lowlevel import enable_ki_protection

from harness._tracebacks import frames_of
from harness._version import __version__
from harness._words import error_in_words, masked_repr_of
from harness.models import AgentBegan, ModelCallOver, ToolCallOver, Usage
from harness.observe._labels import clean
from harness.runs import Event, RunBegan, RunOver

TAGS_AT_MOST = 20
"""So many of a run's tags become attributes."""

PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""What the conventions call providers that are called otherwise here."""

UNKNOWN = "unknown"
"""The provider of a model that doesn't say; the conventions want one."""

TOKEN_BUCKETS = [4**power for power in range(14)]
SECOND_BUCKETS = [0.01 * 2**power for power in range(14)]
"""The buckets that the conventions ask for."""


class _LiveSpan:
    """The span of a run that is running."""

    __slots__ = ("context", "is_agent", "path", "shift", "span", "usage")

    def __init__(self, span: Span, context: Context, path: str, shift: int) -> None:
        self.span = span
        self.context = context
        """With this span in it, for those below."""
        self.path = path
        self.shift = shift
        """What is added to trio's time for Unix time, in nanoseconds. Kept for a whole tree, so
        that no span begins before its parent when the machine's clock is set."""
        self.is_agent = False
        self.usage = Usage()

    def unix(self, seconds: float) -> int:
        """Return a moment of trio's in Unix time, in nanoseconds."""
        return self.shift + _nanoseconds(seconds)


class Spans:
    """Make spans of what the runs in a block do: ``with harness.observing(Spans()): ...``.

    Args:
      tracers: Where spans go; by default OpenTelemetry's global provider.
      meters: Where the conventions' histograms go, ``gen_ai.client.operation.duration`` and
        ``gen_ai.client.token.usage``; by default the global one.
    """

    def __init__(
        self, tracers: TracerProvider | None = None, meters: MeterProvider | None = None
    ) -> None:
        self._tracer = (tracers or trace.get_tracer_provider()).get_tracer("harness", __version__)
        meter = (meters or otel_metrics.get_meter_provider()).get_meter("harness", __version__)
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=SECOND_BUCKETS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        self._live: dict[str, _LiveSpan] = {}

    def span_of(self, run_id: str) -> Span | None:
        """Return the span of a run that is running, to add to it or to hand it on.

        To make it the parent of spans of other libraries, make it current for a call that doesn't
        yield: ``with opentelemetry.trace.use_span(span): ...``.
        """
        live = self._live.get(run_id)
        return None if live is None else live.span

    def __call__(self, event: Event) -> None:
        """Do nothing: what programs emit makes no spans."""

    @enable_ki_protection  # Or a Ctrl-C in here would lose what is told only once.
    def notice(self, event: Event) -> None:
        """Begin or end a span; called by the runs that are observed."""
        payload = event.payload
        kind = type(payload)
        if kind is RunBegan:
            self._begin(event, payload)
        elif (make := _MAKE.get(kind)) is not None:
            live = self._live.get(event.run_id)
            if live is not None:  # Else it began before anybody observed it.
                make(self, event, payload, live)

    def _begin(self, event: Event, began: RunBegan) -> None:
        parent = self._live.get(event.parent_id or "")
        if parent is None:
            above = otel_context.get_current()
            name = event.path.rpartition("/")[2] if event.depth else event.path
            shift = time.time_ns() - _nanoseconds(event.time)
        else:
            above, shift = parent.context, parent.shift
            name = event.path[len(parent.path) + 1 :]
        attributes: dict[str, AttributeValue] = {
            "harness.run.id": event.run_id,
            "harness.run.path": clean(event.path),
        }
        if began.item is not None:
            attributes["harness.item.index"] = began.item
        for tag in list(began.tags)[:TAGS_AT_MOST]:
            attributes[f"harness.tag.{clean(str(tag))}"] = clean(masked_repr_of(began.tags[tag]))
        span = self._tracer.start_span(
            clean(name),
            context=above,
            attributes=attributes,
            start_time=shift + _nanoseconds(event.time),
        )
        context = trace.set_span_in_context(span, above)
        self._live[event.run_id] = _LiveSpan(span, context, event.path, shift)

    def _end(self, event: Event, over: RunOver, live: _LiveSpan) -> None:
        del self._live[event.run_id]
        span = live.span
        span.set_attribute("harness.run.status", over.status)
        if over.status == "timed_out":
            span.set_attribute("error.type", "timeout")
            span.set_status(Status(StatusCode.ERROR, "the run ran out of time"))
        elif over.status == "failed":
            _fail(span, over.error, live.unix(event.time))
        if live.is_agent and live.usage.total:
            span.set_attributes(_of_usage(live.usage))
        span.end(live.unix(event.time))

    def _model_call(self, event: Event, over: ModelCallOver, live: _LiveSpan) -> None:
        attributes = _of_model(over.model, over.provider)
        kinds = {"gen_ai.operation.name": "chat", **attributes}
        span = self._tracer.start_span(
            f"chat {clean(over.model)}",
            context=live.context,
            kind=SpanKind.CLIENT,
            attributes=kinds,
            start_time=live.unix(over.started_at),
        )
        if over.usage is not None:
            live.usage = live.usage + over.usage
            span.set_attributes(_of_usage(over.usage))
            self._tokens.record(over.usage.input_tokens, {**kinds, "gen_ai.token.type": "input"})
            self._tokens.record(over.usage.output_tokens, {**kinds, "gen_ai.token.type": "output"})
        if over.cost_usd is not None:
            span.set_attribute("harness.cost_usd", over.cost_usd)
        if over.finish is not None:
            span.set_attribute("gen_ai.response.finish_reasons", [over.finish])
        if over.error is not None and over.status == "failed":
            kinds["error.type"] = clean(type(over.error).__qualname__)
        _end_call(span, over.status, over.error, live.unix(event.time))
        self._durations.record(event.time - over.started_at, kinds)

    def _agent(self, event: Event, began: AgentBegan, live: _LiveSpan) -> None:
        live.is_agent = True
        live.span.update_name(f"invoke_agent {clean(began.agent)}")
        live.span.set_attribute("gen_ai.operation.name", "invoke_agent")
        live.span.set_attribute("gen_ai.agent.name", clean(began.agent))
        live.span.set_attributes(_of_model(began.model, began.provider))

    def _tool_call(self, event: Event, over: ToolCallOver, live: _LiveSpan) -> None:
        span = self._tracer.start_span(
            f"execute_tool {clean(over.name)}",
            context=live.context,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": clean(over.name),
                "gen_ai.tool.call.id": clean(over.call_id),
                "gen_ai.tool.type": "function",
            },
            start_time=live.unix(over.started_at),
        )
        _end_call(span, over.status, over.error, live.unix(event.time))


_MAKE: dict[type, Callable[[Spans, Event, Any, _LiveSpan], None]] = {
    RunOver: Spans._end,
    AgentBegan: Spans._agent,
    ModelCallOver: Spans._model_call,
    ToolCallOver: Spans._tool_call,
}


@contextmanager
def continuing(headers: Mapping[str, str]) -> Iterator[None]:
    """Let roots opened in the block continue a request's trace: ``with continuing(headers): ...``.

    Not needed where the server's own instrumentation has made the request's span current.

    Args:
      headers: The request's headers, by names in lower case; ``traceparent`` among them, or
        whatever OpenTelemetry's global propagator reads.
    """
    token = otel_context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        otel_context.detach(token)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _of_model(model: str | None, provider: str | None) -> dict[str, AttributeValue]:
    name = UNKNOWN if provider is None else PROVIDERS.get(provider, clean(provider))
    attributes: dict[str, AttributeValue] = {"gen_ai.provider.name": name}
    if model is not None:
        attributes["gen_ai.request.model"] = clean(model)
    return attributes


def _of_usage(usage: Usage) -> dict[str, AttributeValue]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
    }


def _end_call(span: Span, status: str, error: BaseException | None, at: int) -> None:
    span.set_attribute("harness.call.status", status)
    if status == "failed":
        _fail(span, error, at)
    span.end(at)


def _fail(span: Span, error: BaseException | None, at: int) -> None:
    """Mark a span as failed, with what may be said of the error."""
    if error is None:
        span.set_status(Status(StatusCode.ERROR))
        return
    kind, words = clean(type(error).__qualname__), clean(error_in_words(error))
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, words))
    span.add_event(
        "exception",
        {
            "exception.type": kind,
            "exception.message": words,
            "exception.stacktrace": "\n".join(map(clean, frames_of(error))),
        },
        at,
    )
