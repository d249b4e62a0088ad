"""Share one limit among three processes of a machine, through a file.

Each process is a program of its own, started here as a shell would start it, and none
knows of the others. They open the same `FleetLimiter`, so all of them together send
what one might: 20 requests a second, at most four at once.

Run:     python examples/fleet_of_processes.py
Prints:  3 processes sent 60 requests, at most 4 at once
         the last 40 took 2 s or more, as 20 a second allow
"""

import sys
import tempfile
import time
from pathlib import Path

import trio

import harness
from harness.cluster import FleetLimiter
from harness.limits import Rate

PROCESSES = 3
REQUESTS = 20
"""How many each of them sends."""
AT_ONCE = 4
RATE = Rate(20, 1.0)


async def send(number: int) -> tuple[float, float]:
    """Be a request; return when it began and ended, by the clock that all processes share."""
    began_at = time.monotonic()
    await trio.sleep(0.05)
    return began_at, time.monotonic()


async def be_one_of_them(file: str) -> None:
    """Send the requests as the limit allows, and tell when."""
    async with FleetLimiter(file, "provider", requests=RATE, concurrent=AT_ONCE) as limiter:
        each = harness.Attempt(limiter=limiter)
        for began_at, ended_at in (
            await harness.fan_out(send, range(REQUESTS), each=each)
        ).values():
            print(began_at, ended_at)


async def be_a_process(file: str) -> list[tuple[float, float]]:
    """Start a process, and return what it tells."""
    done = await trio.run_process([sys.executable, __file__, file], capture_stdout=True)
    times = [line.split() for line in done.stdout.decode().splitlines()]
    return [(float(began_at), float(ended_at)) for began_at, ended_at in times]


async def main() -> None:
    """Start the processes, and look at what they did together."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "provider.limits"))
        told = await harness.fan_out(be_a_process, [file] * PROCESSES)
    requests = sorted(one for times in told.values() for one in times)
    began = [began_at for began_at, _ in requests]
    at_once = max(
        sum(began_at <= moment < ended_at for began_at, ended_at in requests) for moment in began
    )
    print(f"{PROCESSES} processes sent {len(requests)} requests, at most {at_once} at once")
    # A burst of twenty comes first. Starting processes takes a while, so it may be more.
    seconds = began[-1] - began[0]
    took = "2 s or more" if seconds > 1.9 else f"only {seconds:.1f} s"
    print(f"the last 40 took {took}, as 20 a second allow")


if __name__ == "__main__":
    if sys.argv[1:]:
        trio.run(be_one_of_them, sys.argv[1])
    else:
        trio.run(main)
