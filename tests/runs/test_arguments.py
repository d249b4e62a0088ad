"""Wrong arguments are refused at once, with what was given, what is allowed and what to do."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import harness


async def open_run(*args: Any, **kwargs: Any) -> None:
    async with harness.open_run(*args, **kwargs):
        pytest.fail("the body ran")


async def in_run(use: Callable[[Any], Any]) -> None:
    async with harness.open_run("job") as run:
        try:
            use(run)
        finally:
            assert run.status == "running"
            assert not run.stopping
            assert run.deadline == math.inf


async def subscribe(**kwargs: Any) -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(**kwargs):
            pytest.fail("the body ran")


async def cleanup(**kwargs: Any) -> None:
    async with harness.open_run("job"):
        with harness.cleanup(**kwargs):
            pytest.fail("the body ran")


async def start_soon(*args: Any, **kwargs: Any) -> None:
    async with harness.open_run("job") as run:
        kwargs.setdefault("run", run)
        refused: Exception | None = None
        with trio.fail_after(60):  # The run must not wait for a task that never started.
            async with trio.open_nursery() as nursery:
                try:
                    start: Any = harness.start_soon
                    start(*(nursery if arg is NURSERY else arg for arg in args), **kwargs)
                except Exception as exc:
                    refused = exc
                assert not nursery.child_tasks
    assert refused is not None, "it must be refused where it is called, as trio does"
    raise refused


async def observe(sink: Any) -> None:
    with harness.observing(sink):
        pytest.fail("the body ran")


def plain_function() -> None:
    pass


NURSERY = object()
Use = Callable[[], Awaitable[None]]

# name: (use, error, what the message must mention)
WRONG: dict[str, tuple[Use, type[Exception], list[str]]] = {
    "open_run without a name": (lambda: open_run(None), TypeError, ["name", "None"]),
    "open_run with a number as name": (lambda: open_run(17), TypeError, ["name", "17", "str"]),
    "open_run with a negative timeout": (
        lambda: open_run("job", timeout=-2.5),
        ValueError,
        ["timeout", "-2.5"],
    ),
    "open_run with minus infinity as timeout": (
        lambda: open_run("job", timeout=-math.inf),
        ValueError,
        ["timeout", "-inf"],
    ),
    "open_run with a timeout that is no number": (
        lambda: open_run("job", timeout=math.nan),
        ValueError,
        ["timeout", "nan"],
    ),
    "open_run with a timeout as text": (
        lambda: open_run("job", timeout="60"),
        TypeError,
        ["timeout", "'60'"],
    ),
    "open_run with tags that are no mapping": (
        lambda: open_run("job", tags=["shard"]),
        TypeError,
        ["tags", "shard"],
    ),
    "cancel with a negative grace": (
        lambda: in_run(lambda run: run.cancel("why", grace=-1)),
        ValueError,
        ["grace", "-1"],
    ),
    "cancel with a grace that is no number": (
        lambda: in_run(lambda run: run.cancel(grace=math.nan)),
        ValueError,
        ["grace", "nan"],
    ),
    "cancel with a grace as text": (
        lambda: in_run(lambda run: run.cancel(grace="5")),
        TypeError,
        ["grace", "'5'"],
    ),
    "cancel with a number as reason": (
        lambda: in_run(lambda run: run.cancel(5)),
        TypeError,
        ["reason", "5"],
    ),
    "stop with a number as reason": (
        lambda: in_run(lambda run: run.stop(5)),
        TypeError,
        ["reason", "5"],
    ),
    "cleanup with a negative time": (
        lambda: cleanup(max_seconds=-1),
        ValueError,
        ["max_seconds", "-1"],
    ),
    "cleanup with a time that is no number": (
        lambda: cleanup(max_seconds=math.nan),
        ValueError,
        ["max_seconds", "nan"],
    ),
    "cleanup with a time as text": (
        lambda: cleanup(max_seconds="5"),
        TypeError,
        ["max_seconds", "'5'"],
    ),
    "subscribe without a buffer": (lambda: subscribe(buffer=0), ValueError, ["buffer", "0"]),
    "subscribe with a negative buffer": (lambda: subscribe(buffer=-1), ValueError, ["buffer"]),
    "subscribe with half a buffer": (lambda: subscribe(buffer=1.5), TypeError, ["buffer", "1.5"]),
    "start_soon without a run": (
        lambda: start_soon(NURSERY, trio.sleep_forever, run="job"),
        TypeError,
        ["run", "'job'", "None"],
    ),
    "start_soon without a nursery": (
        lambda: start_soon(trio.sleep_forever, trio.sleep_forever),
        TypeError,
        ["nursery", "sleep_forever"],
    ),
    "open_run with a timeout beyond any float": (
        lambda: open_run("job", timeout=10**400),
        ValueError,
        ["timeout", "308"],
    ),
    "cleanup with a time beyond any float": (
        lambda: cleanup(max_seconds=10**400),
        ValueError,
        ["max_seconds", "308"],
    ),
    "start_soon without a function": (
        lambda: start_soon(NURSERY, 17),
        TypeError,
        ["17", "function"],
    ),
    "start_soon with a plain function": (
        lambda: start_soon(NURSERY, plain_function),
        TypeError,
        ["plain_function", "async"],
    ),
    "start_soon with an argument too few": (
        lambda: start_soon(NURSERY, trio.sleep),
        TypeError,
        ["sleep", "seconds"],
    ),
    "start_soon with a plain function and no run": (
        lambda: start_soon(NURSERY, plain_function, run=None),
        TypeError,
        ["plain_function", "async"],
    ),
    "RunLocal with a value instead of a function": (
        lambda: in_run(lambda run: harness.RunLocal([], name="messages")),  # type: ignore[arg-type]
        TypeError,
        ["RunLocal", "[]"],
    ),
    "RunLocal with a fork that is no function": (
        lambda: in_run(lambda run: harness.RunLocal(list, name="messages", fork=True)),  # type: ignore[arg-type]
        TypeError,
        ["fork", "True"],
    ),
    "RunLocal.get_in without a run": (
        lambda: in_run(lambda run: harness.RunLocal(list, name="messages").get_in("job")),  # type: ignore[arg-type]
        TypeError,
        ["'job'", "Run"],
    ),
    "observing with a sink that is no function": (
        lambda: observe("sink"),
        TypeError,
        ["sink", "'sink'"],
    ),
    "dump of something else": (
        lambda: in_run(lambda run: harness.dump("job")),  # type: ignore[arg-type]
        TypeError,
        ["run", "'job'"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_argument_is_refused(name: str) -> None:
    use, error_type, mentions = WRONG[name]
    with pytest.raises(error_type) as caught:
        await use()
    message = str(_only_leaf(caught.value))
    missing = [text for text in mentions if text not in message]
    assert not missing, f"the message doesn't say {missing}: {message}"
    assert len(message) > len("".join(mentions)) + 20, f"what is allowed, what to do? {message}"


def test_run_sync_soon_is_refused_where_it_is_called_and_not_later_in_trio() -> None:
    """An error in the callback would end the whole of trio as an internal error."""

    async def main() -> None:
        async with harness.open_run("job"):
            with pytest.raises(TypeError, match="'print'"):
                harness.run_sync_soon("print")  # type: ignore[arg-type]
            await trio.lowlevel.checkpoint()

    trio.run(main)


@pytest.mark.parametrize("run", ["the run", None])
async def test_a_coroutine_where_a_function_belongs_says_which_line_to_change(
    run: str | None,
) -> None:
    async def classify(ticket: str) -> None:
        pytest.fail("it ran")

    coroutine = classify("ticket")
    async with harness.open_run("job") as current:
        async with trio.open_nursery() as nursery:
            with pytest.raises(TypeError) as caught:
                harness.start_soon(nursery, coroutine, run=current if run else None)  # type: ignore[arg-type]
    coroutine.close()
    assert "coroutine" in str(caught.value)
    assert "classify" in str(caught.value)


async def test_start_soon_must_be_told_the_run() -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(TypeError, match="run"):
            harness.start_soon(nursery, trio.sleep_forever)  # type: ignore[call-arg]


@pytest.mark.parametrize("timeout", [0, 0.5, 10**9])
async def test_timeouts_that_are_numbers_are_let_in(timeout: float) -> None:
    async with harness.open_run("job", timeout=timeout) as run:
        assert run.remaining() <= timeout


def _only_leaf(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc
