"""Who read a thing, and where, is told by line, though a line may halt in its middle."""

from typing import ClassVar

import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import assert_isolated

pytestmark = pytest.mark.slow

_current = ""


async def pause() -> str:
    await trio.lowlevel.checkpoint()
    return ""


class Box:
    held: ClassVar[str] = ""

    def look(self) -> str:
        return self.held


async def after_an_await(text: str) -> str:
    Box.held = text
    return await pause() + Box.held


async def after_an_await_in_a_library(text: str) -> str:
    Box.held = text
    # fmt: off
    await trio.lowlevel.checkpoint(); return Box.held  # noqa: E702
    # fmt: on


async def by_another_function(text: str) -> str:
    box = Box()
    Box.held = text
    await pause()
    return box.look()


async def by_a_global(text: str) -> str:
    global _current
    _current = text
    await pause()
    return _current


async def not_before_the_await(text: str) -> str:
    Box.held = text
    seen = {}
    seen[text] = await pause() + (Box.held)
    return seen[text]


@pytest.mark.parametrize(
    ("agent", "reader"),
    [
        pytest.param(after_an_await, (after_an_await, 2), id="rest of a line"),
        pytest.param(after_an_await_in_a_library, (after_an_await_in_a_library, 3), id="library"),
        pytest.param(by_another_function, (Box.look, 1), id="callee"),
        pytest.param(by_a_global, (by_a_global, 4), id="global"),
        pytest.param(not_before_the_await, (not_before_the_await, 3), id="not before"),
    ],
)
async def test_the_line_that_read_it(agent, reader) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, ["a", "b"])
    function, offset = reader
    where = f"{function.__qualname__} (test_lines.py:{function.__code__.co_firstlineno + offset})"
    reads = [line for line in str(caught.value).splitlines() if line.startswith("  read by")]
    assert reads == [f"  read by run 1 ('a') at {where}"]
    # It is read when the await is over: in the table, in the last step of the run.
    steps = [line for line in str(caught.value).splitlines() if "reads" in line]
    assert all("ends" in line for line in steps), steps


class Pair:
    def __init__(self) -> None:
        self.shared = ""
        self.harmless = ""


PAIR = Pair()


async def two_attributes(text: str) -> str:
    PAIR.shared = text
    PAIR.harmless = text
    await pause()
    return PAIR.shared


async def test_only_the_lines_that_wrote_the_guilty_attribute() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(two_attributes, ["a", "b"])
    assert caught.value.objects == (f"{__name__}.PAIR.shared",)
    first = two_attributes.__code__.co_firstlineno
    writes = [line for line in str(caught.value).splitlines() if line.startswith("  written by")]
    assert len(writes) == 2
    assert all(line.endswith(f"(test_lines.py:{first + 1})") for line in writes)
