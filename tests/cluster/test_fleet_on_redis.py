"""What a limiter over Redis promises, on a virtual clock: the real script, without a server."""

from __future__ import annotations

import random
import warnings
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from benchmarks._lua_redis import LuaLink, LuaRedis
from harness.cluster import FleetLimiter, FleetStore
from harness.errors import HarnessWarning, LimiterRunError
from harness.limits import JointLimiter, Limiter, ProviderPool, Rate
from tests.support.checkpoints import cancel_at_every_checkpoint

EPOCH_SECONDS = 1_790_000_000.0
SIX = Rate(600, 6)


@pytest.fixture
def redis(autojump_clock: MockClock) -> LuaRedis:
    """A server whose clock has nothing to do with anybody else's."""
    return LuaRedis(lambda: EPOCH_SECONDS + autojump_clock.current_time())


def joins(
    redis: LuaRedis, delay: Callable[[], float] = lambda: 0.001, **limits: Any
) -> FleetLimiter:
    """Make what a process has: a limiter of its own, over one server."""
    limiter = FleetLimiter("redis://user:secret@lua:1", "p", **limits)
    limiter._make_link = lambda: LuaLink(redis, delay)
    return limiter


@asynccontextmanager
async def fleet(redis: LuaRedis, count: int, **limits: Any) -> AsyncGenerator[list[FleetLimiter]]:
    async with trio.open_nursery() as nursery:
        limiters = [joins(redis, **limits) for _ in range(count)]
        leave = trio.Event()

        async def is_there(limiter: FleetLimiter, task_status: Any) -> None:
            async with limiter:
                task_status.started()
                await leave.wait()

        for limiter in limiters:
            await nursery.start(is_there, limiter)
        yield limiters
        leave.set()


async def asks(limiter: FleetLimiter, sent: list[float], **amounts: Any) -> None:
    while True:
        async with limiter.reserve(**amounts):
            sent.append(trio.current_time())


def most_in_a_window(sent: list[float], seconds: float) -> int:
    return max(bisect_left(sent, moment + seconds) - i for i, moment in enumerate(sent))


@pytest.mark.slow
async def test_four_processes_use_a_limit_in_full_and_no_more(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    sent: list[float] = []
    chance = random.Random(1)
    delay = partial(chance.uniform, 0.0002, 0.004)
    async with fleet(redis, 4, delay=delay, requests=Rate(300, 3)) as limiters:
        with trio.move_on_after(6.5):
            async with trio.open_nursery() as nursery:
                for limiter in limiters * 3:
                    nursery.start_soon(asks, limiter, sent)
    assert most_in_a_window(sent, 3) <= 300
    assert len([moment for moment in sent if 3 <= moment < 6]) >= 0.99 * 300
    assert redis.calls < 1.5 * len(sent)  # Nobody in line asks for themselves.


@pytest.mark.slow
async def test_many_processes_make_a_few_calls_per_grant(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    sent: list[float] = []
    async with fleet(redis, 30, requests=Rate(100, 2)) as limiters:
        with trio.move_on_after(6):
            async with trio.open_nursery() as nursery:
                for limiter in limiters:
                    nursery.start_soon(asks, limiter, sent)
                await trio.sleep(3)
                calls, grants = redis.calls, len(sent)
                await trio.sleep(2)
                assert redis.calls - calls <= 4 * (len(sent) - grants)
                assert len(sent) - grants >= 0.97 * 100


async def test_places_are_never_taken_twice(autojump_clock: MockClock, redis: LuaRedis) -> None:
    held = most = done = 0

    async def works(limiter: FleetLimiter) -> None:
        nonlocal held, most, done
        for _ in range(5):
            async with limiter.reserve():
                held += 1
                most = max(most, held)
                await trio.sleep(0.1)
                held -= 1
                done += 1

    async with fleet(redis, 4, concurrent=8) as limiters, trio.open_nursery() as nursery:
        for limiter in limiters * 5:
            nursery.start_soon(works, limiter)
    assert most == 8
    assert done == 100


@pytest.mark.slow
async def test_a_dead_process_loses_its_places_after_the_lease_and_a_living_one_keeps_them(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    frozen = False

    def delay() -> float:
        return 1e3 if frozen else 0.001

    dying = joins(redis, delay, concurrent=8, lease=2.0)
    with pytest.warns(HarnessWarning, match="no answer for 2 s"):  # noqa: PT031
        async with (
            fleet(redis, 1, concurrent=8, lease=10.0) as [limiter],
            dying,
            trio.open_nursery() as nursery,
        ):
            for _ in range(5):
                await dying.reserve().__aenter__()
            await trio.sleep(10)  # It renews its lease.
            for _ in range(3):
                await limiter.reserve().__aenter__()
            with trio.move_on_after(4) as too_early:
                await limiter.reserve().__aenter__()
            assert too_early.cancelled_caught
            frozen, frozen_at = True, trio.current_time()
            with trio.fail_after(20):
                for _ in range(5):
                    await limiter.reserve().__aenter__()
            assert 1 <= trio.current_time() - frozen_at <= 2.2
            await trio.sleep(3)  # By now it has found out.
            frozen = False
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_pause_reaches_the_others_within_100_milliseconds(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    sent: list[float] = []
    async with fleet(redis, 3, requests=Rate(1_000, 2)) as [one, *others]:
        with trio.move_on_after(9):
            async with trio.open_nursery() as nursery:
                for limiter in others * 10:
                    nursery.start_soon(asks, limiter, sent)
                await trio.sleep(1.5)
                async with one.reserve() as reservation:
                    reservation.settle(status=429, headers={"retry-after": "5"})
                paused_at = trio.current_time()
    assert len([moment for moment in sent if moment < paused_at]) > 300
    assert not [moment for moment in sent if paused_at + 0.1 < moment < paused_at + 5]
    after = [moment for moment in sent if moment >= paused_at + 5]
    assert after
    # Then comes the pace, 50 in a tenth of a second, and no burst of 500.
    assert len([moment for moment in after if moment < after[0] + 0.1]) <= 80


async def test_refusals_from_before_a_pause_are_no_news_to_anybody(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, requests=SIX) as [one, other]:
        async with one.reserve() as first, other.reserve() as second:
            first.settle(status=429, headers={"retry-after": "5"})
            await trio.sleep(1)
            second.settle(status=429, headers={"retry-after": "30"})
        await trio.sleep(1)
        assert other.statistics().pauses == one.statistics().pauses == 1
        assert other.statistics().paused_seconds < 5


async def test_what_a_provider_says_is_known_to_all(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, requests=Rate(600, 60)) as [one, other]:
        async with one.reserve() as reservation:
            headers = {
                "x-ratelimit-limit-requests": "600",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "20s",
            }
            reservation.settle(status=200, headers=headers)
        await trio.sleep(0.02)
        began = trio.current_time()
        async with other.reserve():
            pass
        assert trio.current_time() - began >= 0.05  # Ten a second come back; the burst is gone.
        assert other.statistics().dimensions["requests"].provider_remaining is not None


async def test_a_refusal_for_want_of_a_place_costs_no_request(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, requests=SIX, concurrent=1) as [one, other]:
        async with one.reserve():
            await trio.sleep(0.1)
            with trio.move_on_after(2):
                async with other.reserve():
                    raise AssertionError
        await trio.sleep(1)
        assert other.statistics().dimensions["requests"].used == 1


@pytest.mark.slow
async def test_what_is_settled_and_refunded_can_be_used_by_others(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, tokens=Rate(1_000, 10), burst_seconds=10) as [one, other]:
        async with one.reserve(tokens=1_000) as reservation:
            reservation.settle(tokens=100)
        async with one.reserve(tokens=900) as reservation:
            reservation.refund()
        began = trio.current_time()
        async with other.reserve(tokens=900) as reservation:
            assert trio.current_time() - began < 0.2
            reservation.settle(tokens=1_900)  # An overrun is repaid by whoever comes next.
        async with one.reserve(tokens=10):
            assert trio.current_time() - began > 9


@pytest.mark.slow
async def test_a_request_above_the_limit_is_granted_in_an_empty_window_and_repaid(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, tokens=Rate(500, 6), burst_seconds=6) as [one, other]:
        async with one.reserve(tokens=1_024):
            began = trio.current_time()
            assert began < 0.1
        async with other.reserve(tokens=10):
            assert trio.current_time() - began > 6


async def test_a_process_that_was_stopped_asks_again_before_it_sends(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    """What it had been granted is long past, and others have used what came free since."""
    async with joins(redis, requests=Rate(6, 6)) as limiter, trio.open_nursery() as nursery:
        sent: list[float] = []
        nursery.start_soon(partial(asks, limiter, sent))
        assert limiter._server is not None
        while not (sent and limiter._server._bookings):  # noqa: ASYNC110
            await trio.sleep(0.001)
        granted, calls = len(sent), redis.calls
        autojump_clock.jump(5)
        while len(sent) == granted:  # noqa: ASYNC110
            await trio.sleep(0.001)
        assert redis.calls > calls
        nursery.cancel_scope.cancel()


async def test_a_waiter_cancelled_while_the_server_is_asked_has_taken_nothing(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, delay=lambda: 0.02, concurrent=1, requests=SIX) as [one, other]:
        for patience in (0.0, 0.005, 0.015, 0.025, 0.035):
            with trio.move_on_after(patience):
                async with one.reserve():
                    raise AssertionError(patience)
            await trio.sleep(0.2)
            statistics = other.statistics()
            async with other.reserve() as reservation:
                reservation.refund()
            await trio.sleep(0.2)
        statistics = other.statistics()
        assert statistics.in_flight == 0
        assert statistics.dimensions["requests"].used == 0
        assert statistics.dimensions["requests"].unsettled == 0


@pytest.mark.slow
async def test_while_the_server_is_gone_each_keeps_a_share_and_says_so_once(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    sent: list[float] = []
    with pytest.warns(HarnessWarning, match="can't reach Redis at redis://lua:1 ") as told:  # noqa: PT031
        async with fleet(redis, 4, requests=Rate(60, 6)) as limiters:
            with trio.move_on_after(40):
                async with trio.open_nursery() as nursery:
                    for limiter in limiters * 2:
                        nursery.start_soon(asks, limiter, sent)
                    await trio.sleep(10)
                    redis.is_down = True
                    await trio.sleep(10)
                    redis.is_down = False
                    await trio.sleep(10)
                    redis.is_down = True
                    redis.clear()
                    await trio.sleep(0.5)
                    redis.is_down = False
    assert len(told) == 4  # Once for each process, though it was gone twice.
    assert "1/4 of it" in str(told[0].message)
    assert "secret" not in str(told[0].message)
    assert most_in_a_window(sent, 6) <= 70 + 4  # The limit, the burst, and one more each.
    for second in range(40):  # It never stops, and soon is as fast as ever.
        assert [moment for moment in sent if second <= moment < second + 1.2], second
    assert len([moment for moment in sent if 13 <= moment < 19]) >= 0.95 * 60
    assert len([moment for moment in sent if 33 <= moment < 39]) >= 0.95 * 60


async def test_places_are_shared_out_while_the_server_is_gone(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def holds(limiter: FleetLimiter) -> None:
        async with limiter.reserve():
            await trio.sleep_forever()

    with pytest.warns(HarnessWarning, match="can't reach Redis"):  # noqa: PT031
        async with fleet(redis, 2, concurrent=8, lease=5.0) as [one, other]:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(holds, one)
                await trio.sleep(2)
                redis.is_down = True
                await trio.sleep(2)
                for _ in range(8):
                    nursery.start_soon(holds, other)
                await trio.sleep(1)
                # One more of the three that were free, for each.
                assert one.statistics().concurrent == 6
                assert other.statistics().in_flight == 1
                await trio.sleep(10)
                # By now the others have no more than their share, either.
                assert other.statistics().in_flight == 4
                redis.is_down = False
                nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_missing_key_is_a_window_just_used_up_plus_the_burst(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    sent: list[float] = []
    async with fleet(redis, 1, requests=Rate(60, 6)) as [limiter]:
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(15):
                    nursery.start_soon(asks, limiter, sent)
                await trio.sleep(9.5)
                redis.clear()
    first = [moment - sent[0] for moment in sent]
    assert len([moment for moment in first if moment < 0.9]) == 10
    assert not [moment for moment in first if 0.3 < moment < 0.99]
    assert 60 <= most_in_a_window(sent, 6) <= 70


async def test_other_limits_under_one_name_are_refused(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 1, requests=SIX):
        with pytest.raises(ValueError, match=r"in use with other limits: .*600.*this process .*60"):
            async with joins(redis, requests=Rate(60, 6)):
                pass
    async with joins(redis, requests=Rate(60, 6)):  # Nobody is left who states others.
        pass


async def test_a_server_that_cant_be_reached_is_named_without_its_password(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    redis.is_down = True
    with pytest.raises(ConnectionError, match="can't be used at redis://lua:1: ") as caught:
        async with joins(redis, requests=SIX):
            pass
    assert "secret" not in str(caught.value)
    assert caught.value.__notes__ == ['on_unreachable="local" begins without it']
    with pytest.warns(HarnessWarning, match="keeps to it by itself"):  # noqa: PT031
        async with joins(redis, requests=SIX, on_unreachable="local") as limiter:
            async with limiter.reserve():
                redis.is_down = False
            await trio.sleep(1)
            assert limiter.statistics().dimensions["requests"].used == 1
            assert redis.calls > 1


async def test_a_changed_limit_is_everybodys(autojump_clock: MockClock, redis: LuaRedis) -> None:
    async with fleet(redis, 2, requests=SIX, concurrent=2) as [one, other]:
        one.change(requests=Rate(60, 6), concurrent=5)
        await trio.sleep(5)
        assert other.statistics().dimensions["requests"].limit == 60
        assert other.statistics().concurrent == 5
        async with joins(redis, requests=SIX, concurrent=2) as late:
            assert late.statistics().dimensions["requests"].limit == 60


async def test_a_lower_limit_that_the_provider_states_is_everybodys(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with fleet(redis, 2, requests_per_minute=600) as [one, other]:
        async with one.reserve() as reservation:
            headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59"}
            reservation.settle(status=200, headers=headers)
        await trio.sleep(5)
        assert one.statistics().dimensions["requests"].limit == 60
        assert other.statistics().dimensions["requests"].limit == 60


async def test_the_line_of_a_process_has_priorities(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    served: list[int] = []

    async def ask(limiter: FleetLimiter, priority: int) -> None:
        async with limiter.reserve(priority=priority):
            served.append(priority)

    async with fleet(redis, 1, requests=Rate(10, 10)) as [limiter]:
        async with limiter.reserve(), trio.open_nursery() as nursery:
            for priority in (0, 0, 5, 9):
                nursery.start_soon(ask, limiter, priority)
    assert served == [9, 5, 0, 0]


async def test_a_fan_out_takes_it_as_any_limiter(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def double(number: int) -> int:
        return 2 * number

    async with joins(redis, requests=SIX) as limiter:
        results = await harness.fan_out(double, range(5), each=harness.Attempt(limiter=limiter))
    assert results.values() == [0, 2, 4, 6, 8]


async def test_it_is_used_in_its_block_and_answers_nothing_at_once(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    limiter = joins(redis, requests=SIX)
    for misuse in (limiter.reserve, partial(limiter.pause, 1), limiter.reset):
        with pytest.raises(LimiterRunError, match=r"not open|can't be reset"):
            misuse()
    async with limiter:
        with pytest.raises(trio.WouldBlock):
            limiter.reserve_nowait()
        with pytest.raises(LimiterRunError, match="is open"):
            await limiter.__aenter__()
        for together in (ProviderPool, JointLimiter):
            with pytest.raises(TypeError, match="has to ask a server"):
                together([limiter, Limiter("q", requests_per_minute=1)])


@pytest.mark.parametrize(
    ("where", "options", "says"),
    [
        ("http://host", {}, "http://..., but must be the path of a file"),
        ("redis://host", {"lease": 0}, "lease"),
        ("redis://host", {"on_unreachable": "ignore"}, 'must be "raise" or "local"'),
    ],
)
def test_bad_arguments_are_refused(where: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FleetLimiter(where, "p", requests_per_minute=1, **options)


async def test_all_keys_are_passed_in_under_one_hash_tag(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    seen: set[str] = set()
    run = redis.run

    def noted(script: str, keys: list[str], arguments: list[str]) -> list[str]:
        seen.update(keys)
        return run(script, keys, arguments)

    redis.run = noted  # type: ignore[method-assign, assignment]
    limits = {"requests": SIX, "tokens_per_minute": 60, "headroom": 0.9}
    async with fleet(redis, 1, **limits) as [limiter]:
        async with limiter.reserve(tokens=1):
            pass
    assert len(seen) == 3 + 4
    assert {key[: key.index("}") + 1] for key in seen} == {"{harness:p}"}
    assert set(redis.keys()) <= seen


@pytest.fixture(autouse=True)
def _no_warning_is_lost() -> Iterator[None]:
    """Let a warning that no test expects fail it; the courier's task raises none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert not [one for one in caught if issubclass(one.category, HarnessWarning)]


@pytest.mark.slow
async def test_it_survives_a_cancel_at_every_checkpoint(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    options: dict[str, Any] = {"requests": Rate(100, 1), "tokens": Rate(1000, 1), "concurrent": 1}

    async def use() -> None:
        async with joins(redis, **options) as limiter, trio.open_nursery() as nursery:

            async def ask() -> None:
                async with limiter.reserve(tokens=50) as reservation:
                    await trio.sleep(0.01)
                    reservation.settle(tokens=60)

            nursery.start_soon(ask)
            nursery.start_soon(ask)

    async def nothing_is_held() -> None:
        await trio.sleep(1)
        async with joins(redis, **options) as limiter:
            found = limiter.statistics()
            assert found.in_flight == found.dimensions["tokens"].unsettled == 0

    assert await cancel_at_every_checkpoint(use, nothing_is_held) > 5


@pytest.mark.parametrize(
    "address",
    [
        "redis://u:sec/ret@h:1",
        "redis://u:sec#ret@h:1",
        "redis://u:12?ret@h:1",
        "redis://u:12/34@h",
        "redis://:secret@h:port",
        "redis://:secret@h:99999",
        "redis://:secret@[::1",
        "redis://:secret@h/name",
        "redis://:secret@",
    ],
)
def test_an_address_that_might_show_its_password_is_refused(address: str) -> None:
    for takes in (partial(FleetLimiter, concurrent=1), FleetStore):
        with pytest.raises(ValueError, match="must be redis://user:password") as caught:
            takes(address, "p")
        assert not any(part in str(caught.value) for part in ("sec", "ret@", "12", "34"))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://u:p@ss@h:1/2", "redis://h:1/2"),
        ("rediss://:secret@[::1]:7?ssl_ca_certs=ca.pem", "rediss://[::1]:7"),
        ("redis://h", "redis://h"),
        ("redis://u:%2Fp@h/", "redis://h/"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert repr(FleetStore(address, "p")) == f"<FleetStore 'p' at {shown}>"
