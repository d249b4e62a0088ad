"""Input that can't be checked is refused in words that say what it is and what to do."""

import itertools
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel

from harness import RunLocal, current_run
from harness.errors import ScheduleError
from harness.testing import assert_isolated

pytestmark = pytest.mark.slow

ticks = itertools.count()


def sources() -> Iterator[int]:
    yield from itertools.count()


SOURCE = sources()


async def echo(value: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return value


class Parrot:
    async def speak(self, value: Any) -> Any:
        return await echo(value)


def plain(value: int) -> int:
    return value


@pytest.mark.parametrize(
    ("agent", "inputs", "options", "error", "message"),
    [
        pytest.param(
            plain, [1], {"backend": "trio"}, TypeError, "was to await", id="a sync function"
        ),
        pytest.param(3, [1], {}, TypeError, "takes an async function, not 3", id="no function"),
        pytest.param(echo, [], {}, ValueError, "got no inputs", id="no inputs"),
        pytest.param(echo, "ab", {}, TypeError, "takes a list of inputs", id="a string"),
        pytest.param(echo, 3, {}, TypeError, "takes a list of inputs", id="one input, bare"),
        pytest.param(echo, [1], {"schedules": 0}, ValueError, "from 1 upwards", id="no schedules"),
        pytest.param(
            echo, [1], {"schedules": 1.5}, TypeError, "takes a whole number", id="a float"
        ),
        pytest.param(echo, [1], {"seed": "x"}, TypeError, "takes a whole number", id="seed"),
        pytest.param(echo, [1], {"equal": 1}, TypeError, "a function of two", id="equal"),
        pytest.param(echo, [1], {"schedule": 1}, TypeError, "a replay string", id="replay: int"),
        pytest.param(
            echo,
            [1, 2],
            {"schedule": "i1:1,1:h1:-:-:2~239c"},
            ValueError,
            "names a run twice",
            id="replay: one run twice",
        ),
        pytest.param(
            echo, [1], {"schedule": "zz"}, ValueError, "is not a replay string", id="replay: text"
        ),
        pytest.param(
            echo,
            [1],
            {"schedule": "i1:1,2:zz"},
            ValueError,
            "is not a replay string",
            id="replay: cut",
        ),
        pytest.param(
            echo,
            [1, 2],
            {"schedule": "o1:1,7"},
            ValueError,
            "there are 2 inputs",
            id="replay: runs",
        ),
        pytest.param(
            echo, [1], {"shared": ["x"]}, TypeError, "a list of the RunLocals", id="shared: list"
        ),
        pytest.param(
            echo,
            [1],
            {"shared": {"x": 1}},
            TypeError,
            "maps an object path",
            id="shared: no function",
        ),
        pytest.param(
            echo,
            [1],
            {"shared": {f"{__name__}.NOTHING": bool}},
            ValueError,
            "names nothing",
            id="shared: no such object",
        ),
        pytest.param(
            echo,
            [1],
            {"shared": {f"{__name__}.ticks": lambda _: False}},
            ValueError,
            "not in order before any run",
            id="shared: false already",
        ),
    ],
)
async def test_wrong_arguments(
    agent: Any, inputs: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        await assert_isolated(agent, inputs, **options)


async def test_a_coroutine_in_the_place_of_a_function() -> None:
    with pytest.raises(TypeError, match=r"write \.\.\.speak instead of \.\.\.speak\(\.\.\.\)"):
        await assert_isolated(Parrot().speak("a"), ["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not the coroutine echo"):
        await assert_isolated(echo(1), [1])  # type: ignore[arg-type]


async def test_an_agent_that_is_not_deterministic_alone() -> None:
    async def agent(value: int) -> int:
        await trio.lowlevel.checkpoint()
        return next(SOURCE)

    with pytest.raises(ScheduleError, match="not deterministic alone: it gave 0, then 1") as caught:
        await assert_isolated(agent, [1, 2])
    # A generator can't be wound back, and that is what to know here.
    assert f"could not be put back between the two: {__name__}.SOURCE" in str(caught.value)


async def test_an_agent_whose_own_tasks_race() -> None:
    """It shares nothing, and still can't be compared: it says so, and names no object."""

    async def agent(value: int) -> int:
        done: list[int] = []

        async def work(number: int) -> None:
            await trio.lowlevel.checkpoint()
            done.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, 1)
            nursery.start_soon(work, 2)
        return done[0]

    with pytest.raises(ScheduleError, match="its own tasks went on in another order"):
        await assert_isolated(agent, [1, 2])


async def test_an_agent_that_never_ends_alone() -> None:
    async def agent(value: int) -> None:
        await trio.sleep_forever()

    with pytest.raises(ScheduleError, match=r"doesn't end even when run alone.*(?s:.)*waits in"):
        await assert_isolated(agent, [1, 2])


async def test_an_agent_that_always_fails() -> None:
    async def agent(value: int) -> None:
        raise KeyError("no such ticket")

    said = r"every run failed alone, run 1 with KeyError.*, or a model that doesn't fail in a test$"
    with pytest.raises(ValueError, match=said):
        await assert_isolated(agent, [1, 2])


async def test_an_agent_that_takes_no_input_is_refused_before_anything_runs() -> None:
    class Desk:
        async def answer(self, value: int) -> int:
            return value

    async def two(value: int, other: int) -> int:
        return value

    with pytest.raises(TypeError, match="it is a class: give an instance"):
        await assert_isolated(Desk, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"take it from an instance, Desk\(\.\.\.\)\.answer"):
        await assert_isolated(Desk.answer, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"async def two\(input\)"):
        await assert_isolated(two, [1, 2])  # type: ignore[arg-type]


async def test_an_agent_that_fails_for_some_inputs() -> None:
    """An error is an outcome like any other, as long as it is always the same."""

    async def agent(value: int) -> float:
        await trio.lowlevel.checkpoint()
        return 1 / value

    await assert_isolated(agent, [1, 0, 2], schedules=10)


async def test_an_agent_that_cancels_its_own_run_for_some_inputs() -> None:
    async def agent(value: int) -> int:
        if value == 0:
            current_run().cancel("nothing to do")
        await trio.lowlevel.checkpoint()
        return value

    await assert_isolated(agent, [1, 0, 2], schedules=10)


class Opaque:
    pass


class Grumpy:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


async def test_outputs_that_are_equal_only_to_themselves() -> None:
    async def agent(value: int) -> list[Opaque]:
        await trio.lowlevel.checkpoint()
        return [Opaque()]

    with pytest.raises(ValueError, match=r"an output holds a Opaque, .* or pass equal="):
        await assert_isolated(agent, [1, 2])
    await assert_isolated(agent, [1, 2], schedules=5, equal=lambda a, b: len(a) == len(b))


async def test_outputs_that_can_not_be_compared() -> None:
    async def agent(value: int) -> Grumpy:
        await trio.lowlevel.checkpoint()
        return Grumpy()

    with pytest.raises(ValueError, match="raised ValueError: the truth value is ambiguous"):
        await assert_isolated(agent, [1, 2])


async def test_inputs_need_not_be_hashable() -> None:
    await assert_isolated(echo, [{"a": [1]}, {"b": {2}}], schedules=10)


async def test_a_single_input_is_run_twice_at_once() -> None:
    current: list[str] = []

    async def agent(text: str) -> str:
        current.append(text)
        await trio.lowlevel.checkpoint()
        return ",".join(current)

    with pytest.raises(ScheduleError):
        await assert_isolated(agent, ["a"])


async def test_each_input_is_a_run() -> None:
    """Code that keeps its state in run locals needs a run, as it has in a fan-out."""
    log = RunLocal(list, name="log")

    async def agent(text: str) -> list[str]:
        log.get().append(text)
        await trio.lowlevel.checkpoint()
        log.get().append(current_run().name)
        return list(log.get())

    await assert_isolated(agent, ["a", "b", "c"], schedules=30)


async def test_outputs_that_are_functions() -> None:
    async def agent(value: int) -> Any:
        await trio.lowlevel.checkpoint()
        return lambda: value

    with pytest.raises(ValueError, match=r"an output holds a function, .* or pass equal="):
        await assert_isolated(agent, [1, 2])


async def test_not_a_number_is_an_output_like_any_other() -> None:
    async def agent(value: int) -> dict[str, float]:
        await trio.lowlevel.checkpoint()
        return {"score": float("nan")}

    await assert_isolated(agent, [1, 2], schedules=5)


LAST_FAILURE: list[Exception] = []


async def test_errors_in_a_group_are_compared_by_what_they_hold() -> None:
    """Every error of an agent with a nursery is a group, and all of them have the same text."""

    async def agent(value: int) -> None:
        if value:
            async with trio.open_nursery():
                LAST_FAILURE[:] = [KeyError(value)]
                await trio.lowlevel.checkpoint()
                raise LAST_FAILURE[0]

    with pytest.raises(ScheduleError, match=r"alone: +raised ExceptionGroup: .*: \[KeyError: 1\]"):
        await assert_isolated(agent, [0, 1, 2])


async def test_an_agent_that_starts_trio_is_told_not_to() -> None:
    async def agent(value: int) -> None:
        trio.run(trio.sleep, 0)

    with pytest.raises(ValueError, match="inside of trio already: let it await"):
        await assert_isolated(agent, [1, 2])


async def test_an_agent_that_ends_the_process() -> None:
    async def agent(value: int) -> None:
        sys.exit(3)

    with pytest.raises(ScheduleError, match="SystemExit: 3"):
        await assert_isolated(agent, [1, 2])
