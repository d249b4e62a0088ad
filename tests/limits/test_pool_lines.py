"""Who waits for several limiters hears of everything that lets one of them serve again."""

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.errors import NestedReservationError, QuotaExhaustedError, ReservationError
from harness.limits import JointLimiter, Limiter, ProviderPool, current_reservation
from harness.models import FunctionModel, Message, ModelRequest


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


# Several limiters at once ------------------------------------------------------------------------


async def test_all_limits_of_a_request_hold_and_nothing_is_held_while_it_waits(
    autojump_clock: MockClock,
) -> None:
    account = Limiter("account", concurrent=3, requests_per_minute=6_000)
    models = [Limiter("large", concurrent=1), Limiter("small", concurrent=3)]
    waited_for_large = 0

    async def call(model: Limiter, seconds: float) -> None:
        async with JointLimiter([model, account]).reserve():
            assert account.statistics().in_flight <= 3
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(call, models[0], 10)
        await wait_all_tasks_blocked()
        assert account.statistics().in_flight == 1, "those in line hold nothing of the account"
        for _ in range(20):
            nursery.start_soon(call, models[1], 1)
        with trio.move_on_after(15):
            while models[1].statistics().granted < 20:
                await trio.sleep(1)
                waited_for_large += 1
        assert models[1].statistics().granted == 20
    assert trio.current_time() == 40
    for limiter in (account, *models):
        assert limiter.statistics().in_flight == 0
    assert account.statistics().dimensions["requests"].used == 24


@pytest.mark.parametrize("orders", [("ab", "ba"), ("abc", "cab", "bca", "cba")])
async def test_whoever_takes_them_in_whatever_order_nobody_deadlocks(
    orders: tuple[str, ...], autojump_clock: MockClock
) -> None:
    limiters = {name: Limiter(name, concurrent=1) for name in "abc"}
    done = Counter[str]()

    async def work(order: str) -> None:
        joint = JointLimiter([limiters[name] for name in order])
        for _ in range(50):
            async with joint.reserve():
                await trio.sleep(0.1)
                done[order] += 1

    with trio.fail_after(1_000):
        async with trio.open_nursery() as nursery:
            for order in orders:
                nursery.start_soon(work, order)
    assert done == dict.fromkeys(orders, 50)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "alone")])
async def test_those_who_share_a_limiter_get_their_shares(
    names: tuple[str, ...], autojump_clock: MockClock
) -> None:
    """The first to wait for a shared limiter once got every place of it that became free."""
    account = Limiter("account", concurrent=2, requests_per_minute=600)
    served = Counter[str]()

    async def work(name: str) -> None:
        own = Limiter(name, concurrent=5)
        limiter = account if name == "alone" else JointLimiter([own, account])
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                while True:
                    async with limiter.reserve():
                        await trio.sleep(0.5)
                        served[name] += 1

            for _ in range(5):
                nursery.start_soon(call)

    with trio.move_on_after(300):
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(work, name)
    assert sum(served.values()) >= 0.99 * 4 * 300
    assert min(served[name] for name in names) >= 0.5 * 4 * 300 / len(names), served


async def test_all_are_settled_and_the_first_hears_of_the_response(
    autojump_clock: MockClock,
) -> None:
    first = Limiter("openai", tokens_per_minute=6_000)
    second = Limiter("account", tokens_per_minute=60_000, concurrent=5)
    joint = JointLimiter([first, second])
    async with joint.reserve(tokens=100) as reservation:
        assert reservation.provider == "openai"
        assert current_reservation() is reservation
        current_reservation().settle(tokens=40, status=429, headers={"retry-after": "7"})
        with pytest.raises(ReservationError, match="final"):
            reservation.refund()
    assert [one.dimensions["tokens"].used for one in joint.statistics()] == [40, 40]
    assert [one.pauses for one in joint.statistics()] == [1, 0]
    async with joint.reserve(tokens=100) as reservation:
        assert trio.current_time() >= 7
        reservation.refund()
    assert [one.dimensions["tokens"].used for one in joint.statistics()] == [40, 40]
    with pytest.raises(ZeroDivisionError):
        async with joint.reserve(tokens=100):
            _ = 1 / 0
    assert [one.in_flight for one in joint.statistics()] == [0, 0]
    with pytest.raises(ReservationError):
        current_reservation()


async def test_a_cancel_in_the_joint_line_costs_nothing(autojump_clock: MockClock) -> None:
    a, b = Limiter("a", concurrent=1), Limiter("b", concurrent=1, requests_per_minute=60)
    joint = JointLimiter([a, b])
    async with a.reserve():
        with trio.move_on_after(1) as scope:
            async with joint.reserve():
                pass
        assert scope.cancelled_caught
        assert (joint.waiting, b.statistics().dimensions["requests"].used) == (0, 0)
    async with joint.reserve():
        pass


async def test_a_used_up_quota_of_one_is_an_error_for_all(autojump_clock: MockClock) -> None:
    a, b = Limiter("a", concurrent=1), Limiter("b", requests_per_minute=60)
    b.observe(status=429, body={"error": {"code": "insufficient_quota"}})
    with pytest.raises(QuotaExhaustedError, match="'b'"):
        async with JointLimiter([a, b]).reserve():
            pass


async def test_nested_blocks_in_opposite_orders_are_an_error_and_no_deadlock(
    autojump_clock: MockClock,
) -> None:
    a, b = Limiter("a", concurrent=1), Limiter("b", concurrent=1)
    endings: list[str] = []

    async def work(outer: Limiter, inner: Limiter) -> None:
        async with outer.reserve():
            await trio.sleep(1)
            try:
                async with inner.reserve():
                    endings.append("took both")
            except NestedReservationError as error:
                endings.append(str(error).rpartition(": ")[2])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, a, b)
        nursery.start_soon(work, b, a)
    assert sorted(endings) == ["JointLimiter([...]).reserve(...)", "took both"]
    assert a._grants.blocked == b._grants.blocked == {}


async def test_opposite_orders_are_fine_while_somebody_can_go_on(
    autojump_clock: MockClock,
) -> None:
    a, b = Limiter("a", concurrent=2), Limiter("b", concurrent=1)
    took = 0

    async def work(outer: Limiter, inner: Limiter) -> None:
        nonlocal took
        async with outer.reserve():
            await trio.sleep(1)
            async with inner.reserve():
                took += 1

    async def alone() -> None:
        async with a.reserve():
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alone)
        nursery.start_soon(work, a, b)
        nursery.start_soon(work, b, a)
    assert took == 2


async def test_a_model_keeps_to_several_limiters(autojump_clock: MockClock) -> None:
    account = Limiter("account", requests_per_minute=60)
    models = [
        FunctionModel(
            lambda request: "fine",
            name=name,
            limiter=JointLimiter([Limiter(name, requests_per_minute=6_000), account]),
        )
        for name in ("large", "small")
    ]

    async def ask(model: FunctionModel) -> None:
        for _ in range(30):
            await model.complete(ModelRequest([Message("user", "hello")]))

    async with trio.open_nursery() as nursery:
        for model in models:
            nursery.start_soon(ask, model)
    assert trio.current_time() == pytest.approx(59)
    assert account.statistics().granted == 60
