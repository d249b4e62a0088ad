"""Limiters that share a file keep one limit. Here they are in one process, in virtual time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import harness
from harness.cluster import FleetLimiter
from harness.errors import HarnessWarning, LimiterRunError, RateLimitedError
from harness.limits import JointLimiter, Limiter, ProviderPool, Rate
from harness.limits._across_processes._shared_file import SharedFile
from tests.support.checkpoints import cancel_at_every_checkpoint

# ruff: noqa: ASYNC240

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs flock and shared memory")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "provider.limits"


def most_within(seconds: float, moments: list[float]) -> int:
    moments = sorted(moments)
    return max(
        sum(1 for other in moments[index:] if other - moment < seconds)
        for index, moment in enumerate(moments)
    )


async def ask(limiter: Limiter, moments: list[float], times: int, held: float = 0.0) -> None:
    for _ in range(times):
        async with limiter.reserve():
            moments.append(trio.current_time())
            await trio.sleep(held)


@pytest.mark.slow
async def test_together_they_stay_within_the_limit_and_use_it(
    file: Path, autojump_clock: MockClock
) -> None:
    moments: list[float] = []
    rate = Rate(20, 2)
    async with (
        FleetLimiter(file, "p", requests=rate) as first,
        FleetLimiter(file, "p", requests=rate) as second,
        FleetLimiter(file, "p", requests=rate) as third,
    ):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for limiter in (first, second, third):
                for _ in range(3):
                    nursery.start_soon(ask, limiter, moments, 30)
        took = trio.current_time() - began
        assert first.statistics().dimensions["requests"].used == 20
    assert len(moments) == 270
    assert most_within(2, moments) <= 20
    # 10 a second, and a burst of 10 at first.
    assert took == pytest.approx(26, rel=0.01)


@pytest.mark.slow
async def test_places_are_shared(file: Path, autojump_clock: MockClock) -> None:
    held = most = 0

    async def hold(limiter: Limiter) -> None:
        nonlocal held, most
        for _ in range(10):
            async with limiter.reserve():
                held += 1
                most = max(most, held)
                await trio.sleep(1)
                held -= 1

    async with (
        FleetLimiter(file, "p", concurrent=3) as first,
        FleetLimiter(file, "p", concurrent=3) as second,
    ):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for limiter in (first, second) * 3:
                nursery.start_soon(hold, limiter)
        # Or a second more, if one task of the six is left with two turns in the end.
        assert 20 <= trio.current_time() - began < 21.5
        assert (first.statistics().in_flight, second.statistics().in_flight) == (0, 0)
    assert most == 3


@pytest.mark.slow
async def test_a_pause_for_one_is_a_pause_for_all(file: Path, autojump_clock: MockClock) -> None:
    async with (
        FleetLimiter(file, "p", requests_per_minute=600) as first,
        FleetLimiter(file, "p", requests_per_minute=600) as second,
    ):
        async with first.reserve() as reservation:
            reservation.settle(status=429, headers={"retry-after": "30"})
        began = trio.current_time()
        async with second.reserve():
            assert 30 <= trio.current_time() - began <= 34
        first.pause(500)
        with pytest.raises(RateLimitedError, match="asked for a pause"):
            async with second.reserve():
                pass


async def test_what_was_really_used_counts_for_all(file: Path, autojump_clock: MockClock) -> None:
    async with (
        FleetLimiter(file, "p", tokens_per_minute=1000, burst_seconds=60) as first,
        FleetLimiter(file, "p", tokens_per_minute=1000, burst_seconds=60) as second,
    ):
        async with first.reserve(tokens=900) as reservation:
            with pytest.raises(trio.WouldBlock):
                second.reserve_nowait(tokens=200)
            reservation.settle(tokens=100)
        async with second.reserve_nowait(tokens=200) as other:
            pass
        reservation = first.reserve_nowait(tokens=300)
        reservation.refund()
        used = second.statistics().dimensions["tokens"]
        assert (used.used, used.unsettled) == (300, 0)
        assert not other.held


async def test_the_providers_count_is_shared(file: Path, autojump_clock: MockClock) -> None:
    headers = {"x-ratelimit-remaining-requests": "3", "x-ratelimit-limit-requests": "600"}
    async with (
        FleetLimiter(file, "openai", requests_per_minute=600) as first,
        FleetLimiter(file, "openai", requests_per_minute=600) as second,
    ):
        first.observe(headers={**headers, "x-ratelimit-reset-requests": "60s"}, status=200)
        remaining = second.statistics().dimensions["requests"].provider_remaining
        assert remaining is not None
        assert 3 <= remaining < 4


async def test_a_changed_limit_is_changed_for_all(file: Path, autojump_clock: MockClock) -> None:
    async with (
        FleetLimiter(file, "p", requests_per_minute=600, concurrent=2) as first,
        FleetLimiter(file, "p", requests_per_minute=600, concurrent=2) as second,
    ):
        first.change(requests_per_minute=60, concurrent=5)
        after = second.statistics()
        assert (after.dimensions["requests"].limit, after.concurrent) == (60, 5)
        second.change(requests_per_minute=120)
        assert first.statistics().dimensions["requests"].limit == 120


@pytest.mark.slow
async def test_what_was_used_stays_used_when_nobody_has_it_open(
    file: Path, autojump_clock: MockClock
) -> None:
    async with FleetLimiter(file, "p", requests=Rate(10, 60), burst_seconds=60) as limiter:
        for _ in range(10):
            async with limiter.reserve():
                pass
    # Whoever comes next may have other limits, and they begin with what was used.
    async with FleetLimiter(file, "p", requests=Rate(12, 60), burst_seconds=60) as limiter:
        assert limiter.statistics().dimensions["requests"].used == 10
        moments: list[float] = []
        began = trio.current_time()
        await ask(limiter, moments, 3)
        assert moments[1] - began < 11  # Two more, at the pace.
        assert moments[2] - began == pytest.approx(60, abs=0.5)


async def test_what_was_used_stays_used_under_limits_of_another_kind(
    file: Path, autojump_clock: MockClock
) -> None:
    async with FleetLimiter(file, "p", requests=Rate(10, 60), burst_seconds=60) as limiter:
        for _ in range(10):
            async with limiter.reserve():
                pass
        limiter.pause(20)
    options: dict[str, Any] = {"tokens": Rate(100, 60), "headroom": 0.9}
    async with FleetLimiter(file, "p", requests=Rate(10, 60), **options) as limiter:
        found = limiter.statistics()
        assert found.dimensions["requests"].used == 10
        assert found.dimensions["tokens"].used == 0
        assert found.in_flight == found.dimensions["requests"].unsettled == 0
        assert found.paused_seconds >= 20
    async with FleetLimiter(file, "p", requests=Rate(10, 60)) as limiter:
        assert limiter.statistics().dimensions["requests"].used == 10
    async with FleetLimiter(file, "another", requests=Rate(10, 60)) as limiter:
        assert limiter.statistics().dimensions["requests"].used == 0


async def test_other_limits_are_refused_while_somebody_keeps_these(file: Path) -> None:
    async with FleetLimiter(file, "p", requests_per_minute=600):
        other = FleetLimiter(file, "p", requests_per_minute=500)
        with pytest.raises(
            ValueError, match=r"has rates 600 requests in 60 s where .* 500 requests in 60 s"
        ):
            async with other:
                pass
        with pytest.raises(ValueError, match="limiter 'p' where this process states 'q'"):
            async with FleetLimiter(file, "q", requests_per_minute=600):
                pass
        with pytest.raises(LimiterRunError, match="is not open"):
            other.reserve()


@pytest.mark.parametrize(
    ("where", "options", "error", "words"),
    [
        ("http://localhost", {"requests_per_minute": 1}, ValueError, "the path of a file"),
        (3, {"requests_per_minute": 1}, TypeError, "the path of a file"),
        ("f", {}, ValueError, "limits nothing"),
        ("f", {"concurrent": 2.5}, TypeError, "number of places"),
    ],
)
def test_bad_limits_are_refused_at_once(
    where: object, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        FleetLimiter(where, "p", **options)  # type: ignore[arg-type]


async def test_another_kind_of_file_is_refused_and_left_alone(file: Path) -> None:
    text = b"name,amount\nbread,2\n"
    file.write_bytes(text)
    with pytest.raises(ValueError, match="isn't the file of a limiter"):
        async with FleetLimiter(file, "p", requests_per_minute=60):
            pass
    assert file.read_bytes() == text


async def test_in_a_folder_each_name_has_a_file(tmp_path: Path) -> None:
    async with (
        FleetLimiter(tmp_path, "open/ai", requests_per_minute=60),
        FleetLimiter(tmp_path, "b", requests_per_minute=30),
    ):
        assert {path.name for path in tmp_path.iterdir() if path.suffix == ".limits"} == {
            "open_ai.limits",
            "b.limits",
        }
        assert os.stat(tmp_path / "b.limits").st_mode & 0o777 == 0o600
    assert {path.suffix for path in tmp_path.iterdir()} == {".limits"}


async def test_outside_its_block_it_says_what_to_write(file: Path) -> None:
    limiter = FleetLimiter(file, "p", requests_per_minute=60)
    with pytest.raises(LimiterRunError, match=r"async with FleetLimiter\(\.\.\.\) as limiter"):
        limiter.reserve()
    async with limiter:
        reservation = limiter.reserve()
    with pytest.raises(LimiterRunError, match="is not open"):
        async with reservation:
            pass
    with pytest.raises(LimiterRunError, match="can't be reset"):
        limiter.reset()


async def test_whoever_waits_when_it_is_closed_is_told(
    file: Path, autojump_clock: MockClock
) -> None:
    limiter = FleetLimiter(file, "p", concurrent=1)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(LimiterRunError, match="is not open"):
                async with limiter.reserve():
                    pass

        async with limiter:
            async with limiter.reserve():
                nursery.start_soon(wait)
                await trio.sleep(1)
                await limiter.__aexit__(None, None, None)
            # What was held then is given back, so leaving it changes nothing.
    async with FleetLimiter(file, "p", concurrent=1) as again:
        assert again.statistics().in_flight == 0


@pytest.mark.slow
async def test_a_cancelled_wait_charges_nobody(file: Path, autojump_clock: MockClock) -> None:
    async with (
        FleetLimiter(file, "p", requests=Rate(1, 10)) as first,
        FleetLimiter(file, "p", requests=Rate(1, 10)) as second,
    ):
        async with first.reserve():
            pass
        with trio.move_on_after(5) as scope:
            async with second.reserve():
                pass
        assert scope.cancelled_caught
        began = trio.current_time()
        async with first.reserve():
            assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_it_works_in_pools_and_joints_and_fan_outs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def held(text: str) -> str:
        await trio.sleep(0.1)
        return text

    async with (
        FleetLimiter(tmp_path, "model", requests=Rate(10, 1)) as model,
        FleetLimiter(tmp_path, "account", requests=Rate(5, 1)) as account,
        FleetLimiter(tmp_path, "model", requests=Rate(10, 1)) as same_model,
    ):
        began = trio.current_time()
        joint = harness.Attempt(limiter=JointLimiter([model, account]))
        results = await harness.fan_out(held, ["a"] * 20, limit=20, each=joint)
        assert len(results.values()) == 20
        assert 3 <= trio.current_time() - began < 4
        async with ProviderPool([model, account]).reserve() as reservation:
            assert reservation.provider == "model"
        async with model.reserve(), JointLimiter([same_model, account]).reserve():
            pass


async def test_a_file_that_is_deleted_is_told(file: Path, autojump_clock: MockClock) -> None:
    async with FleetLimiter(file, "p", requests_per_minute=600) as limiter:
        async with limiter.reserve():
            pass
        file.unlink()
        await trio.sleep(2)
        with pytest.warns(HarnessWarning, match="was deleted or moved while limiter 'p' used it"):
            async with limiter.reserve():
                pass
        async with limiter.reserve():  # Once.
            pass


# Half-made changes -------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the process runs after it."""


class Memory:
    """Shared memory of a process that is killed at one of its writes."""

    def __init__(self, memory: memoryview[float], writes: int) -> None:
        self._memory = memory
        self._writes = writes

    def __getitem__(self, index: int | slice) -> object:
        return self._memory[index]

    def __setitem__(self, index: int, number: float) -> None:
        if not self._writes:
            raise Killed
        self._writes -= 1
        self._memory[index] = number


@pytest.mark.slow
@pytest.mark.parametrize("what", ["grant", "settle", "leave"])
async def test_what_a_killed_process_half_did_is_taken_back(
    file: Path, autojump_clock: MockClock, what: str
) -> None:
    limits = {"requests": Rate(100, 60), "tokens": Rate(10_000, 60), "concurrent": 50}
    seen: set[tuple[float, ...]] = set()
    async with FleetLimiter(file, "p", burst_seconds=60, **limits) as witness:  # type: ignore[arg-type]
        for writes in range(300):
            victim = FleetLimiter(file, "p", burst_seconds=60, **limits)  # type: ignore[arg-type]
            await victim.__aenter__()
            grants = victim._shared
            shared = grants._file
            assert shared is not None
            if what != "grant":
                reservation = victim.reserve_nowait(tokens=10)
            before = numbers(witness)
            memory = Memory(shared.numbers, writes)
            real, shared.numbers = shared.numbers, memory  # type: ignore[assignment]
            for window in grants._windows:
                window.memory = memory  # type: ignore[assignment]
            killed = True
            try:
                if what == "grant":
                    victim.reserve_nowait(tokens=10)
                elif what == "settle":
                    reservation.settle(tokens=25)
                else:
                    reservation.refund()
                killed = False
            except Killed:
                pass
            shared.numbers = real
            die(shared)
            after = numbers(witness)
            seen.add(tuple(b - a for a, b in zip(before, after, strict=True)))
            if not killed:
                break
            await trio.sleep(120)
        else:
            pytest.fail("it never got through")
    done = {"grant": (1, 10, 1), "settle": (0, 15, 0), "leave": (-1, -10, -1)}[what]
    # The dead process's place is given back in any case, so only charges can differ.
    assert {change[:2] for change in seen} == {(0, 0), done[:2]}


@pytest.mark.slow
async def test_a_process_that_keeps_the_lock_holds_up_neither_the_loop_nor_the_end(
    file: Path, autojump_clock: MockClock
) -> None:
    stopped = SharedFile(file, windows=1)
    async with FleetLimiter(file, "p", requests_per_minute=600) as limiter:
        async with limiter.reserve() as reservation:
            assert stopped.lock()
            reservation.settle(status=200)  # Done later.
            with pytest.raises(trio.WouldBlock):
                limiter.reserve_nowait()
            with trio.move_on_after(1) as scope:
                async with limiter.reserve():
                    pass
            assert scope.cancelled_caught
            stopped.unlock()
        async with limiter.reserve():
            pass
        with pytest.raises(TimeoutError, match=r"kept .* locked for 10 s"):
            assert stopped.lock()
            async with FleetLimiter(file, "p", requests_per_minute=600):
                pass
    stopped.unlock()
    stopped.close()
    async with FleetLimiter(file, "p", requests_per_minute=600) as limiter:
        assert limiter.statistics().dimensions["requests"].used == 2


def numbers(limiter: Limiter) -> tuple[float, ...]:
    found = limiter.statistics()
    return (
        found.dimensions["requests"].used,
        found.dimensions["tokens"].used,
        found.in_flight,
    )


def die(file: SharedFile) -> None:
    """Let go of all locks, as the kernel does for a process that is killed."""
    os.close(file._member_lock)
    file.unlock()


# What happens to the file ------------------------------------------------------------------------


def pretend(file: Path, *, members: int, places: int) -> None:
    """Write into the file what processes that are dead by now held."""
    shared = SharedFile(file, windows=0)
    assert shared.lock()
    for shared._member in range(members):
        for index, number in enumerate((4711, places, 5, 5)):
            shared.numbers[shared.own + index] = number
    block = shared.read(20)
    block[1] += members * places
    shared.commit(block)
    shared.close()


@pytest.mark.slow
async def test_256_processes_may_die_at_once(file: Path) -> None:
    async with FleetLimiter(file, "p", concurrent=2):
        pass
    pretend(file, members=256, places=1)
    async with FleetLimiter(file, "p", concurrent=2) as limiter:
        assert limiter.statistics().in_flight == 0


async def test_what_the_dead_have_not_settled_is_forgotten_though_places_are_free(
    file: Path, autojump_clock: MockClock
) -> None:
    """It would come off what the provider says is left, as long as anybody has the file open."""
    rate = Rate(1000, 60)
    async with FleetLimiter(file, "p", tokens=rate, burst_seconds=60) as limiter:
        victim = await FleetLimiter(file, "p", tokens=rate, burst_seconds=60).__aenter__()
        victim.reserve_nowait(tokens=100)
        assert victim._shared._file is not None
        victim._shared._file.close()
        await trio.sleep(2)
        async with limiter.reserve(tokens=1) as reservation:
            reservation.settle(tokens=1)
        assert limiter.statistics().dimensions["tokens"].unsettled == 0


@pytest.mark.filterwarnings("ignore:.*was deleted or moved")
@pytest.mark.parametrize("how", ["chdir", "renamed", "deleted"])
async def test_nobody_counts_as_dead_because_a_folder_changed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    where = Path("limits") if how == "chdir" else folder / "limits"
    async with (
        FleetLimiter(where, "p", concurrent=1) as first,
        FleetLimiter(where, "p", concurrent=1) as second,
    ):
        async with first.reserve():
            if how == "chdir":
                monkeypatch.chdir(tmp_path)
            elif how == "renamed":
                folder.rename(tmp_path / "other")
            else:
                shutil.rmtree(folder)
            for _ in range(3):
                with pytest.raises(trio.WouldBlock):
                    second.reserve_nowait()
                await trio.sleep(0.1)
        async with second.reserve():
            pass


@pytest.mark.filterwarnings("ignore:.*was deleted or moved")
async def test_a_file_that_replaces_one_in_use_can_be_used(file: Path) -> None:
    async with FleetLimiter(file, "p", concurrent=1) as old:
        file.unlink()
        async with FleetLimiter(file, "p", concurrent=1) as new:
            async with old.reserve(), new.reserve():
                pass
    async with FleetLimiter(file, "p", concurrent=1) as new:
        assert new.statistics().in_flight == 0


@pytest.mark.slow
async def test_a_file_that_is_cut_short_ends_waits_with_an_error(
    file: Path, autojump_clock: MockClock
) -> None:
    """Touching memory behind the end of its file kills a process."""
    limiter = FleetLimiter(file, "p", concurrent=1)
    async with limiter, limiter.reserve() as reservation, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(LimiterRunError, match="was made shorter while"):
                async with limiter.reserve():
                    pass

        nursery.start_soon(wait)
        await trio.sleep(1)
        os.truncate(file, 0)
        await trio.sleep(1)
        reservation.settle()
        nursery.start_soon(wait)


@pytest.mark.skipif(sys.platform != "linux", reason="only there can room be claimed")
async def test_a_disk_that_is_full_later_does_no_harm(file: Path) -> None:
    """A hole in the file would be filled when it is written to, and a full disk kills then."""
    async with FleetLimiter(file, "p", requests_per_minute=60, headroom=0.5):
        status = os.stat(file)
        assert status.st_blocks * 512 >= status.st_size


async def test_the_locks_may_be_used_by_whoever_may_use_the_file(file: Path) -> None:
    async with FleetLimiter(file, "p", concurrent=1):
        pass
    file.chmod(0o660)
    async with FleetLimiter(file, "p", concurrent=1):
        modes = {path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
    assert modes == {0o660}


# Clocks and runs ---------------------------------------------------------------------------------


def test_a_file_of_a_virtual_clock_works_with_the_next(file: Path) -> None:
    async def use(start: float) -> None:
        await trio.sleep(start)
        async with FleetLimiter(file, "p", requests_per_minute=60) as limiter:
            began = trio.current_time()
            async with limiter.reserve():
                assert trio.current_time() - began < 2

    for start in (1_000.0, 0.0):
        trio.run(use, start, clock=MockClock(autojump_threshold=0))


@pytest.mark.real_clock
async def test_a_virtual_clock_is_refused_where_a_real_one_counts(file: Path) -> None:
    async def use() -> None:
        async with FleetLimiter(file, "p", requests_per_minute=60):
            pass

    async with FleetLimiter(file, "p", requests_per_minute=60) as limiter:
        with pytest.raises(ValueError, match="in use with another clock"):
            await trio.to_thread.run_sync(lambda: trio.run(use, clock=MockClock()))
        async with limiter.reserve():
            pass
        assert limiter.statistics().dimensions["requests"].used == 1


@pytest.mark.real_clock
async def test_being_held_up_between_two_clocks_does_not_make_times_wrong(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.monotonic
    held_up: list[float] = []

    def monotonic() -> float:
        now = real()
        if not held_up:
            held_up.append(now)
            time.sleep(0.05)
        return now

    shift = real() - trio.current_time()
    monkeypatch.setattr(time, "monotonic", monotonic)
    async with FleetLimiter(file, "p", requests_per_minute=60) as limiter:
        assert held_up
        assert abs(limiter._shared._shift - shift) < 0.02


async def test_it_can_be_open_once(file: Path, autojump_clock: MockClock) -> None:
    limiter = FleetLimiter(file, "p", concurrent=1)
    async with limiter:
        with pytest.raises(LimiterRunError, match="is open; enter it once"):
            async with limiter:
                pass
        async with limiter.reserve():
            pass
    async with limiter:
        assert limiter.statistics().in_flight == 0


def test_a_run_that_never_left_it_is_in_nobodys_way(file: Path) -> None:
    limiter = FleetLimiter(file, "p", concurrent=1)

    async def enters() -> None:
        await limiter.__aenter__()
        limiter.reserve_nowait()

    async def uses() -> None:
        async with limiter, limiter.reserve():
            pass

    trio.run(enters)
    trio.run(uses)


@pytest.mark.slow
async def test_a_reservation_from_before_it_was_closed_changes_nothing(
    file: Path, autojump_clock: MockClock
) -> None:
    limiter = FleetLimiter(file, "p", tokens_per_minute=100, concurrent=1)
    async with limiter:
        early = limiter.reserve_nowait(tokens=10)
    async with limiter, early:
        early.settle(tokens=20)
    async with limiter, limiter.reserve(tokens=1):
        assert limiter.statistics().in_flight == 1


async def test_entering_and_leaving_are_checkpoints(file: Path) -> None:
    limiter = FleetLimiter(file, "p", concurrent=1)
    with trio.testing.assert_checkpoints():
        await limiter.__aenter__()
    with trio.testing.assert_checkpoints():
        await limiter.__aexit__(None, None, None)


@pytest.mark.slow
async def test_it_survives_a_cancel_at_every_checkpoint(
    file: Path, autojump_clock: MockClock
) -> None:
    options: dict[str, Any] = {"requests": Rate(100, 1), "tokens": Rate(1000, 1), "concurrent": 1}

    async def use() -> None:
        async with FleetLimiter(file, "p", **options) as limiter, trio.open_nursery() as nursery:

            async def ask() -> None:
                async with limiter.reserve(tokens=50) as reservation:
                    await trio.sleep(0.01)
                    reservation.settle(tokens=60)

            nursery.start_soon(ask)
            nursery.start_soon(ask)

    async def nothing_is_held() -> None:
        async with FleetLimiter(file, "p", **options) as limiter:
            found = limiter.statistics()
            assert found.in_flight == found.dimensions["tokens"].unsettled == 0
        assert len([*file.parent.iterdir()]) == 1

    assert await cancel_at_every_checkpoint(use, nothing_is_held) >= 5


# Several limiters --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, ProviderPool, JointLimiter])
async def test_a_long_pause_ends_waits_in_other_processes(
    file: Path, autojump_clock: MockClock, kind: Callable[[list[Limiter]], Any] | None
) -> None:
    async with (
        FleetLimiter(file, "p", concurrent=1) as first,
        FleetLimiter(file, "p", concurrent=1) as second,
        first.reserve(),
        trio.open_nursery() as nursery,
    ):

        async def wait() -> None:
            with pytest.raises(RateLimitedError, match="asked for a pause"), trio.fail_after(100):
                async with (second if kind is None else kind([second])).reserve():
                    pass

        nursery.start_soon(wait)
        await trio.sleep(1)
        began = trio.current_time()
        first.pause(500)
    assert trio.current_time() - began < 1


async def test_each_changes_only_the_limit_it_names(file: Path, autojump_clock: MockClock) -> None:
    options: dict[str, Any] = {"requests_per_minute": 600, "tokens_per_minute": 1000}
    async with (
        FleetLimiter(file, "p", **options, concurrent=2) as first,
        FleetLimiter(file, "p", **options, concurrent=2) as second,
    ):
        first.change(requests_per_minute=60, concurrent=5)
        second.change(tokens_per_minute=500)
        found = first.statistics()
        assert (found.dimensions["requests"].limit, found.concurrent) == (60, 5)
        async with FleetLimiter(file, "p", **options, concurrent=2):
            pass
    async with second:  # States what it was made with.
        assert second.statistics().concurrent == 2


@pytest.mark.slow
async def test_a_pool_passes_over_a_limiter_whose_lock_is_kept(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with (
        FleetLimiter(tmp_path, "a", concurrent=1) as kept,
        FleetLimiter(tmp_path, "b", concurrent=1) as free,
    ):
        stopped = SharedFile(tmp_path / "a.limits", windows=0)
        assert stopped.lock()
        for _ in range(2):
            async with ProviderPool([kept, free]).reserve() as reservation:
                assert reservation.provider == "b"
        joint = JointLimiter([kept, free])
        with trio.move_on_after(1) as scope:
            async with joint.reserve():
                pass
        assert scope.cancelled_caught
        stopped.unlock()
        async with joint.reserve():
            pass
        stopped.close()


async def test_a_process_killed_while_it_writes_whose_limits_these_are_leaves_the_last(
    file: Path,
) -> None:
    """The header was written in place, so a torn one made the file useless for good."""
    shared = SharedFile(file, windows=1)
    steps = 0

    class DiesAt:
        """A map that takes so many writes, and half of the next."""

        def __init__(self, step: int) -> None:
            self.left = step

        def __getitem__(self, where: slice) -> bytes:
            return real[where]

        def __setitem__(self, where: slice, written: bytes) -> None:
            nonlocal steps
            steps += 1
            if not self.left:
                half = len(written) // 2
                if half > 4:  # A sum is written in one piece.
                    real[where.start : where.start + half] = written[:half]
                raise KeyboardInterrupt
            self.left -= 1
            real[where] = written

    real = shared._map
    try:
        for step in range(4):
            before = shared.header()
            shared._map = DiesAt(step)  # type: ignore[assignment]
            with suppress(KeyboardInterrupt):
                shared.write_header({"limiter": f"of step {step}"})
            shared._map = real
            assert shared.header() == before or step == 3
            shared.write_header({"limiter": f"after step {step}"})
            now = shared.header()
            assert now is not None
            assert now["limiter"] == f"after step {step}"
        assert steps == 1 + 2 + 3 + 3
    finally:
        shared.close()
