"""`plan`: what a fan-out takes with other numbers, within 5 % of what it then really takes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.limits import JointLimiter, Limiter, ProviderPool
from harness.models import FunctionModel, Message, ModelRequest, ModelResponse, Price, Usage
from harness.observe import plan, record
from harness.policies import Attempt, BestEffort, Retry
from tests.scale import scaled

PRICE = Price(input_usd_per_million_tokens=1_000, output_usd_per_million_tokens=2_000)


def run_really(
    path: Path, *, items: int, limit: int, rpm: float | None, tpm: float | None
) -> float:
    """Run a fan-out of calls to a model, some of which fail and are retried; record it.

    Every 400th item is the same, so that more of them have no other mean by chance.
    """
    random.seed(items)  # Retries draw their delays from it.
    draws = [random.Random(item % 400) for item in range(items)]
    limiter = None
    if rpm or tpm:
        limiter = Limiter(requests_per_minute=rpm, tokens_per_minute=tpm)

    async def answer(request: ModelRequest) -> ModelResponse:
        draw = draws[int(request.messages[-1].text.split()[0])]
        await trio.sleep(draw.lognormvariate(0.5, 0.4))
        if draw.random() < 0.05:
            raise OSError("unlucky")
        used = Usage(draw.randint(50, 150), draw.randint(20, 200))
        return ModelResponse("yes", usage=used)

    model = FunctionModel(answer, name="it", limiter=limiter, price=PRICE)

    async def work(item: int) -> None:
        await trio.sleep(0.1)
        await model.complete(ModelRequest([Message("user", f"{item} " + "is it so? " * 30)]))
        await trio.sleep(0.05)

    async def main() -> float:
        async with record(path):
            began = trio.current_time()
            each = Attempt(retry=Retry(attempts=4))
            await harness.fan_out(work, range(items), limit=limit, each=each, policy=BestEffort())
            return trio.current_time() - began

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
@pytest.mark.parametrize(("rpm", "tpm"), [(None, None), (120, None), (None, 30_000), (300, 60_000)])
def test_a_plan_with_nothing_changed_is_what_was_recorded(
    tmp_path: Path, rpm: float | None, tpm: float | None
) -> None:
    took = run_really(tmp_path / "t", items=300, limit=20, rpm=rpm, tpm=tpm)
    found = plan(tmp_path / "t", items=300, limit=20)
    assert found.is_trusted, found.doubts
    assert found.recorded_seconds == pytest.approx(took)
    assert found.seconds == pytest.approx(took, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "limit", "rpm", "tpm"),
    [
        (1_000, 50, None, None),
        (800, 100, 400, None),
        (1_000, 400, 1_000, 150_000),
    ],
)
def test_a_plan_is_within_five_percent_of_the_real_run_of_it(
    tmp_path: Path, items: int, limit: int, rpm: float | None, tpm: float | None
) -> None:
    recorded_rpm = 600 if rpm else None
    recorded_tpm = 100_000 if tpm else None
    # Long enough that the first requests, of which nothing is known, matter little.
    run_really(tmp_path / "t", items=1_200, limit=20, rpm=recorded_rpm, tpm=recorded_tpm)
    found = plan(tmp_path / "t", items=items, limit=limit, rpm=rpm, tpm=tpm)
    really = run_really(tmp_path / "r", items=items, limit=limit, rpm=rpm, tpm=tpm)
    assert found.is_trusted, found.doubts
    assert found.seconds == pytest.approx(really, rel=0.05)


@pytest.mark.slow
def test_limits_can_be_planned_where_there_were_none(tmp_path: Path) -> None:
    run_really(tmp_path / "t", items=400, limit=20, rpm=None, tpm=None)
    found = plan(tmp_path / "t", items=1_000, limit=100, rpm=300)
    really = run_really(tmp_path / "r", items=1_000, limit=100, rpm=300, tpm=None)
    assert found.seconds == pytest.approx(really, rel=0.05)


@pytest.mark.slow
def test_the_cost_grows_with_the_items_and_the_best_limit_is_just_enough(tmp_path: Path) -> None:
    run_really(tmp_path / "t", items=400, limit=20, rpm=6_000, tpm=None)
    base = plan(tmp_path / "t", items=400, limit=20)
    more = plan(tmp_path / "t", items=1_000, limit=20, rpm=120)
    assert base.cost is not None
    assert more.cost == pytest.approx(2.5 * base.cost)
    assert more.p99 > 0
    # 2 requests a second of about 2 s each keep some 4 busy; a few more, as durations vary.
    assert 4 <= more.best_limit <= 12
    seconds = {
        limit: plan(tmp_path / "t", items=1_000, limit=limit, rpm=120).seconds
        for limit in (2, more.best_limit, 400)
    }
    assert seconds[2] > 1.3 * seconds[more.best_limit]
    assert seconds[more.best_limit] < 1.03 * seconds[400]


def run_in_turn(
    path: Path, *, items: int, limit: int, requests: int, limits: dict[str, Any]
) -> float:
    """Run a fan-out whose items send one request after the other; record it."""
    limiter = Limiter(**limits)
    draw = random.Random(7)
    # All different, so that none end at the same moment, in whatever order.
    durations = [draw.uniform(1, 3) for _ in range(60)] * 2

    async def work(item: int) -> None:
        for _ in range(requests):
            async with limiter.reserve():
                await trio.sleep(durations[item])
            await trio.sleep(1)

    async def main() -> float:
        async with record(path):
            began = trio.current_time()
            await harness.fan_out(work, range(items), limit=limit)
            return trio.current_time() - began

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("limits", [{"concurrent": 4}, {"requests_per_minute": 240}])
@pytest.mark.parametrize("limit", [3, 30])
def test_a_place_is_waited_for_and_given_back_as_it_really_was(
    tmp_path: Path, requests: int, limits: dict[str, Any], limit: int
) -> None:
    run_in_turn(tmp_path / "t", items=120, limit=12, requests=requests, limits=limits)
    found = plan(tmp_path / "t", items=120, limit=limit)
    really = run_in_turn(tmp_path / "r", items=120, limit=limit, requests=requests, limits=limits)
    assert found.is_trusted, found.doubts
    assert found.seconds == pytest.approx(really, rel=0.05)


TPM: dict[str, Any] = {"tokens_per_minute": 60_000}


def lasts(item: int) -> float:
    """Return how long an item takes: no two end when another one is due anyway."""
    return 1 + random.Random(item).random()


async def settles(of: Limiter | JointLimiter | ProviderPool, item: int) -> None:
    async with of.reserve(tokens=400) as reservation:
        await trio.sleep(lasts(item))
        reservation.settle(tokens=100 + item % 50)
        await trio.sleep(1)
    await trio.sleep(0.5)


async def settles_what_it_read(of: Limiter | JointLimiter | ProviderPool, item: int) -> None:
    async with of.reserve(input_tokens=300) as reservation:
        await trio.sleep(lasts(item))
        reservation.settle(input_tokens=300, output_tokens=100 + item % 50)


async def refunds_some(of: Limiter | JointLimiter | ProviderPool, item: int) -> None:
    async with of.reserve(tokens=400) as reservation:
        await trio.sleep(lasts(item))
        if item % 3:
            reservation.refund()


async def goes_on_long_after(of: Limiter | JointLimiter | ProviderPool, item: int) -> None:
    async with of.reserve():
        await trio.sleep(1)
    await trio.sleep(10)


def run_with(path: Path, *, items: int, limit: int, work: Any, make: Any) -> float:
    """Run a fan-out whose items share what ``make`` returns; record it."""

    async def main() -> float:
        of = make()
        async with record(path):
            began = trio.current_time()
            await harness.fan_out(partial(work, of), range(items), limit=limit)
            return trio.current_time() - began

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "make"),
    [
        (settles, lambda: Limiter(**TPM)),
        (settles_what_it_read, lambda: Limiter(**TPM)),
        (refunds_some, lambda: Limiter(**TPM)),
        (refunds_some, lambda: Limiter(requests_per_minute=120)),
        (goes_on_long_after, lambda: Limiter(concurrent=12)),
        (settles, lambda: JointLimiter([Limiter("a", **TPM), Limiter("b", concurrent=20)])),
        (settles, lambda: ProviderPool([Limiter("a", **TPM)])),
    ],
)
def test_what_is_settled_given_back_or_left_early_counts_as_it_did(
    tmp_path: Path, work: Any, make: Any
) -> None:
    """A settle that the trace didn't tell of made a plan take almost twice as long as the run."""
    took = run_with(tmp_path / "t", items=400, limit=12, work=work, make=make)
    same = plan(tmp_path / "t", items=400, limit=12)
    assert same.is_trusted, same.doubts
    assert same.seconds == pytest.approx(took, rel=0.02)
    really = run_with(tmp_path / "r", items=400, limit=60, work=work, make=make)
    assert plan(tmp_path / "t", items=400, limit=60).seconds == pytest.approx(really, rel=0.05)


async def test_an_item_whose_parts_ask_at_once_does_not_wait_for_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    limiter = Limiter(concurrent=2)

    async def part(number: int) -> None:
        async with limiter.reserve():
            await trio.sleep(1)

    async def work(item: int) -> None:
        await harness.fan_out(part, range(5))

    async with record(tmp_path / "t"):
        await harness.fan_out(work, range(8), limit=1)
    assert plan(tmp_path / "t", items=8, limit=1).seconds > 0


async def test_items_that_were_cut_off_are_not_planned_with(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def work(item: int) -> None:
        await trio.sleep(10)

    with trio.move_on_after(11):
        async with record(tmp_path / "t"):
            await harness.fan_out(work, range(20), limit=4)
    assert plan(tmp_path / "t", items=20, limit=4).seconds == pytest.approx(50)


async def test_what_was_held_up_by_something_else_can_not_be_trusted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def slow_source() -> AsyncIterator[int]:
        for number in range(20):
            await trio.sleep(1)
            yield number

    async def work(item: int) -> None:
        await trio.sleep(0.1)

    async with record(tmp_path / "t"):
        await harness.fan_out(work, slow_source(), name="batch")
    found = plan(tmp_path / "t", items=20, limit=100)
    assert not found.is_trusted
    assert "simulated with nothing changed, 'batch' takes" in found.doubts[0]


def test_bad_plans_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with record(tmp_path / "none"):
            async with harness.open_run("root"):
                pass
        async with record(tmp_path / "t"):
            await harness.fan_out(trio.sleep, [0.0, 0.0])

    trio.run(main)
    with pytest.raises(ValueError, match="there is no fan-out in the trace"):
        plan(tmp_path / "none", items=1, limit=1)
    with pytest.raises(ValueError, match="doesn't tell how many tokens a request uses"):
        plan(tmp_path / "t", items=1, limit=1, tpm=5)
    with pytest.raises(ValueError, match="items"):
        plan(tmp_path / "t", items=0, limit=1)
    with pytest.raises(TypeError, match="limit"):
        plan(tmp_path / "t", items=1, limit=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="requests_per_minute"):
        plan(tmp_path / "t", items=1, limit=1, rpm=-1)


@pytest.mark.full
@pytest.mark.long
def test_a_million_items_take_less_than_a_minute(tmp_path: Path) -> None:
    run_really(tmp_path / "t", items=1_000, limit=100, rpm=3_000, tpm=None)
    began = time.process_time()
    plan(tmp_path / "t", items=scaled(10_000, full=1_000_000), limit=400, rpm=5_000)
    assert time.process_time() - began < 60
