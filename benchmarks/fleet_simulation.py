"""How well do many workers keep one limit through Redis, and how many calls does it take?

Method: a simulation on a virtual clock, in one process. Each worker has a real `FleetLimiter`, and
the server runs the real script; only the network and the clocks are made up. A call takes 0.2 to 5
milliseconds each way, and one in a hundred 50 more. The workers' clocks are up to 5 s apart. Each
worker has four tasks, which together ask for half as much again as the limit allows.

*Use* is what was granted of what the limit allows, after the first window. *Over* is by how much
the worst of all windows exceeds the limit, at the moments when requests are really sent. *Calls*
are those to Redis per grant.

Run: python -m benchmarks.fleet_simulation WORKERS REQUESTS, such as 1000 1000000, which takes
     a quarter of an hour or two; or python -m benchmarks fleet_simulation, which is a small one
"""

import random
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import trio

from benchmarks._lua_redis import LuaLink, LuaRedis
from benchmarks._measure import Measured, Row, at_least, at_most
from harness.cluster import FleetLimiter
from harness.limits import Rate

SKEW_SECONDS = 5.0
TASKS = 4
DEMAND = 1.5
PERIOD_SECONDS = 10.0

# Where moments are in what a call says happened, counted from its name.
_MOMENTS = {"settled": (3,), "late": (3, 4), "sent": (3,)}
_LENGTHS = {"settled": 4, "late": 5, "sent": 4}
# Where they are in a reply: now, the pause, and from the count of grants on each of them.
_NOW, _PAUSES, _GRANTS = 1, (9, 10, 11), 14
_HAPPENED = 9  # Where a call with one dimension says how much has happened.


@attrs.frozen
class Outcome:
    """What a simulation came to."""

    use: float
    over: int
    calls_per_grant: float
    grants: int
    seconds: float


class JumpingClock(trio.abc.Clock):
    """A clock that jumps to the next deadline whenever no task can go on.

    Nothing waits for anything outside trio here, so it needn't look twice, as a `MockClock` does.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Do nothing: it doesn't run."""

    def current_time(self) -> float:
        """Return what time it is."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump to the deadline."""
        self._now = max(self._now, deadline)
        return 0


class SkewedLink(LuaLink):
    """A connection of a worker whose clock differs from the server's."""

    def __init__(self, redis: LuaRedis, chance: random.Random) -> None:
        super().__init__(redis, partial(_delay_seconds, chance))
        self._skew = chance.uniform(-SKEW_SECONDS, SKEW_SECONDS)

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> list[str]:
        told = [*arguments]
        at = _HAPPENED + 1
        for _ in range(int(told[_HAPPENED])):
            what = told[at]
            for moment in _MOMENTS[what]:
                self._shift(told, at + moment, -self._skew)
            at += _LENGTHS[what]
        reply = await super().run(script, keys, told)
        for index in (_NOW, *_PAUSES, *range(_GRANTS + 1, _GRANTS + 1 + int(reply[_GRANTS]))):
            self._shift(reply, index, self._skew)
        return reply

    def _shift(self, words: list[str], index: int, seconds: float) -> None:
        words[index] = f"{float(words[index]) + seconds:.6f}"


def _delay_seconds(chance: random.Random) -> float:
    return chance.uniform(0.0002, 0.005) + (0.05 if chance.random() < 0.01 else 0)


def simulate(workers: int, requests: int, *, seed: int = 1) -> Outcome:
    """Let ``workers`` make ``requests`` in all, and say how it went."""
    # A request a second for each, so that the numbers mean the same for few and for many.
    limit = Rate(workers * PERIOD_SECONDS, PERIOD_SECONDS)
    began = time.process_time()
    clock = JumpingClock()
    redis = LuaRedis(lambda: 1_790_000_000 + clock.current_time())
    sent: list[float] = []
    chance = random.Random(seed)

    async def work(limiter: FleetLimiter, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(chance.expovariate(DEMAND / TASKS))
            async with limiter.reserve():
                sent.append(trio.current_time())
                if len(sent) >= requests:
                    scope.cancel()

    async def worker(scope: trio.CancelScope) -> None:
        await trio.sleep(chance.random())
        limiter = FleetLimiter("redis://simulated", "simulated", requests=limit)
        limiter._make_link = lambda: SkewedLink(redis, chance)
        async with limiter, trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work, limiter, scope)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(worker, nursery.cancel_scope)

    trio.run(main, clock=clock)
    steady = [moment for moment in sent if moment >= sent[0] + PERIOD_SECONDS + 1]
    allowed = limit.per_second * (sent[-1] - steady[0])
    most = max(bisect_left(sent, moment + PERIOD_SECONDS) - i for i, moment in enumerate(sent))
    return Outcome(
        use=len(steady) / allowed,
        over=max(0, most - int(limit.amount)),
        calls_per_grant=redis.calls / len(sent),
        grants=len(sent),
        seconds=time.process_time() - began,
    )


def rows(*, quick: bool) -> Iterator[Row]:
    """Simulate a small fleet."""
    workers, requests = (20, 400) if quick else (50, 3_000)
    outcome = simulate(workers, requests)
    what = f"{workers} workers, one limit through Redis"
    note = f"{outcome.grants:,} grants"
    yield at_least(f"{what}, use", 0.97, Measured.exactly(outcome.use), unit="", note=note)
    yield at_most(f"{what}, over in the worst window", 0, Measured.exactly(outcome.over), unit="")
    yield at_most(f"{what}, calls per grant", 5, Measured.exactly(outcome.calls_per_grant), unit="")


def main() -> None:
    """Simulate a fleet of the size that was asked for."""
    workers, requests = map(int, sys.argv[1:])
    outcome = simulate(workers, requests)
    print(
        f"{workers:,} workers, {outcome.grants:,} requests: use {outcome.use:.2%}, "
        f"{outcome.over} over in the worst window, {outcome.calls_per_grant:.2f} calls per grant; "
        f"{outcome.seconds:.0f} s of CPU"
    )


if __name__ == "__main__":
    main()
