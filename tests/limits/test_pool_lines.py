"""A pool hears of everything that lets one of its members serve again."""

import trio
from trio.testing import MockClock

from harness.limits import Limiter, ProviderPool


async def test_a_pool_is_served_when_a_member_s_own_line_empties(
    autojump_clock: MockClock,
) -> None:
    """A cancel took somebody out of the member's line; the pool waited forever with all free."""
    limiter = Limiter("account", requests_per_minute=60)
    pool = ProviderPool([limiter])
    granted: list[float] = []

    async def direct(scope: trio.CancelScope) -> None:
        with scope:
            async with limiter.reserve():
                await trio.sleep(3_600)

    async def by_pool() -> None:
        async with pool.reserve():
            granted.append(trio.current_time())

    async with limiter.reserve():
        pass
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(direct, scope)
            await trio.sleep(0.1)
            nursery.start_soon(by_pool)
            await trio.sleep(0.1)
            scope.cancel()
    assert granted == [1]


async def test_a_pool_is_served_after_a_grant_that_came_by_time(
    autojump_clock: MockClock,
) -> None:
    """Nobody left, and nobody settled: the last in line was granted when its moment came."""
    limiter = Limiter("account", requests_per_minute=60)
    pool = ProviderPool([limiter])

    async def direct() -> None:
        async with limiter.reserve():
            await trio.sleep(3_600)

    async with limiter.reserve():
        pass
    async with trio.open_nursery() as nursery:
        nursery.start_soon(direct)
        await trio.sleep(0.1)
        async with pool.reserve():
            assert trio.current_time() == 2
        nursery.cancel_scope.cancel()


async def test_a_member_is_looked_at_again_when_its_pause_ends(
    autojump_clock: MockClock,
) -> None:
    """A paused member counted as closed until another one changed."""
    first, second = Limiter("first", concurrent=5), Limiter("second", concurrent=1)
    pool = ProviderPool([first, second])
    first.pause(300)

    async def hold() -> None:
        async with second.reserve():
            await trio.sleep(10_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await trio.sleep(1)
        async with pool.reserve() as reservation:
            assert reservation.provider == "first"
            assert 300 <= trio.current_time() <= 311  # The jitter is at most ten seconds.
        nursery.cancel_scope.cancel()
