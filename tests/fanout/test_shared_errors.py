"""One exception object that many items raise: each result has an error of its own."""

from __future__ import annotations

import gc
import traceback
import tracemalloc
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.policies import BestEffort, Retry


class CodeError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


SHARED = [ValueError("down"), OSError(5, "down"), CodeError(code=5)]


def frames_of(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("shared", SHARED, ids=lambda error: type(error).__name__)
async def test_each_item_has_its_own_notes_and_traceback(
    autojump_clock: MockClock, shared: Exception
) -> None:
    """The last result used to say where all the others came from."""

    async def inner() -> None:
        raise shared

    async def body(item: int) -> None:
        await trio.sleep(item)
        async with harness.open_run("step"):
            await inner()

    for name in ("a", "b"):
        results = await harness.fan_out(body, range(20), policy=BestEffort(), name=name)
        assert len({id(result.error) for result in results}) == 20
        for result in results:
            assert type(result.error) is type(shared)
            assert str(result.error) == str(shared)
            assert vars(result.error).get("code") == vars(shared).get("code")
            assert result.error.__notes__ == [f"in run {name}/{result.index}/step"]
            assert frames_of(result.error) == ["body", "inner"]
    assert shared.__notes__ == ["in run a/0/step"]


@pytest.mark.slow
async def test_a_million_items_with_one_error_take_no_memory(autojump_clock: MockClock) -> None:
    """Its traceback held the locals of every item that had raised it."""
    shared = OSError("x")

    async def body(item: int) -> None:
        big = bytearray(100_000)
        await trio.lowlevel.checkpoint()
        big.append(1)
        raise shared

    tracemalloc.start()
    async with harness.open_fan_out(body, range(300), policy=BestEffort(), limit=10) as stream:
        async for _ in stream:
            pass
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2_000_000


async def test_an_error_raised_once_stays_the_object_it_is(autojump_clock: MockClock) -> None:
    """Also over the attempts of one item, and on its way up through runs."""
    errors = [ValueError(item) for item in range(3)]

    async def body(item: int) -> None:
        raise errors[item]

    each = harness.Attempt(retry=Retry(2))
    results = await harness.fan_out(body, range(3), policy=BestEffort(), each=each)
    assert [result.error for result in results] == errors

    async def outer(item: int) -> None:
        (await harness.fan_out(body, [item], policy=BestEffort()))[0].value  # noqa: B018

    errors = [ValueError(item) for item in range(3)]
    results = await harness.fan_out(outer, range(3), policy=BestEffort(), name="up")
    assert [result.error for result in results] == errors


async def test_an_error_that_cannot_be_copied_is_still_bounded(autojump_clock: MockClock) -> None:
    class OneOfAKind(Exception):
        def __reduce__(self) -> str:
            raise TypeError

        def __new__(cls, *args: object) -> OneOfAKind:
            if made:
                raise TypeError
            made.append(1)
            return super().__new__(cls)

    made: list[int] = []
    shared = OneOfAKind()

    async def body(item: int) -> None:
        raise shared

    results = await harness.fan_out(body, range(50), policy=BestEffort())
    assert {id(result.error) for result in results} == {id(shared)}
    assert frames_of(shared) == ["body"]
    assert len(shared.__notes__) <= 8


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    for shared in SHARED:
        shared.__traceback__ = None
        vars(shared).pop("__notes__", None)
        vars(shared).pop("_harness_ended", None)
