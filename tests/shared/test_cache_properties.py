"""Whatever is done with a cache at random, it holds what it says."""

from __future__ import annotations

import random
from functools import partial

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.shared import open_cache
from tests.scale import scaled

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "get", "get", "cancel", "sleep", "forget", "break", "mend"]),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=80,
)


@given(
    seed=st.integers(0, 2**32),
    steps=STEPS,
    ttl=st.sampled_from([None, 0, 2, 10]),
    size=st.integers(1, 4),
    failure_ttl=st.sampled_from([0, 3]),
)
def test_what_is_handed_out_is_fresh_and_of_its_key_whatever_is_done(
    seed: int, steps: list[tuple[str, int]], ttl: float | None, size: int, failure_ttl: float
) -> None:
    trio.run(
        partial(_random_use, seed, steps, ttl, size, failure_ttl),
        clock=MockClock(autojump_threshold=0),
    )


async def _random_use(
    seed: int, steps: list[tuple[str, int]], ttl: float | None, size: int, failure_ttl: float
) -> None:
    rng = random.Random(seed)
    broken = False
    under_way: dict[int, int] = {}
    forgotten: dict[int, float] = {}
    scopes: list[trio.CancelScope] = []
    answered = 0
    asked = 0

    async def load(key: int) -> tuple[int, float, float]:
        began = trio.current_time()
        under_way[key] = under_way.get(key, 0) + 1
        if forgotten.get(key, -1.0) < 0:
            assert under_way[key] == 1
        try:
            await trio.sleep(rng.choice([0, 0.5, 1]))
            if broken:
                raise OSError(key, trio.current_time())
        finally:
            under_way[key] -= 1
        return key, began, trio.current_time()

    async def ask(key: int, scope: trio.CancelScope) -> None:
        nonlocal answered
        asked_at = trio.current_time()
        with scope:
            failed_at: float | None = None
            try:
                got, began, loaded_at = await cache.get(key, load)
            except OSError as error:
                got, failed_at = error.args
            assert got == key
            if failed_at is not None:
                assert failed_at >= asked_at or failed_at + failure_ttl > asked_at
            else:
                assert ttl is None or loaded_at >= asked_at or loaded_at + ttl > asked_at
                assert began >= forgotten.get(key, -1.0) or asked_at <= forgotten[key]
        answered += 1

    async with open_cache(ttl=ttl, size=size, failure_ttl=failure_ttl) as cache:
        async with trio.open_nursery() as nursery:
            for kind, number in steps * scaled(1, full=5):
                if kind == "get":
                    asked += 1
                    scopes.append(trio.CancelScope())
                    nursery.start_soon(ask, number, scopes[-1])
                elif kind == "cancel" and scopes:
                    scopes.pop(number % len(scopes)).cancel()
                elif kind == "sleep":
                    await trio.sleep(number / 2)
                elif kind == "forget":
                    await wait_all_tasks_blocked()
                    cache.forget(number)
                    forgotten[number] = trio.current_time()
                else:
                    broken = kind == "break"
                if rng.random() < 0.5:
                    await wait_all_tasks_blocked()
                cache.check()
        assert answered == asked
        await wait_all_tasks_blocked()
        assert cache.statistics().loading == cache.statistics().tasks_waiting == 0
        cache.check()
