"""Wrong arguments are refused before anything runs, in words that name the stage or track."""

import math
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from trio.testing import MockClock

import harness
from harness.errors import UnknownTrackError
from harness.flow import Batch, Pipeline, Router, speedup, stage, track
from tests.fanout.probes import echo


async def parse(item: Any) -> Any:
    return await echo(item)


async def no_argument() -> None:
    pass


async def several(item: Any) -> AsyncGenerator[Any, None]:
    yield item


def generator(item: Any) -> Generator[Any]:
    yield item


class Function:
    """A class, where an instance is meant."""

    async def __call__(self, item: Any) -> Any:
        """Return the item."""
        return await echo(item)


hedged = harness.Attempt(hedge=harness.Hedge(after=1))
wrong: Any = object()
pipeline, router = Pipeline(parse), Router(lambda item: "a", tracks={"a": parse})

STAGES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Pipeline(), ValueError, "takes at least one stage, and got none"),  # type: ignore[call-overload]
    (lambda: Pipeline(wrong), TypeError, "takes an async function, not <object"),
    (lambda: Pipeline(parse, buffer=-1), ValueError, "Pipeline(buffer=...)"),
    (lambda: Pipeline(parse, buffer=wrong), TypeError, "Pipeline(buffer=...)"),
    (lambda: stage(wrong), TypeError, "stage() takes an async function"),
    (lambda: stage(parse, limit=0), ValueError, "stage 'parse': stage(limit=...)"),
    (lambda: stage(parse, limit=wrong), TypeError, "stage 'parse': stage(limit=...)"),
    (lambda: stage(parse, name="read", limit=0), ValueError, "stage 'read'"),
    (lambda: stage(parse, name=""), TypeError, "takes a readable name"),
    (lambda: stage(parse, each=wrong), TypeError, "stage 'parse': each= takes an Attempt"),
    (
        lambda: stage(parse, each=harness.Attempt),  # type: ignore[arg-type]
        TypeError,
        "stage 'parse': each= takes an Attempt",
    ),
    (lambda: stage(parse, batch=wrong), TypeError, "write batch=Batch(32, within=0.1)"),
    (lambda: stage(no_argument), TypeError, "stage 'no_argument' calls no_argument with one item"),  # type: ignore[arg-type]
    (lambda: stage(generator), TypeError, "not the generator function generator"),  # type: ignore[arg-type]
    (lambda: stage(Function), TypeError, "not the class Function"),  # type: ignore[arg-type]
    (lambda: stage(several, batch=Batch(2)), TypeError, "stage 'several' is an async generator"),  # type: ignore[arg-type]
    (lambda: stage(several, each=hedged), TypeError, "leave the hedge out"),
    (lambda: Batch(0), ValueError, "Batch(size)"),
    (lambda: Batch(wrong), TypeError, "Batch(size)"),
    (lambda: Batch(2, within=-1), ValueError, "Batch(within=...)"),
    (lambda: Batch(2, within=float("nan")), ValueError, "Batch(within=...)"),
    (lambda: pipeline.open([], window=0), ValueError, "Pipeline.open(window=...)"),
    (lambda: pipeline.open([], name=""), TypeError, "Pipeline.open(name=...)"),
    (lambda: pipeline.open(wrong), TypeError, "Pipeline.open() takes items as an iterable"),
]

TRACKS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Router(parse, tracks={}), ValueError, "takes at least one track, and got none"),
    (lambda: Router(parse, tracks=wrong), TypeError, "takes a mapping of names to tracks"),
    (lambda: Router(parse, tracks={"a": wrong}), TypeError, "takes an async function"),
    (lambda: Router(parse, tracks={wrong: parse}), TypeError, "takes names as strings"),
    (lambda: Router(wrong, tracks={"a": parse}), TypeError, "Router(classify)"),
    (lambda: Router(several, tracks={"a": parse}), TypeError, "not the async generator several"),  # type: ignore[arg-type]
    (lambda: Router(no_argument, tracks={"a": parse}), TypeError, "with one item"),  # type: ignore[arg-type]
    (
        lambda: Router(parse, tracks={"a": parse}, default="b"),
        UnknownTrackError,
        "Router(default=...) names the track 'b', but there is no such track; there are 'a'",
    ),
    (
        lambda: Router(parse, tracks={"a": track(parse, escalate="b"), "c": parse}),
        ValueError,
        "track 'a': escalate= names the track 'b', but there is no such track; there are 'a', 'c'",
    ),
    (
        lambda: Router(parse, tracks={"a": track(parse, escalate="a")}),
        ValueError,
        "track 'a' escalates to itself",
    ),
    (lambda: track(parse, limit=0), ValueError, "track(parse): limit="),
    (lambda: track(parse, each=wrong), TypeError, "track(parse): each= takes an Attempt"),
    (lambda: track(parse, escalate=wrong), TypeError, "takes the name of another track"),
    (lambda: track(several), TypeError, "make it the stage of a pipeline"),  # type: ignore[arg-type]
    (lambda: track(no_argument), TypeError, "with one item"),  # type: ignore[arg-type]
    (lambda: router.open([], limit=0), ValueError, "Router.open(limit=...)"),
    (lambda: router.open([], window=0), ValueError, "Router.open(window=...)"),
    (lambda: router.open(wrong), TypeError, "Router.open() takes items as an iterable"),
]


@pytest.mark.parametrize(("make", "kind", "words"), [*STAGES, *TRACKS])
def test_a_wrong_argument_is_refused(
    make: Callable[[], object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert words in str(caught.value)


async def test_wrong_arguments_of_run_are_refused(autojump_clock: MockClock) -> None:
    best_effort: Any = harness.BestEffort
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: pipeline.run([], policy=best_effort), TypeError, "Pipeline.run(policy"),
        (lambda: pipeline.run([], within=-1), ValueError, "Pipeline.run(within=...)"),
        (lambda: pipeline.run([], key=wrong), TypeError, "Pipeline.run(key=...)"),
        (lambda: pipeline.run(wrong), TypeError, "Pipeline.run() takes items as an iterable"),
        (lambda: router.run([], limit=0), ValueError, "Router.run(limit=...)"),
        (lambda: router.run([], policy=wrong), TypeError, "Router.run(policy=...)"),
        (lambda: router.run(wrong), TypeError, "Router.run() takes items as an iterable"),
    ]
    for call, kind, words in calls:
        with pytest.raises(kind) as caught:
            await call()
        assert words in str(caught.value)


def test_a_coroutine_where_a_function_belongs_is_named() -> None:
    for make in (
        lambda: stage(parse(1)),  # type: ignore[call-overload]
        lambda: track(parse(1)),  # type: ignore[arg-type]
        lambda: Pipeline(parse(1)),  # type: ignore[call-overload]
        lambda: Router(lambda item: "a", tracks={"a": parse(1)}),
    ):
        with pytest.raises(TypeError, match=r"write parse instead of parse\(\.\.\.\)"):
            make()


def test_values_say_what_they_are() -> None:
    one = stage(parse, limit=3, batch=Batch(2, within=0.5))
    assert one == stage(parse, limit=3, batch=Batch(2, within=0.5))
    assert (one.name, one.limit, one.gives_several) == ("parse", 3, False)
    assert stage(several).gives_several
    assert Pipeline(one, parse).stages[0] is one
    assert router.tracks["a"] == track(parse)


def test_what_running_side_by_side_brings() -> None:
    """Amdahl's law: with more and more workers, what can't be divided is all that is left."""
    assert speedup(0.7, 1) == 1
    assert speedup(0.7, 5) == pytest.approx(1 / (0.3 + 0.7 / 5))
    assert speedup(0.7, 10**9) == pytest.approx(3.333, abs=0.001)
    assert speedup(0.7, math.inf) == pytest.approx(3.333, abs=0.001)
    assert (speedup(0, 5), speedup(1, 5)) == (1, 5)
    assert speedup(1, math.inf) == math.inf


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_of_a_speedup_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match=r"speedup\(parallel_share\) takes a number from 0 to 1"):
        speedup(share, 5)


def test_a_speedup_needs_a_worker_and_whole_ones() -> None:
    with pytest.raises(TypeError, match=r"speedup\(parallel_share\)"):
        speedup(wrong, 5)
    with pytest.raises(ValueError, match=r"speedup\(workers\) .* or math\.inf for the ceiling"):
        speedup(0.5, 0)
    for workers in (2.5, math.nan, wrong):
        with pytest.raises(TypeError, match=r"speedup\(workers\) takes a whole number"):
            speedup(0.5, workers)
