"""Each item takes the track that suits it, and another one if that fails."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, UnknownTrackError
from harness.flow import DROP, Pipeline, Router, failed_at, stage, track
from tests.fanout.probes import Boom, Flight, Source, echo, nothing_left_behind, statuses


async def small(item: int) -> str:
    await trio.sleep(1)
    if item % 5 == 0:
        raise Boom(item)
    return f"small {item}"


async def large(item: int) -> str:
    await trio.sleep(10)
    return f"large {item}"


def by_parity(item: int) -> str:
    return "odd" if item % 2 else "even"


async def by_parity_in_time(item: int) -> str:
    await trio.sleep(1)
    return by_parity(item)


@pytest.mark.parametrize("classify", [by_parity, by_parity_in_time])
async def test_a_plain_or_async_classifier_chooses(
    autojump_clock: MockClock, classify: Any
) -> None:
    router = Router(classify, tracks={"odd": large, "even": track(echo)})
    results = await router.run(range(4), name="nightly", key=str)
    assert results.values() == [0, "large 1", 2, "large 3"]
    assert results[0].key == "0"
    assert results.name == "nightly"
    assert trio.current_time() == (10 if classify is by_parity else 11)


async def test_classifier_and_track_are_called_in_the_item_s_run(autojump_clock: MockClock) -> None:
    runs: list[str] = []

    async def note(item: int) -> str:
        await trio.lowlevel.checkpoint()
        runs.append(harness.current_run().path)
        return "only"

    await Router(note, tracks={"only": note}).run([1])
    assert runs == ["router/0", "router/0"]


async def test_a_track_s_limit_holds_and_without_one_the_router_s(
    autojump_clock: MockClock,
) -> None:
    odd, even = Flight(large), Flight(large)
    router = Router(by_parity, tracks={"odd": track(odd, limit=2), "even": even})
    await router.run(range(40), limit=10)
    assert odd.peak == 2
    assert 2 < even.peak <= 10


async def test_no_more_items_are_in_flight_than_the_router_s_limit(
    autojump_clock: MockClock,
) -> None:
    source = Source()
    with trio.move_on_after(5):
        await Router(by_parity, tracks={"odd": large, "even": large}).run(source, limit=7)
    assert source.pulled == 7


async def test_an_unknown_track_is_an_error_that_names_those_there_are(
    autojump_clock: MockClock,
) -> None:
    for answer in ("slow", None, 7, ["odd"]):

        def classify(item: int, answer: Any = answer) -> Any:
            return answer

        router = Router(classify, tracks={"odd": echo, "even": echo})
        results = await router.run([1], policy=harness.BestEffort())
        error = results[0].error
        assert isinstance(error, UnknownTrackError)
        assert isinstance(error, ValueError)
        assert f"chose the track {answer!r}" in str(error)
        assert "there are 'odd', 'even'" in str(error)
        assert failed_at(error) == ("classify",)


async def test_the_default_takes_what_has_no_track(autojump_clock: MockClock) -> None:
    answers: list[Any] = ["odd", None, "slow", ["odd"]]
    router = Router(
        lambda item: answers[item], tracks={"odd": echo, "other": large}, default="other"
    )
    results = await router.run(range(4))
    assert results.values() == [0, "large 1", "large 2", "large 3"]


async def test_a_classifier_that_raises_fails_the_item_and_is_named(
    autojump_clock: MockClock,
) -> None:
    """A default is for items without a track; it mustn't hide that the choice itself failed."""

    async def choose(item: int) -> str:
        await trio.lowlevel.checkpoint()
        raise Boom(item)

    router = Router(choose, tracks={"odd": echo}, default="odd")
    results = await router.run([1], policy=harness.BestEffort())
    error = results[0].error
    assert isinstance(error, Boom)
    assert any("in classifier" in note and "choose" in note for note in error.__notes__)
    with pytest.raises(FanOutError):
        await router.run([1])


async def test_a_failure_escalates_once(autojump_clock: MockClock) -> None:
    router = Router(
        lambda item: "small", tracks={"small": track(small, escalate="large"), "large": large}
    )
    results = await router.run([4, 5])
    assert results.values() == ["small 4", "large 5"]
    assert [result.attempts for result in results] == [1, 2]
    assert not results[1].degraded
    tracks = router.statistics().tracks
    assert (tracks["small"].taken, tracks["small"].ok, tracks["small"].failed) == (2, 1, 1)
    assert tracks["small"].escalated == 1
    assert (tracks["large"].taken, tracks["large"].ok) == (1, 1)


async def test_who_waited_for_both_tracks_gives_each_slot_back_once(
    autojump_clock: MockClock,
) -> None:
    async def fails(item: int) -> None:
        await trio.sleep(1)
        raise Boom(item)

    first, second = Flight(fails), Flight(large)
    router = Router(
        lambda item: "a",
        tracks={"a": track(first, limit=1, escalate="b"), "b": track(second, limit=1)},
    )
    results = await router.run(range(30))
    assert results.complete
    assert (first.peak, second.peak) == (1, 1)


async def test_a_timeout_escalates_too(autojump_clock: MockClock) -> None:
    router = Router(
        lambda item: "slow",
        tracks={
            "slow": track(large, each=harness.Attempt(timeout=3), escalate="fast"),
            "fast": echo,
        },
    )
    assert (await router.run([7])).values() == [7]
    assert trio.current_time() == 3


async def test_it_fails_for_good_on_the_second_track(autojump_clock: MockClock) -> None:
    """Two tracks that name each other don't play ping-pong; the error mentions both."""

    async def fails(item: int) -> None:
        await trio.sleep(1)
        raise Boom("second")

    router = Router(
        lambda item: "small",
        tracks={"small": track(small, escalate="other"), "other": track(fails, escalate="small")},
    )
    results = await router.run([5], policy=harness.BestEffort())
    error = results[0].error
    assert str(error) == "second"
    assert failed_at(error) == ("other",)
    assert isinstance(error, Boom)
    assert "escalated from track 'small', which failed with Boom: 5" in error.__notes__
    assert isinstance(error.__context__, Boom)
    assert trio.current_time() == 2


async def test_retries_and_fallback_come_before_escalation(autojump_clock: MockClock) -> None:
    each = harness.Attempt(
        retry=harness.Retry(2, first_delay=1, jitter=0), fallback=lambda item, error: "guess"
    )
    router = Router(
        lambda item: "small",
        tracks={"small": track(small, each=each, escalate="large"), "large": large},
    )
    results = await router.run([5])
    assert results.values() == ["guess"]
    assert results[0].attempts == 2
    assert router.statistics().tracks["large"].taken == 0


async def test_a_stopped_router_escalates_nothing(autojump_clock: MockClock) -> None:
    async def fails(item: int) -> None:
        run = harness.current_run().parent
        assert run is not None
        run.stop("enough")
        await trio.lowlevel.checkpoint()
        raise Boom(item)

    router = Router(lambda item: "a", tracks={"a": track(fails, escalate="b"), "b": large})
    results = await router.run([5, 6], limit=1, policy=harness.BestEffort())
    assert statuses(results) == ["failed", "skipped"]


async def test_a_cancel_escalates_nothing(autojump_clock: MockClock) -> None:
    router = Router(lambda item: "a", tracks={"a": track(large, escalate="b"), "b": echo})
    with nothing_left_behind():
        results = await router.run([5], within=2)
    assert statuses(results) == ["cancelled"]
    tracks = router.statistics().tracks
    assert (tracks["a"].cancelled, tracks["a"].escalated, tracks["b"].taken) == (1, 0, 0)


async def test_who_waits_for_a_track_leaves_the_line_when_cancelled(
    autojump_clock: MockClock,
) -> None:
    router = Router(lambda item: "a", tracks={"a": track(large, limit=1)})
    with trio.move_on_after(5):
        await router.run(range(9))
    one = router.statistics().tracks["a"]
    assert (one.taken, one.cancelled, one.working, one.waiting) == (1, 1, 0, 0)


async def test_a_track_may_drop(autojump_clock: MockClock) -> None:
    async def drop(item: int) -> Any:
        await trio.lowlevel.checkpoint()
        return DROP

    router = Router(by_parity, tracks={"odd": echo, "even": drop})
    assert (await router.run(range(4))).values() == [1, 3]
    assert router.statistics().tracks["even"].dropped == 2


async def test_a_stream_of_a_router(autojump_clock: MockClock) -> None:
    router = Router(by_parity, tracks={"odd": large, "even": echo})
    read: list[int] = []
    async with router.open(range(4), ordered=True) as stream:
        async for result in stream:
            read.append(result.index)
        assert stream.statistics().tracks["odd"].ok == 2
    assert read == [0, 1, 2, 3]
    source = Source()
    with nothing_left_behind():
        async with router.open(source, limit=3, window=5) as stream:
            async for _ in stream:
                break
    assert source.pulled <= 6


async def test_statistics_while_it_runs(autojump_clock: MockClock) -> None:
    router = Router(by_parity, tracks={"odd": track(large, limit=1), "even": large})
    assert router.statistics().seconds == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.run, range(6))
        await trio.sleep(5)
        now = router.statistics()
        odd, even = now.tracks["odd"], now.tracks["even"]
        assert (odd.working, odd.waiting, odd.limit) == (1, 2, 1)
        assert (even.working, even.waiting, even.limit) == (3, 0, None)
        assert now.seconds == 5
        assert even.busy_seconds == 15
        assert str(now).splitlines()[0] == "odd: 1 taken, 0 ok, 1 working, 2 waiting"
        with pytest.raises(TypeError):
            now.tracks["odd"] = odd  # type: ignore[index]
    assert router.statistics().seconds == 30


async def test_a_track_that_is_not_async_ends_everything(autojump_clock: MockClock) -> None:
    def plain(item: int) -> int:
        return item

    tracks: dict[str, Any] = {"a": track(small, escalate="b"), "b": plain}
    for item in (5, 6):
        router = Router(lambda item: "a" if item % 5 == 0 else "b", tracks=tracks)
        with pytest.raises(TypeError, match=r"track 'b': .*where an awaitable was expected"):
            await router.run([item], policy=harness.BestEffort())
        with pytest.raises(TypeError, match=r"track 'b': .*where an awaitable was expected"):
            await router(item)


async def test_pipelines_and_routers_are_tracks(autojump_clock: MockClock) -> None:
    inner = Router(by_parity, tracks={"odd": small, "even": large})
    router = Router(
        lambda item: "inner" if item < 10 else "pipeline",
        tracks={"inner": inner, "pipeline": Pipeline(stage(echo, limit=3), small)},
    )
    results = await router.run([1, 2, 5, 11, 15], policy=harness.BestEffort())
    assert statuses(results) == ["ok", "ok", "failed", "ok", "failed"]
    assert results.values() == ["small 1", "large 2", "small 11"]
    assert failed_at(results[2].error) == ("inner", "odd")
    assert failed_at(results[4].error) == ("pipeline", "small")
