"""Replies arrive in every order when there are few, in many when there are many."""

import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import NotFound, arriving, explore_arrivals, explore_schedules, find_schedule


async def answer(question: str) -> str:
    """Be a model that answers at once; when its reply arrives is up to the schedule."""
    await trio.lowlevel.checkpoint()
    return question.upper()


@pytest.mark.slow
async def test_three_runs_of_two_calls_have_ninety_orders() -> None:
    orders: list[tuple[str, ...]] = []
    ask = arriving(answer)

    @explore_arrivals(orders=2_000)
    async def test() -> None:
        arrived: list[str] = []

        async def run(name: str) -> None:
            for call in "12":
                arrived.append(await ask(name + call))

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(run, name)
        orders.append(tuple(arrived))

    await test()
    assert len(orders) == len(set(orders)) == 90
    assert all(
        order.index(f"{name}1") < order.index(f"{name}2") for order in orders for name in "ABC"
    )


@pytest.mark.slow
async def test_an_aggregate_that_depends_on_the_order_is_found_and_replays() -> None:
    ask = arriving(answer)

    async def test() -> None:
        arrived: list[str] = []

        async def worker(name: str) -> None:
            arrived.append(await ask(name))

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(worker, name)
        assert arrived[0] != "C", "the first answer wins"

    with pytest.raises(ScheduleError, match="the first answer wins") as caught:
        await explore_arrivals(test)()
    assert f'@explore_arrivals(schedule="{caught.value.schedule}")' in str(caught.value)
    with pytest.raises(ScheduleError, match="under the schedule that was given"):
        await explore_arrivals(schedule=caught.value.schedule)(test)()
    with pytest.raises(ScheduleError):
        await explore_schedules(test)()


def test_steps_are_not_varied() -> None:
    """A lost update inside the program isn't what this mode is for, and costs it no run."""

    async def program() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(answer, "a")

    found = find_schedule(program, arrivals_only=True)
    assert isinstance(found, NotFound)
    assert (found.schedules_run, found.exhausted) == (1, True)


async def test_errors_arrive_too_and_a_cancelled_call_gets_no_reply() -> None:
    async def fails(question: str) -> str:
        raise LookupError(question)

    @explore_arrivals
    async def test() -> None:
        outcomes: list[str] = []

        async def failing() -> None:
            try:
                await arriving(fails)("x")
            except LookupError:
                outcomes.append("error")

        async def impatient() -> None:
            with trio.move_on_after(5) as scope:
                await arriving(answer, label="slow")("y")
                outcomes.append("answer")
            if scope.cancelled_caught:
                outcomes.append("gave up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing)
            nursery.start_soon(impatient)
        assert len(outcomes) == 2
        endings.add(tuple(outcomes))

    endings: set[tuple[str, ...]] = set()
    await test()
    assert endings == {
        ("error", "answer"),
        ("answer", "error"),
        ("error", "gave up"),
        ("gave up", "error"),
    }


async def test_outside_of_a_schedule_a_call_is_only_passed_on() -> None:
    assert await arriving(answer)("a") == "A"
