"""An error is one failed result, whatever it is like: no oddity of it costs the other results."""

from collections.abc import Generator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, echo, statuses
from tests.support.strange_errors import REFUSING, STRANGE, RaisingTextError

BEST_EFFORT = harness.BestEffort()


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (kind, way)
        for kind in STRANGE
        for way in ("plain", "in a group", "in a group with notes", "in a nursery")
        # trio puts a task's error into words itself, and breaks down when that raises.
        if (kind, way) != ("raising text", "in a nursery")
    ],
)
async def test_a_strange_error_is_one_failed_result_among_the_others(
    autojump_clock: MockClock, kind: str, way: str
) -> None:
    """Adding a note, or taking a frame out of the traceback, raised on such an error.

    That error of ours came out in place of the fan-out's results, of which there were none left.
    """
    made: list[Exception] = []

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        error = STRANGE[kind]()
        made.append(error)
        if way in ("plain", "in a nursery"):
            raise error
        group = ExceptionGroup("from a nursery", [error])
        if way == "in a group with notes":
            group.add_note("seen on the way")
        raise group

    async def body(item: int) -> int:
        if item == 1 and way == "in a nursery":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails)
        elif item == 1:
            await fails()
        await trio.lowlevel.checkpoint()
        return item

    results = await harness.fan_out(body, range(3), policy=BEST_EFFORT)
    assert statuses(results) == ["ok", "failed", "ok"]
    assert results[1].error is made[0]
    assert results.values() == [0, 2]
    read: list[int] = []
    async with harness.open_fan_out(body, range(3), policy=BEST_EFFORT) as stream:
        async for result in stream:
            read.append(result.index)
    assert sorted(read) == [0, 1, 2]


@pytest.mark.parametrize("kind", STRANGE)
async def test_a_strange_error_is_the_entry_of_a_fan_outs_error(
    autojump_clock: MockClock, kind: str
) -> None:
    made: list[Exception] = []

    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if item == 1:
            made.append(STRANGE[kind]())
            raise made[-1]
        return item

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(3))
    assert caught.value.exceptions[0] is made[0]
    assert "1 item of run" in str(caught.value)
    assert type(made[0]).__name__ in str(caught.value)
    assert len(caught.value.results) == 3
    assert "failed" in repr(caught.value.results[1])
    results = await harness.fan_out(body, range(3), policy=BEST_EFFORT)
    with pytest.raises(FanOutError) as caught:
        results.raise_if_incomplete()
    assert caught.value.exceptions[0] is made[1]


@pytest.mark.parametrize("kind", REFUSING)
async def test_a_fallback_may_raise_an_error_that_refuses_a_context(
    autojump_clock: MockClock, kind: str
) -> None:
    def fallback(item: int, error: Exception) -> None:
        raise REFUSING[kind]()

    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if item == 1:
            raise Boom(item)
        return item

    each = harness.Attempt(fallback=fallback)
    results = await harness.fan_out(body, range(3), policy=BEST_EFFORT, each=each)
    assert statuses(results) == ["ok", "failed", "ok"]
    assert type(results[1].error) is type(REFUSING[kind]())


@pytest.mark.parametrize("kind", REFUSING)
async def test_critical_may_raise_an_error_that_refuses_a_note(
    autojump_clock: MockClock, kind: str
) -> None:
    def critical(item: int) -> bool:
        raise REFUSING[kind]()

    async def body(item: int) -> None:
        raise Boom(item)

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, [1], policy=harness.BestEffort(critical=critical))
    assert [type(error) for error in caught.value.exceptions] == [Boom, type(REFUSING[kind]())]
    assert statuses(caught.value.results) == ["failed"]


@pytest.mark.parametrize("kind", REFUSING)
async def test_a_streams_body_may_raise_an_error_that_refuses_a_note(
    autojump_clock: MockClock, kind: str
) -> None:
    """Beside a fan-out that had failed, which the body's error is to tell of."""

    async def body(item: int) -> None:
        raise Boom(item)

    own = REFUSING[kind]()
    caught: Exception | None = None
    try:
        async with harness.open_fan_out(body, [1]):
            await trio.sleep(1)
            raise own
    except Exception as error:  # Not pytest.raises, which such an error can break as well.
        caught = error
    assert caught is own


class RaisingReprKey:
    """A key that can't be put into words, but has a name."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("asked for repr")

    def __str__(self) -> str:
        """Return a name."""
        return "ticket"


@pytest.mark.parametrize("form", ["FailFast", "critical", "raise_if_incomplete"])
async def test_a_key_whose_repr_raises_does_not_hide_the_error(
    autojump_clock: MockClock, form: str
) -> None:
    """The message names the key; making the message failed, and with it the fan-out."""

    def critical(item: int) -> bool:
        raise Boom("critical")

    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise Boom("real")

    policies: dict[str, Any] = {
        "FailFast": harness.FailFast(),
        "critical": harness.BestEffort(critical=critical),
        "raise_if_incomplete": BEST_EFFORT,
    }
    with pytest.raises(FanOutError) as caught:
        results = await harness.fan_out(
            body, [1], policy=policies[form], key=lambda item: RaisingReprKey()
        )
        assert "failed" in repr(results[0])
        results.raise_if_incomplete()
    assert caught.value.exceptions[0].args == ("real",)
    assert "RaisingReprKey" in str(caught.value)
    assert len(caught.value.results) == 1


async def test_a_source_may_raise_an_error_without_text(autojump_clock: MockClock) -> None:
    error = RaisingTextError()

    def numbers() -> Generator[int]:
        yield 1
        raise error

    with pytest.raises(FanOutError, match="RaisingTextError") as caught:
        await harness.fan_out(echo, numbers())
    assert caught.value.exceptions[0] is error


async def test_notes_of_a_shared_group_are_copied_once(autojump_clock: MockClock) -> None:
    """One group object that every item raises, such as a module keeps for "not configured".

    Each unwrapping copied the group's notes to the inner error again: 5,000 items, 5,000 notes.
    """
    inner = OSError("not configured")
    group = ExceptionGroup("shared", [inner])
    group.add_note("see the manual")

    async def body(item: int) -> None:
        raise group

    results = await harness.fan_out(body, range(50), policy=BEST_EFFORT)
    assert len({id(result.error) for result in results}) == 50
    for result in results:
        notes = getattr(result.error, "__notes__", None)
        assert notes == ["see the manual", f"in run body/{result.index}"]
