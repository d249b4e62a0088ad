"""A replay makes the same steps and ends the same way: a schedule is worth nothing without."""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import trio
import trio.lowlevel

from harness.testing import run_schedule
from harness.testing.schedules import Kind
from harness.testing.schedules._run_schedule import run_probe
from harness.testing.schedules._search import Search
from tests.scale import scaled
from tests.testing.exploration import asyncio_races, thread_races
from tests.testing.exploration.leaks import LEAKS
from tests.testing.schedules.toys import TOYS

pytestmark = pytest.mark.slow

REPLAYS = scaled(120, full=1_000)


async def works_in_threads() -> list[str]:
    """Use trio's worker threads, its clock, and threads that call back."""
    seen: list[str] = []
    limiter = trio.CapacityLimiter(2)

    def work(name: str) -> None:
        seen.append(name)
        trio.from_thread.run(trio.sleep, 1)
        seen.append(name.upper())

    async def ask(name: str) -> None:
        with trio.move_on_after(1.5):
            await trio.to_thread.run_sync(work, name, limiter=limiter)
            await trio.sleep(0.5)
            seen.append(f"{name} again")

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(ask, name)
    return seen


OWN_STATE = ("token refresh", "lost wakeup", "rollback")
"""The leaks that keep what they share in the test itself; nothing else is put back here."""

RIGHT = (False, True)

PROGRAMS: dict[Kind, list[Callable[[], Any]]] = {
    "trio": [
        *TOYS.values(),
        *(test for name in OWN_STATE for test in (LEAKS[name].test, LEAKS[name].corrected)),
        works_in_threads,
    ],
    "asyncio": [partial(race, right=right) for race, right in product(asyncio_races.RACES, RIGHT)],
    "threads": [partial(race, right=right) for race, right in product(thread_races.RACES, RIGHT)],
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_no_replay_diverges(kind: Kind) -> None:
    """Half of them of programs that fail: cancels, threads, sets of tasks and timers included."""
    searches = deque((program, Search(seed)) for seed, program in enumerate(PROGRAMS[kind]))
    probes = {search: search.probes() for _, search in searches}
    replays = failures = 0
    while replays < REPLAYS:
        program, search = searches.popleft()
        probe = next(probes[search], None)
        if probe is None:
            continue  # It has been run in every order.
        searches.append((program, search))
        made = run_probe(program, probe, backend=kind)
        search.learn(probe, made)
        again = run_schedule(program, str(made.schedule), backend=kind)
        assert again.diverged_at is None
        assert again.order == made.order
        assert again.schedule == made.schedule
        assert repr(again.outcome) == repr(made.outcome)
        replays += 1
        failures += made.error is not None
    assert failures > 5
