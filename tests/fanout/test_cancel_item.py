"""`stream.cancel(key)` ends one item, whatever it is doing, and no other."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import ItemSkipped, RunCancelled
from harness.flow import Pipeline, Router
from harness.journal import open_journal
from tests.fanout.probes import Boom, Flight, nap, nothing_left_behind


async def _rest(stream: Any) -> dict[Any, Any]:
    return {result.key: result async for result in stream}


def ticket(seconds: float) -> str:
    """Return the key of an item."""
    return f"t{seconds:g}"


@pytest.mark.parametrize("kind", ["fan-out", "pipeline", "router", "hedge"])
async def test_an_item_in_flight_is_cancelled_and_the_others_go_on(
    autojump_clock: MockClock, kind: str
) -> None:
    if kind == "pipeline":
        opened: Any = Pipeline(nap).open([5, 50, 7], key=ticket)
    elif kind == "router":
        opened = Router(lambda item: "a", tracks={"a": nap}).open([5, 50, 7], key=ticket)
    else:
        each = harness.Attempt(hedge=harness.Hedge(after=0.5) if kind == "hedge" else None)
        opened = harness.open_fan_out(nap, [5, 50, 7], key=ticket, each=each)
    with nothing_left_behind():
        async with opened as stream:
            await trio.sleep(1)
            assert stream.cancel("t50", "a duplicate")
            results = await _rest(stream)
    assert {key: one.status for key, one in results.items()} == {
        "t5": "ok",
        "t50": "cancelled",
        "t7": "ok",
    }
    assert trio.current_time() < 10
    assert isinstance(results["t50"].error, RunCancelled)
    assert "a duplicate" in str(results["t50"].error)


@pytest.mark.parametrize("priority", [False, True])
@pytest.mark.parametrize("key", [None, ticket])
async def test_an_item_that_waits_is_skipped_in_its_turn(
    autojump_clock: MockClock, key: Any, priority: bool
) -> None:
    flight = Flight(nap)
    async with harness.open_fan_out(
        flight, [5, 50, 7], key=key, limit=1, priority=(lambda item: 0) if priority else None
    ) as stream:
        await trio.sleep(1)
        assert not stream.cancel(1 if key is None else "t50")
        results = await _rest(stream)
    assert [one.status for one in results.values()] == ["ok", "skipped", "ok"]
    assert flight.started == [5, 7]
    skipped = list(results.values())[1].error
    assert isinstance(skipped, ItemSkipped)
    assert "was called off" in str(skipped)


@pytest.mark.parametrize("fallback", [None, lambda item, error: "instead"])
async def test_an_item_between_its_attempts_is_cancelled(
    autojump_clock: MockClock, fallback: Any
) -> None:
    calls: list[int] = []

    async def fails(item: int) -> None:
        calls.append(item)
        await trio.sleep(1)
        raise Boom(item)

    each = harness.Attempt(retry=harness.Retry(3, first_delay=30, jitter=0), fallback=fallback)
    with nothing_left_behind():
        async with harness.open_fan_out(
            fails, [3], each=each, policy=harness.BestEffort()
        ) as stream:
            await trio.sleep(10)
            assert stream.cancel(0, "enough")
            results = await _rest(stream)
            assert trio.current_time() == 10
    assert results[0].status == "cancelled"
    assert str(results[0].error) == "the run was cancelled: enough"
    assert isinstance(results[0].error.__cause__, Boom)
    assert calls == [3]


async def test_what_has_ended_stays_as_it_is(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, [1, 9]) as stream:
        await trio.sleep(3)
        assert not stream.cancel(0)
        results = await _rest(stream)
        assert not stream.cancel(1)
    assert [one.status for one in results.values()] == ["ok", "ok"]


async def test_with_a_journal_another_session_starts_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_journal(tmp_path / "j") as journal:
        seen = []
        for off in (True, False):
            async with harness.open_fan_out(
                nap, [5, 50, 7, 8], key=ticket, limit=1, journal=journal, name="b"
            ) as stream:
                if off:
                    await trio.sleep(1)
                    assert stream.cancel("t5")
                    assert not stream.cancel("t7")
                results = await _rest(stream)
            seen.append([results[ticket(item)].status for item in (5, 50, 7, 8)])
    assert seen == [["cancelled", "ok", "cancelled", "ok"], ["ok"] * 4]


async def test_before_the_block_or_with_a_list_as_key_it_is_refused(
    autojump_clock: MockClock,
) -> None:
    stream = harness.open_fan_out(nap, [1])
    with pytest.raises(RuntimeError, match="does not run until its block"):
        stream.cancel(0)
    async with stream:
        with pytest.raises(TypeError, match="takes a key that can be hashed"):
            stream.cancel([0])
