"""`cleanup`: a shield for cleaning up, with one deadline that nesting can't add up."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints

import harness
from tests.support.context import unchanged_context


async def clean(seconds: float, *, max_seconds: float | None = None) -> None:
    """Clean up for this long; the default for ``max_seconds`` is harness's own."""
    with harness.cleanup() if max_seconds is None else harness.cleanup(max_seconds=max_seconds):
        await trio.sleep(seconds)


# One deadline ----------------------------------------------------------------------------------


async def test_a_cleanup_is_shielded_from_the_cancel(autojump_clock: MockClock) -> None:
    done: list[str] = []
    async with harness.open_run("job") as run:
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup():
                await trio.sleep(1)
                done.append("cleaned up")
    assert done == ["cleaned up"]
    assert (run.status, run.ended_at) == ("cancelled", 1)


async def test_by_default_it_lasts_five_seconds_after_the_cancel(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        await trio.sleep(10)
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            await clean(60)
    assert (run.status, run.ended_at) == ("cancelled", 15)


async def test_five_nested_cleanups_of_a_second_end_after_one_second(
    autojump_clock: MockClock,
) -> None:
    """With a limit each, they would have taken five."""

    async def nested(levels: int) -> None:
        if levels:
            with harness.cleanup(max_seconds=1):
                try:
                    await trio.sleep(1)
                finally:
                    await nested(levels - 1)

    async with harness.open_run("job") as run:
        await trio.sleep(10)
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            await nested(5)
    assert run.ended_at == 11
    assert run.status == "cancelled"


async def test_cleanups_of_five_nested_runs_share_the_deadline_of_the_outermost(
    autojump_clock: MockClock,
) -> None:
    async def nested(levels: int) -> None:
        async with harness.open_run(f"level-{levels}"):
            try:
                if levels:
                    await nested(levels - 1)
                else:
                    await trio.sleep_forever()
            finally:
                with harness.cleanup(max_seconds=1):
                    await trio.sleep(60)

    async with harness.open_run("outermost") as run:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nested, 5)
            await trio.sleep(10)
            run.cancel()
    assert (run.status, run.ended_at) == ("cancelled", 11)


async def test_a_cleanup_inside_another_ends_with_it_at_the_latest(
    autojump_clock: MockClock,
) -> None:
    """Otherwise the inner shield would hold off the end of the outer one."""
    async with harness.open_run("job") as run:
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup(max_seconds=1):
                await clean(60, max_seconds=30)
    assert (run.status, run.ended_at) == ("cancelled", 1)


async def test_a_longer_cleanup_around_a_shorter_one_keeps_its_own_time(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []
    async with harness.open_run("job") as run:
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup(max_seconds=3):
                await clean(60, max_seconds=1)
                times.append(trio.current_time())
                await trio.sleep(60)
    assert times == [1]
    assert (run.status, run.ended_at) == ("cancelled", 3)


async def test_one_cleanup_after_another_shares_the_deadline(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            try:
                await clean(1.5, max_seconds=2)
            finally:
                await clean(60, max_seconds=2)
    assert run.ended_at == 2


async def test_a_cleanup_entered_after_the_time_is_over_ends_at_its_first_checkpoint(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        run.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(20)
        await clean(60)
        await trio.lowlevel.checkpoint()  # A cleanup is left quietly; the cancel goes on here.
    assert (run.status, run.ended_at) == ("cancelled", 20)


# In the cleanup --------------------------------------------------------------------------------


async def test_a_service_still_answers_in_the_cleanup(autojump_clock: MockClock) -> None:
    """Services belong to no run, so the cancel of the run that uses them doesn't end them."""
    answers: list[str] = []
    ask, asked = trio.open_memory_channel[trio.MemorySendChannel[str]](0)

    async def model() -> None:
        async for reply_to in asked:
            await trio.sleep(1)
            await reply_to.send("summary")

    async with trio.open_nursery() as services:
        async with harness.open_run("job") as run:
            harness.start_soon(services, model, run=None)
            run.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with harness.cleanup():
                    reply_to, reply = trio.open_memory_channel[str](0)
                    await ask.send(reply_to)
                    answers.append(await reply.receive())
        services.cancel_scope.cancel()
    assert answers == ["summary"]


async def test_a_run_opened_in_a_cleanup_can_work(autojump_clock: MockClock) -> None:
    """Saving what was done may well be a run of its own."""
    async with harness.open_run("job") as run:
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup():
                async with harness.open_run("saving") as saving:
                    await trio.sleep(1)
    assert (saving.status, run.status) == ("ok", "cancelled")


async def test_tasks_started_in_a_cleanup_are_waited_for(autojump_clock: MockClock) -> None:
    """A nursery inside the shield is shielded; it ends with the shared deadline as well."""
    done: list[str] = []

    async def save() -> None:
        await trio.sleep(1)
        done.append("saved")

    async with harness.open_run("job") as run:
        run.cancel()
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(save)
                    nursery.start_soon(trio.sleep_forever)
    assert done == ["saved"]
    assert run.ended_at == 5


@pytest.mark.parametrize("of_a_run", [True, False])
async def test_a_service_started_in_a_cleanup_is_not_bound_by_it(
    of_a_run: bool, autojump_clock: MockClock
) -> None:
    """It carries on long after that cleanup has been left, and cleans up in its own time."""
    done: list[str] = []

    async def service() -> None:
        await trio.sleep(30)
        with harness.cleanup():
            await trio.sleep(1)
            done.append("flushed")

    async with trio.open_nursery() as services:
        async with harness.open_run("long-lived") as long_lived:
            async with harness.open_run("job") as job:
                job.cancel()
                try:
                    await trio.sleep_forever()
                finally:
                    with harness.cleanup():
                        harness.start_soon(services, service, run=long_lived if of_a_run else None)
    assert (job.status, job.ended_at) == ("cancelled", 0)
    assert done == ["flushed"]


async def test_tasks_of_the_run_in_foreign_nurseries_share_the_deadline(
    autojump_clock: MockClock,
) -> None:
    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            await clean(60, max_seconds=2)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, work, run=run)
            async with harness.open_run("child") as child:
                harness.start_soon(nursery, work, run=child)
                await trio.sleep(10)
                run.cancel()
                await work()
    assert (child.status, child.ended_at) == ("cancelled", 12)
    assert (run.status, run.ended_at) == ("cancelled", 12)


@pytest.mark.parametrize("way", ["returns", "raises", "is cut short"])
async def test_the_context_is_put_back(way: str, autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        with unchanged_context():
            try:
                with harness.cleanup(max_seconds=1):
                    if way == "raises":
                        raise KeyError
                    if way == "is cut short":
                        run.cancel()
                        await trio.sleep(60)
            except KeyError:
                pass


async def test_entering_and_leaving_does_not_checkpoint() -> None:
    async with harness.open_run("job"):
        with assert_no_checkpoints():
            with harness.cleanup():
                pass


async def test_an_error_in_a_cleanup_comes_out_as_itself(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        with pytest.raises(KeyError):
            with harness.cleanup():
                raise KeyError("gone")
    assert run.status == "ok"


# What overruns ---------------------------------------------------------------------------------


async def test_what_ignores_its_cancel_is_named_in_the_dump(autojump_clock: MockClock) -> None:
    """trio can't kill a task; a close that hangs must at least say who hangs it."""

    async def stubborn() -> None:
        async with harness.open_run("stubborn") as run:
            run.cancel()
            for _ in range(20):
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stubborn)
        await trio.sleep(2.5)
        early = harness.dump()
        await trio.sleep(10)
        late = harness.dump()
    assert "stubborn" in early
    assert "stubborn" in late
    assert "over the time" not in early
    assert "over the time" in late


async def test_what_ignored_its_cancel_is_named_on_exit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with harness.open_run("nightly"):
            async with harness.open_run("stubborn") as run:
                run.cancel()
                with trio.CancelScope(shield=True):
                    await trio.sleep(20)
                await trio.lowlevel.checkpoint()
    (record,) = [record for record in caplog.records if record.name.startswith("harness")]
    assert "nightly/stubborn" in record.getMessage()


async def test_what_cleans_up_in_time_is_not_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with harness.open_run("tidy") as run:
            run.cancel()
            try:
                await trio.sleep_forever()
            finally:
                await clean(60)
    assert [record for record in caplog.records if record.name.startswith("harness")] == []
