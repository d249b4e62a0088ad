"""An option that there isn't is refused with the one that was meant."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest

import harness
from harness import agents, evals, flow, limits, models, policies, shared, testing
from harness._arguments import says_near_options
from harness.cluster import RayCluster
from harness.testing import provider


@pytest.mark.parametrize(
    ("call", "misspelt", "meant"),
    [
        (lambda **given: limits.Limiter("api", **given), "rpm", "requests_per_minute"),
        (lambda **given: limits.Limiter("api", **given), "tpm", "tokens_per_minute"),
        (lambda **given: limits.Limiter("api", **given), "max_concurrent", "concurrent"),
        (limits.AdaptiveCapacity, "minimun", "minimum"),
        (limits.ProviderProfile, "named", "name"),
        (policies.Attempt, "timout", "timeout"),
        (policies.Attempt, "retries", "retry"),
        (policies.Retry, "max_attempts", "attempts"),
        (policies.Hedge, "percentil", "percentile"),
        (policies.BestEffort, "criticals", "critical"),
        (policies.Priority, "look_ahead", "lookahead"),
        (harness.Budget, "costs_usd", "cost_usd"),
        (harness.RunLocal, "factories", "factory"),
        (shared.Counter, "initail", "initial"),
        (lambda **given: agents.Agent("desk", **given), "instruction", "instructions"),
        (lambda **given: models.OpenAIModel("gpt", **given), "api_keys", "api_key"),
        (
            lambda **given: models.AnthropicModel("claude", **given),
            "max_token",
            "max_output_tokens",
        ),
        (models.LocalModel, "paths", "path"),
        (models.FunctionModel, "names", "name"),
        (models.ScriptedModel, "reply", "replies"),
        (models.ScriptedModel, "dealy", "delay"),
        (models.RecordedModel, "paths", "path"),
        (models.FallbackModel, "nam", "name"),
        (models.Price, "input_usd", "input_usd_per_million_tokens"),
        (testing.Chaos, "seeds", "seed"),
        (provider.Faults, "seeds", "seed"),
        (provider.Storm, "status_code", "status"),
    ],
)
def test_the_nearest_option_is_named(call: Callable[..., Any], misspelt: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(**{misspelt: 1})
    assert f"has no option {misspelt!r}; did you mean {meant!r}?" in str(caught.value)


def test_where_nothing_is_near_all_there_are_are_named() -> None:
    with pytest.raises(TypeError, match=r"Hedge\(\) has no option 'zzz'; it takes after, percent"):
        policies.Hedge(zzz=1)  # type: ignore[call-arg]


async def answer(item: int) -> int:
    return item


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("timeout", "each=harness.Attempt(timeout=...)"),
        ("limiter", "each=harness.Attempt(limiter=...)"),
        ("retries", "each=harness.Attempt(retry=harness.Retry(3))"),
        ("max_at_once", "limit=..."),
        ("return_exceptions", "policy=harness.BestEffort()"),
    ],
)
async def test_what_belongs_to_an_attempt_is_shown_where_it_is_missed(
    option: str, instead: str
) -> None:
    """Who comes from another library writes it where that has it."""
    fan_out: Any = harness.fan_out
    open_fan_out: Any = harness.open_fan_out
    calls: list[Any] = [open_fan_out, flow.stage, flow.track]
    words = f"() has no option {option!r}; write {instead}"
    with pytest.raises(TypeError) as caught:
        await fan_out(answer, [1], **{option: 5})
    assert str(caught.value) == f"fan_out{words}"
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call(*([answer, [1]] if call is open_fan_out else [answer]), **{option: 5})
        assert str(caught.value) == f"{call.__name__}{words}"


@pytest.mark.parametrize("option", ["retry", "timeout", "limiter", "limt", "max_concurrency"])
async def test_every_call_that_runs_functions_says_where_such_options_go(option: str) -> None:
    """Also those whose options belong to a part of theirs, or to another call."""
    attempt = f"each=harness.Attempt({option}=...)"
    what = "limit=..." if option in ("limt", "max_concurrency") else attempt
    own = "did you mean 'limit'?" if option == "limt" else f"write {what}"
    of_router = f"write track(fn, {what})" if what == attempt else own
    given: dict[str, Any] = {option: 5}
    pipeline, router = flow.Pipeline(answer), flow.Router(lambda item: "a", tracks={"a": answer})
    calls: list[tuple[str, Callable[..., Any], str]] = [
        ("fan_out", lambda: harness.fan_out(fn=answer, items=[1], **given), own),
        ("Pipeline.run", lambda: pipeline.run([1], **given), f"write stage(fn, {what})"),
        ("Pipeline.open", lambda: pipeline.open([1], **given), f"write stage(fn, {what})"),
        ("Router.run", lambda: router.run([1], **given), of_router),
        ("Router.open", lambda: router.open([1], **given), of_router),
        (
            "gather",
            lambda: harness.gather(partial(answer, 1), **given),
            f"write harness.fan_out(fn, items, {what})",
        ),
        ("evaluate", lambda: evals.evaluate(answer, [], scorers=["exact"], **given), own),
        ("sweep", lambda: evals.sweep(answer, [], over={}, scorers=["exact"], **given), own),
        ("RayCluster.fan_out", lambda: RayCluster().fan_out(answer, [1], **given), own),
    ]
    if option != "timeout":  # A run has that.
        words = f"write harness.fan_out(fn, items, {what})"
        calls.append(("open_run", lambda: harness.open_run("one", **given), words))
    for name, call, words in calls:
        with pytest.raises(TypeError) as caught:
            returned = call()
            if inspect.isawaitable(returned):
                await returned
        assert str(caught.value) == f"{name}() has no option {option!r}; {words}"


def test_what_a_run_calls_otherwise_is_named() -> None:
    for option, words in (
        ("timout", "did you mean 'timeout'?"),
        ("within", "write timeout=..."),
        ("tokens", "write budget=harness.Budget("),
    ):
        given: dict[str, Any] = {option: 5}
        with pytest.raises(TypeError) as caught:
            harness.open_run("one", **given)
        assert words in str(caught.value)


async def test_a_call_that_explains_its_options_is_as_it_was() -> None:
    """Also what it says of bad values, and of one argument too few."""
    assert inspect.iscoroutinefunction(harness.fan_out)
    assert list(inspect.signature(harness.fan_out).parameters)[:2] == ["fn", "items"]
    assert (await harness.fan_out(answer, [1, 2], limit=1)).values() == [1, 2]
    with pytest.raises(TypeError, match="witin"):
        await harness.fan_out(answer, [1], witin=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'items'"):
        await harness.fan_out(answer)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes items as an iterable"):
        harness.open_fan_out(answer, 5)  # type: ignore[arg-type]


@says_near_options
@attrs.frozen
class Kettle:
    """Boils."""

    litres: float = 1.0

    def __attrs_post_init__(self) -> None:
        if self.litres < 0:
            raise TypeError("a kettle holds something")


def test_other_errors_are_as_they_were() -> None:
    """Those of the class itself, and those of Python about what is right in name."""
    with pytest.raises(TypeError, match=r"^a kettle holds something$"):
        Kettle(litres=-1)
    with pytest.raises(TypeError, match="positional argument"):
        Kettle(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing"):
        limits.ProviderPool()  # type: ignore[call-arg]


def test_class_is_as_it_was() -> None:
    """Its signature, what a type checker sees, copies and pickles."""
    assert list(inspect.signature(Kettle).parameters) == ["litres"]
    kettle: Kettle = Kettle(litres=2)
    assert attrs.evolve(kettle, litres=3) == Kettle(3)
    assert pickle.loads(pickle.dumps(kettle)) == kettle
