"""The note on an error names the run, the attempt, and what it waited for."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

import harness
from harness.errors import RateLimitedError
from harness.flow import Pipeline, stage
from harness.limits import Limiter
from harness.runs import _endings
from harness.runs._frames import describe_await

LIBRARY = compile(  # As if it were installed.
    "async def fetch(): raise OSError('broken pipe')\ndef parse(): raise OSError('broken')\n",
    "/x/site-packages/wire.py",
    "exec",
)


@pytest.fixture
def wire() -> dict[str, object]:
    names: dict[str, object] = {}
    exec(LIBRARY, names)
    return names


def notes_of(error: BaseException | None) -> list[str]:
    return list(getattr(error, "__notes__", ()))


async def test_names_what_the_users_code_awaited(wire: dict[str, object]) -> None:
    async def download() -> None:
        await wire["fetch"]()  # type: ignore[operator]

    with pytest.raises(OSError, match="broken") as caught:
        async with harness.open_run("job"):
            await download()
    [note] = notes_of(caught.value)
    assert note.startswith("in run job, waiting for fetch in ")
    assert "download (test_notes.py:" in note


@pytest.mark.parametrize("how", ["own code", "plain call"])
async def test_names_no_wait_if_there_was_none(how: str, wire: dict[str, object]) -> None:
    with pytest.raises(OSError, match="b") as caught:
        async with harness.open_run("job"):
            if how == "own code":
                raise OSError("broken")
            wire["parse"]()  # type: ignore[operator]
    assert notes_of(caught.value) == ["in run job"]


async def test_names_what_harness_waited_for(autojump_clock: MockClock) -> None:
    """An error of a primitive has its own words for that."""
    limiter = Limiter("openai", requests_per_minute=60)
    limiter.pause(600)
    with pytest.raises(RateLimitedError) as caught:
        async with harness.open_run("job"):
            async with limiter.reserve():
                pass
    assert notes_of(caught.value) == ["in run job, waiting for limiter 'openai' (0 in line)"]


async def test_names_the_attempt_where_there_may_be_several(autojump_clock: MockClock) -> None:
    async def flaky(item: str) -> None:
        raise ConnectionError(item)

    each = harness.Attempt(retry=harness.Retry(3))
    policy = harness.BestEffort()
    [result] = await harness.fan_out(flaky, ["a"], each=each, name="batch", policy=policy)
    assert notes_of(result.error) == ["in run batch/0, attempt 3"]
    [result] = await harness.fan_out(flaky, ["a"], name="batch", policy=policy)
    assert notes_of(result.error) == ["in run batch/0"]


async def test_one_object_raised_by_every_attempt_names_the_last(
    autojump_clock: MockClock,
) -> None:
    broken = ConnectionError("the same")

    async def flaky(item: str) -> None:
        raise broken

    each = harness.Attempt(retry=harness.Retry(3))
    [result] = await harness.fan_out(
        flaky, ["a"], each=each, name="batch", policy=harness.BestEffort()
    )
    assert notes_of(result.error) == ["in run batch/0, attempt 3"]


async def test_names_the_attempt_at_a_stage(autojump_clock: MockClock) -> None:
    async def flaky(item: str) -> None:
        raise ConnectionError(item)

    pipeline = Pipeline(stage(flaky, name="parse", each=harness.Attempt(retry=harness.Retry(2))))
    [result] = await pipeline.run(["a"], policy=harness.BestEffort())
    assert notes_of(result.error) == [
        "attempt 2 at stage 'parse'",
        "in stage 'parse'",
        "in run pipeline/0",
    ]


async def test_a_deep_tree_looks_at_the_traceback_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand runs inside each other would look at a thousand frames each."""
    looks = 0
    describe = describe_await

    def counted(frames: object) -> str | None:
        nonlocal looks
        looks += 1
        return describe(frames)  # type: ignore[arg-type]

    monkeypatch.setattr(_endings, "describe_await", counted)

    async def nest(depth: int) -> None:
        async with harness.open_run("level"):
            if not depth:
                raise OSError("at the bottom")
            await nest(depth - 1)

    with pytest.raises(OSError, match="b") as caught:
        await nest(50)
    assert looks == 1
    assert notes_of(caught.value) == [f"in run {'/'.join(['level'] * 51)}"]
