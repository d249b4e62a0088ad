"""`gather` runs different functions at once, and returns the value of each."""

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunCancelled
from tests.fanout.probes import Boom, nap, nothing_left_behind


async def text() -> str:
    """Return a text after a second."""
    await trio.sleep(1)
    return "text"


async def fails() -> int:
    """Fail after two seconds."""
    await trio.sleep(2)
    raise Boom


async def test_the_values_come_in_the_order_of_the_functions(autojump_clock: MockClock) -> None:
    with nothing_left_behind():
        seconds, words = await harness.gather(partial(nap, 3), text)
    assert (seconds, words) == (3, "text")
    assert trio.current_time() == 3
    assert await harness.gather(*[partial(nap, n) for n in range(150)]) == tuple(range(150))


async def test_a_failure_cancels_the_others_and_comes_out(autojump_clock: MockClock) -> None:
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.gather(partial(nap, 60), fails, text, name="three")
    assert [type(error) for error in caught.value.exceptions] == [Boom]
    assert [result.status for result in caught.value.results] == ["cancelled", "failed", "ok"]
    assert "'three'" in str(caught.value)
    assert trio.current_time() == 2


async def test_there_is_a_value_for_each_or_an_error(autojump_clock: MockClock) -> None:
    async def leaves() -> None:
        harness.current_run().cancel("no answer needed")
        await trio.sleep(1)

    with pytest.raises(FanOutError) as caught:
        await harness.gather(text, leaves)
    assert [type(error) for error in caught.value.exceptions] == [RunCancelled]


async def test_what_can_not_be_called_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="at least one async function"):
        await harness.gather()
    wrong: Any
    for wrong in (3, nap, text()):
        with pytest.raises(TypeError, match=r"gather\(\)"):
            await harness.gather(text, wrong)
