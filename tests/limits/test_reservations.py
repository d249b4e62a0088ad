"""Whose reservation is it: nesting, the current one, and the context that carries it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    HarnessError,
    NestedReservationError,
    QuotaExhaustedError,
    RateLimitedError,
    ReservationError,
)
from harness.limits import Limiter, ProviderPool, current_reservation


async def test_the_same_limiter_inside_its_reservation_is_an_error(
    autojump_clock: MockClock,
) -> None:
    """A parent held what the child it waits for needs."""
    limiter = Limiter("model", requests_per_minute=600)
    async with harness.open_run("parent"):
        async with limiter.reserve():
            with pytest.raises(NestedReservationError, match="'parent' reserves 'model' inside"):
                async with limiter.reserve():
                    pass
            with pytest.raises(NestedReservationError):
                limiter.reserve_nowait()
            async with harness.open_run("child"):
                with pytest.raises(NestedReservationError, match="parent/child"):
                    async with limiter.reserve():
                        pass
        async with limiter.reserve():
            pass
    assert limiter.statistics().granted == 2
    assert limiter.statistics().in_flight == 0


async def test_a_task_started_from_the_block_is_inside(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600)
    caught = []

    async def ask() -> None:
        try:
            async with limiter.reserve():
                pass
        except NestedReservationError as error:
            caught.append(error)

    async with harness.open_run("parent"):
        async with trio.open_nursery() as nursery:
            async with limiter.reserve():
                nursery.start_soon(ask)
                await trio.sleep(1)
    assert len(caught) == 1


async def test_a_task_that_outlives_the_block_is_outside_again(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600)

    async def ask() -> None:
        await trio.sleep(5)
        async with limiter.reserve():
            pass

    async with harness.open_run("parent"):
        async with trio.open_nursery() as nursery:
            async with limiter.reserve():
                nursery.start_soon(ask)
    assert limiter.statistics().granted == 2


async def test_another_limiter_is_fine(autojump_clock: MockClock) -> None:
    """An account's limiter inside a model's."""
    account = Limiter("account", requests_per_minute=600)
    model = Limiter("model", requests_per_minute=600)
    async with harness.open_run("run"):
        async with model.reserve() as outer, account.reserve() as inner:
            assert current_reservation() is inner
            with pytest.raises(NestedReservationError):
                async with model.reserve():
                    pass
        assert outer.provider == "model"


async def test_side_by_side_in_one_run_is_fine(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600)

    async def ask() -> None:
        async with limiter.reserve():
            await trio.sleep(1)

    async with harness.open_run("run"):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
    assert limiter.statistics().granted == 5


async def test_outside_of_any_run_nothing_is_checked(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600)
    async with limiter.reserve(), limiter.reserve():
        assert limiter.statistics().in_flight == 2


async def test_a_pool_counts_as_each_of_its_limiters(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600)
    pool = ProviderPool([limiter, Limiter("other", requests_per_minute=600)])
    async with harness.open_run("run"):
        async with pool.reserve():
            with pytest.raises(NestedReservationError):
                async with pool.reserve():
                    pass
            with pytest.raises(NestedReservationError):
                async with limiter.reserve():
                    pass


async def test_the_current_reservation_can_be_settled(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=10_000)

    async def call_provider() -> None:
        current_reservation().settle(tokens=70)

    with pytest.raises(ReservationError, match="holds no reservation"):
        current_reservation()
    async with limiter.reserve(tokens=500):
        await call_provider()
    assert limiter.statistics().dimensions["tokens"].used == 70
    with pytest.raises(ReservationError):
        current_reservation()


@contextmanager
def unchanged_context() -> Iterator[None]:
    before = dict(copy_context())
    try:
        yield
    finally:
        assert dict(copy_context()) == before


async def test_the_context_is_put_back_on_every_way_out(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600)
    with unchanged_context():
        async with limiter.reserve():
            pass
    with unchanged_context(), pytest.raises(ValueError, match="boom"):
        async with limiter.reserve():
            raise ValueError("boom")
    with unchanged_context(), trio.move_on_after(1):
        async with limiter.reserve():
            await trio.sleep_forever()
    with unchanged_context():
        limiter.reserve_nowait().refund()


async def test_a_chain_of_tasks_that_start_the_next_inside_their_block_does_not_grow(
    autojump_clock: MockClock,
) -> None:
    limiters = [Limiter(str(index), requests_per_minute=60_000) for index in range(2)]
    lengths = []

    async def step(nursery: trio.Nursery, left: int) -> None:
        async with limiters[left % 2].reserve() as reservation:
            length, outer = 0, reservation._outer
            while outer is not None:
                length, outer = length + 1, outer._outer
            lengths.append(length)
            if left:
                nursery.start_soon(step, nursery, left - 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(step, nursery, 300)
    assert len(lengths) == 301
    assert max(lengths) <= 2


def test_errors_can_be_sent_to_another_process() -> None:
    limited = pickle.loads(pickle.dumps(RateLimitedError("come back later", 7.5)))
    assert (str(limited), limited.retry_after) == ("come back later", 7.5)
    quota = pickle.loads(pickle.dumps(QuotaExhaustedError("gone", None)))
    assert (str(quota), quota.resets_after) == ("gone", None)
    for kind in (RateLimitedError, QuotaExhaustedError, NestedReservationError, ReservationError):
        assert issubclass(kind, HarnessError)
