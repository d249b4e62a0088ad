"""What is called outside trio says so in one sentence, and where to read on.

One table holds every public function and block that needs trio. A name that is neither in it nor
among those that need none fails the last test.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeter

import harness
from harness.agents import Agent, Conversation, open_mcp_tools
from harness.asyncio_bridge import open_asyncio, run_asyncio
from harness.budgets import reserve_budget
from harness.evals import evaluate, sweep
from harness.fanin import resolve
from harness.flow import Pipeline, Router
from harness.journal import open_journal
from harness.limits import AdaptiveCapacity, JointLimiter, Limiter, ProviderPool
from harness.models import (
    AnthropicModel,
    FallbackModel,
    FunctionModel,
    LocalModel,
    Message,
    ModelRequest,
    NamedModel,
    OpenAIModel,
    RecordedModel,
    ScriptedModel,
    open_batched,
)
from harness.observe import (
    Metrics,
    exporting,
    open_dashboard,
    open_socket,
    record,
    serving_metrics,
    show_metrics,
    watching_stalls,
)
from harness.shared import Counter, open_cache, open_once
from harness.testing import assert_stable_under_load, hold_clock
from harness.testing.provider import open_provider


async def function(item: Any = None) -> Any:
    return item


def entering(
    block: Callable[[], AbstractAsyncContextManager[Any]],
) -> Callable[[], Coroutine[Any, Any, None]]:
    async def enter() -> None:
        async with block():
            pytest.fail("the block was entered outside trio")

    return enter


def entering_plainly(
    block: Callable[[], AbstractContextManager[Any]],
) -> Callable[[], Coroutine[Any, Any, None]]:
    async def enter() -> None:
        with block():
            pytest.fail("the block was entered outside trio")

    return enter


def calling(plain: Callable[[], Any]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def call() -> None:
        plain()

    return call


def router() -> Router[Any, Any]:
    return Router(lambda item: "all", tracks={"all": function})


def limiter() -> Limiter:
    return Limiter("of a test", requests_per_minute=60)


REQUEST = ModelRequest([Message("user", "hello")])


def model() -> ScriptedModel:
    return ScriptedModel(["an answer"])


def agent() -> Agent[str]:
    return Agent("agent of a test", model=model())


def fallback() -> FallbackModel:
    return FallbackModel([ScriptedModel(["an answer"], limiter=limiter())])


MODELS: dict[str, Callable[[], Any]] = {
    "AnthropicModel": lambda: AnthropicModel("anthropic", api_key="key", max_output_tokens=10),
    "FallbackModel": fallback,
    "FunctionModel": lambda: FunctionModel(str),
    "LocalModel": lambda: LocalModel("local.gguf"),
    "NamedModel": lambda: NamedModel("sim"),
    "OpenAIModel": lambda: OpenAIModel("openai", api_key="key"),
    "RecordedModel": lambda: RecordedModel("never-made.jsonl", model()),
    "ScriptedModel": model,
}

CALLS: dict[str, Callable[[], Awaitable[Any]]] = {
    "harness.fan_out": lambda: harness.fan_out(function, [1]),
    "harness.open_fan_out": entering(lambda: harness.open_fan_out(function, [1])),
    "harness.race": lambda: harness.race(function, function),
    "harness.gather": lambda: harness.gather(function, function),
    "harness.open_run": entering(lambda: harness.open_run("it")),
    "harness.cleanup": entering_plainly(harness.cleanup),
    "harness.dump": calling(harness.dump),
    "harness.run_sync_soon": calling(lambda: harness.run_sync_soon(print)),
    "harness.budgets.Spending.__aenter__": entering(lambda: reserve_budget(tokens=1)),
    "harness.evals.evaluate": lambda: evaluate(function, [{"input": 1}], scorers=["exact"]),
    "harness.evals.sweep": lambda: sweep(
        function, [{"input": 1}], over={"model": ["small"]}, scorers=["exact"]
    ),
    "harness.fanin.resolve": lambda: resolve([], key="key", judge=lambda key, answers: 1),
    "harness.flow.Pipeline.run": lambda: Pipeline(function).run([1]),
    "harness.flow.Pipeline.open": entering(lambda: Pipeline(function).open([1])),
    "harness.flow.Pipeline.__call__": lambda: Pipeline(function)(1),
    "harness.flow.Router.run": lambda: router().run([1]),
    "harness.flow.Router.open": entering(lambda: router().open([1])),
    "harness.flow.Router.__call__": lambda: router()(1),
    "harness.limits.Limiter.reserve": entering(lambda: limiter().reserve()),
    "harness.limits.Limiter.reserve, adaptive": entering(
        lambda: Limiter("adaptive", concurrent=AdaptiveCapacity()).reserve()
    ),
    "harness.limits.JointLimiter.reserve": entering(lambda: JointLimiter([limiter()]).reserve()),
    "harness.limits.ProviderPool.reserve": entering(lambda: ProviderPool([limiter()]).reserve()),
    "harness.shared.Counter.wait_for": lambda: Counter(0).wait_for(1),
    "harness.shared.Counter.wait_for, reached": lambda: Counter(1).wait_for(1),
    "harness.shared.open_cache": entering(open_cache),
    "harness.shared.open_once": entering(open_once),
    "harness.journal.open_journal": entering(lambda: open_journal("never-made.db")),
    "harness.agents.Agent.run": lambda: agent().run("hello"),
    "harness.agents.Agent.run, conversation": lambda: agent().run(
        "hello", conversation=Conversation()
    ),
    "harness.agents.Agent.__call__": lambda: agent()("hello"),
    "harness.agents.Agent.stream": entering(lambda: agent().stream("hello")),
    "harness.models.FallbackModel.__aenter__": entering(fallback),
    "harness.models.OpenAIModel.__aenter__": entering(MODELS["OpenAIModel"]),
    "harness.models.AnthropicModel.__aenter__": entering(MODELS["AnthropicModel"]),
    "harness.models.LocalModel.__aenter__": entering(MODELS["LocalModel"]),
    "harness.models.NamedModel.__aenter__": entering(MODELS["NamedModel"]),
    "harness.models.open_batched": entering(lambda: open_batched(MODELS["OpenAIModel"]())),
    "harness.agents.open_mcp_tools": entering(lambda: open_mcp_tools("python -m nothing")),
    "harness.observe.open_dashboard": entering(open_dashboard),
    "harness.observe.open_socket": entering(open_socket),
    "harness.observe.record": entering(lambda: record("never-made.jsonl")),
    "harness.asyncio_bridge.open_asyncio": entering(open_asyncio),
    "harness.asyncio_bridge.run_asyncio": lambda: run_asyncio(function, 1),
    "harness.testing.chaos.assert_stable_under_load": lambda: assert_stable_under_load(
        function, [1], expected=1
    ),
    "harness.testing.hold_clock": entering_plainly(hold_clock),
    "harness.testing.provider.open_provider": entering(
        lambda: open_provider(answer=lambda request: "an answer", http=False)
    ),
    "harness.observe.exporting": entering(lambda: exporting("http://127.0.0.1:4318")),
    "harness.observe.serving_metrics": entering_plainly(lambda: serving_metrics(Metrics(), 0)),
    "harness.observe.show_metrics": calling(lambda: show_metrics(Metrics(), NoOpMeter("none"))),
    "harness.observe.watching_stalls": entering_plainly(watching_stalls),
}


def asking(make: Callable[[], Any]) -> Iterator[tuple[str, Callable[[], Awaitable[Any]]]]:
    yield "complete", lambda: make().complete(REQUEST)
    yield "stream", entering(lambda: make().stream(REQUEST))


CALLS |= {
    f"harness.models.{kind}.{method}": call
    for kind, make in MODELS.items()
    for method, call in asking(make)
}


NEED_NO_WORDS = {
    "harness.asyncio_bridge.AsyncioLoop.run": "needs the block of open_asyncio()",
    "harness.asyncio_bridge.call_trio": "is for asyncio, and says so",
    "harness.agents.Agent.resume": "needs what a run raised, in trio",
    "harness.agents.FunctionTool.invoke": "is called by agents",
    "harness.evals.AgentJudge.__call__": "asks an agent, or what is given in its place",
    "harness.agents.HistoryView.ask": "is for a history processor, which a run calls",
    "harness.agents.Tool.invoke": "is called by agents",
    "harness.fanin.Fold.run": "reads a stream, whose block needs trio",
    "harness.journal.IdentifiedJournal.note_outlook": "needs the block of open_journal()",
    "harness.journal.IdentifiedJournal.open_batch": "a protocol",
    "harness.journal.Journal.complete": "needs the block of open_journal()",
    "harness.journal.Journal.fail": "needs the block of open_journal()",
    "harness.journal.Journal.intend": "needs the block of open_journal()",
    "harness.journal.Journal.open_batch": "needs the block of open_journal()",
    "harness.models.BatchedModel.complete": "needs the block of open_batched()",
    "harness.models.BatchedModel.find": "is called by the block of open_batched()",
    "harness.models.BatchedModel.stream": "needs the block of open_batched()",
    "harness.models.Model.complete": "a protocol",
    "harness.models.Model.stream": "a protocol",
    "harness.policies.ReservingLimiter.reserve": "a protocol",
    "harness.shared.AwaitedCounter.add": "a protocol",
    "harness.shared.AwaitedCounter.read": "a protocol",
    "harness.shared.AwaitedCounter.try_spend": "a protocol",
    "harness.shared.AwaitedCounter.wait_for": "a protocol",
    "harness.runs.Run.emit": "needs a run, and says what one outside trio can't do",
    "harness.runs.Subscription.__aenter__": "needs a run",
    "harness.shared.Cache.get": "needs the block of open_cache()",
    "harness.shared.EffectStore.complete": "a protocol",
    "harness.shared.EffectStore.fail": "a protocol",
    "harness.shared.EffectStore.intend": "a protocol",
    "harness.shared.Once.__call__": "needs the block of open_once()",
    "harness.testing.chaos.Recording.assert_order_independent": "needs the results of a fan-out",
    "harness.testing.isolation.assert_isolated": "works in asyncio, too",
    "harness.testing.provider.Provider.request": "needs the block of open_provider()",
}
"""Public async names that are not in the table, and why."""

SAME_AS = {
    "harness.observe.TraceRecording": "harness.observe.record",
    "harness.agents.AgentStream": "harness.agents.Agent.stream",
    "harness.asyncio_bridge.AsyncioLoop": "harness.asyncio_bridge.open_asyncio",
    "harness.flow.PipelineStream": "harness.flow.Pipeline.open",
    "harness.flow.RouterStream": "harness.flow.Router.open",
    "harness.limits.Reservation": "harness.limits.Limiter.reserve",
    "harness.runs.RunBlock": "harness.open_run",
}
"""Blocks that are opened by something in the table."""


def drive(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine with no loop around it."""
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


async def call_it(name: str) -> None:
    await CALLS[name]()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


def check_words(name: str, told: str, where: str) -> None:
    assert re.search(rf"(called|opened|entered|and) {where}; ", told), told
    assert "trio.run()" in told, told
    assert told.count("docs/how-to/web.md") == 1, told
    assert ". " not in told, told
    assert len(told) < 300
    said = name.partition(",")[0].lower().replace("model", "").split(".")[-2:]
    assert any(part in told.lower() for part in said if part != "harness"), told


@pytest.mark.parametrize("name", CALLS)
def test_with_no_loop_it_says_that_it_needs_trio(name: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        drive(call_it(name))
    check_words(name, str(caught.value), "outside trio")


@pytest.mark.parametrize("name", CALLS)
def test_in_asyncio_it_says_that_it_needs_trio(name: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(call_it(name))
    check_words(name, str(caught.value), "outside trio, in asyncio")


MODULES = [
    "harness",
    "harness.agents",
    "harness.asyncio_bridge",
    "harness.budgets",
    "harness.evals",
    "harness.fanin",
    "harness.flow",
    "harness.journal",
    "harness.limits",
    "harness.models",
    "harness.observe",
    "harness.policies",
    "harness.runs",
    "harness.shared",
    "harness.testing",
    "harness.testing.provider",
]


def is_async(thing: Any) -> bool:
    """Return whether calling it gives something to await, or a block for ``async with``."""
    if inspect.iscoroutinefunction(thing):
        return True
    returns = str(getattr(thing, "__annotations__", {}).get("return", ""))
    return inspect.isfunction(thing) and "Async" in returns and "Iterator" not in returns


def async_names() -> Iterator[str]:
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            thing = getattr(module, name)
            if is_async(thing):
                yield f"{thing.__module__.partition('._')[0]}.{name}"
            if not inspect.isclass(thing) or issubclass(thing, BaseException):
                continue
            home = f"{thing.__module__.partition('._')[0]}.{name}"
            for method_name, method in inspect.getmembers(thing):
                public = not method_name.startswith("_") and not method_name.endswith("_counted")
                if (public or method_name in ("__aenter__", "__call__")) and is_async(method):
                    yield f"{home}.{method_name}"


def test_every_public_async_name_is_in_the_table_or_needs_no_words() -> None:
    covered = {name.partition(",")[0] for name in CALLS}
    homes = {name.removeprefix("harness.") for name in covered} | {"open_run"}
    missing = set()
    for name in set(async_names()) - covered - NEED_NO_WORDS.keys():
        short = re.sub(r"^harness\.(fanout|runs)?\.?", "", name)
        if short not in homes and name.rpartition(".")[0] not in SAME_AS:
            missing.add(name)
    assert missing == set()
    assert set(SAME_AS.values()) <= covered
